"""The schema of the server's log, for each line in both formats."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jsonschema import Draft202012Validator

from bridge.telemetry.log_events import EVENTS
from bridge.telemetry.logging import MARGIN

Json = dict[str, Any]
TEXT: Json = {"type": "string"}
MAYBE_TEXT: Json = {"type": ["string", "null"]}
NUMBER: Json = {"type": "number", "minimum": 0}
COUNT: Json = {"type": "integer", "minimum": 0}
MAYBE_NUMBER: Json = {"type": ["number", "null"]}
NAMES: Json = {"type": "array", "items": TEXT}


def one_of(*values: str) -> Json:
    return {"enum": list(values)}


STARTS = one_of("cold", "warm", "resumed")
TASK = {"task": TEXT, "agent": TEXT, "context": TEXT, "principal": TEXT}
REQUEST = {"request_id": TEXT, "binding": TEXT}
ANSWERED = {**REQUEST, "operation": TEXT, "version": TEXT, "code": TEXT, "seconds": NUMBER}
ENDED = {"state": TEXT, "reason": MAYBE_TEXT, "seconds": NUMBER, "model": MAYBE_TEXT}
USED = dict.fromkeys(("input_tokens", "output_tokens", "cost_usd"), MAYBE_NUMBER)
CHANGES = dict.fromkeys(("added", "removed", "changed", "needs_restart"), NAMES)
SCHEMES = one_of("bearer", "api_key", "basic", "oidc", "same_user", "unix_socket", "redis")
CAUSES = one_of(
    *("missing", "unknown", "expired", "revoked", "signature", "audience", "throttled"),
    *("other_uid", "forwarded", "agent_process"),
)
MEMBERS: dict[str, Json] = {
    "task.started": {
        **TASK,
        "queued_seconds": NUMBER,
        "start": {"enum": [*STARTS["enum"], None]},
        "cwd": MAYBE_TEXT,
        "model": MAYBE_TEXT,
    },
    "task.ended": {**TASK, **ENDED, **USED},
    "question.asked": {**TASK, "question": TEXT, "kind": TEXT},
    "question.answered": {
        "task": TEXT,
        "question": MAYBE_TEXT,
        "answered_by": one_of("client", "rule", "timeout", "limit"),
        "seconds": NUMBER,
    },
    "session.started": {"adapter": TEXT, "pid": COUNT, "start": STARTS, "cwd": TEXT},
    "session.ended": {
        "adapter": TEXT,
        "pid": {"type": ["integer", "null"]},
        "rung": TEXT,
        "exit": MAYBE_NUMBER,
    },
    "processes.background": {
        "adapter": TEXT,
        "pid": {"type": ["integer", "null"]},
        "count": COUNT,
    },
    "session.unasked": {
        "adapter": TEXT,
        "pid": {"type": ["integer", "null"]},
        "context": TEXT,
        "kind": one_of("request", "turn", "output"),
        "tool": TEXT,
        "act": one_of("refused", "ignored", "stopped", "ended"),
    },
    "processes.leftover": {"count": COUNT},
    "auth.failed": {"scheme": SCHEMES, "cause": CAUSES},
    "auth.token_exposed": {"file": TEXT},
    "request.answered": ANSWERED,
    "request.refused": ANSWERED,
    "request.failed": {"exception": TEXT},
    "stream.cut": {"cause": TEXT},
    "config.reloaded": CHANGES,
    "config.reload_failed": {"problem": TEXT},
    "server.starting": {"version": TEXT, "schema": COUNT},
    "server.ready": {"version": TEXT, "agents": NAMES, "address": MAYBE_TEXT},
    "server.draining": {"open_tasks": COUNT},
    "server.stopped": {},
    "store.degraded": {"problem": TEXT},
    "store.recovered": {},
    "backup.done": {"folder": TEXT, "bytes": COUNT, "seconds": NUMBER},
    "push.dead": {"task": TEXT, "config": TEXT, "error": TEXT},
}
assert MEMBERS.keys() == EVENTS
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
LEVELS = ("debug", "info", "warning", "error", "critical")
FIRST: Json = {
    "time": {"type": "string", "pattern": f"^{TIME}$"},
    "level": one_of(*LEVELS),
    "event": one_of(*sorted(EVENTS), "log"),
    "message": TEXT,
    "logger": TEXT,
}
KNOWN = {"more": COUNT, **dict.fromkeys(("request_id", "principal", "binding", "peer"), TEXT)}
VALIDATORS = {
    event: Draft202012Validator(
        {
            "type": "object",
            "properties": {**FIRST, **KNOWN, **members},
            "required": [*FIRST, *members],
        }
    )
    for event, members in {**MEMBERS, "log": {}}.items()
}

_STRING = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_LINE = re.compile(
    rf"(?:<\d>)?(?P<time>{TIME}) (?P<level>\w+) (?P<logger>\S+) (?P<message>{_STRING})"
    rf"(?P<pairs>(?: [\w.-]+={_STRING})*)(?P<cut> .*…)?\n?"
)
_PAIR = re.compile(rf" ([\w.-]+)=({_STRING})")
_LIKE_A_LINE = re.compile(rf"(?:<\d>)?{TIME} ")
MOST = 2000  # lines of one server that are checked
READY = "event='server.ready'"


def problems(line: Json) -> list[str]:
    """The faults of a line of JSON."""
    if (
        line.get("event") == "log"
        and line.get("level") in LEVELS
        and not line.keys() & KNOWN.keys()
    ):
        return []  # most lines; the schema takes a quarter of a millisecond
    schema = VALIDATORS.get(line.get("event", "log"), VALIDATORS["log"])
    return [f"{error.json_path}: {error.message}: {line}" for error in schema.iter_errors(line)]


def parsed(text: str) -> Json | None:
    """The members of a line of text; None for a line of another form, or one that was cut."""
    found = _LINE.fullmatch(text)
    if found is None or found["cut"]:
        return None
    pairs = {name: ast.literal_eval(value) for name, value in _PAIR.findall(found["pairs"])}
    event = pairs.pop("event", "log")
    typed = {**MEMBERS.get(event, {}), "more": COUNT}
    members = {
        name: json.loads(value) if _is_json(typed.get(name, TEXT), value) else value
        for name, value in pairs.items()
    }
    first = {name: found[name] for name in ("time", "level", "logger")}
    return {**first, "message": ast.literal_eval(found["message"]), "event": event, **members}


def _is_json(schema: Json, value: str) -> bool:
    """Whether a value is not a text, by its schema. The text format shows both alike."""
    return value == "null" or schema.get("type", "string") not in ("string", ["string", "null"])


def faults(lines: Sequence[str]) -> Iterator[str]:
    """The faults in the output of a server with the text format. Before it is ready, and after a
    start that fails, it also prints for people."""
    ready = False
    for text, below in _records(lines[:MOST]):
        ready = ready or READY in text
        if not (ready or _LIKE_A_LINE.match(text)) or text.endswith("…\n"):
            continue
        if text.startswith(("<", "{")) or not text.endswith("\n"):
            continue  # of another format, or of a killed server
        line = parsed(text)
        traceback = {"exception": below} if below else {}
        yield from problems(line | traceback) if line else [f"not a line of the log: {text!r}"]


def _records(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The lines, each with the lines of the traceback below it."""
    text = below = ""
    for line in lines:
        if text and line.startswith(MARGIN):
            below += line
            continue
        if text:
            yield text, below
        text, below = line, ""
    if text:
        yield text, below
