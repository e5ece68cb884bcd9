"""Control groups (v2, cgroups(7)): a process cannot leave its group by a change of its session,
its parents or its environment, and the kernel kills a whole group at once.

Used if this process may write a hierarchy; no controller is needed. Else only the process table
shows the descendants (process/process_tree.py). If controllers are delegated to this process, a
group can have limits, too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import subprocess
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

HOW = "start it with `systemd-run --user --scope -p Delegate=yes`, or with Delegate=yes in its unit"
PREFIX = "coding-agent-bridge-"
SERVER = "coding-agent-bridge.server"  # the group of this process, if it must leave its first one
UNUSED = 60.0  # seconds after which an empty group is no longer about to be entered


FREEZE = "cgroup.freeze"
_UNITS = (".service", ".scope", ".slice")  # of systemd, with any name
_without: set[str] = set()  # groups that could not be made: their children are in none
EVENTS = (("memory", "memory.events", "oom_kill"), ("processes", "pids.events", "max"))


class Cgroup:
    """The group of one child and its descendants. If groups are not available, the methods do
    nothing."""

    def __init__(self, marker: str, base: Path | None = None) -> None:
        base = base or home()
        self._path = base / f"{PREFIX}{marker}" if base else None

    def make(self) -> str:
        """The file that a process writes to enter the group; empty if there is none."""
        if self._path:
            try:
                self._path.mkdir(exist_ok=True)
            except OSError:
                _without.add(self._path.name)
            else:
                return str(self._path / "cgroup.procs")
        return ""

    def limit(self, limits: Mapping[str, str]) -> None:
        """Make the group with these limits: contents by name of the group's files. Raises
        OSError if one of them cannot be set."""
        if self._path is None:
            raise OSError(errno.ENOTSUP, "control groups are not available")
        self._path.mkdir(exist_ok=True)
        for name, value in limits.items():
            with open(self._path / name, "r+") as file:  # the file must exist
                file.write(value)

    def exceeded(self) -> str | None:
        """The exceeded limit: "memory", which killed a process, or "processes", which kept one from
        being started."""
        if self._path is None:
            return None
        for name, file, event in EVENTS:
            with contextlib.suppress(OSError, ValueError):
                lines = (self._path / file).read_text().split("\n")
                if sum(int(line.split()[1]) for line in lines if line.startswith(f"{event} ")):
                    return name
        return None

    def kill(self) -> None:
        """Send SIGKILL to all its processes."""
        if self._path:
            with contextlib.suppress(OSError):
                (self._path / "cgroup.kill").write_text("1")

    @property
    def exists(self) -> bool:
        return self._path is not None and self._path.is_dir()

    def open_freezer(self) -> int | None:
        """A descriptor of its file that freezes it; None without a group."""
        with contextlib.suppress(OSError):
            return os.open(self._path / FREEZE, os.O_WRONLY | os.O_CLOEXEC) if self._path else None
        return None

    def freeze(self, frozen: bool) -> None:
        """Stop or continue all its processes."""
        group = self.open_freezer()
        if group is not None:
            with contextlib.suppress(OSError):
                os.write(group, b"1" if frozen else b"0")
            os.close(group)

    def pids(self) -> set[int]:
        """Its processes without zombies."""
        if self._path:
            with contextlib.suppress(OSError):
                return set(map(int, (self._path / "cgroup.procs").read_text().split()))
        return set()

    def age(self) -> float:
        """Seconds since it was made or changed."""
        try:
            return time.time() - self._path.stat().st_ctime if self._path else 0.0
        except OSError:
            return 0.0

    def remove(self) -> None:
        if self._path:
            with contextlib.suppress(OSError):  # a process is left, or the group was never made
                self._path.rmdir()


@cache
def home() -> Path | None:
    """The folder for new groups: that of this process's own group. None if it is not usable."""
    for path in _own_groups():
        probe = path / f"{PREFIX}probe-{secrets.token_hex(4)}"
        try:
            probe.mkdir()
        except OSError:
            continue
        usable = (probe / "cgroup.kill").exists() and _entered(probe)
        probe.rmdir()
        if usable:
            return path
    return None


def _entered(group: Path) -> bool:
    """Whether a process can enter the group, which needs more rights than to make it."""
    enter = ("/bin/sh", "-c", 'echo 0 >"$0"', str(group / "cgroup.procs"))
    return subprocess.run(enter, stderr=subprocess.DEVNULL, check=False).returncode == 0


