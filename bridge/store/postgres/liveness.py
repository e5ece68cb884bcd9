"""The arithmetic of leases. Each function gets the time by the clock of this machine (clock()), in
seconds; no time of another machine is compared.

A node counts (`beat`) as long as it works. It trusts its own lease until VALID of the lease after
the start of its last beat. Another node may fence it once the counter has not moved for a whole
lease by the clock of that node. The distance of the two covers clocks whose rates differ by 20 %,
and the tick of the guard.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

INTERVAL = 0.2  # of a lease between two beats; also the limit of the answer to a beat
VALID = 0.6  # of a lease after the start of a good beat
MOST_GAP = 0.4  # of a lease between two reads; after a longer gap every wait begins again


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # also counts while suspended


def clock() -> float:
    return time.clock_gettime(_CLOCK)


class NodeLease:
    """The lease of this node. `length` is in seconds."""

    def __init__(self, length: float) -> None:
        self.length = length
        self.until = 0.0

    def renewed(self, started: float) -> None:
        """A beat that was sent at `started` is committed."""
        self.until = max(self.until, started + VALID * self.length)

    def is_valid(self, now: float) -> bool:
        return now < self.until


@dataclass(frozen=True, slots=True)
class Beat:
    """The counter of an incarnation of a node, as one read has shown it. `fenced`: the incarnation
    is over; its epoch is negative then."""

    node: str
    epoch: int
    beat: int
    fenced: bool = False


@dataclass(slots=True)
class _Sight:
    beat: Beat
    since: float  # the end of the first read that showed it


class Observer:
    """What this node knows about the others. `length` of a lease, in seconds."""

    def __init__(self, length: float) -> None:
        self._length = length
        self._sights: dict[str, _Sight] = {}
        self._read: float | None = None  # the end of the last good read

    def failed(self) -> None:
        """A read has failed: the others may have beaten meanwhile, or could not either."""
        self._read = None

    def observed(self, started: float, ended: float, beats: Iterable[Beat]) -> None:
        """A read between these times has shown all nodes."""
        gap = self._read is None or ended - self._read > MOST_GAP * self._length
        known, self._read = self._sights, ended
        self._sights = {}
        for beat in beats:
            before = known.get(beat.node)
            same = before is not None and before.beat == beat
            if before and same and (beat.fenced or not gap):
                self._sights[beat.node] = before
            else:
                self._sights[beat.node] = _Sight(beat, ended)

    def suspects(self, now: float) -> list[Beat]:
        """The nodes that may be fenced, if their counters still have these values."""
        return [
            sight.beat
            for sight in self._sights.values()
            if not sight.beat.fenced and now - sight.since >= self._length
        ]

    def fenced(self) -> list[Beat]:
        return [sight.beat for sight in self._sights.values() if sight.beat.fenced]

    def age(self, node: str, now: float) -> float | None:
        """Seconds since this node has first seen the present counter; None for an unknown node."""
        sight = self._sights.get(node)
        return now - sight.since if sight else None
