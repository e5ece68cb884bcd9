"""What a confined program can do to another process of its user: nothing, by any system call.

The filter is tested call by call, for each machine, in tests/unit/sandbox/test_seccomp.py. These
tests run it in this kernel, as root and as another user; root's processes are protected from each
other by capabilities in part, those of another user are not.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bridge.sandbox.seccomp import SESSION_MARK
from tests.support.confined import CONFINED, command
from tests.support.ordinary_user import command as as_ordinary_user
from tests.support.system_calls import ALWAYS, NUMBERS, REASONS

User = Callable[..., Sequence[str]]
"""Makes the command that runs a program as a certain user."""
WITHIN = 60.0
ISOLATED = ("-I", "-S", "-c")
CALLS = NUMBERS.get(os.uname().machine, {})
# Prints the result of each call of its arguments, as [name, result] or [name, error].
CALL = """
import ctypes, errno, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(name, number, *given):
    made = [ctypes.c_long(one) if isinstance(one, int) else ctypes.create_string_buffer(
        bytes.fromhex(one), 128) for one in given]
    if libc.syscall(ctypes.c_long(number), *made, *[ctypes.c_long(0)] * (6 - len(made))) < 0:
        return [name, errno.errorcode[ctypes.get_errno()]]
    return [name, "worked"]
print(json.dumps([call(*one) for one in json.loads(sys.argv[1])]))
"""


def itself(*program: str) -> Sequence[str]:
    return program


def confined(
    rules: dict[str, Any], code: str, *arguments: str, user: User = itself, **options: Any
) -> str:
    """The output of a program under these rules; it must succeed."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        user(*command(rules, sys.executable, *ISOLATED, code, *arguments)),
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def called(rules: dict[str, Any], *calls: tuple[Any, ...], user: User = itself) -> dict[str, str]:
    """The results of these system calls: a label, the name, and arguments; bytes are behind a
    pointer."""
    wanted = [
        (label, CALLS[name], *(one.hex() if isinstance(one, bytes) else one for one in given))
        for label, name, *given in calls
    ]
    return dict(json.loads(confined(rules, CALL, json.dumps(wanted), user=user)))


@pytest.fixture(params=["root", "user"])
def user(request: pytest.FixtureRequest, tmp_path: Path) -> User:
    """The user of the program: root, or an ordinary one."""
    if request.param == "user":
        return partial(as_ordinary_user, tmp_path)
    return itself if os.geteuid() == 0 else pytest.skip("needs root")


@pytest.fixture
def foreign(user: User) -> Iterator[int]:
    """The pid of a process of that user, outside; it has blocked all signals."""
    code = "import signal; signal.pthread_sigmask(0, range(1, 64)); print(flush=True); input()"
    pipe = subprocess.PIPE
    argv = user(sys.executable, *ISOLATED, code)
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe) as process:
        assert process.stdin and process.stdout
        process.stdout.readline()
        yield process.pid
        process.stdin.close()


@pytest.mark.parametrize("profile", CONFINED)
def test_no_call_changes_a_foreign_process(profile: str, user: User, foreign: int) -> None:
    one, limits = (1).to_bytes(8, "little"), (100).to_bytes(8, "little") * 2
    attributes = (48).to_bytes(4, "little") + (3).to_bytes(4, "little") + bytes(40)  # SCHED_BATCH
    before, owner = _state(foreign), os.stat(f"/proc/{foreign}").st_uid
    calls = [
        *((f"limit {number}", "prlimit64", foreign, number, limits) for number in range(16)),
        ("priority", "setpriority", 0, foreign, 19),
        ("priority of a group", "setpriority", 1, os.getpgid(foreign), 19),
        ("priority of a user", "setpriority", 2, owner, 19),
        ("policy", "sched_setscheduler", foreign, 3, bytes(4)),
        ("parameters", "sched_setparam", foreign, bytes(4)),
        ("attributes", "sched_setattr", foreign, attributes),
        ("processors", "sched_setaffinity", foreign, 8, one),
        ("disk", "ioprio_set", 1, foreign, 3 << 13),
        ("disk of a group", "ioprio_set", 2, os.getpgid(foreign), 3 << 13),
        ("disk of a user", "ioprio_set", 3, owner, 3 << 13),
        ("nodes", "migrate_pages", foreign, 1, one, one),
        ("pages", "move_pages", foreign),
    ]
    found = called({"profile": profile}, *calls, user=user)
    assert found == dict.fromkeys(found, "EPERM")
    assert _state(foreign) == before


def _state(pid: int) -> tuple[str, object]:
    nice = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[15:18]
    return Path(f"/proc/{pid}/limits").read_text(), (nice, os.sched_getaffinity(pid))


@pytest.mark.parametrize("profile", CONFINED)
def test_it_changes_itself(profile: str, user: User) -> None:
    """As nice, taskset, ionice, chrt and ulimit do."""
    one, limits = (1).to_bytes(8, "little"), (100).to_bytes(8, "little") * 2
    found = called(
        {"profile": profile},
        ("limits", "prlimit64", 0, 7, limits),
        ("old limits", "setrlimit", 7, limits),
        ("those of others", "prlimit64", 1, 7, 0, limits),
        ("priority", "setpriority", 0, 0, 19),
        ("policy", "sched_setscheduler", 0, 3, bytes(4)),
        ("processors", "sched_setaffinity", 0, 8, one),
        ("disk", "ioprio_set", 1, 0, 3 << 13),
        ("files", "unshare", 0x400),
        user=user,
    )
    assert found.pop("those of others") in ("worked", "EPERM")  # the kernel asks for the user
    assert found == dict.fromkeys(found, "worked")


