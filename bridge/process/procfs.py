"""The process table of /proc (Linux); psutil_table.py has the same functions for other systems."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from bridge.sandbox import mark
from bridge.sandbox.mark import Mark

MARKER = "CODING_AGENT_BRIDGE_PROCESS"
"""A variable that descendants inherit in their environment, also after the end of their parents. It
has the marker of a session, for processes without a mark (sandbox/mark.py)."""

_SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_DEEPEST = 10_000  # parents; more is a loop, since links are read one by one

Family = dict[int, int]
"""Start times of processes by pid. They tell a process from a later one with the same pid."""


def descendants(pid: int) -> Family:
    """All processes below `pid`, by the kernel's parent links."""
    found: Family = {}
    queue = [pid]
    while queue:
        for child in children(queue.pop()):
            if child not in found and (started := start_time(child)):
                found[child] = started
                queue.append(child)
    return found


def alive(family: Family) -> set[int]:
    """The processes of the family that have not ended."""
    return {pid for pid, started in family.items() if start_time(pid) == started}


def marks(pid: int) -> set[Mark]:
    """The marks of its sessions: of its limits, else those of its environment."""
    found = mark.foreign(pid)
    return {found} if found else {mark.of(one) for one in markers(environment(pid))}


def markers(variables: Iterable[bytes]) -> list[str]:
    """The markers of sessions among these `NAME=value`s."""
    name = f"{MARKER}=".encode()
    found = (line.removeprefix(name) for line in variables if line.startswith(name))
    return [one.decode(errors="replace") for one in found]


def start_time(pid: int) -> int:
    """Clock ticks after boot at which the process started; 0 if it is gone or a zombie."""
    fields = living(pid)
    return int(fields[19]) if fields else 0


def parent(pid: int) -> int:
    """Its parent; 0 if it is gone or a zombie."""
    fields = living(pid)
    return int(fields[1]) if fields else 0


def activity(pid: int) -> tuple[str, ...]:
    """Counters that change when the process does anything: its CPU time, and the number and size of
    its reads and writes. Empty if it is gone."""
    fields = living(pid)
    try:
        counted = _read(f"/proc/{pid}/io").decode().splitlines() if fields else []
    except OSError:  # another user's
        counted = []
    return (*fields[11:13], *counted)


def living(pid: int) -> list[str]:
    """As stat(); nothing if it is a zombie."""
    fields = stat(pid)
    return [] if fields and fields[0] in "ZX" else fields


def runs(pid: int) -> bool:
    """Whether it is neither stopped nor ended."""
    return stat(pid)[:1] not in ([], ["T"], ["t"], ["Z"], ["X"])


def stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the state on; nothing if it is gone."""
    try:
        line = _read(f"/proc/{pid}/stat").decode(errors="replace")
    except OSError:
        return []
    return line.rpartition(")")[2].split()  # the name before it may contain anything


def name(pid: int) -> str:
    """The name of its program, which it may have chosen; without control characters."""
    try:
        found = _read(f"/proc/{pid}/comm").decode(errors="replace").removesuffix("\n")
    except OSError:
        return ""
    return "".join(one if one.isprintable() else "?" for one in found)


def environment(pid: int) -> list[bytes]:
    """Its `NAME=value`s; empty if it is gone, a zombie, or a process of another user."""
    try:
        return _read(f"/proc/{pid}/environ").split(b"\0")
    except OSError:
        return []


def filters(pid: int | str) -> int:
    """The number of its filters for system calls, if it cannot gain privileges; else 0. 1 before
    Linux 5.9, which does not tell the number."""
    known = _status(pid)
    confined = known.get("NoNewPrivs") == "1" and known.get("Seccomp") == "2"
    return int(known.get("Seccomp_filters", 1)) if confined else 0


def user(pid: int) -> int:
    """The id of its user; -1 if it is gone."""
    return int(_status(pid).get("Uid", "-1").split()[0])


def _status(pid: int | str) -> dict[str, str]:
    try:
        lines = _read(f"/proc/{pid}/status").decode(errors="replace").splitlines()
    except OSError:
        return {}
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def holders(*sockets: int) -> set[int]:
    """The processes with an open descriptor of a socket with one of these inodes, as far as their
    descriptors can be read. Each is read once: an agent can open thousands of sockets. Raises
    OSError if the table cannot be read now."""
    wanted, found = {f"socket:[{one}]" for one in sockets}, set[int]()
    for pid in processes():
        folder = f"/proc/{pid}/fd"
        try:
            if any(_link(f"{folder}/{name}") in wanted for name in os.listdir(folder)):
                found.add(pid)
        except OSError as error:
            if error.errno in _SCARCE:
                raise
    return found


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""  # closed meanwhile


def lineage(pid: int) -> list[int]:
    """The process, its parent and so on; empty if one of them ended meanwhile."""
    found = [pid]
    while found[-1] > 1:
        fields = stat(found[-1])
        if not fields or len(found) > _DEEPEST:
            return []
        found.append(int(fields[1]))
    return found


def processes() -> list[int]:
    """The pids of all processes."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def children(pid: int) -> list[int]:
    """Its present children, of all its threads."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [child for thread in threads for child in _children(pid, thread)]


def adopted(pid: int) -> list[int]:
    """The present children of its first thread, which gets all orphans from the kernel."""
    return _children(pid, pid)


def _children(pid: int, thread: int | str) -> list[int]:
    try:
        return [int(one) for one in _read(f"/proc/{pid}/task/{thread}/children").split()]
    except OSError:
        return []


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()
