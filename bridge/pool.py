"""The places for live sessions: how many there are, and who comes next."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from itertools import chain
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


class SessionPool:
    """The places for live sessions, and what else principals share. Whoever has none waits its
    turn for one; a warm but idle session gives up its place to whoever waits, a spare one first.
    The turn is that of the principal for whom the fewest work."""

    def __init__(self, limit: int, quotas: Quotas | None = None) -> None:
        self.quotas = quotas or Quotas()
        self._limit = limit
        self._holders: dict[Holder, bool] = {}  # who holds a place, and whether it works
        self._working: Counter[str] = Counter()  # how many of them do, by owner
        self._spares: dict[Holder, None] = {}  # hold one each as long as nobody else needs it
        self._queue: dict[object, Holder] = {}  # by ticket, in the order in which they came
        self._turn: object | None = None  # whose turn it is, as long as nothing has changed
        self._changed: asyncio.Future[None] | None = None
        self.starting = asyncio.Lock()  # held while a spare session is started: one at a time

    async def enter(
        self,
        holder: Holder,
        wanted: Callable[[], bool],
        spare: Callable[[], bool] = lambda: False,
    ) -> None:
        """Wait for a place; come back without one when it is `wanted` no more (see notify). Where
        there is a `spare` session for it, its place will do: it must be taken at once."""
        if self._holders.get(holder):
            return
        ticket = object()
        self._queue[ticket] = holder
        self._turn = None
        try:
            while wanted() and not (
                self._next() is ticket and await self._make_room(holder, spare)
            ):
                await self.changed()
            if wanted():
                self._hold(holder, True)
        finally:
            del self._queue[ticket]
            self.notify()

    def _next(self) -> object | None:
        """Whose turn it is; None where all who wait have as many at work as they may."""
        if self._turn is None:
            working = self._working
            waiting = [
                (working[one.owner], number, ticket)
                for number, (ticket, one) in enumerate(self._queue.items())
                if working[one.owner] < (self.quotas.of(one.owner).running or math.inf)
            ]
            self._turn = min(waiting)[2] if waiting else None
        return self._turn

    def claim(self, holder: Holder) -> None:
        """Its session is alive already, and works."""
        self._hold(holder, True)
        self._turn = None

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
        self.notify()

    def rest(self, holder: Holder) -> None:
        """Its session has nothing to do: it is now the last to be given up."""
        if holder in self._holders:
            self._hold(holder, False)
        self.notify()

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

    def notify(self) -> None:
        """Those who wait shall look again."""
        self._turn = None
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
