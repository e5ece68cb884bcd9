"""The frames of stdio, and the pipes to the parent process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from bridge import errors
from bridge.transports.envelope.stdio import ROOM, Frame, Framing, PipeReader, PipeWriter
from tests.support.cases import each

LONGEST = 10
WITHIN = 60.0
FRAME = b"x" * 50_000
TOO_LONG, NO_HEADER, EMPTY = errors.BodyTooLarge, errors.ParseError, errors.ParseError
Pipe = tuple[int, int]


def frames(data: bytes, size: int = 1) -> list[bytes | type[Exception]]:
    """The frames of `data`, given in pieces of this size."""
    reader = Framing(LONGEST)
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    found: list[Frame] = [one for piece in pieces for one in reader.feed(piece)]
    return [one if isinstance(one, bytes) else type(one) for one in [*found, *reader.end()]]


@each("size", [1, 3, 1000])
@each(
    ("data", "found"),
    [
        (b"", []),
        (b"{}\n", [b"{}"]),
        (b"\n \r\n{}\r\n\n[]", [b"{}", b"[]"]),
        (b"{123456789\n", [b"{123456789"]),
        (b"{123456789\r\n", [b"{123456789"]),
        (b"{1234567890\n{}\n", [TOO_LONG, b"{}"]),
        (b"{" + b"x" * 100 + b"\n{}", [TOO_LONG, b"{}"]),
        (b"{}\nContent-Length: 2\r\n\r\n", [b"{}", TOO_LONG]),
        (b"Content-Length: 2\r\n\r\n{}", [b"{}"]),
        (b"content-length:2\n\n{}Content-Length:  3 \r\n\r\n[1]", [b"{}", b"[1]"]),
        (b"Content-Type: x\r\nContent-Length: 4\r\n\r\n{\n\n}", [b"{\n\n}"]),
        (b"Content-Length: 11\r\n\r\n{123456789}Content-Length: 2\r\n\r\n{}", [TOO_LONG, b"{}"]),
        (b"Content-Length: 10\r\n\r\n{12345678}", [b"{12345678}"]),
        (b"Content-Length: 0\r\n\r\nContent-Length: 2\r\n\r\n{}", [EMPTY, b"{}"]),
        (b"Content-Length: 2\r\n\r\n{}{}\nContent-Length: 2\r\n\r\n[]", [b"{}", NO_HEADER, b"[]"]),
        (b"Content-Length: x\r\n\r\nContent-Length: 2\r\n\r\n{}", [b"{}"]),
        (b"C" + b"x" * 9000 + b"\nContent-Length: 2\r\n\r\n{}", [NO_HEADER, b"{}"]),
        (b"Content-Length: 9\r\n\r\n{}", []),
    ],
)
def test_bytes_become_frames(data: bytes, found: list[bytes | type[Exception]], size: int) -> None:
    assert frames(data, size) == found


def test_the_server_answers_in_the_framing_of_the_client() -> None:
    lines, headers = Framing(LONGEST), Framing(LONGEST)
    list(lines.feed(b"\n{"))
    list(headers.feed(b"\nC"))
    assert lines.wrap(b"{}") == b"{}\n"
    assert headers.wrap(b"{}") == b"Content-Length: 2\r\n\r\n{}"


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            pass


async def received(descriptor: int, size: int) -> bytes:
    def read() -> bytes:
        found = b""
        while len(found) < size:
            found += os.read(descriptor, 2**16)
        return found

    async with asyncio.timeout(WITHIN):
        return await asyncio.to_thread(read)


def waiting(caplog: pytest.LogCaptureFixture) -> list[int]:
    """The bytes that wait, in the lines about a parent that does not read."""
    lines = [one for one in caplog.records if "does not read its answers" in one.getMessage()]
    return [one.__dict__["waiting_bytes"] for one in lines]


async def test_a_mebibyte_of_output_waits_and_then_the_sender_does(pipe: Pipe) -> None:
    writer = PipeWriter(pipe[1], Framing(LONGEST), stall=WITHIN)
    count = 0
    while writer.send_now([FRAME]):
        count += 1
    assert ROOM - 2 * len(FRAME) <= count * len(FRAME) <= ROOM + 2**18
    blocked = asyncio.create_task(writer.send([FRAME]))
    await asyncio.sleep(0)
    assert not blocked.done()
    assert await received(pipe[0], (count + 1) * (len(FRAME) + 1)) == (FRAME + b"\n") * (count + 1)
    async with asyncio.timeout(WITHIN):
        await blocked
    assert writer.send_now([b"y"])
    assert await received(pipe[0], 2) == b"y\n"
    await writer.close(WITHIN)


async def test_a_frame_above_the_room_is_sent_alone(pipe: Pipe) -> None:
    writer = PipeWriter(pipe[1], Framing(LONGEST), stall=WITHIN)
    large = b"z" * (ROOM + 1)
    assert not writer.send_now([large])
    async with asyncio.timeout(WITHIN):
        await writer.send([large])
    assert await received(pipe[0], ROOM + 2) == large + b"\n"
    await writer.close(WITHIN)


async def test_a_parent_that_reads_nothing_is_named_and_not_cut(
    pipe: Pipe, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if it reads nothing from the beginning."""
    caplog.set_level(logging.WARNING)
    os.set_blocking(pipe[1], False)
    filled = 0
    with suppress(BlockingIOError):
        while True:
            filled += os.write(pipe[1], b"." * 4096)
    os.set_blocking(pipe[1], True)
    writer = PipeWriter(pipe[1], Framing(LONGEST), stall=0.05)
    await writer.send([b"x", FRAME, FRAME])
    size = 2 * (len(FRAME) + 1) + 2
    async with asyncio.timeout(WITHIN):
        while not (found := waiting(caplog)):
            await asyncio.to_thread(writer.send_now, [])  # a turn of the loop and of a thread
    assert found[0] == size
    assert (await received(pipe[0], filled + size))[filled:] == b"x\n" + (FRAME + b"\n") * 2
    assert not writer.lost.is_set()
    await writer.close(WITHIN)


