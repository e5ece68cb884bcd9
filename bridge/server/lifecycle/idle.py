"""The end of a server that a command started, when nothing has used it for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LOOKS = 30  # times in that period


async def idle(busy: Callable[[], bool], within: float) -> None:
    """Return when `busy` was false at each look of `within` seconds. `busy`: whether a task has not
    ended (a question is one), or a client is connected."""
    left = LOOKS
    while left:
        await asyncio.sleep(within / LOOKS)
        left = LOOKS if busy() else left - 1
