"""The stdout of a session that outlives the server: a pipe that the server or the launcher moves to
a file without losing a byte, in each order of their ends. The servers here are processes without
other work."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psutil
import pytest

from bridge.process import procfs, pump
from bridge.process import spool as spooling
from bridge.process.process_tree import leader
from bridge.process.spawn import LAUNCHES
from bridge.process.spool import Spool, exit_code
from tests import CHECKOUT
from tests.support.liveness import alive
from tests.support.spools import Children, ended

WITHIN = 60.0
PIPE = 64 * 1024  # bytes that a pipe holds
pytestmark = pytest.mark.skipif(not LAUNCHES, reason="sessions end with the server here")

ASYNCIO = """
import asyncio, sys

async def main():
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    ends = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    writer = asyncio.StreamWriter(*ends, None, loop)
    while line := await reader.readline():
        writer.write(b"heard " + line)
        await writer.drain()

asyncio.run(main())
"""


def numbers(first: int, last: int) -> str:
    """A shell command that writes them, one a line."""
    return f"seq {first} {last}"


def expected(first: int, last: int) -> list[bytes]:
    return [b"%d" % one for one in range(first, last + 1)]


async def until(condition: Callable[[], object]) -> None:
    """No event reports the changes of files and pipes by other processes."""
    async with asyncio.timeout(WITHIN):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


# --- what the program sees ---------------------------------------------------------------------


async def test_a_program_may_open_its_streams_as_asyncio_does(children: Children) -> None:
    """The Python SDK of the Agent Client Protocol does."""
    _, process, reader = await children.start(sys.executable, "-c", ASYNCIO)
    for number in range(3):
        process.write(b"%d\n" % number)
        await reader.until(lambda: len(reader.lines) > number)  # noqa: B023
    assert reader.lines == [b"heard 0", b"heard 1", b"heard 2"]


async def test_a_program_cannot_change_its_earlier_output(
    children: Children,
) -> None:
    script = """
import os, sys
print("first", flush=True)
sys.stdin.readline()
for attempt in (lambda: os.ftruncate(1, 0), lambda: os.ftruncate(1, 2**40),
                lambda: os.pwrite(1, b"x", 0), lambda: os.lseek(1, 0, 0)):
    try:
        attempt()
    except OSError as error:
        print(error.strerror, flush=True)
    else:
        print("it worked", flush=True)
"""
    folder, process, reader = await children.start(sys.executable, "-c", script)
    await reader.until(lambda: reader.lines)
    process.write(b"\n")
    assert await ended(process) == 0
    wanted = [b"first", *[b"Invalid argument"] * 2, *[b"Illegal seek"] * 2]
    assert reader.lines == wanted
    out = folder / "out"
    assert out.read_bytes() == b"".join(line + b"\n" for line in wanted)
    assert out.stat().st_blocks * 512 <= 2 * spooling.RESERVE


async def test_a_child_waits_while_no_reader_is_attached(children: Children) -> None:
    folder, process, reader = await children.shell(f"echo go; read x; {numbers(1, 300_000)}")
    await reader.until(lambda: reader.lines)
    process.pause(True)
    process.write(b"\n")
    pipe = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        await until(lambda: pump.held(pipe) >= PIPE // 2)
    finally:
        os.close(pipe)
    assert (folder / "out").stat().st_size == 3
    process.pause(False)
    assert await ended(process) == 0
    assert reader.lines == [b"go", *expected(1, 300_000)]


async def test_later_output_of_descendants_is_not_read(children: Children) -> None:
    _, process, reader = await children.shell("yes & echo last; exit 3")
    assert await ended(process) == 3
    assert b"last" in reader.lines


# --- a full disk ---------------------------------------------------------------------------------


@contextlib.contextmanager
def full_disk(size: int) -> Iterator[None]:
    """This process can make no file longer than that; the kernel's answer is an error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_output_waits_in_the_pipe_while_the_disk_is_full(
    children: Children,
) -> None:
    folder, first, _ = await children.shell(f"read x; {numbers(1, 100_000)}")
    first.detach()
    process, reader = children.attach(folder, look=0.02)
    with full_disk(100_000):
        process.write(b"\n")
        await until(lambda: (folder / "out").stat().st_size == 100_000)
        assert process.running
    assert await ended(process) == 0
    assert reader.lines == expected(1, 100_000)


async def test_the_last_output_arrives_although_the_disk_is_full(children: Children) -> None:
    _, process, reader = await children.shell(f"read x; {numbers(1, 1000)}")
    with full_disk(10):
        process.write(b"\n")
        assert await ended(process) == 0
    assert reader.lines == expected(1, 1000)


# --- without a server --------------------------------------------------------------------------

SERVER = """
import asyncio, os, sys
from pathlib import Path
from bridge.process.agent_process import AgentProcess, Hooks, ProcessLimits
from bridge.process.pump import attend
from bridge.process.spawn import Start, launcher
from bridge.process.spool import Spool

async def main(state, folder, *argv):
    attended = attend(state)
    if argv:
        start = Start(argv, {"PATH": os.environ["PATH"]}, "/")
        await AgentProcess.spawn(start, Hooks(), limits=ProcessLimits(2**20), spool=Path(folder))
    else:
        Spool(Path(folder)).listen(lambda data: None, lambda: None)
    print(launcher(), flush=True)
    await asyncio.sleep(1000)

asyncio.run(main(*sys.argv[1:]))
"""


