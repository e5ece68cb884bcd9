"""A child on pipes, with real children that misbehave. psutil is the independent witness."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from bridge.errors import LaunchError
from bridge.process import cgroup, process_tree
from bridge.process.agent_process import TERM_GRACE, AgentProcess, Hooks, ProcessLimits
from bridge.process.line_splitter import LineSplitter, LongLine
from bridge.process.pipes import STDERR_TAIL
from bridge.process.process_tree import kill_descendants, reap_orphans
from bridge.process.procfs import MARKER
from bridge.process.spawn import Start
from bridge.sandbox import mark
from tests import CHECKOUT
from tests.support.cases import each
from tests.support.children import children, launchers
from tests.support.liveness import Liveness, alive, listening
from tests.support.misbehaving import PROGRAM

WITHIN = 60.0
LIMITS = ProcessLimits(2**20)
NO_LIMITS: Mapping[str, str] = {}  # of the control group
Lines = list[bytes | LongLine]


# --- lines -------------------------------------------------------------------------------------


def split(limit: int, *chunks: bytes) -> Lines:
    splitter = LineSplitter(limit)
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.end()


@each(
    ("stream", "lines"),
    [
        (b"", []),
        (b"a\nb\n", [b"a", b"b"]),
        (b"\n\n", [b"", b""]),
        (b"no newline at the end", [b"no newline at the end"]),
        (b"a\r\nb\rc\n", [b"a\r", b"b\rc"]),
        ("a\u2028b\u2029c\x85d\x0b\x0ce\n".encode(), ["a\u2028b\u2029c\x85d\x0b\x0ce".encode()]),
        (b"\xff\xfe\x00\n", [b"\xff\xfe\x00"]),
    ],
)
def test_lines_end_at_newlines_only_however_they_arrive(stream: bytes, lines: Lines) -> None:
    assert split(1000, stream) == lines
    assert split(1000, *(stream[n : n + 1] for n in range(len(stream)))) == lines
    middle = len(stream) // 2
    assert split(1000, stream[:middle], stream[middle:]) == lines


@each("size", [1, 3, 7, 8, 9, 100])
def test_a_line_over_the_limit_is_cut_and_has_its_full_length(
    size: int,
) -> None:
    long = LongLine(b"abcdefgh", 9)
    stream = b"1\nabcdefgh\nabcdefghi\n2\nabcdefghi\nabcdefghi"
    chunks = [stream[n : n + size] for n in range(0, len(stream), size)]
    assert split(8, *chunks) == [b"1", b"abcdefgh", long, b"2", long, long]


def test_the_splitter_keeps_at_most_the_limit_of_a_long_line() -> None:
    splitter = LineSplitter(1000)
    for _ in range(1000):
        assert splitter.feed(b"x" * 1000) == []
    assert splitter.feed(b"\nnext\n") == [LongLine(b"x" * 1000, 1_000_000), b"next"]


# --- children ----------------------------------------------------------------------------------


class Spawned:
    """A child and its output."""

    process: AgentProcess

    def __init__(self) -> None:
        self.lines: Lines = []
        self.exits: list[int] = []
        self.lines_at_exit = -1
        self._heard = asyncio.Event()

    def on_lines(self, lines: Lines) -> None:
        self.lines += lines
        self._heard.set()

    def on_exit(self, code: int) -> None:
        self.exits.append(code)
        self.lines_at_exit = len(self.lines)

    async def line(self) -> bytes | LongLine:
        """The first line, when it is there."""
        async with asyncio.timeout(WITHIN):
            await self._heard.wait()
        return self.lines[0]

    async def ended(self) -> int:
        async with asyncio.timeout(WITHIN):
            return await self.process.wait()

    async def stop(self, grace: float = 5.0) -> str:
        async with asyncio.timeout(WITHIN):
            return await self.process.stop(grace)


class Spawner:
    """`folder`: where the children have their streams in files; None for pipes."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.spools = folder is not None
        self.all: list[Spawned] = []

    async def __call__(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        stdin: bool = False,
        limits: ProcessLimits = LIMITS,
        group: Mapping[str, str] | None = NO_LIMITS,
    ) -> Spawned:
        child = Spawned()
        async with asyncio.timeout(WITHIN):
            child.process = await AgentProcess.spawn(
                Start(argv, env or {}, cwd, stdin, group=group),
                Hooks(child.on_lines, child.on_exit),
                limits=limits,
                spool=self._folder / uuid.uuid4().hex if self._folder else None,
            )
        self.all.append(child)
        return child

    async def misbehaving(self, behaviour: str, live: Liveness, **options: Any) -> Spawned:
        return await self(sys.executable, PROGRAM, behaviour, live.path, **options)

    async def python(self, program: str, **options: Any) -> Spawned:
        return await self(sys.executable, "-I", "-S", "-c", program, **options)


