"""The places for live sessions: how many there are, and who comes next."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from itertools import chain, count
from typing import Protocol

from bridge.quotas import Quotas


class Holder(Protocol):
    """Who needs a place: a context, or a session that waits for one (see bridge/warm.py). `idle`:
    its session is warm, and has nothing to do."""

    @property
    def owner(self) -> str: ...

    @property
    def idle(self) -> bool: ...

    async def close(self) -> None:
        """Give up the session, and the place."""


class _Waiter:
    """Who waits for a place. `number` tells who came first."""

    __slots__ = ("_called", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self._called = asyncio.Event()

    def call(self) -> None:
        """It shall look again."""
        self._called.set()

    async def wait(self) -> None:
        """Until it is called, or not at all if that has happened since the last time."""
        await self._called.wait()
        self._called.clear()


class SessionPool:
    """The places for live sessions, and what else principals share. Whoever has none waits its
    turn for one; a warm but idle session gives up its place to whoever waits, a spare one first.
    The turn is that of the principal for whom the fewest work, and only whose turn it is is
    woken."""

    def __init__(self, limit: int, quotas: Quotas | None = None) -> None:
        self.quotas = quotas or Quotas()
        self._limit = limit
        self._holders: dict[Holder, bool] = {}  # who holds a place, and whether it works
        self._working: Counter[str] = Counter()  # how many of them do, by owner
        self._spares: dict[Holder, None] = {}  # hold one each as long as nobody else needs it
        self._queues: dict[str, OrderedDict[Holder, _Waiter]] = {}  # by owner; the first one first
        self._numbers = count()
        self._changed: asyncio.Future[None] | None = None
        self.starting = asyncio.Lock()  # held while a spare session is started: one at a time

    async def enter(
        self,
        holder: Holder,
        wanted: Callable[[], bool],
        spare: Callable[[], bool] = lambda: False,
    ) -> None:
        """Wait for a place; come back without one when it is `wanted` no more (see recheck). Where
        there is a `spare` session for it, its place will do: it must be taken at once."""
        if self._holders.get(holder):
            return
        if holder in self._holders and self._may_work(holder.owner) and wanted():
            # Else two could wait for each other: whoever has the turn, for this place to be given
            # up, which it is not as long as somebody wants it; and this one for its turn.
            self._hold(holder, True)
            return
        waiter = _Waiter(next(self._numbers))
        queue = self._queues.setdefault(holder.owner, OrderedDict())
        queue[holder] = waiter
        try:
            while wanted():
                if self._next() is waiter and await self._make_room(holder, spare):
                    if self._may_work(holder.owner):
                        break
                    self._notify()  # the room is somebody else's
                await waiter.wait()
            if wanted():
                self._hold(holder, True)
        finally:
            del queue[holder]
            if not queue:
                del self._queues[holder.owner]
            self._notify()

    def recheck(self, holder: Holder) -> None:
        """It may want a place no more, if it waits for one."""
        queue = self._queues.get(holder.owner)
        if queue and holder in queue:
            queue[holder].call()

    def _next(self) -> _Waiter | None:
        """Whose turn it is; None where all who wait have as many at work as they may."""
        waiting = [
            (self._working[owner], first.number, first)
            for owner, queue in self._queues.items()
            for first in [next(iter(queue.values()))]
            if self._may_work(owner)
        ]
        return min(waiting)[2] if waiting else None

    def _may_work(self, owner: str) -> bool:
        return self._working[owner] < (self.quotas.of(owner).running or math.inf)

    def claim(self, holder: Holder) -> None:
        """Its session is alive already, and works."""
        self._hold(holder, True)

    async def vacate(self) -> bool:
        """Whether there is a place that nobody waits for; if need be the one of who has been idle
        for longest, as long as that leaves no fewer of those than there are spare sessions then."""
        if self._full and self._next() is None:
            idle = [one for one in self._holders if one.idle]
            if len(idle) > len(self._spares) + 1:
                await idle[0].close()
        return not self._full and self._next() is None

    def lend(self, spare: Holder) -> None:
        """Give a spare session such a place, until somebody needs it."""
        self._spares[spare] = None

    def leave(self, holder: Holder) -> None:
        self._let_go(holder)
        self._spares.pop(holder, None)
        self._notify()

    def rest(self, holder: Holder) -> None:
        """Its session has nothing to do: it is now the last to be given up."""
        if holder in self._holders:
            self._hold(holder, False)
        self._notify()

    def _hold(self, holder: Holder, works: bool) -> None:
        self._let_go(holder)
        self._holders[holder] = works
        if works:
            self._working[holder.owner] += 1

    def _let_go(self, holder: Holder) -> None:
        if self._holders.pop(holder, False):
            self._working[holder.owner] -= 1
            if not self._working[holder.owner]:
                del self._working[holder.owner]

    def _notify(self) -> None:
        """There may be a place, or another's turn."""
        following = self._next()
        if following:
            following.call()
        if self._changed and not self._changed.done():
            self._changed.set_result(None)
        self._changed = None

    @property
    def _full(self) -> bool:
        return len(self._holders) + len(self._spares) >= self._limit

    async def _make_room(self, holder: Holder, spare: Callable[[], bool]) -> bool:
        if holder in self._holders:  # its session is warm
            return True
        if self._full and not spare():
            idle = next((one for one in chain(self._spares, self._holders) if one.idle), None)
            if idle:
                await idle.close()
        return not self._full or spare()

    async def changed(self) -> None:
        """Until a place may be free that was not."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)
