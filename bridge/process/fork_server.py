"""Starts programs for the server: a small process to fork, which has the code that confines a
program loaded already.

    python -I -S fork_server.py

A program of its own. It imports only the standard library and modules of sandbox/ that do the same.
Its stdin is a SOCK_SEQPACKET socket. Each packet has descriptors: 0, 1 and 2 of a program, perhaps
the folder of its control group (the packet begins with `g`, else with `.`) and, as the last, a
stream socket. The forked child reads its order from that socket, so no other process sees the
secrets in it: four bytes with a length, and that many bytes of marshal, a dict:

    argv, env, cwd   the program's; `cwd` is a real path, without symbolic links
    group            the cgroup.procs of its control group, or ""; the child enters it first
    mark             of its session (sandbox/mark.py); without one, it keeps that of this process
    rules            of sandbox/confine.py for a profile without a command of its own, or None
    checked          whether the rules are a result of confine.checked()

The child leads a session of its own. It is a child of the process that started the fork server,
unless the path of a file follows in the packet: then the program outlives the server, and is a
child of this process. Orphans below it become children of this process, too. This process stays
until the last of these children has ended; without any, it ends with the other side of its stdin.
It writes one line into the file: the child's pid and its start time (clock ticks after boot). Once
the child has ended, it adds the exit status, as subprocess gives it, and reaps the child
afterwards: a reader that finds no status while the process is in /proc has to read again.

Such a packet has two more descriptors, after that of stderr, which this process keeps as long as
the child lives. One is the read end of the child's stdout, so that its output is not lost with the
server. A running server reads it; without a server, this process moves the output to the file `out`
beside the other one (bridge/process/pump.py). The other one is the file of the child's input
(bridge/process/spool.py), for the next server.

Other kinds of packets are for parts that run here. For the guard (bridge/process/guard.py): `+`
with the descriptor of a file cgroup.freeze, and `d` with a deadline. For the ports of the server
(bridge/process/held_ports.py): `h` with a socket, and `m` with the beginning of the markers of
processes that this process ends after the server.

The answer is the child's pid, on one line; the end of the file follows when the program runs. If it
cannot run, the rest is marshal: the members of an OSError, `[errno, strerror, filename]`, or the
text of another exception. Like confine.py, the child reports a ConfineError on its stderr.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import gc
import marshal
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from bridge.process import guard, held_ports, pump
from bridge.sandbox import confine, kernel, landlock, seccomp

NAME = held_ports.NAME.encode()
STREAMS, MOST = 3, 7  # descriptors: of a program, and the maximum in a packet
PACKET = 8192  # bytes: a letter and a path
LENGTH = 4  # bytes of the length before an order
AGAIN = 1.0  # seconds until a retry after a full disk
FAILED = 127  # the exit status of a child that could not become the program
_SYSCALL = ctypes.PyDLL(None, use_errno=True).syscall  # PyDLL keeps the global interpreter lock
_CLONE = {"x86_64": 56, "aarch64": 220}  # the number of the system call
_MACHINE = os.uname().machine
_CLONE3 = 435
_CLONE_PARENT, _CLONE_INTO_CGROUP, _SIGCHLD = 0x8000, 1 << 33, 17
_SET_DUMPABLE, _SET_NAME, _SET_SUBREAPER = 4, 15, 36
_ENDS = (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED)


class _Program:
    """A child of this process: its pid until it is reaped, the file for its exit status, and the
    read end of its stdout until all output has been moved. `stdin`: the file of its input while it
    runs; -1 without one. `left`: bytes of output that were in the pipe at its end; None while it
    runs."""

    def __init__(self, pid: int, file: str, pipe: int, stdin: int = -1) -> None:
        self.pid = pid
        self.file = file
        self.pipe = pipe
        self.stdin = stdin
        self.left: int | None = None
        self.again = 0.0  # when to retry

    def write_down(self, *numbers: int) -> None:
        """Append to the existing file: its folder may be removed at the same time."""
        line = " ".join(map(str, numbers))
        with contextlib.suppress(OSError):
            file = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                os.write(file, f"{line}\n".encode())
            finally:
                os.close(file)

    def ended(self, *numbers: int) -> None:
        """Later output of descendants is not kept: it might not end."""
        self.left = pump.held(self.pipe) if self.pipe >= 0 else 0
        self.write_down(*numbers)
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    def done(self) -> bool:
        """Whether all output is moved, or the folder was removed."""
        if self.left is None:
            return False
        if self.pipe >= 0:
            self.left = min(self.left, pump.held(self.pipe))
            if self.left <= 0 or not os.path.exists(self.file):
                self.close()
        return self.pipe < 0

    def move(self) -> None:
        """Move some bytes to the file. No other process may do that at the same time."""
        most = pump.MOVE_BYTES if self.left is None else self.left
        try:
            path = os.path.join(os.path.dirname(self.file), pump.OUT)
            out = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                moved = pump.move(self.pipe, out, os.fstat(out).st_size, most)
            finally:
                os.close(out)
        except BlockingIOError:
            return
        except OSError:  # such as a full disk
            self.again = time.monotonic() + AGAIN
            return
        if self.left is not None:
            self.left -= moved
        if not moved:
            self.close()

    def close(self) -> None:
        os.close(self.pipe)
        self.pipe = -1


_programs: list[_Program] = []
_guard = guard.Guard()
_ports = held_ports.HeldPorts()


def serve(control: socket.socket) -> None:
    """Serve until the other side is closed, and then until the last child has ended."""
    os.umask(0o077)
    confine.reset_signals(())
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)  # SIG_IGN would be inherited
    died, dies = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(dies, warn_on_full_buffer=False)
    name = ctypes.create_string_buffer(NAME)
    kernel.prctl(_SET_NAME, ctypes.addressof(name))
    kernel.prctl(_SET_DUMPABLE, 0)  # a child has its order in memory until execve()
    kernel.prctl(_SET_SUBREAPER, 1)  # so that a child shows whether any process of an agent lives
    # Fill the caches, or each child would compute these values:
    landlock.abi()
    seccomp.prepare()
    gc.collect()
    gc.freeze()
    while True:
        left = any(one.left is not None for one in _programs)
        ready = _wait((control.fileno(), died, *_ports.fds), left)
        if _guard.due:
            _guard.freeze()
        if died in ready or left:
            _reap(died)
        if control.fileno() in ready and not _take(control):
            break
        if not ready.isdisjoint(_ports.fds) and not _has_ended(control):
            _ports.turn_away()
    os.dup2(os.open(os.devnull, os.O_RDWR), 2)  # a reader of the server's stderr then sees its end
    _outlive(died)
    _ports.close()


def _outlive(died: int) -> None:
    """After the end of the server: move the output while no server runs."""
    attended = _attended()
    alone = True
    _ports.leave()
    while _programs or _has_children():
        now = time.monotonic()
        pipes = {one.pipe: one for one in _programs if one.pipe >= 0 and one.again <= now}
        waits = any(one.again > now or one.left is not None for one in _programs)
        watched = (died, *_ports.fds, *(pipes if alone else ()))
        ready = _wait(watched, waits, -1 if alone else attended)
        if _guard.due:
            _freeze_alone(attended)
        owned = _ports.serve(ready, _inputs)
        if alone:
            alone = _move_all([pipes[fd] for fd in ready & pipes.keys()], attended)
            alone = alone and not (owned and attended >= 0)
        elif attended in ready:
            alone = True
            _ports.leave()
        _reap(died)


def _wait(fds: Iterable[int], waits: bool, hangs_up: int = -1) -> set[int]:
    """The descriptors that can be read, after some time perhaps none; and `hangs_up` if it did."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    if hangs_up >= 0:
        poll.register(hangs_up, 0)
    given = (_guard.pause, _ports.pause, AGAIN if waits else None)
    pauses = [one for one in given if one is not None]
    return {fd for fd, _ in poll.poll(min(pauses) * 1000 if pauses else None)}


