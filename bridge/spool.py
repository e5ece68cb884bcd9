"""A child whose streams are files, so that it outlives the server and nothing it says is lost.

A folder per session has `in` (a FIFO that the child itself keeps open), `out` (a file that only
grows), `err` (of which the end is kept), `exit` (who it is and, once it has ended, its status: see
bridge/launcher.py) and `sent` (how many bytes were put into the FIFO). Another server reads `out`
on from where the last one was, and sends on stdin exactly what had not been sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from bridge.channel import READ_BYTES, STDERR_TAIL, Channel, Writer
from bridge.inotify import Watch

STDERR_MOST = 4 * STDERR_TAIL  # bytes that the file may have until only its end is kept
RESERVE = 256 * 1024  # bytes that the child can still say when the disk is full
STATUS = 64  # bytes that `exit` may have
FIFO_BYTES = 1024 * 1024  # room for a prompt with a picture, where the kernel grants it
_F_SETPIPE_SZ, _F_SETLEASE = 1031, 1024
_SENT = struct.Struct("QQ")


class Uncertain(Exception):
    """The last server ended while it was writing to stdin: nobody knows how much arrived."""


class Spool(Channel):
    """The streams in `folder`. `start`: how much of `out` need not be told any more."""

    def __init__(self, folder: Path, start: int = 0) -> None:
        super().__init__()
        self.folder = folder
        self._err = str(folder / "err")
        self._loop = asyncio.get_running_loop()
        self._out = os.open(folder / "out", os.O_RDONLY | os.O_CLOEXEC)
        self._at = start
        self._reserved = 0
        self._paused = False
        self._watch: Watch | None = None
        self._reading: asyncio.Handle | None = None
        self._end: int | None = None  # where `out` ends, once the child has ended
        self._told_of_end = False
        self._in: int | None = None
        self._writer: _CountingWriter | None
        try:
            self._in = os.open(folder / "in", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._writer = _CountingWriter(self._in, folder / "sent")
        except OSError as error:
            if error.errno != errno.ENXIO:
                self._close()
                raise
            self._writer = None  # nobody is there any more to read

    def listen(self, on_output: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self._on_output, self._on_end = on_output, on_end
        self._watch = Watch(str(self.folder / "out"), self._read, self._look)
        self._reading = self._loop.call_soon(self._read)  # what was there before

    def write(self, data: bytes) -> None:
        if self._writer:
            self._writer.write(data)

    def owe(self, data: bytes) -> None:
        """`data` is all that stdin should ever have got: send what it has not. Raises Uncertain."""
        if self._writer:
            self._writer.write(data[self._writer.sent() :])

    def pause(self, paused: bool) -> None:
        self._paused = paused
        if not paused:
            self._read()

    def finish(self, then: Callable[[], None]) -> None:
        """What a descendant still writes after the child's end is not read: it might not stop."""
        self._take_stderr()
        self._on_end = then
        self._paused = False  # it can say no more than it has
        self._end = os.fstat(self._out).st_size
        self._read()

    def close(self) -> None:
        super().close()
        if self._watch:
            self._watch.close()
            self._watch = None
        if self._reading:
            self._reading.cancel()
        if self._writer:
            self._writer.stop()
        self._close()

    def _close(self) -> None:
        for fd in (self._in, self._out):
            if fd is not None:
                os.close(fd)

    def _stderr_size(self) -> int:
        try:
            return os.stat(self._err).st_size
        except OSError:  # somebody removed it
            return 0

    def _take_stderr(self) -> None:
        """Keep the end, and begin the file anew: the child appends to it."""
        with contextlib.suppress(OSError), open(self._err, "rb+") as err:
            size = os.fstat(err.fileno()).st_size
            err.seek(max(0, size - STDERR_TAIL))
            self.keep_stderr(err.read(STDERR_TAIL))
            if size > STDERR_MOST:
                err.truncate(0)

    def _look(self) -> None:
        """Now and then, for what nobody tells of: a flood on stderr, a child that has closed its
        stdout, or has cut off what it had said there."""
        self._read()
        if self._watch is None or self._paused or self._end is not None:
            return
        if self._stderr_size() > STDERR_MOST:
            self._take_stderr()
        size = os.fstat(self._out).st_size
        if size < self._at:
            self._at = size
        elif size == self._at and not self._told_of_end and _nobody_writes(self._out):
            self._told_of_end = True
            self._on_end()

    def _read(self) -> None:
        """Tell of one piece; of more after others have had their turn."""
        if self._reading:
            self._reading.cancel()
            self._reading = None
        if self._paused:
            return
        left = READ_BYTES if self._end is None else self._end - self._at
        size = max(0, min(READ_BYTES, left))
        data = os.pread(self._out, size, self._at)
        self._at += len(data)
        if self._at > self._reserved - RESERVE // 2:
            self._reserved = self._at + RESERVE
            _reserve(self.folder / "out", self._reserved)
        if data:
            self._on_output(data)
        if self._watch is None:  # closed by what the child had said
            return
        if len(data) == READ_BYTES:
            self._reading = self._loop.call_soon(self._read)
        elif self._end is not None and self._at >= self._end:
            self._end = None
            self._on_end()


