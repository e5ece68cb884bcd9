"""The delay of 20 streams beside a client that does not read, by binding.

`python -m scripts.benchmarks.bindings --slow-reader`. A server has 20 tasks of 50 small texts a
second with clients that read, and one task of 50 large texts a second. In each second round, a
client opens the stream of the latter, reads one item and then nothing, until the server disconnects
it; in the next of these rounds it comes back with the last number that it has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from scripts.benchmarks.servers import Agent, Server, Target, prompt
from scripts.benchmarks.transcript import MARK
from tests.support.client import RpcError, texts
from tests.support.numbered_streams import BINDINGS, SMALL, Open, Reach
from tests.support.offered_bindings import offered
from tests.support.prometheus import page_of, series

STREAMS, PER_SECOND = 20, 50
LARGE_TEXT = 8 * 1024
SECONDS, PAIRS = 4.0, 5  # of a round; of rounds without and with the client
STALL = 1.0  # seconds after which the server disconnects it
WITHIN = 60.0
CUTS = {"sse": "http", "unix": "http", "websocket": "http", "grpc": "grpc"}
"""The bindings that disconnect slow readers, and their names in the metrics."""
KNOWN = (*CUTS, "redis")
LOST = (aiohttp.ClientError, ConnectionError, RpcError)
MIB = 2**20


@dataclass
class Delays:
    """Of the streams in the rounds without and with the slow client: the 99th percentiles in
    milliseconds, and the growth of the server's memory in MiB. `cuts`: how often it was
    disconnected; `items`: those that it got in the end."""

    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    grown_alone: list[float] = field(default_factory=list)
    grown_beside: list[float] = field(default_factory=list)
    cuts: int = 0
    items: int = 0

    def rounds(self, beside: bool) -> tuple[list[float], list[float]]:
        if beside:
            return self.beside, self.grown_beside
        return self.alone, self.grown_alone

    @property
    def ratio(self) -> float:
        return statistics.median(self.beside) / statistics.median(self.alone)

    @property
    def best(self) -> float:
        """The ratio of the best rounds, in which other work of the machine counts least."""
        return min(self.beside) / min(self.alone)

    @property
    def grown(self) -> float:
        """MiB by which a slow client makes the memory grow in a round."""
        return statistics.median(self.grown_beside) - statistics.median(self.grown_alone)


def script(seconds: float, size: int) -> Mapping[str, Any]:
    """A message to a new context. Its task lasts about so many seconds."""
    count, gap = int(PER_SECOND * seconds), 1_000_000 // PER_SECOND
    return {
        "messageId": uuid.uuid4().hex,
        "role": "ROLE_USER",
        "parts": [{"text": prompt(n=count, gap_us=gap, bytes=size)}],
    }


class Reader:
    """A client that reads. Its texts and items must have consecutive numbers."""

    def __init__(self, read: Open, reach: Reach, seconds: float) -> None:
        self.delays: list[float] = []
        self.open = asyncio.Event()
        params = {"message": script(seconds, 64)}
        self.task = asyncio.create_task(
            self._run(read(reach, "SendStreamingMessage", params, None))
        )

    async def _run(self, items: AsyncIterator[tuple[int, Any]]) -> None:
        text, last = 0, -1
        async with contextlib.aclosing(items):  # type: ignore[type-var]
            async for number, item in items:
                now = time.monotonic_ns()
                assert number == last + 1 or last < 0, f"item {number} came after {last}"
                last = number
                for found, written in marks(item):
                    assert found == text, f"text {found} came instead of {text}"
                    text += 1
                    self.delays.append((now - written) / 1e6)
                    self.open.set()

    def taken(self) -> list[float]:
        """The delays since the last call."""
        taken, self.delays = self.delays, []
        return taken


def marks(item: Any) -> list[tuple[int, int]]:
    """The numbers of the texts in an update, and the times of their writing."""
    parts = item.get("artifactUpdate", {}).get("artifact", {}).get("parts", [])
    return [(int(n), int(written)) for n, written in MARK.findall(texts(parts).encode())]


class SlowReader:
    """A client of the stream of a task that comes back with the last number that it has seen."""

    def __init__(self, read: Open, reach: Reach, task: str) -> None:
        self._read, self._reach, self._task = read, reach, task
        self.seen = 0

    def _items(self) -> Any:
        params = {"id": self._task}
        return self._read(self._reach, "SubscribeToTask", params, self.seen)

    async def lag(self, seconds: float) -> None:
        """Read one item, and then nothing."""
        async with contextlib.aclosing(self._items()) as items:
            self._take(await anext(items))
            await asyncio.sleep(seconds)

    async def catch_up(self) -> None:
        """Read the rest of the stream."""
        ended = False
        while not ended:
            with contextlib.suppress(*LOST):
                async with contextlib.aclosing(self._items()) as items:
                    async for numbered in items:
                        self._take(numbered)
                    ended = True

    def _take(self, numbered: tuple[int, Any]) -> None:
        number, _ = numbered
        assert number == self.seen + 1, f"item {number} came after {self.seen}"
        self.seen = number


async def cuts(reach: Reach, name: str) -> int:
    """How many slow readers the server has disconnected."""
    page = await page_of(reach.http, reach.url, reach.headers)
    return int(page[series("bridge_slow_readers_cut_total", binding=CUTS.get(name, ""))])


async def measured(agent: Agent, folder: Path, name: str, pairs: int = PAIRS) -> Delays:
    """The delays over one binding. Raises AssertionError if a client misses anything."""
    root = folder / f"slow-{name}-{uuid.uuid4().hex[:8]}"
    for part in ("home", "workspace"):
        (root / part).mkdir(parents=True)
    narrow = aiohttp.TCPConnector(limit=0, socket_factory=_narrow_socket)
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as quick,
        aiohttp.ClientSession(connector=narrow, read_bufsize=SMALL) as slow,
    ):
        reach = Reach(quick)
        async with offered(root, {name}, reach) as settings:
            settings["BRIDGE_STALL_TIMEOUT_MS"] = str(int(1000 * STALL))
            with Target("bridge", agent, folder, "durable").serving(**settings) as server:
                reach.url = f"http://127.0.0.1:{server.address[1]}"
                async with asyncio.timeout(2 * pairs * SECONDS + WITHIN):
                    other = replace(reach, http=slow, narrow=True)
                    return await _rounds(server, name, (reach, other), pairs)


def _narrow_socket(address: Any) -> socket.socket:
    """A socket that holds few unread bytes."""
    made = socket.socket(*address[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    return made


async def _rounds(server: Server, name: str, reaches: tuple[Reach, Reach], pairs: int) -> Delays:
    found, (reach, narrow), read = Delays(), reaches, BINDINGS[name]
    lasts = (2 * pairs + 2) * SECONDS
    readers = [Reader(read, reach, lasts) for _ in range(STREAMS)]
    slow = SlowReader(read, narrow, await _begun(reach, lasts))
    await asyncio.gather(*(one.open.wait() for one in readers))
    for pair in range(pairs):
        for beside in (False, True) if pair % 2 else (True, False):
            before = server.rss_bytes()
            for one in readers:
                one.taken()
            await (slow.lag(SECONDS) if beside else asyncio.sleep(SECONDS))
            delays = [delay for one in readers for delay in one.taken()]
            times, grown = found.rounds(beside)
            times.append(statistics.quantiles(delays, n=100)[98])
            grown.append((server.rss_bytes() - before) / MIB)
    await asyncio.gather(*(one.task for one in readers))
    await slow.catch_up()
    found.items, found.cuts = slow.seen, await cuts(reach, name)
    return found


async def _begun(reach: Reach, seconds: float) -> str:
    """The id of a new task with large texts."""
    params = {"message": script(seconds, LARGE_TEXT), "configuration": {"returnImmediately": True}}
    task: str = (await reach.call("SendMessage", params))["task"]["id"]
    return task


def report(agent: Agent, folder: Path) -> None:
    """Print a line for each binding."""
    for name in KNOWN:
        found = asyncio.run(measured(agent, folder, name))
        alone, beside = statistics.median(found.alone), statistics.median(found.beside)
        print(
            f"{name:10} p99 {alone:6.1f} ms alone ({min(found.alone):.1f} to "
            f"{max(found.alone):.1f}), {beside:6.1f} ms beside a slow reader "
            f"({min(found.beside):.1f} to {max(found.beside):.1f}): {found.ratio:.2f} x, "
            f"best rounds {found.best:.2f} x; "
            f"{found.grown:+.1f} MiB, disconnected {found.cuts} times, then {found.items} items",
            flush=True,
        )
