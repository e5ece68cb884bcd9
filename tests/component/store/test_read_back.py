"""Stored updates of a task need not stay in memory: they are read back, with a journal and
without."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import sqlite3
import tracemalloc
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import orjson
import pytest

from bridge.a2a.codecs import CODECS
from bridge.errors import DataLoss, RequestError, TaskNotFound, Unavailable
from bridge.runtime.tasks import TaskManager
from bridge.store.changes import TaskRemoved
from bridge.store.handle import ENTRY, MOST_BEHIND, NEWEST, SMALL, TaskHandle, TaskHandles
from bridge.store.memory import MemoryStore
from bridge.store.protocol import TaskQuery
from bridge.store.replay import PIECE, RECENT, Recent
from bridge.store.sqlite.store import sqlite_errors
from bridge.task.artifact import Artifact
from bridge.task.events import Done, Event, Failed, Retracted, Status, Text
from bridge.task.message import TextPart
from bridge.task.state import StatusUpdate, Task, Update
from bridge.task.transitions import ENDINGS
from tests.support.client import RpcError, artifact_text, streamed_text, task_id
from tests.support.samples import some_event
from tests.support.served import serving
from tests.support.stored_tasks import begin, everything, happen, journal, store, stored_on_postgres

WITHIN = 60.0
NEVER = 3600.0
BLOCK = 8 * 1024
Numbered = list[tuple[int, Update]]


@pytest.fixture(params=["durable", "memory"])
async def tasks(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TaskHandles]:
    if request.param == "memory":
        yield TaskHandles("a", MemoryStore())
        return
    async with store(tmp_path) as durable:
        yield durable


@pytest.fixture(params=["sqlite", "memory", "postgresql"])
async def all_tasks(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TaskHandles]:
    """With each kind of store."""
    if request.param == "memory":
        yield TaskHandles("a", MemoryStore())
    elif request.param == "sqlite":
        async with store(tmp_path) as durable:
            yield durable
    else:
        async with stored_on_postgres(request.getfixturevalue("postgres_url")) as durable:
            yield durable


def noise(size: int, seed: int = 0) -> str:
    """Text of which nothing can be left out."""
    return b64encode(random.Random(seed).randbytes(size)).decode()[:size]


def encoded(task: Task) -> list[bytes]:
    return [orjson.dumps(codec.encode_task(task, None)) for codec in CODECS]


async def read(handle: TaskHandle, after: int = 0) -> Numbered:
    """All that comes after this number, up to the end, which must come."""
    async with asyncio.timeout(WITHIN):
        batches = handle.log.follow(after, NEVER)
        return [(entry.number, entry.update) async for batch in batches for entry in batch]


async def durable(tasks: TaskHandles) -> None:
    """Until all that has happened is."""
    await asyncio.wait_for(tasks.store.flush(), WITHIN)


async def gone(tasks: TaskHandles, handle: TaskHandle) -> None:
    """Until it is put away."""
    await durable(tasks)
    assert handle.back and len(handle.log) == 0


async def say(tasks: TaskHandles, name: str, size: int) -> TaskHandle:
    """A finished task with so much text, put away."""
    handle = begin(tasks, name)
    for start in range(0, size, BLOCK):
        happen(tasks, handle, Text(noise(min(BLOCK, size - start), start)))
        await handle.log.reached(handle.log.last)
    happen(tasks, handle, Done())
    await gone(tasks, handle)
    return handle


def lively(handle: TaskHandle, count: int, seed: int) -> Iterator[Event]:
    """Any events of a task; the terminal event is the last one."""
    chance = random.Random(seed)
    for number in range(count):
        while True:
            event = some_event(chance, handle.task, number)
            if type(event) not in ENDINGS:
                break
        yield event
        yield Text(noise(1500, number))  # in several pieces
        if number % 17 == 0:
            yield Retracted(100)
    yield Failed("x")


# --- put away -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
async def test_an_evicted_task_is_read_back_unchanged(all_tasks: TaskHandles, seed: int) -> None:
    tasks = all_tasks
    handle = begin(tasks, "t")
    before = handle.task  # who has it before it is put away has all of it
    live = asyncio.create_task(read(handle))
    for event in lively(handle, 150, seed):
        happen(tasks, handle, event)
        await asyncio.sleep(0)
    updates = await live
    assert handle.size > SMALL and len(updates) > 200
    await gone(tasks, handle)
    assert handle.task.artifacts == {} and handle.task.history == []
    head = (handle.task.id, handle.task.state, handle.task.status_time, handle.task.owner)
    assert head == (before.id, before.state, before.status_time, before.owner)
    whole = await handle.whole()
    assert whole is not before and encoded(whole) == encoded(before)
    for after in (0, 1, 7, len(updates) // 2, len(updates) - 1, len(updates), len(updates) + 5):
        assert await read(handle, after) == updates[after:]


async def test_a_small_task_is_not_evicted(tasks: TaskHandles) -> None:
    handle = begin(tasks, "t")
    happen(tasks, handle, Text("x" * (SMALL // 2)), Done())
    async with asyncio.timeout(WITHIN):
        await handle.log.reached(handle.log.last)
    assert handle.back is None
    assert await handle.whole() is handle.task
    assert await read(handle, 1) == (await read(handle))[1:]


async def test_who_ask_at_once_share_a_reading(tasks: TaskHandles) -> None:
    large = await say(tasks, "large", RECENT + BLOCK)
    asking = [asyncio.create_task(large.whole()) for _ in range(3)]
    await asyncio.sleep(0)
    asking[0].cancel()  # of whom one goes away
    async with asyncio.timeout(WITHIN):
        one, other = await asyncio.gather(*asking[1:])
    assert one is other
    assert await large.whole() is not one  # it is too large to be kept
    small = await say(tasks, "small", 2 * SMALL)
    assert await small.whole() is await small.whole()


class Spoiled(MemoryStore):
    """A store with `data` as its prompt, or of a database that has no table and is this file."""

    def __init__(self, file: Path, data: bytes, rows: bool) -> None:
        super().__init__()
        file.write_bytes(b"" if rows else data)
        self._database = sqlite3.connect(file)
        if rows:
            self._database.execute("CREATE TABLE task (prompt BLOB)")
            self._database.execute("INSERT INTO task VALUES (?)", (data,))

    async def close(self) -> None:
        self._database.close()

    async def prompt(self, task_id: str) -> bytes:
        with sqlite_errors():
            ((prompt,),) = self._database.execute("SELECT prompt FROM task")
        return bytes(prompt)


@pytest.mark.parametrize(
    ("data", "rows", "error", "advice"),
    [
        (b"", False, Unavailable, "try again in a moment"),
        (b"x" * 8192, False, DataLoss, "is damaged"),
        (b'{"id": 1}', True, DataLoss, "is damaged"),
        (b"\0", True, DataLoss, "is damaged"),
    ],
)
async def test_the_error_of_an_unreadable_task_says_whether_a_retry_helps(
    tmp_path: Path, data: bytes, rows: bool, error: type[RequestError], advice: str
) -> None:
    spoiled = Spoiled(tmp_path / "tasks.db", data, rows)
    head = begin(TaskHandles("a", MemoryStore()), "a").task.head()
    try:
        with pytest.raises(error, match=advice):
            await Recent(spoiled).get(head, 1)
    finally:
        await spoiled.close()


async def test_tasks_that_were_read_back_have_a_memory_limit(tasks: TaskHandles) -> None:
    size = RECENT // 4
    handles = [await say(tasks, f"t{number}", size) for number in range(8)]
    with traced() as kept:
        for handle in handles:
            await handle.whole()
    assert RECENT // 2 < kept[0] < 1.2 * RECENT
    newest = [await handle.whole() for handle in handles[-3:]]
    assert [await handle.whole() for handle in handles[-3:]] == newest


@contextlib.contextmanager
def traced() -> Iterator[list[int]]:
    """Bytes that the work has left in memory, and the maximum of allocated bytes."""
    found: list[int] = []
    gc.collect()
    tracemalloc.start()
    try:
        yield found
        gc.collect()
        found += tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()


async def test_a_finished_task_costs_little_memory(tasks: TaskHandles) -> None:
    size, count = 500_000, 6
    with traced() as kept:
        for number in range(count):
            await say(tasks, f"t{number}", size)
    per_byte = kept[0] / size / count
    print(f"kept of each byte: {per_byte:.3f}")
    assert per_byte < (0.02 if tasks.store.durable else 0.9)


# --- while it goes on ---------------------------------------------------------------------------


async def test_the_memory_of_a_long_task_is_limited(tasks: TaskHandles) -> None:
    handle = begin(tasks, "t")
    most = 0
    for number in range(20_000):
        happen(tasks, handle, Status(f"{number}"))
        if number % 100 == 0:
            async with asyncio.timeout(WITHIN):
                await handle.log.reached(handle.log.last)
        most = max(most, len(handle.log))
    assert most <= 2 * NEWEST // ENTRY + 100
    happen(tasks, handle, Done())
    numbers = [number for number, _ in await read(handle)]
    assert numbers == list(range(1, 20_002))


async def test_a_reader_from_the_beginning_of_a_long_task_misses_nothing(
    tasks: TaskHandles,
) -> None:
    """The stream begins with stored updates, and continues with new ones."""
    handle = begin(tasks, "t")
    for number in range(5000):
        happen(tasks, handle, Status(f"{number}"))
        if number % 100 == 0:
            await handle.log.reached(handle.log.last)
    assert len(handle.log) < 2500
    reader = asyncio.create_task(read(handle))
    middle = asyncio.create_task(read(handle, 1234))
    for number in range(5000, 9000):
        happen(tasks, handle, Status(f"{number}"))
        if number % 50 == 0:
            await asyncio.sleep(0)
    happen(tasks, handle, Done())
    found = await reader
    assert [number for number, _ in found] == list(range(1, 9002))
    events = [update.event for _, update in found[:-1] if isinstance(update, StatusUpdate)]
    assert events == [Status(f"{number}") for number in range(9000)]
    assert await middle == found[1234:]


async def test_a_slow_reader_has_a_memory_limit(tasks: TaskHandles) -> None:
    handle = begin(tasks, "t")
    happen(tasks, handle, Text("first"))
    batches = handle.log.follow(0, NEVER)
    async with asyncio.timeout(WITHIN):
        seen = [entry.number for entry in await anext(batches)]
    most = 0
    for number in range(400):
        happen(tasks, handle, Text(noise(BLOCK, number)))
        await handle.log.reached(handle.log.last)
        most = max(most, len(handle.log))
    assert 0.8 * MOST_BEHIND / BLOCK < most <= (MOST_BEHIND + NEWEST) // BLOCK + 2
    happen(tasks, handle, Done())
    async with asyncio.timeout(WITHIN):
        seen += [entry.number async for batch in batches for entry in batch]
    assert seen == list(range(1, handle.log.last + 1))
    await gone(tasks, handle)


async def test_a_reader_that_is_slow_twice_misses_nothing(tasks: TaskHandles) -> None:
    """For a task that continues, and for a task that is evicted in between."""
    handle = begin(tasks, "t")

    async def go_on() -> None:
        for number in range(6000):
            happen(tasks, handle, Status(f"{number}"))
            if number % 100 == 0:
                await handle.log.reached(handle.log.last)
        await durable(tasks)

    await go_on()
    batches, seen = handle.log.follow(0, NEVER), list[int]()
    async with asyncio.timeout(WITHIN):
        while len(seen) < 6000:
            seen += [entry.number for entry in await anext(batches)]
        await go_on()
        happen(tasks, handle, Done())
        await durable(tasks)
        seen += [entry.number async for batch in batches for entry in batch]
    assert seen == list(range(1, 12_002))
    await gone(tasks, handle)


async def test_reading_a_long_past_takes_little_memory(tasks: TaskHandles) -> None:
    handle = await say(tasks, "t", 4_000_000)
    count = 0
    with traced() as kept:
        async for batch in handle.log.follow(0, NEVER):
            count += len(batch)
    print(f"{kept[1]} bytes at most")
    assert count == handle.log.last
    assert kept[1] < 700_000


async def test_others_have_their_turn_while_a_task_is_read(tasks: TaskHandles) -> None:
    handle = await say(tasks, "t", 2_000_000)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    await handle.whole()
    other.cancel()
    assert turns >= 20


# --- what has to go -----------------------------------------------------------------------------


def remove(tasks: TaskHandles, name: str) -> None:
    tasks.store.append([TaskRemoved(name)], fence=None)
    tasks.remove(name)


async def test_a_task_that_is_removed_is_nowhere(tasks: TaskHandles) -> None:
    handle = await say(tasks, "t", 2 * SMALL)
    await handle.whole()
    remove(tasks, "t")
    await durable(tasks)
    assert await tasks.find("t") is None
    with pytest.raises(TaskNotFound):
        await handle.whole()
    with pytest.raises(LookupError):
        await read(handle)


async def test_who_reads_a_task_while_it_is_removed_gets_no_part_of_it(tasks: TaskHandles) -> None:
    handle = await say(tasks, "t", 20 * PIECE)
    reading = asyncio.create_task(handle.whole())
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # it has begun
    remove(tasks, "t")
    with pytest.raises(TaskNotFound):
        await asyncio.wait_for(reading, WITHIN)


# --- after a restart ----------------------------------------------------------------------------


DAMAGE = """
    UPDATE event SET events = CAST(replace(CAST(events AS TEXT), '[[', '{{') AS BLOB)
    WHERE task = 2 AND batch = 2"""


async def test_a_start_reads_of_finished_tasks_that_they_are(tmp_path: Path) -> None:
    async with store(tmp_path) as first:
        before = [await say(first, f"t{number}", 3 * SMALL) for number in range(3)]
        whole = [encoded(await handle.whole()) for handle in before]
    async with journal(tmp_path) as opened:
        opened.write((DAMAGE, ()))
    async with store(tmp_path) as second:
        found = await everything(second)
        assert [r.task for r in found] == [r.task for r in before]
        assert [(r.log.last, r.log.closed, r.size) for r in found] == [
            (r.log.last, True, r.size) for r in before
        ]
        with pytest.raises(DataLoss):  # of this one alone
            await found[1].whole()
        assert [encoded(await found[n].whole()) for n in (0, 2)] == [whole[0], whole[2]]
        with pytest.raises(ValueError):
            await read(found[1])
        assert await read(found[2], 2) == (await read(found[2]))[2:]


async def test_a_long_interrupted_task_continues(tmp_path: Path) -> None:
    """Cut short: the store closes, and nothing ends the task."""
    async with store(tmp_path) as first:
        handle = begin(first, "t")
        for number in range(3000):
            happen(first, handle, Status(f"{number}"))
        await durable(first)
        before = await following(handle, 3000)
    async with store(tmp_path) as second:
        ((handle, _),) = await second.restore()
        assert len(handle.log) < 2000
        assert await following(handle, 3000) == before
        happen(second, handle, Status("more"), Done())
        rest = await read(handle, 2990)
        assert rest[:10] == before[2990:]
        assert [number for number, _ in rest] == list(range(2991, 3003))


async def following(handle: TaskHandle, count: int) -> Numbered:
    """The first so many."""
    found: Numbered = []
    async with asyncio.timeout(WITHIN):
        async for batch in handle.log.follow(0, NEVER):
            found += [(entry.number, entry.update) for entry in batch]
            if len(found) >= count:
                break
    return found


async def handles(manager: TaskManager) -> list[TaskHandle]:
    store = manager.contexts.tasks.store
    page = await store.list(TaskQuery(agents=("jsonl",)))
    return [one for one in [await manager.find(head.task_id) for head in page.heads] if one]


# --- over HTTP ----------------------------------------------------------------------------------

LONG = "\n".join(["steps 700", "text end"])


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_eviction_is_invisible_for_clients(workspace: Path, version: str) -> None:
    async with serving(workspace) as server:
        client, (manager,) = server.client(version), server.managers
        live = await client.collect(LONG)
        name = task_id(live[0])
        (handle,) = await handles(manager)
        async with asyncio.timeout(WITHIN):
            while len(handle.log):  # noqa: ASYNC110 - until its stream lets go of it
                await asyncio.sleep(0.001)
        assert handle.back

        for after in (0, 300, len(live) - 2):
            params = {"id": name, "metadata": {"bridge": {"after": after}}}
            async with client._items(client._subscribe, params) as items:
                assert [item async for item in items] == live[after + 1 :]
        task = await client.get(name)
        assert artifact_text(task) == streamed_text(live)
        assert task["status"] == (live[-1].get("statusUpdate") or live[-1])["status"]
        if version == "1.0":
            async with server.http.get(f"{server.url}/a2a/rest/tasks/{name}", headers=V1) as got:
                assert await got.json() == task
            listed = await client.call("ListTasks", {"includeArtifacts": True})
            assert listed["tasks"] == [task]
            del task["artifacts"]
            assert (await client.call("ListTasks", {}))["tasks"] == [task]
            assert handle.outline is None  # its history is long
            task = await client.get(name)
            async with client.subscribe(name) as items:
                with pytest.raises(RpcError):
                    await anext(items)
        with pytest.raises(RpcError):
            await client.cancel(name)
        sent = await client.send(LONG)
        assert sent == await client.get(sent["id"])
        assert artifact_text(sent) == artifact_text(task)
        assert all(one.back for one in await handles(manager))


async def test_lists_read_nothing_back_where_little_is_shown(workspace: Path) -> None:
    async with serving(workspace) as server:
        client, (manager,) = server.client(), server.managers
        tool = {"type": "tool_call", "id": "1", "name": "Bash"}  # after which a block begins
        script = f"repeat 3000 abcdefgh\nline {json.dumps(tool)}\ntext done"
        task = await client.send(script)
        (handle,) = await handles(manager)
        assert handle.back and handle.outline  # at once
        del task["artifacts"]
        for _ in range(2):  # what is kept for lists, and what is read back for one
            assert (await client.call("ListTasks", {}))["tasks"] == [task]
            assert handle.outline
            handle.outline = None


V1 = {"A2A-Version": "1.0"}


def test_tiny_pieces_of_a_text_take_their_letters_alone() -> None:
    artifact = Artifact("a")
    with traced() as kept:
        for number in range(50_000):
            artifact.add_text(f"{number:08}", new_block=False)
    assert kept[0] < 50_000 * 8 * 1.2 + 20_000
    (part,) = artifact.parts
    assert part == TextPart("".join(f"{number:08}" for number in range(50_000)))
