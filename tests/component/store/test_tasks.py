"""The tasks of an agent in memory and on disk: when updates become visible, and the tasks that a
later server finds."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import orjson
import pytest

from bridge.a2a.codecs import CODECS
from bridge.adapter import SessionStart
from bridge.adapter.input import AdapterInput
from bridge.errors import DataLoss
from bridge.runtime.lease import StoredSession
from bridge.store.changes import (
    ContextKey,
    ContextSaved,
    Fence,
    MessageAccepted,
    MessageKey,
    OutputRead,
    SessionOpened,
    TaskRemoved,
)
from bridge.store.handle import TaskHandle, TaskHandles
from bridge.store.memory import MemoryStore
from bridge.store.protocol import KnownMessage, OpenSession
from bridge.store.serialization import dump, load
from bridge.store.sqlite.database import open_database
from bridge.store.sqlite.schema import MIGRATIONS
from bridge.task.events import Answer, Done, Failed, Question, Text
from bridge.task.message import Message, Role, TextPart
from tests.support.samples import some_event
from tests.support.stored_tasks import (
    WITHIN,
    begin,
    everything,
    happen,
    journal,
    recorder,
    sqlite,
    store,
    stored_on_postgres,
)


def message(text: str = "go", name: str = "m") -> Message:
    return Message(name, Role.USER, (TextPart(text),))


async def seen(handle: TaskHandle) -> list[object]:
    whole = await handle.whole()
    task = [orjson.dumps(codec.encode_task(whole, None)) for codec in CODECS]
    log = handle.log
    return [*task, log.last, log.visible, log.closed, handle.begun, handle.batches, handle.size]


OpenedTasks = Callable[[], AbstractAsyncContextManager[TaskHandles]]


@pytest.fixture(params=["sqlite", "postgresql"])
def opened_tasks(request: pytest.FixtureRequest, tmp_path: Path) -> OpenedTasks:
    """Opens a store on disk, each time the same one."""
    if request.param == "sqlite":
        return partial(store, tmp_path)
    return partial(stored_on_postgres, request.getfixturevalue("postgres_url"))


async def ids(path: Path, agent: str = "a") -> list[str]:
    async with store(path, agent) as found:
        return [handle.task.id for handle in await everything(found)]


# --- what is given back ------------------------------------------------------------------------


async def test_tasks_are_restored_unchanged(opened_tasks: OpenedTasks) -> None:
    chance, before = random.Random(5), {}
    async with opened_tasks() as first:
        handles = [begin(first, f"t{number:02}", f"c{number % 3}") for number in range(20)]
        for number in range(400):
            handle = chance.choice(handles)
            if not handle.task.state.terminal:
                happen(first, handle, some_event(chance, handle.task, number))
    for handle in handles:
        handle.task.reply = None  # a task that is given back is shown as one
        before[handle.task.id] = await seen(handle)
    async with opened_tasks() as second:
        unfinished = [r.task.id for r in handles if not r.task.state.terminal]
        restored = await second.restore()
        assert [handle.task.id for handle, _ in restored] == unfinished
        assert [prompt.text for _, prompt in restored] == unfinished
        assert [handle.task.id for handle in second.unfinished()] == unfinished
    async with opened_tasks() as second:
        found = await everything(second)
        assert {handle.task.id: await seen(handle) for handle in found} == before
        assert all(handle.shown for handle in found)


async def test_updates_are_seen_when_they_are_durable(opened_tasks: OpenedTasks) -> None:
    async with opened_tasks() as first:
        handle = begin(first, "t")
        assert (handle.log.visible, handle.log.last) == (-1, 0)
        happen(first, handle, Text("a"), Done())
        assert (handle.log.visible, handle.log.closed) == (-1, False)
        async with asyncio.timeout(WITHIN):
            await handle.log.reached(0)
            await handle.log.reached(handle.log.last)
        assert handle.log.closed


async def test_in_memory_all_is_seen_at_once() -> None:
    memory = TaskHandles("a", MemoryStore())
    handle = begin(memory, "t")
    assert handle.log.visible == 0
    happen(memory, handle, Text("a"), Done())
    assert handle.log.closed


async def test_new_tasks_come_after_those_of_the_last_run(opened_tasks: OpenedTasks) -> None:
    for name in ("b", "a", "c"):
        async with opened_tasks() as found:
            begin(found, name)
    async with opened_tasks() as found:
        assert [handle.task.id for handle, _ in await found.restore()] == ["b", "a", "c"]


async def test_agents_have_tasks_of_their_own(tmp_path: Path) -> None:
    async with sqlite(tmp_path) as opened:
        for number, agent in enumerate("ab"):
            begin(TaskHandles(agent, opened), f"t{number}")
    for number, agent in enumerate("ab"):
        async with store(tmp_path, agent) as found:
            assert [handle.task.id for handle in await everything(found)] == [f"t{number}"]
            assert await found.find(f"t{1 - number}") is None


async def test_a_context_of_a_principal_keeps_its_owner(tmp_path: Path) -> None:
    owners = ("local", "bob", "https://issuer/x")
    async with sqlite(tmp_path) as opened:
        for owner in owners:
            opened.append([ContextSaved(ContextKey("a", owner, "c"), b"{}")], fence=None)
    async with sqlite(tmp_path) as opened:
        assert {one.context.owner for one in await opened.contexts("a")} == set(owners)


async def test_an_adapter_gets_its_input_after_the_commit(opened_tasks: OpenedTasks) -> None:
    question = Question("q", "text", "?")
    answer = Answer("q", "yes", message=message("yes"))
    given = [
        AdapterInput("prompt", 0, message("go")),
        AdapterInput("answer", 120, question=question, answer=answer),
        AdapterInput("steer", 120, message("this, too")),
    ]
    async with opened_tasks() as first:
        opened = SessionOpened("id", ContextKey("a", "local", "c"), b"{}")
        first.store.append([opened], fence=None)
        handle, calls = begin(first, "t"), list[str]()
        for one in given:
            then = partial(calls.append, one.kind)
            recorder(first).record_input(handle, one, session_id="id", then=then)
            assert handle.begun
        happen(first, handle, Text("a"), read=OutputRead("id", 333))
        recorder(first).after_commit(lambda: calls.append("after"))
        assert calls == []
    assert calls == ["prompt", "answer", "steer", "after"]
    async with opened_tasks() as second:
        (session,) = await second.store.sessions("a")
        assert (session.id, session.position) == ("id", 333)
        assert [load(AdapterInput, one) for one in session.given] == given
        (handle,) = await everything(second)
        assert handle.begun


async def test_a_rejected_append_loses_the_task_and_gives_no_input(
    opened_tasks: OpenedTasks,
) -> None:
    async with opened_tasks() as tasks:
        handle, lost, given = begin(tasks, "t"), list[TaskHandle](), list[str]()
        one = recorder(tasks, lost.append)
        one.record(handle, [Text("a")])
        handle.fence = Fence(ContextKey("a", "local", "c"), 1)  # of no claim
        one.record(handle, [Text("b")])
        prompt = AdapterInput("prompt", 0, message())
        one.record_input(handle, prompt, session_id=None, then=lambda: given.append("x"))
        await asyncio.wait_for(tasks.store.flush(), WITHIN)
        assert (lost, given, handle.lost) == ([handle], [], True)
        assert handle.log.closed
        one.record(handle, [Text("c")])  # a lost task takes no events
        head = await tasks.store.head("t")
        assert head and (head.batches, head.last) == (1, handle.log.last)


async def test_a_task_whose_session_ends_with_the_server_has_begun(
    opened_tasks: OpenedTasks,
) -> None:
    async with opened_tasks() as first:
        given = AdapterInput("prompt", 0, message())
        recorder(first).record_input(begin(first, "t"), given, session_id=None, then=lambda: None)
        begin(first, "u")
    async with opened_tasks() as second:
        assert [handle.begun for handle in await everything(second)] == [True, False]
        assert await second.store.sessions("a") == []


async def test_messages_that_an_earlier_version_has_taken_are_known(tmp_path: Path) -> None:
    path = tmp_path / "state" / "tasks.db"
    database = open_database(path, MIGRATIONS[:2])
    database.execute("INSERT INTO task VALUES (7, 't', 'a', 'c', 0, 0, ?, 0, 'local')", (b"{}",))
    database.execute("INSERT INTO taken VALUES ('a', 'one', ?, 7)", (b"1" * 32,))
    database.close()
    async with sqlite(tmp_path) as found:
        known = await found.message(MessageKey("a", "local", "one", b"1" * 32))
        assert known == KnownMessage("t")
    with contextlib.closing(open_database(path, MIGRATIONS)) as migrated:
        migrated.execute("PRAGMA foreign_keys = ON")
        migrated.execute("DELETE FROM task")
        assert migrated.execute("SELECT * FROM taken").fetchall() == []


async def test_an_unreadable_task_does_not_affect_other_tasks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with store(tmp_path) as first:
        for name in ("t", "u"):
            happen(first, begin(first, name), Text("a"))
    async with journal(tmp_path) as opened:
        odd = b'[["OfALaterVersion",{}]]'
        opened.write(("INSERT INTO event VALUES (1, 2, 0, ?, 9)", (odd,)))
    async with store(tmp_path) as second:
        found = await everything(second)
        assert [handle.task.id for handle in found] == ["t", "u"]
        assert [handle.log.last for handle in found] == [2, 2]
        happen(second, found[0], Failed("x"))  # its next batch is written
    async with store(tmp_path) as third:
        assert [handle.task.id for handle, _ in await third.restore()] == ["u"]
    assert "a task cannot be read" in caplog.text


async def test_a_task_with_a_damaged_prompt_stays_and_the_others_are_restored(
    tmp_path: Path,
) -> None:
    async with store(tmp_path) as first:
        for name in ("t", "u"):
            begin(first, name)
    async with journal(tmp_path) as opened:
        opened.write(("UPDATE task SET prompt = '{}' WHERE id = 't'", ()))
    async with store(tmp_path) as second:
        assert [handle.task.id for handle, _ in await second.restore()] == ["u"]
        handle = await second.find("t")
        assert handle
        with pytest.raises(DataLoss):
            await handle.whole()


@pytest.mark.parametrize("damaged", ["start", "given"])
def test_a_damaged_session_is_none(damaged: str) -> None:
    start, given = dump(SessionStart("/", "s")), dump(AdapterInput("prompt", 0, message()))
    key = ContextKey("a", "local", "c")
    whole = OpenSession("s", key, start, 7, [given])
    read = StoredSession.read(whole)
    assert read and (read.start.cwd, read.position, len(read.given)) == ("/", 7, 1)
    broken = replace(whole, start=b"{}") if damaged == "start" else replace(whole, given=[b"{}"])
    assert StoredSession.read(broken) is None


async def test_a_removed_task_leaves_nothing(tmp_path: Path) -> None:
    async with store(tmp_path) as first:
        for name in ("t", "u"):
            handle = begin(first, name)
            key = MessageKey("a", "local", name, b"d")
            first.store.append([MessageAccepted(key, name)], fence=None)
            happen(first, handle, Text("a"), Done())
        for name in ("t", "unknown"):
            first.store.append([TaskRemoved(name)], fence=None)
            first.remove(name)
        assert await first.find("t") is None
    async with journal(tmp_path) as opened:
        for table in ("task", "event", "taken"):
            assert await opened.read(f"SELECT count(*) FROM {table}") == [(1,)]
    assert await ids(tmp_path) == ["u"]
