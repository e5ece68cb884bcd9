"""The start of a child. On Linux process/fork_server.py forks it, which is cheap, and nothing runs
before the child is in its control group and confined."""

from __future__ import annotations

import contextlib
import errno
import json
import marshal
import os
import platform
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridge.process.cgroup import Cgroup
from bridge.process.guard import ADD, MOVABLE, RENEW, clock
from bridge.process.held_ports import HOLD, MORTAL, make_door
from bridge.process.procfs import MARKER
from bridge.process.pump import PIPE
from bridge.process.spool import prepare
from bridge.sandbox import confine, mark
from bridge.sandbox.kernel import ConfineError

# Whether the launcher starts children. Elsewhere this process starts them, on pipes.
LAUNCHES = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
CONFINE = (sys.executable, "-I", "-S", confine.__file__)
LAUNCHER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("fork_server.py")))
BY_COMMAND = ("bwrap", "external")  # profiles that are a command, run by CONFINE
LIBRARIES = "LD_LIBRARY_PATH"  # without which some interpreters do not start
KILLED_WITHIN = 1.0  # seconds


def libraries() -> str:
    """Where the server's own interpreter finds its libraries, besides where all do."""
    return os.environ.get(LIBRARIES, "")


@dataclass(frozen=True, slots=True)
class Start:
    """A program to start. `cwd` is a real path, without symbolic links. `marker` identifies its
    processes (MARKER, and sandbox/mark.py); `stdin`: it has one, which stays open; otherwise it
    reads the end of file at once. `group`: limits of its control group (Cgroup.limit); None: no
    control group. `rules`: see sandbox/confine.py; None: it has all rights of this process.
    `by_launcher`: process/fork_server.py starts it. `within`: the limit of the start, in seconds; a
    file system that does not answer would block it for ever."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    stdin: bool = True
    marker: str = field(default_factory=lambda: uuid.uuid4().hex)
    group: Mapping[str, str] | None = field(default_factory=dict)
    rules: Mapping[str, Any] | None = None
    by_launcher: bool = LAUNCHES
    within: float = 30.0


@dataclass(frozen=True, slots=True)
class KeptPorts:
    """The sockets that a launcher keeps after the end of this process, as long as a child may live,
    for the next process with the state folder `folder`. Without a folder, children end with this
    process: those with a marker that begins with `markers`."""

    sockets: Sequence[socket.socket] = ()
    folder: Path | None = None
    markers: str = ""


@dataclass(frozen=True, slots=True)
class Child:
    """A child of this process, and this side of its pipes: stdin (None without one), stdout and
    stderr; None for streams in files, where `stdin` is the file of process/spool.py.
    `grouped`: it was in its control group before its program ran, so that all its descendants are
    in it."""

    pid: int
    pipes: tuple[int | None, int, int] | None
    grouped: bool
    stdin: int | None = None


def start_child(start: Start, spool: Path | None = None) -> Child:
    """A child in a session of its own, with its streams on pipes; or, with its streams in the
    folder `spool`, which must not exist, a child that outlives this process. Blocks until it runs,
    for milliseconds. Raises OSError, with the directory as its filename if that is the problem,
    TimeoutError after `start.within` seconds, and ValueError."""
    argv, rules, checked = start.argv, start.rules, False
    if spool and rules and rules["profile"] == "landlock" and rules.get("uid") is None:
        # As on a pipe without a name, a program may open its own stdout again: /dev/stdout. Another
        # user may not, and could not even reach the file to have a rule for it.
        rules = {**rules, "write": [*rules.get("write", ()), os.path.realpath(spool / PIPE)]}
    if rules is not None and (rules["profile"] in BY_COMMAND or not start.by_launcher):
        argv, rules = (*CONFINE, json.dumps(rules), "--", *argv), None
    if rules is not None:
        with contextlib.suppress(ConfineError):  # the child reports it
            rules, checked = confine.checked(rules), True  # cheaper than in a fork
    group = Cgroup(start.marker)
    with _files(spool, start.stdin) if spool else _pipes(start.stdin) as (pipes, file, theirs):
        try:
            if start.group:
                group.limit(start.group)
            order = {
                "argv": [*argv],
                "env": {**start.env, MARKER: start.marker},
                "cwd": start.cwd,
                "group": group.make() if start.by_launcher and start.group is not None else "",
                "mark": None if mark.problem() else [*mark.of(start.marker)],
                "rules": rules,
                "checked": checked,
            }
            if start.by_launcher:
                pid = _launch(order, theirs, spool, start.within)
            else:
                pid = _start_here(order, theirs)
        except BaseException:
            group.remove()
            raise
    if order["group"]:
        guard(start.marker)  # not before: a frozen child would not start. It has no prompt yet
    return Child(pid, pipes, bool(order["group"]), file)


Streams = tuple[tuple[int | None, int, int] | None, int | None, list[int]]
"""Of a Child: its `pipes`, its `stdin`, and the other sides."""


@contextlib.contextmanager
def _files(spool: Path, stdin: bool) -> Iterator[Streams]:
    try:
        with prepare(spool, stdin) as fds, ExitStack() as ours:
            file = os.dup(fds[-1])
            ours.callback(os.close, file)
            yield None, file, fds
            ours.pop_all()
    except BaseException:
        shutil.rmtree(spool, ignore_errors=True)
        raise


@contextlib.contextmanager
def _pipes(stdin: bool) -> Iterator[Streams]:
    """Both sides of new pipes: those of this process, and those of the child, which are closed at
    the end."""
    with ExitStack() as theirs, ExitStack() as ours:
        if stdin:
            input_, into = _pipe(theirs, ours)
        else:
            input_, into = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), None
            theirs.callback(os.close, input_)
        (out, output), (err, errors) = _pipe(ours, theirs), _pipe(ours, theirs)
        yield (into, out, err), None, [input_, output, errors]
        ours.pop_all()


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    reader.callback(os.close, ends[0])
    writer.callback(os.close, ends[1])
    return ends


def _launch(order: Mapping[str, Any], fds: Sequence[int], spool: Path | None, within: float) -> int:
    letter, more = b".", list(fds)
    with ExitStack() as opened:
        if order["group"]:
            folder = os.open(os.path.dirname(order["group"]), os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, folder)
            letter, more = b"g", [*fds, folder]
        file = os.path.abspath(os.fsencode(spool / "exit")) if spool else b""
        return _launcher.start(order, letter + file, more, within)


def _start_here(order: Mapping[str, Any], fds: Sequence[int]) -> int:
    cwd = order["cwd"]
    if os.path.realpath(cwd) != cwd:
        raise OSError(errno.ENOTDIR, "the directory was replaced", cwd)
    child = subprocess.Popen(
        order["argv"],
        env=order["env"],
        cwd=cwd,
        stdin=fds[0],
        stdout=fds[1],
        stderr=fds[2],
        start_new_session=True,
        umask=0o077,
    )
    child.returncode = 0  # its AgentProcess waits for it
    return child.pid


class _Launcher:
    """The process of process/fork_server.py, started at the first use and again after its end. It
    ends with this process, which has the other side of its socket, or with the last of its
    children."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control = -1  # the descriptor of the socket
        self._guarded: set[str] = set()  # markers
        self._until = 0.0  # the deadline of the guard
        self._ports = KeptPorts()
        self.pid = 0

    def start(
        self, order: Mapping[str, Any], packet: bytes, fds: Sequence[int], within: float
    ) -> int:
        written = marshal.dumps(dict(order))
        written = len(written).to_bytes(4, "little") + written
        for _ in range(2):
            known, control = self._connect()
            with control, contextlib.suppress(ConnectionError):  # then nothing was started
                return _ordered(control, written, packet, fds, within)
            with self._lock:
                if self._control == known:
                    os.close(known)
                    self._control = -1
        raise OSError(errno.ECHILD, "the process ended before its program ran")

    def _connect(self) -> tuple[int, socket.socket]:
        """The descriptor of the socket, and a copy of the socket, which the caller closes."""
        kind = (socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with self._lock:
            if self._control < 0:
                ours, theirs = socket.socketpair(*kind)
                with ours, theirs:
                    child = subprocess.Popen(
                        LAUNCHER,
                        env={LIBRARIES: libraries()},  # empty is as none
                        cwd="/",
                        stdin=theirs.fileno(),
                        stdout=subprocess.DEVNULL,
                        start_new_session=True,
                    )
                    child.returncode = 0  # it is reaped like an orphan
                    self.pid = child.pid
                    self._control = ours.detach()
                    self._tell(RENEW + str(self._until).encode())
                    for marker in self._guarded:
                        self._add(marker)
                    self._hold(self._ports)
            return self._control, socket.socket(*kind, fileno=os.dup(self._control))

    # --- the ports -----------------------------------------------------------------------------

    def hold(self, ports: KeptPorts) -> None:
        with self._lock:
            self._ports = ports
            if self._control >= 0:
                self._hold(ports)

    def _hold(self, ports: KeptPorts) -> None:
        self._tell(HOLD)
        for one in ports.sockets:
            self._tell(HOLD, one.fileno())
        if ports.folder is None:
            self._tell(MORTAL + ports.markers.encode())
        else:
            with contextlib.suppress(OSError), make_door(ports.folder) as listening:
                self._tell(HOLD + os.fsencode(ports.folder), listening.fileno())

    # --- the guard -----------------------------------------------------------------------------

    def guard(self, marker: str) -> None:
        """Freeze the session at the deadline; now, if that has passed."""
        self._connect()[1].close()
        with self._lock:
            self._guarded.add(marker)
            self._add(marker)
            Cgroup(marker).freeze(0 < self._until <= clock())

    def renew(self, until: float) -> None:
        """Without a guard, the sessions are frozen until there is another one."""
        with self._lock:
            self._until = until
            self._guarded = {one for one in self._guarded if Cgroup(one).exists}
            if not self._guarded:
                return
            lost = self._control >= 0 and not self._tell(RENEW + str(until).encode())
            if lost:
                os.close(self._control)
                self._control = -1
        if lost:
            self.freeze(True)
            self._connect()[1].close()
            self.freeze(0 < until <= clock())

    def freeze(self, frozen: bool) -> None:
        for marker in [*self._guarded]:
            Cgroup(marker).freeze(frozen)

    def _add(self, marker: str) -> None:
        group = Cgroup(marker).open_freezer()
        if group is not None:
            self._tell(ADD, group)
            os.close(group)

    def _tell(self, packet: bytes, *fds: int) -> bool:
        """Send a packet without a wait. False: the launcher has ended."""
        with socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=os.dup(self._control)
        ) as to:
            try:
                socket.send_fds(to, [packet], [*fds], socket.MSG_DONTWAIT)
            except BlockingIOError:  # it is stopped; the next deadline comes soon
                return True
            except OSError:
                return False
        return True