@pytest.fixture(params=["pipes", "spool"])
async def spawn(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Spawner]:
    """Starts children; afterwards no child and no descendant is left."""
    reap_orphans()  # of servers that other tests ended by force
    spawner = Spawner(tmp_path if request.param == "spool" else None)
    yield spawner
    for child in spawner.all:
        await child.stop(grace=0.1)
    left = children()
    for process in left:  # so that they fail no other test
        process.kill()
        process.wait(WITHIN)
    assert left == []


@pytest.fixture
async def live() -> AsyncIterator[Liveness]:
    async with listening() as live:
        yield live


async def test_lines_and_the_exit_code_arrive_in_order(spawn: Spawner) -> None:
    child = await spawn("/bin/sh", "-c", "echo one; echo two; printf three; exit 7")
    assert await child.ended() == 7
    assert child.lines == [b"one", b"two", b"three"]
    assert (child.exits, child.lines_at_exit) == ([7], 3)
    assert repr(child.process) == f"<AgentProcess {child.process.pid} exited 7>"


async def test_a_death_by_signal_is_a_negative_exit_code(spawn: Spawner) -> None:
    child = await spawn("/bin/sh", "-c", "kill -KILL $$")
    assert await child.ended() == -signal.SIGKILL


async def test_a_grandchild_that_holds_stdout_delays_neither_the_exit_nor_any_line(
    spawn: Spawner,
) -> None:
    program = 'i=0; while [ $i -lt 6000 ]; do echo "line $i"; i=$((i+1)); done; exit 5'
    child = await spawn("/bin/sh", "-c", f"sleep 1000 & {program}")
    assert await child.ended() == 5
    assert child.lines == [b"line %d" % n for n in range(6000)]
    assert len(children()) == 1  # sleep, or the shell that is about to become it
    assert await child.stop() == "exited"
    assert children() == []


async def test_output_written_right_before_the_exit_is_read_to_the_last_byte(
    spawn: Spawner,
) -> None:
    program = "import os\nos.write(1, b'123456789\\n' * 6000); os.write(2, b'e' * 60_000)"
    child = await spawn.python(
        f"import subprocess\nsubprocess.Popen(['sleep', '99'])\n{program}",
        limits=ProcessLimits(2**20, read=10),
    )
    # This blocks the event loop, which then sees the exit and the output at the same time.
    with contextlib.suppress(ProcessLookupError):  # the launcher has reaped it already
        exited = os.pidfd_open(child.process.pid)
        assert select.select([exited], [], [], WITHIN)[0]
        os.close(exited)
    assert await child.ended() == 0
    assert child.lines == [b"123456789"] * 6000
    assert child.process.stderr == b"e" * 60_000


async def test_a_grandchild_that_keeps_writing_does_not_delay_the_exit(spawn: Spawner) -> None:
    child = await spawn("/bin/sh", "-c", "yes & exit 4")
    assert await child.ended() == 4
    assert child.exits == [4]


async def test_a_flood_of_stderr_blocks_nothing_and_its_tail_is_kept(spawn: Spawner) -> None:
    program = (
        "import os\n"
        "for _ in range(50): os.write(2, b'e' * 1_000_000)\n"
        "os.write(2, b'the last words')\n"
        "os.write(1, b'done\\n')"
    )
    child = await spawn.python(program)
    assert await child.ended() == 0
    assert child.lines == [b"done"]
    assert len(child.process.stderr) == STDERR_TAIL
    assert child.process.stderr.endswith(b"eeethe last words")


async def test_a_flood_of_stdout_arrives_completely(spawn: Spawner) -> None:
    child = await spawn.python(
        "import os\nfor _ in range(300): os.write(1, b'x' * 99_999 + b'\\n')"
    )
    assert await child.ended() == 0
    assert child.lines == [b"x" * 99_999] * 300


