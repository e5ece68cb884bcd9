"""The cost of an event, counted and not timed: calls, renderings, writes, memory. A cost that grows
with the task, or with each subscriber, fails here on any machine."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from pathlib import Path

import pytest
from aiohttp import web

from bridge.a2a.codecs import CODECS
from bridge.session.pool import SessionPool
from bridge.store.event_log import BATCH
from tests.support import counting
from tests.support.client import Json, state, task_id
from tests.support.liveness import listening
from tests.support.served import Server, serving

FEW, MANY = 400, 4000
WITHIN = 60.0


async def burst(server: Server, count: int, subscribers: int = 1) -> list[list[Json]]:
    """The items of each subscriber of a task with so much output, which comes after all have
    subscribed."""
    client = server.client()
    async with asyncio.timeout(WITHIN), listening() as live:
        task = await client.send_now(f"wait {live.path} agent\nsteps {count}")
        await live.pid("agent")
        ready: asyncio.Queue[None] = asyncio.Queue()

        async def read() -> list[Json]:
            async with client.subscribe(task["id"]) as items:
                told: list[Json] = []
                async for item in items:
                    if not told:
                        ready.put_nowait(None)
                    told.append(item)
                return told

        readers = [asyncio.create_task(read()) for _ in range(subscribers)]
        for _ in readers:
            await ready.get()
        await live.release("agent")
        return [await reader for reader in readers]


ENCODERS = {type(codec).encode_update for codec in CODECS}  # the versions may share one


SAYS_WHEN_TOLD = """
import json, socket, sys
prompt = json.loads(sys.stdin.readline())
test = socket.socket(socket.AF_UNIX)
test.connect(prompt["text"])
while test.recv(1):
    print('{"type": "status", "text": "step"}', flush=True)
print('{"type": "done"}', flush=True)
"""


async def test_an_event_costs_the_same_however_many_came_before(workspace: Path) -> None:
    """Each is waited for, so that none comes together with another."""
    program, path = workspace / "program.py", workspace / "socket"
    program.write_text(SAYS_WHEN_TOLD)
    connected: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    per_event = []
    async with (
        asyncio.timeout(WITHIN),
        serving(workspace, program=str(program)) as server,
        await asyncio.start_unix_server(lambda _, writer: connected.set_result(writer), path),
        server.client().stream(str(path)) as items,
    ):
        agent = await connected
        for _ in range(4):
            with counting.counted() as calls:
                for _ in range(FEW):
                    agent.write(b".")
                    while "step" not in str(await anext(items)):
                        pass
            per_event.append(calls.ours / FEW)
        agent.close()
        await agent.wait_closed()
        assert [state(item) async for item in items][-1] == "completed"
    _, second, _, fourth = per_event  # what is done once for each task is in the first
    print(f"calls of ours per event: {second:.1f} up to {2 * FEW}, {fourth:.1f} up to {4 * FEW}")
    assert fourth <= second + 1
    assert fourth < 120
    later = calls.coroutines("process", "session", "runtime", "store")
    assert sum(later.values()) <= 1  # a reader that is late waits for once


async def test_an_update_is_rendered_once_for_all_subscribers(workspace: Path) -> None:
    async with serving(workspace) as server:
        await burst(server, FEW)
        with counting.counted() as calls:
            told = await burst(server, FEW, subscribers=20)
    assert {len(one) for one in told} == {len(told[0])}
    assert all(one[1:] == told[0][1:] for one in told)  # the first is the task as it was
    rendered = sum(calls.of(encoder) for encoder in ENCODERS)
    assert rendered <= len(told[0])


@pytest.mark.parametrize("subscribers", [1, 10])
async def test_ready_items_share_one_write(workspace: Path, subscribers: int) -> None:
    async with serving(workspace) as server:
        await burst(server, FEW)
        with counting.counted() as calls:
            told = await burst(server, MANY, subscribers)
    updates = sum(map(len, told))
    writes = calls.of(web.StreamResponse.write)
    print(f"{updates} updates in {writes} writes")
    # As many as there are batches, and pauses of the agent, whose output comes in pieces.
    assert writes <= subscribers * (2 * MANY / BATCH + 40)


async def settled_memory(wanted: int) -> int:
    """Allocated bytes soon after a client has read the end of its stream, when the server may still
    hold it. Returns at once if they are at most `wanted`."""
    for _ in range(50):
        await asyncio.sleep(0.02)
        kept, _ = tracemalloc.get_traced_memory()
        if kept <= wanted:
            break
    return kept


async def test_an_update_takes_as_much_memory_however_many_there_are(workspace: Path) -> None:
    sizes = []
    async with serving(workspace) as server:
        await burst(server, FEW)
        for count in (FEW, MANY):
            tracemalloc.start()
            try:
                (told,) = await burst(server, count)
                assert state(told[-1]) == "completed" and task_id(told[0])
                told.clear()
                kept = await settled_memory(300 * count if count == MANY else 0)
            finally:
                tracemalloc.stop()
            sizes.append(kept / count)
    few, many = sizes
    print(f"bytes kept per update: {few:.0f} of {FEW}, {many:.0f} of {MANY}")
    assert many <= 0.3 * few  # what was said is not kept: the rest is what any task costs
    assert many < 300


async def test_a_task_leaves_nothing_for_the_collector(workspace: Path) -> None:
    """Which is why it seldom looks (bridge/telemetry/gc_tuning.py)."""
    async with serving(workspace, bridge_max_sessions=1) as server:
        await burst(server, FEW)  # what is done once
        left = []
        gc.collect()
        gc.disable()
        try:
            for tasks in (1, 6):
                for _ in range(tasks):
                    await burst(server, FEW)
                left.append(gc.collect())
        finally:
            gc.enable()
    print(f"objects left by 1 task: {left[0]}, by 6: {left[1]}")
    assert left[1] < 6 * 30  # the test has 22 of its own for each


class Waiting:
    """A context that waits for a slot, and counts the checks whether it still wants one."""

    idle = False

    def __init__(self, number: int) -> None:
        self.owner = f"owner-{number % 10}"
        self.looks = 0

    async def close(self) -> None: ...

    async def work(self, pool: SessionPool) -> None:
        await pool.acquire(self, self.wants)
        await asyncio.sleep(0)
        pool.release(self)

    def wants(self) -> bool:
        self.looks += 1
        return True


async def test_a_free_slot_wakes_one_waiting_context() -> None:
    async def looks(number: int) -> float:
        pool, all_of_them = SessionPool(8), [Waiting(one) for one in range(number)]
        async with asyncio.timeout(WITHIN):
            await asyncio.gather(*(one.work(pool) for one in all_of_them))
        return sum(one.looks for one in all_of_them) / number

    few, many = await looks(50), await looks(500)
    print(f"looks of each: {few:.1f} of 50, {many:.1f} of 500")
    assert many <= 1.2 * few < 10