@pytest.mark.parametrize("profile", CONFINED)
def test_calls_that_are_never_allowed(profile: str) -> None:
    """With the errors of the table."""
    expected: dict[str, str] = {}
    for why, (verdict, names) in REASONS.items():
        if verdict == ALWAYS and not (profile == "bwrap" and "`bwrap`" in why):
            error = why.partition(".")[0].partition(",")[0]
            expected |= {name: error for name in names.split() if name in CALLS}
    calls = ((name, name, -1, -1, -1) for name in expected)
    assert called({"profile": profile}, *calls) == expected


@pytest.mark.parametrize("profile", CONFINED)
def test_namespaces_are_refused(profile: str, user: User) -> None:
    kinds = [0x80, 0x20000, *(1 << bit for bit in range(25, 31))]
    calls: list[tuple[Any, ...]] = [(f"unshare {kind:x}", "unshare", kind) for kind in kinds]
    calls += [(f"clone {kind:x}", "clone", kind | 17) for kind in kinds[1:]]
    calls += [("child of the parent", "clone", 0x8000 | 17), ("setns", "setns", 0, 0)]
    found = called({"profile": profile}, *calls, user=user)
    assert found == dict.fromkeys(found, "EPERM")


OWNED = """
import fcntl, os, sys
theirs, ours = os.pipe()
fcntl.fcntl(theirs, 8, int(sys.argv[1]))  # F_SETOWN
fcntl.fcntl(theirs, 10, 12)  # F_SETSIG: SIGUSR2
fcntl.fcntl(theirs, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
os.write(ours, b"x")
"""


@pytest.mark.parametrize("profile", ["none", *CONFINED])
def test_the_owner_of_a_descriptor_gets_no_signal(profile: str, user: User, foreign: int) -> None:
    rules = {"profile": profile}
    if profile == "bwrap":  # where this pid does not exist, so that it cannot be the owner
        with pytest.raises(AssertionError, match="ProcessLookupError"):
            confined(rules, OWNED, str(foreign), user=user)
    else:
        confined(rules, OWNED, str(foreign), user=user)
    pending = re.findall(r"Pnd:\s*(\w+)", Path(f"/proc/{foreign}/status").read_text())
    assert any(int(one, 16) for one in pending) is (profile == "none")


LEASE = """
import errno, fcntl, sys
for command, given in ((1024, 0), (1024, 1), (1040, bytes(8)), (1026, 1)):
    with open(sys.argv[1], "rb") as file:
        try:
            fcntl.fcntl(file, command, given)
            print("worked")
        except OSError as error:
            print(errno.errorcode[error.errno])
"""


@pytest.mark.parametrize("profile", CONFINED)
def test_leases_are_refused(profile: str, workspace: Path) -> None:
    """Also on its own files: a lease on one that others open lets them wait for 45 s."""
    (workspace / "file").touch()
    rules = {"profile": profile, "write": [str(workspace)]}
    assert confined(rules, LEASE, str(workspace / "file")).split() == ["EPERM"] * 4


@pytest.fixture
def segment() -> Iterator[int]:
    """The id of a segment of System V memory, outside."""
    libc = ctypes.CDLL(None, use_errno=True)
    made = libc.shmget(0, ctypes.c_size_t(4096), 0o1600)
    if made < 0 and ctypes.get_errno() == errno.ENOSYS:
        pytest.skip("this kernel has no System V memory")
    assert made >= 0
    yield made
    libc.shmctl(made, 0, None)


@pytest.mark.parametrize("profile", CONFINED)
def test_system_v_memory(profile: str, segment: int) -> None:
    """bubblewrap makes an empty namespace for it; landlock has none."""
    calls = (("attach", "shmat", segment), ("make", "shmget", 0, 4096, 0o600))
    refused = {"attach": "ENOSYS", "make": "ENOSYS"}
    private = {"attach": "EINVAL", "make": "worked"}
    found = called({"profile": profile}, *calls)
    assert found == (refused if profile == "landlock" else private)


def test_system_v_memory_can_be_allowed(segment: int) -> None:
    found = called({"profile": "landlock", "system_v": True}, ("attach", "shmat", segment))
    assert found == {"attach": "worked"}


MARKED = """
import resource, subprocess, sys
number, value = map(int, sys.argv[1:])
for new in ((value, value), (0, value), (0, 0)):
    try:
        resource.setrlimit(number, new)
        print("changed")
    except (OSError, ValueError):
        print("refused")
    try:
        resource.prlimit(0, number, new)
        print("changed")
    except (OSError, ValueError):
        print("refused")
print(resource.getrlimit(number), flush=True)
subprocess.run(["/bin/sh", "-c", "grep locks /proc/self/limits"])
"""


@pytest.mark.parametrize("profile", CONFINED)
def test_the_mark_of_a_session_stays(profile: str) -> None:
    mark = 4711

    def set_mark() -> None:
        resource.setrlimit(SESSION_MARK, (mark, mark))

    rules = {"profile": profile, "limits": {"core": 0}}
    code, given = MARKED, (str(SESSION_MARK), str(mark))
    *tried, own, child = confined(rules, code, *given, preexec_fn=set_mark).splitlines()
    assert tried == ["refused"] * 6
    assert own == f"({mark}, {mark})"
    assert re.fullmatch(rf"Max file locks +{mark} +{mark} +locks *", child)