async def test_a_long_line_of_a_real_child_is_cut(spawn: Spawner) -> None:
    program = "import os\nos.write(1, b'a\\n' + b'x' * 5000 + b'\\nb\\n' + b'y' * 5000)"
    child = await spawn(sys.executable, "-I", "-S", "-c", program, limits=ProcessLimits(1024))
    await child.ended()
    cut = [LongLine(b"x" * 1024, 5000), LongLine(b"y" * 1024, 5000)]
    assert child.lines == [b"a", cut[0], b"b", cut[1]]


# --- what a child is given ---------------------------------------------------------------------


async def test_a_child_gets_the_given_environment_and_the_marker_and_nothing_else(
    spawn: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_SERVER", "x")
    child = await spawn("/usr/bin/env", env={"GIVEN": "yes", "ODD": "a=b c"})
    await child.ended()
    lines = sorted(line for line in child.lines if isinstance(line, bytes))
    marker = f"{MARKER}=".encode()
    assert [line.startswith(marker) for line in lines] == [True, False, False]
    assert lines[1:] == [b"GIVEN=yes", b"ODD=a=b c"]


@pytest.mark.parametrize("stdin", [True, False])
async def test_a_child_has_three_descriptors_a_session_of_its_own_and_a_private_umask(
    spawn: Spawner, tmp_path: Path, stdin: bool
) -> None:
    with socket.socket() as inheritable:
        inheritable.set_inheritable(True)
        argv = (sys.executable, "-I", "-S", PROGRAM, "describes_itself")
        child = await spawn(*argv, cwd=str(tmp_path), stdin=stdin)
        await child.ended()
    line = child.lines[0]
    assert isinstance(line, bytes)
    said: dict[str, Any] = json.loads(line)
    pid = child.process.pid
    assert said["sid"] == said["pgid"] == said["pid"] == pid
    assert (said["umask"], said["fds"], said["cwd"]) == (0o077, [0, 1, 2], str(tmp_path))


async def test_without_stdin_a_child_reads_the_end_of_file_at_once(spawn: Spawner) -> None:
    child = await spawn("/bin/cat", stdin=False)
    child.process.write(b"for nobody\n")
    assert await child.ended() == 0
    assert child.lines == []


async def test_input_larger_than_a_pipe_arrives_completely(spawn: Spawner) -> None:
    data = os.urandom(10_000_000)
    child = await spawn("/bin/sh", "-c", "head -c 10000003 | sha256sum", stdin=True)
    child.process.write(data)
    child.process.write(b"end")  # joins what still waits
    await child.ended()
    line = child.lines[0]
    assert isinstance(line, bytes)
    assert line.split()[0].decode() == hashlib.sha256(data + b"end").hexdigest()


async def test_writing_to_a_child_that_closed_its_stdin_is_harmless(
    spawn: Spawner, live: Liveness
) -> None:
    child = await spawn.misbehaving("closes_stdin", live, stdin=True)
    await live.pid("child")
    for _ in range(3):
        child.process.write(b"x" * 1_000_000)
    assert live.alive("child")
    assert await child.stop() == "terminated"


async def test_a_child_that_never_reads_can_be_written_to_and_stopped(
    spawn: Spawner, live: Liveness
) -> None:
    child = await spawn.misbehaving("lives", live, stdin=True)
    for _ in range(10):
        child.process.write(b"x" * 1_000_000)
    await live.pid("child")
    assert await child.stop() == "terminated"
    child.process.write(b"too late")


# --- children that cannot be started -----------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "cwd", "text"),
    [
        (("/nowhere/claude",), "/", "cannot start /nowhere/claude: No such file or directory"),
        (("{tmp}/plain",), "/", "cannot start {tmp}/plain: Permission denied"),
        (("{tmp}/binary",), "/", "cannot start {tmp}/binary: Exec format error"),
        (("/bin/true",), "/nowhere", "cannot start in /nowhere: No such file or directory"),
        (("/bin/true",), "{tmp}/plain", "cannot start in {tmp}/plain: Not a directory"),
        (("/bin/echo", "x" * 200_000), "/", "cannot start /bin/echo: Argument list too long"),
        (("/bin/echo", "a\0b"), "/", "cannot start /bin/echo: embedded null byte"),
    ],
)
async def test_the_error_names_the_program_and_the_cause(
    spawn: Spawner, tmp_path: Path, argv: Sequence[str], cwd: str, text: str
) -> None:
    (tmp_path / "plain").write_text("")
    (tmp_path / "binary").write_bytes(b"\x00\x01\x02")
    (tmp_path / "binary").chmod(0o755)
    tmp = str(tmp_path)
    with pytest.raises(LaunchError) as raised:
        await spawn(*(part.replace("{tmp}", tmp) for part in argv), cwd=cwd.replace("{tmp}", tmp))
    assert str(raised.value) == text.replace("{tmp}", tmp)


