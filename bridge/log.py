"""An append-only log of a task's updates, each with its number. Every reader has its own cursor,
so that a first stream, a second one, a resumed one and a slow one are the same thing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence

from bridge.task import Update

RENDERED = 1024  # newest entries whose bytes are kept: live subscribers are hardly further apart
BATCH = 512  # entries that a reader is given at once, so that a long backlog is sent in pieces


class Entry:
    """One update. `rendered` keeps its bytes per wire form, shared by all subscribers."""

    __slots__ = ("number", "rendered", "update")

    def __init__(self, number: int, update: Update) -> None:
        self.number = number
        self.update = update
        self.rendered: dict[object, bytes] = {}


class EventLog:
    """Numbers count from 1. After close() nothing is added and every reader comes to an end."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._waiting: set[asyncio.Future[None]] = set()
        self.closed = False

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def last(self) -> int:
        """The number of the newest entry; 0 before the first."""
        return len(self._entries)

    def append(self, updates: Iterable[Update]) -> None:
        if self.closed:
            raise RuntimeError("the log is closed")
        for update in updates:
            self._entries.append(Entry(len(self._entries) + 1, update))
            if len(self._entries) > RENDERED:
                self._entries[-RENDERED - 1].rendered.clear()
        self._wake()

    def close(self) -> None:
        self.closed = True
        self._wake()

    async def follow(self, after: int, pause: float) -> AsyncIterator[Sequence[Entry]]:
        """The entries after number `after`, in order, as they come; an empty batch each time
        that `pause` seconds have passed without one. Ends when the log is closed."""
        while True:
            batch = self._entries[after : after + BATCH]
            if batch:
                after = batch[-1].number
                yield batch
            elif self.closed:
                return
            elif not await self._changed(pause):
                yield ()

    async def changed(self) -> None:
        """Wait until something is appended, or the log is closed."""
        if not self.closed:
            await self._changed(None)

    async def _changed(self, timeout: float | None) -> bool:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            done, _ = await asyncio.wait([waiter], timeout=timeout)
            return bool(done)
        finally:
            self._waiting.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()
