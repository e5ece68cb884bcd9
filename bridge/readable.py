"""Text of the agent made fit for people: no terminal control, and no more than they will read."""

from __future__ import annotations

import re
from typing import Any

import orjson

STATUS_CHARS = 200  # of a status text: one line of a list
MESSAGE_CHARS = 8_000  # of a question or an error: what a person must see in order to decide
DATA_BYTES = 16 * 1024  # of a tool's input or output as JSON; the whole is in the CLI's own log
STRING_CHARS = 4_000  # of one string in it, so that the other members survive the cut

# ESC sequences (CSI, OSC, DCS …), the other C0 and C1 controls, and the bidi controls that make
# a line read otherwise than it is.
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"
    r"|\x1b."
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]",
    re.DOTALL,
)


def readable(text: str, limit: int = MESSAGE_CHARS) -> str:
    """`text` without control characters, cut to `limit` characters."""
    clean = _CONTROL.sub("", text[: 2 * limit])
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def one_line(text: str) -> str:
    """`text` as one line of at most STATUS_CHARS characters."""
    return readable(" ".join(text[: 4 * STATUS_CHARS].split()), STATUS_CHARS)


def capped(value: Any) -> tuple[Any, int | None]:
    """`value` if its JSON has at most DATA_BYTES, else what fits and the size that it had."""
    if isinstance(value, str) and len(value) <= STRING_CHARS:
        return value, None
    size = len(orjson.dumps(value))
    if size <= DATA_BYTES:
        return value, None
    short = _shortened(value)
    if len(orjson.dumps(short)) > DATA_BYTES:
        short = orjson.dumps(short).decode()[:STRING_CHARS] + "…"
    return short, size


def _shortened(value: Any) -> Any:
    match value:
        case str():
            return value if len(value) <= STRING_CHARS else value[:STRING_CHARS] + "…"
        case dict():
            return {name: _shortened(member) for name, member in value.items()}
        case list() | tuple():
            return [_shortened(member) for member in value]
        case _:
            return value
