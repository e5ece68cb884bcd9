"""A database that revision a630f4a has written (tests/databases) is read as that revision read it.
Afterwards it has the same schema as a new one."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from pathlib import Path

import psutil
import pytest

from bridge.adapter import SessionOptions, SessionStart
from bridge.adapter.input import AdapterInput
from bridge.store.changes import MessageKey, PushConfig, PushSaved
from bridge.store.handle import TaskHandles
from bridge.store.protocol import KnownMessage, Retention, TaskQuery
from bridge.store.serialization import load, micros, moment
from bridge.store.sqlite.database import open_database
from bridge.store.sqlite.schema import MIGRATIONS
from bridge.store.sqlite.store import SqliteStore
from bridge.task.events import Done, Question
from bridge.task.message import Message, TextPart
from bridge.task.transitions import TaskState
from tests import CHECKOUT
from tests.support.stored_tasks import begin, happen, sqlite

WRITTEN = CHECKOUT / "tests" / "databases" / "a630f4a.sql"
CREATED = 1_767_323_045_678_901  # 2026-01-02T03:04:05.678901Z, in microseconds since 1970
SECOND = 1_000_000
AGENT = "agent"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The parent of a state folder with that database."""
    folder = tmp_path / "state"
    folder.mkdir(0o700)
    with contextlib.closing(sqlite3.connect(folder / "tasks.db")) as database:
        database.executescript(WRITTEN.read_text())
    return tmp_path


async def test_all_heads_have_their_state_and_its_time(state: Path) -> None:
    async with sqlite(state) as store:
        page = await store.list(TaskQuery(agents=(AGENT,)))
        found = {h.task_id: (h.state, (h.changed - CREATED) // SECOND) for h in page.heads}
        assert found == {
            "done": (TaskState.COMPLETED, 10),
            "failed": (TaskState.FAILED, 11),
            "rejected": (TaskState.REJECTED, 12),
            "canceled": (TaskState.CANCELED, 13),
            "timed": (TaskState.FAILED, 14),
            "cut": (TaskState.FAILED, 15),
            "ask": (TaskState.INPUT_REQUIRED, 22),
            "works": (TaskState.WORKING, 23),  # its text of second 24 is no status
            "new": (TaskState.SUBMITTED, 0),
        }
        asked = await store.list(TaskQuery(agents=(AGENT,), state=TaskState.INPUT_REQUIRED))
        assert [head.task_id for head in asked.heads] == ["ask"]
        assert asked.heads[0].context.owner == "bob" and asked.heads[0].begun
        assert list(await store.expired(Retention(AGENT, tasks=4), CREATED)) == ["done", "failed"]


async def test_contexts_sessions_and_messages_are_read(state: Path) -> None:
    async with sqlite(state) as store:
        starts = {
            (one.context.owner, one.context.id): load(SessionStart, one.start)
            for one in await store.contexts(AGENT)
        }
        options = SessionOptions("model", "plan", 1.5)
        assert starts == {
            ("local", "c"): SessionStart("/w", "s1", True, options),
            ("bob", "d"): SessionStart("/w", "s2", owner="bob"),
        }
        (session,) = await store.sessions(AGENT)
        assert (session.id, session.context.owner, session.position) == ("session", "bob", 333)
        (given,) = session.given
        assert load(AdapterInput, given).kind == "prompt"
        for key in (
            MessageKey(AGENT, "local", "a-long-message-id", b"\1" + b"d" * 32),
            MessageKey(AGENT, "bob", "an-older-message", b"o" * 32),
        ):
            assert await store.message(key) == KnownMessage("cut")


async def test_tasks_are_read_with_their_content_and_continue(state: Path) -> None:
    async with sqlite(state) as store:
        tasks = TaskHandles(AGENT, store)
        restored = {handle.task.id: prompt.text for handle, prompt in await tasks.restore()}
        assert restored == {"ask": "go ask", "works": "go works", "new": "go new"}
        done = await tasks.find("done")
        assert done and done.task.status_time == moment(CREATED + 10 * SECOND)
        whole = await done.whole()
        (part,) = whole.artifacts["assistant-response"].parts[:1]
        assert isinstance(part, TextPart) and part.text.startswith("Hello")
        assert isinstance(whole.history[0], Message) and whole.history[0].text == "go done"
        ask = await tasks.find("ask")
        assert ask and isinstance(ask.task.question, Question)
        works = await tasks.find("works")
        assert works
        happen(tasks, works, Done())
    async with sqlite(state) as store:
        head = await store.head("works")
        assert head and head.state is TaskState.COMPLETED


@pytest.mark.parametrize("table", ["context", "event", "push", "session", "taken", "task", "told"])
async def test_a_store_with_a_damaged_table_does_not_open(table: str, state: Path) -> None:
    """Not even if the server reads the table after the start: it can rename the database only
    before that. Another file can take its place then."""
    async with sqlite(state) as store:  # the newest schema
        await store.flush()
    file = state / "state" / "tasks.db"
    with contextlib.closing(sqlite3.connect(file)) as database:
        ((page,),) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))
        ((size,),) = database.execute("PRAGMA page_size")
    intact = file.read_bytes()
    content = bytearray(intact)
    content[(page - 1) * size : page * size] = b"\xa5" * size
    file.write_bytes(content)
    store = SqliteStore(file)
    with pytest.raises(sqlite3.DatabaseError, match="malformed"):
        await store.open()
    assert str(file) not in open_files()
    file.unlink()
    file.write_bytes(intact)
    await store.open()
    await store.close()
    assert str(file) not in open_files()


def open_files() -> list[str]:
    return [one.path for one in psutil.Process().open_files()]


async def test_an_earlier_database_gets_the_schema_of_a_new_one(
    state: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Version 5 added the tables of push notifications. The other rows stay."""
    new = tmp_path_factory.mktemp("new")
    store = SqliteStore(new / "state" / "tasks.db")
    await store.open()
    tasks = TaskHandles(AGENT, store)
    happen(tasks, begin(tasks, "t"), Done())
    await store.close()
    with contextlib.closing(open_database(state / "state" / "tasks.db", MIGRATIONS[:4])) as four:
        assert four.execute("PRAGMA user_version").fetchall() == [(4,)]
    async with sqlite(state) as store:
        assert (await store.list(TaskQuery(agents=(AGENT,)))).total == 9
        config = PushConfig("ask", "c", "https://a.example", "1.0")
        store.append([PushSaved(config)], fence=None)
    async with sqlite(state) as store:
        assert await store.push_configs() == [config]
    assert _schema(new) == _schema(state)
    assert _schema(new)[-1] == (5,)
    with contextlib.closing(sqlite3.connect(new / "state" / "tasks.db")) as database:
        ((kind,),) = database.execute(
            "SELECT json_extract(CAST(events AS TEXT), '$[#-1][0]') FROM event"
        )
        assert kind == "Done"  # the start reads from it that the task has ended


def _schema(of: Path) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(of / "state" / "tasks.db")) as database:
        rows = database.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        found = [(name, re.sub("--.*", "", sql or "")) for name, sql in rows]
        return [*found, *database.execute("PRAGMA user_version").fetchall()]


def test_times_are_converted_exactly() -> None:
    assert moment(CREATED).isoformat() == "2026-01-02T03:04:05.678901+00:00"
    assert micros(moment(CREATED)) == CREATED
