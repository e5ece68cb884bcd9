"""A child process: lines out, bytes in, and no process left behind.

Facts that decide the code (CPython 3.11-3.13, Linux):

* Neither the end of stdout nor asyncio's `process.wait()` reports the end of a child: a grandchild
  that inherited stdout delays both. A pidfd reports it. The child's last output is then in the
  pipe, so one more read of the pipe's capacity gets all of it.
* Spawning blocks for milliseconds (process/spawn.py): it happens in a thread, a few at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from bridge.errors import LaunchError
from bridge.process import process_tree
from bridge.process.cgroup import Cgroup
from bridge.process.line_splitter import LineSplitter, LongLine
from bridge.process.pipes import READ_BYTES, Channel, Pipes
from bridge.process.process_tree import (
    COLLECTED_WITHIN,
    KILL_GRACE,
    ProcessTree,
    leader,
    reap_orphans,
    reaper,
)
from bridge.process.spawn import Child, Start, guard, start_child
from bridge.process.spool import Spool

T = TypeVar("T")
TERM_GRACE = 5.0  # seconds from SIGTERM to SIGKILL, half of the default of container runtimes
QUIET = 0.2  # seconds without a system call or CPU time after which a child has no more to write
SPAWNS_AT_ONCE = 4  # more only makes all of them slower

_spawners = ThreadPoolExecutor(SPAWNS_AT_ONCE, thread_name_prefix="spawn")


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """`line`: bytes of a line of stdout. `read`: bytes of one read of a stream. `exit_status`:
    seconds after the end of a child until its parent must have written its exit status."""

    line: int
    read: int = READ_BYTES
    exit_status: float = COLLECTED_WITHIN


@dataclass(frozen=True, slots=True)
class Hooks:
    """The functions that an AgentProcess calls."""

    on_lines: Callable[[list[bytes | LongLine]], None] = lambda lines: None
    on_exit: Callable[[int], None] = lambda code: None
    on_end: Callable[[], None] = lambda: None


class AgentProcess:
    """One running child, started by this server or an earlier one. `on_lines` gets each batch of
    stdout lines, `on_exit` the exit code (negative: the signal that killed it) once, after the last
    line. `on_end` is called if stdout is closed while the child lives.

    `pid` is the child's and the id of its process group, also after it is reaped. `reap`: see
    process_tree.reaper(). `position`: bytes of stdout that an earlier server has read.
    """

    def __init__(
        self,
        child: Child,
        marker: str,
        channel: Channel,
        *,
        hooks: Hooks,
        limits: ProcessLimits,
        reap: Callable[[], int | None],
        position: int = 0,
    ) -> None:
        self.pid = child.pid
        self.exit_code: int | None = None
        self.left = 0  # processes that have survived stop()
        self._reaped = False
        self._detached = False
        self._paused = False
        self._tree = ProcessTree(child, marker)
        self._channel = channel
        self._hooks = hooks
        self._reap = reap
        self._heard = position
        self._splitter = LineSplitter(limits.line)
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._exited = self._loop.create_future()  # an Event takes 0.7 KiB
        channel.listen(self._hear, self._end)
        self._watch_exit()

    def __repr__(self) -> str:
        state = "running" if self.exit_code is None else f"exited {self.exit_code}"
        return f"<AgentProcess {self.pid} {state}>"

    @property
    def running(self) -> bool:
        """Whether the child has not ended. Output of an ended child may still arrive."""
        return not self._reaped

    @property
    def stderr(self) -> bytearray:
        """The end of the child's stderr."""
        return self._channel.stderr

    @property
    def exceeded(self) -> str | None:
        """The limit of its control group that may have ended the child: "memory", "processes"."""
        limit = self._tree.cgroup.exceeded() if self.exit_code else None
        return None if limit == "memory" and self.exit_code != -signal.SIGKILL else limit

    @property
    def position(self) -> int:
        """Bytes of stdout up to the end of the last line that `on_lines` got."""
        return self._heard - self._splitter.length

    @classmethod
    async def spawn(
        cls, start: Start, hooks: Hooks, *, limits: ProcessLimits, spool: Path | None = None
    ) -> AgentProcess:
        """Start a child in a session of its own, with its streams on pipes or in the folder
        `spool`, which must not exist. Raises LaunchError if it cannot be started."""
        process_tree.become_subreaper()
        work = partial(process_tree.register, partial(start_child, start, spool))
        made = partial(cls._of, start=start, limits=limits, spool=spool)
        spawned = asyncio.get_running_loop().run_in_executor(_spawners, work)
        try:
            child = await to_the_end(spawned)
        except asyncio.CancelledError:
            if spawned.exception() is None:
                unwanted = made(spawned.result(), hooks=Hooks())
                await to_the_end(asyncio.ensure_future(unwanted.stop(grace=0)))
            raise
        except OSError as error:
            what = f"in {start.cwd}" if error.filename == start.cwd else start.argv[0]
            raise LaunchError(f"cannot start {what}: {error.strerror}", error.strerror) from error
        except ValueError as error:  # such as a null byte
            raise LaunchError(f"cannot start {start.argv[0]}: {error}", str(error)) from error
        finally:
            reap_orphans()  # while the child was being started, no process was reaped
        try:
            return made(child, hooks=hooks)
        except OSError as error:  # no descriptor left for its streams
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            reap = reaper(child.pid, spool)
            await asyncio.to_thread(process_tree.wait_for_exit, child.pid, reap, limits.exit_status)
            process_tree.forget(child.pid)
            problem = f"cannot read the output of {start.argv[0]}: {error}"
            raise LaunchError(problem, error.strerror) from error

    @classmethod
    def _of(
        cls, child: Child, *, start: Start, hooks: Hooks, limits: ProcessLimits, spool: Path | None
    ) -> AgentProcess:
        channel: Channel
        if child.pipes:
            channel = Pipes(*child.pipes, piece=limits.read)
        else:
            channel = Spool(cast(Path, spool), stdin=child.stdin, piece=limits.read)
        reap = reaper(child.pid, spool)
        try:
            return cls(child, start.marker, channel, hooks=hooks, limits=limits, reap=reap)
        except OSError:
            channel.close()
            raise

    @classmethod
    def attach(
        cls, spool: Spool, marker: str, hooks: Hooks, *, limits: ProcessLimits, position: int
    ) -> AgentProcess:
        """The child of an earlier server, which may have ended."""
        guard(marker)
        pid = leader(spool.folder) or 0
        return cls(
            Child(pid, None, grouped=bool(Cgroup(marker).pids())),
            marker,
            spool,
            hooks=hooks,
            limits=limits,
            reap=reaper(pid, spool.folder),
            position=position,
        )

    def write(self, data: bytes) -> None:
        """Send `data` to stdin when the child reads. The data is dropped if the child has ended."""
        if self.running:
            self._channel.write(data)

    def pause(self, paused: bool) -> None:
        """Stop or resume reading. The child blocks when its pipe is full."""
        if self.exit_code is None and not self._detached and paused != self._paused:
            self._paused = paused
            self._channel.pause(paused)

    # --- output ----------------------------------------------------------------------------------

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
        if self.pid == 0:  # it ended before attach()
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
        """The child has ended. No event reports that its parent has written its exit code."""
        self._reaped = True  # its pid may belong to another process from here on
        code = self._reap()
        if code is None and pause < self._limits.exit_status:
            self._loop.call_later(pause, self._collect, 2 * pause)
        else:
            self._child_exited(-signal.SIGKILL if code is None else code)

    def _wait_in_thread(self) -> None:
        code = process_tree.wait_for_exit(self.pid, self._reap, self._limits.exit_status)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._child_exited, code)

    def _child_exited(self, code: int) -> None:
        self._reaped = True
        process_tree.forget(self.pid)
        reap_orphans()  # reap_orphans() stops at a child with an AgentProcess
        if not self._detached:
            self._channel.finish(partial(self._heard_all, code))

    def _heard_all(self, code: int) -> None:
        if self.exit_code is not None or self._detached:
            return
        self.exit_code = code
        self._tree.ended = True
        lines = self._splitter.end()
        if lines:
            self._hooks.on_lines(lines)
        self._channel.close()
        self._exited.set_result(None)
        self._hooks.on_exit(code)
        self._hooks = Hooks()  # breaks the reference cycle with the owner

    def detach(self) -> None:
        """Stop watching the child: it lives on, and another server may attach to it."""
        if self.exit_code is None and not self._detached:
            self._detached = True
            self._channel.close()

    async def wait(self) -> int:
        """Wait until the child has ended and `on_lines` got all its lines; for ever if detached.
        Returns the exit code."""
        await asyncio.wait([self._exited])
        assert self.exit_code is not None
        return self.exit_code

    async def settle(self, within: float) -> None:
        """Close stdin and give the child time to save its state: until it has ended or has been
        quiet for QUIET seconds, at most `within` seconds."""
        self._channel.end_input()
        deadline = self._loop.time() + within
        before, since = None, self._loop.time()
        while self.exit_code is None and (now := self._loop.time()) < deadline:
            activity = process_tree.table.activity(self.pid)
            if activity != before:
                before, since = activity, now
            elif now - since >= QUIET:
                return
            await asyncio.wait([self._exited], timeout=QUIET / 4)

    def kill_strays(self, inside: bool) -> int:
        """Send SIGKILL to the processes that the child has left in the background, without waiting.
        Returns their number. `inside`: see ProcessTree.strays()."""
        return 0 if self._reaped else self._tree.kill_strays(inside)

    async def stop(self, grace: float = TERM_GRACE) -> str:
        """End the child and its descendants. Safe to call twice and after the exit.

        SIGTERM to the group, `grace` seconds, SIGKILL to the group and to every descendant that
        left it. Returns the step that was needed: "exited", "terminated" or "killed".
        """
        family = self._tree.family()  # parent links are lost when a parent ends
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
        self.left = await self._tree.sweep(family)
        return rung

    def kill(self) -> None:
        """Send SIGKILL to the child and its descendants without waiting."""
        self._tree.kill()
        if self.exit_code is None:
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._reaped or self.pid == 0:
            return  # another process may have the id, or the id is 0
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


async def to_the_end(work: asyncio.Future[T]) -> T:
    """The result of `work`. A cancellation takes effect after `work` has ended."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled:
        raise cancelled
    return work.result()
