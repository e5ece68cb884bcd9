"""The turns of the event loop: the CPU time that each callback keeps it for."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

RUN = "_run"  # asyncio calls it for each callback, and has no public hook


class Turns:
    """The longest turn since the last reset, in seconds of CPU time of the loop's thread, and its
    callback."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.callback = ""

    def reset(self) -> None:
        self.longest, self.callback = 0.0, ""

    def ran(self, seconds: float, handle: Any) -> None:
        if seconds > self.longest:
            self.longest, self.callback = seconds, repr(handle)[:500]


@contextmanager
def measured_turns() -> Iterator[Turns]:
    """Measures each callback of the running loop. Clients must be in other threads. A server
    collects garbage seldom, and this process has the objects of all tests."""
    turns, loop = Turns(), asyncio.get_running_loop()
    run = getattr(asyncio.Handle, RUN)

    def measured(handle: Any) -> None:
        begin = time.thread_time()
        run(handle)
        if asyncio.get_running_loop() is loop:
            turns.ran(time.thread_time() - begin, handle)

    setattr(asyncio.Handle, RUN, measured)
    gc.disable()
    try:
        yield turns
    finally:
        gc.enable()
        setattr(asyncio.Handle, RUN, run)