async def test_no_descriptor_left_is_a_launch_error_and_not_the_end(spawn: Spawner) -> None:
    taken: list[int] = []
    with pytest.raises(LaunchError, match="cannot start /bin/true: Too many open files"):
        try:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            os.close(taken.pop())
            await spawn("/bin/true")
        finally:
            for fd in taken:
                os.close(fd)
    child = await spawn("/bin/true")
    assert await child.ended() == 0


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_spawning_leaks_no_descriptor(spawn: Spawner) -> None:
    async def one() -> None:
        child = await spawn("/bin/sh", "-c", "cat & exit 0", stdin=True)
        child.process.write(b"hello\n")
        await child.ended()
        await child.stop()

    await one()
    before = open_descriptors()
    await asyncio.gather(*(one() for _ in range(50)))
    for _ in range(3):
        with pytest.raises(LaunchError):
            await spawn("/nowhere")
    assert open_descriptors() == before


async def test_a_start_that_is_cancelled_leaves_nothing(spawn: Spawner) -> None:
    """The worst moment: the child runs and has children, and its pid is not known yet."""
    before = open_descriptors()
    with socket.socket(socket.AF_UNIX) as listener:
        path = f"\0cab-test-{os.getpid()}"
        listener.bind(path)
        listener.listen()
        listener.settimeout(WITHIN)
        program = (
            "import os, socket, time\n"
            "def report():\n"
            "    s = socket.socket(socket.AF_UNIX); s.connect('\\0'+os.environ['AT']); return s\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "s = report()\n"
            "time.sleep(1000)\n"
        )
        start = spawn(sys.executable, "-I", "-S", "-c", program, env={"AT": path[1:]})
        starting = asyncio.create_task(start)
        await asyncio.sleep(0)
        # The loop stands still while the child is started and comes to life.
        lives = [listener.accept()[0], listener.accept()[0]]
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        for connection in lives:
            with connection:
                connection.settimeout(WITHIN)
                assert connection.recv(1) == b""
    assert children() == []
    assert open_descriptors() == before


# --- the end of a child and of its family ------------------------------------------------------


async def test_a_child_that_obeys_is_terminated(spawn: Spawner, live: Liveness) -> None:
    child = await spawn.misbehaving("lives", live)
    await live.pid("child")
    assert await child.stop() == "terminated"
    assert child.exits == [-signal.SIGTERM]
    await live.gone("child")


async def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(
    spawn: Spawner, live: Liveness
) -> None:
    child = await spawn.misbehaving("ignores_sigterm", live)
    await live.pid("child")
    before = asyncio.get_running_loop().time()
    assert await child.stop(grace=0.3) == "killed"
    assert 0.3 <= asyncio.get_running_loop().time() - before < TERM_GRACE
    assert child.exits == [-signal.SIGKILL]
    await live.gone("child")


async def test_a_child_that_has_stopped_itself_is_terminated(
    spawn: Spawner, live: Liveness
) -> None:
    child = await spawn.misbehaving("stops_itself", live)
    pid = await live.pid("child")
    async with asyncio.timeout(WITHIN):  # nothing tells of it, unless it is a child of ours
        while psutil.Process(pid).status() != psutil.STATUS_STOPPED:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await child.stop() == "terminated"


STRAYS = ("orphan", "cleared-environment", "below-the-orphan")
FAMILY = (
    *("child", "in-the-group", "own-group", "own-session", "below-own-session", "daemon"),
    "cleared-environment",
)


