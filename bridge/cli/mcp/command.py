"""The run of `coding-agent-bridge mcp`."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

import orjson

from bridge.cli.mcp.finder import BridgeFinder
from bridge.cli.mcp.front import Front, Json
from bridge.cli.mcp.stdio import StandardStreams
from bridge.client import config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bridge.cli.mcp.proxy import Proxy

FLUSHES_WITHIN = 0.1  # seconds


def run(options: argparse.Namespace) -> int:
    """Serve the client on stdin and stdout until it leaves. Returns the exit status."""
    asyncio.run(_serve(options.url or config.bridge_url(), starts=not options.no_start))
    return 0


async def _serve(url: str | None, *, starts: bool) -> None:
    finder = BridgeFinder(os.getcwd(), url=url, starts=starts)
    streams = StandardStreams()

    def write(message: Json) -> None:
        streams.write(orjson.dumps(message))

    async with AsyncExitStack() as at_end:

        def connect() -> Proxy:
            return _proxy(finder, write, at_end)

        reading = asyncio.create_task(_read(streams, Front(finder, write, connect)))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, reading.cancel)
        with suppress(asyncio.CancelledError):
            await reading
    streams.close(FLUSHES_WITHIN)


def _proxy(finder: BridgeFinder, write: Callable[[Json], None], at_end: AsyncExitStack) -> Proxy:
    """The proxy. Its library for HTTP takes a third of the memory of the command."""
    from bridge.cli.mcp.connections import Connections
    from bridge.cli.mcp.proxy import Proxy

    connections = Connections()
    at_end.push_async_exit(connections)
    proxy = Proxy(finder, connections.through, write, os.getcwd())
    at_end.push_async_callback(proxy.close)
    return proxy


async def _read(streams: StandardStreams, front: Front) -> None:
    async for line in streams.lines():
        front.receive(line)