def _has_ended(control: socket.socket) -> bool:
    """Whether the server has ended. It may have done so after the last poll."""
    with contextlib.suppress(BlockingIOError):
        return not control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return False


def _inputs() -> Iterator[tuple[str, int]]:
    """The sessions of running programs, and the files of their input."""
    for one in _programs:
        if one.stdin >= 0:
            yield os.path.basename(os.path.dirname(one.file)), one.stdin


def _has_children() -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        return True
    return False


def _freeze_alone(attended: int) -> None:
    """The deadline has passed after the end of the server. A later server guards its sessions: it
    holds the lock before it continues them."""
    if attended >= 0 and not pump.lock(attended):
        _guard.leave()
        return
    _guard.freeze()
    if attended >= 0:
        fcntl.flock(attended, fcntl.LOCK_UN)


def _move_all(programs: list[_Program], attended: int) -> bool:
    """False if another process moves the output."""
    for one in programs:
        if attended >= 0 and not pump.lock(attended):
            return False
        one.move()
        if attended >= 0:
            fcntl.flock(attended, fcntl.LOCK_UN)
    return True


def _attended() -> int:
    """A descriptor of the FIFO that shows whether a server runs; -1 if there is none."""
    folders = (os.path.join(os.path.dirname(one.file), "../..") for one in _programs)
    for folder in filter(None, (_ports.folder, *folders)):
        path = os.path.join(folder, pump.ATTENDED)
        with contextlib.suppress(OSError):
            return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return -1


