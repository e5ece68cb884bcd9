"""The stdio binding (docs/bindings.md): JSON-RPC objects on two pipes of the parent process. Each
is a line, or follows a header `Content-Length: N`; the first byte of the parent decides."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any

from bridge import errors

log = logging.getLogger(__name__)

ROOM = 2**20  # bytes of output that may wait
_CHUNK = 2**18
_LONGEST_HEADER = 8192  # bytes of a header line
_LENGTH = re.compile(rb"content-length:\s*([0-9]{1,15})\s*", re.IGNORECASE)
_OTHER = re.compile(rb"[!-9;-~]+:[ -~]*")

Frame = bytes | errors.RequestError
"""A frame, or the error for bytes that do not form one."""


class Framing:
    """The frames of a byte stream. `longest`: bytes of a frame; a longer one is skipped."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._headers: bool | None = None
        self._line = bytearray()  # the start of a line, or of a body
        self._cut = False  # the line is too long
        self._length: int | None = None  # of the next body, or of its rest
        self._body = False

    def wrap(self, frame: bytes) -> bytes:
        """A frame as the parent expects it."""
        if self._headers:
            return b"Content-Length: %d\r\n\r\n%b" % (len(frame), frame)
        return frame + b"\n"

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that these bytes complete."""
        if self._headers is None:
            data = data.lstrip()
            if not data:
                return
            self._headers = data[:1] in b"Cc"
        start = 0
        while start < len(data):
            if self._body:
                start = yield from self._take_body(data, start)
            else:
                start = yield from self._take_line(data, start)

    def end(self) -> Iterator[Frame]:
        """The last line, which may have no end."""
        if not self._headers:
            yield from self._complete_line()

    def _take_line(self, data: bytes, start: int) -> Generator[Frame, None, int]:
        end = data.find(b"\n", start)
        stop = len(data) if end < 0 else end
        most = _LONGEST_HEADER if self._headers else self._longest + 1  # with \r
        if len(self._line) + stop - start > most:
            self._cut = True
            self._line.clear()
        if not self._cut:
            self._line += data[start:stop]
        if end < 0:
            return stop
        yield from self._complete_line()
        return end + 1

    def _complete_line(self) -> Iterator[Frame]:
        line, cut = bytes(self._line).rstrip(b"\r"), self._cut
        self._line.clear()
        self._cut = False
        if self._headers:
            yield from self._header(line, cut)
        elif cut or len(line) > self._longest:
            yield self._too_long()
        elif line.strip():
            yield line

    def _header(self, line: bytes, cut: bool) -> Iterator[Frame]:
        if not line and not cut:
            self._body = self._length is not None
            self._cut = (self._length or 0) > self._longest
            if self._cut:
                yield self._too_long()
            elif self._body and not self._length:
                self._body, self._length = False, None
                yield errors.ParseError("The body is empty.")
        elif found := None if cut else _LENGTH.fullmatch(line):
            self._length = int(found[1])
        elif cut or not _OTHER.fullmatch(line):
            self._length = None
            yield errors.ParseError("This line is not a header, and the first byte chose headers.")

    def _take_body(self, data: bytes, start: int) -> Generator[Frame, None, int]:
        assert self._length is not None
        piece = data[start : start + self._length]
        self._length -= len(piece)
        if not self._cut:
            self._line += piece
        if self._length == 0:
            body, cut = bytes(self._line), self._cut
            self._line.clear()
            self._body, self._cut, self._length = False, False, None
            if not cut:
                yield body
        return start + len(piece)

    def _too_long(self) -> errors.RequestError:
        return errors.BodyTooLarge(f"A frame may have at most {self._longest} bytes.")


class PipeWriter:
    """Writes frames in a thread, with blocking writes. `stall`: seconds after which a parent that
    reads nothing is named in the log. Call it in a running event loop."""

    def __init__(self, descriptor: int, framing: Framing, stall: float) -> None:
        self.lost: asyncio.Event = asyncio.Event()
        """Set if the reader of the pipe has exited."""
        self._descriptor = descriptor
        self._framing = framing
        self._stall = stall
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._closed = False
        self._written = asyncio.Event()
        self._named: asyncio.TimerHandle | None = None
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    async def send(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            while self._size and self._size + len(frame) > ROOM and not self.lost.is_set():
                self._written.clear()
                await self._written.wait()
            self._put(frame)

    def send_now(self, frames: Sequence[bytes]) -> bool:
        if self._size + sum(map(len, frames)) > ROOM:
            return False
        for frame in frames:
            self._put(frame)
        return True

    def _put(self, frame: bytes) -> None:
        if self.lost.is_set():
            raise ConnectionError("the parent does not read any more")
        data = self._framing.wrap(frame)
        self._size += len(data)
        with self._changed:
            self._waiting.append(data)
            self._changed.notify()
        if self._named is None:
            self._named = self._loop.call_later(self._stall, self._name)

    async def close(self, within: float) -> None:
        """Write the rest, as far as the parent reads it within this time in seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join, within)
        if self._named:
            self._named.cancel()

    def _name(self) -> None:
        self._named = None
        log.warning(
            "the parent process does not read its answers",
            extra={"waiting_bytes": self._size, "seconds": self._stall},
        )

    def _wrote(self, size: int) -> None:
        self._size -= size
        self._written.set()
        if self._named:
            self._named.cancel()
            self._named = None
        if self._size:
            self._named = self._loop.call_later(self._stall, self._name)

    def _write(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if not self._waiting:
                    return
                data = memoryview(self._waiting.popleft())
            try:
                while data:
                    done = os.write(self._descriptor, data[:_CHUNK])
                    data = data[done:]
                    self._later(self._wrote, done)
            except OSError:
                return self._later(self._lose)

    def _lose(self) -> None:
        self.lost.set()
        self._written.set()

    def _later(self, function: Callable[..., None], *values: int) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *values)
        except RuntimeError:
            pass  # the loop has ended


class PipeReader:
    """Reads frames in a thread, with blocking reads. The next bytes are read after `receive` has
    taken the frame. Call it in a running event loop."""

    def __init__(
        self,
        descriptor: int,
        framing: Framing,
        receive: Callable[[Frame], Coroutine[Any, Any, None]],
    ) -> None:
        self.ended: asyncio.Event = asyncio.Event()
        """Set after the last frame."""
        self._descriptor = descriptor
        self._framing = framing
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while data := self._next():
                self._give(self._framing.feed(data))
            self._give(self._framing.end())
            self._loop.call_soon_threadsafe(self.ended.set)
        except (RuntimeError, CancelledError):
            pass  # the loop has ended

    def _next(self) -> bytes:
        try:
            return os.read(self._descriptor, _CHUNK)
        except OSError:
            return b""  # the terminal has closed

    def _give(self, frames: Iterator[Frame]) -> None:
        for frame in frames:
            receiving = self._receive(frame)
            try:
                done = asyncio.run_coroutine_threadsafe(receiving, self._loop)
            except RuntimeError:
                receiving.close()
                raise
            done.result()
