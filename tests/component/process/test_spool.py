"""A child that outlives the server: the next server reads and writes from the exact byte on,
whether the child lives or not. Here the reader ends; in tests/system/test_restart.py, the
server."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import mmap
import os
import random
import select
import signal
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bridge.errors import InputUnknown
from bridge.process.line_splitter import LongLine
from bridge.process.spool import SEND_MOST, USED_MOST, Spool, exit_code, input_of_earlier_version
from tests import CHECKOUT
from tests.support.liveness import Liveness, listening
from tests.support.spools import LIMIT, WITHIN, Children, ended

SAID = b"one\ntwo three\n\n\xff\xfe\r\nlast, without a newline"


@pytest.fixture
async def live() -> AsyncIterator[Liveness]:
    async with listening() as live:
        yield live


def split(data: bytes) -> list[bytes]:
    """A second implementation of lines."""
    *lines, rest = data.split(b"\n")
    return [*lines, rest] if rest else lines


# --- what was said, from any place on ------------------------------------------------------------


@pytest.mark.parametrize("piece", [1, 3, 2**18])
async def test_the_output_of_a_dead_child_continues_at_every_byte(
    children: Children, piece: int
) -> None:
    folder = children.left(SAID, "3\n")
    for position in range(len(SAID) + 1):
        process, reader = children.attach(folder, position, piece=piece)
        assert await ended(process) == 3
        assert reader.lines == split(SAID[position:])
        assert (reader.exits, process.position, process.running) == ([3], len(SAID), False)


async def test_the_position_is_the_end_of_the_last_complete_line(
    children: Children, live: Liveness
) -> None:
    """A line of which only a part has come must be heard as a whole by the next reader."""
    folder, process, reader = await children.shell(
        "echo one; printf ha; read x; printf 'lf\\nrest'; read x; exit 5"
    )
    await reader.until(lambda: reader.lines and process.position == 4)
    assert (reader.lines, process.position) == ([b"one"], 4)
    process.detach()
    second, heard = children.attach(folder, process.position)
    second.write(b"\n")
    await heard.until(lambda: heard.lines)
    assert (heard.lines, second.position) == ([b"half"], 9)
    second.write(b"\n")
    assert await ended(second) == 5
    assert (heard.lines, heard.exits) == ([b"half", b"rest"], [5])
    assert (reader.lines, reader.exits) == ([b"one"], [])


async def test_who_attaches_while_a_child_talks_misses_nothing_and_hears_nothing_twice(
    children: Children,
) -> None:
    script = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done"
    folder, process, reader = await children.shell(script)
    heard: list[bytes | LongLine] = []
    for wanted in (1, 100, 1000):
        await reader.until(lambda: len(heard) + len(reader.lines) >= wanted)  # noqa: B023
        process.detach()
        heard += reader.lines
        process, reader = children.attach(folder, process.position)
    assert await ended(process) == 0
    assert heard + reader.lines == [b"line %d" % number for number in range(3000)]


async def test_a_long_backlog_is_read_in_pieces_and_yields_between_them(
    children: Children,
) -> None:
    folder = children.left(b"123456789\n" * 1000, "0")
    _, reader = children.attach(folder, piece=100)
    turns = 0
    async with asyncio.timeout(WITHIN):
        while not reader.exits:
            turns += 1
            await asyncio.sleep(0)
    assert reader.lines == [b"123456789"] * 1000
    assert reader.batches == 100
    assert turns >= 50  # that others had while it was read


async def test_a_long_line_is_also_cut_after_an_attach(children: Children) -> None:
    folder = children.left(b"x" * (LIMIT + 5) + b"\nshort\n", "0")
    process, reader = children.attach(folder)
    await ended(process)
    assert reader.lines == [LongLine(b"x" * LIMIT, LIMIT + 5), b"short"]


# --- how it ended ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 127", 127),
        ("kill -TERM $$", -signal.SIGTERM),
        ("kill -KILL $$", -signal.SIGKILL),
        pytest.param(
            "exit 255",
            255,
        ),
    ],
)
async def test_it_is_written_down_how_a_child_ended(
    children: Children, end: str, code: int
) -> None:
    folder, process, _ = await children.shell(f"echo last words; {end}")
    assert await ended(process) == code
    again, reader = children.attach(folder)
    assert await ended(again) == code == exit_code(folder)
    assert reader.lines == [b"last words"]


@pytest.mark.parametrize(
    "end",
    [
        "exit 7",
        pytest.param(
            "kill -KILL $$",
        ),
    ],
)
async def test_the_last_words_are_the_childs_own(children: Children, end: str) -> None:
    folder, process, _ = await children.shell(f"echo why >&2; {end}")
    await ended(process)
    again, _ = children.attach(folder)
    await ended(again)
    assert bytes(process.stderr) == bytes(again.stderr) == b"why\n"


@pytest.mark.parametrize("status", [None, "", "\n", "x", "1.5"])
async def test_without_a_written_exit_status_it_counts_as_killed(
    children: Children, status: str | None
) -> None:
    process, reader = children.attach(children.left(b"so far\n", status))
    assert await ended(process) == -signal.SIGKILL
    assert reader.lines == [b"so far"]


async def test_who_is_attached_can_end_a_child(children: Children) -> None:
    folder, process, reader = await children.shell("echo here; read x")
    await reader.until(lambda: reader.lines)
    process.detach()
    attached, heard = children.attach(folder, process.position)
    async with asyncio.timeout(WITHIN):
        assert await attached.stop() == "terminated"
    assert (heard.exits, reader.exits) == ([-signal.SIGTERM], [])


async def test_closed_output_is_reported(children: Children) -> None:
    _, process, reader = await children.shell("echo last; exec >&-; read x; exit 4")
    async with asyncio.timeout(WITHIN):
        await reader.until(lambda: reader.ends)
    assert (reader.lines, reader.exits, process.running) == ([b"last"], [], True)
    process.write(b"\n")
    assert await ended(process) == 4
    assert (reader.lines, reader.ends) == ([b"last"], 1)


async def test_a_child_that_opens_its_output_once_more_has_not_closed_it(
    children: Children,
) -> None:
    """A script that runs `echo x >/dev/stdout`, or `tee -a /dev/stdout`."""
    script = "echo a; echo b >>/dev/stdout; echo c >/dev/stdout; read x; echo d"
    _, process, reader = await children.shell(script)
    await reader.until(lambda: len(reader.lines) == 3)
    assert reader.ends == 0
    process.write(b"\n")
    await ended(process)
    assert reader.lines == [b"a", b"b", b"c", b"d"]


async def test_an_output_that_was_closed_without_a_reader_is_reported(
    children: Children, live: Liveness
) -> None:
    """Else the turn waits for its time limit, an hour by default."""
    program = (
        f"import sys; sys.argv[1:] = ['', {live.path!r}]\nfrom tests.support.misbehaving import *\n"
    )
    program += "sys.stdin.readline(); os.close(1); report('closed'); forever()"
    argv = (sys.executable, "-c", program)
    folder, process, _ = await children.start("/usr/bin/env", f"PYTHONPATH={CHECKOUT}", *argv)
    process.write(b"\n")
    process.detach()
    await live.pid("closed")
    attached, reader = children.attach(folder)
    async with asyncio.timeout(WITHIN):
        await reader.until(lambda: reader.ends)
    assert attached.running


# --- what it is sent ---------------------------------------------------------------------------


@contextlib.contextmanager
def stdin_of(folder: Path) -> Iterator[int]:
    """The child's end of its stdin; it has it open for both, as a shell may."""
    fd = os.open(folder / "in", os.O_RDWR | os.O_NONBLOCK)
    try:
        yield fd
    finally:
        os.close(fd)


