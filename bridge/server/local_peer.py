"""Whether a connection comes from a process that this server started.

An agent runs as the user of the server, on the same machine. So neither a user id nor a token,
which an agent without walls can read, proves that a request comes from the operator. An agent
within walls cannot change its mark (sandbox/mark.py) and its control group. The operator's
credentials are valid only on connections whose peer is proved to be outside; a connection without
proof is refused:

* The kernel names the control group of the process that made the socket. An agent within walls
  cannot leave its group, so the group decides.
* Without control groups, or if an agent has no walls, the processes that hold the socket decide.
  At least one process must hold it, and none of them may descend from the server, have the mark of
  an agent of any server, or be in a group of an agent. If the agents of this server have no marks,
  none of them may be confined as an agent is.

A connection from another machine is accepted without a search: a local process cannot hold it. On a
Unix socket, the kernel names the process that connected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from bridge.auth.peercred import SocketPeer, address, peer_of
from bridge.auth.unix_peer import Connection, is_unix, look_at_peer, names_processes
from bridge.errors import Unavailable
from bridge.process import cgroup, procfs
from bridge.sandbox import mark

log = logging.getLogger(__name__)

MAX_WAITING = 64  # connections that wait for a search, which takes milliseconds each
MAX_GROUPS = 10_000  # in the cache
_UNKNOWN_FOR_NOW = "The server cannot check this connection now; try again in a moment."
_Ends = tuple[Any, Any]  # the local and the remote address of a connection
T = TypeVar("T")


class LocalOrigin:
    """`markers`: the prefix of the markers of this server's processes. `walled`: control groups, if
    available, decide, because walls keep every agent in its group."""

    def __init__(self, markers: str, walled: bool) -> None:
        self._markers = markers
        self._server = mark.of(markers).server
        self._walled = walled
        self._known: WeakKeyDictionary[object, bool] = WeakKeyDictionary()  # by connection
        self._searcher = ThreadPoolExecutor(1, thread_name_prefix="origin")
        self._waiting = 0

    async def is_outside(self, connection: asyncio.BaseTransport | None) -> bool:
        """Whether the peer is a process that the server did not start. Raises Unavailable if this
        is unknown for now."""
        if connection is None:
            return False
        if connection not in self._known:
            try:
                self._known[connection] = await self._decide(connection)
            except OSError as error:
                raise Unavailable(_UNKNOWN_FOR_NOW) from error
        return self._known[connection]

    async def is_proved_outside(self, connection: asyncio.BaseTransport | None) -> bool:
        """Whether the control group of the peer of a Unix socket proves this. Raises Unavailable if
        this is unknown for now."""
        if not (is_unix(connection) and self._group_decides):
            return False
        return await self.is_outside(connection)

    @property
    def knows_users(self) -> bool:
        """Whether is_proved_outside() can be true."""
        return self._group_decides and names_processes()

    async def _decide(self, connection: asyncio.BaseTransport) -> bool:
        if is_unix(connection):
            return await self._decide_unix(connection.get_extra_info("socket"))
        ends = (connection.get_extra_info("sockname"), connection.get_extra_info("peername"))
        peer = peer_of(*ends)
        if peer is None:
            return _is_elsewhere(ends[1])
        if peer.group in _verdicts and (self._group_decides or _verdicts[peer.group]):
            return not _verdicts[peer.group]
        return await self._in_thread(self._search, peer, ends)

    async def _decide_unix(self, connection: Connection) -> bool:
        agents = look_at_peer(connection, _belongs_to_any)
        if agents or self._group_decides:
            return agents is False
        return bool(await self._in_thread(look_at_peer, connection, self._is_not_inside))

    async def _in_thread(self, search: Callable[..., T], *arguments: Any) -> T:
        if self._waiting >= MAX_WAITING:
            raise Unavailable(_UNKNOWN_FOR_NOW)
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._searcher, search, *arguments)
        finally:
            self._waiting -= 1

    async def session(self, connection: asyncio.BaseTransport | None) -> str | None:
        """The marker of the session whose process has opened the connection; empty if the process
        is one of this server's own, but its session is unknown. None: a process outside. Raises
        Unavailable."""
        if await self.is_outside(connection):
            return None
        assert connection is not None
        ends = (connection.get_extra_info("sockname"), connection.get_extra_info("peername"))
        own = connection.get_extra_info("socket") if is_unix(connection) else None
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._searcher, self._marker_of, ends, own)

    def _marker_of(self, ends: _Ends, unix: Connection | None) -> str:
        """`unix`: the connection of a Unix socket."""
        with contextlib.suppress(OSError):
            if unix is not None:
                return look_at_peer(unix, lambda pid: self._marker_in((pid,))) or ""
            peer = peer_of(*ends)
            return self._marker_in(procfs.holders(peer.inode) if peer else ())
        return ""

    def _marker_in(self, pids: Iterable[int]) -> str:
        """The first marker in the environments of the processes and their parents. An agent can
        change its environment, so the mark of its process must agree."""
        for pid in pids:
            known = mark.foreign(pid)
            for variables in map(procfs.environment, procfs.lineage(pid)):
                for one in procfs.markers(variables):
                    agrees = known == mark.of(one) if known else mark.problem() is not None
                    if agrees and one.startswith(self._markers):
                        return one
        return ""

    @property
    def _group_decides(self) -> bool:
        return self._walled and cgroup.complete()

    def _search(self, peer: SocketPeer, ends: _Ends) -> bool:
        """Runs in a thread: it reads the folders of all groups and maybe of all processes."""
        agents = _belongs_to_agent(peer.group)
        if agents or (agents is False and self._group_decides):
            return not agents
        holders = procfs.holders(peer.inode)
        if any(self._is_inside(pid) for pid in holders):
            return False
        if not holders and os.geteuid() in (peer.uid, 0):
            return False  # a process hides its descriptors, or only the server's end is left
        return peer_of(*ends) == peer  # the socket may have closed, and its inode may be reused

    def _is_not_inside(self, pid: int) -> bool:
        return not self._is_inside(pid)

    def _is_inside(self, pid: int) -> bool:
        lineage = procfs.lineage(pid)
        if not lineage or os.getpid() in lineage:
            return True
        return any(map(self._is_agent, lineage))

    def _is_agent(self, pid: int) -> bool:
        ours = any(one.server == self._server for one in procfs.marks(pid))
        return ours or bool(_belongs_to_any(pid)) or (mark.problem() is not None and _walled(pid))


def _belongs_to_any(pid: int) -> bool | None:
    """Whether the process has the mark of an agent of any server, or is in the control group of
    one; None if its group is unknown."""
    return True if mark.foreign(pid) else cgroup.holds_process(pid)


def _walled(pid: int) -> bool:
    """Whether the process has more walls than this one, as an agent has."""
    return procfs.filters(pid) > procfs.filters("self")


def watch(markers: str, walled: bool) -> LocalOrigin | None:
    """None if the kernel does not name the process of a connection: on other systems than Linux,
    and on Linux without sock_diag. Then only the token decides."""
    if sys.platform == "linux" and _kernel_names_peers():
        return LocalOrigin(markers, walled)
    log.warning("the process of a client is unknown on this system; only its token decides")
    return None


def _kernel_names_peers() -> bool:
    """Tests a connection of this process with itself."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as listening,
            socket.create_connection(listening.getsockname()) as connection,
        ):
            return peer_of(connection.getpeername(), connection.getsockname()) is not None
    except OSError:
        return False


def _is_elsewhere(peername: Any) -> bool:
    """Whether an address belongs to another machine: the local address of a connection to it
    differs. Sends nothing."""
    try:
        theirs = address(peername[0])
        if theirs.is_loopback:
            return False
        family = socket.AF_INET6 if theirs.version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            interface = peername[2:] if family == socket.AF_INET6 else ()  # of a link-local address
            probe.connect((str(theirs), peername[1], *interface))
            return address(probe.getsockname()[0]) != theirs
    except (OSError, ValueError, TypeError, IndexError):
        return False


_verdicts: dict[int | None, bool] = {}


def _belongs_to_agent(group: int | None) -> bool | None:
    """Whether the group belongs to an agent; None if unknown. The kernel does not reuse group ids
    and the server does not move groups, so the answer stays valid."""
    if group is None:
        return None
    if group not in _verdicts:
        found = cgroup.holds_agents(group)
        if found is None:
            return None
        if len(_verdicts) >= MAX_GROUPS:
            _verdicts.clear()
        _verdicts[group] = found
    return _verdicts[group]
