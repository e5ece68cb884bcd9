"""The end of a turn whose CLI may still send a part of it."""

from __future__ import annotations

import asyncio

from bridge.session.ending import LONGEST, QUIET, EndBuffer
from bridge.task.events import AgentEvent, Done, Status, Text, Usage


def test_it_takes_all_from_the_first_end_on() -> None:
    buffer = EndBuffer()
    assert not buffer.takes([])
    assert not buffer.takes([Text("a")])
    assert buffer.takes([Text("a"), Done()])
    buffer.events = [Done()]
    assert buffer.takes([])


def test_the_last_end_counts_and_comes_last() -> None:
    buffer = EndBuffer()
    buffer.events = [Text("a"), Usage(1), Done("a"), Text("b"), Status("c")]
    end: list[AgentEvent] = [Usage(2), Done("b")]
    assert buffer.take(lambda: end) == [Text("a"), Text("b"), Status("c"), *end]
    assert buffer.events == []


def test_an_end_without_another_one_stays() -> None:
    buffer = EndBuffer()
    buffer.events = [Text("a"), Usage(1), Done("a")]
    assert buffer.take(lambda: ()) == [Text("a"), Usage(1), Done("a")]


async def test_it_waits_for_a_quiet_and_not_for_ever() -> None:
    """Half a second: LONGEST."""
    loop, buffer = asyncio.get_running_loop(), EndBuffer()
    released = asyncio.Event()
    began = loop.time()
    buffer.hold([Done()], released.set)
    async with asyncio.timeout(60):
        await released.wait()
    assert loop.time() - began >= QUIET
    buffer.take(lambda: ())
    released.clear()
    began = last = loop.time()
    number, pause = 0, 0.0  # the longest pause, of a machine that is busy
    async with asyncio.timeout(60):
        while not released.is_set():
            buffer.hold([Text("x")], released.set)
            number += 1
            await asyncio.sleep(0)
            pause, last = max(pause, loop.time() - last), loop.time()
    assert number > 1
    assert loop.time() - began >= LONGEST or pause >= QUIET
