"""An append-only log of numbered entries: a task's updates, or the server's feed. Every reader has
its own cursor, so that a first stream, a second one, a resumed one and a slow one are the same
thing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Generic, TypeVar

RENDERED = 1024  # newest entries whose bytes are kept: live subscribers are hardly further apart
BATCH = 512  # entries that a reader is given at once, so that a long backlog is sent in pieces


T = TypeVar("T")


class Entry(Generic[T]):
    """One update. `rendered` keeps its bytes per wire form, shared by all subscribers."""

    __slots__ = ("number", "rendered", "update")

    def __init__(self, number: int, update: T) -> None:
        self.number = number
        self.update = update
        self.rendered: dict[object, bytes] = {}


class EventLog(Generic[T]):
    """Numbers count from 1. After close() nothing is added and every reader comes to an end.

    What is appended is there for whoever adds to it; readers see it when it is published, which
    is when it has been written down. `visible` is the newest one that is; -1 where not even the
    beginning has been. `keep`: how many entries are kept at least; None for all. A reader that
    comes for older ones is given what is there.
    """

    def __init__(self, keep: int | None = None) -> None:
        self._keep = keep
        self._dropped = 0
        self._entries: list[Entry[T]] = []
        self._waiting: set[asyncio.Future[bool]] = set()
        self._closing = False
        self.visible = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def last(self) -> int:
        """The number of the newest entry; 0 before the first."""
        return self._dropped + len(self._entries)

    @property
    def closed(self) -> bool:
        """Nothing will be added, and readers may see all."""
        return self._closing and self.visible == self.last

    def add(self, updates: Iterable[T]) -> int:
        """Append without publishing. Returns the number of the newest entry."""
        if self._closing:
            raise RuntimeError("the log is closed")
        for update in updates:
            self._entries.append(Entry(self.last + 1, update))
            if len(self._entries) > RENDERED:
                self._entries[-RENDERED - 1].rendered.clear()
        if self._keep is not None and len(self._entries) > 2 * self._keep:
            self._dropped += len(self._entries) - self._keep
            del self._entries[: -self._keep]
        return self.last

    def publish(self, number: int) -> None:
        """Readers may see all up to `number`."""
        self.visible = max(self.visible, number)
        self._wake()

    def append(self, updates: Iterable[T]) -> None:
        """Add, and publish at once."""
        self.publish(self.add(updates))

    def close(self) -> None:
        self._closing = True
        self._wake()

    async def follow(self, after: int, pause: float) -> AsyncIterator[Sequence[Entry[T]]]:
        """The entries after number `after`, in order, as they are published; an empty batch each
        time that `pause` seconds have passed without one. Ends when the log is closed."""
        while True:
            start = max(after - self._dropped, 0)
            batch = self._entries[start : min(start + BATCH, max(self.visible - self._dropped, 0))]
            if batch:
                after = batch[-1].number
                yield batch
            elif self.closed:
                return
            elif not await self._changed(pause):
                yield ()

    async def reached(self, number: int) -> None:
        """Wait until the entry `number` is published."""
        while self.visible < number:
            await self._changed(None)

    async def changed(self) -> None:
        """Wait until something is published, or the log is closed."""
        if not self.closed:
            await self._changed(None)

    async def _changed(self, timeout: float | None) -> bool:
        """Whether something has, before so many seconds were over."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiting.add(waiter)
        # asyncio.wait() would do, at twice the price, once for each update and subscriber
        timer = None if timeout is None else loop.call_later(timeout, _settle, waiter, False)
        try:
            return await waiter
        finally:
            self._waiting.discard(waiter)
            if timer:
                timer.cancel()

    def _wake(self) -> None:
        for waiter in self._waiting:
            _settle(waiter, True)
        self._waiting.clear()


def _settle(waiter: asyncio.Future[bool], changed: bool) -> None:
    if not waiter.done():
        waiter.set_result(changed)
