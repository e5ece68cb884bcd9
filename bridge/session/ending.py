"""The end of a turn whose CLI may still send a part of it (Adapter.lingers)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from bridge.task.events import ENDINGS, AgentEvent, Usage

QUIET = 0.005  # seconds without output after which the turn has ended
LONGEST = 0.5  # seconds of further output after which it has ended all the same
_LAST = (Usage, *ENDINGS)


class EndBuffer:
    """`events` wait for a quiet of the CLI, from the first end of the turn on."""

    def __init__(self) -> None:
        self.events: list[AgentEvent] = []
        self._since = self._heard = 0.0  # of the first and of the last output
        self._timer: asyncio.TimerHandle | None = None

    def takes(self, events: Sequence[AgentEvent]) -> bool:
        """Whether the turn ends with `events`, or waits for its end."""
        return bool(self.events) or any(isinstance(event, ENDINGS) for event in events)

    def hold(self, events: Sequence[AgentEvent], release: Callable[[], object]) -> None:
        """Add events, and call `release` after the next quiet."""
        loop = asyncio.get_running_loop()
        self._heard = loop.time()
        if self._timer is None:
            self._since = self._heard
            self._timer = loop.call_later(QUIET, self._check, release)
        self.events += events

    def _check(self, release: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()
        left = min(self._heard + QUIET, self._since + LONGEST) - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, self._check, release)
        else:
            release()

    def take(self, conclude: Callable[[], Sequence[AgentEvent]]) -> list[AgentEvent]:
        """Remove the events. `conclude`: see Adapter."""
        if self._timer:
            self._timer.cancel()
        events, self.events, self._timer = self.events, [], None
        last = conclude()
        return [*(one for one in events if not isinstance(one, _LAST)), *last] if last else events
