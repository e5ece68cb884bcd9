"""Processes from outside, by /proc."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Of all threads, ended ones included. 0 for an ended process."""
    try:
        fields = _stat(pid)
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_bytes(pid: int) -> int:
    """0 for an ended process."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * PAGE


def pss_bytes(pid: int) -> int:
    """Its memory, with its share of pages in common with others (nearly all pages of a fork). 0 for
    an ended or inaccessible process."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def with_in_command_line(mark: str) -> set[int]:
    """Processes with `mark` in their arguments."""
    return {pid for pid in _pids() if mark.encode() in _command_line(pid)}


def helpers(pid: int, mark: str) -> set[int]:
    """Descendants of the process, without the agents, which have `mark` in their arguments."""
    parents = {child: _parent(child) for child in _pids()}
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {child for child in found - {pid} if mark.encode() not in _command_line(child)}


def gone(pids: set[int], seconds: float) -> bool:
    """Wait until none of them is left, not even as a zombie."""
    deadline = time.monotonic() + seconds
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0005)
    return True


def kill(pids: set[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _parent(pid: int) -> int:
    try:
        return int(_stat(pid)[1])
    except OSError:  # it has ended in the meantime
        return 0


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
