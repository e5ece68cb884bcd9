"""Token buckets: a burst of events at once, and then a number of events per second."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Generic, TypeVar

LINES_A_BURST, LINES_A_SECOND = 10, 1.0  # of the log, for each kind of line
K = TypeVar("K")
Clock = Callable[[], float]
"""Seconds, as of time.monotonic."""


class TokenBucket:
    """Allows `burst` events at once, and then `rate` events per second."""

    __slots__ = ("_at", "_burst", "_clock", "_left", "_rate")

    def __init__(self, rate: float, burst: float, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._rate = rate
        self._burst = self._left = burst
        self._at = clock()

    def take(self) -> bool:
        """Whether one more event is allowed now. If so, it counts."""
        self.charge(0)
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def charge(self, cost: float) -> None:
        """Count an event that was not prevented as `cost` events. The debt is one burst at most."""
        now = self._clock()
        filled = min(self._burst, self._left + (now - self._at) * self._rate)
        self._left, self._at = max(filled - cost, -self._burst), now

    def wait(self) -> float:
        """Seconds from the last call until `take` succeeds."""
        return max(0.0, (1 - self._left) / self._rate)


class TokenBuckets(Generic[K]):
    """A bucket per key. Above `most` keys, the bucket that was unused for the longest time is
    evicted."""

    def __init__(self, most: int, clock: Clock = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._buckets: dict[K, TokenBucket] = {}

    def get(self, key: K, rate: float, burst: float) -> TokenBucket:
        """The bucket of the key. `rate` and `burst` apply to a new bucket."""
        found = self._buckets.pop(key, None)
        if found is None:
            if len(self._buckets) >= self._most:
                del self._buckets[next(iter(self._buckets))]
            found = TokenBucket(rate, burst, self._clock)
        self._buckets[key] = found  # the first one is always the longest unused
        return found

    def forget(self, key: K) -> None:
        """The next get() of the key makes a new bucket."""
        self._buckets.pop(key, None)


class RateLimitedLogs(logging.Filter):
    """Limits log lines that clients can cause in any number. `more` of a line is the number of
    suppressed lines of its kind."""

    suppressed_lines = 0
    """The number of lines that all filters of this process have suppressed."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, tuple[TokenBucket, list[int]]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = str(record.msg)[:100]
        if kind not in self._kinds:
            if len(self._kinds) >= LINES_A_BURST:
                kind = ""  # all further kinds
            fresh = TokenBucket(LINES_A_SECOND, LINES_A_BURST), [0]
            self._kinds.setdefault(kind, fresh)
        bucket, suppressed = self._kinds[kind]
        if not bucket.take():
            suppressed[0] += 1
            RateLimitedLogs.suppressed_lines += 1
            return False
        if suppressed[0]:
            record.more, suppressed[0] = suppressed[0], 0
        return True
