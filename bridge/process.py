"""A child process on pipes: lines out, bytes in, and nothing of it left behind.

Facts that decide the code (CPython 3.11-3.13, Linux):

* Neither the end of stdout nor asyncio's `process.wait()` says that a child has ended: a
  grandchild that inherited stdout holds both. A pidfd does say it. What the child had written by
  then is in the pipe, so that reading at most one pipe's capacity more reads all of it.
* Agents start each shell command in a session of its own, which `killpg` does not reach. Each
  child gets a marker in its environment that its descendants inherit, and this process is their
  subreaper: what survives its parents becomes our child and can be found, killed and reaped.
* Spawning blocks for milliseconds: it happens in a thread, a few at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bridge.errors import LaunchError

T = TypeVar("T")
MARKER = "CODING_AGENT_BRIDGE_PROCESS"
READ_BYTES = 256 * 1024  # per read: several pipes full, so that a fast CLI costs few wake-ups
STDERR_TAIL = 64 * 1024  # kept of stderr: more than any error message, less than a flood
TERM_GRACE = 5.0  # seconds from SIGTERM to SIGKILL, as container runtimes give by default, halved
KILL_GRACE = 5.0  # seconds for the kernel to end what was sent SIGKILL
SPAWNS_AT_ONCE = 4  # more only makes all of them slower
_PR_SET_CHILD_SUBREAPER = 36

_spawners = ThreadPoolExecutor(SPAWNS_AT_ONCE, thread_name_prefix="spawn")
_starting: set[object] = set()  # spawns whose pid is not known yet
_ours: set[int] = set()  # children that have an AgentProcess, which waits for them


@dataclass(frozen=True, slots=True)
class LongLine:
    """A line over the limit: its first bytes, and the length that it had."""

    head: bytes
    length: int


class LineSplitter:
    """Cuts a byte stream into lines on `\\n` only: U+2028 and \\r may stand inside JSON."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest: list[bytes] = []
        self._length = 0

    def feed(self, data: bytes) -> list[bytes | LongLine]:
        """The lines that `data` completes, in order, without their newlines."""
        *lines, rest = data.split(b"\n")
        complete: list[bytes | LongLine] = []
        if lines and self._length:
            self._keep(lines.pop(0))
            complete.append(self._take())
        limit = self._limit
        complete += [x if len(x) <= limit else LongLine(x[:limit], len(x)) for x in lines]
        if rest:
            self._keep(rest)
        return complete

    def end(self) -> list[bytes | LongLine]:
        """What is left when the stream ends in the middle of a line."""
        return [self._take()] if self._length else []

    def _keep(self, data: bytes) -> None:
        room = self._limit - self._length
        if room > 0:
            self._rest.append(data[:room])
        self._length += len(data)

    def _take(self) -> bytes | LongLine:
        line, length = b"".join(self._rest), self._length
        self._rest, self._length = [], 0
        return line if length <= self._limit else LongLine(line, length)


