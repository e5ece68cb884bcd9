"""Members of a line that a CLI has written: what they are is its affair, and need not be what was
hoped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.task.events import Status


def as_string(value: Any) -> str:
    """What makes no sense unless it is a string. Raises TypeError."""
    if isinstance(value, str):
        return value
    raise TypeError(f"a string was expected, not {type(value).__name__}")


def as_word(value: Any) -> str | None:
    """A string, where there is one."""
    return value if isinstance(value, str) else None


def as_dict(value: Any) -> Mapping[str, Any]:
    """An object; an empty one where there is none."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """An array; an empty one where there is none."""
    return value if isinstance(value, list) else []


def output_status(line: bytes) -> Status:
    """A line that means nothing, told as it is."""
    text = line.decode(errors="replace")
    return Status(text, {"type": "output", "text": text[:2000]})
