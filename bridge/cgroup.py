"""Control groups (v2, cgroups(7)): a process cannot leave its group, whatever it does to its
session, its parents and its environment, and the kernel kills a whole group at once.

Used where there is a hierarchy that this process may write; no controller is needed. Elsewhere the
other ways of finding processes have to do (bridge/process.py).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from functools import cache
from pathlib import Path

PREFIX = "coding-agent-bridge-"
UNUSED = 60.0  # seconds after which nobody is about to enter a group that is still empty


class Cgroup:
    """The group of one child and all that stems from it. Where there can be none, nothing
    happens."""

    def __init__(self, marker: str) -> None:
        base = home()
        self._path = base / f"{PREFIX}{marker}" if base else None

    def make(self) -> str:
        """The file that a process puts itself into the group by; empty where there is none."""
        if self._path:
            with contextlib.suppress(OSError):
                self._path.mkdir(exist_ok=True)
                return str(self._path / "cgroup.procs")
        return ""

    def take(self, pid: int) -> None:
        """Put a process in, and all that it starts from now on. It may have ended already."""
        procs = self.make()
        if procs:
            with contextlib.suppress(OSError):
                Path(procs).write_text(str(pid))

    def kill(self) -> None:
        """SIGKILL to everyone in it."""
        if self._path:
            with contextlib.suppress(OSError):
                (self._path / "cgroup.kill").write_text("1")

    def pids(self) -> set[int]:
        """Who is in it; zombies are not."""
        if self._path:
            with contextlib.suppress(OSError):
                return set(map(int, (self._path / "cgroup.procs").read_text().split()))
        return set()

    def age(self) -> float:
        """Seconds since it was made, or changed."""
        try:
            return time.time() - self._path.stat().st_ctime if self._path else 0.0
        except OSError:
            return 0.0

    def remove(self) -> None:
        if self._path:
            with contextlib.suppress(OSError):  # somebody is left, or it never was
                self._path.rmdir()


@cache
def home() -> Path | None:
    """Where groups can be made: below the one that this process is in. None if nowhere."""
    for path in _candidates():
        probe = path / f"{PREFIX}probe-{secrets.token_hex(4)}"
        try:
            probe.mkdir()
        except OSError:
            continue
        usable = (probe / "cgroup.kill").exists()
        probe.rmdir()
        if usable:
            return path
    return None


def markers() -> set[str]:
    """Of all groups that there are, ours and those of other servers."""
    base = home()
    names = os.listdir(base) if base else ()
    return {name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)}


def tidy() -> None:
    """Remove what servers that were killed have left, once nobody is in there any more."""
    for marker in markers():
        group = Cgroup(marker)
        if group.age() > UNUSED:
            group.remove()


def _candidates() -> list[Path]:
    try:
        own = Path("/proc/self/cgroup").read_text()
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return []
    lines = [line.split() for line in mounts.splitlines()]
    roots = [Path(fields[4]) for fields in lines if fields[fields.index("-") + 1] == "cgroup2"]
    inside = [line.removeprefix("0::/") for line in own.splitlines() if line.startswith("0::/")]
    return [root / path for root in roots for path in inside if "\\040" not in str(root)]
