"""Slots for many contexts that compete, in random orders: every context gets a slot, and no limit
is exceeded."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from bridge.auth.principal import Quota
from bridge.auth.quotas import Quotas
from bridge.session.pool import SessionPool
from tests.support.cases import each

WITHIN = 60.0
NOW = datetime(2026, 1, 1, tzinfo=UTC)
OWNERS = ("ann", "bob", "cat", "dan")


class FakeHolder:
    """A context of the pool that the test controls."""

    def __init__(self, owner: str = "ann", idle: bool = False) -> None:
        self.owner = owner
        self.idle = idle

    async def close(self) -> None: ...


def entering(pool: SessionPool, holder: FakeHolder) -> asyncio.Task[None]:
    return asyncio.create_task(pool.acquire(holder, lambda: True))


async def test_places_that_are_given_up_at_once_are_all_taken() -> None:
    pool, holders = SessionPool(2), [FakeHolder() for _ in range(4)]
    async with asyncio.timeout(WITHIN):
        for holder in holders[:2]:
            await pool.acquire(holder, lambda: True)
        waiting = [entering(pool, holder) for holder in holders[2:]]
        await asyncio.sleep(0)
        for holder in holders[:2]:
            pool.release(holder)
        await asyncio.gather(*waiting)


async def test_a_place_that_one_may_not_take_any_more_is_another_s() -> None:
    """The owner of the released slot runs elsewhere by then, and may not have a second slot."""
    pool = SessionPool(2, Quotas({"ann": replace(Quota.none(), running=1)}))
    warm = FakeHolder("ann")

    class Idle(FakeHolder):
        async def close(self) -> None:
            await asyncio.sleep(0)  # in which the second one comes
            pool.release(self)
            await pool.acquire(warm, lambda: True)  # it has a session

    async with asyncio.timeout(WITHIN):
        for holder in (Idle("bob", idle=True), warm):
            await pool.acquire(holder, lambda: True)
            pool.idle(holder)
        first, second = entering(pool, FakeHolder("ann")), entering(pool, FakeHolder("bob"))
        await second
        assert not first.done()
        pool.release(warm)
        await first


async def test_a_question_holds_no_place_and_an_answer_needs_none() -> None:
    pool, asking, other = SessionPool(1), FakeHolder(), FakeHolder()
    async with asyncio.timeout(WITHIN):
        await pool.acquire(asking, lambda: True)
        pool.ask(asking, NOW, lambda: None)
        await pool.acquire(other, lambda: True)
        third = entering(pool, FakeHolder())
        pool.resume(asking)
        assert pool.figures()["working"] == 2
        pool.release(other)
        await asyncio.sleep(0)
        assert not third.done()  # there is still as much at work as there may be
        pool.release(asking)
        await third


async def test_the_question_that_has_waited_longest_is_given_up() -> None:
    pool, given_up = SessionPool(3, waiting_limit=2), []
    for number, minutes in enumerate((5, 1, 3)):
        holder = FakeHolder()
        await pool.acquire(holder, lambda: True)
        since = NOW + timedelta(minutes=minutes)

        def give_up(holder: FakeHolder = holder, number: int = number) -> None:
            given_up.append(number)
            pool.resume(holder)

        pool.ask(holder, since, give_up)
    await asyncio.sleep(0)
    assert given_up == [1]


async def test_idle_sessions_are_evicted_for_adopted_ones() -> None:
    """Spare ones first, then those that are idle for longest."""
    pool, closed = SessionPool(2), []

    class Idle(FakeHolder):
        async def close(self) -> None:
            closed.append(self)
            pool.release(self)

    spare, idle, asking = Idle(idle=True), Idle(), FakeHolder()
    async with asyncio.timeout(WITHIN):
        await pool.acquire(asking, lambda: True)
        pool.ask(asking, NOW, lambda: None)
        await pool.acquire(idle, lambda: True)
        assert await pool.vacate()
        pool.lend(spare)
        pool.resume(asking)
        while pool.figures()["working"] and closed != [spare]:
            await pool.changed()
        idle.idle = True
        pool.idle(idle)
        pool.ask(asking, NOW, lambda: None)
        await pool.acquire(second := FakeHolder(), lambda: True)
        pool.resume(asking)
        while closed != [spare, idle]:
            await pool.changed()
    assert set(pool.holders) == {asking, second}


class House:
    """A pool and its invariants."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.limit = self.random.randint(1, 4)
        self.most = {owner: self.random.randint(0, 2) for owner in OWNERS}  # 0: as many as it likes
        quotas = {owner: replace(Quota.none(), running=most) for owner, most in self.most.items()}
        self.open = self.random.randint(1, 3)  # questions at once
        self.pool = SessionPool(self.limit, Quotas(quotas), self.open)
        self.working: Counter[str] = Counter()
        self.processes = 0  # but for those that wait for a person
        self.waiting = 0
        self.now = NOW
        self.broken: list[str] = []

    async def pause(self, turns: int) -> None:
        """Of the event loop, and that many at the most."""
        for _ in range(self.random.randrange(turns)):
            await asyncio.sleep(0)

    def begin(self, owner: str, new: bool) -> None:
        """A session works, which is `new`, or was warm."""
        if new:
            self.processes += 1
            assert self.processes <= self.limit
        self.working[owner] += 1
        assert self.working[owner] <= (self.most[owner] or self.working[owner])

    async def work(self, context: Context) -> None:
        await self.pause(6)
        while self.random.random() < 0.4:
            await self._ask(context)
            await self.pause(3)
        self.working[context.owner] -= 1

    def _check_waiting(self) -> None:
        if self.waiting > self.open:
            self.broken.append(f"{self.waiting} sessions wait")

    async def _ask(self, context: Context) -> None:
        """A person answers, sooner or later, unless too many questions are open."""
        self.now += timedelta(seconds=self.random.randint(-5, 5))
        answered = False

        def answer() -> None:
            nonlocal answered
            if not answered:
                answered = True
                self.waiting -= 1
                self.processes += 1
                self.working[context.owner] += 1
                self.pool.resume(context)

        self.working[context.owner] -= 1
        self.processes -= 1
        self.waiting += 1
        self.pool.ask(context, self.now, answer)
        if self.waiting > self.open:  # right after the pool has seen to it
            asyncio.get_running_loop().call_soon(self._check_waiting)
        for _ in range(self.random.choice((3, 50))):
            await asyncio.sleep(0)
            if answered:
                break
        answer()


