"""The input of a child that outlives the server: a file in memory, from which the kernel moves it
to the child's stdin.

The position of the file is the number of bytes that stdin has received. `splice` changes both in
one call, so a killed server has done both or neither. The launcher holds the same open file, and so
the same position (process/fork_server.py); the next server gets it from there
(process/held_ports.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import struct
from pathlib import Path

from bridge.process import pump
from bridge.process.pipes import Writer
from bridge.sandbox.kernel import LIBC

USED_MOST = 256 * 1024  # bytes of memory with input that the child has read
_CLOSE_ON_EXEC, _NOT_EXECUTABLE = 1, 8
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_COUNTERS = struct.Struct("QQ")


def make() -> int:
    """A new file. Raises OSError."""
    file = LIBC.memfd_create(b"stdin", _CLOSE_ON_EXEC | _NOT_EXECUTABLE)
    if file < 0:  # before Linux 6.3
        file = LIBC.memfd_create(b"stdin", _CLOSE_ON_EXEC)
    if file < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(file)


def of_earlier_version(folder: Path) -> int | None:
    """A file for a session of a server that counted the bytes: before a write their largest number,
    and afterwards the actual one. None if it was killed within a write."""
    counters = folder / "sent"
    with contextlib.suppress(OSError, struct.error):
        largest, sent = _COUNTERS.unpack(counters.read_bytes() or bytes(_COUNTERS.size))
        if largest == sent:
            counters.unlink()  # no server counts from now on
            file = make()
            os.lseek(file, sent, os.SEEK_SET)
            return file
    return None


class SplicedWriter(Writer):
    """Writes all input of a session, from its beginning, to the FIFO `fd`. `file`: of the session;
    what an earlier server has moved from it is not moved again."""

    def __init__(self, fd: int, file: int) -> None:
        super().__init__(fd)
        self._file = file
        self._sent = os.lseek(file, 0, os.SEEK_CUR)
        self._end = 0  # of the input so far; below _sent if an earlier server has got farther
        self._freed = 0

    @property
    def waiting(self) -> bool:
        return self._sent < self._end

    def add(self, data: bytes) -> None:
        end = self._end + len(data)
        new = memoryview(data)[max(0, self._sent - self._end) :]
        while new:
            new = new[os.pwrite(self._file, new, end - len(new)) :]
        self._end = end

    def send(self) -> None:
        left = self._end - self._sent
        self._sent += os.splice(self._file, self._fd, left, flags=pump.NONBLOCK)
        if self._sent - self._freed > USED_MOST:
            self._free()

    def _free(self) -> None:
        """Free the pages that the child has read. The pipe shares the others with the file."""
        read = self._sent - pump.held(self._fd)
        size = (read - self._freed) // mmap.PAGESIZE * mmap.PAGESIZE
        if size > 0:
            mode, start = _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(self._freed)
            LIBC.fallocate(self._file, mode, start, ctypes.c_int64(size))
            self._freed += size
