"""The durable store: one SQLite database, written in groups by a Journal."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

from bridge.errors import ConfigurationError, DataLoss, Unavailable
from bridge.store.changes import (
    LOCAL,
    Change,
    ContextKey,
    ContextRemoved,
    ContextSaved,
    EventBatch,
    Fence,
    InputRecorded,
    MessageAccepted,
    OutputRead,
    PushAdvanced,
    PushConfig,
    PushFailed,
    PushRemoved,
    PushSaved,
    SessionClosed,
    SessionOpened,
    TaskBegun,
    TaskCreated,
    TaskRemoved,
)
from bridge.store.index import IndexedTask, TaskIndex
from bridge.store.journal import Journal
from bridge.store.protocol import CANNOT_READ, DAMAGED, REPORTS, OnCommit, OpenSession, StoreError
from bridge.store.replay import PIECE, blank_task, replay
from bridge.store.serialization import EVENTS, micros
from bridge.store.sqlite.journal_file import Row
from bridge.store.sqlite.schema import MIGRATIONS
from bridge.task.transitions import ENDINGS

log = logging.getLogger(__name__)


class SqliteStore(TaskIndex):
    """The state of a task after its last batch is derived at the start: from the kind of the last
    event if the task has ended, else by a replay. So the schema needs no column for it."""

    durable = True
    schema = len(MIGRATIONS)

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._journal = Journal(path, MIGRATIONS)
        self._rows: dict[str, int] = {}  # primary keys of the tasks, from their append on

    # --- life ----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Also raises sqlite3.DatabaseError if the content is damaged. After a failure, the file is
        closed, so that another one can take its place, and open() can be called again."""
        try:
            await self._journal.open()
            await self._load()
        except BaseException as error:
            await self._journal.abandon()
            if isinstance(error, (Unavailable, DataLoss)):
                raise error.__cause__ or error from None
            raise

    async def flush(self) -> None:
        await self._journal.flushed()

    async def close(self) -> None:
        await self._journal.close()

    async def copy(self, target: Path) -> None:
        """See Journal.copy()."""
        await self._journal.copy(target)

    @property
    def congested(self) -> bool:
        return self._journal.congested

    @property
    def problem(self) -> str | None:
        return self._journal.problem

    @property
    def backlog(self) -> int:
        return self._journal.waiting

    def time_commits(self, timed: Callable[[float], None]) -> None:
        self._journal.timed = timed

    @property
    def stored(self) -> int:  # type: ignore[override]
        return self._journal.size

    def on_relief(self, call: Callable[[], None]) -> None:
        self._journal.relief.append(call)

    # --- writing -------------------------------------------------------------------------------

    def append(
        self, changes: Sequence[Change], *, fence: Fence | None, then: OnCommit | None = None
    ) -> None:
        error = self._accept(changes, fence)
        if error:
            changes = ()
        rows: list[Row] = []
        for change in changes:
            rows += self._of_task(change) or self._of_context(change) or self._of_push(change)
        self._journal.write(*rows, then=partial(self._committed, changes, error, then))

    def _committed(
        self, changes: Sequence[Change], error: StoreError | None, then: OnCommit | None
    ) -> None:
        self._commit(changes)
        if then:
            then(error)

    def _of_task(self, change: Change) -> Sequence[Row]:
        """The rows of a change to a task; empty if the task was removed."""
        match change:
            case EventBatch() if row := self._rows.get(change.task_id):
                return [(_BATCH, (row, change.number, change.time, change.events, change.last))]
            case TaskCreated():
                return [(_TASK, self._task(change))]
            case TaskBegun():
                return [("UPDATE task SET begun = 1 WHERE id = ?", (change.task_id,))]
            case MessageAccepted(key) if row := self._rows.get(change.task_id):
                return [(_MESSAGE, (key.agent, key.name, key.digest, row))]
            case TaskRemoved() if row := self._rows.pop(change.task_id, None):
                return [("DELETE FROM task WHERE place = ?", (row,))]
        return ()

    def _of_context(self, change: Change) -> Sequence[Row]:
        match change:
            case OutputRead():
                return [(_POSITION, (change.position, change.session_id))]
            case InputRecorded():
                return [(_INPUT, (self._journal.number(), change.session_id, change.given))]
            case ContextSaved(key):
                return [(_CONTEXT, (key.agent, key.name, change.start))]
            case ContextRemoved(key):
                return [("DELETE FROM context WHERE agent = ? AND id = ?", (key.agent, key.name))]
            case SessionOpened(context=key):
                return [(_SESSION, (change.id, key.agent, key.name, change.start))]
            case SessionClosed():
                return [("DELETE FROM session WHERE id = ?", (change.session_id,))]
        return ()

    def _of_push(self, change: Change) -> Sequence[Row]:
        match change:
            case PushSaved(config) if row := self._rows.get(config.task_id):
                return [(_PUSH, (row, *astuple(config)[1:]))]
            case PushAdvanced(task_id, config_id, cursor) if row := self._rows.get(task_id):
                position = (cursor, change.attempts, change.due)
                return [(_ADVANCED, (*position, row, config_id, cursor))]
            case PushFailed(task_id, config_id, number) if row := self._rows.get(task_id):
                facts = (number, change.attempts, change.error, change.time)
                return [(_FAILED, (*facts, row, config_id))]
            case PushRemoved(task_id, config_id) if row := self._rows.get(task_id):
                return [("DELETE FROM push WHERE task = ? AND id = ?", (row, config_id))]
        return ()

    def _task(self, task: TaskCreated) -> tuple[object, ...]:
        row = self._rows.setdefault(task.task_id, self._journal.number())
        identity = (row, task.task_id, task.context.agent, task.context.id, task.created)
        return (*identity, task.thoughts, task.prompt, task.context.owner, task.attended)

    # --- reading -------------------------------------------------------------------------------

    async def prompt(self, task_id: str) -> bytes:
        found = await self._read(_PROMPT, self._rows[task_id])
        prompt: bytes = found[0][0]
        return prompt

    async def read(self, task_id: str, after: int = 0) -> Sequence[EventBatch]:
        row = self._rows[task_id]
        with sqlite_errors():
            found = await self._journal.read_some(PIECE, _EVENTS, row, after)
        return [EventBatch(task_id, *values) for values in found]

    async def contexts(
        self, agent: str, context: ContextKey | None = None
    ) -> Sequence[ContextSaved]:
        rows = await self._read("SELECT id, start FROM context WHERE agent = ?", agent)
        saved = [ContextSaved(_context(agent, name), start) for name, start in rows]
        return [one for one in saved if context in (None, one.context)]

    async def sessions(self, agent: str) -> Sequence[OpenSession]:
        found = []
        for session_id, name, start, position in await self._read(_SESSIONS, agent):
            given = [one for (one,) in await self._read(_GIVEN, session_id)]
            found.append(OpenSession(session_id, _context(agent, name), start, position, given))
        return found

    async def push_failures(self, task_id: str) -> Sequence[PushFailed]:
        found = await self._read(_FAILURES, self._rows.get(task_id))
        return [PushFailed(task_id, *values) for values in found]

    async def reports(self, task_ids: Sequence[str]) -> Sequence[tuple[str, bytes]]:
        rows = {row: one for one in task_ids if (row := self._rows.get(one))}
        marks = ", ".join("?" * len(rows))
        found = await self._read(_REPORTS.format(marks), *rows, *REPORTS)
        return [(rows[row], events) for row, events in found]

    async def _read(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with sqlite_errors():
            return await self._journal.read(query, *values)

    # --- the index at the start ----------------------------------------------------------------

    async def _load(self) -> None:
        for query in _CHECKS:
            await self._journal.read(query)
        for known in (self._rows, self._tasks, self._finished, self._messages, self._push):
            known.clear()
        for query in _NEWEST:
            ((newest,),) = await self._journal.read(query)
            self._journal.newest = max(self._journal.newest, newest or 0)
        ends = {row: end for row, *end in await self._journal.read(_ENDS)}
        ended: list[str] = []
        for row, task_id, agent, owner, context_id, *facts, size in await self._journal.read(
            _TASKS
        ):
            created, thoughts, attended, begun = facts
            key = ContextKey(agent, owner, context_id)
            task = IndexedTask(
                key, created, bool(thoughts), bool(attended), changed=created, size=size
            )
            task.begun = bool(begun)
            self._rows[task_id], self._tasks[task_id] = row, task
            if row in ends:
                task.batches, task.last, written, *end = ends[row]
                task.size += written
                await self._derive(task_id, task, *end)
            if task.state.terminal:
                ended.append(task_id)
        for task_id in sorted(ended, key=lambda one: self._tasks[one].changed):
            self._finished[task_id] = self._tasks[task_id].head(task_id)
        for agent, name, digest, task_id in await self._journal.read(_TAKEN):
            self._know((agent, name, digest), task_id)
        for values in await self._journal.read(_PUSHES):
            config = PushConfig(*values)
            self._push.setdefault(config.task_id, {})[config.id] = config

    async def _derive(self, task_id: str, task: IndexedTask, time: int, kind: str | None) -> None:
        """Set the state after the last batch. `kind`: the name of the type of the last event."""
        ending = ENDINGS.get(EVENTS.get(kind or "", object))
        if ending:
            task.state, task.changed = ending[0], time
            return
        replayed = blank_task(task.head(task_id))
        try:
            async for _ in replay(self, replayed):
                pass
        except ValueError:
            log.exception("the state of a task cannot be derived", extra={"task": task_id})
        task.state, task.changed = replayed.state, micros(replayed.status_time)


@contextmanager
def sqlite_errors() -> Iterator[None]:
    """Raise the errors of the contract for those of SQLite."""
    try:
        yield
    except (sqlite3.OperationalError, ConfigurationError) as error:  # such as a lock
        raise Unavailable(CANNOT_READ) from error
    except sqlite3.Error as error:
        raise DataLoss(DAMAGED) from error


def _context(agent: str, name: str) -> ContextKey:
    owner, _, context_id = name.rpartition("/")
    return ContextKey(agent, owner or LOCAL, context_id)


_BATCH = "INSERT OR IGNORE INTO event VALUES (?, ?, ?, ?, ?)"
_POSITION = "UPDATE session SET position = ? WHERE id = ?"
_INPUT = "INSERT OR IGNORE INTO told VALUES (?, ?, ?)"
_TASK = "INSERT OR IGNORE INTO task VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?)"
_MESSAGE = "INSERT OR REPLACE INTO taken VALUES (?, ?, ?, ?)"
_CONTEXT = "INSERT OR REPLACE INTO context VALUES (?, ?, ?)"
_SESSION = "INSERT OR IGNORE INTO session VALUES (?, ?, ?, ?, 0)"
_PUSH = """
    INSERT INTO push VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (task, id) DO UPDATE SET url = excluded.url, version = excluded.version,
        token = excluded.token, scheme = excluded.scheme, credentials = excluded.credentials,
        extended = excluded.extended, due = excluded.due"""
_ADVANCED = """
    UPDATE push SET cursor = ?, attempts = ?, due = ? WHERE task = ? AND id = ? AND cursor <= ?"""
_FAILED = """
    INSERT OR IGNORE INTO push_failure
    SELECT task, id, ?, ?, ?, ? FROM push WHERE task = ? AND id = ?"""
_PROMPT = "SELECT prompt FROM task WHERE place = ?"
_EVENTS = """
    SELECT batch, time, events, last FROM event WHERE task = ? AND batch > ? ORDER BY batch"""
_REPORTS = """
    SELECT task, events FROM event WHERE task IN ({}) AND (instr(events, ?) OR instr(events, ?))
    ORDER BY task, batch"""
_TASKS = """
    SELECT place, id, agent, owner, context, created, thoughts, attended, begun, length(prompt)
    FROM task ORDER BY place"""
# The start does not read these tables, or reads only an index of them. A damaged page must show at
# the start, because the database can be replaced only then.
_CHECKS = (
    "SELECT count(*) FROM context NOT INDEXED",
    "SELECT count(*) FROM session NOT INDEXED",
    "SELECT count(*) FROM taken NOT INDEXED",
    "SELECT count(*) FROM told NOT INDEXED",
)
_NEWEST = ("SELECT max(place) FROM task", "SELECT max(number) FROM told")
_ENDS = """
    SELECT place, batch, last, size, time,
        CASE WHEN json_valid(CAST(events AS TEXT))
            THEN json_extract(CAST(events AS TEXT), '$[#-1][0]') END
    FROM event JOIN (
        SELECT task AS place, max(batch) AS newest, sum(length(events)) AS size
        FROM event GROUP BY task
    ) ON task = place AND batch = newest"""
_SESSIONS = "SELECT id, context, start, position FROM session WHERE agent = ?"
_GIVEN = "SELECT told FROM told WHERE session = ? ORDER BY number"
_PUSHES = """
    SELECT task.id, push.id, url, version, token, scheme, credentials, extended,
        cursor, attempts, due
    FROM push JOIN task ON place = task ORDER BY push.rowid"""
_FAILURES = """
    SELECT config, number, attempts, error, time FROM push_failure WHERE task = ?
    ORDER BY config, number"""
_TAKEN = """
    SELECT taken.agent, message, digest, id FROM taken JOIN task ON place = task ORDER BY place"""