def _take(control: socket.socket) -> bool:
    """Read one packet; False at the end of the stream."""
    space = socket.CMSG_SPACE(MOST * array.array("i").itemsize)
    packet, messages, flags, _ = control.recvmsg(PACKET, space, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for _, _, descriptors in messages:
        fds.frombytes(descriptors)
    keep: Sequence[int] = ()
    if packet[:1] == guard.RENEW:
        _guard.renew(float(packet[1:]))
    elif packet[:1] == guard.ADD and fds:
        keep = fds
        _guard.add(fds[0])
    elif packet[:1] == held_ports.HOLD:
        keep = fds
        _ports.hold(fds[0] if fds else None, os.fsdecode(packet[1:]))
    elif packet[:1] == held_ports.MORTAL:
        _ports.mortal = packet[1:].decode()
    elif packet and not flags & socket.MSG_CTRUNC:  # truncated if too few descriptors were free
        keep = _launch(list(fds), packet[:1] == b"g", os.fsdecode(packet[1:]))
    for fd in fds:
        if fd not in keep:
            os.close(fd)
    return bool(packet)


def _launch(fds: list[int], grouped: bool, file: str) -> Sequence[int]:
    """Start one child. Returns the descriptors that must stay open."""
    server = fds.pop()  # not a socket object: each written page would be copied
    group = fds.pop() if grouped else -1
    kept = fds[STREAMS:]
    del fds[STREAMS:]
    pid, inside = fork(0 if file else _CLONE_PARENT, group)
    if pid == 0:
        try:
            os.setsid()
            _become_program(fds, server, inside)
        finally:
            os._exit(FAILED)
    if not file or pid < 0:
        return ()
    program = _Program(pid, file, *kept)
    _programs.append(program)
    with open(f"/proc/{pid}/stat", "rb", buffering=0) as stat:
        began = int(stat.read(4096).rpartition(b")")[2].split()[19])
    program.write_down(pid, began)
    return kept


def _reap(died: int) -> None:
    """Write the exit statuses of ended children, and reap them afterwards."""
    with contextlib.suppress(BlockingIOError):
        os.read(died, 4096)
    with contextlib.suppress(ChildProcessError):
        while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG):
            if dead.si_code not in _ENDS:  # it stopped, after it made this process its tracer
                os.kill(dead.si_pid, signal.SIGKILL)
                continue
            exited = dead.si_code == os.CLD_EXITED
            for one in _programs:
                if one.pid == dead.si_pid:
                    one.ended(dead.si_status if exited else -dead.si_status)
                    one.pid = 0
            os.waitpid(dead.si_pid, 0)
    _programs[:] = [one for one in _programs if not one.done()]


