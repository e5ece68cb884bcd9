"""The heap of this process. The C library keeps what was freed, in case it is wanted again; after a
large task that is many times what the server needs."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import threading
from collections.abc import Callable

SELDOM = (700, 2, 1000)  # see gc.set_threshold(); by default (700, 10, 10)
SOON = 0.01  # seconds, in which who has just heard of an end lets go of what has ended
PAUSE = 2.0  # seconds: it takes a few milliseconds, in which no other thread gets memory
_trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's


def collect_seldom() -> None:
    """Look for garbage among what is new, and hardly ever among all that lives: of 500 streaming
    tasks that took 0.2 s, every few seconds, in which nobody was served. Nothing was found: what
    ends lets go of what it had, and waits for no collector."""
    gc.collect()
    gc.freeze()  # what is there now stays
    gc.set_threshold(*SELDOM)


class Heap:
    def __init__(self) -> None:
        self._again: asyncio.TimerHandle | None = None

    def trim(self) -> None:
        """Much was freed, or will be in a moment: have it given back to the system, and what is
        freed within PAUSE once that is over."""
        if _trim and self._again is None:
            loop = asyncio.get_running_loop()
            loop.call_later(SOON, _give_back)
            self._again = loop.call_later(PAUSE, self._once_more)

    def _once_more(self) -> None:
        self._again = None
        _give_back()


def _give_back() -> None:
    assert _trim
    threading.Thread(target=_trim, args=(0,), daemon=True, name="trim").start()
