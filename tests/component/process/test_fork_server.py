"""The start of children (process/spawn.py, process/fork_server.py): their parents, the resources
that they do not inherit, and a start during which a process ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from bridge.errors import LaunchError
from bridge.process import process_tree, spawn
from bridge.process.agent_process import AgentProcess, Hooks, ProcessLimits
from bridge.process.cgroup import Cgroup, home
from bridge.process.line_splitter import LongLine
from bridge.process.process_tree import leader, marked, reap_orphans
from bridge.process.procfs import MARKER
from bridge.process.spawn import LAUNCHES, Start, start_child
from bridge.process.spool import exit_code, who
from bridge.sandbox.confine import NOT_STARTED, REFUSED
from bridge.sandbox.landlock import abi as landlock_abi
from tests import CHECKOUT
from tests.support.children import children, launchers

WITHIN = 60.0
POLLS = {"x86_64": "7 ", "aarch64": "73 "}.get(platform.machine(), "?")  # poll, ppoll
HANGS = 2.0  # seconds: in this, what does not hang has started, on a busy machine too
AT_ONCE = 12
pytestmark = pytest.mark.skipif(not LAUNCHES, reason="there is no launcher here")
RULES: list[Any] = [
    None,
    {"profile": "none"},
    pytest.param(
        {"profile": "landlock", "scope": False},
        marks=pytest.mark.skipif(landlock_abi() < 3, reason="no Landlock here"),
    ),
]


class Child:
    """A child and its output."""

    process: AgentProcess
    folder: Path | None

    def __init__(self) -> None:
        self.lines: list[bytes | LongLine] = []
        self._heard = asyncio.Event()

    def hear(self, lines: list[bytes | LongLine]) -> None:
        self.lines += lines
        self._heard.set()

    async def line(self) -> bytes:
        async with asyncio.timeout(WITHIN):
            await self._heard.wait()
        line = self.lines[0]
        assert isinstance(line, bytes)
        return line

    async def ended(self) -> int:
        async with asyncio.timeout(WITHIN):
            return await self.process.wait()


class Starter:
    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.spools = folder is not None
        self.all: list[Child] = []
        self.options: dict[str, Any] = {}  # of Start
        self.limits = ProcessLimits(2**20)

    async def __call__(
        self, *argv: str, rules: Mapping[str, Any] | None = None, **env: str
    ) -> Child:
        child = Child()
        start = Start(argv, env, "/", rules=rules, **self.options)
        spool = child.folder = self._folder / uuid.uuid4().hex if self._folder else None
        async with asyncio.timeout(WITHIN):
            child.process = await AgentProcess.spawn(
                start, Hooks(child.hear), limits=self.limits, spool=spool
            )
        self.all.append(child)
        return child


@pytest.fixture(params=["pipes", "spool"])
async def start(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Starter]:
    """Starts children; afterwards none of them is left."""
    reap_orphans()
    starter = Starter(tmp_path / "sessions" if request.param == "spool" else None)
    yield starter
    for child in starter.all:
        async with asyncio.timeout(WITHIN):
            await child.process.stop(grace=0.1)
    assert children() == []


@contextlib.contextmanager
def standing_still() -> Iterator[psutil.Process]:
    """The launcher is stopped inside the context."""
    (one,) = launchers()
    one.suspend()
    try:
        yield one
    finally:
        with contextlib.suppress(psutil.Error):
            one.resume()


# --- whose they are ------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", RULES)
async def test_only_our_own_child_exists(start: Starter, rules: Any) -> None:
    """No interpreter, no shell: the program. For a session that is to outlive us, the launcher
    waits, which has none of its streams but the read end of its stdout."""
    begun = [start("/bin/sleep", "1000", rules=rules) for _ in range(AT_ONCE)]
    pids = {child.process.pid for child in await asyncio.gather(*begun)}
    (one,) = launchers()
    parent = one.pid if start.spools else os.getpid()
    assert {psutil.Process(pid).ppid() for pid in pids} == {parent}
    assert {child.pid for child in children()} == pids == {os.getsid(pid) for pid in pids}
    assert {child.name() for child in children()} == {"sleep"}
    held = {os.readlink(f"/proc/{one.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{one.pid}/fd")}
    assert not {path for path in held if path.rpartition("/")[2] in ("in", "out", "err", "exit")}


# --- their control group -------------------------------------------------------------------------


def launched(group: str, spool: Path | None = None, within: float = WITHIN) -> int:
    """The exit status of a program that begins in the group of this file."""
    order: dict[str, Any] = {"argv": ["/bin/true"], "env": {}, "cwd": "/", "rules": None}
    streams = spawn._files(spool, False) if spool else spawn._pipes(False)
    with streams as (pipes, file, theirs):
        pid = spawn._launch({**order, "group": group}, theirs, spool, within)
        for fd in (file, *(pipes or ())):
            if fd is not None:
                os.close(fd)
        return process_tree.wait_for_exit(pid, process_tree.reaper(pid, spool))


@pytest.mark.skipif(home() is None, reason="no control groups here")
@pytest.mark.parametrize("spools", [False, True])
def test_a_child_is_born_in_its_control_group(tmp_path: Path, spools: bool) -> None:
    """To be moved there, it would need the file, which is not there."""
    group = Cgroup(uuid.uuid4().hex)
    file = group.make().replace("procs", "none")
    assert launched(file, tmp_path / "session" if spools else None) == 0
    group.remove()


def test_a_group_in_which_no_process_can_start_is_entered(tmp_path: Path) -> None:
    """As before Linux 5.7."""
    procs = tmp_path / "cgroup.procs"
    procs.touch()
    assert launched(str(procs)) == 0
    assert procs.read_text() == "0"


@pytest.mark.parametrize("spools", [False, True])
def test_a_start_that_hangs_is_aborted(tmp_path: Path, spools: bool) -> None:
    """The start hangs at a FIFO without a reader, as on a disk that does not answer."""
    os.mkfifo(tmp_path / "cgroup.procs")
    with pytest.raises(TimeoutError, match="not started within"):
        launched(str(tmp_path / "cgroup.procs"), tmp_path / "session" if spools else None, HANGS)
    psutil.wait_procs(children(), WITHIN)
    assert children() == [] and len(launchers()) == 1  # as which it is still known


@pytest.mark.parametrize("start", ["spool"], indirect=True)
async def test_the_pid_and_the_exit_status_are_written(start: Starter) -> None:
    child = await start("/bin/sh", "-c", "read x; exit 5")
    folder = child.folder
    assert folder
    until(lambda: who(folder) is not None)
    assert leader(folder) == child.process.pid and exit_code(folder) is None
    child.process.write(b"\n")
    assert await child.ended() == 5
    until(lambda: leader(folder) is None)
    assert exit_code(folder) == 5


STOPPED = """
import ctypes, os, signal
ctypes.CDLL(None).ptrace(0, 0, None, None)  # PTRACE_TRACEME
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.parametrize("start", ["spool"], indirect=True)
async def test_a_program_that_makes_the_launcher_its_tracer_has_not_ended(start: Starter) -> None:
    """The kernel then reports its stops to the launcher as if they were ends. It is killed."""
    child = await start(sys.executable, "-I", "-S", "-c", STOPPED)
    assert await child.ended() == -signal.SIGKILL
    assert not psutil.pid_exists(child.process.pid)


