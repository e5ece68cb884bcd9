"""The TCP ports of a server, which no other process can bind while an agent lives.

An agent reaches all addresses of this machine, and clients look up `localhost` in their own way. So
the server listens on both addresses of localhost, and a *guard* keeps its port on all others: a
socket that is bound to every address and does not listen. The kernel lets sockets share a port as
long as all of them have SO_REUSEADDR and none with the same address listens. A guard has it only
while the server binds its own addresses.

The launcher holds the same sockets (process/held_ports.py), and the next server with this state
folder gets them from it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bridge.process import held_ports, spawn
from bridge.process.held_ports import BOUND, refuse, take
from bridge.process.spawn import LAUNCHES, KeptPorts
from bridge.server.operate.port_users import end_strays, is_released
from bridge.server.token_file import is_described

BACKLOG = 128
RELEASED_WITHIN, PAUSE = 5.0, 0.02  # seconds: until a launcher has ended
NOTICED_WITHIN = 2.0  # seconds, after the end of a server
ANYWHERE: dict[int, str] = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}  # noqa: S104
LOCALHOST: dict[int, str] = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
GUARDED = ANYWHERE if sys.platform == "linux" else {}  # SO_REUSEADDR has other rules elsewhere
T = TypeVar("T")


class Ports:
    """The ports of one server. `folder`: its state folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._held: list[socket.socket] = []  # of earlier servers
        self._launchers: dict[str, socket.socket] = {}
        self._kept: list[socket.socket] = []
        if LAUNCHES and folder and folder.is_dir() and not is_described(folder):
            with contextlib.suppress(OSError):
                held, self._launchers = take(folder)
                self._held = _without_copies(held)

    def listen(self, host: str, port: int) -> list[socket.socket]:
        """Listening sockets on all addresses of `host`; if it is localhost or all addresses, also
        on the other address of localhost, where the machine has it. Raises OSError."""
        found = self.bind(port, lambda number: self._listen(host, number))
        self._kept += [one.dup() for one in found]
        return found

    def bind(self, port: int, make: Callable[[int], T]) -> T:
        """The result of `make(number)`, which binds addresses of the port with SO_REUSEADDR. 0: any
        port that is free on them. A process that an earlier server with this folder has left is
        ended if it uses the port. Raises the errors of `make`."""
        deadline = time.monotonic() + RELEASED_WITHIN
        while True:
            try:
                with self._guarded(port) as number:
                    return make(number)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    raise
                if port and not (end_strays(port, self._folder) or is_released(port)):
                    raise
                time.sleep(PAUSE)

    def keep_others(self, listening: Sequence[socket.socket]) -> None:
        """Keep the ports of sockets that another program has made, on addresses of families that
        these sockets do not have."""
        for port in {one.getsockname()[1] for one in listening}:
            with self._guarded(port):
                pass

    def bound(self) -> None:
        """All ports are bound: agents of an earlier server continue."""
        for one in self._launchers.values():
            _tell(one, BOUND)

    def own(self, folder: Path | None, markers: str) -> dict[str, int]:
        """This server has the lock of its folder: a launcher keeps its ports from now on. Ports of
        earlier servers that are not used refuse connections. Both arguments: see State. Returns the
        files of the input of running sessions (process/spool.py)."""
        if LAUNCHES and folder:
            with contextlib.suppress(OSError):  # of servers that still ran before
                held, more = take(folder, self._launchers, NOTICED_WITHIN)
                self._held += held
                for one in more.values():
                    _tell(one, BOUND)
                self._launchers |= more
        kept = {_inode(one) for one in self._kept}
        for one in self._held:
            if _inode(one) not in kept:
                refuse(one)
            one.close()
        spawn.hold(KeptPorts(tuple(self._kept), folder, markers))
        files: dict[str, int] = {}
        for one in self._launchers.values():
            files |= held_ports.own(one)
        self._held, self._launchers = [], {}
        return files

    def refuse(self) -> None:
        """Refuse connections from now on. No process can bind the ports yet."""
        for one in self._kept:
            refuse(one)

    def close(self) -> None:
        """Close the sockets of this process."""
        for one in (*self._held, *self._launchers.values(), *self._kept):
            one.close()
        self._held, self._launchers, self._kept = [], {}, []

    # --- sockets ---------------------------------------------------------------------------------

    def _listen(self, host: str, port: int) -> list[socket.socket]:
        with contextlib.ExitStack() as unused:
            found: list[socket.socket] = []
            for family, (name, _, *rest) in _addresses(host, port):
                number = port or (found[0].getsockname()[1] if found else 0)
                address = (name, number, *rest)
                one = self._fitting(family, address)
                one = one or socket.create_server(address, family=family, backlog=BACKLOG)
                found.append(unused.enter_context(one))
            unused.pop_all()
            return found

    def _fitting(self, family: int, address: tuple[Any, ...]) -> socket.socket | None:
        """A held socket on this address, which listens."""
        for one in self._held:
            same = one.family == family and one.getsockname()[:2] == tuple(address[:2])
            if same and not _is_guard(one, address[1]):
                self._held.remove(one)
                if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    _share(one, True)
                    one.listen(BACKLOG)
                return one
        return None

    @contextlib.contextmanager
    def _guarded(self, port: int) -> Iterator[int]:
        """Within the context, this process can bind addresses of the port. Afterwards no process
        can. The result is its number, if `port` is 0."""
        old = [one for one in self._held if port and _is_guard(one, port)]
        with contextlib.ExitStack() as unused:
            guards = [*old]
            for family in GUARDED.keys() - {one.family for one in old}:
                if one := _guard(family, guards[0].getsockname()[1] if guards else port):
                    guards.append(unused.enter_context(one))
            for one in old:
                _share(one, True)
                unused.callback(_share, one, False)
            yield guards[0].getsockname()[1] if guards else port
            unused.pop_all()
        for one in guards:
            _share(one, False)
        self._held = [one for one in self._held if one not in old]
        self._kept += guards


