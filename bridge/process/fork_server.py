"""Starts programs for the server: a small process to fork, with what it takes to confine one read.

    python -I -S launcher.py

A program of its own, with nothing but the standard library and sandbox/confine.py. Its stdin is a
SOCK_SEQPACKET socket. Each packet has descriptors: 0, 1 and 2 of a program, perhaps the folder of
its control group (the packet begins with `g`, else with `.`) and, as the last, a stream socket.
From that the process that is to become the program reads its order, so that nobody but itself has
what it is told in confidence: four bytes with a length, and that much of marshal's, a dict:

    argv, env, cwd   what to run, with nothing else; `cwd` is a real path, without symbolic links
    group            the cgroup.procs of its control group, or ""; it enters before anything else
    rules            of sandbox/confine.py for a profile without a command of its own, or None
    checked          whether they are what confine.checked() gives

The child leads a session of its own. It is one of whoever started the launcher, unless the packet
goes on with the path of a file: then it is to outlive the server, and is a child of this process,
which stays until the last of those has ended; without any, it ends with the other side of its
stdin. It writes into the file who the child is, on one line: its pid, and when it began (clock
ticks after boot). Once the child has ended, it adds the exit status, as subprocess gives it, and
reaps it only then: who finds no status while the process is in /proc has to look again.

Such a packet has one more descriptor, after that of stderr: the read end of the child's stdout.
This process keeps it, so that what the child writes is not lost with the server. While there is a
server, that reads it; while there is none, this process moves what comes to the file `out` beside
the other one (bridge/process/pump.py).

The answer is the child's pid, on one line; the end of the file says that the program runs. If it
cannot, the rest is marshal's: what an OSError has, `[errno, strerror, filename]`, or the text of
another exception. What the rules refuse, it says as confine.py does, on its stderr.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import gc
import marshal
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import Any

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from bridge.process import pump
from bridge.sandbox import confine, kernel, landlock, seccomp

NAME = b"agent-launcher"  # what it is called in lists of processes
STREAMS, MOST = 3, 6  # descriptors: of a program, and in a packet at most
PACKET = 8192  # bytes: a letter and a path
LENGTH = 4  # bytes of an order, before it
AGAIN = 1.0  # seconds until another attempt to move what a full disk did not take
FAILED = 127  # the exit status of a process that has answered why it is no program
_SYSCALL = ctypes.PyDLL(None, use_errno=True).syscall  # which keeps the lock that all of Python has
_CLONE = {"x86_64": 56, "aarch64": 220}  # the number of the system call
_MACHINE = os.uname().machine
_CLONE3 = 435
_CLONE_PARENT, _CLONE_INTO_CGROUP, _SIGCHLD = 0x8000, 1 << 33, 17
_SET_DUMPABLE, _SET_NAME = 4, 15


class _Program:
    """A child of this process's own: its pid until it is reaped, the file where it is written down
    how it ended, and its stdout's read end, until that has been moved. `left`: bytes that it wrote
    before it ended; None while it runs."""

    def __init__(self, pid: int, file: str, pipe: int) -> None:
        self.pid = pid
        self.file = file
        self.pipe = pipe
        self.left: int | None = None
        self.again = 0.0  # when to try once more to move them

    def write_down(self, *numbers: int) -> None:
        """In the file that is there already: its folder may be being removed."""
        line = " ".join(map(str, numbers))
        with contextlib.suppress(OSError):
            file = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                os.write(file, f"{line}\n".encode())
            finally:
                os.close(file)

    def ended(self, *numbers: int) -> None:
        """What a descendant writes from here on is not kept: it might not stop."""
        self.left = pump.held(self.pipe) if self.pipe >= 0 else 0
        self.write_down(*numbers)

    def done(self) -> bool:
        """Whether nothing is left to do: all is moved, or its folder was removed."""
        if self.left is None:
            return False
        if self.pipe >= 0:
            self.left = min(self.left, pump.held(self.pipe))
            if self.left <= 0 or not os.path.exists(self.file):
                self.close()
        return self.pipe < 0

    def move(self) -> None:
        """Some bytes to the file. No other process may do that at the same time."""
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


def serve(control: socket.socket) -> None:
    """Until the other side is closed, and then until those have ended who outlive that."""
    os.umask(0o077)
    confine.reset_signals(())
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)  # not SIG_IGN, which programs inherit
    died, dies = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(dies, warn_on_full_buffer=False)
    name = ctypes.create_string_buffer(NAME)
    kernel.prctl(_SET_NAME, ctypes.addressof(name))
    kernel.prctl(_SET_DUMPABLE, 0)  # a process has its order in memory until it is the program
    # Or each child would find that out for itself:
    landlock.abi(), seccomp.program(True), seccomp.program(False)
    gc.collect()
    gc.freeze()
    poll = select.poll()
    for fd in (control.fileno(), died):
        poll.register(fd, select.POLLIN)
    while True:
        left = any(one.left is not None for one in _programs)
        ready = {fd for fd, _ in poll.poll(AGAIN * 1000 if left else None)}
        if died in ready or left:
            _reap(died)
        if control.fileno() in ready and not _take(control):
            break
    os.dup2(os.open(os.devnull, os.O_RDWR), 2)  # whoever reads the server's need not wait for us
    _outlive(died)


def _outlive(died: int) -> None:
    """Without the server that started this process: stand in for it until another one is there, and
    whenever that has ended."""
    attended = _attended()
    alone = True
    while _programs:
        poll, now = select.poll(), time.monotonic()
        poll.register(died, select.POLLIN)
        pipes = {one.pipe: one for one in _programs if one.pipe >= 0 and one.again <= now}
        for fd in pipes if alone else (attended,):
            poll.register(fd, select.POLLIN if alone else 0)
        waits = any(one.again > now or one.left is not None for one in _programs)
        ready = {fd for fd, _ in poll.poll(AGAIN * 1000 if waits else None)}
        if alone:
            alone = _move_all([pipes[fd] for fd in ready & pipes.keys()], attended)
        else:
            alone = attended in ready
        _reap(died)


def _move_all(programs: list[_Program], attended: int) -> bool:
    """False if another process does that."""
    for one in programs:
        if attended >= 0 and not pump.lock(attended):
            return False
        one.move()
        if attended >= 0:
            pump.unlock(attended)
    return True


def _attended() -> int:
    """What says whether there is a server; -1 if there never was one."""
    for one in _programs:
        path = os.path.join(os.path.dirname(one.file), "../..", pump.ATTENDED)
        with contextlib.suppress(OSError):
            return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return -1


def _take(control: socket.socket) -> bool:
    """One packet; False if there will be no more."""
    space = socket.CMSG_SPACE(MOST * array.array("i").itemsize)
    packet, messages, flags, _ = control.recvmsg(PACKET, space, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for _, _, descriptors in messages:
        fds.frombytes(descriptors)
    keep = -1
    if packet and not flags & socket.MSG_CTRUNC:  # with too few descriptors left, it is not started
        keep = _launch(list(fds), packet[:1] == b"g", os.fsdecode(packet[1:]))
    for fd in fds:
        if fd != keep:
            os.close(fd)
    return bool(packet)


def _launch(fds: list[int], grouped: bool, file: str) -> int:
    """One child for one packet. Returns the descriptor that is to stay open, or -1."""
    server = fds.pop()  # no socket object: what is touched first is copied, page by page
    group = fds.pop() if grouped else -1
    pipe = fds.pop() if file else -1
    pid, inside = fork(0 if file else _CLONE_PARENT, group)
    if pid == 0:
        try:
            os.setsid()
            _become_program(fds, server, inside)
        finally:
            os._exit(FAILED)
    if not file or pid < 0:
        return -1
    program = _Program(pid, file, pipe)
    _programs.append(program)
    program.write_down(pid, _began(pid))
    return pipe


def _reap(died: int) -> None:
    """Write down how children have ended, and only then let go of them."""
    with contextlib.suppress(BlockingIOError):
        os.read(died, 4096)
    with contextlib.suppress(ChildProcessError):
        while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG):
            exited = dead.si_code == os.CLD_EXITED
            for one in _programs:
                if one.pid == dead.si_pid:
                    one.ended(dead.si_status if exited else -dead.si_status)
                    one.pid = 0
            os.waitpid(dead.si_pid, 0)
    _programs[:] = [one for one in _programs if not one.done()]


def _began(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb", buffering=0) as stat:
        return int(stat.read(4096).rpartition(b")")[2].split()[19])


def fork(flags: int, group: int = -1) -> tuple[int, bool]:
    """As os.fork(), with flags of clone(2), but nothing else is called in the child: this process
    has only one thread. With CLONE_PARENT, the child's parent is this process's own.

    `group`: the folder of a control group. The second result is whether the child is in there from
    its first moment: Linux 5.7 can do that. To move it later has the kernel wait for all
    processors, 13 ms at a time of quiet."""
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
    """`inside`: in its control group, if there is to be one."""
    written = _read_order(server)
    if not written:
        return  # whoever ordered it has ended meanwhile
    pid = os.getpid()
    os.write(server, b"%d\n" % pid)
    try:
        order = marshal.loads(written)  # noqa: S302 - it is the server's
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
    if os.getcwd() != order["cwd"]:  # agents that work above it can do that
        text = "it is not the directory any more that it was"
        raise OSError(errno.ENOTDIR, text, order["cwd"])
    for number, fd in enumerate(fds):  # all of them are above those numbers
        os.dup2(fd, number)
    os.closerange(STREAMS, server)
    os.closerange(server + 1, 2**31 - 1)


def _exec_confined(order: dict[str, Any], server: int) -> None:
    confine.enforce(order["rules"] if order["checked"] else confine.checked(order["rules"]))
    _exec(order, server)


def _exec(order: dict[str, Any], server: int) -> None:
    """Become the program, or raise why not."""
    os.set_blocking(server, False)
    with contextlib.suppress(BlockingIOError):
        os.read(server, 1)  # there is never anything
        os._exit(FAILED)  # the server has ended
    os.execvpe(order["argv"][0], order["argv"], order["env"])  # noqa: S606


def _answer(server: int, problem: Any) -> None:
    os.write(server, marshal.dumps(problem))


if __name__ == "__main__":
    serve(socket.socket(fileno=0))