@pytest.mark.parametrize("pidfd", [True, False], ids=["pidfd", "thread"])
async def test_a_missing_exit_status_counts_as_killed(
    start: Starter, monkeypatch: pytest.MonkeyPatch, pidfd: bool
) -> None:
    """The process that must write it hangs. A child on pipes is a child of the server, which needs
    no other process."""
    start.limits = ProcessLimits(2**20, exit_status=0.1)
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    child = await start("/bin/sh", "-c", "read x; exit 5")
    with standing_still():
        child.process.write(b"\n")
        assert await child.ended() == (-signal.SIGKILL if start.spools else 5)
    until(lambda: children() == [])


@pytest.mark.parametrize("dead", [False, True], ids=["alive", "dead"])
async def test_with_the_launcher_killed_its_children_are_ours(start: Starter, dead: bool) -> None:
    """Neither they nor how they end is lost with it."""
    child = await start("/bin/sh", "-c", "read x; exit 5")
    (one,) = launchers()
    if dead:
        one.suspend()
        child.process.write(b"\n")
        program = Path(f"/proc/{child.process.pid}/stat")
        until(lambda: not program.exists() or ") Z " in program.read_text())
    one.kill()
    until(lambda: one.status() == psutil.STATUS_ZOMBIE)
    assert one in launchers() and one not in children()
    one.wait(WITHIN)
    child.process.write(b"\n")
    assert await child.ended() == 5