def fork(flags: int, group: int = -1) -> tuple[int, bool]:
    """Like os.fork(), with flags of clone(2), but without the fork handlers of Python: this process
    has only one thread. With CLONE_PARENT, the child's parent is this process's own.

    `group`: the folder of a control group. The second result is whether the child starts inside it,
    which needs Linux 5.7. A later move takes longer: the kernel waits for all processors, 13 ms on
    an idle machine."""
    if group >= 0:
        signalled = 0 if flags & _CLONE_PARENT else _SIGCHLD  # like its siblings: else EINVAL
        words = (flags | _CLONE_INTO_CGROUP, 0, 0, 0, signalled, 0, 0, 0, 0, 0, group)
        arguments = struct.pack("11Q", *words)
        size = ctypes.c_size_t(len(arguments))
        pid = int(_SYSCALL(ctypes.c_long(_CLONE3), arguments, size))
        if pid >= 0:
            return pid, True
    number = ctypes.c_long(_CLONE[_MACHINE])
    zero = ctypes.c_ulong(0)
    return int(_SYSCALL(number, ctypes.c_ulong(flags | _SIGCHLD), zero, zero, zero, zero)), False


def _become_program(fds: list[int], server: int, inside: bool) -> None:
    """`inside`: whether the child is in its control group already."""
    written = _read_order(server)
    if not written:
        return  # the server has ended meanwhile
    pid = os.getpid()
    os.write(server, b"%d\n" % pid)
    try:
        order = marshal.loads(written)  # noqa: S302 - from the server
        if order["group"] and not inside:
            with open(order["group"], "wb", buffering=0) as procs:
                procs.write(b"0")
        _prepare(order, fds, server)
        if order["rules"] is None:
            _exec(order, server)
    except OSError as error:
        _answer(server, [error.errno, error.strerror, error.filename])
    except Exception as error:  # such as a null byte
        _answer(server, str(error))
    else:
        why = confine.refused(lambda: _exec_confined(order, server), order["argv"][0])
        os.write(2, f"{confine.NOT_STARTED}{why}\n".encode(errors="replace"))
        os._exit(confine.REFUSED)


def _read_order(server: int) -> bytes:
    data, size = b"", LENGTH
    while len(data) < size:
        piece = os.read(server, 2**20)
        if not piece:
            return b""
        data += piece
        size = LENGTH + int.from_bytes(data[:LENGTH], "little")
    return data[LENGTH:]


def _prepare(order: dict[str, Any], fds: list[int], server: int) -> None:
    os.chdir(order["cwd"])
    if os.getcwd() != order["cwd"]:  # an agent that works above it can replace it
        text = "the directory was replaced"
        raise OSError(errno.ENOTDIR, text, order["cwd"])
    for number, fd in enumerate(fds):  # all fds have larger numbers
        os.dup2(fd, number)
    os.closerange(STREAMS, server)
    os.closerange(server + 1, 2**31 - 1)
    if order.get("mark"):
        resource.setrlimit(seccomp.SESSION_MARK, order["mark"])


def _exec_confined(order: dict[str, Any], server: int) -> None:
    confine.enforce(order["rules"] if order["checked"] else confine.checked(order["rules"]))
    _exec(order, server)


def _exec(order: dict[str, Any], server: int) -> None:
    """Become the program. Raises OSError, ValueError."""
    os.set_blocking(server, False)
    with contextlib.suppress(BlockingIOError):
        os.read(server, 1)  # never any data; the end of file if the server has ended
        os._exit(FAILED)  # the server has ended
    os.execvpe(order["argv"][0], order["argv"], order["env"])  # noqa: S606


def _answer(server: int, problem: Any) -> None:
    os.write(server, marshal.dumps(problem))


if __name__ == "__main__":
    serve(socket.socket(fileno=0))
