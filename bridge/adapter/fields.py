"""Members of a line of a CLI, which may have any type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bridge.task.events import AgentEvent, Status

Json = Mapping[str, Any]
Said = Iterable[AgentEvent]
"""The events of a line."""


def as_string(value: Any) -> str:
    """A member that must be a string. Raises TypeError."""
    if isinstance(value, str):
        return value
    raise TypeError(f"a string was expected, not {type(value).__name__}")


def as_word(value: Any) -> str | None:
    """A string, or None."""
    return value if isinstance(value, str) else None


def as_dict(value: Any) -> Mapping[str, Any]:
    """An object; an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """An array; an empty one for any other value."""
    return value if isinstance(value, list) else []


def output_status(line: bytes) -> Status:
    """A status with an unknown line as its text."""
    text = line.decode(errors="replace")
    return Status(text, {"type": "output", "text": text[:2000]})
