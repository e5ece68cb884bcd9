"""The guard: it freezes the sessions that another server may continue, unless it hears from the
server again and again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bridge.process import pump, spawn
from bridge.process.cgroup import PREFIX, Cgroup, freeze_all, home
from bridge.process.guard import MOVABLE, Guard, clock
from bridge.process.process_tree import wait_for_exit
from bridge.process.spawn import Start, start_child
from tests import CHECKOUT

pytestmark = pytest.mark.skipif(home() is None, reason="no control groups of version 2")
WITHIN = 60.0
SLEEP = ["/bin/sleep", "1000"]


def until(condition: Callable[[], object]) -> None:
    """For a condition without an event."""
    deadline = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_frozen(marker: str) -> bool:
    base = home()
    assert base
    return "frozen 1" in (base / f"{PREFIX}{marker}" / "cgroup.events").read_text()


class Session:
    def __init__(self, end: str = MOVABLE) -> None:
        self.marker = f"{uuid.uuid4().hex}.{uuid.uuid4().hex}{end}"
        self.pid = start_child(Start(SLEEP, {}, "/", marker=self.marker)).pid

    def end(self) -> None:
        group = Cgroup(self.marker)
        group.kill()
        wait_for_exit(self.pid, lambda: os.waitpid(self.pid, 0)[1])
        until(lambda: not group.pids())
        group.remove()


@pytest.fixture
def session() -> Iterator[Session]:
    spawn.renew(clock() + 1000)
    one = Session()
    yield one
    one.end()
    spawn.renew(0)


def test_the_guard_freezes_at_the_deadline_and_continues_after_a_new_one(session: Session) -> None:
    assert not is_frozen(session.marker)
    pinned = Session("")
    spawn.renew(clock() + 0.1)
    until(lambda: is_frozen(session.marker))
    assert not is_frozen(pinned.marker)
    spawn.renew(clock() + 1000)
    until(lambda: not is_frozen(session.marker))
    pinned.end()


def test_a_session_that_begins_after_the_deadline_is_frozen(session: Session) -> None:
    spawn.renew(clock() - 1)
    late = Session()
    until(lambda: is_frozen(late.marker))
    spawn.renew(clock() + 1000)
    until(lambda: not is_frozen(late.marker))
    late.end()


def test_a_guard_that_is_killed_is_replaced(session: Session) -> None:
    first = spawn.launcher()
    os.kill(first, signal.SIGKILL)
    wait_for_exit(first, lambda: os.waitpid(first, 0)[1])
    spawn.renew(clock() + 0.5)
    assert spawn.launcher() != first and not is_frozen(session.marker)
    until(lambda: is_frozen(session.marker))


SERVER = """
import os, sys, time
from pathlib import Path
from bridge.process import pump, spawn
from bridge.process.guard import clock
from bridge.process.spawn import Start, start_child
marker, state = sys.argv[1:]
os.mkdir(state)
os.mkdir(state + "/sessions")
pump.attend(state)
spawn.renew(clock() + 0.7)
start_child(Start(["/bin/sleep", "1000"], {}, "/", marker=marker), Path(state) / "sessions" / "s")
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("returns", [False, True])
def test_the_guard_outlives_the_server(tmp_path: Path, returns: bool) -> None:
    """Takes a second: the deadline. A later server holds the lock of the state folder, and then the
    guard of the earlier one does nothing."""
    marker, state = f"{uuid.uuid4().hex}.x{MOVABLE}", tmp_path / "state"
    command = [sys.executable, "-c", SERVER, marker, str(state)]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(command, env=env, check=False, timeout=WITHIN)
    assert done.returncode == -signal.SIGKILL
    group = Cgroup(marker)
    try:
        if returns:
            attended = os.open(state / "attended", os.O_RDWR)
            until(lambda: pump.lock(attended))
            time.sleep(1.0)
            assert not is_frozen(marker)
            os.close(attended)
        else:
            until(lambda: is_frozen(marker))
    finally:
        group.kill()
        until(lambda: not group.pids())
        group.remove()


def test_the_sessions_of_an_earlier_server_can_be_frozen(session: Session) -> None:
    pinned = Session("")
    freeze_all(session.marker.partition(".")[0], MOVABLE)
    freeze_all(pinned.marker.partition(".")[0], MOVABLE)
    until(lambda: is_frozen(session.marker))
    assert not is_frozen(pinned.marker)
    pinned.end()


def test_a_group_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    guard, ends = Guard(), os.pipe()
    os.close(ends[0])
    previous = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    guard.add(ends[1])
    guard.renew(clock() - 1)
    assert guard.due
    guard.freeze()
    signal.signal(signal.SIGPIPE, previous)
    assert guard.groups == [] and guard.pause is None
