"""Lines on stdin and stdout, which may be pipes, files or terminals."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import AsyncIterator

from bridge.client.connection import read_lines

_CHUNK = 2**16
_STDIN, _STDOUT = 0, 1


class StandardStreams:
    """Reads and writes in threads: a slow client blocks neither the requests nor the exit. Call it
    in a running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._output: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of stdin until its end, or until the reader of stdout has exited."""
        async for line in read_lines(self._received()):
            if line:
                yield line

    def write(self, line: bytes) -> None:
        self._output.put(line + b"\n")

    def close(self, within: float) -> None:
        """Write the rest, as far as the reader takes it within this time in seconds."""
        self._output.put(None)
        self._writer.join(within)

    async def _received(self) -> AsyncIterator[bytes]:
        while chunk := await self._chunks.get():
            yield chunk
        yield b"\n"  # ends a line without an end

    def _read(self) -> None:
        try:
            while chunk := os.read(_STDIN, _CHUNK):
                self._loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)
        except OSError:
            pass  # the terminal has closed
        self._end()

    def _write(self) -> None:
        while (line := self._output.get()) is not None:
            try:
                while line:
                    line = line[os.write(_STDOUT, line) :]
            except OSError:
                self._end()
                return

    def _end(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._chunks.put_nowait, b"")
        except RuntimeError:
            pass  # the loop has ended
