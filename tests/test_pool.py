"""Places for sessions under many who want them, in every order that a seed makes up: nobody waits
for ever, and no limit is passed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace

import pytest

from bridge.access import Quota
from bridge.pool import SessionPool
from bridge.quotas import Quotas

WITHIN = 15.0
OWNERS = ("ann", "bob", "cat", "dan")


class Holder:
    """Who holds a place, and does as it is told."""

    def __init__(self, owner: str = "ann", idle: bool = False) -> None:
        self.owner = owner
        self.idle = idle

    async def close(self) -> None: ...


def entering(pool: SessionPool, holder: Holder) -> asyncio.Task[None]:
    return asyncio.create_task(pool.enter(holder, lambda: True))


async def test_places_that_are_given_up_at_once_are_all_taken() -> None:
    pool, holders = SessionPool(2), [Holder() for _ in range(4)]
    async with asyncio.timeout(WITHIN):
        for holder in holders[:2]:
            await pool.enter(holder, lambda: True)
        waiting = [entering(pool, holder) for holder in holders[2:]]
        await asyncio.sleep(0)
        for holder in holders[:2]:
            pool.leave(holder)
        await asyncio.gather(*waiting)


async def test_a_place_that_one_may_not_take_any_more_is_another_s() -> None:
    """For whom it was given up has one at work elsewhere by then, and may have no second one."""
    pool = SessionPool(2, Quotas({"ann": replace(Quota.none(), running=1)}))
    warm = Holder("ann")

    class Idle(Holder):
        async def close(self) -> None:
            await asyncio.sleep(0)  # in which the second one comes
            pool.leave(self)
            await pool.enter(warm, lambda: True)  # it has a session

    async with asyncio.timeout(WITHIN):
        for holder in (Idle("bob", idle=True), warm):
            await pool.enter(holder, lambda: True)
            pool.rest(holder)
        first, second = entering(pool, Holder("ann")), entering(pool, Holder("bob"))
        await second
        assert not first.done()
        pool.leave(warm)
        await first


class House:
    """A pool, and what of it must always hold."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.limit = self.random.randint(1, 4)
        self.most = {owner: self.random.randint(0, 2) for owner in OWNERS}  # 0: as many as it likes
        quotas = {owner: replace(Quota.none(), running=most) for owner, most in self.most.items()}
        self.pool = SessionPool(self.limit, Quotas(quotas))
        self.working: Counter[str] = Counter()

    async def pause(self, turns: int) -> None:
        """Of the event loop, and that many at the most."""
        for _ in range(self.random.randrange(turns)):
            await asyncio.sleep(0)

    async def work(self, owner: str) -> None:
        self.working[owner] += 1
        assert self.working.total() <= self.limit
        assert self.working[owner] <= (self.most[owner] or self.limit)
        await self.pause(6)
        self.working[owner] -= 1


class Context:
    """Works in turns, as bridge/context.py does, and keeps its session between them."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._pool = house.pool
        self.owner = house.random.choice(OWNERS)
        self.idle = True
        self._wanted = False
        self._session = False
        self._closing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._session:
            self._session = False
            self._closing = asyncio.create_task(self._close())
        if self._closing is None:
            self._pool.leave(self)
        while self._closing:
            await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._house.pause(3)
        self._closing = None
        self._pool.leave(self)

    async def live(self) -> None:
        for _ in range(self._house.random.randint(1, 3)):
            await self._turn()
            await self._house.pause(6)

    async def _turn(self) -> None:
        self.idle, self._wanted = False, True
        cancel = asyncio.create_task(self._cancel()) if self._house.random.random() < 0.3 else None
        if not self._session:
            await self.close()
        await self._pool.enter(self, lambda: self._wanted)
        if self._wanted:
            self._session = True
            await self._house.work(self.owner)
        if not self._session or self._house.random.random() < 0.3:
            await self.close()
        self.idle = True
        self._pool.rest(self)
        if cancel:
            cancel.cancel()

    async def _cancel(self) -> None:
        await self._house.pause(30)
        self._wanted = False
        self._pool.recheck(self)


@pytest.mark.parametrize("first", range(0, 300, 50))
async def test_whoever_waits_for_a_place_gets_one(first: int) -> None:
    for seed in range(first, first + 50):
        house = House(seed)
        contexts = [Context(house) for _ in range(house.random.randint(5, 60))]
        async with asyncio.timeout(WITHIN):
            await asyncio.gather(*(context.live() for context in contexts))
        for context in contexts:
            await context.close()
        assert not house.pool._holders and not house.pool._queues and not house.pool._working