def _guard(family: int, port: int) -> socket.socket | None:
    """A socket that keeps the port on all addresses, and shares it for now. None if a program has
    the port on some address, or the machine has no such addresses."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as unused:
        one = unused.enter_context(socket.socket(family, socket.SOCK_STREAM))
        _share(one, True)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind((ANYWHERE[family], port))
        unused.pop_all()
        return one
    return None


def _share(one: socket.socket, shared: bool) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, shared)


def _is_guard(one: socket.socket, port: int) -> bool:
    anywhere = one.getsockname()[:2] == (ANYWHERE[one.family], port)
    return anywhere and not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def _addresses(host: str, port: int) -> list[tuple[int, tuple[Any, ...]]]:
    """The families and addresses of `host`; with one of localhost or all addresses, also the other
    one of localhost, where the machine has it. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    named = dict.fromkeys((int(family), address) for family, _, _, _, address in found)
    families = {family for family, _ in named}
    hosts = {address[0] for _, address in named}
    if hosts.isdisjoint([*ANYWHERE.values(), *LOCALHOST.values()]):
        return [*named]
    more = [
        (int(family), (one, port))
        for family, one in LOCALHOST.items()
        if family not in families and _has_address(family, one)
    ]
    return [*named, *more]


def _has_address(family: int, host: str) -> bool:
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return True
    return False


def _without_copies(sockets: Sequence[socket.socket]) -> list[socket.socket]:
    """Several launchers may hold one socket."""
    found: dict[int, socket.socket] = {}
    for one in sockets:
        if found.setdefault(_inode(one), one) is not one:
            one.close()
    return [*found.values()]


def _inode(one: socket.socket) -> int:
    return os.fstat(one.fileno()).st_ino


def _tell(launcher: socket.socket, what: bytes) -> None:
    with contextlib.suppress(OSError):  # it has ended
        launcher.send(what)
