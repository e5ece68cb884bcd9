"""The contract of a store: every row of its invariants, over every store. A new store joins STORES.

`Medium` opens stores on one medium. Where a store is durable, the tests of restarts and of a lost
medium run, too: a new medium needs `lose` for these, and `hold` if it reads beside its writer.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bridge.store.changes import (
    Change,
    ContextKey,
    ContextRemoved,
    ContextSaved,
    EventBatch,
    Fence,
    InputRecorded,
    MessageAccepted,
    MessageKey,
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
from bridge.store.memory import MOST_FAILURES, MOST_IN_MEMORY, PACKED, MemoryStore
from bridge.store.postgres.connect import parse
from bridge.store.postgres.sealing import Seal
from bridge.store.postgres.store import PostgresStore
from bridge.store.protocol import (
    Conflict,
    FenceLost,
    KnownMessage,
    OpenSession,
    Retention,
    Store,
    StoreError,
    TaskQuery,
    UnfinishedTask,
)
from bridge.store.retention import KEEP_UNDELIVERED
from bridge.store.serialization import dump, dump_events
from bridge.store.sqlite.store import SqliteStore
from bridge.task.events import (
    Canceled,
    Done,
    Event,
    Failed,
    Question,
    Started,
    Status,
    Text,
    Usage,
)
from bridge.task.message import Message, Role, TextPart
from bridge.task.transitions import TaskState
from tests.support.servers import PUSH_KEY

WITHIN = 60.0
NOW = 1_767_225_600_000_000  # microseconds since 1970
SECOND = 1_000_000
A = ContextKey("agent", "local", "c")
PROMPT = dump(Message("m", Role.USER, (TextPart("go"),)))
WORKING, COMPLETED = TaskState.WORKING, TaskState.COMPLETED


@dataclass
class Medium:
    """`path`: of the state folder."""

    path: Path
    stores: list[Any] = field(default_factory=list)

    def make(self) -> Any:
        return MemoryStore()

    async def open(self) -> Any:
        store = self.make()
        self.stores.append(store)
        await store.open()
        return store

    async def close(self) -> None:
        while self.stores:
            async with asyncio.timeout(WITHIN):
                await self.stores.pop().close()

    async def restart(self) -> Any:
        await self.close()
        return await self.open()

    @contextlib.contextmanager
    def lose(self) -> Iterator[None]:
        """The medium takes nothing more."""
        raise NotImplementedError
        yield

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """No commit is done before the end."""
        yield


class Sqlite(Medium):
    """Its reads and commits share a thread, so that no commit comes before a read."""

    def make(self) -> SqliteStore:
        return SqliteStore(self.path / "state" / "tasks.db")

    @contextlib.contextmanager
    def lose(self) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@dataclass
class Postgresql(Medium):
    """One schema of a server."""

    url: str = ""

    def make(self) -> PostgresStore:
        return PostgresStore(parse(self.url), "0123456789abcdef", seal=Seal(PUSH_KEY))

    @contextlib.contextmanager
    def lose(self) -> Iterator[None]:
        """A table is missing."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("ALTER TABLE event RENAME TO away")
            try:
                yield
            finally:
                connection.execute("ALTER TABLE away RENAME TO event")

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        with psycopg.connect(self.url) as connection:
            connection.execute("SELECT * FROM progress FOR UPDATE")
            yield


STORES = [Medium, Sqlite, Postgresql]
DURABLE = [Sqlite, Postgresql]


def make_medium(request: pytest.FixtureRequest, path: Path) -> Medium:
    if request.param is Postgresql:
        return Postgresql(path, url=request.getfixturevalue("postgres_url"))
    made: Medium = request.param(path)
    return made


@pytest.fixture(params=DURABLE)
async def medium(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Medium]:
    """Of a durable store."""
    made = make_medium(request, tmp_path)
    yield made
    await made.close()