_launcher = _Launcher()


def guard(marker: str) -> None:
    """Freeze the session when the right of this server ends, if another one may continue it."""
    if LAUNCHES and marker.endswith(MOVABLE):
        _launcher.guard(marker)


def renew(until: float) -> None:
    """The right of this server ends at this time of guard.clock(), unless it is renewed."""
    _launcher.renew(until)


def freeze(frozen: bool) -> None:
    """Freeze or continue all guarded sessions; the guard does the same."""
    _launcher.freeze(frozen)


def hold(ports: KeptPorts) -> None:
    """Let the launcher hold these ports, also one that starts later."""
    _launcher.hold(ports)


def launcher() -> int:
    """The pid of the process that starts children; 0: there has been none yet."""
    return _launcher.pid


def _ordered(
    control: socket.socket, order: bytes, packet: bytes, fds: Sequence[int], within: float
) -> int:
    """The pid of the started program. Raises ConnectionError if it was not and will not be started:
    the child becomes the program only while this side is open."""
    ours, theirs = socket.socketpair()
    ours.settimeout(within)
    with ours:
        with theirs:
            socket.send_fds(control, [packet], [*fds, theirs.fileno()])
        pid, problem = _answered(ours, order)
    if not pid:
        raise ConnectionResetError
    if problem is None:
        _kill(int(pid))
        raise TimeoutError(errno.ETIMEDOUT, f"not started within {within:.0f} s")
    if not problem:
        return int(pid)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(int(pid), 0)
    told = marshal.loads(problem)  # noqa: S302 - from the launcher
    raise OSError(*told) if isinstance(told, list) else ValueError(told)


def _answered(ours: socket.socket, order: bytes) -> tuple[bytes, bytes | None]:
    """Hand over the order. The first line, and the rest of the answer; None: it does not come."""
    first = b""
    with ours.makefile("rb") as answer:
        try:
            ours.sendall(order)
            first = answer.readline()
            return first, answer.read()
        except TimeoutError:
            return first, None


def _kill(leader: int) -> None:
    """End a child that hangs before its program runs. If the kernel cannot end it yet, it is reaped
    later like an orphan."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        ended = os.pidfd_open(leader)
        try:
            os.killpg(leader, signal.SIGKILL)
            poll = select.poll()
            poll.register(ended, select.POLLIN)
            poll.poll(KILLED_WITHIN * 1000)
        finally:
            os.close(ended)
        os.waitpid(leader, os.WNOHANG)
