"""Proxies between a client and a server: one cuts connections, the other holds a request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Proxy:
    """Passes bytes on. Subclasses decide about each chunk."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.url = ""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            theirs, ours = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        up = asyncio.create_task(self._pump(reader, ours, up=True))
        try:
            with contextlib.suppress(ConnectionError):
                await self._pump(theirs, writer, up=False)
        finally:
            up.cancel()
            for one in (writer, ours):
                one.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool
    ) -> None:
        passed = 0
        while data := await reader.read(1024):
            await self.before(data, up)
            writer.write(data)
            await writer.drain()
            passed += len(data)
            if self.cuts(passed, up):
                return

    async def before(self, data: bytes, up: bool) -> None:
        """Called before `data` is passed on. `up`: to the server."""

    def cuts(self, passed: int, up: bool) -> bool:
        """Whether the connection is cut after `passed` bytes in one direction."""
        return False


class Cutter(Proxy):
    """Cuts each connection after `most` bytes from the server."""

    def __init__(self, port: int, most: int) -> None:
        super().__init__(port)
        self._most = most
        self.number = 0  # of cuts

    def cuts(self, passed: int, up: bool) -> bool:
        if up or passed <= self._most:
            return False
        self.number += 1
        return True


class Interrupter(Proxy):
    """Cuts each connection `every` so many seconds."""

    def __init__(self, port: int, every: float) -> None:
        super().__init__(port)
        self._every = every
        self.number = 0  # of cuts

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._every):
                await super().__call__(reader, writer)
        except TimeoutError:
            self.number += 1


class Gate(Proxy):
    """Holds each request with one of `words` until `go` is set; `reached` is set before."""

    def __init__(self, port: int, words: tuple[bytes, ...]) -> None:
        super().__init__(port)
        self._words = words
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def before(self, data: bytes, up: bool) -> None:
        if up and any(word in data for word in self._words):
            self.reached.set()
            await self.go.wait()


@asynccontextmanager
async def serving(proxy: Proxy) -> AsyncIterator[None]:
    """Serve until the end; connections end with it."""
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(proxy(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])
