"""Servers that beat, fence a lost one and take its contexts, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from bridge.store.changes import (
    Change,
    ContextKey,
    ContextSaved,
    EventBatch,
    Fence,
    SessionOpened,
    TaskCreated,
)
from bridge.store.postgres.connect import parse
from bridge.store.postgres.membership import Terms
from bridge.store.postgres.store import PostgresStore
from bridge.store.protocol import FenceLost, StoreError
from bridge.task.transitions import TaskState
from tests.support.ledger import check_epochs
from tests.support.nodes import RecordingHost
from tests.support.proxy import Proxy, serving
from tests.support.servers import Postgres

WITHIN = 60.0
LEASE, LONG = 0.5, 1.0  # LONG: for servers that must not be lost on a busy machine
TERMS = Terms(lease=LEASE, grace=0.2, shares=["s"], agents={"a": {}}, slots=4)
LONGER = replace(TERMS, lease=LONG)
SHORTEST = replace(TERMS, lease=2.0)
A, B = "0123456789abcdef", "fedcba9876543210"
SHARED, PINNED = ContextKey("a", "local", "shared"), ContextKey("a", "local", "pinned")


class Node:
    def __init__(self, store: PostgresStore, host: RecordingHost) -> None:
        self.store = store
        self.host = host

    async def commit(self, *changes: Change, fence: Fence | None = None) -> StoreError | None:
        outcome: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        self.store.append(changes, fence=fence, then=outcome.set_result)
        async with asyncio.timeout(WITHIN):
            return await outcome

    async def begin(self, key: ContextKey, share: str | None) -> Fence:
        """A context with a task, whose first batch is committed."""
        fence = await self.store.claim(key, self.store.node, 1e9)
        assert fence
        made: list[Change] = [ContextSaved(key, b"{}", share), TaskCreated(key.id, key, 1, b"{}")]
        assert await self.commit(*made, fence=fence) is None
        session = SessionOpened(f"s-{key.id}", key, b"{}")
        assert await self.commit(session, batch(key, 1), fence=fence) is None
        return fence


def batch(key: ContextKey, number: int) -> EventBatch:
    return EventBatch(key.id, number, number, b"[]", number, TaskState.WORKING, number)


@asynccontextmanager
async def node(url: str, name: str, terms: Terms = TERMS) -> AsyncIterator[Node]:
    host = RecordingHost()
    store = PostgresStore(parse(url), name, terms=terms, host=host)
    await store.open()
    store.takeover.start()
    try:
        yield Node(store, host)
    finally:
        async with asyncio.timeout(WITHIN):
            await store.close()


async def lose(url: str, *, share: str | None = "s", of: ContextKey = SHARED) -> None:
    """A node that ends without a word, in the middle of a task."""
    host = RecordingHost()
    store = PostgresStore(parse(url), A, terms=TERMS, host=host)
    await store.open()
    await Node(store, host).begin(of, share)
    await store.abandon()


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()


async def until(condition: Callable[[], object]) -> None:
    """For a condition without an event."""
    async with asyncio.timeout(WITHIN):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_shared_context_of_a_lost_server_is_taken_once(postgres_url: str) -> None:
    """Takes two seconds: a lease of half a second, and the time in which nothing more happens."""
    await lose(postgres_url)
    async with node(postgres_url, B) as b, node(postgres_url, "c" * 16) as c:
        await until(lambda: b.host.taken or c.host.taken)
        await asyncio.sleep(LEASE)
        assert len([*b.host.taken, *c.host.taken]) == 1
        taker = b if b.host.taken else c
        fence = taker.host.taken[SHARED]
        assert await taker.commit(batch(SHARED, 2), fence=fence) is None
        assert rows(postgres_url, "SELECT epoch, after FROM takeover") == [
            (taker.store.membership.epoch, 1)
        ]
        assert rows(postgres_url, "SELECT count(*) FROM session") == [(0,)]
        states = {one.id: one.state for one in await b.store.cluster.nodes()}
        assert states == {A: "fenced", B: "up", "c" * 16: "up"}


async def test_a_context_of_one_server_waits_for_the_grace(postgres_url: str) -> None:
    """Takes a second: the lease."""
    await lose(postgres_url, share=None, of=PINNED)
    async with node(postgres_url, B, replace(TERMS, grace=0.3)) as b:
        assert await b.host.called("finish") == PINNED
        assert b.host.had("adopt") == []
        await until(lambda: rows(postgres_url, "SELECT node FROM context") == [(A,)])


async def test_a_server_that_returns_within_the_grace_keeps_its_context(postgres_url: str) -> None:
    """Takes three seconds: a lease, and the grace in which nothing happens."""
    await lose(postgres_url, share=None, of=PINNED)
    async with node(postgres_url, B, replace(LONGER, grace=3 * LEASE)) as b:
        fenced = "SELECT 1 FROM node WHERE state = 'fenced'"
        await until(lambda: rows(postgres_url, fenced))
        async with node(postgres_url, A, LONGER) as a:
            (found,) = await a.store.sessions("a")
            assert found.context == PINNED
            await asyncio.sleep(4 * LEASE)
            assert b.host.had("finish") == [] and b.host.had("adopt") == []
            fence = await a.store.claim(PINNED, A, 1e9)
            assert await a.commit(batch(PINNED, 2), fence=fence) is None


async def test_a_fenced_server_writes_nothing_and_is_told(postgres_url: str) -> None:
    async with node(postgres_url, A, replace(TERMS, lease=60.0)) as a:
        fence = await a.begin(SHARED, "s")
        rows(postgres_url, "UPDATE node SET epoch = -epoch, state = 'fenced' RETURNING 1")
        assert isinstance(await a.commit(batch(SHARED, 2), fence=fence), FenceLost)
        assert a.host.had("fenced") == [False]
        assert rows(postgres_url, "SELECT count(*) FROM event") == [(1,)]


async def test_an_idle_server_learns_from_its_beat_that_it_is_fenced(postgres_url: str) -> None:
    async with node(postgres_url, A) as a:
        rows(postgres_url, "UPDATE node SET epoch = -epoch, state = 'fenced' RETURNING 1")
        assert await a.host.called("fenced") is False


async def test_a_server_that_returns_knows_the_shares_of_its_contexts(postgres_url: str) -> None:
    await lose(postgres_url)
    await lose(postgres_url, share=None, of=PINNED)
    async with node(postgres_url, A) as a:
        found = {one.context: one.share for one in await a.store.contexts("a")}
        assert found == {SHARED: "s", PINNED: None}


async def test_other_settings_are_reported(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with node(postgres_url, A), node(postgres_url, B, replace(TERMS, config=b"x")):
        await until(lambda: "other settings" in caplog.text)


class Switch(Proxy):
    """Passes nothing on, and takes no connection, while it is `off`."""

    off = False

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.off:
            writer.transport.abort()
            return
        await super().__call__(reader, writer)

    async def before(self, data: bytes, up: bool) -> None:
        if self.off:
            await asyncio.get_running_loop().create_future()  # without FIN


def through(url: str, proxy: Proxy) -> str:
    options = url.partition("&options=")[2]
    return f"postgresql://postgres@{proxy.url.removeprefix('http://')}/postgres?options={options}"


async def test_an_outage_of_the_database_fences_nobody(
    database: Postgres, postgres_url: str
) -> None:
    """Takes seconds: an outage of three leases of the shortest time that a server may have. With a
    shorter one, a server on a busy machine would connect again too late."""
    if not database.restarts:
        pytest.skip("the server of BRIDGE_TEST_POSTGRES has an address of its own")
    proxy = Switch(database.port)
    async with serving(proxy):
        url = through(postgres_url, proxy)
        async with node(url, A, SHORTEST) as a, node(url, B, SHORTEST) as b:
            fence = await a.begin(SHARED, "s")
            await until(lambda: a.host.had("renewed") and b.host.had("renewed"))
            proxy.off = True
            assert await a.host.called("doubt") and await b.host.called("doubt")
            assert a.store.problem
            await asyncio.sleep(3 * SHORTEST.lease)
            proxy.off = False
            await until(lambda: a.host.had("doubt") == b.host.had("doubt") == [True, False])
            assert await a.commit(batch(SHARED, 2), fence=fence) is None
            await asyncio.sleep(1.5 * SHORTEST.lease)
            assert a.host.had("fenced") == b.host.had("fenced") == []
            assert not a.host.taken and not b.host.taken


async def test_a_server_without_the_database_is_fenced_and_learns_it_later(
    database: Postgres, postgres_url: str
) -> None:
    """Takes two seconds: a lease."""
    if not database.restarts:
        pytest.skip("the server of BRIDGE_TEST_POSTGRES has an address of its own")
    proxy = Switch(database.port)
    async with serving(proxy):
        async with (
            node(through(postgres_url, proxy), A, LONGER) as a,
            node(postgres_url, B, LONGER) as b,
        ):
            fence = await a.begin(SHARED, "s")
            loop = asyncio.get_running_loop()
            proxy.off, begun = True, loop.time()
            writing = asyncio.create_task(a.commit(batch(SHARED, 2), fence=fence))
            assert await a.host.called("doubt") is True
            assert loop.time() - begun < 0.9 * LONG
            assert await b.host.called("adopt") == SHARED
            assert loop.time() - begun > 0.75 * LONG
            proxy.off = False
            assert isinstance(await writing, FenceLost)
            assert a.host.had("fenced") == [False]
            assert [one.number for one in await b.store.read(SHARED.id)] == [1]


async def test_a_server_that_stops_within_a_commit_cannot_delay_its_fence(
    postgres_url: str,
) -> None:
    """Takes a second: the database ends its transaction, and the lease."""
    await lose(postgres_url)
    url, epoch = postgres_url, rows(postgres_url, "SELECT epoch FROM node")[0][0]
    with contextlib.closing(psycopg.connect(url)) as stopped:
        stopped.execute(f"SET idle_in_transaction_session_timeout = {int(200 * LEASE)}".encode())
        stopped.execute("SELECT fence(%s, %s)", (A, epoch))
        async with node(url, B) as b:
            assert await b.host.called("adopt") == SHARED


NO_FENCE = """CREATE OR REPLACE FUNCTION fence(me text, e bigint) RETURNS void
    LANGUAGE plpgsql AS $$ BEGIN END $$"""


@pytest.mark.parametrize("fenced", [True, False])
async def test_the_ledger_finds_the_writes_of_a_lost_server(
    postgres_url: str, fenced: bool
) -> None:
    """Takes a second: a lease. Without the fence, the checker must find the late batch."""
    async with node(postgres_url, A, replace(TERMS, lease=60.0)) as a:
        await a.begin(SHARED, "s")
        if not fenced:
            with psycopg.connect(postgres_url, autocommit=True) as connection:
                connection.execute(NO_FENCE.encode())
        async with node(postgres_url, B) as b:
            fence = await taken(b, SHARED)
            assert await b.commit(batch(SHARED, 2), fence=fence) is None
            late = await a.commit(batch(SHARED, 3))
            assert isinstance(late, FenceLost) is fenced
            assert await b.commit(batch(SHARED, 3 if fenced else 4), fence=fence) is None
        assert bool(check_epochs(postgres_url)) is not fenced


async def taken(one: Node, key: ContextKey) -> Fence:
    await one.host.called("adopt")
    return one.host.taken[key]
