"""The descendants of this process: find them, kill them, and reap them.

Agents start each shell command in a session of its own, which `killpg` does not reach. So each
child gets a marker in its environment, which its descendants inherit, and this process is their
subreaper: a process whose parents have ended becomes a child of this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection
from functools import cache, partial
from pathlib import Path

from bridge.process import cgroup, procfs
from bridge.process.cgroup import Cgroup
from bridge.process.procfs import MARKER, Family
from bridge.process.spawn import Child, launcher
from bridge.process.spool import exit_code, who
from bridge.sandbox.kernel import LIBC

if sys.platform == "linux":
    table = procfs
else:
    from bridge.process import psutil_table

    table = psutil_table

KILL_GRACE = 5.0  # seconds for the kernel to end a process after SIGKILL
COLLECTED_WITHIN = 2.0  # seconds for another process to write the exit status of a CLI
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36

_starting: set[object] = set()  # spawns whose pid is not known yet
_ours: set[int] = set()  # children that have an AgentProcess, which waits for them


class ProcessTree:
    """A child and its descendants."""

    def __init__(self, child: Child, marker: str) -> None:
        self.cgroup = Cgroup(marker)
        self._pid = child.pid
        self._marker = marker
        self._grouped = child.grouped
        self.ended = False  # the child itself; it may have been reaped

    def family(self) -> Family:
        """The descendants that only the process table shows; none if the control group has all of
        them.

        The search follows parent links. The parent link of an orphan leads to this process; then
        its session or process group tells that it stems from the child. Once the child is reaped,
        its pid may belong to another process, but the kernel does not reuse the id of a session
        that has a member.
        """
        if self._grouped:
            return {}
        family = {} if self.ended else table.descendants(self._pid)
        if not self.ended or self._pid not in _ours:
            for pid, started in table.descendants(os.getpid()).items():
                if pid != self._pid and self._pid in table.group_and_session(pid):
                    family[pid] = started
        return family

    def kill(self) -> None:
        """Send SIGKILL to the descendants, without waiting."""
        self.cgroup.kill()
        if not self._grouped:
            for pid in {*self.family(), *table.marked(self._marker)}:
                _kill(pid)

    async def sweep(self, family: Family) -> int:
        """Send SIGKILL until no descendant is left, at most KILL_GRACE seconds, and reap them.
        Returns the number of those that still live then.
        `family`: descendants that were found before. If the control group has all of them, the
        process table is not read: with many agents that takes long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + KILL_GRACE
        pause = 0.002
        while True:
            left = self.cgroup.pids()
            if not self._grouped:
                family |= self.family()
                marked = await asyncio.to_thread(procfs.marked, self._marker)
                left |= table.alive(family) | marked
            self.cgroup.kill()
            for pid in left:
                family |= {} if self._grouped else table.descendants(pid)
                _kill(pid)
            reap_orphans()
            if not left or loop.time() > deadline:
                self.cgroup.remove()
                return len(left)
            await asyncio.sleep(pause)  # no event reports the end of another parent's child
            pause = min(2 * pause, 0.1)


# --- this process --------------------------------------------------------------------------------


