"""Tasks that another server of the database writes: the copies, their readers, and lost hints."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar

import orjson
import psycopg
import pytest

from bridge.a2a.codecs import CODECS
from bridge.errors import DataLoss
from bridge.runtime.nodes.mirror import SharedTaskHandles
from bridge.store.changes import ContextKey, TaskRemoved
from bridge.store.handle import TaskHandle
from bridge.store.postgres.connect import parse
from bridge.store.postgres.store import POLL, PostgresStore
from bridge.store.protocol import TaskQuery
from bridge.task.events import (
    Canceled,
    Done,
    Failed,
    Interrupted,
    Rejected,
    Reply,
    Status,
    Text,
    TimedOut,
)
from bridge.task.message import Message, Role, TextPart
from bridge.task.state import Task
from tests.support.proxy import Proxy, serving
from tests.support.samples import some_event
from tests.support.servers import Postgres
from tests.support.stored_tasks import NOW, begin, happen, recorder

WITHIN = 60.0
NODE, OTHER = "0123456789abcdef", "fedcba9876543210"
LINGERS = 0.2
ENDS = (Done, Failed, Canceled, Interrupted, Rejected, Reply, TimedOut)


@asynccontextmanager
async def tasks_of(url: str, node: str, probe: float = 5.0) -> AsyncIterator[SharedTaskHandles]:
    store = PostgresStore(parse(url), node)
    store.bus.probe = probe
    await store.open()
    handles = SharedTaskHandles("a", store, lingers=LINGERS)
    try:
        yield handles
    finally:
        handles.close()
        async with asyncio.timeout(WITHIN):
            await store.close()


@pytest.fixture
async def pair(postgres_url: str) -> AsyncIterator[tuple[SharedTaskHandles, SharedTaskHandles]]:
    """The tasks at the server that writes them, and at one that reads them."""
    async with AsyncExitStack() as stack:
        writer = await stack.enter_async_context(tasks_of(postgres_url, NODE))
        await writer.store.claim(ContextKey("a", "", "c"), NODE, 1e9)
        yield writer, await stack.enter_async_context(tasks_of(postgres_url, OTHER))


async def copy_of(to: SharedTaskHandles, task_id: str) -> TaskHandle:
    found = await to.find(task_id)
    assert found and found.elsewhere
    return found


async def read(handle: TaskHandle, after: int = 0) -> list[tuple[int, bytes]]:
    """The numbers and the JSON of the updates, up to the end."""
    found = []
    async with asyncio.timeout(WITHIN):
        async for entries in handle.log.follow(after, 3600.0):
            for one in entries:
                encoded = CODECS[0].encode_update(handle.task, one.update, False)
                found.append((one.number, orjson.dumps(encoded)))
    return found


async def until(condition: Callable[[], object]) -> None:
    """For a condition without an event."""
    async with asyncio.timeout(WITHIN):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


Pair = tuple[SharedTaskHandles, SharedTaskHandles]


async def test_all_readers_share_a_copy_that_equals_the_original(pair: Pair) -> None:
    writer, reader = pair
    chance, original = random.Random(7), begin(writer, "t")
    readers = []
    for number in range(200):
        if not original.task.state.terminal:
            event = some_event(chance, original.task, number)
            if not isinstance(event, ENDS) or number > 150:
                happen(writer, original, event)
        if number % 20 == 0:
            await writer.store.flush()
            copy = await copy_of(reader, "t") if not original.task.state.terminal else None
            if copy:
                assert copy.log.visible == original.log.visible  # what one shows, each shows
                readers.append((copy, asyncio.create_task(read(copy))))
    if not original.task.state.terminal:
        happen(writer, original, Done())
    expected = await read(original)
    assert len(readers) > 1 and len({id(copy) for copy, _ in readers}) == 1
    for _, one in readers:
        assert await one == expected
    whole = [CODECS[0].encode_task(one.task, None) for one in (readers[0][0], original)]
    assert whole[0] == whole[1]


async def test_nothing_is_left_of_a_copy_after_its_readers(pair: Pair) -> None:
    writer, reader = pair
    for number in range(5):
        begin(writer, f"t{number}")
    await writer.store.flush()
    copies = [await copy_of(reader, f"t{number}") for number in range(5)]
    reading = [asyncio.create_task(read(copy)) for copy in copies[:3]]
    await until(lambda: len(reader.following) == 3)
    await asyncio.sleep(3 * LINGERS)  # those that are read stay
    assert set(reader.mirrors) == {"t0", "t1", "t2"}
    for one in reading:
        one.cancel()
    await asyncio.wait(reading)
    await until(lambda: not reader.mirrors and not reader.following)
    await until(lambda: not any("Mirror" in repr(one.get_coro()) for one in asyncio.all_tasks()))
    assert not reader.store.hints.active  # type: ignore[attr-defined]


async def test_the_number_of_idle_copies_is_bounded(
    pair: Pair,
) -> None:
    store = pair[1].store
    assert isinstance(store, PostgresStore)
    writer, reader = pair[0], SharedTaskHandles("a", store, most_idle=3)
    for number in range(10):
        begin(writer, f"t{number}")
    await writer.store.flush()
    for number in range(10):
        await copy_of(reader, f"t{number}")
    assert set(reader.mirrors) == {"t7", "t8", "t9"}
    reader.close()


async def test_hints_are_faster_than_polls(pair: Pair) -> None:
    """Updates one after the other: with polls alone, each would take about a second."""
    writer, reader = pair
    original, loop = begin(writer, "t"), asyncio.get_running_loop()
    happen(writer, original, Text("first"))
    await writer.store.flush()
    copy = await copy_of(reader, "t")
    reading = asyncio.create_task(read(copy))
    waits = []
    for number in range(12):
        begun = loop.time()
        happen(writer, original, Text(f"text {number}"))
        async with asyncio.timeout(WITHIN):
            await copy.log.reached(original.log.last)
        waits.append(loop.time() - begun)
    reading.cancel()
    assert sorted(waits)[6] < POLL / 3


async def test_a_removed_task_ends_its_readers(pair: Pair) -> None:
    writer, reader = pair
    begin(writer, "t")
    await writer.store.flush()
    reading = asyncio.create_task(read(await copy_of(reader, "t")))
    await until(lambda: reader.following)
    writer.store.append([TaskRemoved("t")], fence=None)
    assert await reading == []
    assert await reader.find("t") is None


async def test_a_damaged_task_is_reported(pair: Pair, postgres_url: str) -> None:
    writer, reader = pair
    happen(writer, begin(writer, "t"), Text("x"))
    await writer.store.flush()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE event SET events = 'x'")
    with pytest.raises(DataLoss):
        await reader.find("t")
    assert not reader.mirrors


async def test_other_numbers_than_stored_are_no_base_for_a_stream(
    pair: Pair, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Two versions of the bridge may make different updates of an event."""
    writer, reader = pair
    original = begin(writer, "t")
    happen(writer, original, Text("a"), Status("b"))
    happen(writer, original, Text("c"), Status("d"))
    await writer.store.flush()
    assert original.continues(1) and (await copy_of(reader, "t")).continues(1)
    reader.remove("t")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE event SET last = last + 1 WHERE batch = 2")
    copy = await copy_of(reader, "t")
    assert copy.renumbered and not copy.continues(1)
    assert caplog.text.count("other numbers") == 1


