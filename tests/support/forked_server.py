"""`python -m bridge` without the start of an interpreter, which takes most of the time of a start:
a process that has imported the server forks for each one. Each worker of the tests has one such
process, from the first server until the worker ends. A test that kills all processes below its own
ends it, and the next server starts another one. `scripts/soak` sets BRIDGE_TEST_NO_FORK."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from asyncio import StreamReader, StreamReaderProtocol
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from tests import CHECKOUT

PROGRAM = """
import contextlib, ctypes, gc, json, os, resource, select, signal, socket, sys
import bridge.server.lifecycle.serve
from bridge.cli.main import main
from bridge.server.settings.constants import Constants

ORDERS = socket.socket(fileno=int(sys.argv[1]))
rename = ctypes.CDLL(None).prctl
rename(15, b"fork-server", 0, 0, 0)
gc.freeze()

def serve(order, files):
    rename(15, b"python", 0, 0, 0)
    os.umask(order["umask"])
    resource.setrlimit(resource.RLIMIT_NOFILE, order["files"])
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, 1024)
    sys.argv = [bridge.__path__[0] + "/__main__.py", *order["arguments"]]
    try:
        return main(order["arguments"], Constants(**order["constants"]))
    except SystemExit as end:
        return end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        sys.stdout.flush()

running = {}
while True:
    for ready in select.select([ORDERS, *running], [], [])[0]:
        if ready is not ORDERS:
            pid, told = running.pop(ready)
            os.close(ready)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with contextlib.suppress(BrokenPipeError):  # the test has ended before its server
                os.write(told, b"%d\\n" % status)
            os.close(told)
            continue
        data, files, _, _ = socket.recv_fds(ORDERS, 2**20, 4)
        if not data:
            sys.exit()
        *own, told = files
        pid = os.fork()
        if pid == 0:
            os._exit(serve(json.loads(data), own) or 0)
        with contextlib.suppress(BrokenPipeError):
            os.write(told, b"%d\\n" % pid)
        running[os.pidfd_open(pid)] = pid, told
        for file in own:
            os.close(file)
"""
NAME = "fork-server"  # of the process, while that of a server is `python`
_PLAIN = {"PYTHONPATH": str(CHECKOUT), "PYTHONWARNINGS": "error"}


def may_fork(env: Mapping[str, str]) -> bool:
    """Whether an interpreter that starts with these variables is like the one that forks."""
    own = {name: value for name, value in env.items() if name.startswith(("PYTHON", "LC_", "LANG"))}
    return own == _PLAIN and not os.environ.get("BRIDGE_TEST_NO_FORK")


class ForkedProcess:
    """The part of asyncio.subprocess.Process that tests use. `returncode`: as there."""

    def __init__(self, pid: int, ends: StreamReader, stderr: StreamReader) -> None:
        self.pid = pid
        self.stderr = stderr
        self.returncode: int | None = None
        self._ended = asyncio.create_task(self._end(ends))

    async def _end(self, ends: StreamReader) -> int:
        line = await ends.readline()
        await ends.read()  # the end of the pipe, which closes it
        self.returncode = (
            int(line) if line else -signal.SIGKILL
        )  # the forking process was killed, too
        return self.returncode

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        with contextlib.suppress(ProcessLookupError):  # as with a zombie: it has just ended
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


async def fork_server(
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    constants: Mapping[str, Any],
) -> ForkedProcess:
    """A server without input, with the output of this process, and with a pipe for its errors."""
    order = {
        "arguments": [*arguments],
        "cwd": str(cwd),
        "env": dict(env),
        "constants": dict(constants),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "umask": _umask(),
    }
    errors, its_errors = os.pipe()
    ends, its_end = os.pipe()
    nothing = os.open(os.devnull, os.O_RDONLY)
    given = [nothing, 1, its_errors, its_end]
    try:
        socket.send_fds(_forks(), [json.dumps(order).encode()], given)
    finally:
        for file in (nothing, its_errors, its_end):
            os.close(file)
    reader = await _reader(ends)
    pid = int(await reader.readline())
    return ForkedProcess(pid, reader, await _reader(errors))


def _forks() -> socket.socket:
    """The connection to the process that forks."""
    found = (_started(number) for number in count())
    return next(orders for process, orders in found if process.poll() is None)


@cache
def _started(number: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The process with this number, which ends with this one; the earlier ones have ended."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PROGRAM, str(its.fileno())],
            env={"PATH": os.environ["PATH"], **_PLAIN},
            stdin=subprocess.DEVNULL,
            pass_fds=[its.fileno()],
        )
    atexit.register(_end, process, ours)
    return process, ours


def _end(process: subprocess.Popen[bytes], orders: socket.socket) -> None:
    orders.close()
    process.wait(10)


def _umask() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Umask:")), 8)


async def _reader(file: int) -> StreamReader:
    reader = StreamReader()
    loop = asyncio.get_running_loop()
    pipe = os.fdopen(file, "rb", 0)
    await loop.connect_read_pipe(lambda: StreamReaderProtocol(reader), pipe)
    return reader
