"""Pages of tasks: the newest status first, and a token with the end of the previous page.

The order is total: by status time, then by id. A page token is opaque to clients. It names a
position in the order, not a task, so that it stays valid when tasks change.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable

from bridge.a2a.codec import ListParams, Page
from bridge.errors import InvalidParams
from bridge.task.state import Task

Position = tuple[float, str]


def page(tasks: Iterable[Task], asked: ListParams) -> tuple[list[Task], Page]:
    """The tasks of the requested page. Raises InvalidParams for an invalid token."""
    after = _decode(asked.page_token) if asked.page_token else None
    matching = sorted((task for task in tasks if _matches(task, asked)), key=_position)
    rest = [task for task in matching if after is None or _position(task) > after]
    shown = rest[: asked.page_size]
    more = len(rest) > len(shown)
    return shown, Page(_encode(_position(shown[-1])) if more else "", len(matching))


def _matches(task: Task, asked: ListParams) -> bool:
    return (
        (asked.context_id is None or task.context_id == asked.context_id)
        and (asked.state is None or task.state is asked.state)
        and (asked.changed_since is None or task.status_time >= asked.changed_since)
    )


def _position(task: Task) -> Position:
    return -task.status_time.timestamp(), task.id


def _encode(position: Position) -> str:
    newest_first, task_id = position
    text = f"{-newest_first!r} {task_id}"
    return base64.urlsafe_b64encode(text.encode()).decode()


def _decode(token: str) -> Position:
    try:
        time, task_id = base64.b64decode(token, b"-_", validate=True).decode().split(" ")
        if not math.isfinite(float(time)):
            raise ValueError("no time")
        return -float(time), task_id
    except (binascii.Error, ValueError):
        problem = "not a token of this server"
        raise InvalidParams(f"pageToken is {problem}.", [("pageToken", problem)]) from None
