"""Agent output, prepared for people: without terminal controls, cut to a readable length."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import orjson

STATUS_CHARS = 200  # characters of a status text: one line of a list
MESSAGE_CHARS = 8_000  # characters of a question or an error: enough for a person to decide
DATA_BYTES = 16 * 1024  # JSON of a tool's input or output; the log of the CLI has all of it
STRING_CHARS = 4_000  # characters of one string in it, so that other members survive the cut
DEPTH = 200  # levels of nested JSON; orjson reads 1024 but writes only 254

# C0 and C1 controls, and the bidi controls that change the visible order of a line.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# The same in JSON, which has no C0 controls, with the separators and the marks without a width.
_INVISIBLE = re.compile(r"[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
# Characters that a terminal does not print: ESC sequences (CSI, OSC, DCS …) and those controls.
_UNPRINTED = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)|\x1b.|" + _CONTROL.pattern,
    re.DOTALL,
)


def readable(text: str, limit: int = MESSAGE_CHARS) -> str:
    """`text` as a terminal would show it, cut to `limit` characters."""
    clean = _UNPRINTED.sub("", text[: 2 * limit])
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def exact(text: str, limit: int = MESSAGE_CHARS) -> str:
    """`text` for a person who decides about it: no part of it may hide another part. Every control
    character becomes a visible mark, and a cut text says how many characters are missing."""
    shown = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text[:limit])
    left = len(text) - limit
    return f"{shown}… ({left} more characters are not shown)" if left > 0 else shown


def escaped(line: str) -> str:
    """A line of JSON in which no character controls a terminal or the order of the others."""
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def one_line(text: str) -> str:
    """`text` as one line of at most STATUS_CHARS characters."""
    return readable(" ".join(text[: 4 * STATUS_CHARS].split()), STATUS_CHARS)


def capped(value: Any) -> tuple[Any, int | None]:
    """`value` if its JSON has at most DATA_BYTES, else the part that fits and the first size."""
    if isinstance(value, str) and len(value) <= STRING_CHARS:
        return value, None
    try:
        size = len(orjson.dumps(value))
    except TypeError:
        return "[this cannot be written as JSON]", 0
    if size <= DATA_BYTES:
        return value, None
    short = shortened(value)
    if len(orjson.dumps(short)) > DATA_BYTES:
        short = orjson.dumps(short).decode()[:STRING_CHARS] + "…"
    return short, size


def json_object(line: bytes, join: Callable[[Any], Any] | None = None) -> dict[str, Any] | None:
    """The JSON object in a line that an agent printed, or None if the line has none.

    Bytes that are not UTF-8 are replaced, and so are halves of surrogate pairs: JavaScript and
    Python write them where a text was cut; `join` gets the value before that. JSON that is nested
    too deeply to be written again is refused.
    """
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        try:
            cut = json.loads(line.decode("utf-8-sig", "replace"))
            text = json.dumps(join(cut) if join else cut, ensure_ascii=False)
            value = orjson.loads(text.encode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return None
    # Each level takes two characters, so that most lines need no search.
    deep = len(line) > 2 * DEPTH and line.count(b"{") + line.count(b"[") >= DEPTH
    return value if isinstance(value, dict) and not (deep and is_deep(value)) else None


def is_deep(value: Any, limit: int = DEPTH) -> bool:
    """Whether `value` has more than `limit` levels of nested JSON."""
    level = [value]
    for _ in range(limit):
        level = [
            member
            for one in level
            if isinstance(one, dict | list)
            for member in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return True


def shortened(value: Any) -> Any:
    """`value` with each string cut to STRING_CHARS."""
    match value:
        case str():
            return value if len(value) <= STRING_CHARS else value[:STRING_CHARS] + "…"
        case dict():
            return {name: shortened(member) for name, member in value.items()}
        case list() | tuple():
            return [shortened(member) for member in value]
        case _:
            return value
