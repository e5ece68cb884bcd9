"""Starts programs for the server: a small process to fork, with what it takes to confine one read.

    python -I -S launcher.py

A program of its own, with nothing but the standard library and bridge/confine.py. Its stdin is a
SOCK_SEQPACKET socket; it ends when the other side is closed. Each packet has descriptors: 0, 1 and
2 of a program, perhaps a file for its exit status (the packet has the letter `s`), perhaps the
folder of its control group (`g`) and, as the last, a stream socket. From that the process that is
to become the program reads its order, one line of JSON, so that nobody but itself has what it is
told in confidence:

    argv, env, cwd   what to run, with nothing else; `cwd` is a real path, without symbolic links
    group            the cgroup.procs of its control group, or ""; it enters before anything else
    rules            of bridge/confine.py for a profile without a command of its own, or null
    checked          whether they are what confine.checked() gives

The child is one of whoever started the launcher, and leads a session of its own. With a file for
the status, it is a shim, whose own child is the program, so that somebody waits for that whoever
else may end: it writes down how the program has ended, as shells count, and holds a lock on the
file until then (F_GETLK says who has it).

The answer is the child's pid, on one line; the end of the file says that the program runs. If it
cannot, the next line is JSON: what an OSError has, `[errno, strerror, filename]`, or the text of
another exception. What the rules refuse, it says as confine.py does, on its stderr.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import gc
import json
import os
import signal
import socket
import struct
import sys
from typing import Any

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from bridge import confine

STREAMS, MOST = 3, 6  # descriptors: of a program, and in a packet at most
SHIM = b"agent-shim"  # what it is called in lists of processes
FAILED = 127  # the exit status of a process that has answered why it is no program
_SYSCALL = ctypes.PyDLL(None, use_errno=True).syscall  # which keeps the lock that all of Python has
_CLONE = {"x86_64": 56, "aarch64": 220}  # the number of the system call
_MACHINE = os.uname().machine
_CLONE3 = 435
_CLONE_PARENT, _CLONE_INTO_CGROUP, _SIGCHLD = 0x8000, 1 << 33, 17
_SET_DUMPABLE, _SET_NAME = 4, 15


def serve(control: socket.socket) -> None:
    """Until the other side is closed."""
    os.umask(0o077)
    confine.reset_signals(())
    confine.prctl(_SET_DUMPABLE, 0)  # a process has its order in memory until it is the program
    confine.landlock_abi(), confine.syscall_filter()  # or each child would find that out for itself
    gc.collect()
    gc.freeze()
    space = socket.CMSG_SPACE(MOST * array.array("i").itemsize)
    while True:
        letters, messages, _, _ = control.recvmsg(8, space, socket.MSG_CMSG_CLOEXEC)
        if not letters:
            return
        fds = array.array("i")
        for _, _, descriptors in messages:
            fds.frombytes(descriptors)
        _launch(list(fds), b"s" in letters, b"g" in letters)
        for fd in fds:
            os.close(fd)


def _launch(fds: list[int], shim: bool, grouped: bool) -> None:
    """One child for one packet."""
    server = fds.pop()  # no socket object: what is touched first is copied, page by page
    group = fds.pop() if grouped else -1
    pid, inside = fork(_CLONE_PARENT, -1 if shim else group)
    if pid == 0:
        try:
            os.setsid()
            leader = os.getpid()
            if shim:
                inside = _stay_behind(fds.pop(), group)
            _become_program(fds, server, leader, inside)
        finally:
            os._exit(FAILED)


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


def _become_program(fds: list[int], server: int, leader: int, inside: bool) -> None:
    """`inside`: in its control group, if there is to be one."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(server, 2**20)
        if not piece:
            return  # whoever ordered it has ended meanwhile
        line += piece
    os.write(server, b"%d\n" % leader)
    try:
        order = json.loads(line)
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


def _stay_behind(status: int, group: int) -> bool:
    """Fork; the child goes on, and this process is its shim. It knows nothing of the order. Returns
    whether the child is in the group."""
    fcntl.lockf(status, fcntl.LOCK_EX | fcntl.LOCK_NB)
    pid, inside = fork(0, group)
    if pid < 0:
        os._exit(FAILED)
    if pid == 0:
        os.close(status)
        return inside
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # to the group, they are meant for the program
    name = ctypes.create_string_buffer(SHIM)
    confine.prctl(_SET_NAME, ctypes.addressof(name))
    os.closerange(0, status)
    os.closerange(status + 1, 2**31 - 1)  # from here on, the server may signal it
    os.chdir("/")
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = code if code >= 0 else 128 - code
    os.write(status, b"%d\n" % code)
    os._exit(code)


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


def _answer(server: int, problem: object) -> None:
    os.write(server, json.dumps(problem).encode() + b"\n")


if __name__ == "__main__":
    serve(socket.socket(fileno=0))
