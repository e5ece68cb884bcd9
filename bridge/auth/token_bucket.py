"""Token buckets: so many events at once, and then so many per second."""

from __future__ import annotations

import logging
import time

LINES_A_BURST, LINES_A_SECOND = 10, 1.0  # of the log, for each kind of line


class TokenBucket:
    """Lets `burst` things happen at once, and then `rate` of them per second."""

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = self._left = burst
        self._at = time.monotonic()

    def take(self) -> bool:
        """Whether one more may happen now. If so, it has."""
        self.charge(0)
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def charge(self, cost: float) -> None:
        """Count what has happened anyway, as so many of them; at the most, as another burst."""
        now = time.monotonic()
        filled = min(self._burst, self._left + (now - self._at) * self._rate)
        self._left, self._at = max(filled - cost, -self._burst), now


class RateLimitedLogs(logging.Filter):
    """Of lines that anybody could fill the disk with, lets a few through. `more` in a line is how
    many like it were kept back since the one before."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, tuple[TokenBucket, list[int]]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = str(record.msg)[:100]
        if kind not in self._kinds:
            if len(self._kinds) >= LINES_A_BURST:
                kind = ""  # for a message that is never the same
            fresh = TokenBucket(LINES_A_SECOND, LINES_A_BURST), [0]
            self._kinds.setdefault(kind, fresh)
        bucket, untold = self._kinds[kind]
        if not bucket.take():
            untold[0] += 1
            return False
        if untold[0]:
            record.more, untold[0] = untold[0], 0
        return True