async def test_a_launcher_stays_until_its_last_child_has_ended(start: Starter) -> None:
    """The server closes its side of the socket, as at its end."""
    child = await start("/bin/sh", "-c", "read x; exit 5")
    (one,) = launchers()
    ours = spawn._launcher
    os.close(ours._control)
    ours._control = -1
    if start.spools:
        with pytest.raises(psutil.TimeoutExpired):
            one.wait(HANGS)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            one.send_signal(number)
    child.process.write(b"\n")
    assert await child.ended() == 5
    one.wait(WITHIN)


def until(holds: Callable[[], object]) -> None:
    """No event reports the actions of other processes."""
    deadline = os.times().elapsed + WITHIN
    while not holds():
        assert os.times().elapsed < deadline
        os.sched_yield()


# --- what they are not given ---------------------------------------------------------------------

LOOK = """
import json, os, signal
fds = sorted(int(fd) for fd in os.listdir("/proc/self/fd"))
ignored = [line for line in open("/proc/self/status") if line.startswith(("SigIgn", "SigBlk"))]
print(json.dumps([fds[:-1], dict(os.environ), [int(one.split()[1], 16) for one in ignored]]))
"""
PYTHON_IGNORES = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)


@pytest.mark.parametrize("rules", RULES)
async def test_neither_a_descriptor_nor_a_variable_of_another_session_is_handed_on(
    start: Starter, rules: Any
) -> None:
    with open(os.devnull, "rb") as inheritable:  # noqa: ASYNC230
        os.set_inheritable(inheritable.fileno(), True)
        argv = (sys.executable, "-I", "-S", "-c", LOOK)
        begun = [start(*argv, rules=rules, OWN=str(number)) for number in range(AT_ONCE)]
        all_ = await asyncio.gather(*begun)
    for number, child in enumerate(all_):
        await child.ended()
        fds, env, (blocked, ignored) = json.loads(await child.line())
        assert fds == [0, 1, 2]
        assert {**env, "LC_CTYPE": ""} == {"OWN": str(number), MARKER: env[MARKER], "LC_CTYPE": ""}
        assert (blocked, ignored & ~PYTHON_IGNORES) == (0, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads the memory of others")
async def test_the_launcher_does_not_keep_the_environment_of_a_session(start: Starter) -> None:
    half = uuid.uuid4().hex
    child = await start("/bin/sleep", "1000", SECRET=f"{half}{half}")
    (one,) = launchers()
    wanted = f"{half}{half}".encode()
    assert not in_memory(one.pid, wanted)
    assert in_memory(child.process.pid, wanted)


def in_memory(pid: int, wanted: bytes) -> bool:
    found = False
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for line in maps:
            begin, end = (int(one, 16) for one in line.split()[0].split("-"))
            if "r" in line.split()[1] and "[v" not in line:
                memory.seek(begin)
                found = found or wanted in memory.read(end - begin)
    return found


# --- what goes wrong -----------------------------------------------------------------------------


async def test_a_confinement_error_is_on_stderr_and_nothing_runs(start: Starter) -> None:
    child = await start("/bin/true", rules={"profile": "chroot"})
    assert await child.ended() == REFUSED
    assert child.process.stderr.startswith(NOT_STARTED.encode())


async def test_a_directory_that_is_another_one_by_now_is_none(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/")
    with pytest.raises(LaunchError, match="the directory was replaced"):
        await AgentProcess.spawn(
            Start(["/bin/true"], {}, str(tmp_path / "link")), Hooks(), limits=ProcessLimits(100)
        )
    assert children() == []


@pytest.mark.parametrize("meanwhile", [False, True])
async def test_a_launcher_that_has_ended_is_replaced(start: Starter, meanwhile: bool) -> None:
    assert await (await start("/bin/true")).ended() == 0
    with standing_still() as one:
        begun = asyncio.create_task(start("/bin/echo", "here")) if meanwhile else None
        await asyncio.sleep(0)
        one.kill()
    child = await (begun or start("/bin/echo", "here"))
    assert await child.ended() == 0
    assert child.lines == [b"here"]
    assert one not in launchers()


@pytest.mark.parametrize("variables", [0, 20], ids=["small", "more than the socket takes"])
async def test_a_launcher_that_hangs_is_replaced_and_its_late_children_do_not_run(
    start: Starter, tmp_path: Path, variables: int
) -> None:
    large = {f"V{number}": "x" * 60_000 for number in range(variables)}
    assert await (await start("/bin/true")).ended() == 0
    start.options["within"] = HANGS
    with standing_still() as one:
        program = ("/bin/sh", "-c", f"echo here; echo x >>{tmp_path}/witness")
        child = await start(*program, rules=None, **large)
        assert await child.ended() == 0
        (other,) = set(launchers()) - {one}
    assert child.lines == [b"here"]
    ended = os.pidfd_open(one.pid)
    assert select.select([ended], [], [], WITHIN)[0] == [ended]
    os.close(ended)
    late = set(psutil.Process().children(recursive=True)) - {other}
    psutil.wait_procs(late, WITHIN)
    assert (tmp_path / "witness").read_text() == "x\n"
    assert launchers() == [other]


async def test_an_interpreter_that_needs_its_libraries_finds_them(
    monkeypatch: pytest.MonkeyPatch, start: Starter, tmp_path: Path
) -> None:
    """Neither the launcher nor its children get any other variable of the server."""
    for one in launchers():
        one.kill()
        one.wait(WITHIN)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    child = await start("/usr/bin/env")
    assert await child.ended() == 0
    assert not any(b"LD_LIBRARY_PATH" in line for line in child.lines if isinstance(line, bytes))
    (one,) = launchers()
    assert one.environ() == {"LD_LIBRARY_PATH": str(tmp_path)}


async def test_a_start_that_is_cancelled_before_it_is_begun_leaves_nothing(
    start: Starter, tmp_path: Path
) -> None:
    assert await (await start("/bin/true")).ended() == 0
    before = len(os.listdir("/proc/self/fd"))
    with standing_still():
        begun = asyncio.create_task(start("/bin/sleep", "1000"))
        await asyncio.sleep(0)
        begun.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await begun
    assert children() == []
    assert len(os.listdir("/proc/self/fd")) == before


SERVER = """
import sys
from pathlib import Path
from bridge.process.spawn import Start, start_child
marker, witness, spool = sys.argv[1:]
start_child(Start(["/bin/true"], {}, "/"))
print("ready", flush=True)
sys.stdin.readline()
argv = ["/bin/sh", "-c", "echo ran >" + witness + "; sleep 1000"]
start_child(Start(argv, {}, "/", marker=marker), Path(spool) if spool else None)
"""


@pytest.mark.parametrize("spools", [False, True])
def test_a_server_that_is_killed_in_the_middle_of_a_start_leaves_nothing(
    tmp_path: Path, spools: bool
) -> None:
    marker, witness = uuid.uuid4().hex, tmp_path / "witness"
    spool = str(tmp_path / "session") if spools else ""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, marker, str(witness), spool],
        env={"PYTHONPATH": str(CHECKOUT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdin and server.stdout
    with server.stdin, server.stdout:
        assert server.stdout.readline() == b"ready\n"
        (one,) = launchers(server.pid)
        one.suspend()
        server.stdin.write(b"\n")
        server.stdin.flush()
        waits_for_an_answer(server.pid)
        server.kill()
        server.wait(WITHIN)
        ended = os.pidfd_open(one.pid)
        one.resume()
        assert select.select([ended], [], [], WITHIN)[0] == [ended]
        os.close(ended)
    assert not marked(marker) and not witness.exists()


def waits_for_an_answer(pid: int) -> None:
    """No event reports the actions of another process."""
    deadline = os.times().elapsed + WITHIN
    while not Path(f"/proc/{pid}/wchan").read_text().startswith(("poll_schedule", "do_poll")):
        if Path(f"/proc/{pid}/syscall").read_text().startswith(POLLS):
            return
        assert os.times().elapsed < deadline
        os.sched_yield()


# --- where there is none -------------------------------------------------------------------------


@pytest.mark.parametrize("rules", [None, {"profile": "none", "limits": {"nofile": 77}}])
async def test_without_a_launcher_a_child_is_started_by_its_own_means(
    rules: Any,
) -> None:
    start = Starter(None)
    start.options["by_launcher"] = False
    child = await start("/bin/sh", "-c", "ulimit -n; umask; read x; exit $x", rules=rules)
    child.process.write(b"4\n")
    assert await child.ended() == 4
    assert child.lines[1] == b"0077" and (child.lines[0] == b"77") is bool(rules)
    await child.process.stop()
    with pytest.raises(LaunchError, match="cannot start /nowhere: No such file"):
        await start("/nowhere")
    assert children() == []


def test_without_stdin_no_pipe_is_made() -> None:
    child = start_child(Start(["/bin/true"], {}, "/", stdin=False))
    assert child.pipes and child.pipes[0] is None
    for fd in child.pipes[1:]:
        os.close(fd)
    assert os.waitpid(child.pid, 0)[1] == 0