async def test_no_descendant_survives_wherever_it_has_gone(spawn: Spawner, live: Liveness) -> None:
    child = await spawn.misbehaving("has_a_family", live)
    pids = [await live.pid(name) for name in FAMILY]
    assert all(map(psutil.pid_exists, pids))
    assert await child.stop(grace=0.1) == "killed"
    assert not any(map(alive, pids))
    await live.gone(*FAMILY)


async def test_kill_ends_all_descendants_without_waiting(spawn: Spawner, live: Liveness) -> None:
    child = await spawn.misbehaving("has_a_family", live)
    for name in FAMILY:
        await live.pid(name)
    child.process.kill()
    await live.gone(*FAMILY)


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_processes_in_the_session_of_a_dead_child_are_killed_without_a_marker(
    spawn: Spawner, live: Liveness, end: str
) -> None:
    child = await spawn.misbehaving("leaves_a_cleared_orphan", live)
    await child.ended()
    await live.pid("cleared-environment")
    if end == "stop":
        assert await child.stop() == "exited"
    else:
        child.process.kill()
    await live.gone("cleared-environment")


async def test_a_process_forked_during_the_stop_is_killed(spawn: Spawner, live: Liveness) -> None:
    child = await spawn.misbehaving("forks_when_terminated", live)
    await live.pid("child")
    assert await child.stop() == "terminated"
    assert children() == []


async def test_the_families_of_other_children_are_left_alone(
    spawn: Spawner, live: Liveness
) -> None:
    async with listening() as other_live:
        other = await spawn.misbehaving("has_a_family", other_live)
        child = await spawn.misbehaving("has_a_family", live)
        for name in FAMILY:
            await live.pid(name)
        pids = [await other_live.pid(name) for name in FAMILY]
        assert await child.stop(grace=0.1) == "killed"
        assert [psutil.Process(pid).is_running() for pid in pids] == [True] * len(pids)
        await other.stop(grace=0.1)


needs_group = pytest.mark.skipif(cgroup.home() is None, reason="no control group can be made here")
needs_mark = pytest.mark.skipif(mark.problem() is not None, reason="no process can be marked here")
KEEPS = [
    pytest.param(NO_LIMITS, id="group", marks=needs_group),
    pytest.param(None, id="mark", marks=needs_mark),
]


@pytest.mark.parametrize("group", KEEPS)
async def test_no_process_leaves_its_control_group_or_its_mark(
    spawn: Spawner, live: Liveness, group: Mapping[str, str] | None
) -> None:
    hidden = await spawn.misbehaving("hides", live, group=group)
    await hidden.ended()
    await live.pid("cleared-environment")
    assert await hidden.stop() == "exited"
    assert not live.alive("cleared-environment")


@pytest.mark.parametrize("group", KEEPS)
async def test_strays_are_told_from_the_descendants_of_the_child(
    spawn: Spawner, live: Liveness, group: Mapping[str, str] | None
) -> None:
    """Those of another child are left alone."""
    async with listening() as other_live:
        other = await spawn.misbehaving("leaves_strays", other_live, group=group)
        child = await spawn.misbehaving("leaves_strays", live, group=group)
        for name in STRAYS:
            await live.pid(name)
            await other_live.pid(name)
        assert child.process.kill_strays(inside=False) == len(STRAYS)
        await live.gone(*STRAYS)
        assert child.process.running and live.alive("child") and live.alive("helper")
        assert all(map(other_live.alive, STRAYS))
        await other.stop(grace=0.1)


async def test_kill_descendants_finds_processes_without_mark_parent_and_group(
    spawn: Spawner, live: Liveness
) -> None:
    process_tree.become_subreaper()
    argv = (sys.executable, PROGRAM, "hides", live.path)
    assert await (await asyncio.create_subprocess_exec(*argv)).wait() == 0
    await live.pid("cleared-environment")
    starting = asyncio.create_task(spawn("/bin/sleep", "1000"))
    await asyncio.sleep(0)
    assert not starting.done()
    kill_descendants()
    await live.gone("cleared-environment")
    with contextlib.suppress(LaunchError):  # it was killed before its exec()
        started = await starting
        kill_descendants()  # on a busy machine it is forked only after the first call
        assert await started.ended() == -signal.SIGKILL
    reap_orphans()


