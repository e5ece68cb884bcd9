"""Limits of control groups (process/cgroup.py). The test writes the files of the kernel itself,
except for one controller that the kernel may have. The effect of limits of memory, processes and
processor time is not tested here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.adapter import ExitStatus, explain_exit
from bridge.process import cgroup
from bridge.process.cgroup import PREFIX, Cgroup
from tests import CHECKOUT
from tests.support.cases import each

WITHIN = 60.0


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """As after mkdir in a hierarchy with the controllers."""
    folder = tmp_path / f"{PREFIX}one"
    folder.mkdir()
    for name in ("memory.max", "pids.max", "memory.events", "pids.events", "cgroup.procs"):
        (folder / name).touch()
    return folder


def test_limits_are_written_where_they_belong(group: Path) -> None:
    Cgroup("one", group.parent).limit({"memory.max": "1000", "pids.max": "7"})
    assert [(group / name).read_text() for name in ("memory.max", "pids.max")] == ["1000", "7"]


def test_a_limit_that_the_group_does_not_have_is_an_error(group: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Cgroup("one", group.parent).limit({"cpu.max": "1000 100000"})


@pytest.mark.parametrize(
    ("file", "events", "found"),
    [
        ("memory.events", "low 0\nmax 9\noom 1\noom_kill 0\noom_group_kill 3\n", None),
        ("memory.events", "low 0\noom_kill 2\n", "memory"),
        ("pids.events", "max 0\n", None),
        ("pids.events", "max 12\n", "processes"),
    ],
)
def test_the_exceeded_limit_is_reported(
    group: Path, file: str, events: str, found: str | None
) -> None:
    (group / file).write_text(events)
    assert Cgroup("one", group.parent).exceeded() == found


def test_a_group_that_is_gone_has_met_no_limit(tmp_path: Path) -> None:
    assert Cgroup("none", tmp_path).exceeded() is None


@each(
    ("status", "reason", "limit"),
    [
        (ExitStatus(-9, "", "memory"), "limit", "memory"),
        (ExitStatus(-25), "limit", "file size"),
        (ExitStatus(-9), "exit", None),
    ],
)
def test_an_exit_is_explained_with_its_reason_and_limit(
    status: ExitStatus, reason: str, limit: str | None
) -> None:
    text, word, details = explain_exit("It", status)
    assert (word, details.get("limit")) == (reason, limit)
    assert limit is None or limit in text


def test_missing_controllers_are_named(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / "cgroup.subtree_control").touch()
    assert cgroup.enable({"memory", "cpu"}, tmp_path) is None
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +memory"
    why = cgroup.enable({"memory", "pids"}, tmp_path)
    assert why and "pids are not delegated" in why and "Delegate=yes" in why


def test_without_any_limit_nothing_is_looked_at(tmp_path: Path) -> None:
    assert cgroup.enable(set(), tmp_path / "missing") is None


# --- a real one ----------------------------------------------------------------------------------

CONTROLLER = "hugetlb"  # which kernels leave to version 2 even where it has no other
LIMIT = "hugetlb.2MB.max"
CODE = """
import json, os, subprocess, sys
from pathlib import Path
from bridge.process import cgroup
from bridge.process.cgroup import Cgroup
base, controller, limit = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
def where(*before):
    argv = [*before, "cat", "/proc/self/cgroup"]
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return text.split("0::")[1].strip()
(base / "cgroup.procs").write_text(str(os.getpid()))
told = {"why": cgroup.enable({controller}, base), "own": where()}
if told["why"] is None:
    group = Cgroup("one", base)
    group.limit({limit: "4194304"})
    told["limit"] = (base / (cgroup.PREFIX + "one") / limit).read_text().strip()
    told["inside"] = where("/bin/sh", "-c", 'echo 0 >"$0"; exec "$@"', group.make())
    group.remove()
print(json.dumps(told))
"""


@pytest.fixture
def delegated() -> Iterator[Path]:
    """A group with a controller, without processes."""
    home = cgroup.home()
    if home is None or CONTROLLER not in cgroup.controllers():
        pytest.skip(f"no control groups here, or none with {CONTROLLER}")
    control = home / "cgroup.subtree_control"
    before = control.read_text().split()
    try:
        control.write_text(f"+{CONTROLLER}")
    except OSError as error:
        pytest.skip(f"{CONTROLLER} cannot be had: {error}")
    folder = home / f"coding-agent-bridge.test-{os.getpid()}"
    folder.mkdir()
    yield folder
    (folder / cgroup.SERVER).rmdir()
    folder.rmdir()
    if CONTROLLER not in before:
        control.write_text(f"-{CONTROLLER}")


def server(group: Path) -> dict[str, Any]:
    """The used resources of a process in that group."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(group), CONTROLLER, LIMIT],
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
        env={"PYTHONPATH": str(CHECKOUT)},
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_server_makes_room_for_limits_by_moving(delegated: Path) -> None:
    """The kernel gives the controllers of a group to its subgroups only if the group has no
    process."""
    told = server(delegated)
    assert (told["why"], told["limit"]) == (None, "4194304")
    assert told["own"].endswith(f"{delegated.name}/{cgroup.SERVER}")
    assert told["inside"].endswith(f"{delegated.name}/{PREFIX}one")


def test_a_group_with_other_processes_has_no_limits(delegated: Path) -> None:
    other = subprocess.Popen(["/bin/sleep", "60"])
    try:
        (delegated / "cgroup.procs").write_text(str(other.pid))
        told = server(delegated)
        assert "other processes are in that group" in told["why"]
        assert told["own"].endswith(delegated.name)  # where it was before
    finally:
        other.kill()
        other.wait(WITHIN)
