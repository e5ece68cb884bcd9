"""The audit log: requests of principals, questions of agents, their answers and executed tools.
Each is a line of JSON, appended to a file that only the server's user can read. No line ever
changes.

The members of every line: `time` (RFC 3339), `what`, `task`, `context`, `principal`, `request_id`,
and `via`: the binding of the request that caused it, null without one; for an answer through MCP,
`mcp` or `mcp-form`.
docs/security.md lists the members of each `what`. A prompt is logged as its SHA-256.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from bridge.errors import ConfigurationError
from bridge.task.events import ENDINGS, Answer, Answered, Event, Question, Status, ToolCall
from bridge.task.message import AnswerWay, Message
from bridge.task.state import Task
from bridge.task.text import capped, escaped, one_line
from bridge.telemetry.log_context import NO_CLIENT, TASKS
from bridge.telemetry.observation import REQUEST, observed

log = logging.getLogger(__name__)


class Audit:
    """`path`: None for no audit log. `clean` redacts each line. Raises ConfigurationError if the
    file cannot be written; a later error is in the server's log and in `problem`."""

    def __init__(self, path: Path | None = None, clean: Callable[[str], str] = str) -> None:
        self._problem: str | None = None
        self._clean = clean
        self._path = path
        self._file: int | None = None
        self._cut_short = False  # the last line is incomplete: the next one begins with a newline
        if path:
            self._file = _open(path)

    def reopen(self, clean: Callable[[str], str]) -> None:
        """Write to the file that has the path now: the old one may have been renamed. Each line is
        in one of the two. Raises ConfigurationError, and keeps the old file then."""
        if self._file is not None and self._path is not None:
            opened = _open(self._path)
            if not os.path.samestat(os.fstat(opened), os.fstat(self._file)):
                self._cut_short = False  # of the old file
            os.close(self._file)
            self._file = opened
        self._clean = clean

    def note(self, what: str, task: Task, principal: str, **facts: Any) -> int:
        """`principal`: the actor; for actions of the agent, the owner of its task. Returns the
        bytes of the line."""
        whose = {"task": task.id, "context": task.context_id, "principal": principal}
        return self._write(what, {**whose, "request_id": _request(), **facts})

    def auth_failed(self, peer: str, scheme: str, cause: str, **facts: Any) -> None:
        """A client that was not authenticated. `more`: how many like it were not written down."""
        whose = {"task": None, "context": None, "principal": None, "request_id": _request()}
        self._write(
            "auth_failed", {**whose, "peer": peer, "scheme": scheme, "cause": cause, **facts}
        )

    def action(self, what: str, principal: str, **facts: Any) -> None:
        """An action of an operator that belongs to no single task."""
        whose = {"task": None, "context": None, "principal": principal, "request_id": _request()}
        self._write(what, {**whose, **facts})

    def message(
        self, what: str, task: Task, principal: str, message: Message, **facts: Any
    ) -> None:
        """A message of a client: a task begun, a turn steered."""
        text = message.text.encode("utf-8", "surrogatepass")
        facts |= {"message": message.id, "bytes": len(text)}
        self.note(what, task, principal, **facts, sha256=hashlib.sha256(text).hexdigest())

    @property
    def active(self) -> bool:
        """Whether there is an audit log."""
        return self._file is not None

    def events(self, task: Task, events: Iterable[Event]) -> int:
        """Log the events of a task. The request of an answer is the one that answered; that of
        other events is the one that began the task. Returns the bytes of the lines."""
        began = {"request_id": TASKS.request_of(task.id)}
        return sum(self._event(task, event, began) for event in events)

    def _event(self, task: Task, event: Event, began: dict[str, Any]) -> int:
        match event:
            case ToolCall():
                facts = {"tool": one_line(event.name), "input": capped(event.input)[0]}
                return self.note("tool", task, task.owner, **began, **facts)
            case Question():
                facts = {**began, "question": capped(event.id)[0], "text": capped(event.text)[0]}
                subject = capped(event.subject)[0]
                return self.note("asked", task, task.owner, **facts, subject=subject)
            case Answered(answer):
                chosen = [option.id for option in answer.options]
                facts = {} if answer.by not in NO_CLIENT else began
                facts = {**facts, "question": capped(answer.question_id)[0]}
                facts["options"] = capped(chosen)[0]
                facts |= _way(answer)
                return self.note("answered", task, answer.by, **facts, text=capped(answer.text)[0])
            case Status(data={"type": "unasked", "kind": kind, "name": name, **given}):
                facts = {**began, "kind": kind, "tool": one_line(str(name))}
                facts["act"] = "refused" if kind == "request" else "ignored"
                shown = capped(given.get("input"))[0]
                return self.note("unasked", task, task.owner, **facts, input=shown)
            case _ if isinstance(event, ENDINGS):
                return self.note("ended", task, task.owner, **began, state=task.state.value)
        return 0

    @property
    def problem(self) -> str | None:
        """The reason why the log cannot be written now, or None."""
        if self._file is not None and os.fstat(self._file).st_nlink == 0:
            return "the audit log was deleted; reload the configuration to begin a new one"
        return self._problem

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, what: str, facts: dict[str, Any]) -> int:
        """Returns the bytes of the line."""
        if self._file is None:
            return 0
        begin = {"time": datetime.now(UTC).isoformat(), "what": what}
        binding = observed().binding if REQUEST.get() else None
        facts = {**begin, "via": binding, **facts}  # an answer through MCP says more
        line = escaped(self._clean(orjson.dumps(facts, default=str).decode()))
        data = line.encode("utf-8", "replace") + b"\n"
        if self._cut_short:
            data = b"\n" + data
        try:
            written = os.write(self._file, data)
            if written == len(data):
                self._problem = None
                self._cut_short = False
                return len(data)
            self._cut_short = written > 0 or self._cut_short
            problem = "a line was cut"
        except OSError as error:
            problem = error.strerror or "unknown"
        if self._problem is None:
            log.error("the audit log cannot be written", extra={"reason": problem})
        self._problem = f"the audit log cannot be written: {problem}"
        return len(data)


def _open(path: Path) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags, 0o600)
    except OSError as error:
        text = f"BRIDGE_AUDIT_FILE: cannot write {path}: {error.strerror}"
        raise ConfigurationError(text) from None


def _request() -> str | None:
    """The id of the current request."""
    request = REQUEST.get()
    return request.id if request else None


def _way(answer: Answer) -> dict[str, Any]:
    """How an answer came that an MCP client sent: with a form, or from a model."""
    way = (answer.message.metadata or {}).get("mcp") if answer.message else None
    return dict(way) if isinstance(way, AnswerWay) else {}


NO_AUDIT = Audit()
