"""The process table of psutil, for systems without /proc: the same functions as in procfs.py."""

from __future__ import annotations

import contextlib

import psutil

from bridge.process.procfs import Family, markers
from bridge.sandbox import mark
from bridge.sandbox.mark import Mark

PARTS = 100  # of a second, in the times of processes


def descendants(pid: int) -> Family:
    """All processes below `pid`, by the kernel's parent links."""
    try:
        found = [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return {}
    return {child: started for child in found if (started := start_time(child))}


def alive(family: Family) -> set[int]:
    """The processes of the family that have not ended."""
    return {pid for pid, started in family.items() if start_time(pid) == started}


def marks(pid: int) -> set[Mark]:
    """The marks of its sessions, from its environment."""
    return {mark.of(one) for one in markers(environment(pid))}


def children(pid: int) -> list[int]:
    """Its present children."""
    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


adopted = children


def processes() -> list[int]:
    """The pids of all processes."""
    return psutil.pids()


def start_time(pid: int) -> int:
    """Hundredths of a second since 1970 at which the process started; 0 if it is gone or a
    zombie."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            return round(process.create_time() * PARTS)
    return 0


def parent(pid: int) -> int:
    """Its parent; 0 if it is gone or a zombie."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).ppid() if start_time(pid) else 0
    return 0


def activity(pid: int) -> tuple[str, ...]:
    """Counters that change when the process does anything: its CPU time and, where the system has
    them, its reads and writes. Empty if it is gone."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        counters: list[object] = [process.cpu_times()]
        if hasattr(process, "io_counters"):
            with contextlib.suppress(psutil.AccessDenied):
                counters.append(process.io_counters())
        return tuple(map(str, counters)) if start_time(pid) else ()
    return ()


def environment(pid: int) -> list[bytes]:
    """Its `NAME=value`s; empty if it is gone, a zombie, or a process of another user."""
    try:
        found = psutil.Process(pid).as_dict(["environ"])["environ"] or {}
    except psutil.Error:
        return []
    return [f"{name}={value}".encode() for name, value in found.items()]
