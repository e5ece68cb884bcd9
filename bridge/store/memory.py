"""The store of a server without durable state: its content ends with the process."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from bridge.store.changes import (
    Change,
    ContextKey,
    ContextSaved,
    EventBatch,
    Fence,
    PushChange,
    PushFailed,
    PushRemoved,
    TaskCreated,
)
from bridge.store.index import TaskIndex
from bridge.store.protocol import REPORTS, OnCommit, OpenSession, Retention
from bridge.store.replay import PIECE

MOST_IN_MEMORY = 256 * 1024 * 1024  # bytes of tasks
PACKED = 16 * 1024  # least bytes of a finished task that is worth compressing
MOST_FAILURES = 1000  # dead letters of a task


class MemoryStore(TaskIndex):
    """A commit is immediate: append() calls `then` before it returns. This store does not keep
    contexts and sessions, since only a later server needs them."""

    durable = False
    schema = 0
    congested = False
    backlog = 0
    problem: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self._content: dict[str, _Content] = {}
        self._packing: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        pass

    async def flush(self) -> None:
        """Also wait until finished tasks are compressed."""
        while self._packing:
            await asyncio.wait(self._packing)

    async def close(self) -> None:
        await self.flush()

    def time_commits(self, timed: Callable[[float], None]) -> None:
        """A commit takes no time."""

    def append(
        self, changes: Sequence[Change], *, fence: Fence | None, then: OnCommit | None = None
    ) -> None:
        error = self._accept(changes, fence)
        if error is None:
            self._commit(changes)
        if then:
            then(error)

    def _create(self, change: TaskCreated) -> bool:
        new = super()._create(change)
        if new:
            self._content[change.task_id] = _Content(change.prompt, len(change.prompt))
            self.stored += len(change.prompt)
        return new

    def _add(self, batch: EventBatch) -> bool:
        new = super()._add(batch)
        if new:
            size = len(batch.events)
            content = self._content[batch.task_id]
            content.batches.append(batch)
            content.size += size
            self.stored += size
            if batch.state and batch.state.terminal and content.size >= PACKED:
                packing = asyncio.create_task(self._pack(batch.task_id, content))
                self._packing.add(packing)  # the event loop has only weak references to tasks
                packing.add_done_callback(self._packing.discard)
        return new

    def _remove(self, task_id: str) -> None:
        super()._remove(task_id)
        gone = self._content.pop(task_id, None)
        self.stored -= gone.size if gone else 0

    def _change_push(self, change: PushChange) -> None:
        super()._change_push(change)
        match change:
            case PushFailed() if change.config_id in self._push.get(change.task_id, {}):
                self._content[change.task_id].add_failure(change)
            case PushRemoved(task_id, config_id) if content := self._content.get(task_id):
                failures = content.failures
                content.failures = {k: one for k, one in failures.items() if k[0] != config_id}

    def on_relief(self, call: Callable[[], None]) -> None:
        call()

    async def _pack(self, task_id: str, content: _Content) -> None:
        """Compress the content of a task that has ended."""
        prompt, pieces = await asyncio.to_thread(content.packed)
        size = len(prompt) + sum(len(data) for _, data in pieces)
        if task_id in self._content:
            self.stored += size - content.size
        content.prompt, content.pieces, content.size = prompt, pieces, size
        content.batches = []

    # --- reading -------------------------------------------------------------------------------

    async def prompt(self, task_id: str) -> bytes:
        content = self._content[task_id]
        return zlib.decompress(content.prompt) if content.pieces else content.prompt

    async def read(self, task_id: str, after: int = 0) -> Sequence[EventBatch]:
        content = self._content[task_id]
        for last, data in content.pieces:
            if last > after:
                return [one for one in _unpacked(task_id, data) if one.number > after]
        size, end = 0, after  # the number of a batch is its position, from 1
        while end < len(content.batches) and size < PIECE:
            size += len(content.batches[end].events)
            end += 1
        return content.batches[after:end]

    async def reports(self, task_ids: Sequence[str]) -> Sequence[tuple[str, bytes]]:
        found = []
        for task_id in (one for one in task_ids if one in self._content):
            after = 0
            while piece := await self.read(task_id, after):
                after = piece[-1].number
                events = (one.events for one in piece)
                found += [(task_id, one) for one in events if any(mark in one for mark in REPORTS)]
        return found

    async def contexts(
        self, agent: str, context: ContextKey | None = None
    ) -> Sequence[ContextSaved]:
        return ()

    async def sessions(self, agent: str) -> Sequence[OpenSession]:
        return ()

    async def push_failures(self, task_id: str) -> Sequence[PushFailed]:
        content = self._content.get(task_id)
        return [one for _, one in sorted(content.failures.items())] if content else []

    async def expired(self, retention: Retention, now: int) -> Sequence[str]:
        most = min(retention.bytes or MOST_IN_MEMORY, MOST_IN_MEMORY)
        return await super().expired(replace(retention, bytes=most), now)


@dataclass(slots=True)
class _Content:
    """The batches of a task, or compressed pieces of them, each with its last number."""

    prompt: bytes
    size: int
    batches: list[EventBatch] = field(default_factory=list)
    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    failures: dict[tuple[str, int], PushFailed] = field(default_factory=dict)

    def add_failure(self, failure: PushFailed) -> None:
        self.failures[failure.config_id, failure.number] = failure
        if len(self.failures) > MOST_FAILURES:
            del self.failures[next(iter(self.failures))]

    def packed(self) -> tuple[bytes, list[tuple[int, bytes]]]:
        pieces = []
        lines: list[bytes] = []
        size = 0
        for batch in self.batches:  # events are JSON without newlines
            lines.append(b"%d %d %d %b" % (batch.number, batch.time, batch.last, batch.events))
            size += len(batch.events)
            if size >= PIECE or batch.number == len(self.batches):
                pieces.append((batch.number, zlib.compress(b"\n".join(lines), 1)))
                lines, size = [], 0
        return zlib.compress(self.prompt, 1), pieces


def _unpacked(task_id: str, data: bytes) -> Sequence[EventBatch]:
    batches = []
    for line in zlib.decompress(data).split(b"\n"):
        number, time, last, events = line.split(b" ", 3)
        batches.append(EventBatch(task_id, int(number), int(time), events, int(last)))
    return batches
