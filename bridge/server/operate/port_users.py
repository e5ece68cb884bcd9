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
from bridge.process.held_ports import NAME
from bridge.process.process_tree import living

ENDED_WITHIN, _LOCKED_WITHIN, _PAUSE = 5.0, 0.2, 0.005  # seconds
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


def is_released(port: int) -> bool:
    """Whether the port is free soon: no program listens there any more, or a launcher may be the
    one that has it. A launcher ends after its last agent."""
    holders = _holders(port)
    return not holders or NAME in map(procfs.name, holders)


def reason(error: OSError, port: int | None) -> str:
    """Why a server cannot listen on the port, for people: `used by pid 4711 (node)`."""
    if error.errno == errno.EADDRINUSE and port:
        named = [f"pid {pid} ({procfs.name(pid)})" for pid in sorted(_holders(port))]
        if named:
            return f"used by {' or '.join(named[:_MOST])}"
        if found := _listeners(port):
            return f"used by a program of user {found[0].uid}"
    return error.strerror or str(error)


def _strays(port: int, markers: str) -> set[int]:
    """The processes of agents that use the port."""
    holders = _holders(port)
    agents = living(markers) if holders else set()
    return {pid for pid in holders if not agents.isdisjoint([pid, *procfs.lineage(pid)])}


def _holders(port: int) -> set[int]:
    """The processes that have the port. If their descriptors cannot be read: all processes of this
    user that hide theirs."""
    found = _listeners(port)
    holders = procfs.holders(*(one.inode for one in found))
    if holders or os.geteuid() not in {one.uid for one in found}:
        return holders
    hidden = (pid for pid in procfs.processes() if not os.access(f"/proc/{pid}/fd", os.R_OK))
    return {pid for pid in hidden if procfs.user(pid) == os.geteuid()}


def _listeners(port: int) -> list[SocketPeer]:
    with contextlib.suppress(OSError, AttributeError):  # not on Linux
        return listeners(port)
    return []


@contextlib.contextmanager
def _unattended(state: Path) -> Iterator[None]:
    """Raises OSError if another server uses the folder. A launcher has the lock for an instant."""
    attended = os.open(state / pump.ATTENDED, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    deadline = time.monotonic() + _LOCKED_WITHIN
    try:
        while not pump.lock(attended):
            if time.monotonic() > deadline:
                raise BlockingIOError
            time.sleep(_PAUSE)
        yield
    finally:
        os.close(attended)
