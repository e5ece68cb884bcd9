"""Notices when the event loop stands still: then no client is served, and no agent is heard."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from types import FrameType

log = logging.getLogger(__name__)

BEAT = 0.25  # seconds between two signs of life
STUCK = 2.0  # seconds without one
REMEMBERED = 60.0  # seconds for which /health tells of it


class Watchdog:
    """Watches the running event loop from a thread of its own, until close()."""

    def __init__(self, stuck: float = STUCK) -> None:
        self._stuck = stuck
        self._loop = asyncio.get_running_loop()
        self._main = threading.get_ident()
        self._beat = time.monotonic()
        self._longest = self._late = 0.0
        self._noticed = float("-inf")
        self._closed = threading.Event()
        self._timer = self._loop.call_later(BEAT, self._live)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """The recent problems."""
        if time.monotonic() - self._noticed > REMEMBERED:
            return None
        return f"the event loop stood still for {self._longest:.1f} s"

    @property
    def lag(self) -> float:
        """Seconds by which the event loop is late: at its last sign of life, or now."""
        return max(self._late, time.monotonic() - self._beat - BEAT, 0.0)

    @property
    def stuck(self) -> bool:
        """Whether the event loop stood still until now, or until its last sign of life."""
        return self.lag >= self._stuck

    def close(self) -> None:
        self._closed.set()
        self._timer.cancel()

    def _live(self) -> None:
        now = time.monotonic()
        if now - self._beat >= self._stuck:
            self._longest, self._noticed = now - self._beat, now
            log.error("the event loop goes on", extra={"seconds": round(self._longest, 1)})
        self._late = now - self._beat - BEAT
        self._beat = now
        self._timer = self._loop.call_later(BEAT, self._live)

    def _watch(self) -> None:
        told = 0.0  # the beat after which nothing came, once that was told
        while not self._closed.wait(BEAT):
            beat = self._beat
            if time.monotonic() - beat >= self._stuck and told != beat:
                told = beat
                log.error("the event loop stands still", extra={"where": self._where()})

    def _where(self) -> str:
        """The last lines that the event loop's thread is in."""
        frame: FrameType | None = sys._current_frames().get(self._main)
        return "".join(traceback.format_stack(frame, limit=4)) if frame else "nowhere"
