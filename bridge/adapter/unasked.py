"""Activity of a CLI that no task asked for: between two turns, or ahead of the turn of a prompt."""

from __future__ import annotations

from typing import Any, Literal

from bridge.task.events import Status

UNASKED = "unasked"
UnaskedKind = Literal["request", "turn", "output"]
"""A request that the adapter has refused, a turn that the CLI began by itself, or other output that
shows that the model works."""
_TEXTS = {
    "request": "Refused, since no task asked for it: {}",
    "turn": "The agent began a turn by itself: {}",
    "output": "Output that no task asked for was dropped: {}",
}


def unasked(kind: UnaskedKind, name: str, given: Any = None) -> Status:
    """`name`: of the tool, the request or the cause. `given`: the input of a tool, or the members
    of a request."""
    facts = {"type": UNASKED, "kind": kind, "name": name}
    return Status(_TEXTS[kind].format(name), facts | ({"input": given} if given else {}))