def arrived(fd: int) -> bytes:
    data = b""
    with contextlib.suppress(BlockingIOError):
        while more := os.read(fd, 2**20):
            data += more
    return data


async def test_stdin_continues_at_every_byte(children: Children) -> None:
    """Also a server continues that knows of less input than the last one has sent: it makes the
    rest again from the output."""
    data = b'{"type":"prompt"}\n'
    folder = children.left()
    with stdin_of(folder) as stdin:
        for done in range(1, len(data) + 1):
            first = children.spool(folder)
            first.owe(data[:done])
            first.close()
            assert arrived(stdin) == data[done - 1 : done]
        for known in range(len(data) + 1):
            second = children.spool(folder)
            second.owe(data[:known])
            second.write(data[known:])
            second.close()
        assert arrived(stdin) == b""
        third = children.spool(folder)
        third.owe(data[:5])
        third.write(data[5:] + b"more\n")
        third.close()
        assert arrived(stdin) == b"more\n"


async def test_without_the_file_of_its_input_the_input_of_a_child_is_unknown(
    children: Children,
) -> None:
    folder = children.left()
    with stdin_of(folder) as stdin:
        spool = Spool(folder)
        with pytest.raises(InputUnknown):
            spool.owe(b"x" * 20)
        spool.write(b"x")  # such as an interrupt
        spool.close()
        assert arrived(stdin) == b""


