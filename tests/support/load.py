"""Many agents at once, against the real server with the store on disk: is anything lost, and what
does it take? `scripts/chaos --load` prints the table.

Each agent is a process of its own that says numbered pieces at a steady pace, each with the time at
which it was written; its client reads the stream, and every piece must come once and in order.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from tests.support.bridge_process import bridge
from tests.support.client import Client, Json, state, texts

SECONDS = 20
Meanwhile = Callable[[Path, aiohttp.ClientSession, str], Coroutine[Any, Any, None]]
MIB = 1024 * 1024
PIECE = re.compile(r"(\d+)@(\d+);")
# Speaks the protocol of docs/jsonl-protocol.md. It begins when all of the agents are there.
AGENT = """
import json, sys, time
for line in sys.stdin:
    begin, pause, count = map(float, json.loads(line)["text"].split())
    for number in range(int(count)):
        time.sleep(max(0, begin + number * pause - time.monotonic()))
        text = "%d@%d;" % (number, time.monotonic_ns())
        print(json.dumps({"type": "text", "text": text}), flush=True)
    print('{"type": "done"}', flush=True)
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Times in milliseconds, from the agent's write to the client's read; memory in MiB."""

    tasks: int
    rate: int
    lost: int
    median: float
    most: float
    idle: float
    peak: float
    cpu: float

    @property
    def row(self) -> str:
        return (
            f"| {self.tasks} at {self.rate}/s | {self.lost} | {self.median:.1f} | {self.most:.1f} "
            f"| {self.idle:.0f} | {self.peak:.0f} | {self.cpu:.0f} |"
        )


HEAD = """| tasks, pieces | lost or twice | median ms | 99 % | MiB idle | at most | CPU µs a piece |
|---|---:|---:|---:|---:|---:|---:|"""


async def run(
    tasks: int,
    rate: int,
    seconds: int = SECONDS,
    *,
    before: Callable[[Path], object] = lambda folder: None,
    meanwhile: Meanwhile | None = None,
) -> Outcome:
    """So many agents at once, each of which prints `rate` pieces per second. `before` gets the
    folder of the run before the server starts. `meanwhile` gets it and the address of the server,
    and is cancelled at the end; its error is that of the run."""
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        workspace = Path(folder) / "workspace"
        workspace.mkdir()
        before(Path(folder))
        program = Path(folder) / "agent.py"
        program.write_text(AGENT)
        settings: dict[str, Any] = {
            "AGENT_ADAPTER": "jsonl",
            "AGENT_BINARY": sys.executable,
            "AGENT_ARGS": f"-I -S {program}",
            "BRIDGE_STATE_DIR": f"{folder}/state",
            "BRIDGE_MAX_SESSIONS": str(tasks),
            "BRIDGE_MAX_CONNECTIONS": str(2 * tasks),
            "LOG_LEVEL": "ERROR",
        }
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            bridge(workspace, **settings) as server,
            aiohttp.ClientSession(connector=connector) as http,
        ):
            client = Client(http, server.url, "1.0")
            process = psutil.Process(server.process.pid)
            also = (
                asyncio.create_task(meanwhile(Path(folder), http, server.url))
                if meanwhile
                else None
            )
            try:
                return await _measure(client, process, tasks, rate, seconds)
            finally:
                if also:
                    also.cancel()
                    await asyncio.wait([also])
                    if not also.cancelled():
                        also.result()


async def _measure(
    client: Client, server: psutil.Process, tasks: int, rate: int, seconds: int
) -> Outcome:
    idle = server.memory_info().rss / MIB
    begin = time.monotonic() + 3 + tasks / 50  # until then all agents have been started
    count = rate * seconds
    used = sum(server.cpu_times()[:2])
    streams = [
        asyncio.create_task(_read(client, f"{begin} {1 / rate} {count}")) for _ in range(tasks)
    ]
    peaks: list[float] = []
    watching = asyncio.create_task(_peak(server, peaks))
    async with asyncio.timeout(seconds + tasks / 20 + 60):
        read = await asyncio.gather(*streams)
    watching.cancel()
    used = sum(server.cpu_times()[:2]) - used
    waits = sorted(wait for waits, _ in read for wait in waits)
    return Outcome(
        tasks,
        rate,
        sum(lost for _, lost in read),
        waits[len(waits) // 2],
        waits[len(waits) * 99 // 100],
        idle,
        max(peaks),
        used / (tasks * count) * 1e6,
    )


async def _read(client: Client, script: str) -> tuple[list[float], int]:
    """How long each piece took, and how many were not where they belong."""
    waits: list[float] = []
    numbers: list[int] = []
    last: Json = {}
    async with client.stream(script) as items:
        async for last in items:
            now = time.monotonic_ns()
            for number, written in _pieces(last):
                numbers.append(number)
                waits.append((now - written) / 1e6)
    wanted = list(range(int(script.split()[2])))
    wrong = len(set(wanted) ^ set(numbers)) + len(numbers) - len(set(numbers))
    wrong += numbers != sorted(numbers)
    assert state(last) == "completed", json.dumps(last)
    return waits, wrong


def _pieces(item: Json) -> list[tuple[int, int]]:
    parts = item.get("artifactUpdate", {}).get("artifact", {}).get("parts", [])
    return [(int(number), int(written)) for number, written in PIECE.findall(texts(parts))]


async def _peak(server: psutil.Process, peaks: list[float]) -> None:
    while True:
        peaks.append(server.memory_info().rss / MIB)
        await asyncio.sleep(0.2)


async def table() -> str:
    """The loads that docs/evidence/reliability.md shows."""
    rows = [(await run(tasks, rate)).row for tasks, rate in ((200, 10), (1000, 1))]
    return "\n".join([HEAD, *rows])
