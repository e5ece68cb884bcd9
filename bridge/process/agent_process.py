"""A child process: lines out, bytes in, and nothing of it left behind.

Facts that decide the code (CPython 3.11-3.13, Linux):

* Neither the end of stdout nor asyncio's `process.wait()` says that a child has ended: a
  grandchild that inherited stdout holds both. A pidfd does say it. What the child had written by
  then is in the pipe, so that reading at most one pipe's capacity more reads all of it.
* Agents start each shell command in a session of its own, which `killpg` does not reach. Each
  child gets a marker in its environment that its descendants inherit, and this process is their
  subreaper: what survives its parents becomes our child and can be found, killed and reaped.
* Spawning blocks for milliseconds (process/spawn.py): it happens in a thread, a few at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TypeVar, cast

from bridge.errors import LaunchError
from bridge.process import cgroup, procfs
from bridge.process.cgroup import Cgroup
from bridge.process.pipes import Channel, Pipes
from bridge.process.spawn import Child, Start, launcher, start_child
from bridge.process.spool import Spool, exit_code, who

T = TypeVar("T")
TERM_GRACE = 5.0  # seconds from SIGTERM to SIGKILL, as container runtimes give by default, halved
QUIET = 0.2  # seconds without a system call or CPU time, after which a child has nothing to write
KILL_GRACE = 5.0  # seconds for the kernel to end what was sent SIGKILL
COLLECTED_WITHIN = 2.0  # seconds: about that long somebody may take to write down how a CLI ended
SPAWNS_AT_ONCE = 4  # more only makes all of them slower
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36

_spawners = ThreadPoolExecutor(SPAWNS_AT_ONCE, thread_name_prefix="spawn")
_starting: set[object] = set()  # spawns whose pid is not known yet
_ours: set[int] = set()  # children that have an AgentProcess, which waits for them


@dataclass(frozen=True, slots=True)
class LongLine:
    """A line over the limit: its first bytes, and the length that it had."""

    head: bytes
    length: int


@dataclass(frozen=True, slots=True)
class Hooks:
    """Whom to tell what of a child; see AgentProcess."""

    on_lines: Callable[[list[bytes | LongLine]], None] = lambda lines: None
    on_exit: Callable[[int], None] = lambda code: None
    on_end: Callable[[], None] = lambda: None


class LineSplitter:
    """Cuts a byte stream into lines on `\\n` only: U+2028 and \\r may stand inside JSON."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest: list[bytes] = []
        self.length = 0  # of the line that is not complete yet

    def feed(self, data: bytes) -> list[bytes | LongLine]:
        """The lines that `data` completes, in order, without their newlines."""
        *lines, rest = data.split(b"\n")
        complete: list[bytes | LongLine] = []
        if lines and self.length:
            self._keep(lines.pop(0))
            complete.append(self._take())
        limit = self._limit
        complete += [x if len(x) <= limit else LongLine(x[:limit], len(x)) for x in lines]
        if rest:
            self._keep(rest)
        return complete

    def end(self) -> list[bytes | LongLine]:
        """What is left when the stream ends in the middle of a line."""
        return [self._take()] if self.length else []

    def _keep(self, data: bytes) -> None:
        room = self._limit - self.length
        if room > 0:
            self._rest.append(data[:room])
        self.length += len(data)

    def _take(self) -> bytes | LongLine:
        line, length = b"".join(self._rest), self.length
        self._rest, self.length = [], 0
        return line if length <= self._limit else LongLine(line, length)


