"""An append-only log of numbered entries: a task's updates, or the server's feed. Every reader has
its own cursor. So a first stream, a second one, a resumed one and a slow one work alike."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Generic, TypeVar

BATCH = 512  # entries that a reader gets at once, so that a long backlog is sent in pieces


T = TypeVar("T")


class Entry(Generic[T]):
    """One update. `rendered` has its bytes per wire form, shared by all subscribers; None before
    the first rendering. `weight`: its part of the limits of the log."""

    __slots__ = ("number", "rendered", "update", "weight")

    def __init__(self, number: int, update: T, weight: int = 1) -> None:
        self.number = number
        self.update = update
        self.weight = weight
        self.rendered: dict[object, bytes] | None = None


Reread = Callable[[], AsyncIterator[Sequence[Entry[T]]]]
"""All entries that the store has, in order, from the first one on."""


Tap = Callable[[Sequence[Entry[T]]], bool]


class EventLog(Generic[T]):
    """Numbers count from 1. After close() no entry is added, and every reader ends.

    The caller of add() has its entries at once. Readers see an entry after publish(), which follows
    the commit. `visible`: the number of the newest published entry; -1 if not even the beginning
    is published. `keep`: the newest entries that together weigh so much are kept. A reader that
    asks for older entries gets the kept ones.
    """

    def __init__(self, keep: float = math.inf) -> None:
        self._keep = self._most = keep
        self._full = 2 * keep  # weight at which old entries are dropped
        self._reread: Reread[T] | None = None
        self._dropped = 0
        self._entries: list[Entry[T]] = []
        self._weight = 0
        self._readers: set[_Reader[T]] = set()
        self._released = self._leaves = False
        self._waiting: set[_Reader[T]] = set()
        self._closing = False
        self.visible = 0

    def __len__(self) -> int:
        """The number of kept entries."""
        return len(self._entries)

    @property
    def last(self) -> int:
        """The number of the newest entry; 0 before the first."""
        return self._dropped + len(self._entries)

    @property
    def closed(self) -> bool:
        """Whether the log is closed and all its entries are published."""
        return self._closing and self.visible == self.last

    @property
    def shared(self) -> bool:
        """Whether it has several readers, so that the rendered bytes are worth keeping."""
        return len(self._readers) > 1

    @property
    def wanted(self) -> bool:
        """Whether someone reads it or waits for news."""
        return bool(self._readers or self._waiting)

    def bound(self, keep: int, most: int, reread: Reread[T]) -> None:
        """Keep the newest entries that together weigh `keep`, and up to `most` for readers that are
        behind. `reread` reads older ones."""
        self._keep, self._most, self._full, self._reread = keep, most, 2 * keep, reread

    def skip(self, number: int) -> None:
        """Count `number` earlier entries, of which none is kept."""
        self._dropped = self.visible = number

    def add(self, updates: Iterable[T], weight: int = 1) -> int:
        """Append entries of this weight each, without publishing. Returns the number of the newest
        entry."""
        if self._closing:
            raise RuntimeError("the log is closed")
        entries, number = self._entries, self._dropped + len(self._entries)
        for update in updates:
            number += 1
            entries.append(Entry(number, update, weight))
            self._weight += weight
        return number

    def publish(self, number: int) -> None:
        """Let readers see all entries up to `number`."""
        if self._weight > self._full:  # first: waiting readers find the new entries in memory
            self._trim()
        before = self.visible
        self.visible = max(before, number)
        self._wake()
        if self.shared:
            self._strip(before)

    def append(self, updates: Iterable[T]) -> None:
        """Add the updates, and publish them at once."""
        self.publish(self.add(updates))

    def close(self) -> None:
        self._closing = True
        self._wake()

    def abandon(self) -> None:
        """Drop the entries that were not published, and close."""
        del self._entries[max(self.visible - self._dropped, 0) :]
        self.visible = self.last
        self.close()

    def release(self, entries: bool) -> None:
        """Free the rendered bytes of a closed log after its last reader, and also its `entries`."""
        self._released, self._leaves = True, entries
        self._let_go()

    async def follow(
        self, after: int, pause: float, tap: Tap[T] | None = None
    ) -> AsyncIterator[Sequence[Entry[T]]]:
        """The entries after number `after`, in order, as they are published; an empty batch each
        time that `pause` seconds have passed without one. Ends when the log is closed.

        While this waits, `tap` gets each published batch at once. A batch that it takes (it returns
        True) is not yielded."""
        past: AsyncIterator[Sequence[Entry[T]]] | None = None
        reader = _Reader(after, tap)
        self._readers.add(reader)
        try:
            while True:
                if self._reread and reader.after < self._dropped:
                    past = past or self._reread()
                    batch = await _after(reader.after, past)
                else:
                    batch = self._next(reader)
                if batch:
                    before, reader.after = reader.after, batch[-1].number
                    yield batch
                    self._strip(before)
                elif self.closed:
                    return
                elif not await self._changed(reader, pause):
                    yield ()
        finally:
            self._readers.discard(reader)
            self._let_go()

    def kept(self, after: int) -> Sequence[Entry[T]] | None:
        """The next published entries after number `after`; None if the log has dropped them."""
        return None if after < self._dropped else self._next(_Reader(after))

    def _next(self, reader: _Reader[T]) -> Sequence[Entry[T]]:
        start = max(reader.after - self._dropped, 0)
        return self._entries[start : min(start + BATCH, max(self.visible - self._dropped, 0))]

    async def reached(self, number: int) -> None:
        """Wait until the entry `number` is published."""
        while self.visible < number:
            await self._changed(_Reader())

    async def changed(self) -> None:
        """Wait for a publication or the end of the log."""
        if not self.closed:
            await self._changed(_Reader())

    async def _changed(self, reader: _Reader[T], timeout: float = math.inf) -> bool:
        """Wait for a change that the tap has not taken. False after `timeout` silent seconds."""
        loop = asyncio.get_running_loop()
        reader.heard = loop.time()
        reader.woken = loop.create_future()
        self._waiting.add(reader)
        try:
            while timeout < math.inf:
                # asyncio.wait() does the same at twice the cost
                timer = loop.call_at(reader.heard + timeout, reader.wake, False)
                try:
                    await reader.woken
                finally:
                    timer.cancel()
                if reader not in self._waiting:  # also if the timer fired at the same moment
                    return True
                if timer.when() >= reader.heard + timeout:
                    return False
                reader.woken = loop.create_future()
            return await reader.woken
        finally:
            self._waiting.discard(reader)

    def _wake(self) -> None:
        for reader in tuple(self._waiting):
            if not (reader.tap and self._tapped(reader, reader.tap)):
                self._waiting.discard(reader)
                reader.wake(True)

    def _tapped(self, reader: _Reader[T], tap: Tap[T]) -> bool:
        """Whether the tap has taken all entries that the reader has not seen."""
        batch = self._next(reader)
        if not batch or self.closed or batch[-1].number < self.visible:
            return False
        try:
            taken = tap(batch)
        except Exception:  # only its own reader meets the error again
            return False
        if taken:
            reader.after = batch[-1].number
            reader.heard = reader.woken.get_loop().time()
        return taken

    def _trim(self) -> None:
        """Drop the oldest entries: those that all readers have read, and unread ones above the
        limit for readers that are behind. Not at each call, since the cost grows with the log."""
        read = min((reader.after for reader in self._readers), default=self.visible)
        old, left = 0, self._weight
        for entry in self._entries:
            rest = left - entry.weight
            behind = entry.number > read and rest < self._most
            if entry.number > self.visible or rest < self._keep or behind:
                break
            old, left = old + 1, rest
        del self._entries[:old]
        self._dropped += old
        self._weight, self._full = left, left + self._keep

    def _strip(self, after: int) -> None:
        """Drop the rendered bytes of entries after number `after` that all readers have read. A
        later reader renders them again."""
        read = min([reader.after for reader in self._readers], default=0)
        for entry in self._entries[max(after - self._dropped, 0) : max(read - self._dropped, 0)]:
            entry.rendered = None

    def _let_go(self) -> None:
        if not self._released or self._readers:
            return
        if self._leaves:
            self._dropped = self.last
            self._entries.clear()
        for entry in self._entries:
            entry.rendered = None


class _Reader(Generic[T]):
    """A reader that has all entries up to number `after`, and waits for more."""

    __slots__ = ("after", "heard", "tap", "woken")

    def __init__(self, after: int = 0, tap: Tap[T] | None = None) -> None:
        self.after = after
        self.tap = tap
        self.heard = 0.0  # time when it began to wait, or its tap took a batch
        self.woken: asyncio.Future[bool]

    def wake(self, changed: bool) -> None:
        if not self.woken.done():
            self.woken.set_result(changed)


async def _after(after: int, past: AsyncIterator[Sequence[Entry[T]]]) -> Sequence[Entry[T]]:
    """The next entries of `past` after number `after`. Raises LookupError if it has none."""
    async for batch in past:
        if batch and batch[-1].number > after:
            return batch[max(0, after + 1 - batch[0].number) :]
    raise LookupError(f"the updates after {after} are not kept any more")
