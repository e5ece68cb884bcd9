"""Moves the output of a CLI from its pipe to a file that only grows.

Used by the server and by its launcher, a program of its own; imports only the standard library.

One process at a time moves the bytes of a state folder's sessions. A FIFO in that folder (ATTENDED)
decides which one: a server keeps it open for writing and holds a lock on it until its end, also
until a crash. After the end of its server, a launcher takes the lock for each single move. If it
cannot take the lock, another server runs, and the hang-up of the FIFO (no process has it open for
writing) reports the end of that server.
"""

from __future__ import annotations

import fcntl
import os
import time

ATTENDED = "attended"
PIPE, OUT = "pipe", "out"  # in the folder of a session
MOVE_BYTES = 1024 * 1024  # at a time: as much as a pipe can have without privileges
_LOCKED_WITHIN, _PAUSE = 10.0, 0.01  # seconds
_FIONREAD = 0x541B
NONBLOCK = os.SPLICE_F_NONBLOCK if hasattr(os, "SPLICE_F_NONBLOCK") else 2


def move(pipe: int, out: int, position: int, most: int) -> int:
    """Move up to `most` bytes to that position of the file. Returns their number; 0: no process has
    the pipe open for writing, and it is empty. Raises BlockingIOError if it is only empty.

    The kernel moves them in one call, so a killed process loses and repeats no byte."""
    return os.splice(pipe, out, most, offset_dst=position, flags=NONBLOCK)


def held(pipe: int) -> int:
    """Bytes in the pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, _FIONREAD, bytes(4)), "little")


def attend(folder: str) -> int:
    """Announce that this process moves the output of all sessions with their state in `folder`,
    until the returned descriptor is closed. Raises TimeoutError if another process keeps the
    lock."""
    path = os.path.join(folder, ATTENDED)
    try:
        os.mkfifo(path, 0o600)
    except FileExistsError:
        pass
    except OSError as error:  # it has no filename of its own
        raise OSError(error.errno, error.strerror, path) from None
    # Open before it is locked: a launcher that is refused the lock waits for the hang-up.
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    deadline = time.monotonic() + _LOCKED_WITHIN
    while not lock(fd):
        if time.monotonic() > deadline:
            os.close(fd)
            raise TimeoutError(0, "another process holds the lock", path)
        time.sleep(_PAUSE)
    return fd


def lock(attended: int) -> bool:
    """Whether the lock was free."""
    try:
        fcntl.flock(attended, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
