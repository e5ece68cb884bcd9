"""The slots for live sessions, and the queue for them.

A session that waits for a person has no slot. It counts neither against the limit nor against the
quota of its principal. Such sessions have a separate limit.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from itertools import chain

from bridge.auth.quotas import Quotas
from bridge.session.slot_queue import Announce, SlotHolder, SlotQueue

WAITING_PER_SESSION = 4  # default limit of sessions that wait for a person, per slot


class Use(Enum):
    """The state of a session that has a holder in the pool."""

    WORKING = "working"
    IDLE = "idle"
    WAITING = "waiting"  # for a person


class SessionPool:
    """The slots for live sessions, and the quotas of principals. A holder without a slot waits in a
    queue. An idle session is evicted for a waiting holder, a spare session first. The next slot
    goes to the principal with the fewest working sessions, and only its holder is woken.
    `waiting_limit`: the maximum number of sessions that wait for a person. `announce_every`: the
    seconds between two rounds of position updates; `first_pause`: those between the first two
    updates of one task."""

    def __init__(
        self,
        limit: int,
        quotas: Quotas | None = None,
        waiting_limit: int | None = None,
        *,
        announce_every: float = 0.2,
        first_pause: float = 1.0,
    ) -> None:
        self.quotas = quotas or Quotas()
        self._limit = limit
        self._waiting_limit = waiting_limit or WAITING_PER_SESSION * limit
        self._holders: dict[SlotHolder, Use] = {}
        self._working: Counter[str] = Counter()  # number of working holders, by owner
        # For each holder that waits for a person: since when, and the callback that gives up.
        self._waiting: dict[SlotHolder, tuple[datetime, Callable[[], None]]] = {}
        self._spares: dict[SlotHolder, None] = {}  # each holds a slot that no other holder needs
        self.queue = SlotQueue(
            holders=self._holders,
            working=self._working,
            most=self._most,
            waiting=self._waiting,
            announce_every=announce_every,
            first_pause=first_pause,
        )
        self._changed: asyncio.Future[None] | None = None
        self._closing: asyncio.Task[None] | None = None  # closes idle sessions above the limit

    def figures(self) -> Mapping[str, int | bool]:
        """The used slots, for GET /health. `queued`: tasks that wait for a slot."""
        working = self._working.total()
        return {
            "working": working,
            "limit": self._limit,
            "waiting": len(self._waiting),
            "waitingLimit": self._waiting_limit,
            "queued": len(self.queue),
            "saturated": working >= self._limit,
        }

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def free(self) -> int:
        """The number of slots that further tasks can get now, perhaps after an eviction."""
        return max(self._limit - self._working.total() - len(self.queue), 0)

    @property
    def uses(self) -> Mapping[SlotHolder, Use]:
        """The holders with their states."""
        return self._holders

    @property
    def holders(self) -> Sequence[SlotHolder]:
        """The holders of slots."""
        return tuple(self._holders)

    async def acquire(
        self,
        holder: SlotHolder,
        wanted: Callable[[], bool],
        spare: Callable[[], bool] = lambda: False,
        announce: Announce = lambda ahead, answers: None,
    ) -> None:
        """Wait for a slot. Returns without a slot when it is no longer `wanted`, which
        `SlotQueue.wake` makes it check again. If there is a `spare` session for the holder, the
        slot of that session is enough; the caller must take the session immediately. `announce`
        gets the position in the queue."""
        if self._holders.get(holder) is Use.WORKING:
            return
        if holder in self._holders and self._may_work(holder.owner) and wanted():
            # Otherwise two holders could wait for each other: the next holder for this slot, and
            # this holder for its turn. A slot is not released while a task wants it.
            self._hold(holder, Use.WORKING)
            return
        waiter = self.queue.join(holder, announce)
        try:
            while wanted():
                if self.queue.first() is waiter and await self._make_room(holder, spare):
                    if self._may_work(holder.owner):
                        break
                    self._notify()  # the free slot is for another holder
                waiter.parked = True
                self.queue.announce_soon()
                await waiter.wait()
            if wanted():
                self._hold(holder, Use.WORKING)
        finally:
            self.queue.leave(holder)
            self._notify()

    def _may_work(self, owner: str) -> bool:
        return self._working[owner] < self._most(owner)

    def _most(self, owner: str) -> float:
        return self.quotas.of(owner).running or math.inf

    def adopt(self, holder: SlotHolder) -> None:
        """Give a slot to a holder with a session that is live and works."""
        self._hold(holder, Use.WORKING)

    # --- sessions that wait for a person -------------------------------------------------------

    def ask(self, holder: SlotHolder, since: datetime, give_up: Callable[[], None]) -> None:
        """The session waits for a person. If too many sessions do, the pool calls `give_up` of the
        session with the longest wait, which answers for the person. A question before the start
        of the session needs no slot."""
        if holder not in self._holders:
            return
        self._let_go(holder)
        self._holders[holder] = Use.WAITING
        self._waiting[holder] = since, give_up
        self._notify()
        if len(self._waiting) > self._waiting_limit:  # later: an event may be in progress
            asyncio.get_running_loop().call_soon(self._give_up_oldest)

    def _give_up_oldest(self) -> None:
        for _ in range(len(self._waiting) - self._waiting_limit):
            oldest = min(self._waiting, key=lambda one: self._waiting[one][0])
            self._waiting[oldest][1]()

    def resume(self, holder: SlotHolder) -> None:
        """The session no longer waits for a person. It works immediately, even above the limit: its
        process exists, and the person has already waited."""
        if holder in self._waiting:
            self._hold(holder, Use.WORKING)
            self._shrink()

    def _shrink(self) -> None:
        """Close idle sessions if the number of sessions is above the limit."""
        if self._excess > 0 and (self._closing is None or self._closing.done()):
            self._closing = asyncio.create_task(self._close_excess())

    async def _close_excess(self) -> None:
        while self._excess > 0:
            idle = list(self._idle())[: self._excess]
            if not idle:
                return
            await asyncio.gather(*map(self._close_idle, idle))

    @staticmethod
    async def _close_idle(one: SlotHolder) -> None:
        if one.idle:  # may have changed since the selection
            await one.close()

    def _idle(self) -> Iterator[SlotHolder]:
        """The sessions to evict: spare sessions first, then the longest idle sessions."""
        return (one for one in chain(self._spares, self._holders) if one.idle)

    # --- slots ---------------------------------------------------------------------------------

    async def vacate(self) -> bool:
        """Whether a slot is free and no holder waits for it. If necessary, evict the longest idle
        session, provided that afterwards idle sessions are not fewer than spare sessions."""
        if self._full and self.queue.first() is None:
            idle = [one for one in self._holders if one.idle]
            if len(idle) > len(self._spares) + 1:
                await idle[0].close()
        return not self._full and self.queue.first() is None

    def lend(self, spare: SlotHolder) -> None:
        """Give a spare session a vacated slot, until another holder needs it."""
        self._spares[spare] = None

    def release(self, holder: SlotHolder) -> None:
        """The session has ended."""
        self._let_go(holder)
        self._spares.pop(holder, None)
        self._notify()

    def idle(self, holder: SlotHolder) -> None:
        """Mark the holder's session as idle. It is now the last to be evicted."""
        if holder in self._holders:
            self._hold(holder, Use.IDLE)
            self._shrink()
        self._notify()

    def _hold(self, holder: SlotHolder, use: Use) -> None:
        self._let_go(holder)
        self._holders[holder] = use
        if use is Use.WORKING:
            self._working[holder.owner] += 1

    def _let_go(self, holder: SlotHolder) -> None:
        self._waiting.pop(holder, None)
        if self._holders.pop(holder, None) is Use.WORKING:
            self._working[holder.owner] -= 1
            if not self._working[holder.owner]:
                del self._working[holder.owner]

    def _notify(self) -> None:
        """Wake the next waiter: a slot may be free, or the order may have changed."""
        following = self.queue.first()
        if following:
            following.call()
        if self._changed and not self._changed.done():
            self._changed.set_result(None)
        self._changed = None
        self.queue.announce_soon()

    @property
    def _excess(self) -> int:
        """The number of sessions above the limit; negative if slots are free."""
        return len(self._holders) - len(self._waiting) + len(self._spares) - self._limit

    @property
    def _full(self) -> bool:
        return self._excess >= 0

    async def _make_room(self, holder: SlotHolder, spare: Callable[[], bool]) -> bool:
        if holder in self._holders:  # its session is live
            return True
        if self._full and not spare():
            idle = next(self._idle(), None)
            if idle:
                await idle.close()
        return not self._full or (self._excess == 0 and spare())

    async def changed(self) -> None:
        """Wait until another slot may be free."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)
