"""The load of MCP on a server that A2A clients use at the same time. Times need a quiet machine."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.support.bridge_process import bridge
from tests.support.client import Client, streamed_text
from tests.support.load import AGENT, PIECE
from tests.support.mcp import Mcp

pytestmark = pytest.mark.soak
MOST_DELAY = 0.1  # seconds: the 99th percentile of the others' requests
POLLS, CLIENTS, SECONDS = 1_000, 16, 5  # polls and updates: in a second
UPDATES = 50


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


async def timed(
    request: Callable[[], Awaitable[object]], until: asyncio.Future[Any]
) -> list[float]:
    """The seconds that each request took, one after the other."""
    times: list[float] = []
    while not until.done():
        begun = time.perf_counter()
        await request()
        times.append(time.perf_counter() - begun)
    return times


async def test_others_wait_little_while_the_library_is_imported(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    """It takes a second of a server's process, in a thread."""
    for _ in range(3):
        async with bridge(workspace, "--adapter", "replay") as server:

            async def health() -> None:
                async with http.get(f"{server.url}/health") as response:
                    assert response.status == 200

            await health()
            first = asyncio.ensure_future(Mcp(http, server.url).call("tools/list", {}))
            times = await timed(health, first)
            assert len((await first)["tools"]) == 7
        print(f"{len(times)} requests: 99 % in {p99(times) * 1000:.0f} ms")
        assert p99(times) <= MOST_DELAY


async def test_polls_beside_a_stream(workspace: Path, http: aiohttp.ClientSession) -> None:
    """1,000 polls a second by 16 clients, and an A2A stream whose updates all arrive, in order and
    without delay. The CPU time shows that one core suffices; a busy machine takes longer."""
    program = workspace.parent / "agent.py"
    program.write_text(AGENT)
    settings: dict[str, Any] = {
        "AGENT_ADAPTER": "jsonl",
        "AGENT_BINARY": sys.executable,
        "AGENT_ARGS": f"-I -S {program}",
    }
    async with bridge(workspace, **settings) as server:
        mcp = Mcp(http, server.url, tasks=True)
        created = await mcp.tool("delegate", {"prompt": f"{time.monotonic() + 600} 1 1"})
        named = {"taskId": created["taskId"]}
        body, headers = json.dumps(mcp.body("tasks/get", named)), mcp.routing("tasks/get", named)
        delays: list[float] = []

        async def read() -> None:
            client = Client(http, server.url)
            pause = 1 / UPDATES
            async with client.stream(f"{time.monotonic()} {pause} {SECONDS * UPDATES}") as events:
                async for event in events:
                    now = time.monotonic_ns()
                    for number, at in PIECE.findall(streamed_text([event])):
                        assert int(number) == len(delays)
                        delays.append((now - int(at)) / 1e9)

        async def poll(worker: int) -> None:
            for number in range(worker, POLLS * SECONDS, CLIENTS):
                await asyncio.sleep(max(0.0, begun + number / POLLS - time.monotonic()))
                async with http.post(mcp.url, data=body, headers=headers) as response:
                    assert response.status == 200
                    assert (await response.json())["result"]["status"] == "working"

        process = psutil.Process(server.process.pid)
        used = sum(process.cpu_times()[:2])
        begun = time.monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(read())
            polling = [group.create_task(poll(worker)) for worker in range(CLIENTS)]
            await asyncio.wait(polling)
            took = time.monotonic() - begun
            used = sum(process.cpu_times()[:2]) - used
        await mcp.task("cancel", created["taskId"])
    print(f"{POLLS * SECONDS / took:.0f} polls/s with {used / took:.2f} cores")
    print(f"99 % of the updates in {p99(delays) * 1000:.0f} ms")
    assert len(delays) == SECONDS * UPDATES
    assert used <= SECONDS
    assert p99(delays) <= MOST_DELAY