class Server:
    """A process that has the state folder, and starts a child or attaches to one."""

    def __init__(self, state: Path, folder: Path, *argv: str) -> None:
        command = (sys.executable, "-c", SERVER, str(state), str(folder), *argv)
        self._process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE)
        assert self._process.stdout
        self.launcher = int(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(WITHIN)
        assert self._process.stdout
        self._process.stdout.close()


class World:
    """A state folder with one session, and its servers one after the other."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.folder = state / "sessions" / uuid.uuid4().hex
        self.started: list[Server] = []

    def server(self, *argv: str) -> Server:
        made = Server(self.state, self.folder, *argv)
        self.started.append(made)
        return made

    def out(self) -> bytes:
        return (self.folder / "out").read_bytes()

    async def until(self, size: int) -> None:
        """The file has so much."""
        await until(lambda: (self.folder / "out").stat().st_size >= size)

    def say(self, line: bytes = b"\n") -> None:
        fd = os.open(self.folder / "in", os.O_WRONLY)
        os.write(fd, line)
        os.close(fd)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Afterwards the launchers end by themselves, with the last of their children."""
    state = tmp_path / "state"
    state.mkdir()
    world = World(state)
    yield world
    for server in world.started:
        server.kill()
    pid = leader(world.folder)
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    launchers = [server.launcher for server in world.started if server.launcher]
    await until(lambda: not any(map(alive, launchers)))


def text(first: int, last: int) -> bytes:
    return b"".join(b"%d\n" % one for one in range(first, last + 1))


async def test_a_child_can_write_all_its_output_without_a_server(world: World) -> None:
    """More than any pipe holds, and then it ends. The second is for 3.4 MB."""
    first = world.server("/bin/sh", "-c", f"read x; {numbers(1, 500_000)}; exit 7")
    first.kill()
    world.say()
    said = text(1, 500_000)
    await world.until(len(said))
    await until(lambda: exit_code(world.folder) is not None)
    assert (world.out(), exit_code(world.folder)) == (said, 7)


async def test_one_server_after_the_other_and_nothing_is_lost_or_twice(world: World) -> None:
    """A child that never pauses, while servers take it over and are killed at any moment. The five
    seconds are 25 MB of output and five servers' start."""
    script = f"read x; {numbers(1, 3_000_000)}; read x"
    world.server("/bin/sh", "-c", script).kill()
    world.say()
    for mebibytes in (1, 3, 5, 7):
        await world.until(mebibytes * 2**20)  # by the launcher
        server = world.server()
        await world.until((mebibytes + 1) * 2**20)  # by the server
        server.kill()
    said = text(1, 3_000_000)
    await world.until(len(said))
    assert world.out() == said


async def test_a_launcher_leaves_a_child_to_the_next_server(world: World) -> None:
    world.server("/bin/sh", "-c", f"{numbers(1, 10)}; read x; {numbers(11, 20)}; read x").kill()
    await world.until(len(text(1, 10)))
    attended = pump.attend(str(world.state))
    world.say()
    pipe = os.open(world.folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        await until(lambda: pump.held(pipe) >= len(text(11, 20)))
        with pytest.raises(BlockingIOError):
            other = os.open(world.state / pump.ATTENDED, os.O_RDONLY | os.O_NONBLOCK)
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            finally:
                os.close(other)
        assert world.out() == text(1, 10)
    finally:
        os.close(pipe)
        os.close(attended)  # as when a server ends
    await world.until(len(text(1, 20)))


async def test_the_last_output_of_a_child_survives_the_end_of_the_server(
    world: World,
) -> None:
    """The server was killed before it had read the output; the launcher still has it."""
    server = world.server("/bin/sh", "-c", "read x; echo last; exit 4")
    psutil.Process(server._process.pid).suspend()
    world.say()
    await until(lambda: exit_code(world.folder) is not None)
    assert world.out() == b""
    server.kill()
    await world.until(5)
    assert (world.out(), exit_code(world.folder)) == (b"last\n", 4)


async def test_without_server_and_launcher_a_child_ends_at_its_next_word(world: World) -> None:
    server = world.server("/bin/sh", "-c", "read x; echo lost")
    pid = leader(world.folder)
    assert pid
    psutil.Process(server.launcher).kill()
    server.kill()
    assert alive(pid)
    world.say()
    await until(lambda: not alive(pid))
    spool = Spool(world.folder)
    spool.close()


# --- sessions of earlier versions --------------------------------------------------------------


def start_on_a_file(folder: Path, script: str) -> None:
    """As servers did before there was a pipe."""
    (folder / "pipe").unlink()
    with open(folder / "out", "ab") as out, open(folder / "in", "r+b", buffering=0) as stdin:
        child = subprocess.Popen(["/bin/sh", "-c", script], stdin=stdin, stdout=out)
    child.returncode = 0  # the process under test reaps it
    (folder / "exit").write_text(f"{child.pid} {procfs.start_time(child.pid)}\n")


async def test_a_session_with_a_file_as_stdout_is_read_to_its_end(
    children: Children,
) -> None:
    folder = children.left(b"before\n")
    start_on_a_file(folder, "read x; echo between; read x; echo after; exit 6")
    process, reader = children.attach(folder)
    await reader.until(lambda: reader.lines == [b"before"])
    process.write(b"\n")
    await reader.until(lambda: reader.lines == [b"before", b"between"])
    process.write(b"\n")
    assert await ended(process) in (6, -signal.SIGKILL)
    assert reader.lines == [b"before", b"between", b"after"]