@pytest.mark.parametrize(("largest", "sent", "position"), [(7, 7, 7), (8, 7, None), (0, 0, 0)])
async def test_a_session_of_an_earlier_version_continues_from_its_counters(
    children: Children, largest: int, sent: int, position: int | None
) -> None:
    """Unless its server was killed within a write. The counters are used once: no later input
    counts there."""
    folder = children.left()
    counters = folder / "sent"
    counters.write_bytes(struct.pack("QQ", largest, sent) if position != 0 else b"")
    with stdin_of(folder) as stdin:
        spool = Spool(folder, 0, input_of_earlier_version(folder))
        with contextlib.suppress(InputUnknown):
            spool.owe(b"0123456789")
        spool.close()
        assert arrived(stdin) == (b"" if position is None else b"0123456789"[position:])
    assert input_of_earlier_version(folder) is None


async def test_a_dead_child_is_owed_nothing(children: Children) -> None:
    spool = Spool(children.left())
    spool.owe(b"x" * 20)
    spool.write(b"x")
    spool.close()


async def test_the_next_server_sends_input_that_did_not_fit_into_the_pipe(
    children: Children,
) -> None:
    folder = children.left()
    data = os.urandom(3_000_000)
    with stdin_of(folder) as stdin:
        first = children.spool(folder)
        first.write(data)
        first.close()
        got = arrived(stdin)
        assert 0 < len(got) < len(data)
        second = children.spool(folder)
        second.owe(data)
        async with asyncio.timeout(WITHIN):
            while len(got) < len(data):
                got += arrived(stdin)
                await asyncio.sleep(0)
        second.close()
    assert got == data


async def test_input_that_a_child_has_read_takes_no_memory(children: Children) -> None:
    """Small and large inputs, also while others wait in the pipe."""
    folder, chance = children.left(), random.Random(1)
    file, sent, got = children.inputs[folder], bytearray(), bytearray()
    with stdin_of(folder) as stdin:
        spool = children.spool(folder)
        room = fcntl.fcntl(stdin, fcntl.F_GETPIPE_SZ)
        async with asyncio.timeout(WITHIN):
            while len(got) < 15_000_000:
                data = chance.randbytes(chance.choice((10, 1000, 30_000, 3_000_000)))
                spool.write(data)
                sent += data
                while len(sent) - len(got) > room:
                    with contextlib.suppress(BlockingIOError):
                        got += os.read(stdin, 50_000)
                    await asyncio.sleep(0)
                kept = os.fstat(file).st_blocks * 512
                assert kept <= room + SEND_MOST + USED_MOST + 2 * mmap.PAGESIZE
        got += arrived(stdin)
        spool.close()
    assert got == sent


