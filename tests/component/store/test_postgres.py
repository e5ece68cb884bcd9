"""The store on PostgreSQL beyond the contract of stores: lost answers, crashes of the database,
incarnations of a node, several nodes, migrations, and the errors of addresses and keys."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from cryptography.fernet import Fernet

from bridge.errors import ConfigurationError, Unavailable
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
    PushConfig,
    PushSaved,
    SessionOpened,
    TaskCreated,
    TaskRemoved,
)
from bridge.store.postgres.connect import explain, parse
from bridge.store.postgres.membership import NoHost, Terms
from bridge.store.postgres.pooler import refuse_pooler
from bridge.store.postgres.schema import MIGRATIONS, migrate
from bridge.store.postgres.sealing import Seal
from bridge.store.postgres.store import PostgresStore
from bridge.store.protocol import Conflict, FenceLost, StoreError
from bridge.task.transitions import TaskState
from tests.support.nodes import RecordingHost
from tests.support.proxy import Proxy, serving
from tests.support.servers import Postgres

WITHIN = 60.0
NODE, OTHER = "0123456789abcdef", "fedcba9876543210"
A = ContextKey("agent", "local", "c")
MESSAGE = MessageKey("agent", "local", "m", b"digest")


@asynccontextmanager
async def opened(url: str, node: str = NODE, **options: Any) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(parse(url), node, **options)
    await store.open()
    try:
        yield store
    finally:
        async with asyncio.timeout(WITHIN):
            await store.close()


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with opened(postgres_url) as opened_store:
        yield opened_store


def created(task_id: str, key: ContextKey = A) -> TaskCreated:
    return TaskCreated(task_id, key, 1, b"{}")


def batch(task_id: str, number: int, size: int = 10) -> EventBatch:
    events = b"%d" % number + b"x" * size
    return EventBatch(task_id, number, number, events, number, TaskState.WORKING, number)


async def commit(
    store: PostgresStore, *changes: Change, fence: Fence | None = None
) -> StoreError | None:
    outcome: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
    store.append(changes, fence=fence, then=outcome.set_result)
    async with asyncio.timeout(WITHIN):
        return await outcome


async def numbers(store: PostgresStore, task_id: str) -> list[int]:
    found: list[int] = []
    while piece := await store.read(task_id, found[-1] if found else 0):
        for one in piece:
            assert (
                one.events == batch(task_id, one.number, len(one.events) - len(str(one.number)))[3]
            )
            found.append(one.number)
    return found


async def until(condition: Callable[[], object]) -> None:
    """For a condition without an event."""
    async with asyncio.timeout(WITHIN):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@contextlib.contextmanager
def session_of(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


# --- lost answers ----------------------------------------------------------------------------


class AnswerCutter(Proxy):
    """Cuts the connection before the next `left` answers to COMMIT, or to output alone."""

    left = 0

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._seen = b""

    async def before(self, data: bytes, up: bool) -> None:
        if up:
            return
        self._seen = self._seen[-8:] + data
        if self.left and re.search(rb"COMMIT\0|SELECT 1\0", self._seen):
            self._seen = b""
            self.left -= 1
            raise ConnectionResetError


def through(url: str, proxy: Proxy) -> str:
    """The same database by way of the proxy."""
    options = url.partition("&options=")[2]
    return f"postgresql://postgres@{proxy.url.removeprefix('http://')}/postgres?options={options}"


@pytest.mark.parametrize("with_inputs", [False, True])
async def test_a_commit_without_an_answer_has_one_effect(
    database: Postgres, postgres_url: str, with_inputs: bool
) -> None:
    """An input has no key of its own: a group that is written twice would have it twice."""
    if not database.restarts:
        pytest.skip("the server of BRIDGE_TEST_POSTGRES has an address of its own")
    proxy, count = AnswerCutter(database.port), 6
    async with serving(proxy), opened(through(postgres_url, proxy)) as store:
        assert await commit(store, created("t"), SessionOpened("s", A, b"{}")) is None
        for number in range(1, count + 1):
            proxy.left = number % 2
            changes: list[Change] = [batch("t", number), OutputRead("s", number)]
            if with_inputs:
                changes.append(InputRecorded("s", b"%d" % number))
            assert await commit(store, *changes) is None
            assert proxy.left == 0
        assert await numbers(store, "t") == list(range(1, count + 1))
        head = await store.head("t")
        assert head and head.size == 2 + sum(len(batch("t", n).events) for n in range(1, count + 1))
        (session,) = await store.sessions("agent")
        expected = [b"%d" % number for number in range(1, count + 1)]
        assert (session.given, session.position) == (expected if with_inputs else [], count)
        assert store.problem is None


async def test_output_without_a_task_counts_as_a_group(store: PostgresStore) -> None:
    """Else the next group would be taken for this one, and would be lost."""
    assert await commit(store, batch("unknown", 1), OutputRead("unknown", 1)) is None
    assert await commit(store, created("t")) is None
    assert await commit(store, batch("t", 1)) is None
    assert await numbers(store, "t") == [1]


async def test_a_pooler_that_shares_a_backend_is_refused(postgres_url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(await parse(postgres_url).connect()) for _ in range(2)
        ]

        async def rows(query: str) -> list[tuple[Any, ...]]:
            return await (await other.execute(query.encode())).fetchall()

        await refuse_pooler(one, rows)
        with pytest.raises(ConfigurationError, match="pooler in transaction mode"):
            await refuse_pooler(other, rows)


@pytest.mark.parametrize("restarted", [False, True])
async def test_lost_commits_end_the_incarnation(
    postgres_url: str, caplog: pytest.LogCaptureFixture, restarted: bool
) -> None:
    """As after a failover to a standby that lacks them. `restarted`: its sessions have ended."""
    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    class Ended(NoHost):
        def fenced(self, copied: bool) -> None:
            ended.set_result(copied)

    store = PostgresStore(parse(postgres_url), "0123456789abcdef", host=Ended())
    await store.open()
    assert await commit(store, created("t"), batch("t", 1)) is None
    for number in (2, 3):
        assert await commit(store, batch("t", number)) is None
    with session_of(postgres_url) as connection:
        connection.execute("UPDATE progress SET written = 1")
        connection.execute("DELETE FROM event WHERE batch > 1")
        connection.execute("UPDATE task SET batch = 1, last = 1")
        if restarted:
            presence = "hashtext(current_schema() || '0123456789abcdef')::oid"
            cut = connection.execute(
                f"SELECT pg_terminate_backend(pid) FROM pg_locks WHERE objid = {presence}"
            )
            assert cut.rowcount == 1
    assert isinstance(await commit(store, batch("t", 4)), FenceLost)
    async with asyncio.timeout(WITHIN):
        assert not await ended  # to be started again
    assert store.problem and "lost acknowledged commits" in store.problem
    assert "another server" not in caplog.text
    await store.close()
    async with opened(postgres_url) as again:
        assert await commit(again, batch("t", 2)) is None
        assert await numbers(again, "t") == [1, 2]


class Staller(Proxy):
    """Holds chunks with `word` in one direction until `go` is set; `held` is set before."""

    def __init__(self, port: int, word: bytes, up: bool) -> None:
        super().__init__(port)
        self._word, self._up = word, up
        self.go, self.held = asyncio.Event(), asyncio.Event()
        self.go.set()

    async def before(self, data: bytes, up: bool) -> None:
        if up == self._up and self._word in data and not self.go.is_set():
            self.held.set()
            await self.go.wait()


@pytest.mark.parametrize(("word", "up"), [(b"COMMIT\0", False), (b"COMMIT", True)])
async def test_a_group_without_an_answer_is_sent_again_and_has_one_effect(
    database: Postgres, postgres_url: str, word: bytes, up: bool
) -> None:
    """The answer is late, or the request itself: it reaches the database after the second one."""
    if not database.restarts:
        pytest.skip("the server of BRIDGE_TEST_POSTGRES has an address of its own")
    proxy = Staller(database.port, word, up)
    async with serving(proxy):
        async with opened(through(postgres_url, proxy), answer_within=0.2) as store:
            assert await commit(store, created("t"), SessionOpened("s", A, b"{}")) is None
            proxy.go.clear()
            writing = asyncio.create_task(commit(store, batch("t", 1), InputRecorded("s", b"1")))
            await asyncio.wait_for(proxy.held.wait(), WITHIN)
            await until(lambda: store.problem)  # the connection is cut
            proxy.go.set()
            assert await writing is None
            assert await commit(store, batch("t", 2), InputRecorded("s", b"2")) is None
            assert await numbers(store, "t") == [1, 2]
            (session,) = await store.sessions("agent")
            assert session.given == [b"1", b"2"]


async def test_a_rejection_without_an_answer_stays_a_rejection(
    database: Postgres, postgres_url: str
) -> None:
    """The message is accepted in a commit without an answer. So the same append is no conflict."""
    if not database.restarts:
        pytest.skip("the server of BRIDGE_TEST_POSTGRES has an address of its own")
    proxy = AnswerCutter(database.port)
    async with serving(proxy), opened(through(postgres_url, proxy)) as store:
        proxy.left = 1
        outcomes: list[type[StoreError] | None] = []

        def then(error: StoreError | None) -> None:
            outcomes.append(type(error) if error else None)

        for name in ("t", "u"):
            changes = (created(name), MessageAccepted(MESSAGE, name), batch(name, 1))
            store.append(changes, fence=None, then=then)
            await asyncio.sleep(0)
        other = MessageAccepted(MESSAGE, "t", replaces="unknown")
        store.append([other], fence=None, then=then)
        await store.flush()
        assert outcomes == [None, Conflict, None]
        assert proxy.left == 0
        assert await numbers(store, "t") == [1]
        assert await store.head("u") is None


@pytest.mark.parametrize("crashes", [1, pytest.param(3, marks=pytest.mark.soak)])
async def test_crashes_of_the_database_lose_and_repeat_nothing(
    database: Postgres, postgres_url: str, crashes: int
) -> None:
    """Takes seconds, because the server recovers at each start."""
    if not database.restarts:
        pytest.skip("the server of BRIDGE_TEST_POSTGRES must not be restarted")
    database.checkpoint()
    names, problems, outcomes = [f"t{n}" for n in range(10)], set[bool](), list[object]()
    async with opened(postgres_url) as store:
        fence = await store.claim(A, NODE, 1e9)
        sessions = [SessionOpened(name, A, b"{}") for name in names]
        assert await commit(store, *map(created, names), *sessions, fence=fence) is None
        stop, written = asyncio.Event(), 0

        async def load() -> None:
            nonlocal written
            while not stop.is_set():
                written += 1
                for name in names:
                    changes = (batch(name, written), InputRecorded(name, b"%d" % written))
                    store.append(changes, fence=fence, then=outcomes.append)
                await asyncio.sleep(0.005)
                problems.add(bool(store.problem))

        loading = asyncio.create_task(load())
        for crash in range(crashes):
            seen = len(outcomes)
            await until(lambda seen=seen: len(outcomes) > seen + 100)  # type: ignore[misc]
            await asyncio.to_thread(database.crash)
            await until(lambda: store.problem)
            assert "postgres" in str(store.problem)
            if crash == 0:
                with pytest.raises(Unavailable):
                    await store.claim(ContextKey("agent", "local", "new"), NODE, 1e9)
            await asyncio.to_thread(database.start)
            await until(lambda: store.problem is None)
        stop.set()
        await loading
        async with asyncio.timeout(WITHIN):
            await store.flush()
        assert outcomes == [None] * written * len(names)
        assert problems == {True, False}
        for name in names:
            assert await numbers(store, name) == list(range(1, written + 1))
        for session in await store.sessions("agent"):
            assert session.given == [b"%d" % number for number in range(1, written + 1)]


async def test_an_append_is_atomic_for_other_sessions(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await commit(store, created("t"), SessionOpened("s", A, b"{}"))
        found = set()
        query = "SELECT batch, position FROM task, session"
        with session_of(postgres_url) as other:
            for number in range(1, 60):
                store.append([batch("t", number), OutputRead("s", number * 10)], fence=None)
                if number % 20 == 0:  # else a slow machine may see the beginning alone
                    await store.flush()
                found |= set(await asyncio.to_thread(lambda: other.execute(query).fetchall()))
        await store.flush()
    assert len(found) > 2
    assert all(position == number * 10 for number, position in found)


# --- one wrong append ------------------------------------------------------------------------


async def test_a_wrong_append_rejects_no_other_one(store: PostgresStore) -> None:
    """A number that no column can store; a fence that another claim has ended; a conflict."""
    fence = await store.claim(A, "n", 0.0)
    assert fence
    assert await commit(store, created("t"), MessageAccepted(MESSAGE, "t"), fence=fence) is None
    outcomes: list[tuple[int, type[StoreError] | None]] = []
    appends: list[tuple[Sequence[Change], Fence | None]] = [
        ([batch("t", 1)], fence),
        ([created("u"), batch("u", 2**40)], None),
        ([batch("t", 2)], fence),
        ([created("v"), MessageAccepted(MESSAGE, "v")], fence),
        ([created("w"), MessageAccepted(MESSAGE, "w", replaces="t")], fence),
    ]
    for number, (changes, of) in enumerate(appends):
        store.append(
            changes,
            fence=of,
            then=lambda error, n=number: outcomes.append((n, type(error) if error else None)),  # type: ignore[misc]
        )
    await store.flush()
    assert outcomes == [(0, None), (1, StoreError), (2, None), (3, Conflict), (4, None)]
    assert await numbers(store, "t") == [1, 2]
    assert [await store.head(name) for name in ("u", "v")] == [None, None]
    assert store.problem is None


async def test_the_database_rejects_a_token_that_it_does_not_have(
    store: PostgresStore, postgres_url: str
) -> None:
    """As after a takeover by another server, of which this one does not know."""
    fence = await store.claim(A, NODE, 1e9)
    assert fence and await commit(store, created("t"), fence=fence) is None
    with session_of(postgres_url) as other:
        other.execute("UPDATE context SET node = 'other', token = nextval('tokens')")
    assert isinstance(await commit(store, batch("t", 1), fence=fence), FenceLost)
    assert await commit(store, created("u")) is None
    assert await numbers(store, "t") == []


async def test_a_context_of_another_server_is_not_claimed(
    store: PostgresStore, postgres_url: str
) -> None:
    fence = await store.claim(A, NODE, 1e9)
    assert fence and await commit(store, ContextSaved(A, b"{}"), created("t")) is None
    await store.release(fence)
    assert (await store.contexts("agent"), await store.unfinished("agent")) == ([], [])
    fence = await store.claim(A, NODE, 1e9)
    assert fence
    assert len(await store.contexts("agent")) == len(await store.unfinished("agent")) == 1
    await store.release(fence)
    with session_of(postgres_url) as other:
        other.execute("UPDATE context SET node = 'other', token = nextval('tokens')")
    assert await store.claim(A, NODE, 1e9) is None
    assert (await store.contexts("agent"), await store.unfinished("agent")) == ([], [])
    assert await store.head("t")


async def test_a_claim_waits_for_the_removal_of_the_context(
    store: PostgresStore, postgres_url: str
) -> None:
    old = await store.claim(A, NODE, 1e9)
    assert old and await commit(store, ContextSaved(A, b"{}"), fence=old) is None
    with psycopg.connect(postgres_url) as other:
        other.execute("SELECT * FROM progress FOR UPDATE")  # no group is committed
        store.append([ContextRemoved(A)], fence=old)
        claiming = asyncio.create_task(store.claim(A, NODE, 1e9))
        await asyncio.sleep(0)
    new = await claiming
    assert new and new.token > old.token
    assert await commit(store, ContextSaved(A, b"{}"), created("t"), fence=new) is None


# --- incarnations and nodes ------------------------------------------------------------------


async def test_a_later_incarnation_ends_the_writes_of_the_earlier_one(postgres_url: str) -> None:
    host = RecordingHost()
    async with opened(postgres_url, host=host) as old:
        fence = await old.claim(A, NODE, 1e9)
        assert fence
        assert await commit(old, created("t"), batch("t", 1), fence=fence) is None
        async with opened(postgres_url) as new:
            assert await commit(new, batch("t", 2)) is None
            results = [commit(old, batch("t", 3), fence=fence), commit(old, created("u"))]
            assert [type(one) for one in await asyncio.gather(*results)] == [FenceLost] * 2
            assert host.calls[-1] == ("fenced", True) and NODE in str(old.problem)
            assert isinstance(await commit(old, TaskRemoved("t")), FenceLost)
            assert await old.renew(NODE, 1e9) == [fence]
            with pytest.raises(Unavailable):
                await old.claim(A, NODE, 1e9)
            assert await new.claim(A, NODE, 1e9) == fence
            assert await numbers(new, "t") == [1, 2]
            assert await new.head("u") is None


async def test_a_start_waits_for_the_commit_of_the_earlier_incarnation(postgres_url: str) -> None:
    async with opened(postgres_url) as old:
        assert await commit(old, created("t"), SessionOpened("s", A, b"{}")) is None
        with psycopg.connect(postgres_url) as other:
            other.execute("SELECT * FROM session FOR UPDATE")
            writing = asyncio.create_task(commit(old, batch("t", 1), OutputRead("s", 7)))
            sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            with session_of(postgres_url) as watcher:
                await until(lambda: watcher.execute(sql).fetchone() == (1,))
                starting = asyncio.create_task(PostgresStore(parse(postgres_url), NODE).open())
                await until(lambda: watcher.execute(sql).fetchone() == (2,))
                assert not starting.done()
                starting.cancel()
                await asyncio.wait([starting])
        assert await writing is None


async def test_another_node_cannot_fence_this_one_within_a_commit(
    store: PostgresStore, postgres_url: str
) -> None:
    assert await commit(store, created("t"), SessionOpened("s", A, b"{}")) is None
    fence = "UPDATE node SET epoch = -epoch, state = 'fenced'"
    with psycopg.connect(postgres_url) as other, session_of(postgres_url) as observer:
        other.execute("SELECT * FROM session FOR UPDATE")
        writing = asyncio.create_task(commit(store, batch("t", 1), OutputRead("s", 7)))
        sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        await until(lambda: observer.execute(sql).fetchone() == (1,))
        observer.execute("UPDATE node SET seen = now()")  # as a heartbeat
        observer.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            observer.execute(fence)
    assert await writing is None
    with session_of(postgres_url) as observer:
        observer.execute(fence)
    assert isinstance(await commit(store, batch("t", 2)), FenceLost)


async def test_each_server_has_its_own_contexts(postgres_url: str) -> None:
    async with (
        opened(postgres_url, NODE, terms=Terms(name="agent:a")) as first,
        opened(postgres_url, OTHER, terms=Terms(name="agent:b")) as second,
    ):
        fence = await first.claim(A, NODE, 1e9)
        assert fence
        assert await commit(first, created("t"), ContextSaved(A, b"{}"), fence=fence) is None
        assert await second.claim(A, OTHER, 1e9) is None
        holder = await second.cluster.holder(A)
        assert holder and (holder.name, holder.runs) == ("agent:a", True)
        assert await second.cluster.holder(ContextKey("agent", "local", "new")) is None
        assert (await second.contexts("agent"), await second.unfinished("agent")) == ([], [])
        head = await second.head("t")
        assert head and head.node == NODE
        assert await commit(first, batch("t", 1), fence=fence) is None
        assert await numbers(second, "t") == [1]
        found = {one.id: one for one in await second.cluster.nodes()}
        assert [one.name for one in found.values()] == ["agent:a", "agent:b"]
        assert (found[NODE].working, found[OTHER].working) == (1, 0)
        assert found[NODE].runs and found[OTHER].runs
        await first.abandon()
        await until_gone(second)
    async with opened(postgres_url, NODE) as again:
        assert len(await again.unfinished("agent")) == 1


async def until_gone(store: PostgresStore) -> None:
    """Until the server NODE is not connected any more."""
    async with asyncio.timeout(WITHIN):
        while any(one.runs for one in await store.cluster.nodes() if one.id == NODE):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_store_that_is_not_closed_does_not_delay_the_end(postgres_url: str) -> None:
    """As that of a server whose start fails. The pool ignores cancellations for ten minutes."""

    async def start() -> None:
        await PostgresStore(parse(postgres_url), NODE).open()

    async with asyncio.timeout(WITHIN):
        await asyncio.to_thread(asyncio.run, start())


# --- migrations ------------------------------------------------------------------------------


async def test_two_servers_migrate_at_once(postgres_url: str) -> None:
    connections = [await parse(postgres_url).connect() for _ in range(3)]
    async with asyncio.timeout(WITHIN):
        await asyncio.gather(*map(migrate, connections))
    found = await connections[0].execute("SELECT version FROM schema_version")
    assert await found.fetchall() == [(len(MIGRATIONS),)]
    for one in connections:
        await one.close()


async def test_a_newer_schema_is_used_while_it_permits_that(postgres_url: str) -> None:
    async with opened(postgres_url):
        pass
    with session_of(postgres_url) as other:
        newer = len(MIGRATIONS) + 1
        other.execute("UPDATE schema_version SET version = %s", (newer,))
        async with opened(postgres_url):
            pass
        other.execute("UPDATE schema_version SET oldest = %s", (newer,))
        with pytest.raises(ConfigurationError, match="newer version of the bridge"):
            await PostgresStore(parse(postgres_url), NODE).open()


async def test_other_clusters_of_the_database_are_not_seen(
    database: Postgres, postgres_url: str
) -> None:
    """A schema further back in the search_path has another cluster."""
    async with opened(postgres_url) as first:
        assert await commit(first, created("t")) is None
        with database.schema() as url:
            schema = postgres_url.rpartition("%3D")[2]
            async with opened(f"{url}{quote(',')}{schema}", OTHER) as second:
                assert await second.head("t") is None
        with pytest.raises(ConfigurationError, match="does not exist: create it"):
            await PostgresStore(parse(postgres_url + "x"), NODE).open()


# --- addresses, errors and keys --------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "exposed", "shown"),
    [
        ("postgresql:///b?host=/run/postgresql", False, "database b at /run/postgresql:5432"),
        ("postgres://u:pw@localhost:5433/b", False, "database b at localhost:5433"),
        ("postgresql://u:pw@127.0.0.1/b", False, "database b at 127.0.0.1:5432"),
        ("postgresql://[::1]/b", False, "database b at ::1:5432"),
        ("postgresql://u:pw@db.example/b", True, "database b at db.example:5432"),
        ("postgresql://db.example/b?sslmode=require", True, "database b at db.example:5432"),
        ("postgresql://db.example/b?sslmode=verify-full", False, "database b at db.example:5432"),
        ("postgresql://a:1,b:2/b", True, "database b at a:1, b:2"),
        ("postgresql://localhost,b/b", True, "database b at localhost:5432, b:5432"),
    ],
)
def test_an_address_shows_no_secret(url: str, exposed: bool, shown: str) -> None:
    address = parse(url)
    assert (address.exposed, address.shown) == (exposed, f"the {shown}")


@pytest.mark.parametrize(
    "url",
    ["postgresql://u:pa55@h/b?x=y", "postgresql://u:x@h/b?pa55=x", "postgresql://u:pa55%5@h/b"],
)
def test_a_wrong_url_is_explained(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"BRIDGE_STORE: .*postgresql://user@") as refused:
        parse(url)
    assert "pa55" not in str(refused.value)


async def test_a_server_that_cannot_be_reached_is_explained(postgres_url: str) -> None:
    url = "postgresql://u:pa55@127.0.0.1:1/b"
    with pytest.raises(ConfigurationError, match=r"database b at 127\.0\.0\.1:1:") as refused:
        await PostgresStore(parse(url), NODE).open()
    assert "Start PostgreSQL" in str(refused.value) and "pa55" not in str(refused.value)
    url = re.sub(r"/\w+\?", "/missing?", postgres_url)
    with pytest.raises(ConfigurationError, match="createdb"):
        await PostgresStore(parse(url), NODE).open()
    wrong = psycopg.errors.lookup("28P01")("password authentication failed")
    assert "Check the user" in str(explain(parse(url), wrong))


async def test_secrets_of_push_configs_are_encrypted(postgres_url: str) -> None:
    first, second = (Fernet.generate_key().decode() for _ in range(2))
    config = PushConfig("t", "c", "https://secret.example", "1.0", token="secret-token")
    async with opened(postgres_url, seal=Seal(first)) as store:
        await commit(store, created("t"), PushSaved(config))
        with session_of(postgres_url) as other:
            row = str(other.execute("SELECT * FROM push").fetchall())
            assert "secret" not in row
    async with opened(postgres_url, seal=Seal(f"{second}, {first}")) as store:
        assert await store.push_configs("t") == [config]
    async with opened(postgres_url, seal=Seal(second)) as store:
        assert await store.push_configs() == []
    with pytest.raises(ConfigurationError, match="BRIDGE_PUSH_KEY"):
        Seal("short")
