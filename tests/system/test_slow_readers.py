"""A client that does not read, beside others: the delay of the others, and what all of them get."""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import psutil
import pytest

from scripts.benchmarks.servers import make_agent
from scripts.benchmarks.slow_reader import (
    CUTS,
    KNOWN,
    PER_SECOND,
    STREAMS,
    marks,
    measured,
    script,
)
from tests.support.bridge_process import bridge
from tests.support.client import Json
from tests.support.prometheus import page_of, series
from tests.support.stdio_server import request, unread

pytestmark = pytest.mark.soak
MIB = 2**20
WITHIN = 60.0
SECONDS, SIZE = 8.0, 4096  # of a task; bytes of its texts


@pytest.mark.parametrize("name", KNOWN)
async def test_others_wait_at_most_twice_as_long(name: str) -> None:
    """Ten rounds of four seconds: their medians, or the best ones on a busy machine."""
    with tempfile.TemporaryDirectory(prefix="slow-") as folder:
        found = await measured(make_agent(Path(folder)), Path(folder), name)
    print(f"{name}: {found.ratio:.2f} x, {found.grown:.1f} MiB, {found}")
    assert min(found.ratio, found.best) <= 2
    assert found.grown <= 8
    assert bool(found.cuts) is (name in CUTS)


@pytest.mark.parametrize("proxy", [False, True], ids=["server", "proxy"])
async def test_a_parent_that_does_not_read_loses_nothing(
    workspace: Path, http: aiohttp.ClientSession, proxy: bool
) -> None:
    """All streams of the pipe wait, in bounded memory, while the agents go on for seconds. The
    server of a proxy disconnects it meanwhile, and the proxy resumes its streams."""
    agent = make_agent(workspace.parent)
    env = {
        "AGENT_BINARY": agent.command[0],
        "AGENT_ARGS": " ".join(agent.command[1:]),
        "BRIDGE_STALL_TIMEOUT_MS": "1000",
        "BRIDGE_MAX_SESSIONS": str(STREAMS),
        "BRIDGE_DRAIN_MS": "60000",
        "BRIDGE_STATE_DIR": f"{workspace}-state",
    }
    async with AsyncExitStack() as stack:
        arguments: list[str] = []
        if proxy:
            path = workspace.parent / "run/socket"
            path.parent.mkdir(mode=0o700)
            own: Json = {**env, "AGENT_ADAPTER": "jsonl", "BRIDGE_UNIX_SOCKET": str(path)}
            server = await stack.enter_async_context(bridge(workspace, **own))
            arguments = ["--url", f"unix:{path}"]
        one = await stack.enter_async_context(unread(workspace, *arguments, **env))
        messages = [{"message": script(SECONDS, SIZE)} for _ in range(STREAMS)]
        one.send(*(request(n, "SendStreamingMessage", p) for n, p in enumerate(messages)))
        process = psutil.Process(one.process.pid)
        if proxy:
            cut = series("bridge_slow_readers_cut_total", binding="http")
            async with asyncio.timeout(WITHIN):
                while (await page_of(http, server.url))[cut] < STREAMS // 2:
                    pass
        else:
            await one.logged(b"does not read its answers")
        before = process.memory_info().rss
        await asyncio.sleep(SECONDS / 2)  # the time without a reader is the subject
        grown = (process.memory_info().rss - before) / MIB
        frames = await one.frames(STREAMS)
        assert await one.leave() == 0
    check(frames)
    print(f"{grown:.1f} MiB")
    texts = 0 if proxy else STREAMS * PER_SECOND * SECONDS / 2 * SIZE / MIB  # of running tasks
    assert grown < texts + 8


def check(frames: list[Json]) -> None:
    """Each stream has all items and texts, once and in order."""
    for number in range(STREAMS):
        *items, end = [frame for frame in frames if frame["id"] == number]
        assert end.get("streamEnd"), json.dumps(end)
        assert [item["eventId"] for item in items] == list(range(len(items)))
        found = [text for item in items for text, _ in marks(item["result"])]
        assert found == list(range(len(found))) and len(found) == PER_SECOND * SECONDS