async def test_a_parent_that_reads_is_not_named(
    pipe: Pipe, caplog: pytest.LogCaptureFixture
) -> None:
    """It reads for longer than a stall."""
    caplog.set_level(logging.WARNING)
    loop, stall = asyncio.get_running_loop(), 0.3
    writer, until = PipeWriter(pipe[1], Framing(LONGEST), stall), loop.time() + 2 * stall
    while loop.time() < until:
        await writer.send([FRAME])
        await received(pipe[0], len(FRAME) + 1)
    await writer.close(WITHIN)
    assert waiting(caplog) == []


async def test_the_loss_of_the_reader_ends_all_senders(pipe: Pipe) -> None:
    os.set_blocking(pipe[1], False)
    with contextlib.suppress(BlockingIOError):  # the thread can write nothing of its own
        while os.write(pipe[1], FRAME):
            pass
    os.set_blocking(pipe[1], True)
    writer = PipeWriter(pipe[1], Framing(LONGEST), stall=WITHIN)
    while writer.send_now([FRAME]):
        pass
    blocked = asyncio.create_task(writer.send([FRAME]))
    await asyncio.sleep(0)
    os.close(pipe[0])
    async with asyncio.timeout(WITHIN):
        await writer.lost.wait()
        with pytest.raises(ConnectionError):
            await blocked
    with pytest.raises(ConnectionError):
        await writer.send([b"x"])
    await writer.close(WITHIN)


async def test_the_next_frame_is_read_after_the_last_one_was_taken(pipe: Pipe) -> None:
    """So a flood of requests stays in the pipe."""
    taken: asyncio.Queue[Frame] = asyncio.Queue()
    may = asyncio.Semaphore(0)

    async def receive(frame: Frame) -> None:
        await may.acquire()
        taken.put_nowait(frame)

    os.write(pipe[1], b"{1}\n{2}\n{3}")
    os.close(pipe[1])
    reader = PipeReader(pipe[0], Framing(LONGEST), receive)
    async with asyncio.timeout(WITHIN):
        for frame in (b"{1}", b"{2}"):
            may.release()
            assert await taken.get() == frame
        assert not reader.ended.is_set()
        may.release()
        await reader.ended.wait()
        assert await taken.get() == b"{3}"
