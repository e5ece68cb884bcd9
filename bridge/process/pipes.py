"""The three streams of a child over pipes; process/spool.py has them in files."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from abc import ABC, abstractmethod
from collections.abc import Callable

READ_BYTES = 256 * 1024  # per read: several pipes full, so that a fast CLI costs few wake-ups
STDERR_TAIL = 64 * 1024  # kept of stderr: more than any error message, less than a flood


class Channel(ABC):
    """The streams of one child. `stderr` is the end of its stderr."""

    def __init__(self) -> None:
        self.stderr = bytearray()
        self._on_output: Callable[[bytes], None] = unheard
        self._on_end: Callable[[], None] = unheard

    @abstractmethod
    def listen(self, on_output: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        """Call `on_output` with the child's output as it arrives, and `on_end` once when the child
        has closed stdout."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Send `data` to stdin when the child reads. The data is dropped if the child has ended."""

    def end_input(self) -> bool:
        """Close stdin. False if the child keeps its stdin open itself."""
        return False

    @abstractmethod
    def pause(self, paused: bool) -> None:
        """Stop or resume reading stdout."""

    @abstractmethod
    def finish(self, then: Callable[[], None]) -> None:
        """The child has ended: pass on its remaining output, and then call `then`."""

    @abstractmethod
    def close(self) -> None:
        """Stop calling the functions of listen()."""
        self._on_output = self._on_end = unheard

    def keep_stderr(self, data: bytes) -> None:
        self.stderr += data
        del self.stderr[:-STDERR_TAIL]


def unheard(data: bytes = b"") -> None: ...


class Pipes(Channel):
    """This side of the child's pipes, which close() closes. `stdin` is None for a child without
    stdin. `piece`: bytes of one read."""

    def __init__(
        self, stdin: int | None, stdout: int, stderr: int, *, piece: int = READ_BYTES
    ) -> None:
        super().__init__()
        self._piece = piece
        self._loop = asyncio.get_running_loop()
        self._fds = [fd for fd in (stdin, stdout, stderr) if fd is not None]
        self._stdout, self._stderr = stdout, stderr
        self._stdin = None if stdin is None else Writer(stdin)
        for fd in (self._stdout, self._stderr):
            os.set_blocking(fd, False)

    def listen(self, on_output: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self._on_output, self._on_end = on_output, on_end
        self._loop.add_reader(self._stdout, self._read_stdout)
        self._loop.add_reader(self._stderr, self._read_stderr)

    def write(self, data: bytes) -> None:
        if self._stdin:
            self._stdin.write(data)

    def end_input(self) -> bool:
        if self._stdin:
            self._stdin.stop()
            self._stdin = None
            os.close(self._fds.pop(0))
        return True

    def pause(self, paused: bool) -> None:
        if paused:
            self._loop.remove_reader(self._stdout)
        else:
            self._loop.add_reader(self._stdout, self._read_stdout)

    def finish(self, then: Callable[[], None]) -> None:
        """Read at most the pipe's capacity: a descendant may write for ever."""
        self.keep_stderr(_drain(self._stderr))
        self._on_output(_drain(self._stdout))
        then()

    def close(self) -> None:
        super().close()
        for fd in (self._stdout, self._stderr):
            self._loop.remove_reader(fd)
        if self._stdin:
            self._stdin.stop()
        for fd in self._fds:
            os.close(fd)

    def _read_stdout(self) -> None:
        data = _read(self._stdout, self._piece)
        if data:
            self._on_output(data)
        elif data == b"":
            self._loop.remove_reader(self._stdout)
            self._on_end()

    def _read_stderr(self) -> None:
        data = _read(self._stderr, self._piece)
        if data == b"":
            self._loop.remove_reader(self._stderr)
        elif data:
            self.keep_stderr(data)


class Writer:
    """Bytes for a non-blocking pipe: sent at once if the pipe has room, else later."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray()
        self._closed = False
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)

    def write(self, data: bytes) -> None:
        if self._closed or not data:
            return
        if self._buffer:
            self._buffer += data
            return
        self._buffer += data
        self._flush()
        if self._buffer:
            self._loop.add_writer(self._fd, self._flush)

    def send(self, data: bytearray) -> int:
        """Write as many bytes as the pipe takes. Returns their number."""
        return os.write(self._fd, data)

    def stop(self) -> None:
        self._loop.remove_writer(self._fd)
        self._buffer.clear()
        self._closed = True

    def _flush(self) -> None:
        try:
            sent = self.send(self._buffer)
        except BlockingIOError:
            return
        except OSError:  # the child closed its stdin; its exit follows
            self.stop()
            return
        del self._buffer[:sent]
        if not self._buffer:
            self._loop.remove_writer(self._fd)


def _read(fd: int, size: int) -> bytes | None:
    """Up to `size` bytes; empty at the end of the stream, None if the pipe is empty."""
    try:
        return os.read(fd, size)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _drain(fd: int) -> bytes:
    left = 64 * 1024
    with contextlib.suppress(OSError):
        left = fcntl.fcntl(fd, getattr(fcntl, "F_GETPIPE_SZ", 1032))
    data = b""
    while left > 0 and (more := _read(fd, left)):
        data += more
        left -= len(more)
    return data
