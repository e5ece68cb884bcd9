"""Counts function calls, where a test must not depend on how fast the machine is."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import CO_COROUTINE
from types import CodeType, FrameType
from typing import Any

from tests import CHECKOUT

OURS = str(CHECKOUT)


class Calls:
    """How often each function was called, of those that the server consists of."""

    def __init__(self) -> None:
        self.by_code: Counter[CodeType] = Counter()

    @property
    def ours(self) -> int:
        """Those of the bridge and its adapters."""
        names = (f"{OURS}/bridge/", f"{OURS}/adapters/")
        counts = self.by_code.items()
        return sum(count for code, count in counts if code.co_filename.startswith(names))

    def coroutines(self, *rooms: str) -> dict[str, int]:
        """How often each coroutine of these rooms began or went on."""
        names = tuple(f"{OURS}/bridge/{room}/" for room in rooms)
        return {
            code.co_qualname: count
            for code, count in self.by_code.items()
            if code.co_flags & CO_COROUTINE and code.co_filename.startswith(names)
        }

    def of(self, *functions: Any) -> int:
        return sum(self.by_code[function.__code__] for function in functions)


@contextmanager
def counted() -> Iterator[Calls]:
    calls = Calls()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            calls.by_code[frame.f_code] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)
