"""Settings of the garbage collector and the heap. The C library keeps freed memory for reuse; after
a large task it keeps many times the memory that the server needs."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import threading
from collections.abc import Callable

SELDOM = (700, 2, 1000)  # see gc.set_threshold(); by default (700, 10, 10)
SOON = 0.01  # seconds until the readers of an ended task have released it
PAUSE = 2.0  # seconds: it takes a few milliseconds, in which no other thread gets memory
_trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's


def collect_seldom() -> None:
    """Collect new objects as usual, and all objects rarely. With 500 streaming tasks, a full
    collection stopped the server for 0.2 s every few seconds. Most objects need no collector, since
    few hold reference cycles."""
    gc.collect()
    gc.freeze()  # the present objects stay
    gc.set_threshold(*SELDOM)


class Heap:
    def __init__(self) -> None:
        self._again: asyncio.TimerHandle | None = None

    def trim(self) -> None:
        """Return freed memory to the system soon, and once more after PAUSE seconds. Call it when
        much memory is or will be freed."""
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
