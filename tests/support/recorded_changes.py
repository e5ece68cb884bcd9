"""What differs between two recordings of the same sessions (tests/support/record_clis.py)."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bridge.task.text import json_object

Json = dict[str, Any]


def differences(old: Path, new: Path) -> Iterator[str]:
    """What appeared (+) and what went (-): a line for that of all sessions, and one for each."""
    changes = {path.stem: changed(old / path.name, path) for path in sorted(new.glob("*.jsonl"))}
    common = set.intersection(*changes.values()) if len(changes) > 1 else set()
    for session, found in {"all sessions": common, **changes}.items():
        rest = sorted(found if session == "all sessions" else found - common)
        words = {what: [word for one, word in rest if one == what] for what, _ in rest}
        if words:
            yield f"{session}: {'; '.join(' '.join((what, *one)) for what, one in words.items())}"


def changed(old: Path, new: Path) -> set[tuple[str, str]]:
    was, now = facts(old) if old.exists() else {}, facts(new)
    return {
        (what, f"{sign}{word}")
        for sign, some, others in (("+", now, was), ("-", was, now))
        for what in some
        for word in some[what] - others.get(what, set())
    }


def facts(path: Path) -> dict[str, set[str]]:
    """Of one session: the arguments and variables of the CLI, the kinds of its lines and of the
    adapter's, the kinds of events, the tools and the options of questions."""
    found: dict[str, set[str]] = defaultdict(set)
    for row in map(json.loads, path.read_text("utf-8").splitlines()):
        for name, words in (row.get("launch") or {}).items():
            found[name] |= {shown(word) for word in words}
        for what, lines in (("lines", row.get("line", "")), ("sent", row.get("sent", ""))):
            found[what] |= {kind for line in lines.splitlines() if (kind := kind_of(line))}
        for kind, members in row.get("events", []):
            found["events"].add(kind)
            found["options"] |= {one["id"] for one in members.get("options") or ()}
            if kind == "ToolCall":
                found["tools"].add(shown(members["name"]))
    return found


def shown(word: str) -> str:
    """Its first words, without ids and numbers that differ in each run."""
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d{4,}", "…", word)[:60]


def kind_of(line: str) -> str:
    """The method or the type of a message, and those of the object that it carries."""
    said = json_object(line.encode())
    if said is None:
        return ""
    inner = json_object(said["line"].encode()) if isinstance(said.get("line"), str) else None
    said = inner or said
    params = said.get("params")
    params = params if isinstance(params, dict) else {}
    words = [said.get(name) for name in ("method", "type", "subtype")]
    for name in ("request", "response", "event", "update", "item"):
        carried = params.get(name) or said.get(name)
        if isinstance(carried, dict):
            words += [carried.get(one) for one in ("subtype", "type", "sessionUpdate")]
    return "/".join(word for word in words if isinstance(word, str))