@cache  # one call is enough
def become_subreaper() -> None:
    """Make orphaned descendants children of this process (Linux)."""
    if sys.platform == "linux":
        LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def keep_private() -> None:
    """Let only root read the memory and environment of this process: neither other programs of its
    own user, nor a core file of it or of its children."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


# --- kill ----------------------------------------------------------------------------------------


def kill_marked(beginning: str, spared: Collection[str]) -> int:
    """Send SIGKILL to all processes whose marker begins with `beginning` and is not in `spared`.
    Returns the number of processes."""
    killed: set[int] = set()
    groups = {one for one in cgroup.markers() if one.startswith(beginning)} - set(spared)
    deadline = time.monotonic() + KILL_GRACE
    while time.monotonic() < deadline:  # a process may have forked before it was killed
        found = living(beginning, spared)
        if not found:
            break
        for pid in found:
            _kill(pid)
        killed |= found
        time.sleep(0.002)
    reap_orphans()
    for marker in groups:
        Cgroup(marker).remove()
    cgroup.tidy()
    return len(killed)


def living(beginning: str, spared: Collection[str] = ()) -> set[int]:
    """All processes whose marker begins with `beginning` and is not in `spared`."""
    wanted = f"{MARKER}={beginning}".encode()
    kept = {f"{MARKER}={marker}".encode() for marker in spared}
    groups = {one for one in cgroup.markers() if one.startswith(beginning)} - set(spared)
    found = {
        pid
        for pid in table.processes()
        if any(line.startswith(wanted) and line not in kept for line in table.environment(pid))
    }
    return found.union(*(Cgroup(marker).pids() for marker in groups))


def kill_descendants(spared: Collection[str] = ()) -> None:
    """Send SIGKILL to all descendants of this process, except those with a `spared` marker; for a
    server that ends. Finds also descendants without the marker, a session or parents of their own,
    and processes that are being started."""
    deadline = time.monotonic() + KILL_GRACE
    while time.monotonic() < deadline:
        left = table.descendants(os.getpid()).keys() - _with_descendants(spared)
        if not (left or _starting):
            return
        for pid in left:
            _kill(pid)
        time.sleep(0.002)  # a process may have forked before it was killed


def _with_descendants(markers: Collection[str]) -> set[int]:
    """Processes with one of these markers, their descendants and their parents; and the launcher,
    which may hold the output of a child that has just ended. The launcher ends by itself."""
    roots = {pid for marker in markers for pid in table.marked(marker)}
    parents = {above for pid in roots if (above := table.parent(pid))}
    parents |= {launcher()} if markers else set()
    return roots.union(parents, *(table.descendants(pid) for pid in roots))


def _kill(pid: int) -> None:
    """Send SIGKILL. A missing process and a process of another user are ignored."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


# --- reap ----------------------------------------------------------------------------------------


def register(start: Callable[[], Child]) -> Child:
    """Start a child that reap_orphans() leaves to its AgentProcess until forget()."""
    token = object()
    _starting.add(token)
    try:
        child = start()
        _ours.add(child.pid)
    finally:
        _starting.discard(token)
    return child


def forget(pid: int) -> None:
    """The child has been reaped."""
    _ours.discard(pid)


def reap_orphans() -> None:
    """Reap dead descendants that became children of this process. A child with an AgentProcess is
    left to it, and the AgentProcess then calls this function. While a child is being started, no
    process is reaped: the pid of the child is not known yet."""
    if sys.platform != "linux":  # orphans become children of init
        return
    with contextlib.suppress(ChildProcessError):
        while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            # Checked after waitid(): a process that it returns is registered or being started.
            if _starting or dead.si_pid in _ours:
                return
            os.waitpid(dead.si_pid, os.WNOHANG)


def leader(folder: Path) -> int | None:
    """The pid of the program whose streams are in `folder`, while it runs, or has ended without a
    written exit status. The start time tells it from a later process with that pid."""
    known = who(folder)
    if known is None:
        return None
    pid, started = known
    return pid if procfs.stat(pid)[19:20] == [str(started)] else None


def reaper(pid: int, spool: Path | None) -> Callable[[], int | None]:
    """A function that returns the exit code of an ended child (negative: the signal), or None as
    long as its parent has not written it down. `spool`: the folder of its streams, if it has one;
    its parent is then a launcher."""
    return partial(_written_code, pid, spool) if spool else partial(_reap, pid)


def _reap(pid: int) -> int:
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return 0
    return os.waitstatus_to_exitcode(status)


def _written_code(pid: int, folder: Path) -> int | None:
    """The exit code that the launcher has written before it reaped the child. If the launcher was
    killed, this process is the parent, or the exit code is lost."""
    with contextlib.suppress(ChildProcessError):
        ended, status = os.waitpid(pid, os.WNOHANG) if pid else (0, 0)
        if ended:
            return os.waitstatus_to_exitcode(status)
    there = procfs.stat(pid) and (who(folder) is None or leader(folder))
    code = exit_code(folder)
    return -signal.SIGKILL if code is None and not there else code


def wait_for_exit(
    pid: int, reap: Callable[[], int | None], within: float = COLLECTED_WITHIN
) -> int:
    """Block until the child has ended. Returns its exit code; that of SIGKILL if no process writes
    the exit status within `within` seconds after the end."""
    pause, patience = 0.002, within
    while (code := reap()) is None and patience > 0:
        time.sleep(pause)
        patience -= 0 if table.start_time(pid) else pause
        pause = min(2 * pause, 0.1)
    return -signal.SIGKILL if code is None else code
