"""The places for live sessions: how many there are, and who comes next.

A session that waits for a person has no place: it neither counts against the limit nor against its
principal's quota. Such sessions have a limit of their own.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from enum import Enum
from itertools import chain, count
from typing import Protocol

from bridge.auth.quotas import Quotas

WAITING_PER_SESSION = 4  # default of the limit of sessions that wait, for each session at work
ANNOUNCE_EVERY = 0.2  # seconds between two rounds in which waiting tasks are told their position
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds between two updates of one task; each doubles


class Holder(Protocol):
    """Who needs a place: a context, or a session that waits for one (see session/prewarm.py).
    `idle`: its session is warm, and has nothing to do."""

    @property
    def owner(self) -> str: ...

    @property
    def idle(self) -> bool: ...

    async def close(self) -> None:
        """Give up the session, and the place."""


class Use(Enum):
    """What a session with a holder in the pool does."""

    WORKING = "working"
    IDLE = "idle"
    WAITING = "waiting"  # for a person


Announce = Callable[[int, int], None]
"""Told how many tasks are ahead of this one, and how many sessions wait for answers."""


class _Waiter:
    """Who waits for a place. `number` tells who came first. `announce` is called when the position
    has changed, in growing intervals."""

    __slots__ = ("_announce", "_called", "_due", "_known", "_pause", "number", "parked")

    def __init__(self, number: int, announce: Announce) -> None:
        self.number = number
        self.parked = False  # there was no place for it
        self._called = asyncio.Event()
        self._announce = announce
        self._known: tuple[int, int] | None = None
        self._due = 0.0
        self._pause = FIRST_PAUSE

    def call(self) -> None:
        """It shall look again."""
        self._called.set()

    async def wait(self) -> None:
        """Until it is called, or not at all if that has happened since the last time."""
        await self._called.wait()
        self._called.clear()

    def tell(self, ahead: int, answers: int, now: float) -> float:
        """Announce the position if it has changed and an update is due. Returns the time at which
        the next one is; infinity where none is needed."""
        if not self.parked or self._known == (ahead, answers):
            return math.inf
        if now >= self._due:
            self._known = (ahead, answers)
            self._due, self._pause = now + self._pause, min(2 * self._pause, LONGEST_PAUSE)
            self._announce(ahead, answers)
            return math.inf
        return self._due


class SessionPool:
    """The places for live sessions, and what else principals share. Whoever has none waits its
    turn for one; a warm but idle session gives up its place to whoever waits, a spare one first.
    The turn is that of the principal for whom the fewest work, and only whose turn it is is
    woken. `waiting_limit`: how many sessions may wait for a person."""

    def __init__(
        self, limit: int, quotas: Quotas | None = None, waiting_limit: int | None = None
    ) -> None:
        self.quotas = quotas or Quotas()
        self._limit = limit
        self._waiting_limit = waiting_limit or WAITING_PER_SESSION * limit
        self._holders: dict[Holder, Use] = {}
        self._working: Counter[str] = Counter()  # how many of them do, by owner
        # Of those that wait for a person: since when, and what answers for the person.
        self._waiting: dict[Holder, tuple[datetime, Callable[[], None]]] = {}
        self._spares: dict[Holder, None] = {}  # hold one each as long as nobody else needs it
        self._queues: dict[str, OrderedDict[Holder, _Waiter]] = {}  # by owner; the first one first
        self._numbers = count()
        self._changed: asyncio.Future[None] | None = None
        self._closing: asyncio.Task[None] | None = None  # of idle sessions beyond the limit
        self._announcing: asyncio.TimerHandle | None = None
        self._announced = -math.inf  # when the last round was

    def figures(self) -> Mapping[str, int | bool]:
        """How much is in use, for GET /health. `queued`: tasks that wait for a place."""
        working = self._working.total()
        return {
            "working": working,
            "limit": self._limit,
            "waiting": len(self._waiting),
            "waitingLimit": self._waiting_limit,
            "queued": sum(map(len, self._queues.values())),
            "saturated": working >= self._limit,
        }

    async def enter(
        self,
        holder: Holder,
        wanted: Callable[[], bool],
        spare: Callable[[], bool] = lambda: False,
        announce: Announce = lambda ahead, answers: None,
    ) -> None:
        """Wait for a place; come back without one when it is `wanted` no more (see recheck). Where
        there is a `spare` session for it, its place will do: it must be taken at once. `announce`
        is told the position in the queue."""
        if self._holders.get(holder) is Use.WORKING:
            return
        if holder in self._holders and self._may_work(holder.owner) and wanted():
            # Else two could wait for each other: whoever has the turn, for this place to be given
            # up, which it is not as long as somebody wants it; and this one for its turn.
            self._hold(holder, Use.WORKING)
            return
        waiter = _Waiter(next(self._numbers), announce)
        queue = self._queues.setdefault(holder.owner, OrderedDict())
        queue[holder] = waiter
        try:
            while wanted():
                if self._next() is waiter and await self._make_room(holder, spare):
                    if self._may_work(holder.owner):
                        break
                    self._notify()  # the room is somebody else's
                waiter.parked = True
                self._announce_soon()
                await waiter.wait()
            if wanted():
                self._hold(holder, Use.WORKING)
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
        """Whose turn it is; None where all who wait have as many at work as they may. Who has a
        session needs no room, and so comes first: others may wait for its place."""
        waiting = [
            (holder not in self._holders, self._working[owner], waiter.number, waiter)
            for owner, queue in self._queues.items()
            if self._may_work(owner)
            for holder, waiter in [self._first(queue)]
        ]
        return min(waiting)[3] if waiting else None

    def _first(self, queue: OrderedDict[Holder, _Waiter]) -> tuple[Holder, _Waiter]:
        """Of one principal."""
        first = next(iter(queue.items()))
        return next((one for one in queue.items() if one[0] in self._holders), first)

    def _may_work(self, owner: str) -> bool:
        return self._working[owner] < self._most(owner)

    def _most(self, owner: str) -> float:
        return self.quotas.of(owner).running or math.inf

    def claim(self, holder: Holder) -> None:
        """Its session is alive already, and works."""
        self._hold(holder, Use.WORKING)

    # --- sessions that wait for a person -------------------------------------------------------

    def ask(self, holder: Holder, since: datetime, give_up: Callable[[], None]) -> None:
        """The session waits for a person. Where too many do, `give_up` of the one that has waited
        for longest is called, which answers for the person. A question that is asked before there
        is a session needs no place."""
        if holder not in self._holders:
            return
        self._let_go(holder)
        self._holders[holder] = Use.WAITING
        self._waiting[holder] = since, give_up
        self._notify()
        if len(self._waiting) > self._waiting_limit:  # later: this may be in the midst of an event
            asyncio.get_running_loop().call_soon(self._give_up_oldest)

    def _give_up_oldest(self) -> None:
        for _ in range(len(self._waiting) - self._waiting_limit):
            oldest = min(self._waiting, key=lambda one: self._waiting[one][0])
            self._waiting[oldest][1]()

    def resume(self, holder: Holder) -> None:
        """The session waits for nobody any more. It works at once, even beyond the limit: its
        process exists, and the person has waited already."""
        if holder in self._waiting:
            self._hold(holder, Use.WORKING)
            self._shrink()

    def _shrink(self) -> None:
        """Close idle sessions, where there are more than the limit."""
        if self._excess > 0 and (self._closing is None or self._closing.done()):
            self._closing = asyncio.create_task(self._close_excess())

    async def _close_excess(self) -> None:
        while self._excess > 0:
            idle = list(self._idle())[: self._excess]
            if not idle:
                return
            await asyncio.gather(*map(self._close_idle, idle))

    @staticmethod
    async def _close_idle(one: Holder) -> None:
        if one.idle:  # which may have changed since it was chosen
            await one.close()

    def _idle(self) -> Iterator[Holder]:
        """The sessions to give up: spare ones first, then those that are idle for longest."""
        return (one for one in chain(self._spares, self._holders) if one.idle)

    # --- places --------------------------------------------------------------------------------

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
            self._hold(holder, Use.IDLE)
            self._shrink()
        self._notify()

    def _hold(self, holder: Holder, use: Use) -> None:
        self._let_go(holder)
        self._holders[holder] = use
        if use is Use.WORKING:
            self._working[holder.owner] += 1

    def _let_go(self, holder: Holder) -> None:
        self._waiting.pop(holder, None)
        if self._holders.pop(holder, None) is Use.WORKING:
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
        self._announce_soon()

    @property
    def _excess(self) -> int:
        """How many sessions there are beyond the limit; negative where there is room."""
        return len(self._holders) - len(self._waiting) + len(self._spares) - self._limit

    @property
    def _full(self) -> bool:
        return self._excess >= 0

    async def _make_room(self, holder: Holder, spare: Callable[[], bool]) -> bool:
        if holder in self._holders:  # its session is warm
            return True
        if self._full and not spare():
            idle = next(self._idle(), None)
            if idle:
                await idle.close()
        return not self._full or (self._excess == 0 and spare())

    async def changed(self) -> None:
        """Until a place may be free that was not."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    # --- what waiting tasks are told -----------------------------------------------------------

    def _announce_soon(self, earliest: float = 0.0) -> None:
        """Have a round, not before the time `earliest`. Rounds have a pause between them, since
        each costs as much as there are waiting tasks."""
        if not self._queues:
            return
        loop = asyncio.get_running_loop()
        when = max(earliest, loop.time(), self._announced + ANNOUNCE_EVERY)
        if self._announcing and self._announcing.when() > when:
            self._announcing.cancel()
            self._announcing = None
        if self._announcing is None:
            self._announcing = loop.call_at(when, self._announce)

    def _announce(self) -> None:
        now = self._announced = asyncio.get_running_loop().time()
        self._announcing = None
        answers = len(self._waiting)
        due = [waiter.tell(at, answers, now) for at, waiter in enumerate(self._in_order())]
        if min(due, default=math.inf) < math.inf:
            self._announce_soon(min(due))

    def _in_order(self) -> list[_Waiter]:
        """Who waits for a place, in the order of their turns as long as nobody's work ends."""
        ranked = [
            (rank >= self._most(owner), holder not in self._holders, rank, waiter.number, waiter)
            for owner, queue in self._queues.items()
            for rank, (holder, waiter) in enumerate(queue.items(), self._working[owner])
        ]
        return [waiter for *_, waiter in sorted(ranked, key=lambda one: one[:4])]