def complete() -> bool:
    """Whether each child of this server has a group of its own."""
    return home() is not None and not _without


def holds_agents(group: int) -> bool | None:
    """Whether the group with this id (the inode of its folder) is a server's group for an agent, or
    lies in one; None for an unknown id. Groups that contain this process itself do not count: a
    server may run inside an agent of another server."""
    for root in _mounts():
        if path := _find(root, group):
            return _is_of_agents(path)
    return None


def holds_process(pid: int) -> bool | None:
    """Whether the process is in such a group now; None if its group is unknown."""
    groups = _groups_of(pid)
    return any(map(_is_of_agents, groups)) if groups else None


def _is_of_agents(path: Path) -> bool:
    own = next((one for one in _own_groups() if path.is_relative_to(one)), None)
    names = path.relative_to(own).parts if own else path.parts
    return any(one.startswith(PREFIX) and not one.endswith(_UNITS) for one in names)


def _find(folder: Path, inode: int) -> Path | None:
    """The folder with that inode, at or below `folder`."""
    try:
        if folder.stat().st_ino == inode:
            return folder
    except OSError:
        return None
    queue = [str(folder)]
    while queue:
        with contextlib.suppress(OSError), os.scandir(queue.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.inode() == inode:
                        return Path(entry.path)
                    queue.append(entry.path)
    return None


def controllers(base: Path | None = None) -> set[str]:
    """The controllers that are delegated to this process."""
    base = base or home()
    try:
        return set((base / "cgroup.controllers").read_text().split()) if base else set()
    except OSError:
        return set()


def enable(wanted: set[str], base: Path | None = None) -> str | None:
    """Enable these controllers for new groups. Returns the problem and its remedy, or None.

    The kernel limits a group only if the groups above it have no process, so this process may have
    to move to a group of its own: systemd's DelegateSubgroup= does that beforehand.
    """
    base = base or home()
    if not wanted:
        return None
    if base is None:
        return f"this server may write no control groups of version 2; {HOW}"
    missing = wanted - controllers(base)
    if missing:
        return f"the controllers {', '.join(sorted(missing))} are not delegated to {base}; {HOW}"
    try:
        _enable(base, " ".join(f"+{name}" for name in sorted(wanted)))
    except OSError as error:
        others = "; other processes are in that group" if error.errno == errno.EBUSY else ""
        return f"no limits can be set in {base}: {error.strerror}{others}; {HOW}"
    return None


def _enable(base: Path, wanted: str) -> None:
    try:
        (base / "cgroup.subtree_control").write_text(wanted)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        own = str(os.getpid())
        (base / SERVER).mkdir(exist_ok=True)
        (base / SERVER / "cgroup.procs").write_text(own)
        try:
            (base / "cgroup.subtree_control").write_text(wanted)
        except OSError:  # other processes are in the group, too
            (base / "cgroup.procs").write_text(own)
            raise


def markers() -> set[str]:
    """The markers of all groups of this and other servers."""
    base = home()
    names = os.listdir(base) if base else ()
    return {name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)}


def freeze_all(beginning: str, end: str) -> None:
    """Stop the groups with such a marker."""
    for marker in markers():
        if marker.startswith(beginning) and marker.endswith(end):
            Cgroup(marker).freeze(True)


def tidy() -> None:
    """Remove the empty groups of servers that were killed."""
    for marker in markers():
        group = Cgroup(marker)
        if group.age() > UNUSED:
            group.remove()


@cache
def _own_groups() -> tuple[Path, ...]:
    """The groups of this process at the first call."""
    return tuple(_groups_of("self"))


def _groups_of(pid: int | str) -> list[Path]:
    try:
        own = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return []
    inside = [line.removeprefix("0::/") for line in own.splitlines() if line.startswith("0::/")]
    return [root / path for root in _mounts() for path in inside]


def _mounts() -> list[Path]:
    """The mount points of hierarchies of version 2."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return []
    lines = [line.split() for line in mounts.splitlines()]
    roots = [Path(fields[4]) for fields in lines if fields[fields.index("-") + 1] == "cgroup2"]
    return [root for root in roots if "\\040" not in str(root)]
