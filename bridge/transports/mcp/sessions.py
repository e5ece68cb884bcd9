"""Sessions of legacy revisions: one principal cannot use up those of the others."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_OF_ONE = 100  # sessions of a principal
IDLE = 1_800.0  # seconds without a request after which a session has ended


class SessionCount:
    """The sessions of each principal, as far as the server has seen requests of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
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
        return len(left) >= MOST_OF_ONE

    def use(self, principal: str, session: str) -> None:
        self._used.setdefault(principal, {})[session] = self._clock()

    def end(self, principal: str, session: str) -> None:
        self._used.get(principal, {}).pop(session, None)
