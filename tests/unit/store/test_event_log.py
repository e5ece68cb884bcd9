"""The log of a task: each reader gets all entries, at its own speed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime

import pytest

from bridge.store.event_log import BATCH, Entry, EventLog
from bridge.task.state import StatusUpdate, Update
from bridge.task.transitions import TaskState
from tests.support.cases import each

NEVER = 3600.0  # seconds of a pause that no test waits for
SOON = 60.0  # seconds within which what must happen has happened
UPDATE = StatusUpdate(TaskState.WORKING, datetime(2026, 1, 2, tzinfo=UTC))
Batches = AsyncIterator[Sequence[Entry[Update]]]


def log(length: int) -> EventLog[Update]:
    made: EventLog[Update] = EventLog()
    made.append([UPDATE] * length)
    return made


async def numbers(batches: Batches) -> list[int]:
    """The numbers of the next batch."""
    batch = await asyncio.wait_for(anext(batches), SOON)
    return [entry.number for entry in batch]


async def rest(batches: Batches) -> list[int]:
    """All numbers up to the end of the log, which must come."""
    async with asyncio.timeout(SOON):
        return [entry.number async for batch in batches for entry in batch]


async def waiting(reader: asyncio.Task[list[int]]) -> None:
    """Until the reader has run as far as it can: it waits for the log."""
    for _ in range(5):
        await asyncio.sleep(0)
    assert not reader.done()


async def test_entries_count_from_one() -> None:
    assert EventLog().last == 0
    three = log(3)
    assert (three.last, len(three)) == (3, 3)
    assert await numbers(three.follow(0, NEVER)) == [1, 2, 3]


@each(("after", "seen"), [(0, [1, 2, 3]), (2, [3]), (3, []), (99, [])])
async def test_a_reader_gets_the_entries_after_its_number(after: int, seen: list[int]) -> None:
    three = log(3)
    three.close()
    assert await rest(three.follow(after, NEVER)) == seen


async def test_a_waiting_reader_gets_appended_entries() -> None:
    one = log(1)
    batches = one.follow(1, NEVER)
    reader = asyncio.create_task(numbers(batches))
    await waiting(reader)
    one.append([UPDATE, UPDATE])
    assert await reader == [2, 3]
    one.append([UPDATE])
    assert await numbers(batches) == [4]


async def test_appending_nothing_does_not_end_the_wait_with_an_entry() -> None:
    one = log(0)
    reader = asyncio.create_task(numbers(one.follow(0, NEVER)))
    await waiting(reader)
    one.append([])
    await waiting(reader)
    one.append([UPDATE])
    assert await reader == [1]


async def test_a_pause_without_entries_gives_an_empty_batch_each_time() -> None:
    one = log(1)
    batches = one.follow(1, 0.001)
    assert await numbers(batches) == []
    assert await numbers(batches) == []
    one.append([UPDATE])
    assert await numbers(batches) == [2]


async def test_closing_ends_all_readers_after_they_have_read_everything() -> None:
    one = log(2)
    readers = [asyncio.create_task(rest(one.follow(after, NEVER))) for after in (0, 1, 2)]
    await asyncio.gather(*(waiting(reader) for reader in readers))
    one.append([UPDATE])
    one.close()
    assert [await reader for reader in readers] == [[1, 2, 3], [2, 3], [3]]
    assert await rest(one.follow(1, NEVER)) == [2, 3]  # it can be read for ever


async def test_nothing_is_added_after_the_end() -> None:
    one = log(1)
    one.close()
    one.close()
    with pytest.raises(RuntimeError):
        one.append([UPDATE])
    assert one.last == 1


async def test_readers_do_not_depend_on_each_other() -> None:
    one = log(2)
    slow, fast = one.follow(0, NEVER), one.follow(0, NEVER)
    assert await numbers(fast) == [1, 2]
    one.append([UPDATE])
    assert await numbers(fast) == [3]
    assert await numbers(slow) == [1, 2, 3]


async def test_a_tap_gets_entries_while_its_reader_waits() -> None:
    one = log(1)
    taken: list[int] = []

    def tap(batch: Sequence[Entry[Update]]) -> bool:
        if len(batch) > 1:
            return False
        taken.extend(entry.number for entry in batch)
        return True

    batches = one.follow(0, NEVER, tap)
    assert await numbers(batches) == [1]  # which was there before
    one.append([UPDATE])  # nobody waits
    assert await numbers(batches) == [2]
    reader = asyncio.create_task(numbers(batches))
    await waiting(reader)
    for number in (3, 4):
        one.append([UPDATE])
        assert taken[-1] == number  # at once
        await waiting(reader)
    one.append([UPDATE] * 2)  # which the tap does not want
    assert await reader == [5, 6]
    last = asyncio.create_task(rest(batches))
    await waiting(last)
    one.append([UPDATE])
    one.close()
    assert await last == []
    assert taken == [3, 4, 7]


async def test_a_reader_with_a_tap_comes_to_the_end() -> None:
    one = log(0)
    reader = asyncio.create_task(rest(one.follow(0, NEVER, lambda batch: True)))
    await waiting(reader)
    number = one.add([UPDATE])
    one.close()
    await waiting(reader)
    one.publish(number)
    assert await reader == [1]


async def test_a_tap_that_fails_costs_no_reader_an_entry() -> None:
    one = log(0)

    def tap(batch: Sequence[Entry[Update]]) -> bool:
        raise RuntimeError

    readers = [
        asyncio.create_task(numbers(one.follow(0, NEVER, reader))) for reader in (tap, None, tap)
    ]
    for reader in readers:
        await waiting(reader)
    one.append([UPDATE])
    assert [await reader for reader in readers] == [[1]] * 3


async def test_a_reader_has_no_pause_while_its_tap_takes_all_entries() -> None:
    one = log(0)
    reader = asyncio.create_task(numbers(one.follow(0, 0.2, lambda batch: True)))
    await waiting(reader)
    loop = asyncio.get_running_loop()
    began = loop.time()
    while loop.time() - began < 0.5:
        one.append([UPDATE])
        await asyncio.sleep(0)
        assert not reader.done()
    assert await reader == []  # the pause, once nothing comes


async def test_a_pause_begins_at_the_last_entry_of_the_tap() -> None:
    one = log(0)
    reader = asyncio.create_task(numbers(one.follow(0, 1.0, lambda batch: True)))
    await waiting(reader)
    one.append([UPDATE])
    loop = asyncio.get_running_loop()
    taken = loop.time()
    ends: list[float] = []
    second = asyncio.create_task(asyncio.sleep(1.0))
    second.add_done_callback(lambda done: ends.append(loop.time()))
    assert await reader == []
    ended = loop.time()
    await second
    assert ended - taken >= 1.0
    later = ended - ends[0]
    assert later < 0.9  # not once more after the first second


async def test_a_reader_that_goes_away_leaves_the_others_their_entries() -> None:
    one = log(0)
    gone = asyncio.create_task(numbers(one.follow(0, NEVER)))
    stays = asyncio.create_task(numbers(one.follow(0, NEVER)))
    await asyncio.gather(waiting(gone), waiting(stays))
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    one.append([UPDATE])
    assert await stays == [1]


async def test_a_long_backlog_is_read_in_pieces_and_in_order() -> None:
    long = log(2 * BATCH + 1)
    batches = long.follow(0, NEVER)
    sizes = [len(await numbers(batches)) for _ in range(3)]
    assert sizes == [BATCH, BATCH, 1]
    long.close()
    assert await rest(long.follow(0, NEVER)) == list(range(1, 2 * BATCH + 2))


async def test_all_readers_share_the_same_entries() -> None:
    one = log(1)
    (first,) = await anext(one.follow(0, NEVER))
    (second,) = await anext(one.follow(0, NEVER))
    assert first is second
    assert first.update is UPDATE


async def test_a_change_can_be_waited_for() -> None:
    one = log(0)
    changes: tuple[Callable[[], None], ...] = (lambda: one.append([UPDATE]), one.close)
    for change in changes:
        waiter = asyncio.create_task(one.changed())
        await asyncio.sleep(0)
        assert not waiter.done()
        change()
        await asyncio.wait_for(waiter, SOON)
    await asyncio.wait_for(one.changed(), SOON)  # it is closed: there is nothing to wait for


@each("entries", [True, False])
async def test_released_entries_are_freed_after_their_last_reader(entries: bool) -> None:
    one = log(2)
    async with aclosing(one.follow(0, NEVER)) as earlier:  # type: ignore[type-var]
        (first, _) = await anext(earlier)
    assert first.rendered is None
    first.rendered = {"form": b"x"}
    batches = one.follow(1, NEVER)
    assert await numbers(batches) == [2]
    one.close()
    one.release(entries)
    assert first.rendered and len(one) == 2
    assert await rest(batches) == []
    assert one.last == 2
    assert len(one) == 0 if entries else first.rendered is None


@each("tapped", [False, True])
async def test_the_rendered_bytes_are_freed_after_all_readers(tapped: bool) -> None:
    """For a task with much output, they are larger than all other data of the log."""
    one, entries = log(2), dict[int, Entry[Update]]()

    def write(batch: Sequence[Entry[Update]]) -> bool:
        for entry in batch:
            entry.rendered = {"form": b"x"}
            entries[entry.number] = entry
        return True

    async def read(batches: Batches) -> list[int]:
        async for batch in batches:
            write(batch)
        return []

    def kept() -> list[int]:
        return [number for number, entry in entries.items() if entry.rendered]

    slow = one.follow(0, NEVER)
    write(await anext(slow))
    assert kept() == [1, 2]
    reading = asyncio.create_task(read(one.follow(2, NEVER, write if tapped else None)))
    await waiting(reading)
    one.append([UPDATE] * 2)
    await waiting(reading)
    assert kept() == [1, 2, 3, 4]
    assert await numbers(slow) == [3, 4]  # which has written the former by now
    assert kept() == [3, 4]
    one.close()
    assert await rest(slow) == [] == await asyncio.wait_for(reading, SOON)
    assert kept() == []


async def test_so_many_of_the_newest_are_kept_at_least() -> None:
    one: EventLog[Update] = EventLog(keep=10)
    for _ in range(100):
        one.append([UPDATE, UPDATE])
        assert min(one.last, 10) <= len(one) <= 24
    assert (await numbers(one.follow(0, NEVER)))[-1] == 200
