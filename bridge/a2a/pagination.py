"""Page tokens: the end of the previous page.

The order of lists is total: by status time, the newest first, then by id. A page token is opaque to
clients. It names a position in the order, not a task, so that it stays valid when tasks change.
"""

from __future__ import annotations

import base64
import binascii

from bridge.errors import InvalidParams

Position = tuple[int, str]
"""The time of a status in microseconds since 1970, and the id of a task."""
SECOND = 1_000_000


def encode_position(position: Position | None) -> str:
    """The token of the next page; empty if there is none."""
    if position is None:
        return ""
    time, task_id = position
    return base64.urlsafe_b64encode(f"{time / SECOND!r} {task_id}".encode()).decode()


def decode_position(token: str) -> Position | None:
    """None for an empty token. Raises InvalidParams for a token of another server."""
    if not token:
        return None
    try:
        time, task_id = base64.b64decode(token, b"-_", validate=True).decode().split(" ")
        return round(float(time) * SECOND), task_id
    except (binascii.Error, ValueError, OverflowError):
        problem = "not a token of this server"
        raise InvalidParams(f"pageToken is {problem}.", [("pageToken", problem)]) from None
