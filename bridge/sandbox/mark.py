"""The mark of a session: the limits of RLIMIT_LOCKS of its processes.

The kernel has not used these limits since Linux 2.4.25. A process inherits them. It keeps them with
other parents, in another session, as another user, and after execve() with another environment.
Every user can read them in /proc/PID/limits, also those of a process that is not dumpable. A
confined process cannot change them (sandbox/seccomp.py). So they name the session of a process for
as long as it lives, also after the end of its task and of its server.

Nothing but the standard library: the programs that use this module run without anything else.
"""

from __future__ import annotations

import hashlib
import os
import resource
import sys
from functools import cache, lru_cache
from typing import NamedTuple

from bridge.sandbox.seccomp import SESSION_MARK

TAG = 0x4CAB  # the upper 16 bits of `server`; below 2**15, since some programs read signed numbers
_LINE = b"Max file locks"


class Mark(NamedTuple):
    """The soft and the hard limit. `session`: a digest of the marker of the session. `server`: the
    tag, and a digest of the part of the marker that all sessions of a state folder have."""

    session: int
    server: int


@lru_cache(maxsize=1024)
def of(marker: str) -> Mark:
    """That of a marker, `SERVER.SESSION`. The soft limit is below the hard one, as it must be."""
    server = _digest(marker.partition(".")[0])
    return Mark(_digest(marker) >> 2, TAG << 48 | server >> 16)


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def read(pid: int | str) -> Mark | None:
    """That of a process; None if it has none, has ended, or cannot be seen."""
    try:
        fd = os.open(f"/proc/{pid}/limits", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        limits = os.read(fd, 4096)
    except OSError:
        return None
    finally:
        os.close(fd)
    soft, hard = limits.partition(_LINE)[2].split(maxsplit=2)[:2] or (b"", b"")
    if not (soft.isdigit() and hard.isdigit() and int(hard) >> 48 == TAG):
        return None
    return Mark(int(soft), int(hard))


def foreign(pid: int) -> Mark | None:
    """The same, without the mark of this process itself: a server may run inside an agent."""
    found = read(pid)
    return found if found != _own() else None


@cache
def _own() -> Mark | None:
    return read("self")


@cache
def problem() -> str | None:
    """Why the children of this process cannot have marks; None if they can."""
    if sys.platform != "linux":
        return "this system shows no limits of processes"
    limits = resource.getrlimit(SESSION_MARK)
    if limits[1] != resource.RLIM_INFINITY:
        return "RLIMIT_LOCKS of the server is limited, as inside an agent of another server"
    try:
        resource.setrlimit(SESSION_MARK, limits)
        os.close(os.open("/proc/1/limits", os.O_RDONLY | os.O_CLOEXEC))
    except (OSError, ValueError) as error:
        return f"RLIMIT_LOCKS cannot be set or seen: {error}"
    return None
