"""Events that end within a word wait a moment for its rest: a client that puts text between two
events would split the word."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence

from bridge.task.events import AgentEvent, Text

WORD_WITHIN = 0.05  # seconds to wait for the rest of a word, so that a text ends between words
LONGEST_WORD = 32  # characters; a longer run is not a word
_WORD = re.compile(r"\w+\Z")


class WordBuffer:
    """`events` wait for the rest of a word."""

    def __init__(self) -> None:
        self.events: list[AgentEvent] = []
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def hold(self, events: Sequence[AgentEvent], release: Callable[[], object]) -> None:
        """Add events that end within a word. `release` is called if its rest does not arrive in
        time."""
        loop = asyncio.get_running_loop()
        if not self.events:
            self._since = loop.time()
        self.events += events
        if self._timer is None:  # a timer for each piece of text would cost more
            self._timer = loop.call_later(WORD_WITHIN, self._check, release)

    def take(self) -> list[AgentEvent]:
        """Remove the events."""
        events, self.events = self.events, []
        return events

    def _check(self, release: Callable[[], object]) -> None:
        self._timer = None
        if not self.events:
            return
        loop = asyncio.get_running_loop()
        left = self._since + WORD_WITHIN - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, self._check, release)
        else:
            release()


def ends_in_word(events: Sequence[AgentEvent]) -> bool:
    last = events[-1] if events else None
    if not isinstance(last, Text) or last.parent is not None:
        return False
    end = last.text[-1:]
    if not (end.isalnum() or end == "_"):  # the same as _WORD, much faster
        return False
    found = _WORD.search(last.text[-LONGEST_WORD - 1 :])
    return found is not None and len(found[0]) <= LONGEST_WORD


def continues_word(events: Sequence[AgentEvent]) -> bool:
    """Whether the events begin with the rest of a word, or there are none."""
    first = events[0] if events else None
    if not isinstance(first, Text):
        return first is None
    return first.parent is None and not first.new_block and _WORD.match(first.text[:1]) is not None
