"""How much of the server each principal may use, so that none leaves nothing for the others."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping

from bridge.auth.principal import OPERATOR, Quota
from bridge.errors import TooManyRequests

MINUTE = 60.0
MOST_KNOWN = 1000  # principals whose starts are remembered beyond their minute
SOON = 5  # seconds after which it may be tried again, where nobody knows


class Quotas:
    """What is in use, by the ids of principals, and how much each may. `own`: the quotas of those
    that have one; others have the usual one, the operator none."""

    def __init__(self, own: Mapping[str, Quota] | None = None) -> None:
        self._own = {OPERATOR.id: Quota.none(), **(own or {})}
        self._usual = Quota()
        self._tasks: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._starts: dict[str, deque[float]] = {}

    def of(self, owner: str) -> Quota:
        return self._own.get(owner, self._usual)

    def stored_bytes(self, owner: str) -> int:
        return self.of(owner).stored_bytes

    def begin(self, owner: str) -> None:
        """A task begins, which must be told to ended(). Raises TooManyRequests."""
        quota = self.of(owner)
        if quota.tasks and self._tasks[owner] >= quota.tasks:
            text = f"{self._tasks[owner]} of your tasks have not ended yet, as many as you may have"
            raise TooManyRequests(f"{text}; wait for one, or cancel it.", SOON)
        if quota.starts_per_minute:
            self._start(owner, quota.starts_per_minute)
        self._tasks[owner] += 1

    def resume(self, owner: str) -> None:
        """A task goes on that began before this server did."""
        self._tasks[owner] += 1

    def ended(self, owner: str) -> None:
        self._tasks[owner] -= 1
        if not self._tasks[owner]:
            del self._tasks[owner]

    def check_stream(self, owner: str) -> None:
        """Raises TooManyRequests if the principal may have no further stream()."""
        most = self.of(owner).streams
        if most and self._streams[owner] >= most:
            text = f"You have {most} streams open, as many as you may have; close one."
            raise TooManyRequests(text, SOON)

    @contextlib.contextmanager
    def stream(self, owner: str) -> Iterator[None]:
        """As long as a stream is open."""
        self._streams[owner] += 1
        try:
            yield
        finally:
            self._streams[owner] -= 1
            if not self._streams[owner]:
                del self._streams[owner]

    def _start(self, owner: str, most: int) -> None:
        now = time.monotonic()
        if len(self._starts) > MOST_KNOWN:
            recent = self._starts.items()
            self._starts = {one: at for one, at in recent if at and at[-1] > now - MINUTE}
        starts = self._starts.setdefault(owner, deque())
        while starts and starts[0] <= now - MINUTE:
            starts.popleft()
        if len(starts) >= most:
            text = f"You have begun {most} tasks within a minute, as many as you may."
            raise TooManyRequests(text, math.ceil(starts[0] + MINUTE - now))
        starts.append(now)
