"""The formats of the server's log: one line for each record, as text or as JSON. The members of a
line are the same in both."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import orjson

from bridge.task.text import escaped
from bridge.telemetry.log_events import EVENTS, OTHER

LONGEST = 16 * 1024  # bytes of a line
CUTS = (4096, 1024, 256, 32)  # characters of each text in a line that is too long
DEEPEST = 8  # levels of a value
MARGIN = "    "  # of the lines of a traceback
_RECORD_MEMBERS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
_FIRST = ("time", "level", "event", "message", "logger")
_BY_CONTEXT = frozenset(
    {
        *("request_id", "principal", "agent", "task", "context", "trace_id", "span_id"),
        *("binding", "peer"),
    }
)
"""Members without a value are left out; those of an event are null."""
_PRIORITIES = (
    (logging.CRITICAL, 2),
    (logging.ERROR, 3),
    (logging.WARNING, 4),
    (logging.INFO, 6),
)

Clean = Callable[[str], str]
Context = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Further members of a line with the given members: its request and its task."""


def no_context(members: Mapping[str, Any]) -> Mapping[str, Any]:
    return {}


class LineFormatter(logging.Formatter):
    """Formats a record as a text of at most LONGEST bytes. `clean` redacts secrets. `context`:
    members that the record does not have itself. `priorities`: begin each line with its priority,
    `<N>`, which journald reads."""

    def __init__(
        self, clean: Clean, context: Context = no_context, *, priorities: bool = False
    ) -> None:
        super().__init__()
        self._clean = clean
        self._context = context
        self._priorities = priorities

    def format(self, record: logging.LogRecord) -> str:
        text = self._text(self._members(record))
        if not self._priorities:
            return text
        mark = f"<{priority(record.levelno)}>"
        return "\n".join(f"{mark}{line}" for line in text.split("\n"))

    def _text(self, members: dict[str, Any]) -> str:
        raise NotImplementedError

    def _members(self, record: logging.LogRecord) -> dict[str, Any]:
        extra = {k: v for k, v in vars(record).items() if k not in _RECORD_MEMBERS}
        event = extra.pop("event", None)
        time = datetime.fromtimestamp(record.created, UTC)
        found: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": event if event in EVENTS else OTHER,
            "message": record.getMessage(),
            "logger": record.name,
        }
        found |= {k: v for k, v in extra.items() if k not in found}
        found |= {
            k: v
            for k, v in self._context({**extra, "logger": record.name}).items()
            if k not in found
        }
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return {
            name: _as_json(value, self._clean)
            for name, value in found.items()
            if value is not None or name not in _BY_CONTEXT
        }


class JsonFormatter(LineFormatter):
    """One object of JSON for each record. Each text is redacted before it is encoded: a pattern of
    a secret could otherwise reach beyond the end of a text."""

    def _text(self, members: dict[str, Any]) -> str:
        line = _dumped(members)
        for most in CUTS:
            if len(line) <= LONGEST:
                break
            cut = {name: _shortened(value, most) for name, value in members.items()}
            line = _dumped({**cut, "cut": True})
        if len(line) > LONGEST:  # very many members or elements
            cut = {name: _shortened(members[name], CUTS[-1]) for name in _FIRST}
            line = _dumped({**cut, "cut": True})
        return line.decode()


class TextFormatter(LineFormatter):
    """For people: time, level, logger, message, then key='value' pairs with escaped values. The
    lines of a traceback follow, each with a margin, so that none looks like a record."""

    def _text(self, members: dict[str, Any]) -> str:
        time, level, event, message, logger = (members.pop(name) for name in _FIRST)
        traceback = _shortened(members.pop("exception", ""), CUTS[0]).splitlines()
        if event != OTHER:
            members = {"event": event, **members}
        pairs = "".join(f" {name}={_as_text(value)!r}" for name, value in members.items())
        below = "".join(f"\n{MARGIN}{escaped(line)}" for line in traceback)
        line = f"{time} {level} {logger} {message!r}{pairs}"
        if below:
            line = _cut(line, LONGEST // 2) + below
        return _cut(line, LONGEST)


def _cut(text: str, most: int) -> str:
    data = text.encode("utf-8", "replace")
    return text if len(data) <= most else data[: most - 4].decode("utf-8", "ignore") + " …"


def priority(level: int) -> int:
    """The priority of syslog for a level of the log."""
    return next((one for least, one in _PRIORITIES if level >= least), 7)


def _dumped(members: Mapping[str, Any]) -> bytes:
    return escaped(orjson.dumps(members).decode()).encode()


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _as_json(value: Any, clean: Clean, depth: int = 0) -> Any:
    """`value` in types of JSON, with all its texts redacted. A surrogate cannot be encoded, and a
    number above 64 bits becomes a text."""
    match value:
        case None | bool():
            return value
        case Enum():
            return _as_json(value.value, clean, depth)
        case float():
            return value if value - value == 0 else str(value)  # neither infinite nor NaN
        case int():
            return int(value) if -(2**63) <= value < 2**63 else str(value)
        case Mapping() | list() | tuple() | set() | frozenset() if depth == DEEPEST:
            return "…"
        case Mapping():
            return {
                str(_as_json(str(key), clean)): _as_json(one, clean, depth + 1)
                for key, one in value.items()
            }
        case list() | tuple() | set() | frozenset():
            return [_as_json(one, clean, depth + 1) for one in value]
        case bytes() | bytearray():
            value = value.decode("utf-8", "backslashreplace")
        case BaseException():
            value = str(value).strip() or type(value).__name__
    return clean(str(value)).encode("utf-8", "backslashreplace").decode()


def _shortened(value: Any, most: int) -> Any:
    match value:
        case str() if len(value) > most:
            return f"{value[: most // 2]} … {value[-(most // 2) :]}"
        case dict():
            return {name: _shortened(one, most) for name, one in value.items()}
        case list():
            return [_shortened(one, most) for one in value]
    return value
