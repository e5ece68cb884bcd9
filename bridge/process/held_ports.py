"""Keeps the ports of a server that has ended, and hands them over with the files of the sessions'
input. Runs within process/fork_server.py; imports only the standard library. Modules that take long
to load are imported after the end of the server.

Processes of agents may outlive a server, and one of them could bind its port: clients would send
it their tokens, and the next server could not start. So the server passes its listening sockets and
the sockets that keep its ports (server/operate/ports.py), and they stay open as long as an agent
may live. Connections wait in the queue of a listening socket, for REFUSED_AFTER seconds; after
that, the port refuses them, and stays bound.

The next server connects to the socket of this launcher in the state folder, which agents cannot
reach, and gets the sockets. Meanwhile the agents stand still: a port whose address changes is free
for an instant. The next server sends BOUND once it has bound its ports, and OWNED once it has the
lock of the state folder. Then it gets the files of the running sessions' input
(process/spool.py), each with the name of its session.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator

HOLD = b"h"  # the first letter of a packet with a socket; a path follows for that of this launcher
MORTAL = b"m"  # the first letter of a packet; the beginning of markers follows
BOUND, OWNED = b"b", b"o"
FOLDER = "launchers"  # in the state folder
NAME = "agent-launcher"  # of a launcher in lists of processes
REFUSED_AFTER = 60.0  # seconds; as long as clients wait for a server (cli/mcp/finder.py)
_STILL_WITHIN, _STILL_FOR = 0.2, 5.0  # seconds: until all agents stand still, and at most
_TOLD_WITHIN = 10.0  # seconds, for one descriptor
_PAUSE = 0.0005  # seconds
_CLOSED_WITHIN = 1.0  # seconds
_CREDENTIALS = struct.Struct("iII")  # ucred of unix(7): pid, uid, gid
_MOST = 64  # descriptors of an answer
_NAME = 255  # bytes of a session's name
_DRAFT = ".new"
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_END = """
import sys
sys.path.append(sys.argv[1])
from bridge.process.process_tree import kill_sessions
kill_sessions(sys.argv[2], ())
"""


class HeldPorts:
    """`folder`: the state folder; empty without one. `mortal`: the beginning of the markers of
    processes that end with the server; empty for none. `patience`: seconds for which connections
    wait for the next server."""

    def __init__(self, patience: float = REFUSED_AFTER) -> None:
        self._patience = patience
        self.folder = self.mortal = ""
        self._sockets: list[socket.socket] = []
        self._door: socket.socket | None = None
        self._next: socket.socket | None = None  # the connection of the next server
        self._still: list[int] = []  # processes that were stopped
        self._until = 0.0  # when they continue at the latest
        self._refuse = 0.0  # when waiting connections are refused; 0: not

    def hold(self, fd: int | None, folder: str) -> None:
        """`fd`: of a socket; None: none of those before. `folder`: the state folder if the socket
        is the one in it; else empty."""
        if fd is None:
            for one in (*self._sockets, *filter(None, [self._door])):
                one.close()
            self._sockets, self._door = [], None
            return
        held = socket.socket(fileno=fd)
        if folder:
            self._door, self.folder = held, folder
        else:
            self._sockets.append(held)

    @property
    def fds(self) -> list[int]:
        """The descriptors that serve() waits for. One server at a time gets an answer."""
        waiting = self._next or self._door
        return [waiting.fileno()] if waiting else []

    @property
    def pause(self) -> float | None:
        """Seconds until the next call of serve(); None: any time."""
        due = [one for one in (self._until, self._refuse) if one]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def leave(self) -> None:
        """The server has ended: its clients wait for the next one, for a while."""
        self._refuse = time.monotonic() + self._patience

    def turn_away(self) -> None:
        """Close a connection: the server still runs."""
        if self._door:
            with contextlib.suppress(OSError):
                self._door.accept()[0].close()

    def serve(self, ready: set[int], inputs: Callable[[], Iterable[tuple[str, int]]]) -> bool:
        """Answer the next server. `inputs`: the sessions, and the files of their input. Returns
        whether that server runs from now on."""
        now, owned = time.monotonic(), False
        if self._next and self._next.fileno() in ready:
            owned = self._listen(self._next, inputs)
        elif self._door and self._door.fileno() in ready:
            self._answer(self._door)
        if self._until and now > self._until:
            self._continue()
        if owned:
            self._refuse = 0.0
        elif self._refuse and now > self._refuse:
            self._refuse = 0.0
            for one in self._sockets:
                refuse(one)
        return owned

    def close(self) -> None:
        """End the mortal processes, if there are any, and close the ports."""
        if self.mortal:
            command = [sys.executable, "-I", "-S", "-c", _END, _ROOT, self.mortal]
            os.waitpid(os.posix_spawn(command[0], command, {}), 0)
        self.hold(None, "")

    def _answer(self, door: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection = door.accept()[0]
            if not _is_server(connection):
                connection.close()
                return
            self._next = connection
            if self._sockets:
                self._stop()
            fds = [one.fileno() for one in self._sockets]
            socket.send_fds(connection, [BOUND], fds, socket.MSG_DONTWAIT)

    def _listen(
        self, server: socket.socket, inputs: Callable[[], Iterable[tuple[str, int]]]
    ) -> bool:
        """Whether the next server owns the ports. If it ends before, this launcher waits for
        another one."""
        told = b""
        with contextlib.suppress(OSError):
            told = server.recv(2, socket.MSG_DONTWAIT)
        self._continue()
        if OWNED in told:
            with contextlib.suppress(OSError):  # it has ended, or is of an earlier version
                server.settimeout(_TOLD_WITHIN)
                for session, file in inputs():
                    socket.send_fds(server, [session.encode()], [file])
        if told != BOUND:
            server.close()
            self._next = None
        return OWNED in told

    def _stop(self) -> None:
        """Stop all descendants. A process may fork before it is stopped."""
        from bridge.process import procfs

        deadline = time.monotonic() + _STILL_WITHIN
        while running := {pid for pid in procfs.descendants(os.getpid()) if procfs.runs(pid)}:
            for pid in running.difference(self._still):
                self._still.append(pid)
                _send(pid, signal.SIGSTOP)
            if time.monotonic() > deadline:
                break
            time.sleep(_PAUSE)
        self._until = time.monotonic() + _STILL_FOR

    def _continue(self) -> None:
        while self._still:
            _send(self._still.pop(), signal.SIGCONT)
        self._until = 0.0


def refuse(listening: socket.socket) -> None:
    """Refuse new connections and those in the queue. The address stays bound, in all processes that
    have the socket."""
    with contextlib.suppress(OSError):  # it does not listen
        listening.shutdown(socket.SHUT_RD)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)


@contextlib.contextmanager
def _folder(state: str | os.PathLike[str]) -> Iterator[int]:
    """The path of a socket is limited, so it leads through this descriptor."""
    path = os.path.join(state, FOLDER)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


def make_door(state: str | os.PathLike[str]) -> socket.socket:
    """A new socket in the state folder, for a launcher that hands the ports over. Raises
    OSError."""
    name = os.urandom(8).hex()
    with contextlib.suppress(FileExistsError):
        os.mkdir(os.path.join(state, FOLDER), 0o700)
    with contextlib.ExitStack() as unused, _folder(state) as folder:
        door = unused.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        door.bind(f"/proc/self/fd/{folder}/{name}{_DRAFT}")
        door.listen()
        os.rename(f"{name}{_DRAFT}", name, src_dir_fd=folder, dst_dir_fd=folder)
        unused.pop_all()
        return door


def take(
    state: str | os.PathLike[str], known: Collection[str] = (), within: float = 0.0
) -> tuple[list[socket.socket], dict[str, socket.socket]]:
    """The sockets that the launchers of earlier servers hold, and the connections to these
    launchers by their names. `known`: names of other launchers. `within`: seconds until launchers
    must have noticed the end of their servers. Raises OSError."""
    held: list[socket.socket] = []
    launchers: dict[str, socket.socket] = {}
    deadline = time.monotonic() + within
    with _folder(state) as folder:
        for name in os.listdir(folder):
            if name.endswith(_DRAFT) or name in known:  # a draft does not listen yet
                continue
            try:
                while not (found := _ask(f"/proc/self/fd/{folder}/{name}")):
                    if time.monotonic() >= deadline:
                        break
                    time.sleep(_PAUSE)
            except (ConnectionRefusedError, FileNotFoundError):  # its launcher has ended
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
                continue
            if found:
                launchers[name] = found[0]
                held += [socket.socket(fileno=fd) for fd in found[1]]
    return held, launchers


def _ask(path: str) -> tuple[socket.socket, list[int]] | None:
    """The connection to a launcher, and its descriptors; None if its server still runs. Raises
    ConnectionRefusedError or FileNotFoundError if it has ended."""
    with contextlib.ExitStack() as unused:
        launcher = unused.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        launcher.settimeout(_STILL_FOR)
        try:
            launcher.connect(path)
            told, fds, _, _ = socket.recv_fds(launcher, 1, _MOST)
        except (ConnectionRefusedError, FileNotFoundError):
            raise
        except OSError:
            return None
        if told:
            unused.pop_all()
            return launcher, fds
    return None


def own(launcher: socket.socket) -> dict[str, int]:
    """Tell a launcher that its ports are owned. Returns the files of its sessions' input."""
    files: dict[str, int] = {}
    with launcher, contextlib.suppress(OSError):  # it has ended
        launcher.settimeout(_TOLD_WITHIN)
        launcher.send(OWNED)
        while True:  # each call gets the bytes of one descriptor
            session, fds, _, _ = socket.recv_fds(launcher, _NAME, 1)
            if not session:
                break
            files.update(zip([session.decode()], fds, strict=False))  # none is free: no file
    return files


def tidy(state: str | os.PathLike[str]) -> None:
    """Remove the sockets of launchers that have ended. The kernel closes those of a killed launcher
    some time later: wait for it."""
    deadline = time.monotonic() + _CLOSED_WITHIN
    with contextlib.suppress(OSError), _folder(state) as folder:
        for name in os.listdir(folder):
            while not _removed(folder, name) and time.monotonic() < deadline:
                time.sleep(_PAUSE)


def _removed(folder: int, name: str) -> bool:
    with socket.socket(socket.AF_UNIX) as launcher:
        launcher.setblocking(False)
        if launcher.connect_ex(f"/proc/self/fd/{folder}/{name}") != errno.ECONNREFUSED:
            return False
    os.unlink(name, dir_fd=folder)
    return True


def _is_server(connection: socket.socket) -> bool:
    """Whether the peer is a process of this user, and of no agent: those descend from a launcher,
    or have a mark."""
    from bridge.process import procfs
    from bridge.sandbox import mark

    with contextlib.suppress(OSError, struct.error):
        given = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(given)
        above = procfs.lineage(pid) if pid else []
        outside = bool(above) and NAME not in map(procfs.name, above) and not mark.foreign(pid)
        return outside and uid == os.geteuid()
    return False


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
