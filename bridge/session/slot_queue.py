"""The queue for the slots of the pool: its order, and the updates about positions in it."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from itertools import count
from typing import Protocol

LONGEST_PAUSE = 60.0  # seconds between two updates of one task; the pause doubles each time


class SlotHolder(Protocol):
    """A user of a slot: a context, or a prewarmed session (see session/prewarm.py). `idle`: its
    session is live, and has no task."""

    @property
    def owner(self) -> str: ...

    @property
    def idle(self) -> bool: ...

    async def close(self) -> None:
        """End the session, and release the slot."""


Announce = Callable[[int, int], None]
"""Called with the number of tasks ahead, and the number of sessions that wait for answers."""


class Waiter:
    """A holder that waits for a slot. `number` is the order of arrival. `announce` is called when
    the position has changed, in growing intervals."""

    __slots__ = ("_announce", "_called", "_due", "_known", "_pause", "number", "parked")

    def __init__(self, number: int, announce: Announce, pause: float) -> None:
        self.number = number
        self.parked = False  # no slot was free for it
        self._called = asyncio.Event()
        self._announce = announce
        self._known: tuple[int, int] | None = None
        self._due = 0.0
        self._pause = pause

    def call(self) -> None:
        """Wake the waiter, so that it checks for a slot again."""
        self._called.set()

    async def wait(self) -> None:
        """Wait for a call. Returns immediately after a call since the last wait."""
        await self._called.wait()
        self._called.clear()

    def tell(self, ahead: int, answers: int, now: float) -> float:
        """Announce the position if it has changed and an update is due. Returns the time of the
        next update; infinity if none is necessary."""
        if not self.parked or self._known == (ahead, answers):
            return math.inf
        if now >= self._due:
            self._known = (ahead, answers)
            self._due, self._pause = now + self._pause, min(2 * self._pause, LONGEST_PAUSE)
            self._announce(ahead, answers)
            return math.inf
        return self._due


class SlotQueue:
    """The holders that wait for a slot, by owner, in order of arrival. `holders`: those with a
    session. `working`: the number of working holders of an owner. `most`: the limit of an owner.
    `waiting`: the holders whose session waits for a person. `announce_every`: the seconds between
    two rounds of position updates; `first_pause`: those between the first two updates of a task."""

    def __init__(
        self,
        *,
        holders: Collection[SlotHolder],
        working: Counter[str],
        most: Callable[[str], float],
        waiting: Collection[SlotHolder],
        announce_every: float,
        first_pause: float,
    ) -> None:
        self._holders, self._working, self._most = holders, working, most
        self._waiting = waiting
        self._announce_every, self._first_pause = announce_every, first_pause
        self._queues: dict[str, OrderedDict[SlotHolder, Waiter]] = {}
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._announced = -math.inf  # time of the last round

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def join(self, holder: SlotHolder, announce: Announce) -> Waiter:
        waiter = Waiter(next(self._numbers), announce, self._first_pause)
        self._queues.setdefault(holder.owner, OrderedDict())[holder] = waiter
        return waiter

    def leave(self, holder: SlotHolder) -> None:
        queue = self._queues[holder.owner]
        del queue[holder]
        if not queue:
            del self._queues[holder.owner]

    def wake(self, holder: SlotHolder) -> None:
        """Wake a waiting holder, which may no longer want a slot."""
        queue = self._queues.get(holder.owner)
        if queue and holder in queue:
            queue[holder].call()

    def first(self) -> Waiter | None:
        """The waiter that is next; None if all waiting principals have reached their quotas. A
        holder with a session is first: it needs no free slot, and others may wait for its slot."""
        waiting = [
            (holder not in self._holders, self._working[owner], waiter.number, waiter)
            for owner, queue in self._queues.items()
            if self._working[owner] < self._most(owner)
            for holder, waiter in [self._first_of(queue)]
        ]
        return min(waiting)[3] if waiting else None

    def _first_of(self, queue: OrderedDict[SlotHolder, Waiter]) -> tuple[SlotHolder, Waiter]:
        """The first waiter of one principal. A holder with a session is first."""
        first = next(iter(queue.items()))
        return next((one for one in queue.items() if one[0] in self._holders), first)

    def _in_order(self) -> list[Waiter]:
        """The waiters, in the order of their turns if no working session ends."""
        ranked = [
            (rank >= self._most(owner), holder not in self._holders, rank, waiter.number, waiter)
            for owner, queue in self._queues.items()
            for rank, (holder, waiter) in enumerate(queue.items(), self._working[owner])
        ]
        return [waiter for *_, waiter in sorted(ranked, key=lambda one: one[:4])]

    def announce_soon(self, earliest: float = 0.0) -> None:
        """Schedule a round of position updates, not before the time `earliest`. Rounds have a pause
        between them, because the cost of a round grows with the number of waiting tasks."""
        if not self._queues:
            return
        loop = asyncio.get_running_loop()
        when = max(earliest, loop.time(), self._announced + self._announce_every)
        if self._timer and self._timer.when() > when:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = loop.call_at(when, self._announce)

    def _announce(self) -> None:
        now = self._announced = asyncio.get_running_loop().time()
        self._timer = None
        answers = len(self._waiting)
        due = [waiter.tell(at, answers, now) for at, waiter in enumerate(self._in_order())]
        if min(due, default=math.inf) < math.inf:
            self.announce_soon(min(due))