async def test_a_reused_pid_is_not_signaled(
    spawn: Spawner,
) -> None:
    ended = await spawn("/bin/true")
    await ended.ended()
    other = await spawn("/bin/sh", "-c", "sleep 1000 & echo ready; wait")
    await other.line()
    ended.process.pid = other.process.pid  # what the kernel may do once the child is reaped
    assert await ended.stop() == "exited"
    ended.process.kill()
    assert len(children()) == 2
    assert other.exits == []


async def test_an_orphan_that_ends_by_itself_is_not_a_zombie(
    spawn: Spawner, live: Liveness
) -> None:
    """That of a session which outlives us belongs to the launcher, which does so, too."""
    child = await spawn.misbehaving("leaves_an_orphan_that_ends", live)
    await child.ended()
    pid = await live.pid("orphan")
    parent = launchers()[0].pid if spawn.spools else os.getpid()
    assert psutil.Process(pid).ppid() == parent
    pidfd = os.pidfd_open(pid)
    await live.release("orphan")
    assert await asyncio.to_thread(select.select, [pidfd], [], [], WITHIN) == ([pidfd], [], [])
    os.close(pidfd)
    if not spawn.spools:
        assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        reap_orphans()
    async with asyncio.timeout(WITHIN):
        while psutil.pid_exists(pid):  # noqa: ASYNC110 - no event reports the end of a zombie
            await asyncio.sleep(0.01)


async def test_reaping_orphans_takes_no_exit_code_from_a_child(spawn: Spawner) -> None:
    for _ in range(5):
        starts = [asyncio.create_task(spawn("/bin/sh", "-c", "exit 9")) for _ in range(4)]
        while not all(start.done() for start in starts):
            reap_orphans()
            await asyncio.sleep(0)
        children = [await start for start in starts]
        while any(child.exits == [] for child in children):
            reap_orphans()
            await asyncio.sleep(0)
        assert [child.exits for child in children] == [[9]] * 4


async def test_stop_may_be_called_twice_and_after_the_end(spawn: Spawner, live: Liveness) -> None:
    child = await spawn.misbehaving("ignores_sigterm", live)
    await live.pid("child")
    async with asyncio.timeout(WITHIN):
        rungs = await asyncio.gather(child.process.stop(0.1), child.process.stop(0.1))
    assert "killed" in rungs  # the other one may have come when it was over
    assert await child.stop() == "exited"
    assert child.exits == [-signal.SIGKILL]


@pytest.mark.parametrize("without", ["pidfd_open"])
async def test_without_pidfds_a_thread_waits(
    spawn: Spawner, live: Liveness, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    monkeypatch.delattr(os, without)
    child = await spawn("/bin/sh", "-c", "echo here; exit 3")
    assert await child.ended() == 3
    assert child.lines == [b"here"]
    stubborn = await spawn.misbehaving("ignores_sigterm", live)
    await live.pid("child")
    assert await stubborn.stop(0.1) == "killed"


def test_a_loop_that_ends_while_a_child_is_started_leaves_no_child() -> None:
    """The end of asyncio.run() cancels the start; nothing of the child may survive it."""

    async def start_and_leave() -> None:
        spawning = AgentProcess.spawn(
            Start(["/bin/sleep", "1000"], {}, "/"), Hooks(), limits=ProcessLimits(100)
        )
        task = asyncio.create_task(spawning)
        await asyncio.sleep(0)
        assert not task.done()

    asyncio.run(start_and_leave())
    assert children() == []


PRIVATE = """
import ctypes, os, resource, sys
sys.path.insert(0, sys.argv[1])
from bridge.process.process_tree import keep_private
environ = f"/proc/{os.getpid()}/environ"
os.setresuid(65534, 65534, 65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as any process of that user is at its start
before = os.stat(environ).st_uid
keep_private()
print(before, os.stat(environ).st_uid, resource.getrlimit(resource.RLIMIT_CORE))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to become somebody who is not")
def test_the_server_is_not_readable_for_programs_of_its_own_user() -> None:
    checkout = str(CHECKOUT)
    command = [sys.executable, "-c", PRIVATE, checkout]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN, check=True)
    assert done.stdout.split("\n")[0] == "65534 0 (0, 0)"
