"""The descendants of this process: find them, kill them, and reap them.

Agents start each shell command in a session of its own, which `killpg` does not reach. So each
child has a mark (sandbox/mark.py) and a marker in its environment, which its descendants inherit.
This process and its launcher are subreapers: a process whose parents have ended becomes a child of
the one that has started the program.
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
from bridge.process.procfs import Family
from bridge.process.spawn import Child, launcher
from bridge.process.spool import exit_code, who
from bridge.sandbox import mark
from bridge.sandbox.kernel import LIBC
from bridge.sandbox.mark import Mark

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
_ours: set[int] = set()  # programs that have an AgentProcess, which waits for them


class ProcessTree:
    """A child and its descendants."""

    def __init__(self, child: Child, marker: str) -> None:
        self.cgroup = Cgroup(marker)
        self._pid = child.pid
        self._marker = marker
        self._grouped = child.grouped
        self.ended = False  # the child itself; it may have been reaped
        _ours.add(child.pid)

    def family(self) -> Family:
        """The descendants, by parent links; none if the control group has all of them. Once the
        child has ended, its pid may belong to another process."""
        return {} if self._grouped or self.ended else table.descendants(self._pid)

    def strays(self, inside: bool) -> set[int]:
        """The processes that the child has left in the background: they do not descend from it any
        more. `inside`: the child is bubblewrap, and the first child of its namespace's init is the
        program; the other children of that init are strays. Else strays are siblings of the child
        or of its launcher. No other process of the machine is read."""
        above = table.parent(self._pid)
        reaper = above if above == os.getpid() else table.parent(above)
        beside = {*table.adopted(above), *table.adopted(reaper)} - _ours
        wanted, group = mark.of(self._marker), self.cgroup.pids() if beside else set()
        found = {pid for pid in beside if pid in group or wanted in table.marks(pid)}
        for init in table.children(self._pid) if inside else ():
            found.update(table.adopted(init)[1:])  # in the order of their birth and adoption
        return found.union(*map(table.descendants, found))

    def kill_strays(self, inside: bool) -> int:
        """Send SIGKILL to them, without waiting. Returns their number."""
        found = self.strays(inside)
        for pid in found:
            _kill(pid)
        if found:
            reap_orphans()
        return len(found)

    def kill(self) -> None:
        """Send SIGKILL to the descendants, without waiting."""
        self.cgroup.kill()
        if not self._grouped:
            for pid in {*self.family(), *marked(self._marker)}:
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
                found = await asyncio.to_thread(marked, self._marker)
                left |= table.alive(family) | found
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


def missed() -> tuple[str, ...]:
    """The processes that can outlive their session on this machine, for the operator."""
    problem = mark.problem()
    if cgroup.home() or problem is None:
        return ()
    return (f"processes that leave their parents and their environment: {problem}",)


# --- kill ----------------------------------------------------------------------------------------


def marked(marker: str) -> set[int]:
    """All living processes of the session with this marker that its mark shows."""
    wanted = mark.of(marker)
    return _with_mark(lambda one: one == wanted)


def living(beginning: str) -> set[int]:
    """The same for all sessions whose markers are `beginning` (SERVER.) and an id."""
    server = mark.of(beginning).server
    groups = (Cgroup(one) for one in cgroup.markers() if one.startswith(beginning))
    return _with_mark(lambda one: one.server == server).union(*(one.pids() for one in groups))


def _with_mark(wanted: Callable[[Mark], bool]) -> set[int]:
    return {pid for pid in table.processes() if any(map(wanted, table.marks(pid)))}


def kill_session(marker: str) -> int:
    """Send SIGKILL to all processes of the session with this marker. Returns their number."""
    wanted = mark.of(marker)
    return _kill_marked(lambda one: one == wanted, {marker})


def kill_sessions(beginning: str, spared: Collection[str]) -> int:
    """The same for all sessions whose markers are `beginning` (SERVER.) and an id, and not in
    `spared`."""
    server, kept = mark.of(beginning).server, set(map(mark.of, spared))
    groups = {one for one in cgroup.markers() if one.startswith(beginning)} - set(spared)
    killed = _kill_marked(lambda one: one.server == server and one not in kept, groups)
    cgroup.tidy()
    return killed


def _kill_marked(wanted: Callable[[Mark], bool], groups: Collection[str]) -> int:
    """`groups`: the markers of their control groups."""
    killed: set[int] = set()
    deadline = time.monotonic() + KILL_GRACE
    while time.monotonic() < deadline:  # a process may have forked before it was killed
        found = _with_mark(wanted).union(*(Cgroup(marker).pids() for marker in groups))
        if not found:
            break
        for pid in found:
            _kill(pid)
        killed |= found
        time.sleep(0.002)
    reap_orphans()
    for marker in groups:
        Cgroup(marker).remove()
    return len(killed)


def kill_descendants(spared: Collection[str] = ()) -> None:
    """Send SIGKILL to all descendants of this process, except those with a `spared` marker; for a
    server that ends. Finds also descendants without a mark, and starts that are under way."""
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
    roots = {pid for marker in markers for pid in marked(marker)}
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
