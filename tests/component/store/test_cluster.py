"""Two servers of a database: commands for each other, and decisions that only one of them makes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace

import psycopg
import pytest

from bridge.errors import TooManyRequests, Unavailable
from bridge.store.changes import (
    Change,
    CommandDone,
    ContextKey,
    ContextSaved,
    EventBatch,
    MessageAccepted,
    MessageKey,
    TaskCreated,
)
from bridge.store.cluster import Command
from bridge.store.postgres.connect import parse
from bridge.store.postgres.store import PostgresStore
from bridge.store.protocol import KnownMessage, StoreError
from bridge.task.transitions import TaskState

WITHIN = 60.0
NODE, OTHER = "0123456789abcdef", "fedcba9876543210"
A = ContextKey("agent", "local", "a")
COMMAND = Command("c-1", A, OTHER, "send", b"{}", b'{"x": 1}')
MESSAGE = MessageKey("agent", "local", "m" * 20, b"digest")
Pair = tuple[PostgresStore, PostgresStore]


@asynccontextmanager
async def opened(url: str, node: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(parse(url), node)
    await store.open()
    try:
        yield store
    finally:
        async with asyncio.timeout(WITHIN):
            await store.close()


@pytest.fixture
async def pair(postgres_url: str) -> AsyncIterator[Pair]:
    """The server that has the context A, and another one."""
    async with AsyncExitStack() as stack:
        owner, other = [
            await stack.enter_async_context(opened(postgres_url, node)) for node in (NODE, OTHER)
        ]
        assert await owner.claim(A, NODE, 1e9)
        yield owner, other


async def commit(store: PostgresStore, *changes: Change) -> StoreError | None:
    done: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
    store.append(changes, fence=None, then=done.set_result)
    async with asyncio.timeout(WITHIN):
        return await done


def created(task_id: str, context: ContextKey = A, owner: str = "local") -> TaskCreated:
    return TaskCreated(task_id, replace(context, owner=owner), 1, b"{}")


async def next_command(store: PostgresStore) -> Command:
    async with asyncio.timeout(WITHIN), aclosing(store.cluster.commands()) as commands:  # type: ignore[type-var]
        async for command in commands:
            return command
    raise AssertionError


async def test_a_command_reaches_the_server_of_its_context_once(pair: Pair) -> None:
    owner, other = pair
    asking = asyncio.create_task(other.cluster.ask(COMMAND, NODE))
    assert await next_command(owner) == COMMAND
    later = asyncio.create_task(next_command(owner))
    second = replace(COMMAND, id="c-2")
    asking_again = asyncio.create_task(other.cluster.ask(second, NODE))
    assert await later == second  # not the first one again
    await commit(owner, CommandDone("c-1", OTHER, b"yes"), created("t"))
    await commit(owner, CommandDone("c-2", OTHER, b"no"))
    async with asyncio.timeout(WITHIN):
        assert (await asking, await asking_again) == (b"yes", b"no")


async def test_a_context_that_was_not_begun_is_given_to_a_server(pair: Pair) -> None:
    owner, other = pair
    fresh = ContextKey("agent", "local", "fresh")
    fence = await owner.claim(A, NODE, 1e9)
    done = asyncio.get_running_loop().create_future()
    owner.append([ContextSaved(A, b"{}")], fence=fence, then=done.set_result)
    assert await done is None

    async def holder(key: ContextKey) -> str | None:
        found = await other.cluster.holder(key)
        return found.id if found else None

    assert await other.cluster.assign(fresh, NODE) and await holder(fresh) == NODE
    assert not await other.cluster.assign(fresh, OTHER)  # its server runs
    assert await owner.claim(fresh, NODE, 1e9)
    await owner.abandon()
    async with asyncio.timeout(WITHIN):  # until the database has seen the end
        while not await other.cluster.assign(fresh, OTHER):
            pass
    assert await holder(fresh) == OTHER
    assert not await other.cluster.assign(A, OTHER)  # it was begun
    assert await holder(A) == NODE


async def test_a_command_arrives_without_hints(pair: Pair) -> None:
    """Takes a second, because the servers look into the table each second."""
    owner, other = pair
    for one in pair:
        await one.bus.close()
    asking = asyncio.create_task(other.cluster.ask(COMMAND, NODE))
    assert await next_command(owner) == COMMAND
    await commit(owner, CommandDone("c-1", OTHER, b"yes"))
    async with asyncio.timeout(WITHIN):
        assert await asking == b"yes"


async def test_the_next_server_executes_a_command_without_an_answer(
    pair: Pair, postgres_url: str
) -> None:
    owner, other = pair
    asking = asyncio.create_task(other.cluster.ask(COMMAND, NODE))
    assert await next_command(owner) == COMMAND
    await owner.abandon()
    async with opened(postgres_url, NODE) as again:
        await again.claim(A, NODE, 1e9)
        assert await next_command(again) == COMMAND
        await commit(again, CommandDone("c-1", OTHER, b"yes"))
        async with asyncio.timeout(WITHIN):
            assert await asking == b"yes"


async def test_a_command_for_a_server_that_released_the_context_has_no_effect(
    pair: Pair,
) -> None:
    owner, other = pair
    fence = await owner.claim(A, NODE, 1e9)
    assert fence and await commit(owner, ContextSaved(A, b"{}")) is None
    await owner.release(fence)
    async with asyncio.timeout(WITHIN):
        assert await other.cluster.ask(COMMAND, NODE) is None
    await owner.claim(A, NODE, 1e9)
    second = asyncio.create_task(other.cluster.ask(replace(COMMAND, id="c-2"), NODE))
    assert (await next_command(owner)).id == "c-2"
    await commit(owner, CommandDone("c-2", OTHER, b""))
    await second


async def test_a_command_without_an_answer_ends(pair: Pair) -> None:
    """Takes a second: a command that was taken is waited for."""
    owner, other = pair
    other.cluster.answer_within = 0.1
    with pytest.raises(Unavailable, match="does not answer"):
        await other.cluster.ask(COMMAND, NODE)  # no server has taken it
    other.cluster.answer_within = 1.0
    second = asyncio.create_task(other.cluster.ask(replace(COMMAND, id="c-2"), NODE))
    assert (await next_command(owner)).id == "c-2"
    with pytest.raises(Unavailable, match="may still take effect"):
        await second


async def test_only_one_server_accepts_a_message(pair: Pair, postgres_url: str) -> None:
    owner, other = pair
    assert await owner.cluster.reserve(MESSAGE) is None
    waiting = asyncio.create_task(other.cluster.reserve(MESSAGE))
    await commit(owner, created("t"), MessageAccepted(MESSAGE, "t"))
    async with asyncio.timeout(WITHIN):
        assert await waiting == KnownMessage("t") == await owner.cluster.reserve(MESSAGE)

    refused = replace(MESSAGE, id="r" * 20)
    assert await owner.cluster.reserve(refused) is None
    waiting = asyncio.create_task(other.cluster.reserve(refused))
    await owner.cluster.unreserve(refused)
    async with asyncio.timeout(WITHIN):
        assert await waiting is None
    await other.cluster.unreserve(refused)

    left = replace(MESSAGE, id="l" * 20)
    assert await owner.cluster.reserve(left) is None
    await owner.abandon()
    async with opened(postgres_url, NODE):  # its earlier incarnation decides nothing any more
        assert await other.cluster.reserve(left) is None


async def test_a_reserved_message_is_unknown_to_reads(pair: Pair) -> None:
    owner, other = pair
    assert await owner.cluster.reserve(MESSAGE) is None
    assert await other.message(MESSAGE) is None
    assert await commit(owner, created("t"), MessageAccepted(MESSAGE, "t")) is None
    assert await other.message(MESSAGE) == KnownMessage("t")


async def test_starts_count_at_all_servers(pair: Pair) -> None:
    owner, other = pair
    for number, store in enumerate((owner, other, owner)):
        await store.cluster.admit("alice", f"t{number}", tasks=3, per_minute=0)
    await other.cluster.admit("alice", "t0", tasks=3, per_minute=0)  # it counts once
    await other.cluster.admit("bob", "b0", tasks=3, per_minute=0)
    with pytest.raises(TooManyRequests, match="3 unfinished tasks"):
        await other.cluster.admit("alice", "t3", tasks=3, per_minute=0)
    await owner.cluster.withdraw("t0")
    await other.cluster.admit("alice", "t3", tasks=3, per_minute=0)
    context = replace(A, owner="alice")
    end = EventBatch("t1", 1, 2, b"[]", 1, TaskState.COMPLETED, 2)
    assert await commit(owner, created("t1", context, "alice"), end) is None
    with pytest.raises(TooManyRequests, match="3 tasks per minute") as error:
        await other.cluster.admit("alice", "t4", tasks=3, per_minute=3)
    assert 50 <= error.value.seconds <= 61
    await other.cluster.admit("alice", "t4", tasks=3, per_minute=4)


async def test_parallel_starts_do_not_exceed_a_limit(pair: Pair) -> None:
    async def start(number: int) -> bool:
        try:
            await pair[number % 2].cluster.admit("alice", f"t{number}", tasks=5, per_minute=0)
        except TooManyRequests:
            return False
        return True

    assert sum(await asyncio.gather(*map(start, range(20)))) == 5


async def test_unplaced_contexts_are_offered_by_owner(pair: Pair) -> None:
    owner, other = pair
    keys = [ContextKey("agent", name, f"c{n}") for n, name in enumerate(("x", "x", "y"))]
    for number, key in enumerate(keys):
        await commit(owner, ContextSaved(key, b"{}"), created(f"t{number}", key, key.owner))
    running = ContextKey("agent", "x", "runs")
    fence = await owner.claim(running, NODE, 1e9)
    assert fence
    await commit(owner, ContextSaved(running, b"{}"), created("t-runs", running, "x"))
    found = asyncio.Event()
    other.cluster.on_work(found.set)
    await owner.cluster.offer()
    async with asyncio.timeout(WITHIN):
        await found.wait()
    assert await other.cluster.unplaced(["agent"], 9) == [keys[2], keys[0], keys[1]]
    assert await other.cluster.unplaced(["agent"], 1) == [keys[2]]
    assert await other.cluster.unplaced(["another"], 9) == []
    fence = await other.claim(keys[2], OTHER, 1e9)
    assert fence and fence.saved
    assert await owner.claim(keys[2], NODE, 1e9) is None
    assert await owner.cluster.unplaced(["agent"], 1) == [keys[0]]


async def test_a_start_forgets_servers_that_are_gone(pair: Pair, postgres_url: str) -> None:
    for one in pair:
        await one.close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE node SET state = 'fenced', seen = now() - interval '2 days'")
    async with opened(postgres_url, "a" * 16) as new:
        found = [one.id for one in await new.cluster.nodes()]
    assert sorted(found) == [NODE, "a" * 16]  # the first one has a context
