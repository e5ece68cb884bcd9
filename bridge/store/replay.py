"""Tasks, read back from their stored events in pieces. Other work continues between two pieces.
Memory never holds more than one piece of the events of a task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from bridge.errors import ConfigurationError, DataLoss, TaskNotFound, Unavailable
from bridge.store.changes import EventBatch
from bridge.store.event_log import Entry
from bridge.store.protocol import CANNOT_READ, DAMAGED, Store, TaskHead
from bridge.store.serialization import load, load_events, moment
from bridge.task.events import Event, Retracted, bounded
from bridge.task.message import Message
from bridge.task.state import Task, Update

log = logging.getLogger(__name__)

PIECE = 64 * 1024  # bytes of events that are read and applied at once
MANY = 256  # events that are applied at once: a piece may have thousands of short ones
RECENT = 8 * 1024 * 1024  # stored bytes of the tasks that were requested last
LEAST = 2048  # least bytes that a task counts


def blank_task(head: TaskHead) -> Task:
    """The task of the head before its first event, without its prompt."""
    facts = (head.thoughts, head.context.owner, head.attended)
    return Task(head.task_id, head.context.id, moment(head.created), *facts)


async def replay(
    store: Store, task: Task, lean: bool = False, end: int | None = None
) -> AsyncIterator[tuple[Sequence[EventBatch], list[Update]]]:
    """Apply the stored events to `task`, up to batch `end`. Yields each piece with the updates that
    it brings. `lean`: the task does not keep its content.

    Raises ValueError for a batch that cannot be read or applied, after the updates of the batches
    before it. Raises LookupError if the task was removed. Batches that are added meanwhile count.
    """
    number = 0
    while piece := await store.read(task.id, number):
        updates: list[Update] = []
        read: list[EventBatch] = []
        problem: Exception | None = None
        try:
            for batch in piece:
                if end is not None and batch.number > end:
                    break
                events, now = load_events(batch.events), moment(batch.time)
                if lean and any(isinstance(event, Retracted) for event in events):
                    task, lean = await restored(store, task, number), False
                await _apply(task, events, now, updates)
                read.append(batch)
                number = batch.number
        except Exception as error:  # damaged, or written by another version
            problem = error
        yield read, updates
        if problem:
            raise ValueError(f"nothing that this version writes: {problem!r}") from problem
        if len(read) < len(piece):
            return
        if lean:
            task.drop_content()
        await asyncio.sleep(0)


async def _apply(task: Task, events: list[Event], now: datetime, updates: list[Update]) -> None:
    """Apply the events, and add their updates to `updates`."""
    for count, event in enumerate(events, 1):
        updates += task.apply(bounded(event), now)
        if count % MANY == 0:
            await asyncio.sleep(0)


def apply_batch(task: Task, batch: EventBatch) -> list[Update]:
    """Apply the events of the next batch. Returns its updates. Raises ValueError if it cannot be
    read or applied."""
    updates: list[Update] = []
    try:
        now = moment(batch.time)
        for event in load_events(batch.events):
            updates += task.apply(bounded(event), now)
    except Exception as error:  # damaged, or written by another version
        raise ValueError(f"nothing that this version writes: {error!r}") from error
    return updates


async def restored(store: Store, head: Task, end: int | None = None) -> Task:
    """The task with its content, up to batch `end`. Raises as replay() does."""
    task = head.blank_copy()
    task.history.append(load(Message, await store.prompt(head.id)))
    async for _ in replay(store, task, end=end):
        pass
    task.reply = None  # from now on clients get the task instead
    return task


async def replay_updates(store: Store, head: Task) -> AsyncIterator[Sequence[Entry[Update]]]:
    """All updates of the task that the store has. It takes little memory, even for a long task.
    Raises as replay() does."""
    number = 0
    async for _, updates in replay(store, head.blank_copy(), lean=True):
        yield [Entry(n, update) for n, update in enumerate(updates, number + 1)]
        number += len(updates)


@contextmanager
def read_errors(task_id: str) -> Iterator[None]:
    """Raise Unavailable if the task cannot be read now, DataLoss if it is damaged, and TaskNotFound
    if it was removed meanwhile."""
    try:
        yield
    except (Unavailable, DataLoss) as error:
        cause = error.__cause__ or error
        log.error("a task cannot be read", extra={"task": task_id, "error": cause})
        raise
    except ConfigurationError as error:
        log.error("a task cannot be read", extra={"task": task_id, "error": error})
        raise Unavailable(CANNOT_READ) from error
    except ValueError as error:
        log.exception("a task cannot be read", extra={"task": task_id})
        raise DataLoss(DAMAGED) from error
    except LookupError as error:
        raise TaskNotFound.of_task(task_id) from error


class Recent:
    """Reads finished tasks back, and caches the last ones. Two concurrent requests for a task share
    one read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: dict[str, tuple[Task, int]] = {}  # by id, the newest last
        self._size = 0
        self._reading: dict[str, asyncio.Task[Task]] = {}

    async def get(self, head: Task, size: int) -> Task:
        """The whole task of `head`, of `size` stored bytes. Raises as read_errors() does."""
        kept = self._kept.get(head.id)
        if kept:
            self._keep(*kept)
            return kept[0]
        reading = self._reading.get(head.id)
        if reading is None:
            reading = asyncio.create_task(self._read(head, max(size, LEAST)))
            self._reading[head.id] = reading
        return await asyncio.shield(reading)  # a canceled caller must not stop the others

    def forget(self, task_id: str) -> None:
        """Drop a removed task, and a read of it that may have found only a part."""
        self._reading.pop(task_id, None)
        self._drop(task_id)

    async def _read(self, head: Task, size: int) -> Task:
        try:
            with read_errors(head.id):
                task = await restored(self._store, head)
                if self._reading.get(head.id) is not asyncio.current_task():
                    raise LookupError(head.id)
            self._keep(task, size)
            return task
        finally:
            if self._reading.get(head.id) is asyncio.current_task():
                del self._reading[head.id]

    def _keep(self, task: Task, size: int) -> None:
        self._drop(task.id)
        self._kept[task.id] = task, size
        self._size += size
        while self._size > RECENT:
            self._drop(next(iter(self._kept)))

    def _drop(self, task_id: str) -> None:
        if task_id in self._kept:
            self._size -= self._kept.pop(task_id)[1]
