"""The filter for system calls on each machine, by an interpreter (tests/support/bpf.py), against
the table of all calls (tests/support/system_calls.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from errno import EAFNOSUPPORT, ENOSYS, EOPNOTSUPP, EPERM

import pytest

from bridge.sandbox import seccomp, system_calls
from bridge.sandbox.system_calls import MACHINES
from tests.support import bpf
from tests.support.system_calls import ALWAYS, NEVER, NUMBERS, REASONS, VERDICTS

PID, POINTER = 4711, 0x7FFF_0000_0000  # the pointer has only an upper half
# Among them are allowed and refused arguments of each call that the filter looks at.
ARGUMENTS = (
    *((0,) * 6, (1,) * 6, (PID,) * 6, (2**64 - 1,) * 6, (0x7E028080,) * 6, (0o6777,) * 6),
    *((0, 1024), (1, 0), (1, 0x5412), (0, 10, POINTER), (PID, 7, 0, POINTER), (10, POINTER)),
    *((2, 1), (0, 0, 0x20000000), (0, 0, 0, 0x20000000)),
)
each_machine = pytest.mark.parametrize("machine", list(MACHINES))


class Filter:
    """The filter of one machine."""

    def __init__(self, machine: str, program: bytes) -> None:
        self.arch = MACHINES[machine]
        self.numbers = NUMBERS[machine]
        self.program = program

    def __call__(self, name: str, *arguments: int) -> int:
        return bpf.errno_of(self.program, self.arch, self.numbers[name], arguments)


@pytest.fixture(params=list(MACHINES))
def denied(request: pytest.FixtureRequest) -> Filter:
    """The filter of landlock with default settings."""
    return Filter(request.param, seccomp.program(False, machine=request.param))


# --- the table -----------------------------------------------------------------------------------


def test_each_call_has_one_reason() -> None:
    named = Counter(name for _, names in REASONS.values() for name in names.split())
    assert not [name for name, times in named.items() if times > 1]
    assert set(named) == NUMBERS["x86_64"].keys() | NUMBERS["aarch64"].keys()


@each_machine
def test_the_table_is_complete_up_to_the_newest_call(machine: str) -> None:
    assert max(NUMBERS[machine].values()) == system_calls.LAST
    assert len(set(NUMBERS[machine].values())) == len(NUMBERS[machine])


def test_the_numbers_of_the_filter_are_those_of_the_table() -> None:
    """The two are typed and generated from headers, each on its own."""
    for column, machine in enumerate(MACHINES):
        for name, numbers in system_calls.NUMBERS.items():
            assert numbers[column] == NUMBERS[machine].get(name), name


@each_machine
def test_the_filter_does_what_the_table_says(machine: str) -> None:
    denied = Filter(machine, seccomp.program(False, machine=machine))
    for name in denied.numbers:
        errors = {denied(name, *given) for given in ARGUMENTS}
        if VERDICTS[name] == NEVER:
            assert errors == {0}, name
        elif VERDICTS[name] == ALWAYS:
            assert errors in ({EPERM}, {ENOSYS}), name
        else:
            assert 0 in errors and len(errors) > 1, name


@each_machine
def test_unknown_calls_and_other_machines_do_not_exist(machine: str) -> None:
    program = seccomp.program(False, machine=machine)
    arch = MACHINES[machine]
    for number in (system_calls.LAST + 1, 1000, 0x40000000, 0x40000000 + 59, 0xFFFFFFFF):
        assert bpf.errno_of(program, arch, number) == ENOSYS
    for other in (*(one for one in MACHINES.values() if one != arch), 0x40000003, 0x40000028):
        assert bpf.errno_of(program, other, NUMBERS[machine]["getpid"]) == ENOSYS


@each_machine
def test_the_filter_is_small_enough_for_the_kernel(machine: str) -> None:
    for unix, system_v, namespaces in _kinds():
        assert len(seccomp.program(unix, system_v, namespaces, machine)) // 8 < 4096


def _kinds() -> Iterator[tuple[bool, bool, bool]]:
    for bits in range(8):
        yield bool(bits & 1), bool(bits & 2), bool(bits & 4)


# --- by their arguments --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    (
        *("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"),
        *("migrate_pages", "move_pages"),
    ),
)
def test_only_the_caller_is_scheduled(denied: Filter, name: str) -> None:
    assert denied(name, 0, 8, POINTER) == 0
    assert denied(name, 1 << 32, 8) == 0  # the kernel looks at 32 bits, too
    for pid in (1, PID, -1):
        assert denied(name, pid, 8, POINTER) == EPERM


@pytest.mark.parametrize(("name", "process"), [("setpriority", 0), ("ioprio_set", 1)])
def test_only_the_caller_has_another_priority(denied: Filter, name: str, process: int) -> None:
    for kind in range(4):
        assert denied(name, kind, 0, 5) == (0 if kind == process else EPERM)
        assert denied(name, kind, PID, 5) == EPERM
    assert denied(name, process | 1 << 32, 0, 5) == 0


def test_limits(denied: Filter) -> None:
    files, mark = 7, seccomp.SESSION_MARK
    for new in (1, POINTER, POINTER | 4096):
        assert denied("prlimit64", 0, files, new) == 0
        assert denied("prlimit64", PID, files, new) == EPERM
        assert denied("prlimit64", -1, files, new) == EPERM
        assert denied("prlimit64", 0, mark, new) == EPERM
        assert denied("prlimit64", 0, mark | 1 << 32, new) == EPERM
        assert denied("prlimit64", 1 << 32, mark, new) == EPERM
    for pid in (0, PID):  # reading
        assert denied("prlimit64", pid, files, 0, POINTER) == 0
        assert denied("prlimit64", pid, mark, 0, POINTER) == 0
    assert denied("setrlimit", files, POINTER) == 0
    assert denied("setrlimit", mark, POINTER) == EPERM
    assert denied("setrlimit", mark | 1 << 32, POINTER) == EPERM


def test_namespaces(denied: Filter) -> None:
    signalled, thread = 17, 0x3D0F00
    for kind in (0x20000, *(1 << bit for bit in range(25, 31))):
        assert denied("clone", kind | signalled) == EPERM
        assert denied("unshare", kind) == EPERM
    assert denied("unshare", 0x80) == EPERM  # time
    assert denied("unshare", 0x100000) == EPERM  # an empty namespace of mounts, Linux 7.1
    assert denied("unshare", 0x200 | 0x400 | 0x40000) == 0
    assert denied("clone", thread) == denied("clone", signalled) == 0
    assert denied("clone", 0x4111) == 0  # vfork
    assert denied("clone", 0x8000 | signalled) == EPERM  # a child of the launcher
    assert denied("setns", 3, 0) == EPERM


def test_commands_of_descriptors(denied: Filter) -> None:
    for command in range(1024, 1050):
        expected = EPERM if command in (1024, 1026, 1040) else 0
        assert denied("fcntl", 3, command, 1) == expected
        assert denied("fcntl", 3, command | 1 << 32, 1) == expected
    for command in range(40):
        assert denied("fcntl", 3, command) == 0
    for request in (0x5412, 0x541C, 0x40086602, 0x401C5820, 0x800C6613, 0x40806685, 0x5000940E):
        assert denied("ioctl", 3, request) == EPERM
    for request in (0x5401, 0x5421, 0x541B, 0x5413, 0x5450, 0x80086601, 0x40049409):
        assert denied("ioctl", 3, request) == 0


def test_modes_sockets_and_messages(denied: Filter) -> None:
    for mode in (0o4755, 0o2755):
        assert denied("fchmod", 3, mode) == denied("mkdirat", 3, 0, mode) == EPERM
        assert denied("openat", 3, 0, 0o101, mode) == EPERM
        assert denied("openat", 3, 0, 0, mode) == 0  # without O_CREAT there is no mode
    assert denied("fchmod", 3, 0o755) == denied("openat", 3, 0, 0o101, 0o644) == 0
    assert denied("sendto", 3, 0, 0, 0x20000000) == EOPNOTSUPP
    assert denied("sendto", 3, 0, 0, 0x4000) == 0
    assert denied("socket", 1, 1) == denied("socketpair", 1, 2) == EAFNOSUPPORT
    assert denied("socket", 2, 1) == denied("socketpair", 1, 1) == 0


# --- other profiles ------------------------------------------------------------------------------


@each_machine
def test_system_v_can_be_allowed(machine: str) -> None:
    allowed = Filter(machine, seccomp.program(False, True, machine=machine))
    denied = Filter(machine, seccomp.program(False, machine=machine))
    calls = [name for name in denied.numbers if name.startswith(("shm", "sem", "msg", "mq_"))]
    held = {"shmdt", "mq_getsetattr", "mq_notify", "mq_timedsend", "mq_timedreceive"}
    assert {name for name in calls if denied(name) == ENOSYS} == {*calls} - held
    assert not [name for name in calls if allowed(name)]


@each_machine
def test_bubblewrap_makes_namespaces_and_its_program_does_not(machine: str) -> None:
    outer = Filter(machine, seccomp.program(False, True, True, machine))
    inner = Filter(machine, seccomp.inside(machine))
    namespaces = 0x7E020000
    for call in ("clone", "unshare", "setns"):
        assert outer(call, namespaces) == 0
        assert inner(call, namespaces) == EPERM
    assert outer("clone", 0x8000) == outer("fcntl", 3, 1024) == EPERM
    assert outer("prlimit64", PID, 7, 1) == EPERM
    assert inner("clone", 17) == 0
