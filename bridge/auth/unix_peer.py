"""The process at the other end of a Unix socket, as the kernel knows it (Linux).

SO_PEERCRED has the user and the pid of the process that connected. The kernel may give that pid to
another process after its end. SO_PEERPIDFD (Linux 6.5) refers to the process itself, so it shows
whether the pid still belongs to that process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import sys
from asyncio.trsock import TransportSocket
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
SO_PEERPIDFD = 77  # asm-generic/socket.h; PA-RISC and SPARC have other numbers
_CREDENTIALS = struct.Struct("iII")  # ucred of unix(7): pid, uid, gid
_NUMBER = struct.Struct("i")
_ALL_USERS = 2**32 - 1
_SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
Connection = socket.socket | TransportSocket


def is_unix(transport: Any) -> bool:
    """Whether a transport of asyncio, or None, is a connection of a Unix socket."""
    name = transport.get_extra_info("sockname") if transport is not None else None
    return isinstance(name, str | bytes)


def peer_uid(connection: Connection) -> int | None:
    """The user of the process that connected. None if the kernel does not name it: on other systems
    than Linux, and for a user of another user namespace."""
    found = _credentials(connection)
    return found[1] if found and found[1] not in (_ALL_USERS, _unmapped()) else None


def look_at_peer(connection: Connection, look: Callable[[int], T]) -> T | None:
    """The result of `look(pid)` for the process that connected. None if it has ended, also while
    `look` ran, if it is in another PID namespace, or if the kernel has no SO_PEERPIDFD. Raises
    OSError if resources are exhausted."""
    try:
        fd = _NUMBER.unpack(connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4))[0]
    except (OSError, struct.error) as error:
        if getattr(error, "errno", None) in _SCARCE:
            raise
        return None
    try:
        pid = _pid_of(fd)
        found = _credentials(connection)
        if pid is None or found is None or pid != found[0]:
            return None
        result = look(pid)
        return None if _has_ended(fd) else result
    finally:
        os.close(fd)


def names_processes() -> bool:
    """Whether this kernel names the process at the other end of a Unix socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        return look_at_peer(ours, lambda pid: pid) == os.getpid()


def _credentials(connection: Connection) -> tuple[int, int, int] | None:
    """pid, uid and gid."""
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError, struct.error):
        given = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, gid = _CREDENTIALS.unpack(given)
        return pid, uid, gid
    return None


@cache
def _unmapped() -> int | None:
    """The uid that stands for all users without a uid in this user namespace. None if all users
    have one."""
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
        if len(lines) == 1 and lines[0].split()[2] == str(_ALL_USERS):
            return None
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError, IndexError):
        return 65534


def _pid_of(fd: int) -> int | None:
    """The pid of a pidfd. None for an ended process, and for a descriptor of another kind."""
    with contextlib.suppress(OSError, ValueError):
        lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
        pids = [int(line.split()[1]) for line in lines if line.startswith("Pid:")]
        return pids[0] if pids and pids[0] > 0 else None
    return None


def _has_ended(fd: int) -> bool:
    """A pidfd is readable from the end of its process on."""
    ended = select.poll()
    ended.register(fd, select.POLLIN)
    return bool(ended.poll(0))