@contextlib.contextmanager
def prepare(folder: Path, stdin: bool = True) -> Iterator[list[int]]:
    """Make the files of a new session. Yields its program's ends of stdin, stdout and stderr."""
    folder.mkdir(mode=0o700, parents=True)
    os.mkfifo(folder / "in", 0o600)
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    with contextlib.ExitStack() as opened:

        def add(path: Path | str, flags: int) -> int:
            fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
            opened.callback(os.close, fd)
            return fd

        fifo = add(folder / "in", os.O_RDWR) if stdin else add(os.devnull, os.O_RDONLY)
        if stdin:
            with contextlib.suppress(OSError):
                fcntl.fcntl(fifo, _F_SETPIPE_SZ, FIFO_BYTES)
        out, err, status = (add(folder / name, append) for name in ("out", "err", "exit"))
        add(folder / "sent", os.O_WRONLY | os.O_CREAT)  # here, where nobody waits for the disk
        _reserve(out, RESERVE)
        _reserve(status, STATUS)
        yield [fifo, out, err]


class _CountingWriter(Writer):
    """Writes down how much was sent: before, how far it may get, and after, how far it got."""

    def __init__(self, fd: int, counters: Path) -> None:
        super().__init__(fd)
        self._counters = os.open(counters, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        written = os.pread(self._counters, _SENT.size, 0) or bytes(_SENT.size)
        self._wanted: int
        self._sent: int
        self._wanted, self._sent = _SENT.unpack(written)

    def sent(self) -> int:
        if self._wanted != self._sent:
            raise Uncertain
        return self._sent

    def send(self, data: bytearray) -> int:
        self._note(self._sent + len(data))
        try:
            sent = super().send(data)
            self._sent += sent
            return sent
        finally:
            self._note(self._sent)

    def stop(self) -> None:
        super().stop()
        with contextlib.suppress(OSError):
            os.close(self._counters)
        self._counters = -1

    def _note(self, wanted: int) -> None:
        self._wanted = wanted
        os.pwrite(self._counters, _SENT.pack(wanted, self._sent), 0)


def _reserve(file: Path | int, size: int) -> None:
    """Have the disk keep room for so much of the file, which does not grow by that."""
    keep_size = 1
    with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
        if isinstance(file, Path):
            file = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
            opened.callback(os.close, file)
        # What cannot be reserved is not: the disk is full already.
        _libc().fallocate(file, keep_size, ctypes.c_int64(0), ctypes.c_int64(size))


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _nobody_writes(fd: int) -> bool:
    """Whether no process has the file open for writing: only then a read lease is granted."""
    try:
        fcntl.fcntl(fd, _F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        return False
    fcntl.fcntl(fd, _F_SETLEASE, fcntl.F_UNLCK)
    return True


def who(folder: Path) -> tuple[int, int] | None:
    """The pid of the session's program, and when it started, in clock ticks after boot; None if it
    has never run."""
    written = [line.split() for line in _written(folder) if b" " in line]
    with contextlib.suppress(ValueError):
        return (int(written[0][0]), int(written[0][1])) if written else None
    return None


def exit_code(folder: Path) -> int | None:
    """How the session's program ended, as subprocess gives it; None if nothing is written down: it
    still runs, or was killed together with its parent."""
    with contextlib.suppress(ValueError):
        for line in _written(folder):
            if line and b" " not in line:
                return int(line)
    return None


def _written(folder: Path) -> list[bytes]:
    try:
        return (folder / "exit").read_bytes().split(b"\n")
    except OSError:
        return []
