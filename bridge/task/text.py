"""Agent output, prepared for people: without terminal controls, cut to a readable length."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

STATUS_CHARS = 200  # characters of a status text: one line of a list
MESSAGE_CHARS = 8_000  # characters of a question or an error: enough for a person to decide
DATA_BYTES = 16 * 1024  # JSON of a tool's input or output; the log of the CLI has all of it
STRING_CHARS = 4_000  # characters of one string in it, so that other members survive the cut
DEPTH = 200  # levels of nested JSON; orjson reads 1024 but writes only 254

# C0 and C1 controls, and the bidi controls that change the visible order of a line.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# Characters that a person cannot see: those controls, characters without a width, separators of
# lines besides newlines, fillers, tags, and variations of ASCII characters.
_INVISIBLE = re.compile(
    _CONTROL.pattern + r"|[\xad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2028\u2029"
    r"\u2060-\u206f\u2800\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
    r"|(?<=[\x00-\x7f])[\ufe0e\ufe0f]|[\ud800-\udfff]"
)
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
    """`text` for a person who decides about it: no part of it may hide another part. Each invisible
    character becomes a visible mark, and a cut text says how many characters are missing."""
    shown = visible(text[:limit])
    left = len(text) - limit
    return f"{shown}… ({left} more characters are not shown)" if left > 0 else shown


def escaped(line: str) -> str:
    """A line of JSON in which no character controls a terminal or the order of the others."""
    return _INVISIBLE.sub(lambda found: json.dumps(found[0])[1:-1], line)


def visible(text: str) -> str:
    """`text` with a mark for each character that a person cannot see."""
    return _INVISIBLE.sub("\N{REPLACEMENT CHARACTER}", text)


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


def capped_object(subject: Mapping[str, Any]) -> tuple[Mapping[str, Any], int | None]:
    """The subject of a question as an object that fits, and the size, as capped() returns them."""
    fitting, size = capped(subject)
    if isinstance(fitting, Mapping):
        return fitting, size
    for limit in (1_000, 200, 40) if size else ():
        short: Mapping[str, Any] = shortened(subject, limit)
        if len(orjson.dumps(short)) <= DATA_BYTES:
            return short, size
    named = {one: subject[one] for one in ("toolCallId", "name", "tool", "title") if one in subject}
    return shortened(named, 1_000), size


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


def shortened(value: Any, limit: int = STRING_CHARS) -> Any:
    """`value` with each string cut to `limit` characters."""
    match value:
        case str():
            return value if len(value) <= limit else value[:limit] + "…"
        case dict():
            return {name: shortened(member, limit) for name, member in value.items()}
        case list() | tuple():
            return [shortened(member, limit) for member in value]
        case _:
            return value
