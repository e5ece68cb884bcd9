"""Lines on stdin and stdout, which may be pipes, files or terminals."""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
from collections.abc import AsyncIterator

_CHUNK = 2**16
_STDIN, _STDOUT = 0, 1


class StandardStreams:
    """Reads and writes in threads: a slow client blocks neither the requests nor the exit. Call it
    in a running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._input = asyncio.StreamReader(limit=sys.maxsize)
        self._ended = False
        self._output: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of stdin until its end, or until the reader of stdout has exited."""
        while line := await self._input.readline():
            if line := line.strip():
                yield line

    def write(self, line: bytes) -> None:
        self._output.put(line + b"\n")

    def close(self, within: float) -> None:
        """Write the rest, as far as the reader takes it within this time in seconds."""
        self._output.put(None)
        self._writer.join(within)

    def _feed(self, chunk: bytes) -> None:
        """Take the next bytes; none are the end, after which others are dropped."""
        if not chunk:
            self._ended = True
            self._input.feed_eof()
        elif not self._ended:
            self._input.feed_data(chunk)

    def _read(self) -> None:
        try:
            while chunk := os.read(_STDIN, _CHUNK):
                self._loop.call_soon_threadsafe(self._feed, chunk)
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
            self._loop.call_soon_threadsafe(self._feed, b"")
        except RuntimeError:
            pass  # the loop has ended
