"""The tasks of an agent in a store, and events for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from bridge.runtime.recorder import Recorder
from bridge.store.changes import OutputRead
from bridge.store.handle import TaskHandle, TaskHandles
from bridge.store.journal import Journal
from bridge.store.postgres.connect import parse
from bridge.store.postgres.store import PostgresStore
from bridge.store.protocol import TaskQuery
from bridge.store.sqlite.schema import MIGRATIONS
from bridge.store.sqlite.store import SqliteStore
from bridge.task.events import Event
from bridge.task.message import Message, Role, TextPart
from bridge.task.state import Task
from bridge.telemetry.audit import NO_AUDIT

WITHIN = 60.0


NOW = datetime.now(UTC)


@asynccontextmanager
async def journal(path: Path) -> AsyncIterator[Journal]:
    """For statements that no store makes."""
    opened = Journal(path / "state" / "tasks.db", MIGRATIONS)
    await opened.open()
    try:
        yield opened
    finally:
        async with asyncio.timeout(WITHIN):
            await opened.close()


@asynccontextmanager
async def sqlite(path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(path / "state" / "tasks.db")
    await opened.open()
    try:
        yield opened
    finally:
        async with asyncio.timeout(WITHIN):
            await opened.close()


@asynccontextmanager
async def store(path: Path, agent: str = "a") -> AsyncIterator[TaskHandles]:
    """The tasks of an agent, with a store on disk."""
    async with sqlite(path) as opened:
        yield TaskHandles(agent, opened)


@asynccontextmanager
async def stored_on_postgres(url: str, agent: str = "a") -> AsyncIterator[TaskHandles]:
    """The same, with a store on PostgreSQL."""
    opened = PostgresStore(parse(url), "0123456789abcdef")
    await opened.open()
    try:
        yield TaskHandles(agent, opened)
    finally:
        async with asyncio.timeout(WITHIN):
            await opened.close()


def recorder(of: TaskHandles, lost: Callable[[TaskHandle], None] = lambda handle: None) -> Recorder:
    def nothing(*told: object) -> None: ...

    return Recorder(of, NO_AUDIT, on_status=nothing, on_end=nothing, on_lost=lost)


def begin(to: TaskHandles, name: str, context: str = "c", created: datetime = NOW) -> TaskHandle:
    task = Task(name, context, created)
    prompt = Message("m", Role.USER, (TextPart(name),), name, context)
    task.history.append(prompt)
    handle = TaskHandle(task)
    recorder(to).begin(handle, prompt)
    return handle


def happen(
    to: TaskHandles, handle: TaskHandle, *events: Event, read: OutputRead | None = None
) -> None:
    recorder(to).record(handle, events, read=read)


async def everything(of: TaskHandles) -> list[TaskHandle]:
    """All tasks of the agent, by their ids."""
    await of.restore()
    page = await of.store.list(TaskQuery(agents=(of.agent,)))
    found = [await of.find(head.task_id) for head in page.heads]
    return sorted(filter(None, found), key=lambda one: one.task.id)
