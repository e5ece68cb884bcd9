"""CPU microseconds of the server for one streamed event, by binding, and the memory of an idle
server without and with each binding.

Run `python -m scripts.benchmarks.bindings`. In each round, each binding gets a new server with the
same tasks; the medians of the rounds count, and the ratio to SSE. With `--slow-reader`, it measures
the delay of streams beside a client that does not read instead (slow_reader.py).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from bridge.server.settings.root import NAMES
from scripts.benchmarks import slow_reader
from scripts.benchmarks.servers import Agent, Server, Target, call, make_agent
from tests.support.grpc_client import connected

ROUNDS = 5
STREAMS, PER_SECOND, SECONDS = 20, 50, 4.0
METHOD = "SendStreamingMessage"
Items = AsyncIterator[Any]
MIB = 2**20


def message() -> dict[str, Any]:
    """A message to a new context. Its task lasts longer than the measure."""
    count = int(PER_SECOND * (SECONDS + 4))
    knobs = f"n={count} gap_us={1_000_000 // PER_SECOND}"
    text = json.dumps({"type": "prompt", "text": knobs}, separators=(",", ":"))
    return {
        "message": {
            "messageId": uuid.uuid4().hex,
            "role": "ROLE_USER",
            "parts": [{"text": text}],
        }
    }


async def sse(server: Server, http: aiohttp.ClientSession) -> Items:
    url = f"http://127.0.0.1:{server.address[1]}/a2a/jsonrpc"
    async with http.post(url, data=call(METHOD, message()), headers=server.headers) as response:
        async for line in response.content:
            if line.startswith(b"data:"):
                yield line


async def websocket(server: Server, http: aiohttp.ClientSession) -> Items:
    url = f"ws://127.0.0.1:{server.address[1]}/a2a/ws"
    async with http.ws_connect(url, headers=server.headers) as socket:
        await socket.send_str(call(METHOD, message()).decode())
        async for frame in socket:
            yield frame


async def grpc(server: Server, http: aiohttp.ClientSession) -> Items:
    listed = f"http://127.0.0.1:{server.address[1]}/.well-known/agent-card.json"
    async with http.get(listed, headers=server.headers) as response:
        card = await response.json()
    address = next(
        one["url"] for one in card["supportedInterfaces"] if one["protocolBinding"] == "GRPC"
    )
    async with connected(address, authorization=server.headers["Authorization"]) as client:
        async for item in client.items(METHOD, message()):
            yield item


BINDINGS: Mapping[str, tuple[Callable[[Server, aiohttp.ClientSession], Items], dict[str, str]]] = {
    "SSE": (sse, {}),
    "WebSocket": (websocket, {"BRIDGE_WEBSOCKET": "true"}),
    "gRPC": (grpc, {"BRIDGE_GRPC_PORT": "0"}),
}


async def streamed(server: Server, read: Callable[[Server, aiohttp.ClientSession], Items]) -> float:
    """CPU microseconds of the server for an item, while all streams are open."""
    seen = [0] * STREAMS
    open_streams = asyncio.Semaphore(0)

    async def follow(number: int, http: aiohttp.ClientSession) -> None:
        async with contextlib.aclosing(read(server, http)) as items:  # type: ignore[type-var]
            async for _ in items:
                seen[number] += 1
                if seen[number] == PER_SECOND:
                    open_streams.release()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        following = [asyncio.create_task(follow(number, http)) for number in range(STREAMS)]
        async with asyncio.timeout(30):
            for _ in range(STREAMS):
                await open_streams.acquire()
        before, items = server.cpu_seconds(), sum(seen)
        await asyncio.sleep(SECONDS)
        cost = (server.cpu_seconds() - before) / (sum(seen) - items)
        for one in following:
            one.cancel()
        await asyncio.gather(*following, return_exceptions=True)
    return cost * 1e6


def measured(agent: Agent, folder: Path, name: str) -> tuple[float, float]:
    """Microseconds of an event, and MiB of the idle server."""
    read, settings = BINDINGS[name]
    with Target("bridge", agent, folder, "durable").serving(**settings) as server:
        idle = server.rss_bytes() / MIB
        return asyncio.run(streamed(server, read)), idle


def main() -> None:
    parser = argparse.ArgumentParser(description="Costs of the bindings.")
    parser.add_argument("--slow-reader", action="store_true", help="delays beside a slow reader")
    slow = parser.parse_args().slow_reader
    with tempfile.TemporaryDirectory(prefix="bindings-") as name:
        agent = make_agent(Path(name))
        (slow_reader.report if slow else _costs)(agent, Path(name))


def _costs(agent: Agent, folder: Path) -> None:
    """Print the CPU time and the memory of each binding."""
    known = [
        name
        for name, (_, settings) in BINDINGS.items()
        if all(s.lower() in NAMES for s in settings)
    ]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in known}
    for number in range(ROUNDS):
        turn = number % len(known)
        for binding in known[turn:] + known[:turn]:
            found[binding].append(measured(agent, folder, binding))
    base = statistics.median(cost for cost, _ in found["SSE"])
    for binding, figures in found.items():
        costs, idle = zip(*figures, strict=True)
        cost = statistics.median(costs)
        print(
            f"{binding:10} {cost:7.1f} us an event ({cost / base:.2f} x SSE, "
            f"{min(costs):.1f} to {max(costs):.1f}), idle {statistics.median(idle):.1f} MiB"
        )


if __name__ == "__main__":
    main()
