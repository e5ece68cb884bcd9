"""Recorded lines of CLIs: how tests read, compare and write them down."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from bridge.task.events import AgentEvent


def shape(value: Any, depth: int) -> Any:
    if isinstance(value, dict) and depth:
        return {
            name: one if name in ("type", "subtype") else shape(one, depth - 1)
            for name, one in sorted(value.items())
        }
    if isinstance(value, list):
        return sorted({repr(shape(one, depth)) for one in value})
    return type(value).__name__


Json = dict[str, Any]


def rows_of(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def described(event: AgentEvent) -> Json:
    """The class of the event, and the members that differ from their defaults."""
    return {"event": type(event).__name__, **plain(event)}


def plain(value: Any) -> Any:
    if is_dataclass(value):
        members = ((one, getattr(value, one.name)) for one in fields(value))
        return {
            one.name: plain(member)
            for one, member in members
            if one.default is MISSING or member != one.default
        }
    return [plain(one) for one in value] if isinstance(value, tuple) else value