class AgentProcess:
    """One running child. `on_lines` gets each batch of stdout lines, `on_exit` the exit code
    (negative: the signal that killed it) once, after the last line. `on_end` is told if stdout
    is closed while the child lives."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        marker: str,
        on_lines: Callable[[list[bytes | LongLine]], None],
        on_exit: Callable[[int], None],
        on_end: Callable[[], None],
        line_limit: int,
    ) -> None:
        self.pid = child.pid  # also the id of its process group, even after it is reaped
        self.exit_code: int | None = None
        self.stderr = bytearray()
        self._child = child
        self._marker = marker
        self._on_lines = on_lines
        self._on_exit = on_exit
        self._on_end = on_end
        self._splitter = LineSplitter(line_limit)
        self._loop = asyncio.get_running_loop()
        self._exited = asyncio.Event()
        self._stdin = _Writer(child.stdin.fileno()) if child.stdin else None
        assert child.stdout and child.stderr
        self._stdout = child.stdout.fileno()
        self._stderr = child.stderr.fileno()
        for fd, reader in ((self._stdout, self._read_stdout), (self._stderr, self._read_stderr)):
            os.set_blocking(fd, False)
            self._loop.add_reader(fd, reader)
        self._watch_exit()

    def __repr__(self) -> str:
        state = "running" if self.exit_code is None else f"exited {self.exit_code}"
        return f"<AgentProcess {self.pid} {state}>"

    @classmethod
    async def spawn(  # noqa: PLR0913 - what to start, and whom to tell what of it
        cls,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        *,
        stdin: bool,
        on_lines: Callable[[list[bytes | LongLine]], None],
        on_exit: Callable[[int], None],
        on_end: Callable[[], None] = lambda: None,
        line_limit: int,
    ) -> AgentProcess:
        """Start `argv` in a session of its own. Raises LaunchError if it cannot be started."""
        marker = uuid.uuid4().hex
        become_subreaper()

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                argv,
                env={**env, MARKER: marker},
                cwd=cwd,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                umask=0o077,
            )

        spawned = asyncio.get_running_loop().run_in_executor(_spawners, _register, start)
        try:
            child = await to_the_end(spawned)
        except asyncio.CancelledError:
            if spawned.exception() is None:
                unwanted = cls(spawned.result(), marker, _ignore, _ignore, on_end, line_limit)
                await to_the_end(asyncio.ensure_future(unwanted.stop(grace=0)))
            raise
        except OSError as error:
            what = f"in {cwd}" if error.filename == cwd else argv[0]
            raise LaunchError(f"cannot start {what}: {error.strerror}") from error
        except ValueError as error:  # such as a null byte
            raise LaunchError(f"cannot start {argv[0]}: {error}") from error
        finally:
            reap_orphans()  # those that ended meanwhile could not be told from the child
        return cls(child, marker, on_lines, on_exit, on_end, line_limit)

    # --- stdin ---------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send `data` to stdin, as soon as the child reads. A child that is gone reads nothing."""
        if self._stdin and data:
            self._stdin.write(data)

    # --- stdout and stderr ---------------------------------------------------------------------

    def _read_stdout(self) -> None:
        data = _read(self._stdout, READ_BYTES)
        if data is None:
            return
        if not data:
            self._loop.remove_reader(self._stdout)
        lines = self._splitter.feed(data) if data else self._splitter.end()
        if lines:
            self._on_lines(lines)
        if not data:
            self._on_end()

    def _read_stderr(self) -> None:
        data = _read(self._stderr, READ_BYTES)
        if data == b"":
            self._loop.remove_reader(self._stderr)
        elif data:
            self._keep_stderr(data)

    def _keep_stderr(self, data: bytes) -> None:
        self.stderr += data
        del self.stderr[:-STDERR_TAIL]

    # --- the end -------------------------------------------------------------------------------

    def _watch_exit(self) -> None:
        try:
            pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not Linux, an old kernel, or no descriptor left
            threading.Thread(target=self._wait_in_thread, daemon=True).start()
        else:
            self._loop.add_reader(pidfd, self._pidfd_readable, pidfd)

    def _pidfd_readable(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        self._child_exited(self._child.wait())

    def _wait_in_thread(self) -> None:
        code = self._child.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
            self._loop.call_soon_threadsafe(self._child_exited, code)

    def _child_exited(self, code: int) -> None:
        self.exit_code = code
        _ours.discard(self.pid)
        lines = self._splitter.feed(_drain(self._stdout)) + self._splitter.end()
        self._keep_stderr(_drain(self._stderr))
        for stream in (self._child.stdout, self._child.stderr):
            assert stream
            self._loop.remove_reader(stream.fileno())
            stream.close()
        if self._stdin and self._child.stdin:
            self._stdin.stop()
            self._child.stdin.close()
        if lines:
            self._on_lines(lines)
        self._exited.set()
        self._on_exit(code)

    async def wait(self) -> int:
        """Until the child has ended, all its lines have been handed over, or for ever."""
        await self._exited.wait()
        assert self.exit_code is not None
        return self.exit_code

    async def stop(self, grace: float = TERM_GRACE) -> str:
        """End the child and everything it started. Safe to call twice and after the exit.

        SIGTERM to the group, `grace` seconds, SIGKILL to the group and to every descendant that
        left it. Returns what it took: "exited", "terminated" or "killed".
        """
        family = self._family()  # while the tree still tells who is whose child
        rung = "exited"
        if self.exit_code is None:
            self._signal(signal.SIGCONT)  # a stopped process does not see SIGTERM
            self._signal(signal.SIGTERM)
            rung = "terminated"
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._exited.wait(), grace)
        if self.exit_code is None:
            rung = "killed"
            self._signal(signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._exited.wait(), KILL_GRACE)
        await self._sweep(family)
        return rung

    def kill(self) -> None:
        """End it at once and without waiting; for a server that is told to leave now."""
        for pid in {*self._family(), *marked(self._marker)}:
            _kill(pid)
        if self.exit_code is None:
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _family(self) -> Family:
        """Who stems from the child: by parent links and, since those of orphans lead to us, by
        the session or process group that the child had of its own. Once it is reaped, its pid may
        be somebody else's; as the id of a session it is not given away while one is in that."""
        family = descendants(self.pid) if self.exit_code is None else {}
        if self.exit_code is None or self.pid not in _ours:
            for pid, started in descendants(os.getpid()).items():
                if pid != self.pid and self.pid in _group_and_session(pid):
                    family[pid] = started
        return family

    async def _sweep(self, family: Family) -> None:
        """SIGKILL what is left of the family until nothing is, and reap it."""
        deadline = self._loop.time() + KILL_GRACE
        pause = 0.002
        while True:
            family |= self._family()
            left = {*alive(family), *await asyncio.to_thread(marked, self._marker)}
            for pid in left:
                family |= descendants(pid)
                _kill(pid)
            reap_orphans()
            if not left or self._loop.time() > deadline:
                return
            await asyncio.sleep(pause)  # no event tells of the end of somebody else's child
            pause = min(2 * pause, 0.1)