async def test_a_child_that_closes_its_stdin_gets_no_more_input(children: Children) -> None:
    _, process, reader = await children.shell("exec <&-; echo closed; sleep 0.05; exit 4")
    await reader.until(lambda: reader.lines)
    process.write(b"x" * 100_000)
    process.write(b"x")
    assert await ended(process) == 4


# --- a writer that is killed -------------------------------------------------------------------

WRITER = """
import asyncio, os, random, sys
from pathlib import Path
from bridge.process.spool import Spool
from tests.component.process.test_spool import pieces

folder, file = Path(sys.argv[1]), int(sys.argv[2])

async def main():
    spool, end = Spool(folder, 0, os.dup(file)), 0
    for piece in pieces():
        spool.write(piece)
        end += len(piece)
        while os.lseek(file, 0, os.SEEK_CUR) < end:
            await asyncio.sleep(0)

for line in sys.stdin:
    child = os.fork()
    if not child:
        os.write(1, b"%d" % os.getpid())
        asyncio.run(main())
    os.waitpid(child, 0)
    os.write(1, b"dead")
"""
KILLS = 200
SIZES = (0, 10, 300, 3000, 20_000, 300_000)


def pieces() -> Iterator[bytes]:
    """All input of the session: numbered lines of all sizes."""
    for number in range(3000):
        yield b"%d %s\n" % (number, b"x" * SIZES[hash(number * 7919) % len(SIZES)])


async def test_a_writer_that_is_killed_at_any_moment_is_continued_exactly(
    children: Children,
) -> None:
    """Each writer is killed after a random number of bytes. Each of them is a fork with an event
    loop of its own, which takes 10 ms."""
    folder, chance, got = children.left(), random.Random(3), bytearray()
    file = children.inputs[folder]
    argv = (sys.executable, "-c", WRITER, str(folder), str(file))
    with (
        stdin_of(folder) as stdin,
        subprocess.Popen(  # noqa: ASYNC220
            argv, cwd=CHECKOUT, pass_fds=[file], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as writer,
    ):
        assert writer.stdin and writer.stdout
        orders, said = writer.stdin.fileno(), writer.stdout.fileno()
        for _ in range(KILLS):
            os.write(orders, b"\n")
            child = int(os.read(said, 100))
            wanted = len(got) + chance.randrange(100_000)
            while len(got) < wanted:
                assert select.select([stdin], [], [], WITHIN)[0]
                got += os.read(stdin, 2**20)
            os.kill(child, signal.SIGKILL)
            assert os.read(said, 100) == b"dead"
        writer.stdin.close()
        got += arrived(stdin)
    assert len(got) == os.lseek(file, 0, os.SEEK_CUR)
    assert got == b"".join(pieces())[: len(got)]


# --- being left alone --------------------------------------------------------------------------


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_who_detaches_hears_nothing_more_and_keeps_nothing_open(children: Children) -> None:
    folder, process, reader = await children.shell("echo a; read x; echo b; read x")
    await reader.until(lambda: reader.lines)
    process.detach()
    attached, heard = children.attach(folder, process.position)
    before = open_descriptors()
    for _ in range(10):
        attached.detach()
        attached, heard = children.attach(folder, attached.position)
    assert open_descriptors() <= before + 10  # each keeps watching for the end
    attached.write(b"\n")
    await heard.until(lambda: heard.lines)
    process.write(b"x\n")
    assert (reader.lines, heard.lines) == ([b"a"], [b"b"])
    async with asyncio.timeout(WITHIN):
        await attached.stop()
    assert (reader.exits, heard.exits) == ([], [-signal.SIGTERM])
    assert process.exit_code is None


async def test_all_that_a_child_says_is_its_owners_alone(children: Children) -> None:
    folder, process, reader = await children.shell("echo here; read x")
    await reader.until(lambda: reader.lines)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert set(modes.values()) == {0o600}, modes
    assert {"in", "pipe", "out", "err", "exit", "sent"} == set(modes)
    await process.stop(grace=1)
    assert (folder / "exit").stat().st_mode & 0o777 == 0o600
