"""The programs that use a port of this machine."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from bridge.auth.peercred import SocketPeer, listeners
from bridge.process import procfs, pump
from bridge.process.process_tree import living

ENDED_WITHIN = 5.0  # seconds
_PAUSE = 0.005  # seconds
_MOST = 3  # programs in a text


def end_strays(port: int, state: Path | None) -> bool:
    """End the processes that use the port and that servers with this state folder have left. Does
    nothing while another server uses the folder. Returns whether there were any."""
    if state is None:
        return False
    with contextlib.suppress(OSError), _unattended(state):
        markers = f"{(state / 'id').read_text()}."
        deadline, found = time.monotonic() + ENDED_WITHIN, False
        while strays := _strays(port, markers):
            found = True
            for pid in strays:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                break
            time.sleep(_PAUSE)
        return found
    return False


def reason(error: OSError, port: int | None) -> str:
    """Why a server cannot listen on the port, for people: `used by pid 4711 (node)`."""
    used = _users(port) if error.errno == errno.EADDRINUSE and port else ""
    return used or error.strerror or str(error)


def _users(port: int) -> str:
    found = _listeners(port)
    pids = {pid for one in found for pid in procfs.holders(one.inode)}
    named = [f"pid {pid} ({procfs.name(pid)})" for pid in sorted(pids)]
    if named:
        return f"used by {', '.join(named[:_MOST])}"
    return f"used by a program of user {found[0].uid}" if found else ""


def _strays(port: int, markers: str) -> set[int]:
    """The processes of agents that use the port. One that hides its descriptors may be the one."""
    found = _listeners(port)
    holders = {pid for one in found for pid in procfs.holders(one.inode)}
    if not found:
        return set()
    agents = living(markers)
    if holders:
        return {pid for pid in holders if not agents.isdisjoint(procfs.lineage(pid))}
    return {pid for pid in agents if not os.access(f"/proc/{pid}/fd", os.R_OK)}


def _listeners(port: int) -> list[SocketPeer]:
    with contextlib.suppress(OSError, AttributeError):  # not on Linux
        return listeners(port)
    return []


@contextlib.contextmanager
def _unattended(state: Path) -> Iterator[None]:
    """Raises OSError if another server uses the folder."""
    attended = os.open(state / pump.ATTENDED, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if not pump.lock(attended):
            raise BlockingIOError
        yield
    finally:
        os.close(attended)