class AgentProcess:
    """One running child, of ours or of an earlier server's. `on_lines` gets each batch of stdout
    lines, `on_exit` the exit code (negative: the signal that killed it) once, after the last line.
    `on_end` is told if stdout is closed while the child lives.

    `pid` is the child's and the id of its process group, even after it is reaped. `reap`: how it
    has ended, once it has; None if that cannot be known yet. `position`: bytes of stdout that were
    heard before.
    """

    def __init__(
        self,
        child: Child,
        marker: str,
        channel: Channel,
        hooks: Hooks,
        line_limit: int,
        reap: Callable[[], int | None],
        position: int = 0,
    ) -> None:
        self.pid = child.pid
        self.exit_code: int | None = None
        self._reaped = False
        self._detached = False
        self._paused = False
        self._marker = marker
        self._cgroup = Cgroup(marker)
        self._channel = channel
        self._hooks = hooks
        self._reap = reap
        self._grouped = child.grouped
        self._heard = position
        self._splitter = LineSplitter(line_limit)
        self._loop = asyncio.get_running_loop()
        self._exited = self._loop.create_future()  # an Event takes 0.7 KiB
        channel.listen(self._hear, self._end)
        self._watch_exit()

    def __repr__(self) -> str:
        state = "running" if self.exit_code is None else f"exited {self.exit_code}"
        return f"<AgentProcess {self.pid} {state}>"

    @property
    def running(self) -> bool:
        """It has not ended; what it said may still be on its way."""
        return not self._reaped

    @property
    def stderr(self) -> bytearray:
        """The end of what it said there."""
        return self._channel.stderr

    @property
    def exceeded(self) -> str | None:
        """The limit of its control group that it may have ended by."""
        limit = self._cgroup.exceeded() if self.exit_code else None
        return None if limit == "memory" and self.exit_code != -signal.SIGKILL else limit

    @property
    def position(self) -> int:
        """Bytes of stdout up to the end of the last line that was handed over."""
        return self._heard - self._splitter.length

    @classmethod
    async def spawn(
        cls, start: Start, hooks: Hooks, line_limit: int, spool: Path | None = None
    ) -> AgentProcess:
        """Start a child in a session of its own, with its streams on pipes or in the folder
        `spool`, which must not exist. Raises LaunchError if it cannot be started."""
        become_subreaper()
        work = partial(_register, partial(start_child, start, spool))
        spawned = asyncio.get_running_loop().run_in_executor(_spawners, work)
        try:
            child = await to_the_end(spawned)
        except asyncio.CancelledError:
            if spawned.exception() is None:
                unwanted = cls._of(spawned.result(), start, Hooks(), line_limit, spool)
                await to_the_end(asyncio.ensure_future(unwanted.stop(grace=0)))
            raise
        except OSError as error:
            what = f"in {start.cwd}" if error.filename == start.cwd else start.argv[0]
            raise LaunchError(f"cannot start {what}: {error.strerror}", error.strerror) from error
        except ValueError as error:  # such as a null byte
            raise LaunchError(f"cannot start {start.argv[0]}: {error}", str(error)) from error
        finally:
            reap_orphans()  # those that ended meanwhile could not be told from the child
        try:
            return cls._of(child, start, hooks, line_limit, spool)
        except OSError as error:  # no descriptor left for its streams
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await asyncio.to_thread(_insist, child.pid, _reaper(child.pid, spool))
            _ours.discard(child.pid)
            raise LaunchError(f"cannot hear {start.argv[0]}: {error}", error.strerror) from error

    @classmethod
    def _of(
        cls, child: Child, start: Start, hooks: Hooks, line_limit: int, spool: Path | None
    ) -> AgentProcess:
        channel = Pipes(*child.pipes) if child.pipes else Spool(cast(Path, spool))
        try:
            return cls(child, start.marker, channel, hooks, line_limit, _reaper(child.pid, spool))
        except OSError:
            channel.close()
            raise

    @classmethod
    def attach(
        cls, spool: Spool, marker: str, hooks: Hooks, line_limit: int, position: int
    ) -> AgentProcess:
        """Go on with a child that an earlier server has started, if need be with its end."""
        pid = leader(spool.folder) or 0
        reap = _reaper(pid, spool.folder)
        child = Child(pid, None, grouped=bool(Cgroup(marker).pids()))
        return cls(child, marker, spool, hooks, line_limit, reap, position)

    def write(self, data: bytes) -> None:
        """Send `data` to stdin, as soon as the child reads. A child that is gone reads nothing."""
        if self.running:
            self._channel.write(data)

    def pause(self, paused: bool) -> None:
        """Hear nothing more for now, or go on. The child waits once its pipe is full."""
        if self.exit_code is None and not self._detached and paused != self._paused:
            self._paused = paused
            self._channel.pause(paused)

    # --- what it says --------------------------------------------------------------------------

    def _hear(self, data: bytes) -> None:
        self._heard += len(data)
        lines = self._splitter.feed(data)
        if lines:
            self._hooks.on_lines(lines)

    def _end(self) -> None:
        lines = self._splitter.end()
        if lines:
            self._hooks.on_lines(lines)
        self._hooks.on_end()

    # --- the end -------------------------------------------------------------------------------

    def _watch_exit(self) -> None:
        if self.pid == 0:  # it ended before it was attached to
            self._loop.call_soon(self._collect)
            return
        try:
            pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not Linux, an old kernel, or no descriptor left
            threading.Thread(target=self._wait_in_thread, daemon=True).start()
        else:
            self._loop.add_reader(pidfd, self._pidfd_readable, pidfd)

    def _pidfd_readable(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        self._collect()

    def _collect(self, pause: float = 0.0005) -> None:
        """It has ended. No event tells that whoever waits for it has written down how."""
        self._reaped = True  # it cannot be signalled from here on
        code = self._reap()
        if code is None and pause < COLLECTED_WITHIN:
            self._loop.call_later(pause, self._collect, 2 * pause)
        else:
            self._child_exited(-signal.SIGKILL if code is None else code)

    def _wait_in_thread(self) -> None:
        code = _insist(self.pid, self._reap)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
            self._loop.call_soon_threadsafe(self._child_exited, code)

    def _child_exited(self, code: int) -> None:
        self._reaped = True
        _ours.discard(self.pid)
        reap_orphans()  # which this one may have stood in the way of
        if not self._detached:
            self._channel.finish(partial(self._heard_all, code))

    def _heard_all(self, code: int) -> None:
        if self.exit_code is not None or self._detached:
            return
        self.exit_code = code
        lines = self._splitter.end()
        if lines:
            self._hooks.on_lines(lines)
        self._channel.close()
        self._exited.set_result(None)
        self._hooks.on_exit(code)
        self._hooks = Hooks()  # who hears it has it, too: neither need wait for a collector

    def detach(self) -> None:
        """Leave it alone: it lives on, and another server may attach to it."""
        if self.exit_code is None and not self._detached:
            self._detached = True
            self._channel.close()

    async def wait(self) -> int:
        """Until the child has ended, all its lines have been handed over, or for ever."""
        await asyncio.wait([self._exited])
        assert self.exit_code is not None
        return self.exit_code

    async def settle(self, within: float) -> None:
        """Close stdin and give the child time to write down what it knows: until it has ended, or
        has been quiet for QUIET seconds, at most `within`."""
        self._channel.end_input()
        deadline = self._loop.time() + within
        before, since = None, self._loop.time()
        while self.exit_code is None and (now := self._loop.time()) < deadline:
            activity = procfs.activity(self.pid)
            if activity != before:
                before, since = activity, now
            elif now - since >= QUIET:
                return
            await asyncio.wait([self._exited], timeout=QUIET / 4)

    async def stop(self, grace: float = TERM_GRACE) -> str:
        """End the child and everything it started. Safe to call twice and after the exit.

        SIGTERM to the group, `grace` seconds, SIGKILL to the group and to every descendant that
        left it. Returns what it took: "exited", "terminated" or "killed".
        """
        # While the tree still tells who is whose child.
        family = {} if self._grouped else self._family()
        rung = "exited"
        if self.exit_code is None:
            self._signal(signal.SIGCONT)  # a stopped process does not see SIGTERM
            self._signal(signal.SIGTERM)
            rung = "terminated"
            await asyncio.wait([self._exited], timeout=grace)
        if self.exit_code is None:
            rung = "killed"
            self._signal(signal.SIGKILL)
            await asyncio.wait([self._exited], timeout=KILL_GRACE)
        await self._sweep(family)
        return rung

    def kill(self) -> None:
        """End it at once and without waiting; for a server that is told to leave now."""
        self._cgroup.kill()
        for pid in () if self._grouped else {*self._family(), *procfs.marked(self._marker)}:
            procfs.kill(pid)
        if self.exit_code is None:
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._reaped or self.pid == 0:
            return  # the id may be somebody else's by now, or never was
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _family(self) -> procfs.Family:
        """Who stems from the child: by parent links and, since those of orphans lead to us, by
        the session or process group that the child had of its own. Once it is reaped, its pid may
        be somebody else's; as the id of a session it is not given away while one is in that."""
        family = procfs.descendants(self.pid) if self.exit_code is None else {}
        if self.exit_code is None or self.pid not in _ours:
            for pid, started in procfs.descendants(os.getpid()).items():
                if pid != self.pid and self.pid in procfs.group_and_session(pid):
                    family[pid] = started
        return family

    async def _sweep(self, family: procfs.Family) -> None:
        """SIGKILL what is left of the family until nothing is, and reap it. Where the control
        group has all of them, nobody else need be looked at: with many agents, that takes long."""
        deadline = self._loop.time() + KILL_GRACE
        pause = 0.002
        while True:
            left = self._cgroup.pids()
            if not self._grouped:
                family |= self._family()
                left |= {
                    *procfs.alive(family),
                    *await asyncio.to_thread(procfs.marked, self._marker),
                }
            self._cgroup.kill()
            for pid in left:
                family |= {} if self._grouped else procfs.descendants(pid)
                procfs.kill(pid)
            reap_orphans()
            if not left or self._loop.time() > deadline:
                self._cgroup.remove()
                return
            await asyncio.sleep(pause)  # no event tells of the end of somebody else's child
            pause = min(2 * pause, 0.1)


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


# --- this process, and all that stems from it -----------------------------------------------------


@cache  # once will do, and each CDLL is types of its own
def become_subreaper() -> None:
    """Make orphaned descendants our children, so that they can be found and reaped (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def keep_private() -> None:
    """Nobody but root reads this process's memory and environment, not even programs of its own
    user; nor does a core of it, or of its children, come to lie anywhere."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def kill_marked(beginning: str, spared: Collection[str]) -> int:
    """SIGKILL to all processes whose marker begins so, but for those with a marker that is
    `spared`. Returns how many there were."""
    wanted = f"{procfs.MARKER}={beginning}".encode()
    kept = {f"{procfs.MARKER}={marker}".encode() for marker in spared}
    killed: set[int] = set()
    groups = {one for one in cgroup.markers() if one.startswith(beginning)} - set(spared)
    deadline = time.monotonic() + KILL_GRACE
    while time.monotonic() < deadline:  # what is killed may have forked meanwhile
        found = {
            pid
            for pid in procfs.processes()
            if any(line.startswith(wanted) and line not in kept for line in procfs.environment(pid))
        }
        found = found.union(*(Cgroup(marker).pids() for marker in groups))
        if not found:
            break
        for pid in found:
            procfs.kill(pid)
        killed |= found
        time.sleep(0.002)
    reap_orphans()
    for marker in groups:
        Cgroup(marker).remove()
    cgroup.tidy()
    return len(killed)


def leader(folder: Path) -> int | None:
    """The program of the session in `folder`, if it runs, or has ended and nobody has written down
    how. Nobody else has its pid and began when it did."""
    known = who(folder)
    if known is None:
        return None
    pid, started = known
    return pid if procfs.stat(pid)[19:20] == [str(started)] else None


def kill_descendants(spared: Collection[str] = ()) -> None:
    """SIGKILL to all that stems from this process, at once, but for those with a `spared` marker;
    for a server that ends. It finds even what gave up its environment, its session and its
    parents, and what is just being started."""
    deadline = time.monotonic() + KILL_GRACE
    while time.monotonic() < deadline:
        left = procfs.descendants(os.getpid()).keys() - _with_descendants(spared)
        if not (left or _starting):
            return
        for pid in left:
            procfs.kill(pid)
        time.sleep(0.002)  # what is killed may have forked meanwhile


def _with_descendants(markers: Collection[str]) -> set[int]:
    """Processes with one of these markers, their descendants and their parents; and the launcher,
    which may have the output of one that has just ended. It ends by itself."""
    roots = {pid for marker in markers for pid in procfs.marked(marker)}
    parents = {int(fields[1]) for pid in roots if (fields := procfs.living(pid))}
    parents |= {launcher()} if markers else set()
    return roots.union(parents, *(procfs.descendants(pid) for pid in roots))


def reap_orphans() -> None:
    """Reap dead descendants that became our children. Those that have an AgentProcess are left
    to it, which then calls this; while a child is being started, all are, since its pid is not
    known yet."""
    with contextlib.suppress(ChildProcessError):
        while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            # Asked after it was seen: whoever has been seen is known, or being started.
            if _starting or dead.si_pid in _ours:
                return
            os.waitpid(dead.si_pid, os.WNOHANG)


def _reaper(pid: int, spool: Path | None) -> Callable[[], int | None]:
    return partial(_written_code, pid, spool) if spool else partial(_reap, pid)


def _reap(pid: int) -> int:
    """Wait for a child of ours. Returns its exit code."""
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return 0
    return os.waitstatus_to_exitcode(status)


def _written_code(pid: int, folder: Path) -> int | None:
    """How a child of a launcher's has ended, which writes that down before it lets go of it. None:
    it is still about to. With the launcher killed, it is ours, or nobody knows any more."""
    with contextlib.suppress(ChildProcessError):
        ended, status = os.waitpid(pid, os.WNOHANG) if pid else (0, 0)
        if ended:
            return os.waitstatus_to_exitcode(status)
    there = procfs.stat(pid) and (who(folder) is None or leader(folder))
    code = exit_code(folder)
    return -signal.SIGKILL if code is None and not there else code


def _insist(pid: int, reap: Callable[[], int | None]) -> int:
    """The same as _collect(), without a descriptor that tells of the end."""
    pause, patience = 0.002, COLLECTED_WITHIN
    while (code := reap()) is None and patience > 0:
        time.sleep(pause)
        patience -= 0 if procfs.living(pid) else pause
        pause = min(2 * pause, 0.1)
    return -signal.SIGKILL if code is None else code


def _register(start: Callable[[], Child]) -> Child:
    """Start a child so that reap_orphans() can never take it for an orphan."""
    token = object()
    _starting.add(token)
    try:
        child = start()
        _ours.add(child.pid)
    finally:
        _starting.discard(token)
    return child