class _Writer:
    """Bytes for a non-blocking pipe: sent at once where there is room, else when there is."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray()
        self._closed = False
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)

    def write(self, data: bytes) -> None:
        if self._closed:
            return
        if self._buffer:
            self._buffer += data
            return
        self._buffer += data
        self._flush()
        if self._buffer:
            self._loop.add_writer(self._fd, self._flush)

    def _flush(self) -> None:
        try:
            sent = os.write(self._fd, self._buffer)
        except BlockingIOError:
            return
        except OSError:  # the child closed its stdin; its exit will say what that means
            self.stop()
            return
        del self._buffer[:sent]
        if not self._buffer:
            self._loop.remove_writer(self._fd)

    def stop(self) -> None:
        self._loop.remove_writer(self._fd)
        self._buffer.clear()
        self._closed = True


async def to_the_end(work: asyncio.Future[T]) -> T:
    """The result of `work`. A cancellation, and any further one, waits until there is one."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled:
        raise cancelled
    return work.result()


# --- the process table -------------------------------------------------------------------------


def become_subreaper() -> None:
    """Make orphaned descendants our children, so that they can be found and reaped (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


Family = dict[int, int]
"""Processes by pid, each with its start time, which tells it from a later one of that pid."""


def descendants(pid: int) -> Family:
    """All processes below `pid`, by the kernel's parent links."""
    found: Family = {}
    queue = [pid]
    while queue:
        for child in _children(queue.pop()):
            if child not in found and (started := _start_time(child)):
                found[child] = started
                queue.append(child)
    return found


def alive(family: Family) -> set[int]:
    return {pid for pid, started in family.items() if _start_time(pid) == started}


def marked(marker: str) -> set[int]:
    """All living processes whose environment carries `marker`."""
    wanted = f"{MARKER}={marker}".encode()
    return {pid for pid in _processes() if wanted in _environment(pid)}


def kill_descendants() -> None:
    """SIGKILL to all that stems from this process, at once; for a server that ends. It finds even
    what gave up its environment, its session and its parents, and what is just being started."""
    deadline = time.monotonic() + KILL_GRACE
    while (_starting or descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in descendants(os.getpid()):
            _kill(pid)
        time.sleep(0.002)  # what is killed may have forked meanwhile


def reap_orphans() -> None:
    """Reap dead descendants that became our children. Those that have an AgentProcess are left
    to it; while a child is being started, all are, since its pid is not known yet."""
    children = _children(os.getpid())
    if _starting:  # asked after the list was made: whoever is in it is known, or being started
        return
    for pid in children:
        if pid not in _ours:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _register(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Start a child so that reap_orphans() can never take it for an orphan."""
    token = object()
    _starting.add(token)
    try:
        child = start()
        _ours.add(child.pid)
    finally:
        _starting.discard(token)
    return child


def _start_time(pid: int) -> int:
    """Clock ticks after boot at which the process started; 0 if it is gone or a zombie."""
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def _group_and_session(pid: int) -> tuple[int, ...]:
    """Its process group and its session; nothing if it is gone or a zombie."""
    return tuple(map(int, _stat(pid)[2:4]))


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the state on; none if it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    return [] if fields[0] in "ZX" else fields


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, a zombie, or somebody else's
        return []


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/task/{thread}/children").read_text()
                found += map(int, text.split())
    return found


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _ignore(_: object) -> None:
    pass


def _read(fd: int, size: int) -> bytes | None:
    """Up to `size` bytes; empty at the end of the stream, None where there is nothing yet."""
    try:
        return os.read(fd, size)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _drain(fd: int) -> bytes:
    """What a dead child left in its pipe: no more than the pipe can hold, because a descendant
    may go on writing for ever."""
    left = _pipe_capacity(fd)
    data = b""
    while left > 0 and (more := _read(fd, left)):
        data += more
        left -= len(more)
    return data


def _pipe_capacity(fd: int) -> int:
    try:
        return fcntl.fcntl(fd, getattr(fcntl, "F_GETPIPE_SZ", 1032))
    except OSError:
        return 64 * 1024