@pytest.fixture(params=STORES)
async def each_medium(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Medium]:
    made = make_medium(request, tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def store(each_medium: Medium) -> Store:
    opened: Store = await each_medium.open()
    return opened


class Outcomes:
    """The outcomes of appends, in the order of their callbacks."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, type[StoreError] | None]] = []

    def of(self, name: object) -> Callable[[StoreError | None], None]:
        return lambda error: self.seen.append((name, type(error) if error else None))


def created(task_id: str, key: ContextKey = A, at: int = NOW) -> TaskCreated:
    return TaskCreated(task_id, key, at, PROMPT)


def batch(
    task_id: str,
    number: int,
    *events: Event,
    state: TaskState = WORKING,
    at: int = NOW,
    last: int | None = None,
) -> EventBatch:
    written = dump_events(events or (Text(f"{number}"),))
    last = number if last is None else last
    return EventBatch(task_id, number, at, written, last, state, at)


def end(task_id: str, number: int = 1, at: int = NOW) -> EventBatch:
    return batch(task_id, number, Done(), state=COMPLETED, at=at)


async def commit(store: Store, *changes: Change, fence: Fence | None = None) -> StoreError | None:
    """The outcome of one append."""
    outcome: list[StoreError | None] = []
    done = asyncio.Event()

    def then(error: StoreError | None) -> None:
        outcome.append(error)
        done.set()

    store.append(changes, fence=fence, then=then)
    async with asyncio.timeout(WITHIN):
        await done.wait()
    assert len(outcome) == 1
    return outcome[0]


async def batches(store: Store, task_id: str, after: int = 0) -> Sequence[tuple[Any, ...]]:
    found = []
    while piece := await store.read(task_id, after):
        found += [(one.number, one.time, one.events, one.last) for one in piece]
        assert piece[-1].number > after
        after = piece[-1].number
    return found


def stored(*changes: EventBatch) -> Sequence[tuple[Any, ...]]:
    return [(one.number, one.time, one.events, one.last) for one in changes]


async def ids(store: Store, **query: Any) -> list[str]:
    page = await store.list(TaskQuery(agents=("agent",), **query))
    return [head.task_id for head in page.heads]


async def until(condition: Callable[[], object]) -> None:
    """For a condition without an event."""
    async with asyncio.timeout(WITHIN):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


# --- commit before deliver -----------------------------------------------------------------------


async def test_a_batch_is_read_after_its_commit_and_not_before(
    each_medium: Medium, store: Store
) -> None:
    assert await commit(store, created("t")) is None
    seen: list[int] = []
    reader = asyncio.create_task(follow(store, "t"))
    states: list[TaskState] = []

    async def look() -> None:
        head = await store.head("t")
        assert head
        states.append(head.state)
        seen.append(head.last)

    committed = asyncio.Event()
    with each_medium.hold():
        store.append([batch("t", 1)], fence=None, then=lambda error: committed.set())
        if store.durable:
            await look()
            assert (seen, states) == ([0], [TaskState.SUBMITTED])
            assert not committed.is_set()
    async with asyncio.timeout(WITHIN):
        await committed.wait()
    await look()
    assert (seen[-1], states[-1]) == (1, WORKING)
    assert await commit(store, end("t", 2)) is None
    assert [one[0] for one in await reader] == [1, 2]


async def test_a_new_task_is_known_after_its_commit(store: Store) -> None:
    assert await store.head("t") is None
    for read in (store.prompt, store.read):
        with pytest.raises(LookupError):
            await read("t")
    assert await commit(store, created("t"), TaskBegun("t"), batch("t", 1)) is None
    head = await store.head("t")
    assert head and (head.context, head.created, head.state) == (A, NOW, WORKING)
    assert (head.begun, head.batches, head.last) == (True, 1, 1)
    assert head.size == len(PROMPT) + len(batch("t", 1).events)
    assert await store.prompt("t") == PROMPT
    assert await store.unfinished("agent") == [UnfinishedTask(head, PROMPT)]
    assert await store.unfinished("other") == []


# --- atomic --------------------------------------------------------------------------------------


async def test_a_rejected_append_leaves_nothing(store: Store) -> None:
    fence = await store.claim(A, "n", 60.0)
    assert fence
    await store.release(fence)
    changes = (created("t"), batch("t", 1), MessageAccepted(MESSAGE, "t"))
    assert isinstance(await commit(store, *changes, fence=fence), FenceLost)
    assert await store.head("t") is None
    assert await store.message(MESSAGE) is None
    assert await commit(store, created("t")) is None
    assert await batches(store, "t") == []


async def test_an_append_is_atomic(tmp_path: Path) -> None:
    """Copies of the files, as a crash would leave them, while appends are written. Those of
    PostgreSQL cannot be copied: test_postgres.py looks at them while it is written."""
    medium = Sqlite(tmp_path)
    store = await medium.open()
    opened = SessionOpened("s", A, dump({}))
    assert await commit(store, created("t"), opened) is None
    path = tmp_path / "state" / "tasks.db"
    found: set[tuple[int, int]] = set()
    for number in range(1, 40):
        store.append([batch("t", number), OutputRead("s", number * 10)], fence=None)
        await asyncio.sleep(0)
        found.add(await asyncio.to_thread(_survivors, path, tmp_path / f"copy{number}"))
    await store.flush()
    found.add(_survivors(path, tmp_path / "copy"))
    assert (39, 390) in found
    assert all(position == number * 10 for number, position in found)
    await medium.close()


def _survivors(path: Path, scratch: Path) -> tuple[int, int]:
    scratch.mkdir()
    for name in (path.name, f"{path.name}-wal"):
        (scratch / name).write_bytes(path.with_name(name).read_bytes())
    with contextlib.closing(sqlite3.connect(scratch / path.name)) as database:
        ((number,),) = database.execute("SELECT coalesce(max(batch), 0) FROM event")
        ((position,),) = database.execute("SELECT position FROM session")
    return number, position


# --- ordered -------------------------------------------------------------------------------------


async def test_appends_commit_in_the_order_of_their_calls(store: Store) -> None:
    chance, outcomes = random.Random(1), Outcomes()
    names = [f"t{number}" for number in range(10)]
    assert await commit(store, *(created(name) for name in names)) is None
    numbers = dict.fromkeys(names, 0)
    written: dict[str, list[EventBatch]] = {name: [] for name in names}
    for call in range(1000):
        name = chance.choice(names)
        numbers[name] += 1
        one = batch(name, numbers[name], Text("x" * chance.randrange(300)))
        written[name].append(one)
        store.append([one], fence=None, then=outcomes.of(call))
        if call % 50 == 0:
            await asyncio.sleep(0)
    async with asyncio.timeout(WITHIN):
        await store.flush()
    assert outcomes.seen == [(call, None) for call in range(1000)]
    for name in names:
        assert await batches(store, name) == stored(*written[name])
        assert await batches(store, name, 7) == stored(*written[name])[7:]
        head = await store.head(name)
        assert head and head.batches == numbers[name]


async def test_a_rejection_keeps_its_place_in_the_order(store: Store) -> None:
    fence, outcomes = await store.claim(A, "n", 60.0), Outcomes()
    assert fence
    store.append([created("t")], fence=fence, then=outcomes.of(1))
    store.append([batch("t", 1)], fence=Fence(A, fence.token + 1), then=outcomes.of(2))
    store.append([batch("t", 1)], fence=fence, then=outcomes.of(3))
    store.append([], fence=None, then=outcomes.of(4))
    async with asyncio.timeout(WITHIN):
        await store.flush()
    assert outcomes.seen == [(1, None), (2, FenceLost), (3, None), (4, None)]


# --- idempotent ----------------------------------------------------------------------------------

MESSAGE = MessageKey("agent", "local", "message-id", b"digest")


async def test_every_append_has_one_effect_however_often_it_is_made(store: Store) -> None:
    appends: list[list[Change]] = [
        [ContextSaved(A, b"{}")],
        [created("t"), MessageAccepted(MESSAGE, "t")],
        [SessionOpened("s", A, b"{}")],
        [TaskBegun("t")],
        [batch("t", 1), OutputRead("s", 5)],
        [batch("t", 2, Question("q", "text", "?"), state=TaskState.INPUT_REQUIRED)],
        [end("t", 3)],
    ]
    appends[-1:-1] = [
        [PushSaved(push("c"))],
        [PushAdvanced("t", "c", 1, 2, NOW)],
        [PushFailed("t", "c", 2, 10, "timeout", NOW), PushAdvanced("t", "c", 2)],
    ]
    for changes in appends:
        assert await commit(store, *changes) is None
        once = (await store.head("t"), await store.message(MESSAGE))
        assert await commit(store, *changes) is None
        assert (await store.head("t"), await store.message(MESSAGE)) == once
    assert [one[0] for one in await batches(store, "t")] == [1, 2, 3]
    assert await store.push_configs() == [replace(push("c"), cursor=2)]
    assert len(await store.push_failures("t")) == 1
    for _ in range(2):
        assert await commit(store, TaskRemoved("t"), SessionClosed("s"), ContextRemoved(A)) is None
        assert (await store.head("t"), await store.message(MESSAGE)) == (None, None)


async def test_a_retry_after_an_unknown_outcome_has_one_effect(medium: Medium) -> None:
    """The process has ended before it heard of the commit."""
    store = await medium.open()
    changes = (created("t"), MessageAccepted(MESSAGE, "t"), batch("t", 1), batch("t", 2))
    store.append(changes, fence=None)
    store = await medium.restart()
    for _ in range(2):
        assert await commit(store, *changes, batch("t", 3)) is None
    assert [one[0] for one in await batches(store, "t")] == [1, 2, 3]
    assert await store.message(MESSAGE) == KnownMessage("t")
    head = await store.head("t")
    assert head and head.size == len(PROMPT) + sum(len(batch("t", n).events) for n in (1, 2, 3))
    await medium.close()


async def test_of_two_equal_messages_at_once_one_has_the_key(store: Store) -> None:
    outcomes = Outcomes()
    for name in ("t", "u"):
        changes = (created(name), MessageAccepted(MESSAGE, name))
        store.append(changes, fence=None, then=outcomes.of(name))
    async with asyncio.timeout(WITHIN):
        await store.flush()
    assert outcomes.seen == [("t", None), ("u", Conflict)]
    assert await store.message(MESSAGE) == KnownMessage("t")
    assert await ids(store) == ["t"]


async def test_an_unknown_message_cannot_move(store: Store) -> None:
    changes = (created("t"), MessageAccepted(MESSAGE, "t", replaces="u"))
    assert isinstance(await commit(store, *changes), Conflict)
    assert (await store.head("t"), await store.message(MESSAGE)) == (None, None)


async def test_a_message_moves_only_from_its_present_task(
    store: Store,
) -> None:
    assert await commit(store, created("t"), MessageAccepted(MESSAGE, "t")) is None
    wrong = (created("u"), MessageAccepted(MESSAGE, "u", replaces="v"))
    assert isinstance(await commit(store, *wrong), Conflict)
    right = (created("u"), MessageAccepted(MESSAGE, "u", replaces="t"))
    assert await commit(store, *right) is None
    assert await store.message(MESSAGE) == KnownMessage("u")
    assert await commit(store, TaskRemoved("t")) is None
    assert await store.message(MESSAGE) == KnownMessage("u")


async def test_ids_have_any_characters(store: Store) -> None:
    """PostgreSQL has no U+0000 in texts."""
    for name in ("\0", "a\0b", "\\x00", "ä", "'\"{},"):
        key, of = ContextKey("agent", name, name), MessageKey("agent", name, name, b"\0")
        saved, task_id = ContextSaved(key, b"{}"), f"t{name}"
        fence = await store.claim(key, "n", 60.0)
        assert fence
        changes = (saved, created(task_id, key), MessageAccepted(of, task_id), batch(task_id, 1))
        assert await commit(store, *changes, fence=fence) is None
        assert await ids(store, owner=name, context_id=name) == [task_id]
        assert await store.message(of) == KnownMessage(task_id)
        assert len(await batches(store, task_id)) == 1
    assert await store.head("\0") is None
    assert await ids(store) == sorted(await ids(store))


async def test_messages_differ_by_agent_owner_id_and_content(store: Store) -> None:
    same = MessageKey("agent", "local", "id", b"1")
    others = [
        MessageKey("other", "local", "id", b"1"),
        MessageKey("agent", "bob", "id", b"1"),
        MessageKey("agent", "local", "id2", b"1"),
        MessageKey("agent", "local", "id", b"2"),
    ]
    assert await commit(store, created("t"), MessageAccepted(same, "t")) is None
    assert [await store.message(key) for key in others] == [None] * 4
    assert await store.message(same) == KnownMessage("t")


# --- fenced --------------------------------------------------------------------------------------


async def test_the_holder_gets_the_same_fence_and_another_node_none(store: Store) -> None:
    fence = await store.claim(A, "n", 60.0)
    assert fence and fence.context == A
    assert await store.claim(A, "n", 60.0) == fence
    assert await store.claim(A, "m", 60.0) is None
    other = await store.claim(ContextKey("agent", "bob", "c"), "m", 60.0)
    assert other and other.token != fence.token


async def test_a_lease_that_ends_is_taken_and_its_fence_is_lost(store: Store) -> None:
    old = await store.claim(A, "n", 0.0)
    assert old
    assert await commit(store, created("t"), fence=old) is None  # until another node claims
    new = await store.claim(A, "m", 60.0)
    assert new and new.token > old.token
    for number in (1, 2):
        assert isinstance(await commit(store, batch("t", number), fence=old), FenceLost)
    assert await commit(store, batch("t", 1), fence=new) is None
    assert await store.renew("n", 60.0) == [old]
    assert await store.renew("n", 60.0) == []
    assert await store.claim(A, "n", 60.0) is None


async def test_a_renewed_lease_is_not_taken(store: Store) -> None:
    fence = await store.claim(A, "n", 0.0)
    assert fence
    assert await store.renew("n", 60.0) == []
    assert await store.claim(A, "m", 60.0) is None
    assert await commit(store, created("t"), fence=fence) is None


async def test_a_released_context_can_be_claimed_and_the_old_fence_is_lost(store: Store) -> None:
    old = await store.claim(A, "n", 60.0)
    assert old
    await store.release(old)
    assert isinstance(await commit(store, created("t"), fence=old), FenceLost)
    new = await store.claim(A, "m", 60.0)
    assert new and new.token > old.token
    await store.release(old)
    assert await store.claim(A, "m", 60.0) == new


async def test_a_removed_context_has_no_holder(store: Store) -> None:
    old = await store.claim(A, "n", 60.0)
    assert old
    assert await commit(store, ContextSaved(A, b"{}"), fence=old) is None
    assert await commit(store, ContextRemoved(A), fence=old) is None
    new = await store.claim(A, "m", 60.0)
    assert new and new.token > old.token


# --- degraded, not dead --------------------------------------------------------------------------


async def test_waiting_changes_are_committed_in_order_after_the_medium_returns(
    medium: Medium,
) -> None:
    outcomes = Outcomes()
    store = await medium.open()
    assert await commit(store, created("t")) is None
    with medium.lose():
        for number in (1, 2, 3):
            large = batch("t", number, Text("x" * 200_000))
            store.append([large], fence=None, then=outcomes.of(number))
        await until(lambda: store.problem)
        store.append([end("t", 4)], fence=None, then=outcomes.of(4))
        head = await store.head("t")
        assert head and (head.last, outcomes.seen) == (0, [])
    await until(lambda: len(outcomes.seen) == 4)
    assert outcomes.seen == [(number, None) for number in (1, 2, 3, 4)]
    await until(lambda: store.problem is None)
    assert [one[0] for one in await batches(store, "t")] == [1, 2, 3, 4]
    await medium.close()


async def test_congestion_ends_with_a_relief(store: Store) -> None:
    assert await commit(store, created("t")) is None
    relieved: list[bool] = []
    if store.durable:
        for number in range(1, 20):
            store.append([batch("t", number, Text("x" * 1_000_000))], fence=None)
        assert store.congested
    store.on_relief(lambda: relieved.append(store.congested))
    async with asyncio.timeout(WITHIN):
        await store.flush()
    assert (relieved, store.congested) == ([False], False)


async def test_close_commits_waiting_appends(medium: Medium) -> None:
    outcomes = Outcomes()
    store = await medium.open()
    store.append([created("t")], fence=None, then=outcomes.of(0))
    for number in range(1, 50):
        one = batch("t", number, Text("x" * 10_000))
        store.append([one], fence=None, then=outcomes.of(number))
    store = await medium.restart()
    assert outcomes.seen == [(number, None) for number in range(50)]
    assert [one[0] for one in await batches(store, "t")] == list(range(1, 50))
    await medium.close()


async def test_a_medium_that_works_is_not_a_problem(store: Store) -> None:
    assert (store.problem, store.congested) == (None, False)


# --- reads ---------------------------------------------------------------------------------------


async def test_pages_follow_the_newest_status_and_stay_stable(store: Store) -> None:
    for number in range(6):
        at = NOW - number * SECOND
        assert await commit(store, created(f"t{number}", at=at)) is None
    first = await store.list(TaskQuery(agents=("agent",), limit=2))
    assert [head.task_id for head in first.heads] == ["t0", "t1"]
    assert (first.total, first.after) == (6, (NOW - SECOND, "t1"))
    moved = batch("t2", 1, Status("x"), at=NOW + 60 * SECOND)
    new = created("t9", at=NOW + SECOND)
    assert await commit(store, TaskRemoved("t1"), moved, new) is None
    second = await store.list(TaskQuery(agents=("agent",), limit=2, after=first.after))
    assert [head.task_id for head in second.heads] == ["t3", "t4"]
    assert second.total == 6
    third = await store.list(TaskQuery(agents=("agent",), limit=2, after=second.after))
    assert ([head.task_id for head in third.heads], third.after) == (["t5"], None)
    assert await ids(store) == ["t2", "t9", "t0", "t3", "t4", "t5"]


async def test_equal_times_are_listed_by_id_in_any_pages(store: Store) -> None:
    chance = random.Random(3)
    for number in chance.sample(range(20), 20):
        at = NOW + chance.choice((0, 1, 2))
        assert await commit(store, created(f"t{number:02}", at=at)) is None
    whole = await ids(store)
    for size in (1, 3, 7, 20):
        found: list[str] = []
        query = TaskQuery(agents=("agent",), limit=size)
        while True:
            page = await store.list(query)
            found += [head.task_id for head in page.heads]
            if page.after is None:
                break
            query = TaskQuery(agents=("agent",), limit=size, after=page.after)
        assert found == whole


async def test_no_task_is_listed_twice_while_all_of_them_change(store: Store) -> None:
    chance, clock = random.Random(1), NOW
    names = [f"t{number:02}" for number in range(30)]
    for number, name in enumerate(names):
        assert await commit(store, created(name, at=NOW - number)) is None
    numbers, seen = dict.fromkeys(names, 0), list[str]()
    query = TaskQuery(agents=("agent",), limit=3)
    while True:
        page = await store.list(query)
        seen += [head.task_id for head in page.heads]
        assert len(seen) == len(set(seen))
        if page.after is None:
            break
        query = replace(query, after=page.after)
        for name in chance.sample(names, 5):
            clock, numbers[name] = clock + 1, numbers[name] + 1
            assert await commit(store, batch(name, numbers[name], at=clock)) is None
    assert {name for name in names if numbers[name] == 0} <= set(seen)


async def test_filters_add_up(store: Store) -> None:
    bob = ContextKey("agent", "bob", "c")
    other = ContextKey("other", "local", "d")
    await commit(store, created("t1"), created("t2", bob), created("t3", other), end("t2"))
    await commit(store, created("t4", ContextKey("agent", "local", "d"), NOW + 5))
    assert await ids(store) == ["t4", "t1", "t2"]
    assert await ids(store, owner="bob") == ["t2"]
    assert await ids(store, context_id="c") == ["t1", "t2"]
    assert await ids(store, context_id="c", owner="local") == ["t1"]
    assert await ids(store, state=COMPLETED) == ["t2"]
    assert await ids(store, changed_since=NOW + 5) == ["t4"]
    both = await store.list(TaskQuery(agents=("agent", "other"), limit=1))
    assert ([head.task_id for head in both.heads], both.total) == (["t4"], 4)


async def test_text_alone_does_not_move_a_task_in_the_list(store: Store) -> None:
    assert await commit(store, created("t"), created("u", at=NOW + SECOND)) is None
    text = EventBatch("t", 1, NOW + 9 * SECOND, dump_events([Text("x")]), 1, WORKING, NOW)
    assert await commit(store, text) is None
    assert await ids(store) == ["u", "t"]


@pytest.mark.parametrize("size", [10, 5000])
async def test_a_finished_task_survives_a_round_trip(store: Store, size: int) -> None:
    written = [batch("t", number, Text("x" * size)) for number in range(1, 60)]
    last = end("t", 60)
    await commit(store, created("t"), *written, last)
    async with asyncio.timeout(WITHIN):
        await store.flush()
    for after in (0, 1, 30, 59, 60, 70):
        assert await batches(store, "t", after) == stored(*written, last)[after:]
    assert await store.prompt("t") == PROMPT


async def test_memory_compresses_a_large_finished_task() -> None:
    store = MemoryStore()
    await commit(store, created("t"), batch("t", 1, Text("x" * 10 * PACKED)), end("t", 2))
    assert store.stored > 10 * PACKED
    await store.flush()
    assert store.stored < PACKED
    await commit(store, TaskRemoved("t"))
    assert store.stored == 0


async def follow(store: Store, task_id: str, after: int = 0) -> Sequence[tuple[Any, ...]]:
    found: list[EventBatch] = []
    async with asyncio.timeout(WITHIN):
        async for piece in store.follow(task_id, after):
            found += piece
            assert len(found) <= 1000
    return stored(*found)


async def test_followers_miss_nothing_and_get_nothing_twice(store: Store) -> None:
    await commit(store, created("t"))
    written: list[EventBatch] = []
    readers: list[tuple[int, asyncio.Task[Sequence[tuple[Any, ...]]]]] = []
    for number in range(1, 200):
        if number % 20 == 0:
            after = random.Random(number).randrange(number)
            readers.append((after, asyncio.create_task(follow(store, "t", after))))
        written.append(batch("t", number, Text("x" * 700)))
        store.append([written[-1]], fence=None)
        if number % 7 == 0:
            await asyncio.sleep(0)
    written.append(end("t", 200))
    store.append([written[-1]], fence=None)
    for after, reader in readers:
        assert await reader == stored(*written)[after:]
    assert await follow(store, "t", 150) == stored(*written)[150:]  # a late start
    assert await follow(store, "unknown") == []


async def test_a_follower_ends_when_its_task_is_removed(store: Store) -> None:
    await commit(store, created("t"), batch("t", 1))
    reader = asyncio.create_task(follow(store, "t", 1))
    await asyncio.sleep(0)
    await commit(store, TaskRemoved("t"))
    assert await reader == []


async def test_a_task_that_is_removed_before_its_commit_stays_removed(store: Store) -> None:
    store.append([created("t"), end("t")], fence=None)
    assert await commit(store, TaskRemoved("t")) is None
    assert await ids(store) == []
    assert await commit(store, batch("t", 2)) is None  # too late
    assert await store.head("t") is None


# --- retention -----------------------------------------------------------------------------------


async def expired(store: Store, **limits: Any) -> Sequence[str]:
    return await store.expired(Retention("agent", **limits), NOW + 10 * SECOND)


async def finish(
    store: Store, name: str, key: ContextKey = A, at: int = NOW, size: int = 1
) -> None:
    text = batch(name, 1, Text("x" * size), at=at)
    assert await commit(store, created(name, key, at), text, end(name, 2, at)) is None


async def test_the_oldest_of_the_owner_with_most_tasks_expire(store: Store) -> None:
    bob = ContextKey("agent", "bob", "c")
    await commit(store, created("open"))
    await finish(store, "b", bob)
    for number in range(5):
        await finish(store, f"t{number}")
    await finish(store, "o", ContextKey("other", "local", "c"))
    assert await expired(store) == []
    assert await expired(store, tasks=4) == ["t0", "t1"]
    assert await expired(store, tasks=4) == ["t0", "t1"]  # until they are removed
    await commit(store, TaskRemoved("t0"), TaskRemoved("t1"))
    assert await expired(store, tasks=4) == []
    assert await expired(store, tasks=0) == ["t2", "t3", "b", "t4"]


async def test_the_tasks_of_a_context_are_limited(store: Store) -> None:
    """The oldest ones of that context expire, and no task of another one or without an end."""
    await commit(store, created("open"))
    names = ContextKey("agent", "local", "d"), ContextKey("agent", "bob", "c")
    for name, key in zip(("other", "bob"), names, strict=True):
        await finish(store, name, key)
    for number in range(5):
        await finish(store, f"t{number}")
    assert await expired(store) == []
    assert await expired(store, of_context=5) == []
    assert await expired(store, of_context=3) == ["t0", "t1"]
    assert await expired(store, of_context=3, tasks=4) == ["t0", "t1", "other"]
    await commit(store, TaskRemoved("t0"), TaskRemoved("t1"))
    assert await expired(store, of_context=3) == []


async def test_old_tasks_expire_by_the_end_of_their_work(store: Store) -> None:
    day = 24 * 3600 * SECOND
    await commit(store, created("open", at=NOW - 9 * day))
    for days in (5, 3, 1):
        await finish(store, f"t{days}", at=NOW - days * day)
    assert await expired(store, days=2) == ["t5", "t3"]


async def test_the_stored_bytes_of_an_owner_are_limited(store: Store) -> None:
    bob = ContextKey("agent", "bob", "c")
    await finish(store, "b", bob, size=1_000_000)
    for name, size in (("a1", 60_000), ("a2", 40_000), ("a3", 50_000)):
        await finish(store, name, size=size)

    def of_owner(owner: str) -> int:
        return 101_000 if owner == "local" else 0

    assert await expired(store, of_owner=of_owner) == ["a1"]


async def test_beyond_the_bytes_of_the_store_one_in_ten_expires(store: Store) -> None:
    for number in range(30):
        text = random.Random(number).randbytes(30_000).hex()
        await commit(store, created(f"t{number:02}"), batch(f"t{number:02}", 1, Text(text)))
        await commit(store, end(f"t{number:02}", 2))
    async with asyncio.timeout(WITHIN):
        await store.flush()
    assert await expired(store, bytes=500_000) == ["t00", "t01", "t02", "t03"]
    assert await expired(store, bytes=MOST_IN_MEMORY) == []


# --- push configs --------------------------------------------------------------------------------


def push(config_id: str, task_id: str = "t", **more: Any) -> PushConfig:
    secrets = {"token": "t0k", "scheme": "Bearer", "credentials": "s3cret"}
    members = {"url": "https://a.example", "version": "1.0", **secrets, **more}
    return PushConfig(task_id, config_id, **members)


async def test_push_configs_are_read_after_their_commit_in_the_order_of_creation(
    each_medium: Medium, store: Store
) -> None:
    await commit(store, created("t"), created("u"))
    with each_medium.hold():
        store.append([PushSaved(push("z", cursor=3))], fence=None)
        if store.durable:
            assert await store.push_configs() == []
    first, second = push("a", "u", token=None, extended=True), push("b", version="0.3")
    assert await commit(store, PushSaved(first), PushSaved(second)) is None
    assert await store.push_configs("t") == [push("z", cursor=3), second]
    assert await store.push_configs("u") == [first]
    assert await store.push_configs("v") == []
    assert sorted(one.id for one in await store.push_configs()) == ["a", "b", "z"]


async def test_a_replaced_push_config_keeps_its_position_and_is_due(store: Store) -> None:
    await commit(store, created("t"), PushSaved(push("a")), PushSaved(push("b")))
    await commit(store, PushAdvanced("t", "a", 7, 2, NOW))
    assert await store.push_configs("t") == [push("a", cursor=7, attempts=2, due=NOW), push("b")]
    new = push("a", url="https://b.example", scheme=None, credentials=None, cursor=3)
    await commit(store, PushSaved(new))
    assert await store.push_configs("t") == [replace(new, cursor=7, attempts=2), push("b")]


async def test_a_cursor_never_goes_back(store: Store) -> None:
    await commit(store, created("t"), PushSaved(push("a")))
    await commit(store, PushAdvanced("t", "a", 7), PushAdvanced("t", "a", 6, 1, NOW))
    assert await store.push_configs("t") == [push("a", cursor=7)]


async def test_dead_letters_are_kept_with_their_config(store: Store) -> None:
    await commit(store, created("t"), PushSaved(push("b")), PushSaved(push("a")))
    letters = [
        PushFailed("t", "a", 2, 10, "timeout", NOW),
        PushFailed("t", "a", 10, 1, "status 400", NOW),
        PushFailed("t", "b", 1, 0, "expired", NOW),
    ]
    await commit(store, *reversed(letters[:2]), letters[2], letters[0])
    assert await store.push_failures("t") == letters
    await commit(store, PushRemoved("t", "a"))
    assert await store.push_failures("t") == letters[2:]
    assert await store.push_configs("t") == [push("b")]
    await commit(store, TaskRemoved("t"))
    assert await store.push_failures("t") == []
    assert await store.push_configs() == []


async def test_memory_keeps_the_newest_dead_letters() -> None:
    store = MemoryStore()
    letters = [PushFailed("t", "a", n, 1, "timeout", NOW) for n in range(MOST_FAILURES + 5)]
    await commit(store, created("t"), PushSaved(push("a")), *letters)
    assert await store.push_failures("t") == letters[5:]


async def test_push_changes_of_unknown_tasks_and_configs_have_no_effect(store: Store) -> None:
    await commit(store, created("t"), PushSaved(push("a")))
    for task_id, config_id in (("t", "b"), ("u", "a")):
        failed = PushFailed(task_id, config_id, 3, 1, "timeout", NOW)
        unknown = (PushAdvanced(task_id, config_id, 3), failed, PushRemoved(task_id, config_id))
        assert await commit(store, *unknown) is None
    assert await commit(store, PushSaved(push("a", "u"))) is None
    assert await store.push_configs() == [push("a")]
    assert [await store.push_failures(task_id) for task_id in ("t", "u")] == [[], []]
    store.append([TaskRemoved("t"), PushSaved(push("a"))], fence=None)
    assert await commit(store, created("v")) is None
    assert await store.push_configs() == []


async def test_a_task_with_undelivered_notifications_is_kept_for_a_day(store: Store) -> None:
    for name in ("a", "b", "c"):
        await finish(store, name, size=20_000)
    await commit(store, PushSaved(push("p", "a")), PushSaved(push("p", "b", cursor=2)))
    limits = Retention("agent", tasks=0)
    assert await store.expired(limits, NOW) == ["b", "c"]
    assert await store.expired(limits, NOW + KEEP_UNDELIVERED) == ["b", "c"]
    assert await store.expired(limits, NOW + KEEP_UNDELIVERED + 1) == ["a", "b", "c"]
    await store.flush()
    assert await store.expired(replace(limits, bytes=50), NOW) == ["a", "b", "c"]
    await commit(store, PushAdvanced("a", "p", 2))
    assert await store.expired(limits, NOW) == ["a", "b", "c"]


# --- after a restart -----------------------------------------------------------------------------


async def test_a_restart_finds_all_that_was_committed(medium: Medium) -> None:
    store = await medium.open()
    bob = ContextKey("agent", "bob", "c2")
    asks = batch("ask", 2, Question("q", "text", "?"), state=TaskState.INPUT_REQUIRED, last=4)
    for key in (A, bob):
        assert await store.claim(key, store.node, 60)
    await commit(store, ContextSaved(A, b'{"1":1}'), ContextSaved(bob, b"{}"))
    await commit(store, TaskCreated("ask", bob, NOW, PROMPT, thoughts=True, attended=True))
    await commit(store, TaskBegun("ask"), MessageAccepted(MESSAGE, "ask"))
    await commit(store, batch("ask", 1, Status("s"), last=3), asks)
    await commit(store, created("new"), ContextSaved(A, b'{"2":2}'))
    for name, event, state in (
        ("done", Done(), COMPLETED),
        ("failed", Failed("x"), TaskState.FAILED),
        ("canceled", Canceled(), TaskState.CANCELED),
    ):
        ended = batch(name, 1, Text("x"), event, state=state, at=NOW + SECOND)
        await commit(store, created(name), ended)
    names = ("ask", "new", "done", "failed", "canceled")
    before = [await store.head(name) for name in names]
    listed = await ids(store)
    store = await medium.restart()
    assert [await store.head(name) for name in names] == before
    assert await ids(store) == listed
    assert [one.head.task_id for one in await store.unfinished("agent")] == ["ask", "new"]
    assert await store.message(MESSAGE) == KnownMessage("ask")
    assert list(await store.contexts("agent")) == [
        ContextSaved(bob, b"{}"),
        ContextSaved(A, b'{"2":2}'),
    ] or list(await store.contexts("agent")) == [
        ContextSaved(A, b'{"2":2}'),
        ContextSaved(bob, b"{}"),
    ]
    assert await expired(store, tasks=0) == ["done", "failed", "canceled"]
    assert await follow(store, "done") == stored(
        batch("done", 1, Text("x"), Done(), at=NOW + SECOND)
    )
    await medium.close()


async def test_a_restart_finds_the_push_configs(medium: Medium) -> None:
    store = await medium.open()
    await commit(store, created("t"), created("u"), PushSaved(push("b")), PushSaved(push("a")))
    await commit(store, PushSaved(push("c", "u", extended=True)), PushAdvanced("t", "b", 3, 1, NOW))
    await commit(store, PushFailed("t", "a", 4, 10, "timeout", NOW), PushSaved(push("gone")))
    await commit(store, PushRemoved("t", "gone"), PushAdvanced("t", "b", 2))
    await commit(store, PushAdvanced("t", "a", 4, 1, NOW), PushSaved(push("a", scheme=None)))
    before = await store.push_configs(), await store.push_failures("t")
    assert len(before[1]) == 1
    store = await medium.restart()
    assert (await store.push_configs(), await store.push_failures("t")) == before
    assert await store.push_configs("t") == [
        push("b", cursor=3, attempts=1, due=NOW),
        push("a", scheme=None, cursor=4, attempts=1),
    ]
    await commit(store, TaskRemoved("t"))
    store = await medium.restart()
    assert await store.push_configs() == [push("c", "u", extended=True)]
    assert await store.push_failures("t") == []
    await medium.close()


async def test_a_restart_finds_the_open_sessions_with_their_inputs(medium: Medium) -> None:
    store = await medium.open()
    await commit(store, created("t"), SessionOpened("s", A, b"{}"), SessionOpened("gone", A, b"{}"))
    for number in range(3):
        await commit(store, InputRecorded("s", b"%d" % number), InputRecorded("gone", b"x"))
    await commit(store, batch("t", 1), OutputRead("s", 333), SessionClosed("gone"))
    store = await medium.restart()
    (found,) = await store.sessions("agent")
    assert found == OpenSession("s", A, b"{}", 333, [b"0", b"1", b"2"])
    assert await store.sessions("other") == []
    await medium.close()


# --- reports -------------------------------------------------------------------------------------


async def test_reports_are_the_batches_with_a_model_or_a_usage(
    each_medium: Medium, store: Store
) -> None:
    """In the order of the batches, also of tasks that are large or finished."""
    started, used = Started("s", "model"), Usage(1, 2, 3, 0.5)
    quoted = Text('["Usage",{}] and ["Started",{}]')  # JSON has it with backslashes
    await commit(store, created("a"), created("b"), created("c"))
    await commit(
        store,
        batch("a", 1, started),
        batch("a", 2, Text("x" * 2 * PACKED)),
        batch("a", 3, quoted),
        batch("a", 4, Text("y"), used),
        end("a", 5),
        batch("b", 1, used),
        end("c"),
    )
    await store.flush()
    expected = [
        ("a", dump_events([started])),
        ("a", dump_events([Text("y"), used])),
        ("b", dump_events([used])),
    ]
    assert list(await store.reports(["a", "b", "c", "unknown"])) == expected
    assert list(await store.reports([])) == []
    await commit(store, TaskRemoved("b"))
    assert list(await store.reports(["b", "a"])) == expected[:2]
