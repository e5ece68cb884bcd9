"""A socket by which a test knows that a child process has come to a point, and when it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psutil

WITHIN = 60.0  # seconds that any one wait may take


@dataclass(frozen=True, slots=True)
class Connection:
    pid: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Liveness:
    """A process connects to `path` and writes a line with a name and its pid. The connection is
    open for as long as the process lives; it may wait there for a line, see release()."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._connections: dict[str, Connection] = {}
        self._writers: list[asyncio.StreamWriter] = []
        self._arrived = asyncio.Condition()
        self.open = False  # True: a process that connects may go on at once

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        words = (await reader.readline()).decode().split()
        if not words:  # killed on its way
            return
        if self.open:
            writer.write(b"go\n")
        async with self._arrived:
            self._connections[words[0]] = Connection(int(words[1]), reader, writer)
            self._arrived.notify_all()

    async def pid(self, name: str) -> int:
        """The pid of the process with this name, after it has connected."""
        return (await self._connection(name)).pid

    async def release(self, name: str) -> None:
        """Release the process that waits under `name`."""
        connection = await self._connection(name)
        connection.writer.write(b"go\n")
        async with asyncio.timeout(WITHIN):
            await connection.writer.drain()

    async def gone(self, *names: str) -> None:
        """Until the processes have ended."""
        for name in names:
            connection = await self._connection(name)
            async with asyncio.timeout(WITHIN):
                with contextlib.suppress(ConnectionResetError):
                    await connection.reader.read()

    def has(self, name: str) -> bool:
        return name in self._connections

    def alive(self, name: str) -> bool:
        """As far as the loop has heard; for processes that must not have ended."""
        return not self._connections[name].reader.at_eof()

    async def _connection(self, name: str) -> Connection:
        async with asyncio.timeout(WITHIN), self._arrived:
            await self._arrived.wait_for(lambda: name in self._connections)
            return self._connections[name]

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def listening() -> AsyncIterator[Liveness]:
    directory = tempfile.mkdtemp(prefix="live-")  # tmp_path is too long for a unix socket
    live = Liveness(f"{directory}/socket")
    server = await asyncio.start_unix_server(live.connected, live.path)
    try:
        yield live
    finally:
        server.close()
        await live.close()
        await server.wait_closed()
        shutil.rmtree(directory)


def alive(pid: int) -> bool:
    """Whether the process runs. A zombie has ended, and its parent may not have reaped it yet."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


async def until(holds: Callable[[], object]) -> None:
    """Return when a condition without an event holds."""
    async with asyncio.timeout(WITHIN):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
