"""The streams of a child that outlives the server without loss of output.

A folder per session has `in` (a FIFO that the child itself keeps open), `pipe` (a FIFO, the
child's stdout), `out` (the output of the pipe, a file that only grows), `err` (a file, of which the
end is kept) and `exit` (the child's pid and start time and, once it has ended, its status: see
process/fork_server.py). The input for `in` is in a file without a name, in memory.

A running server moves the output from the pipe to `out` and reads it there; without a server, the
launcher moves it (process/pump.py). The next server reads `out` from the last position.

The position of the input file is the number of bytes that stdin has received. `splice` changes both
in one call, so a killed server has done both or neither. The launcher holds the same open file, and
so the same position. The next server gets it from there (process/held_ports.py), and sends the
rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from bridge.errors import InputUnknown
from bridge.process import pump
from bridge.process.pipes import READ_BYTES, STDERR_TAIL, Channel, Writer, unheard
from bridge.sandbox.kernel import LIBC

STDERR_MOST = 4 * STDERR_TAIL  # bytes that the file may have until only its end is kept
RESERVE = 256 * 1024  # bytes that can still be moved when the disk is full
STATUS = 64  # bytes that `exit` may have
FIFO_BYTES = 1024 * 1024  # room for a prompt with a picture, where the kernel grants it
POLL = 0.1  # seconds between two checks of a file without a pipe
_F_SETPIPE_SZ = 1031
USED_MOST = 256 * 1024  # bytes of memory with input that the child has read
SEND_MOST = 64 * 1024  # bytes at a time: as much as most pipes hold
_CLOSE_ON_EXEC, _NOT_EXECUTABLE = 1, 8
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_COUNTERS = struct.Struct("QQ")
NOT_COUNTED = _COUNTERS.pack(1, 0)
"""Else a server of an earlier version would send all input again."""


class Spool(Channel):
    """The streams in `folder`. `start`: the position in `out` at which reading begins. `stdin`: the
    file of the input, which is closed at the end; None if it is lost. `piece`: the
    bytes of one read. `look`: seconds between two checks of states without an event."""

    def __init__(
        self,
        folder: Path,
        start: int = 0,
        stdin: int | None = None,
        *,
        piece: int = READ_BYTES,
        look: float = 2.0,
    ) -> None:
        super().__init__()
        self._fds = [] if stdin is None else [stdin]
        self._piece = piece
        self._check_every = look
        self._err = str(folder / "err")
        self.folder = folder
        self._loop = asyncio.get_running_loop()
        self._at = start
        self._reserved = 0
        self._paused = False
        self._closed = False
        self._reading: asyncio.Handle | None = None
        self._checking: asyncio.TimerHandle | None = None
        self._ended = False  # no process has the pipe open for writing
        self._finishing = False
        self._last = b""  # output in the child's pipe that a full disk did not take
        try:
            self._out = os.open(folder / pump.OUT, os.O_RDWR | os.O_CLOEXEC)
            self._fds.append(self._out)
            self._size = os.fstat(self._out).st_size
            # None: a server of an earlier version gave the child the file itself.
            self._pipe = self._open(pump.PIPE, os.O_RDONLY, errno.ENOENT)
            self._in = self._open("in", os.O_WRONLY, errno.ENXIO)  # None: no process reads it
            self._writer: _SplicedWriter | None = None
            if self._in is not None and stdin is not None:
                self._writer = _SplicedWriter(self._in, stdin)
        except OSError:
            self._close()
            raise

    def listen(self, on_output: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self._on_output, self._on_end = on_output, on_end
        self._attend()
        self._reading = self._loop.call_soon(self._turn)  # earlier output
        self._checking = self._loop.call_later(self._patience, self._check)

    def write(self, data: bytes) -> None:
        if self._writer:
            self._writer.write(data)

    def owe(self, data: bytes) -> None:
        """`data` is the input of the session so far: send the part that was not sent. Raises
        InputUnknown."""
        if self._in is not None and self._writer is None:
            raise InputUnknown
        self.write(data)

    def pause(self, paused: bool) -> None:
        """The child waits once its pipe is full."""
        self._paused = paused
        if paused:
            self._ignore()
        else:
            self._attend()
            self._turn()

    def finish(self, then: Callable[[], None]) -> None:
        """Later output of descendants is not read: it might not end."""
        self._take_stderr()
        self._on_end = then
        self._paused = False  # its output is finite now
        self._ignore()
        self._drain()
        self._finishing = True
        self._turn()

    def close(self) -> None:
        super().close()
        self._closed = True
        self._ignore()
        for timer in (self._reading, self._checking):
            if timer:
                timer.cancel()
        if self._writer:
            self._writer.stop()
        self._close()

    def _close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())

    def _open(self, name: str, flags: int, none: int) -> int | None:
        """A FIFO; None where the attempt ends with the error `none`."""
        try:
            fd = os.open(self.folder / name, flags | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != none:
                raise
            return None
        self._fds.append(fd)
        return fd

    # --- stdout --------------------------------------------------------------------------------

    def _attend(self) -> None:
        if self._pipe is not None and not self._ended:
            self._loop.add_reader(self._pipe, self._turn)

    def _ignore(self) -> None:
        if self._pipe is not None:
            self._loop.remove_reader(self._pipe)

    def _turn(self) -> None:
        """Move the available output and pass on one piece; further pieces follow in later calls."""
        if self._reading:
            self._reading.cancel()
            self._reading = None
        if self._paused:
            return
        if not (self._ended or self._finishing):
            self._move()
        size = min(self._piece, self._size - self._at)
        data = os.pread(self._out, size, self._at) if size > 0 else b""
        self._at += len(data)
        if len(data) < size:
            self._size = self._at  # it was cut
        if data:
            self._on_output(data)
        if self._closed:  # by a callback
            return
        if self._at < self._size:
            self._reading = self._loop.call_soon(self._turn)
        elif self._finishing:
            self._tell_the_rest()
        elif self._ended:
            on_end, self._on_end = self._on_end, unheard
            on_end()

    def _move(self) -> None:
        """Move output from the pipe to the file. If the disk is full, it stays in the pipe."""
        if self._pipe is None:
            self._size = os.fstat(self._out).st_size  # the child itself writes there
            self._at = min(self._at, self._size)
            return
        try:
            moved = pump.move(self._pipe, self._out, self._size, self._piece)
        except BlockingIOError:
            return
        except OSError:
            self._ignore()  # until the next _check()
            return
        self._size += moved
        if self._size > self._reserved - RESERVE // 2:
            self._reserved = self._size + RESERVE
            _reserve(self._out, self._size, RESERVE)
        if not moved:
            self._ended = True
            self._ignore()

    def _drain(self) -> None:
        """The child has ended: move only the present content of the pipe."""
        if self._pipe is None:
            self._size = os.fstat(self._out).st_size
            return
        left = pump.held(self._pipe)
        try:
            while left and (moved := pump.move(self._pipe, self._out, self._size, left)):
                self._size += moved
                left -= moved
        except BlockingIOError:
            pass
        except OSError:
            with contextlib.suppress(OSError):
                self._last = os.read(self._pipe, min(left, FIFO_BYTES))

    def _tell_the_rest(self) -> None:
        last, self._last = self._last, b""
        self._at += len(last)
        if last:
            self._on_output(last)
        if not self._closed:
            self._on_end()

    # --- states without an event ---------------------------------------------------------------

    @property
    def _patience(self) -> float:
        return POLL if self._pipe is None else self._check_every

    def _check(self) -> None:
        """Handle what no event reports: a flood on stderr, a disk that has space again, a file that
        the child writes itself."""
        self._checking = self._loop.call_later(self._patience, self._check)
        if self._paused or self._finishing:
            return
        with contextlib.suppress(OSError):  # it was removed
            if os.stat(self._err).st_size > STDERR_MOST:
                self._take_stderr()
        self._attend()
        if self._pipe is None:
            self._turn()

    def _take_stderr(self) -> None:
        """Keep the end, and truncate the file: the child appends to it."""
        with contextlib.suppress(OSError), open(self._err, "rb+") as err:
            size = os.fstat(err.fileno()).st_size
            err.seek(max(0, size - STDERR_TAIL))
            self.keep_stderr(err.read(STDERR_TAIL))
            if size > STDERR_MOST:
                err.truncate(0)


def _make_input() -> int:
    """A new file in memory. Raises OSError."""
    file = LIBC.memfd_create(b"stdin", _CLOSE_ON_EXEC | _NOT_EXECUTABLE)
    if file < 0:  # before Linux 6.3
        file = LIBC.memfd_create(b"stdin", _CLOSE_ON_EXEC)
    if file < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(file)


def input_of_earlier_version(folder: Path) -> int | None:
    """A file for a session of a server that counted the bytes: before a write their largest number,
    and afterwards the actual one. None if it was killed within a write."""
    counters = folder / "sent"
    with contextlib.suppress(OSError, struct.error):
        largest, sent = _COUNTERS.unpack(counters.read_bytes() or bytes(_COUNTERS.size))
        if largest == sent:
            file = _make_input()
            os.lseek(file, sent, os.SEEK_SET)
            counters.write_bytes(NOT_COUNTED)
            return file
    return None


@contextlib.contextmanager
def prepare(folder: Path, stdin: bool = True) -> Iterator[list[int]]:
    """Make the files of a new session. Yields its program's ends of stdin, stdout and stderr; the
    other end of stdout, and the file of its input: some process must have these two as long as the
    program lives."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700)
    for name in ("in", pump.PIPE):
        os.mkfifo(folder / name, 0o600)
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
        reader = add(folder / pump.PIPE, os.O_RDONLY | os.O_NONBLOCK)
        stdout = add(folder / pump.PIPE, os.O_WRONLY)
        out, err, status = (add(folder / name, append) for name in (pump.OUT, "err", "exit"))
        _reserve(out, 0, RESERVE)
        _reserve(status, 0, STATUS)
        with contextlib.suppress(OSError):  # the disk is full
            os.write(add(folder / "sent", os.O_WRONLY | os.O_CREAT), NOT_COUNTED)
        file = _make_input()
        opened.callback(os.close, file)
        yield [fifo, stdout, err, reader, file]


