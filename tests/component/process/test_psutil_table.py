"""The two process tables (bridge/process/procfs.py and psutil_table.py) agree about the processes
of this test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.process import procfs, psutil_table
from bridge.process.procfs import MARKER
from bridge.sandbox import mark

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the other table is that of Linux")

PARENT = "exec 3<&0; /bin/sh -c 'echo ready; read line' <&3 & wait"  # `ready` after the exec()
PART = psutil_table.PARTS // os.sysconf("SC_CLK_TCK")  # psutil's unit of time in the kernel's


@pytest.fixture
def parent() -> Iterator[int]:
    """A process with one child, in a session of their own and with a marker."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={MARKER: "tables", "UTF8": "ä"},
    )
    with process:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        yield process.pid
        os.killpg(process.pid, signal.SIGKILL)


def test_both_tables_have_the_same_descendants_with_the_same_start_times(parent: int) -> None:
    expected, found = procfs.descendants(parent), psutil_table.descendants(parent)
    assert len(expected) == 1 and found.keys() == expected.keys()
    pids = [parent, *expected]
    offsets = {psutil_table.start_time(pid) - procfs.start_time(pid) * PART for pid in pids}
    assert len(offsets) == 1  # the time of the boot
    assert psutil_table.alive(found) == procfs.alive(expected) == set(expected)


def test_both_tables_have_the_same_relations(parent: int) -> None:
    (child,) = procfs.descendants(parent)
    assert psutil_table.parent(child) == procfs.parent(child) == parent
    for pid in (parent, child):
        assert set(psutil_table.environment(pid)) == set(procfs.environment(pid)) - {b""}
        assert psutil_table.marks(pid) == procfs.marks(pid) == {mark.of("tables")}
    assert psutil_table.children(parent) == procfs.children(parent) == [child]
    assert {parent, child} <= set(psutil_table.processes()) & set(procfs.processes())


def test_a_zombie_has_ended() -> None:
    process = subprocess.Popen(["/bin/true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    pid = process.pid
    for table in (procfs, psutil_table):
        assert (table.start_time(pid), table.parent(pid)) == (0, 0)
        assert table.activity(pid) == () and table.marks(pid) == set()
        assert table.environment(pid) in ([], [b""])
        assert table.descendants(pid) == {}
    process.wait()
    assert psutil_table.start_time(pid) == 0 and psutil_table.environment(pid) == []


def test_activity_changes_with_the_work_of_a_process() -> None:
    before = psutil_table.activity(os.getpid())
    Path(os.devnull).write_bytes(b"work")
    assert before != psutil_table.activity(os.getpid())
