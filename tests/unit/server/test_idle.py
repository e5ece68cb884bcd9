"""The end of a server that nothing uses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from bridge.server.lifecycle.idle import LOOKS, idle


def answers(busy: list[bool], seen: list[bool]) -> Iterator[bool]:
    """Those of `busy`, and then false."""
    for one in busy:
        seen.append(one)
        yield one
    while True:
        seen.append(False)
        yield False


async def looks(busy: list[bool]) -> list[bool]:
    seen: list[bool] = []
    given = answers(busy, seen)
    async with asyncio.timeout(60):
        await idle(lambda: next(given), 0.001)
    return seen


async def test_it_ends_after_a_whole_period_without_use() -> None:
    assert await looks([]) == [False] * LOOKS


async def test_each_use_begins_the_period_again() -> None:
    used = [False] * (LOOKS - 1) + [True]
    assert await looks(used) == used + [False] * LOOKS
