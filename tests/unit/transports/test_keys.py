"""Marks over a store whose commits the test controls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from bridge.errors import Unavailable
from bridge.store.changes import Change, Fence
from bridge.store.handle import TaskHandle
from bridge.store.memory import MemoryStore
from bridge.store.protocol import OnCommit, StoreError
from bridge.task.state import Task
from bridge.transports.mcp.keys import Marks, message_id


class Slow(MemoryStore):
    """Reports a commit on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: asyncio.Queue[OnCommit] = asyncio.Queue()

    def append(
        self, changes: Sequence[Change], *, fence: Fence | None, then: OnCommit | None = None
    ) -> None:
        super().append(changes, fence=fence)
        if then:
            self.waiting.put_nowait(then)


def handle() -> TaskHandle:
    return TaskHandle(Task("t", "c", datetime.now(UTC)))


async def test_a_kept_mark_waits_for_its_commit() -> None:
    store, task = Slow(), handle()
    kept = asyncio.create_task(Marks(store).keep(task, "q.1"))
    committed = await store.waiting.get()
    assert not kept.done()
    committed(None)
    await kept


async def test_a_mark_that_is_not_written_is_an_error() -> None:
    store, task = Slow(), handle()
    kept = asyncio.create_task(Marks(store).keep(task, "q.1"))
    committed = await store.waiting.get()
    committed(StoreError("fenced"))
    with pytest.raises(Unavailable):
        await kept


def test_equal_parts_make_equal_ids() -> None:
    assert message_id("a", "bc") == message_id("a", "bc")
    assert message_id("a", "bc") != message_id("ab", "c")