class _SplicedWriter(Writer):
    """Writes all input of a session, from its beginning, to the FIFO `fd`. `file`: of the session;
    bytes that an earlier server has moved from it are not moved again."""

    def __init__(self, fd: int, file: int) -> None:
        super().__init__(fd)
        self._file = file
        self._sent = os.lseek(file, 0, os.SEEK_CUR)
        self._known = self._sent  # bytes of later input that stdin has received
        self._freed = 0

    def write(self, data: bytes) -> None:
        known = min(self._known, len(data))
        self._known -= known
        super().write(data[known:])

    def send(self, data: bytearray) -> int:
        size = os.pwrite(self._file, data[:SEND_MOST], self._sent)
        moved = os.splice(self._file, self._fd, size, flags=pump.NONBLOCK)
        self._sent += moved
        if self._sent - self._freed > USED_MOST:
            self._free()
        return moved

    def _free(self) -> None:
        """Free the pages that the child has read. The pipe shares the others with the file: the
        kernel would clear them if they were part of a huge page."""
        read = self._sent - pump.held(self._fd)
        size = (read - self._freed) // mmap.PAGESIZE * mmap.PAGESIZE
        if size > 0:
            mode, start = _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(self._freed)
            LIBC.fallocate(self._file, mode, start, ctypes.c_int64(size))
            self._freed += size


def _reserve(file: int, position: int, size: int) -> None:
    """Reserve disk space from this position on. The file does not grow."""
    keep_size = 1
    # An error is ignored: the disk is full already.
    LIBC.fallocate(file, keep_size, ctypes.c_int64(position), ctypes.c_int64(size))


def who(folder: Path) -> tuple[int, int] | None:
    """The pid of the session's program, and when it started, in clock ticks after boot; None if it
    has never run."""
    written = [line.split() for line in _written(folder) if b" " in line]
    with contextlib.suppress(ValueError):
        return (int(written[0][0]), int(written[0][1])) if written else None
    return None


def exit_code(folder: Path) -> int | None:
    """The exit code of the session's program, as in subprocess; None without a written exit status:
    it still runs, or was killed together with its parent."""
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
