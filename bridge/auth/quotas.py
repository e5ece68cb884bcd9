"""Quotas of principals, so that each of them leaves resources for the others."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping

from bridge.auth.principal import OPERATOR, Quota
from bridge.auth.token_bucket import Clock, TokenBuckets
from bridge.errors import TooManyRequests

MINUTE = 60.0
MOST_KNOWN = 10_000  # principals whose starts are counted
SOON = 5  # seconds: Retry-After where the bridge cannot know when the limit is free again


class Quotas:
    """The usage and the quota of each principal. `own`: quotas by principal id. Other principals
    have the default quota; the operator is unlimited."""

    def __init__(
        self, own: Mapping[str, Quota] | None = None, clock: Clock = time.monotonic
    ) -> None:
        self._usual = Quota()
        self._tasks: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._starts: TokenBuckets[str] = TokenBuckets(MOST_KNOWN, clock)
        self._own: Mapping[str, Quota] = {OPERATOR.id: Quota.none(), **(own or {})}

    def change(self, own: Mapping[str, Quota]) -> None:
        """Use other quotas from now on. A principal with another rate of starts begins with a full
        burst."""
        before, self._own = self._own, {OPERATOR.id: Quota.none(), **own}
        for owner in before.keys() | self._own.keys():
            old, new = before.get(owner, self._usual), self.of(owner)
            if old.starts_per_minute != new.starts_per_minute:
                self._starts.forget(owner)

    def of(self, owner: str) -> Quota:
        return self._own.get(owner, self._usual)

    def stored_bytes(self, owner: str) -> int:
        return self.of(owner).stored_bytes

    def begin(self, owner: str) -> None:
        """Count a new task; `ended` must follow. Raises TooManyRequests."""
        quota, running = self.of(owner), self._tasks[owner]
        if quota.tasks and running >= quota.tasks:
            text = f"Task limit reached ({running} unfinished tasks of this principal)."
            raise TooManyRequests(f"{text} Wait for one, or cancel it.", SOON)
        if most := quota.starts_per_minute:
            bucket = self._starts.get(owner, most / MINUTE, most)
            if not bucket.take():
                text = f"Start limit reached ({most} tasks per minute). Retry later."
                raise TooManyRequests(text, math.ceil(bucket.wait()))
        self._tasks[owner] += 1

    def resume(self, owner: str) -> None:
        """Count an unfinished task of an earlier server process."""
        self._tasks[owner] += 1

    def ended(self, owner: str) -> None:
        self._tasks[owner] -= 1
        if not self._tasks[owner]:
            del self._tasks[owner]

    def check_stream(self, owner: str) -> None:
        """Raise TooManyRequests if the principal has reached its limit of streams."""
        most = self.of(owner).streams
        if most and self._streams[owner] >= most:
            text = f"Stream limit reached ({most}). Close a stream and retry."
            raise TooManyRequests(text, SOON)

    @contextlib.contextmanager
    def stream(self, owner: str) -> Iterator[None]:
        """Count an open stream until the context ends."""
        self._streams[owner] += 1
        try:
            yield
        finally:
            self._streams[owner] -= 1
            if not self._streams[owner]:
                del self._streams[owner]
