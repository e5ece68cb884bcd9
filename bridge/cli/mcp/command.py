"""The run of `coding-agent-bridge mcp`."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from contextlib import suppress

import orjson

from bridge.cli.mcp.finder import BridgeFinder, Connections
from bridge.cli.mcp.proxy import Json, Proxy
from bridge.cli.mcp.stdio import StandardStreams
from bridge.client import config

FLUSHES_WITHIN = 0.1  # seconds


def run(options: argparse.Namespace) -> int:
    """Serve the client on stdin and stdout until it leaves. Returns the exit status."""
    asyncio.run(_serve(options.url or config.bridge_url(), starts=not options.no_start))
    return 0


async def _serve(url: str | None, *, starts: bool) -> None:
    cwd = os.getcwd()
    finder = BridgeFinder(cwd, url=url, starts=starts)
    streams = StandardStreams()

    def write(message: Json) -> None:
        streams.write(orjson.dumps(message))

    async with Connections() as connections:
        proxy = Proxy(finder, connections.through, write, cwd)
        reading = asyncio.create_task(_read(streams, proxy))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, reading.cancel)
        with suppress(asyncio.CancelledError):
            await reading
        await proxy.close()
    streams.close(FLUSHES_WITHIN)


async def _read(streams: StandardStreams, proxy: Proxy) -> None:
    async for line in streams.lines():
        proxy.receive(line)
