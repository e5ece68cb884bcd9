"""Starts programs for the server: a small process to fork, with what it takes to confine one read.

    python -I -S launcher.py

A program of its own, with nothing but the standard library and bridge/confine.py. Its stdin is a
SOCK_SEQPACKET socket; it ends when the other side is closed. Each packet has descriptors: those
that are to be 0, 1, 2, … of a program and, as the last, a stream socket. From that the process
that is to become the program reads its order, one line of JSON, so that nobody but itself has
what it is told in confidence:

    argv, env, cwd   what to run, with nothing else; `cwd` is a real path, without symbolic links
    group            the cgroup.procs of the control group to enter before anything else, or ""
    rules            of bridge/confine.py for a profile without a command of its own, or null
    checked          a program that must be there and that may be run, or null

It answers with its pid, on one line, and then becomes the program, in a session of its own, as a
child of whoever started the launcher: the end of the file says that it has. If it cannot, the next
line is JSON: what an OSError has, `[errno, strerror, filename]`, or the text of another exception.
What the rules refuse, it says as confine.py does, on its stderr.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import gc
import json
import os
import socket
import sys
from typing import Any

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from bridge import confine

MOST = 5  # descriptors in a packet
FAILED = 127  # the exit status of a process that has answered why it is no program
_SYSCALL = ctypes.PyDLL(None, use_errno=True).syscall  # which keeps the lock that all of Python has
_CLONE = {"x86_64": 56, "aarch64": 220}  # the number of the system call
_CLONE_PARENT, _SIGCHLD = 0x8000, 17
_SET_DUMPABLE = 4


def serve(control: socket.socket) -> None:
    """Until the other side is closed."""
    os.umask(0o077)
    confine.reset_signals(())
    confine.prctl(_SET_DUMPABLE, 0)  # a process has its order in memory until it is the program
    gc.collect()
    gc.freeze()
    space = socket.CMSG_SPACE(MOST * array.array("i").itemsize)
    while True:
        data, messages, _, _ = control.recvmsg(1, space, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return
        fds = array.array("i")
        for _, _, descriptors in messages:
            fds.frombytes(descriptors)
        _launch(list(fds))
        for fd in fds:
            os.close(fd)


def _launch(fds: list[int]) -> None:
    """One process for one packet."""
    pid = fork()
    if pid == 0:
        try:
            _become_program(fds)
        finally:
            os._exit(FAILED)
    if pid < 0:
        number = ctypes.get_errno()
        with socket.socket(fileno=os.dup(fds[-1])) as answer:
            _answer(answer, [number, os.strerror(number), None])


def fork() -> int:
    """As os.fork(), but the child's parent is this process's own, and nothing is called in it:
    this process has only one thread. Returns -1 where it fails."""
    number = ctypes.c_long(_CLONE[os.uname().machine])
    zero = ctypes.c_ulong(0)
    flags = ctypes.c_ulong(_CLONE_PARENT | _SIGCHLD)
    return int(_SYSCALL(number, flags, zero, zero, zero, zero))


def _become_program(fds: list[int]) -> None:
    server = socket.socket(fileno=fds.pop())
    line = server.makefile("rb").readline()
    if not line.endswith(b"\n"):
        return  # whoever ordered it has ended meanwhile
    server.sendall(b"%d\n" % os.getpid())
    try:
        order = json.loads(line)
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


def _prepare(order: dict[str, Any], fds: list[int], server: socket.socket) -> None:
    os.setsid()
    if order["group"]:
        with open(order["group"], "wb", buffering=0) as procs:
            procs.write(b"0")
    os.chdir(order["cwd"])
    if os.getcwd() != order["cwd"]:  # agents that work above it can do that
        text = "it is not the directory any more that it was"
        raise OSError(errno.ENOTDIR, text, order["cwd"])
    for number, fd in enumerate(fds):  # each is above the numbers that are taken by then
        os.dup2(fd, number)
    os.closerange(len(fds), server.fileno())
    os.closerange(server.fileno() + 1, 2**31 - 1)


def _exec_confined(order: dict[str, Any], server: socket.socket) -> None:
    confine.enforce(confine.checked(order["rules"]))
    _exec(order, server)


def _exec(order: dict[str, Any], server: socket.socket) -> None:
    """Become the program, or raise why not."""
    if order["checked"] is not None:
        _check(order["checked"])
    with contextlib.suppress(BlockingIOError):
        server.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)  # there is never anything
        os._exit(FAILED)  # the server has ended
    os.execvpe(order["argv"][0], order["argv"], order["env"])  # noqa: S606


def _check(program: str) -> None:
    """Raise OSError where it cannot be run: what is to run it could not tell why."""
    code = 0
    if not os.path.exists(program):
        code = errno.ENOENT
    elif not os.path.isfile(program) or not os.access(program, os.X_OK):
        code = errno.EACCES
    elif os.access(program, os.R_OK):  # which Landlock does not answer for, but open() it does
        os.close(os.open(program, os.O_RDONLY | os.O_CLOEXEC))
    if code:
        raise OSError(code, os.strerror(code), program)


def _answer(server: socket.socket, problem: object) -> None:
    with contextlib.suppress(OSError):
        server.sendall(json.dumps(problem).encode() + b"\n", socket.MSG_NOSIGNAL)


if __name__ == "__main__":
    serve(socket.socket(fileno=0))