class Context:
    """Works in turns, as bridge/runtime/context.py does, and keeps its session between them."""

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
            self._pool.release(self)
        while self._closing:
            await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._house.pause(3)
        self._closing = None
        self._house.processes -= 1
        self._pool.release(self)

    async def live(self) -> None:
        for _ in range(self._house.random.randint(1, 3)):
            await self._turn()
            await self._house.pause(6)

    async def _turn(self) -> None:
        self.idle, self._wanted = False, True
        cancel = asyncio.create_task(self._cancel()) if self._house.random.random() < 0.3 else None
        if not self._session:
            await self.close()
        await self._pool.acquire(self, lambda: self._wanted)
        if self._wanted:
            self._house.begin(self.owner, new=not self._session)
            self._session = True
            await self._house.work(self)
        if not self._session or self._house.random.random() < 0.3:
            await self.close()
        self.idle = True
        self._pool.idle(self)
        if cancel:
            cancel.cancel()

    async def _cancel(self) -> None:
        await self._house.pause(30)
        self._wanted = False
        self._pool.queue.wake(self)


@each("first", range(0, 300, 50))
async def test_a_task_that_waits_for_a_slot_gets_one(first: int) -> None:
    for seed in range(first, first + 50):
        house = House(seed)
        contexts = [Context(house) for _ in range(house.random.randint(5, 60))]
        async with asyncio.timeout(WITHIN):
            await asyncio.gather(*(context.live() for context in contexts))
        if house.pool._closing:
            await house.pool._closing
        assert house.processes <= house.limit and not house.waiting and not house.broken
        for context in contexts:
            await context.close()
        figures = house.pool.figures()
        assert not house.pool.holders
        assert (figures["waiting"], figures["queued"], figures["working"]) == (0, 0, 0)
