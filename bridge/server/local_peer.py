"""Whether a connection comes from a process that this server started.

An agent runs as the user of the server, on the same machine. So neither a user id nor a token, that
an agent without walls can read, proves that the operator asks. What an agent cannot change is its
control group and its parents. The operator's credentials count only on connections whose other end
is shown to be outside; what cannot be shown is refused:

* The kernel names the control group of the process that made the socket. An agent within walls
  cannot leave its group, so the group decides.
* Where there are no groups, or an agent has no walls, the processes that hold the socket decide.
  There must be at least one, and none may descend from the server, be marked, or be in a group of
  an agent.

A connection from another machine is not looked at: no process of this one holds it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

from bridge.auth.peercred import Peer, address, peer_of
from bridge.errors import Unavailable
from bridge.process import cgroup, procfs

log = logging.getLogger(__name__)

AT_ONCE = 64  # connections that wait for their answer; the search takes milliseconds for each
MOST_GROUPS = 10_000  # that are remembered
_Ends = tuple[Any, Any]  # the addresses of a connection: ours, the other


class Origin:
    """`markers`: what the markers of this server's processes begin with. `walled`: control groups
    decide where there are any, because walls keep every agent from leaving its own."""

    def __init__(self, markers: str, walled: bool) -> None:
        self._marker = f"{procfs.MARKER}={markers}".encode()
        self._walled = walled
        self._known: WeakKeyDictionary[object, bool] = WeakKeyDictionary()  # by connection
        self._searcher = ThreadPoolExecutor(1, thread_name_prefix="origin")
        self._waiting = 0

    def is_outside(self, connection: asyncio.BaseTransport | None) -> bool | Awaitable[bool]:
        """Whether the other end is no process that the server started. Raises Unavailable while
        that cannot be found out."""
        if connection is None:
            return False
        if connection in self._known:
            return self._known[connection]
        ends = (connection.get_extra_info("sockname"), connection.get_extra_info("peername"))
        try:
            peer = peer_of(*ends)
        except OSError as error:
            raise _try_again() from error
        if peer is None:
            return self._note(connection, _is_elsewhere(ends[1]))
        if peer.group in _verdicts and (self._group_decides or _verdicts[peer.group]):
            return self._note(connection, not _verdicts[peer.group])
        return self._later(connection, peer, ends)

    @property
    def _group_decides(self) -> bool:
        return self._walled and cgroup.complete()

    def _note(self, connection: object, outside: bool) -> bool:
        self._known[connection] = outside
        return outside

    async def _later(self, connection: object, peer: Peer, ends: _Ends) -> bool:
        if self._waiting >= AT_ONCE:
            raise _try_again()
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            outside = await loop.run_in_executor(self._searcher, self._look, peer, ends)
        except OSError as error:
            raise _try_again() from error
        finally:
            self._waiting -= 1
        return self._note(connection, outside)

    def _look(self, peer: Peer, ends: _Ends) -> bool:
        """In a thread: it reads the folders of all groups, and perhaps of all processes."""
        agents = _of_agents(peer.group)
        if agents or (agents is False and self._group_decides):
            return not agents
        holders = procfs.holders(peer.inode)
        if any(self._is_inside(pid) for pid in holders):
            return False
        ours = os.geteuid()
        if not holders and ours in (peer.uid, 0):
            return False  # such as a process that hides its descriptors, or the server's end alone
        return peer_of(*ends) == peer  # not closed meanwhile, and its inode given to another

    def _is_inside(self, pid: int) -> bool:
        lineage = procfs.lineage(pid)
        if not lineage or os.getpid() in lineage:
            return True
        variables = (line for one in lineage for line in procfs.environment(one))
        return any(line.startswith(self._marker) for line in variables) or any(
            map(cgroup.is_agent, lineage)
        )


def watch(markers: str, walled: bool) -> Origin | None:
    """None where the kernel does not tell whose a connection is: another system than Linux, or a
    Linux without sock_diag. Then the token alone decides."""
    if sys.platform == "linux" and _kernel_tells():
        return Origin(markers, walled)
    log.warning("this system does not tell which process a client is; its token alone decides")
    return None


def _kernel_tells() -> bool:
    """Tried on a connection of this process with itself."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as listening,
            socket.create_connection(listening.getsockname()) as connection,
        ):
            return peer_of(connection.getpeername(), connection.getsockname()) is not None
    except OSError:
        return False


def _is_elsewhere(peername: Any) -> bool:
    """Whether an address is another machine's: from this one, connections there have another
    address of their own. Nothing is sent."""
    try:
        theirs = address(peername[0])
        if theirs.is_loopback:
            return False
        family = socket.AF_INET6 if theirs.version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            more = peername[2:] if family == socket.AF_INET6 else ()  # a link-local one's interface
            probe.connect((str(theirs), peername[1], *more))
            return address(probe.getsockname()[0]) != theirs
    except (OSError, ValueError, TypeError, IndexError):
        return False


def _try_again() -> Unavailable:
    return Unavailable("The server cannot look at this connection now; try again in a moment.")


_verdicts: dict[int | None, bool] = {}


def _of_agents(group: int | None) -> bool | None:
    """Whether it is a group of an agent; None if that is not known. Ids are not used twice, and a
    group is never moved, so that the answer stays true."""
    if group is None:
        return None
    if group not in _verdicts:
        found = cgroup.holds_agents(group)
        if found is None:
            return None
        if len(_verdicts) >= MOST_GROUPS:
            _verdicts.clear()
        _verdicts[group] = found
    return _verdicts[group]