def begin_hidden(to: SharedTaskHandles, name: str) -> TaskHandle:
    task = Task(name, "c", NOW)
    prompt = Message("m", Role.USER, (TextPart(name),), name, "c")
    task.history.append(prompt)
    handle = TaskHandle(task, "a")
    recorder(to).begin(handle, prompt, hidden=True)
    return handle


async def is_shown(by: SharedTaskHandles, task_id: str) -> bool:
    await asyncio.sleep(0)
    page = await by.store.list(TaskQuery(agents=("a",)))
    listed = task_id in [head.task_id for head in page.heads]
    assert page.total == len(page.heads)
    assert (await by.find(task_id) is not None) == listed
    return listed


async def test_a_task_that_may_become_a_message_is_hidden_elsewhere(
    pair: Pair, postgres_url: str
) -> None:
    writer, reader = pair
    listed, output, reply, late = (begin_hidden(writer, name) for name in "abcd")
    await writer.store.claim(ContextKey("a", "", "c"), NODE, 1e9)
    await writer.store.flush()
    for one in (listed, output, reply, late):
        assert await is_shown(writer, one.task.id) and not await is_shown(reader, one.task.id)
    listed.show()
    happen(writer, output, Text("x"))
    happen(writer, reply, Reply((TextPart("x"),)))
    await writer.store.flush()
    shown = [await is_shown(reader, name) for name in "abcd"]
    assert shown == [True, True, False, False]
    writer.store.append([TaskRemoved("c")], fence=None)  # as the manager does
    await writer.store.flush()
    assert not await is_shown(reader, "c")
    again = PostgresStore(parse(postgres_url), NODE)  # its tasks stay tasks
    await again.open()
    assert await is_shown(reader, "d")
    await again.close()


class Deaf(Proxy):
    """Passes nothing on after drop(), on the connections that listen by then: neither bytes nor the
    end of the connection."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.listening = 0
        self._dropped = 0

    def drop(self) -> None:
        self._dropped = self.listening

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _number.set([0])
        await super().__call__(reader, writer)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool
    ) -> None:
        number = _number.get()
        while data := await reader.read(65536):
            if up and b"LISTEN" in data:
                self.listening += 1
                number[0] = self.listening
            if not 0 < number[0] <= self._dropped:
                writer.write(data)
                await writer.drain()


_number: ContextVar[list[int]] = ContextVar("number")  # of the listening connection, else 0


async def test_a_session_that_hears_nothing_is_replaced(
    database: Postgres,
    postgres_url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Takes a second, the pause of polls."""
    if not database.restarts:
        pytest.skip("the server of BRIDGE_TEST_POSTGRES has an address of its own")
    proxy = Deaf(database.port)
    async with AsyncExitStack() as stack:
        writer = await stack.enter_async_context(tasks_of(postgres_url, NODE))
        await writer.store.claim(ContextKey("a", "", "c"), NODE, 1e9)
        await stack.enter_async_context(serving(proxy))
        options = postgres_url.partition("&options=")[2]
        address = proxy.url.removeprefix("http://")
        url = f"postgresql://postgres@{address}/postgres?options={options}"
        reader = await stack.enter_async_context(tasks_of(url, OTHER, 0.5))
        original = begin(writer, "t")
        await writer.store.flush()
        copy = await copy_of(reader, "t")
        reading = asyncio.create_task(read(copy))
        await until(lambda: proxy.listening)
        happen(writer, original, Text("a"), Status("b"))
        await until(lambda: copy.log.visible == original.log.last)
        proxy.drop()
        dropped = proxy.listening  # a busy machine may have replaced a session before
        happen(writer, original, Text("c"), Status("d"))
        await until(lambda: copy.log.visible == original.log.last)  # by a poll
        await until(lambda: proxy.listening > dropped)
        await until(lambda: "arrive again" in caplog.text)
        happen(writer, original, Text("e"), Done())
        assert await reading == await read(original)
