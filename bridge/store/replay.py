"""Tasks, read back from what was written down of them: in pieces, between which others have their
turn. What is in memory of a task is never more than a part of this."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import zlib
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from bridge.errors import ConfigurationError, DataLoss, TaskNotFound, Unavailable
from bridge.store.event_log import Entry
from bridge.store.journal import Journal
from bridge.store.serialization import load, load_events, moment
from bridge.task.events import Retracted
from bridge.task.message import Message
from bridge.task.state import Task, Update
from bridge.task.text import bounded

log = logging.getLogger(__name__)

PIECE = 64 * 1024  # bytes that are read and gone through at once
RECENT = 8 * 1024 * 1024  # bytes of tasks that were asked for, as they are written down
LEAST = 2048  # bytes of a task, however little was said

Batch = tuple[int, int, bytes, int]
"""Its number, its time, its events, and the number of the last update that they brought."""


class Rows(Protocol):
    """What was written down of tasks, by their places."""

    async def prompt(self, place: int) -> bytes:
        """Raises LookupError if there is no such task."""

    async def read(self, place: int, after: int) -> Sequence[Batch]:
        """The next batches after number `after`, a PIECE of them; none where there are none."""


class JournalRows:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def prompt(self, place: int) -> bytes:
        found = await self._journal.read(_PROMPT, place)
        prompt: bytes = found[0][0]
        return prompt

    async def read(self, place: int, after: int) -> Sequence[Batch]:
        rows: Sequence[Batch] = await self._journal.read_some(PIECE, _EVENTS, place, after)
        return rows


_PROMPT = "SELECT prompt FROM task WHERE place = ?"
_EVENTS = """
    SELECT batch, time, events, last FROM event WHERE task = ? AND batch > ? ORDER BY batch"""


class MemoryRows:
    """The same without a journal. `size`: bytes that they take."""

    def __init__(self) -> None:
        self.size = 0
        self._tasks: dict[int, _Kept] = {}

    def begin(self, place: int, prompt: bytes) -> None:
        self._tasks[place] = _Kept(prompt)
        self.size += len(prompt)

    def add(self, place: int, batch: Batch) -> None:
        self._tasks[place].batches.append(batch)
        self._tasks[place].size += len(batch[2])
        self.size += len(batch[2])

    def remove(self, place: int) -> None:
        self.size -= self._tasks.pop(place).size

    async def pack(self, place: int) -> None:
        """Nothing will be added: have what there is take less room."""
        kept = self._tasks.get(place)
        if kept is None:
            return
        prompt, pieces = await asyncio.to_thread(kept.packed)
        size = len(prompt) + sum(len(data) for _, data in pieces)
        if place in self._tasks:
            self.size += size - kept.size
        kept.prompt, kept.pieces, kept.size = prompt, pieces, size
        kept.batches = []

    async def prompt(self, place: int) -> bytes:
        kept = self._tasks[place]
        return zlib.decompress(kept.prompt) if kept.pieces else kept.prompt

    async def read(self, place: int, after: int) -> Sequence[Batch]:
        kept = self._tasks[place]
        for last, data in kept.pieces:
            if last > after:
                return [one for one in _unpacked(data) if one[0] > after]
        size, end = 0, after  # a batch's number is its place among them
        while end < len(kept.batches) and size < PIECE:
            size += len(kept.batches[end][2])
            end += 1
        return kept.batches[after:end]


class _Kept:
    """Of a task: its batches, or pieces of them that are packed, each with its last number."""

    def __init__(self, prompt: bytes) -> None:
        self.prompt = prompt
        self.size = len(prompt)
        self.batches: list[Batch] = []
        self.pieces: list[tuple[int, bytes]] = []

    def packed(self) -> tuple[bytes, list[tuple[int, bytes]]]:
        pieces = []
        lines: list[bytes] = []
        size = 0
        for number, time, events, last in self.batches:
            lines.append(b"%d %d %d %b" % (number, time, last, events))  # JSON, without newlines
            size += len(events)
            if size >= PIECE or number == len(self.batches):
                pieces.append((number, zlib.compress(b"\n".join(lines), 1)))
                lines, size = [], 0
        return zlib.compress(self.prompt, 1), pieces


def _unpacked(data: bytes) -> Sequence[Batch]:
    batches = []
    for line in zlib.decompress(data).split(b"\n"):
        number, time, last, events = line.split(b" ", 3)
        batches.append((int(number), int(time), events, int(last)))
    return batches


async def replay(
    rows: Rows, place: int, task: Task, lean: bool = False, end: int | None = None
) -> AsyncIterator[tuple[Sequence[Batch], list[Update]]]:
    """Let everything happen to `task` that has happened to it, up to batch `end`: piece by piece,
    with the updates that each of them brings. `lean`: what was said is not kept in the task.

    Raises ValueError where what is written makes no sense, once it has told of what comes before
    that, and LookupError if the task was removed. Asked for more at its end, it looks for what was
    added.
    """
    number = 0
    while piece := await rows.read(place, number):
        updates: list[Update] = []
        read: list[Batch] = []
        problem: Exception | None = None
        try:
            for row in piece:
                if end is not None and row[0] > end:
                    break
                events, now = load_events(row[2]), moment(row[1])
                if lean and any(isinstance(event, Retracted) for event in events):
                    task, lean = await restored(rows, place, task, number), False
                for event in events:
                    updates += task.apply(bounded(event), now)
                read.append(row)
                number = row[0]
        except Exception as error:  # written by another version, or damaged
            problem = error
        yield read, updates
        if problem:
            raise ValueError(f"nothing that this version writes: {problem!r}") from problem
        if len(read) < len(piece):
            return
        if lean:
            task.drop_content()
        await asyncio.sleep(0)


async def restored(rows: Rows, place: int, head: Task, end: int | None = None) -> Task:
    """The task again, up to batch `end`. Raises as replay() does."""
    task = head.blank_copy()
    task.history.append(load(Message, await rows.prompt(place)))
    async for _ in replay(rows, place, task, end=end):
        pass
    task.reply = None  # it is a task by now, which clients may get
    return task


async def retold(rows: Rows, place: int, head: Task) -> AsyncIterator[Sequence[Entry[Update]]]:
    """All updates of the task, as far as they are written down. It takes little memory, however
    long the task has become. Raises as replay() does."""
    number = 0
    async for _, updates in replay(rows, place, head.blank_copy(), lean=True):
        yield [Entry(n, update) for n, update in enumerate(updates, number + 1)]
        number += len(updates)


class Recent:
    """Tasks that were read back for those who ask for them, and the last of them as they are. Two
    who ask at once share one reading."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._kept: dict[int, tuple[Task, int]] = {}  # by place, the newest last
        self._size = 0
        self._reading: dict[int, asyncio.Task[Task]] = {}

    async def get(self, place: int, head: Task, size: int) -> Task:
        """The whole task of `head`, of so many bytes. Raises Unavailable if it cannot be read
        now, DataLoss if it never can, and TaskNotFound if it was removed meanwhile."""
        kept = self._kept.get(place)
        if kept:
            self._keep(place, *kept)
            return kept[0]
        reading = self._reading.get(place)
        if reading is None:
            reading = asyncio.create_task(self._read(place, head, max(size, LEAST)))
            self._reading[place] = reading
        return await asyncio.shield(reading)  # for the others, if this one goes away

    def forget(self, place: int) -> None:
        """It is removed: who is reading it may find only a part."""
        self._reading.pop(place, None)
        self._drop(place)

    async def _read(self, place: int, head: Task, size: int) -> Task:
        try:
            task = await restored(self._rows, place, head)
            if self._reading.get(place) is not asyncio.current_task():
                raise LookupError(place)
            self._keep(place, task, size)
            return task
        except (sqlite3.OperationalError, ConfigurationError) as error:  # such as locked
            log.error("a task cannot be read", extra={"task": head.id, "error": error})
            text = "The server cannot read what was written down now; try again in a moment."
            raise Unavailable(text) from error
        except (sqlite3.Error, ValueError) as error:
            log.exception("a task cannot be read", extra={"task": head.id})
            text = "What was written down of the task is damaged; the server's log says more."
            raise DataLoss(text) from error
        except LookupError as error:
            raise TaskNotFound("No such task.", taskId=head.id) from error
        finally:
            if self._reading.get(place) is asyncio.current_task():
                del self._reading[place]

    def _keep(self, place: int, task: Task, size: int) -> None:
        self._drop(place)
        self._kept[place] = task, size
        self._size += size
        while self._size > RECENT:
            self._drop(next(iter(self._kept)))

    def _drop(self, place: int) -> None:
        if place in self._kept:
            self._size -= self._kept.pop(place)[1]
