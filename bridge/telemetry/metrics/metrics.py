"""The facts that other parts of the server report for metrics. They need no library, and count from
the start of the server on."""

from __future__ import annotations

import time
from collections import Counter


class Metrics:
    """`reloads`: by outcome, `ok` or `failed`. Times are seconds since 1970; 0 for never.
    `spans_dropped`: spans that were not sent to the collector."""

    def __init__(self) -> None:
        self.reloads: Counter[str] = Counter()
        self.config_loaded = time.time()
        self.backup = 0.0
        self.spans_dropped = 0

    def reloaded(self, ok: bool) -> None:
        """The configuration was loaded again, or could not be."""
        self.reloads["ok" if ok else "failed"] += 1
        if ok:
            self.config_loaded = time.time()

    def spans_lost(self, count: int) -> None:
        """So many spans were not sent."""
        self.spans_dropped += count

    def backed_up(self, when: float) -> None:
        """A backup was completed at this time."""
        self.backup = max(self.backup, when)
