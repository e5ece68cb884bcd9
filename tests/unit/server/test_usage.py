"""The sums of usage over the tasks of a store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import pytest

from bridge.server.operate.usage import AT_ONCE, summed
from bridge.store.changes import ContextKey, EventBatch, TaskCreated
from bridge.store.memory import MemoryStore
from bridge.store.serialization import dump_events, micros
from bridge.task.events import Done, Event, Failed, Started, Text, Usage
from bridge.task.transitions import TaskState

SINCE = date(2026, 1, 2)
DAY = datetime(2026, 1, 2, tzinfo=UTC)


class Stored(MemoryStore):
    """Counts the tasks of each read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[int] = []

    async def reports(self, task_ids: Sequence[str]) -> Sequence[tuple[str, bytes]]:
        self.reads.append(len(task_ids))
        return await super().reports(task_ids)

    def add(
        self, name: str, at: datetime, *events: Event, owner: str = "anna", ended: bool = True
    ) -> None:
        self.add_batch(name, at, dump_events([*events, Done()]), owner=owner, ended=ended)

    def add_batch(
        self, name: str, at: datetime, written: bytes, *, owner: str = "anna", ended: bool = True
    ) -> None:
        state = TaskState.COMPLETED if ended else TaskState.WORKING
        time = micros(at)
        created = TaskCreated(name, ContextKey("agent", owner, "c"), time, b"{}")
        self.append([created, EventBatch(name, 1, time, written, 1, state, time)], fence=None)


async def rows(store: MemoryStore) -> dict[Any, tuple[int, list[int], float]]:
    found = await summed(store, ["agent"], SINCE)
    return {key: (one.tasks, list(one.tokens.values()), one.usd) for key, one in found.items()}


async def test_a_task_counts_at_the_day_of_its_end_with_its_last_model() -> None:
    store = Stored()
    first = [Started("s", "old"), Started("s", "new"), Started("s", None)]
    store.add("a", DAY, *first, Usage(7, 7, 7, 7.0), Usage(1, 2, 3, 0.5, {"cacheReadTokens": 4}))
    store.add("b", DAY.replace(hour=23, minute=59), Started("s", "new"), Usage(1, 2, 3, 0.25))
    store.add("c", DAY.replace(day=3), Usage(1))
    store.add("d", DAY, Text("no report"), owner="bert")
    store.add("e", DAY.replace(day=1, hour=23), Usage(100))  # before that day
    store.add("f", DAY, Usage(100), ended=False)
    store.add("g", DAY, Failed("x"), Usage(None, 5, None, None))
    assert await rows(store) == {
        ("2026-01-02", "anna", "agent", "new"): (2, [2, 4, 4, 0, 6], 0.75),
        ("2026-01-03", "anna", "agent", None): (1, [1, 0, 0, 0, 0], 0.0),
        ("2026-01-02", "bert", "agent", None): (1, [0, 0, 0, 0, 0], 0.0),
        ("2026-01-02", "anna", "agent", None): (1, [0, 5, 0, 0, 0], 0.0),
    }
    assert await summed(store, ["other"], SINCE) == {}


@pytest.mark.parametrize("value", ["5", None, True, float("inf"), float("nan"), 2**60, [], -3])
async def test_a_figure_of_a_strange_type_is_not_counted(value: Any) -> None:
    """An agent of the `jsonl` protocol may report any JSON."""
    store = Stored()
    store.add("a", DAY, Usage(1, extra={"outputTokens": value, "costUsd": value}))
    ((tasks, tokens, usd),) = (await rows(store)).values()
    assert (tasks, tokens, usd) == (1, [1, 0, 0, 0, 0], 0.0)


async def test_a_damaged_task_counts_without_its_usage() -> None:
    store = Stored()
    for number, written in enumerate((b'[["Usage",', b'[["Usage",1]]', b'[["Usage",{"x":1}], 3]')):
        store.add_batch(f"{number}", DAY, written)
    store.add("whole", DAY, Usage(1))
    assert list((await rows(store)).values()) == [(4, [1, 0, 0, 0, 0], 0.0)]


async def test_few_tasks_are_read_at_once() -> None:
    store = Stored()
    for number in range(2 * AT_ONCE + 1):
        store.add(f"{number}", DAY, Usage(1))
    ((tasks, (sent, *_), _),) = (await rows(store)).values()
    assert (tasks, sent) == (2 * AT_ONCE + 1, 2 * AT_ONCE + 1)
    assert store.reads == [AT_ONCE, AT_ONCE, 1]
