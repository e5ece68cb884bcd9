"""Sessions of legacy revisions: one principal cannot use up those of the others."""

from __future__ import annotations

import time
from collections.abc import Callable

IDLE = 1_800.0  # seconds without a request after which a session has ended


class SessionCount:
    """The sessions of each principal, as far as the server has seen requests of them. `most`: the
    limit of each."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._used: dict[str, dict[str, float]] = {}  # principal: session: time of the last use

    def is_full(self, principal: str) -> bool:
        """Whether the principal may not begin another session."""
        ended = self._clock() - IDLE
        known = self._used.get(principal, {})
        left = {session: used for session, used in known.items() if used > ended}
        self._used[principal] = left
        if not left:
            del self._used[principal]
        return len(left) >= self._most

    def use(self, principal: str, session: str) -> None:
        self._used.setdefault(principal, {})[session] = self._clock()

    def end(self, principal: str, session: str) -> None:
        self._used.get(principal, {}).pop(session, None)
