"""The run of `coding-agent-bridge mcp`."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from contextlib import suppress

import aiohttp
import orjson

from bridge.cli.mcp.finder import BridgeFinder
from bridge.cli.mcp.proxy import Json, Proxy
from bridge.cli.mcp.stdio import StandardStreams
from bridge.client import config
from bridge.client.failure import ClientError

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

    async with _Connections() as connections:
        proxy = Proxy(finder, connections.through, write, cwd)
        starting = asyncio.create_task(_find(finder))  # before the first request
        reading = asyncio.create_task(_read(streams, proxy))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, reading.cancel)
        with suppress(asyncio.CancelledError):
            await reading
        await proxy.close()
        starting.cancel()
    streams.close(FLUSHES_WITHIN)


class _Connections:
    """Connections over TCP, and through each Unix socket: a bridge that starts again may have
    another one. They close together."""

    def __init__(self) -> None:
        self._open: dict[str | None, aiohttp.ClientSession] = {}

    async def __aenter__(self) -> _Connections:
        return self

    async def __aexit__(self, *error: object) -> None:
        for session in self._open.values():
            await session.close()

    def through(self, socket: str | None) -> aiohttp.ClientSession:
        """`socket`: the path of a Unix socket; None for TCP."""
        if socket not in self._open:
            connector = (
                aiohttp.UnixConnector(socket, limit=0) if socket else aiohttp.TCPConnector(limit=0)
            )
            self._open[socket] = aiohttp.ClientSession(
                connector=connector, read_bufsize=2**18, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._open[socket]


async def _find(finder: BridgeFinder) -> None:
    with suppress(ClientError):  # each request gets it
        await finder.find()


async def _read(streams: StandardStreams, proxy: Proxy) -> None:
    async for line in streams.lines():
        proxy.receive(line)
