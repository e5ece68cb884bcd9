"""The turns of the event loop: the CPU time that each callback keeps it for."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


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
    run = asyncio.Handle._run

    def measured(handle: Any) -> None:
        if handle._loop is not loop:
            return run(handle)
        begin = time.thread_time()
        run(handle)
        turns.ran(time.thread_time() - begin, handle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", measured)
        gc.disable()
        try:
            yield turns
        finally:
            gc.enable()
