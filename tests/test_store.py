"""The tasks of an agent with a journal: what a second store on the same files gives back, and what
has to go to make room."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest

from bridge.a2a import CODECS
from bridge.adapter import SessionOptions, SessionStart
from bridge.adapter.input import AdapterInput
from bridge.store.database import open_database
from bridge.store.journal import Journal
from bridge.store.tasks import MIGRATIONS, Record, Retention, Stored, StoredSession, TaskStore
from bridge.task.events import Answer, Done, Event, Failed, Question, Text
from bridge.task.message import Message, Role, TextPart
from bridge.task.state import Task
from tests.test_task import some_event

WITHIN = 15.0
NOW = datetime.now(UTC)
KEEP_ALL = Retention()


@asynccontextmanager
async def journal(path: Path) -> AsyncIterator[Journal]:
    opened = Journal(path / "state" / "tasks.db", MIGRATIONS)
    await opened.open()
    try:
        yield opened
    finally:
        async with asyncio.timeout(WITHIN):
            await opened.close()


@asynccontextmanager
async def store(
    path: Path, agent: str = "a", retention: Retention = KEEP_ALL
) -> AsyncIterator[tuple[TaskStore, Stored]]:
    """A store, and what it has found."""
    async with journal(path) as opened:
        made = TaskStore(retention, agent, opened)
        yield made, await made.load()


def message(text: str = "go", name: str = "m") -> Message:
    return Message(name, Role.USER, (TextPart(text),))


def begin(to: TaskStore, name: str, context: str = "c", created: datetime = NOW) -> Record:
    task = Task(name, context, created)
    prompt = Message("m", Role.USER, (TextPart(name),), name, context)
    task.history.append(prompt)
    record = Record(task)
    to.add(record, prompt)
    return record


def happen(
    to: TaskStore,
    record: Record,
    *events: Event,
    now: datetime = NOW,
    session: tuple[str, int] | None = None,
) -> None:
    """As a context has it."""
    number = record.log.add(u for event in events for u in record.task.apply(event, now))
    if record.task.state.terminal:
        record.log.close()
    to.write(record, events, now, session, lambda: record.log.publish(number))
    if record.task.state.terminal:
        to.finished(record)


async def seen(record: Record) -> list[object]:
    whole = await record.whole()
    task = [orjson.dumps(codec.encode_task(whole, None)) for codec in CODECS]
    log = record.log
    return [*task, log.last, log.visible, log.closed, record.begun, record.place]


async def ids(path: Path, agent: str = "a") -> list[str]:
    async with store(path, agent) as (found, _):
        return [record.task.id for record in found.all()]


# --- what is given back ------------------------------------------------------------------------


async def test_tasks_are_given_back_as_they_were_in_their_order(tmp_path: Path) -> None:
    chance, before = random.Random(5), {}
    async with store(tmp_path) as (first, _):
        records = [begin(first, f"t{number}", f"c{number % 3}") for number in range(20)]
        for number in range(400):
            record = chance.choice(records)
            if not record.task.state.terminal:
                happen(first, record, some_event(chance, record.task, number))
    for record in records:
        record.task.reply = None  # a task that is given back is shown as one
        before[record.task.id] = await seen(record)
    async with store(tmp_path) as (second, stored):
        assert {record.task.id: await seen(record) for record in second.all()} == before
        assert [record.task.id for record in second.all()] == list(before)
        assert all(record.shown for record in second.all())
        unfinished = [r.task.id for r in records if not r.task.state.terminal]
        assert [record.task.id for record in second.unfinished()] == unfinished
        assert {name: prompt.text for name, prompt in stored.prompts.items()} == {
            name: name for name in unfinished
        }


async def test_updates_are_seen_when_they_are_durable(tmp_path: Path) -> None:
    async with store(tmp_path) as (first, _):
        record = begin(first, "t")
        assert (record.log.visible, record.log.last) == (-1, 0)
        happen(first, record, Text("a"), Done())
        assert (record.log.visible, record.log.closed) == (-1, False)
        async with asyncio.timeout(WITHIN):
            await record.log.reached(0)
            await record.log.reached(record.log.last)
        assert record.log.closed


async def test_without_a_journal_all_is_seen_at_once_and_nothing_is_found() -> None:
    memory = TaskStore()
    record = begin(memory, "t")
    assert record.log.visible == 0
    happen(memory, record, Text("a"), Done())
    assert record.log.closed
    assert (await memory.load(), memory.problem, memory.durable) == (Stored(), None, False)


async def test_new_tasks_come_after_those_of_the_last_run(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        async with store(tmp_path) as (found, _):
            happen(found, begin(found, name), Done())
    assert await ids(tmp_path) == ["b", "a", "c"]


async def test_agents_have_tasks_of_their_own(tmp_path: Path) -> None:
    async with journal(tmp_path) as opened:
        stores = [TaskStore(Retention(), name, opened) for name in ("a", "b")]
        for number, one in enumerate(stores):
            record = begin(one, f"t{number}")
            one.take("message-id", b"d", record)
            one.put_context("c", SessionStart(f"/{number}", "s"))
            one.put_session(f"s{number}", "c", SessionStart("/", "s"))
    for number, agent in enumerate("ab"):
        async with store(tmp_path, agent) as (found, stored):
            assert [record.task.id for record in found.all()] == [f"t{number}"]
            assert stored.starts["c"].cwd == f"/{number}"
            assert [session.id for session in stored.sessions] == [f"s{number}"]
            ((_, _, record),) = stored.taken
            assert record is found.get(f"t{number}")


async def test_conversations_are_given_back_as_they_are_now(tmp_path: Path) -> None:
    start = SessionStart("/w", "s1", options=SessionOptions("m", "plan", 1.5))
    later = SessionStart("/w", "s2", True, start.options)
    async with store(tmp_path) as (first, _):
        for name in ("one", "two", "three"):
            first.put_context(name, start)
        first.put_context("two", later)
        first.remove_context("three")
    async with store(tmp_path) as (_, stored):
        assert stored.starts == {"one": start, "two": later}


async def test_a_session_is_given_back_with_all_that_it_was_told(tmp_path: Path) -> None:
    start = SessionStart("/w", "s", folder="/f")
    question = Question("q", "text", "?")
    told = (
        AdapterInput("prompt", 0, message("go")),
        AdapterInput(
            "answer", 120, question=question, answer=Answer("q", "yes", message=message("yes"))
        ),
        AdapterInput("steer", 120, message("this, too")),
    )
    async with store(tmp_path) as (first, _):
        first.put_session("id", "c", start)
        first.put_session("gone", "c", start)
        record, calls = begin(first, "t"), list[str]()
        for one in told:
            first.tell("id", one, record, lambda: calls.append("told"))
            first.tell("gone", one, record, lambda: None)
            assert record.begun
        happen(first, record, Text("a"), session=("id", 333))
        first.remove_session("gone", then=lambda: calls.append("removed"))
        assert calls == []  # nothing before it is durable
    assert calls == ["told", "told", "told", "removed"]
    async with store(tmp_path) as (second, stored):
        assert stored.sessions == [StoredSession("id", "c", start, 333, told)]
        found = second.get("t")
        assert found and found.begun


async def test_a_task_that_was_told_of_no_lasting_session_has_begun(tmp_path: Path) -> None:
    async with store(tmp_path) as (first, _):
        first.tell(None, AdapterInput("prompt", 0, message()), begin(first, "t"), lambda: None)
        begin(first, "u")
    async with store(tmp_path) as (second, stored):
        assert [record.begun for record in second.all()] == [True, False]
        assert stored.sessions == []


async def test_messages_that_were_taken_are_given_back(tmp_path: Path) -> None:
    async with store(tmp_path) as (first, _):
        records = [begin(first, name) for name in ("t", "u")]
        first.take("one", b"1", records[0])
        first.take("two", b"2", records[1])
        first.take("three", b"3", records[0])
        first.take("two", b"4", records[0])  # another content
        first.take("one", b"1", records[0])
        first.remove("u")
    async with store(tmp_path) as (second, stored):
        t = second.get("t")
        assert sorted(stored.taken, key=lambda one: one[0]) == [
            ("one", b"1", t),
            ("three", b"3", t),
            ("two", b"4", t),
        ]


async def test_messages_that_an_earlier_version_has_taken_are_known(tmp_path: Path) -> None:
    path = tmp_path / "state" / "tasks.db"
    database = open_database(path, MIGRATIONS[:2])
    database.execute("INSERT INTO task VALUES (7, 't', 'a', 'c', 0, 0, ?, 0, 'local')", (b"{}",))
    database.execute("INSERT INTO taken VALUES ('a', 'one', ?, 7)", (b"1" * 32,))
    database.close()
    with contextlib.closing(open_database(path, MIGRATIONS)) as migrated:
        rows = migrated.execute("SELECT * FROM taken").fetchall()
        assert rows == [("a", "one", b"1" * 32, 7)]
        migrated.execute("PRAGMA foreign_keys = ON")
        migrated.execute("DELETE FROM task")
        assert migrated.execute("SELECT * FROM taken").fetchall() == []


async def test_what_cannot_be_read_is_one_task_and_not_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with store(tmp_path) as (first, _):
        for name in ("t", "u"):
            happen(first, begin(first, name), Text("a"))
    async with journal(tmp_path) as opened:
        odd = b'[["OfALaterVersion",{}]]'
        opened.write(("INSERT INTO event VALUES (1, 2, 0, ?, 9)", (odd,)))
    async with store(tmp_path) as (second, _):
        assert [record.task.id for record in second.all()] == ["t", "u"]
        assert [record.log.last for record in second.all()] == [2, 2]
    assert "a task cannot be read" in caplog.text


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE task SET prompt = '{}' WHERE place = 1",
        "UPDATE context SET start = '{}'",
        "UPDATE session SET start = '{}'",
        "UPDATE told SET told = '{}'",
    ],
)
async def test_whatever_cannot_be_read_the_rest_is(tmp_path: Path, statement: str) -> None:
    async with store(tmp_path) as (first, _):
        for name in ("t", "u"):
            record = begin(first, name)
            first.put_context(name, SessionStart("/", "s"))
            first.put_session(name, name, SessionStart("/", "s"))
            first.tell(name, AdapterInput("prompt", 0, message()), record, lambda: None)
    async with journal(tmp_path) as opened:
        opened.write((statement, ()))
    assert "u" in await ids(tmp_path)


# --- what has to go ----------------------------------------------------------------------------


async def rows(path: Path) -> dict[str, int]:
    async with journal(path) as opened:
        counts = {}
        for table in ("task", "event", "taken"):
            ((count,),) = await opened.read(f"SELECT count(*) FROM {table}")
            counts[table] = count
        return counts


async def test_a_removed_task_leaves_nothing(tmp_path: Path) -> None:
    async with store(tmp_path) as (first, _):
        for name in ("t", "u"):
            record = begin(first, name)
            first.take(f"{name}-message", b"d", record)
            happen(first, record, Text("a"), Done())
        first.remove("t")
        first.remove("nobody")
        assert first.get("t") is None
    assert await rows(tmp_path) == {"task": 1, "event": 1, "taken": 1}
    assert await ids(tmp_path) == ["u"]


async def test_so_many_finished_tasks_are_kept(tmp_path: Path) -> None:
    async with store(tmp_path, retention=Retention(tasks=3)) as (first, _):
        begin(first, "open")
        for number in range(5):
            happen(first, begin(first, f"t{number}"), Done())
        assert [r.task.id for r in first.all()] == ["open", "t2", "t3", "t4"]
    async with store(tmp_path, retention=Retention(tasks=3)) as (second, _):
        record = second.get("open")
        assert record
        happen(second, record, Failed("x"))
        assert [r.task.id for r in second.all()] == ["open", "t3", "t4"]
    assert await ids(tmp_path) == ["open", "t3", "t4"]


async def test_the_order_of_going_is_that_of_ending_after_a_restart_too(tmp_path: Path) -> None:
    async with store(tmp_path) as (first, _):
        records = [begin(first, f"t{number}") for number in range(4)]
        for place, record in enumerate((records[2], records[0], records[3], records[1])):
            happen(first, record, Done(), now=NOW + timedelta(seconds=place))
    async with store(tmp_path, retention=Retention(tasks=3)) as (second, _):
        happen(second, begin(second, "new"), Done(), now=NOW + timedelta(seconds=9))
        assert [r.task.id for r in second.all()] == ["t1", "t3", "new"]


async def test_finished_tasks_are_kept_for_so_many_days(tmp_path: Path) -> None:
    retention = Retention(days=2)
    async with store(tmp_path, retention=retention) as (first, _):
        old = begin(first, "open", created=NOW - timedelta(days=9))
        for days in (5, 3, 1):
            happen(first, begin(first, f"t{days}"), Done(), now=NOW - timedelta(days=days))
        happen(first, begin(first, "new"), Done())
        assert [r.task.id for r in first.all()] == ["open", "t1", "new"]
        happen(first, old, Text("still here"))
    assert await ids(tmp_path) == ["open", "t1", "new"]


async def test_the_oldest_go_where_there_is_too_much(tmp_path: Path) -> None:
    retention = Retention(bytes=2_000_000)
    async with journal(tmp_path) as opened:
        first = TaskStore(retention, "a", opened)
        begin(first, "open")
        for number in range(60):
            happen(first, begin(first, f"t{number}"), Text("x" * 100_000), Done())
            await opened.flushed()
        kept = [record.task.id for record in first.all()]
        assert kept[0] == "open" and kept[-1] == "t59"
        assert 8 <= len(kept) <= 25
        assert kept[1:] == [f"t{number}" for number in range(60 - len(kept) + 1, 60)]
        assert opened.size <= 2_500_000


async def test_a_store_reads_what_a_journal_has_not_yet_closed(tmp_path: Path) -> None:
    """A second store on the same journal, as several agents have it."""
    async with journal(tmp_path) as opened:
        first = TaskStore(Retention(), "a", opened)
        happen(first, begin(first, "t"), Done())
        await opened.flushed()
        second = TaskStore(Retention(), "a", opened)
        await second.load()
        assert [record.task.id for record in second.all()] == ["t"]
        with contextlib.suppress(KeyError):
            assert second.get("u") is None
