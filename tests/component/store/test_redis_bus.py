"""Hints by Redis: what arrives, and what a fault of Redis costs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest

from bridge.cli.doctor.database import database
from bridge.errors import ConfigurationError
from bridge.errors.extras import install_line
from bridge.runtime.nodes.mirror import SharedTaskHandles
from bridge.server.settings.root import Settings
from bridge.store.changes import ContextKey
from bridge.store.postgres.connect import parse
from bridge.store.postgres.redis_bus import EXPIRES, MOST_ENTRIES, RedisBus
from bridge.store.postgres.store import POLL, PostgresStore
from bridge.store.redis_address import parse_redis
from bridge.task.events import Done, Text
from tests import CHECKOUT
from tests.support.proxy import Proxy, port_of, serving
from tests.support.redis_server import PASSWORD, RedisServer
from tests.support.stored_tasks import begin, happen

WITHIN = 60.0
PROBE = 0.3  # seconds
KEY = "bridge:cluster:{}"
NODES = ("0123456789abcdef", "fedcba9876543210")
Buses = tuple["Heard", "Heard"]


async def until(condition: Callable[[], object]) -> None:
    """For a condition without an event."""
    async with asyncio.timeout(WITHIN):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class Heard:
    """A bus with the payloads that it has heard; `restored`: the times that it began to listen."""

    def __init__(self, url: str) -> None:
        self.payloads: list[str] = []
        self.restored = self.alive = 0
        self.bus = RedisBus(
            parse_redis(url), heard=self.payloads.append, restored=self._count, alive=self._live
        )
        self.bus.probe = PROBE

    def _count(self) -> None:
        self.restored += 1

    async def _live(self) -> None:
        self.alive += 1


@asynccontextmanager
async def listening(url: str, *channels: str) -> AsyncIterator[list[Heard]]:
    found = [Heard(url) for _ in channels]
    for one, channel in zip(found, channels, strict=True):
        one.bus.start(channel, "cluster", "", 1)
    await until(lambda: all(one.restored for one in found))
    try:
        yield found
    finally:
        for one in found:
            await one.bus.close()


@pytest.fixture
async def pair(redis_server: RedisServer) -> AsyncIterator[Buses]:
    async with listening(redis_server.url, "a", "b") as (a, b):
        yield a, b


def own(server: RedisServer) -> None:
    if not server.own:
        pytest.skip("the server of BRIDGE_TEST_REDIS belongs to someone else")


async def told(sender: Heard, receiver: Heard, payload: str) -> None:
    """Send until it arrives: hints of the time of a fault are lost."""
    async with asyncio.timeout(WITHIN):
        while payload not in receiver.payloads:
            sender.bus.send("b", payload)
            await asyncio.sleep(0.02)


async def test_hints_arrive_once_and_in_order(pair: Buses, redis_server: RedisServer) -> None:
    a, b = pair
    sent = [f"hint {number} ü" for number in range(1000)]
    for one in sent:
        a.bus.send("b", one)
    await until(lambda: len(b.payloads) >= len(sent))
    assert b.payloads == sent and a.payloads == []
    with redis_server.client() as client:
        left: Any = client.ttl(KEY.format("b"))
        assert 0 < left <= EXPIRES
    await until(lambda: a.alive and b.alive)  # after the first probe


async def test_a_reconnect_continues_after_the_last_hint(
    pair: Buses, redis_server: RedisServer
) -> None:
    a, b = pair
    sent = []
    for number in range(300):
        sent.append(f"{number}")
        a.bus.send("b", sent[-1])
        if number % 50 == 25:
            await until(lambda: b.payloads)
            with redis_server.client() as client:
                for one in client.client_list():
                    if one["cmd"] == "xread":
                        client.client_kill_filter(_id=one["id"])
    await until(lambda: b.payloads[-1:] == sent[-1:])
    assert b.payloads == sent


class Door(Proxy):
    """Has no connections while it is closed."""

    closed = False

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._cut: set[asyncio.StreamWriter] = set()

    def close(self) -> None:
        self.closed = True
        for one in self._cut:
            one.transport.abort()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._cut.add(writer)
        if self.closed:
            writer.transport.abort()
        else:
            await super().__call__(reader, writer)


async def test_hints_of_a_time_without_a_connection_arrive(redis_server: RedisServer) -> None:
    """Takes a second: the connection is away for longer than redis-py tries by itself."""
    own(redis_server)
    door = Door(redis_server.port)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(door))
        there = redis_server.url.replace(f":{redis_server.port}/", f":{port_of(door.url)}/")
        (a,) = await stack.enter_async_context(listening(redis_server.url, "a"))
        (b,) = await stack.enter_async_context(listening(there, "b"))
        await told(a, b, "before")
        known = len(b.payloads)
        door.close()
        await until(lambda: not b.bus.works)
        sent = [f"{number}" for number in range(100)]
        for one in sent:
            a.bus.send("b", one)
        await until(lambda: a.bus.works)
        door.closed = False
        await until(lambda: b.payloads[-1:] == sent[-1:])
        assert [one for one in b.payloads[known:] if one != "before"] == sent


def wrong_type(client: Any, key: str) -> None:
    client.set(key, "x", xx=True)


def last_id(client: Any, key: str) -> None:
    client.xadd(key, {"h": "forged"}, id=f"{2**64 - 1}-{2**64 - 1}")


def future_id(client: Any, key: str) -> None:
    client.xadd(key, {"h": "forged"}, id=f"{2**60}-0")
    client.delete(key)  # a restart with an older clock has this effect, too


def no_hints(client: Any, key: str) -> None:
    client.xadd(key, {"x": "y"})
    client.xadd(key, {"h": b"\xff\xfe"})
    client.xadd(key, {"h": "alive"})


def flushed(client: Any, key: str) -> None:
    client.flushall()


@pytest.mark.parametrize("fault", [wrong_type, last_id, future_id, no_hints, flushed])
async def test_hints_return_after_a_fault_of_the_stream(
    pair: Buses, redis_server: RedisServer, fault: Callable[[Any, str], None]
) -> None:
    """Takes a second with the faults that only a missing probe shows."""
    if fault is flushed:
        own(redis_server)
    a, b = pair
    await told(a, b, "before")
    with redis_server.client() as client:
        fault(client, KEY.format("b"))
    await told(a, b, "after")
    await until(lambda: a.bus.works and b.bus.works)


async def test_hints_return_after_an_empty_restart(
    pair: Buses, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Takes seconds: the attempts to connect have growing pauses."""
    own(redis_server)
    a, b = pair
    await told(a, b, "before")
    redis_server.kill()
    await until(lambda: not (a.bus.works or b.bus.works))
    redis_server.start()
    await told(a, b, "after")
    await until(lambda: a.bus.works and b.bus.works and b.restored == 2)
    assert caplog.text.count("do not arrive") == 2 == caplog.text.count("arrive again")
    assert PASSWORD not in caplog.text


async def test_a_slow_server_misses_old_hints_only(pair: Buses, redis_server: RedisServer) -> None:
    """Takes a second, the time for so many hints."""
    a, b = pair
    await b.bus.close()  # it does not read
    count = MOST_ENTRIES + 3000
    for number in range(count):
        a.bus.send("b", f"{number}")
        if number % 1000 == 0:
            await asyncio.sleep(0)
    with redis_server.client() as client:

        def newest() -> list[Any]:
            found: Any = client.xrevrange(KEY.format("b"), count=1)
            return [fields[b"h"] for _, fields in found]

        await until(lambda: newest() == [b"%d" % (count - 1)])
        length: Any = client.xlen(KEY.format("b"))
        assert MOST_ENTRIES <= length < count
    again: Heard = b
    again.bus.start("b", "cluster", "", 1)
    await until(lambda: again.payloads[-1:] == [f"{count - 1}"])
    assert again.payloads == [f"{number}" for number in range(count - len(b.payloads), count)]


async def test_a_wrong_password_is_reported_without_it(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    own(redis_server)
    wrong = Heard(redis_server.url.replace(PASSWORD, "wrong-password"))
    wrong.bus.start("a", "cluster", "", 1)
    await until(lambda: "do not arrive" in caplog.text)
    assert not wrong.bus.works and wrong.restored == 0
    assert "wrong-password" not in caplog.text
    await wrong.bus.close()


@pytest.mark.parametrize(
    ("url", "shown", "exposed"),
    [
        ("redis://127.0.0.1/1", "Redis at 127.0.0.1:6379", False),
        ("redis://me:pass%40word@[::1]:7000", "Redis at ::1:7000", False),
        ("unix:///run/redis.sock?db=2", "Redis at /run/redis.sock", False),
        ("redis://:pass%40word@cache.example", "Redis at cache.example:6379", True),
        ("rediss://:pass%40word@cache.example", "Redis at cache.example:6379", False),
        ("rediss://cache.example?ssl_cert_reqs=none", "Redis at cache.example:6379", True),
        ("rediss://cache.example?ssl_check_hostname=no", "Redis at cache.example:6379", True),
    ],
)
def test_an_address_shows_no_password(url: str, shown: str, exposed: bool) -> None:
    found = parse_redis(url)
    assert (found.shown, found.exposed) == (shown, exposed)


@pytest.mark.parametrize("rest", ["host:port", "host?unknown=1", "host?socket_timeout=x", "[::1"])
def test_a_url_that_cannot_be_used_is_refused_without_its_password(rest: str) -> None:
    with pytest.raises(ConfigurationError, match=r"BRIDGE_BUS.*%XX") as refused:
        parse_redis(f"redis://:pass-word@{rest}")
    assert "pass-word" not in str(refused.value)


def test_a_missing_library_is_named() -> None:
    """Takes a second, the imports of another process."""
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from bridge.server.extras import redis_bus\nredis_bus('redis://h')"
    )
    argv = [sys.executable, "-c", code]
    done = subprocess.run(
        argv, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False
    )
    assert install_line("redis") in done.stderr.splitlines()[-1]


async def test_the_doctor_reaches_redis(postgres_url: str, redis_server: RedisServer) -> None:
    own(redis_server)
    given = {"bridge_store": postgres_url, "bridge_bus": redis_server.url}
    found = await database(Settings().updated(given))
    assert [(one.name, one.status) for one in found if one.name == "bus"] == [("bus", "ok")]
    redis_server.kill()
    found = await database(Settings().updated(given))
    assert [(one.name, one.status) for one in found if one.name == "bus"] == [("bus", "failed")]
    assert PASSWORD not in repr(found)


# --- in the store ---------------------------------------------------------------------------------


@asynccontextmanager
async def tasks_of(url: str, node: str, redis: str) -> AsyncIterator[SharedTaskHandles]:
    store = PostgresStore(parse(url), node)
    store.use_bus(partial(RedisBus, parse_redis(redis)))
    store.bus.probe = PROBE
    await store.open()
    handles = SharedTaskHandles("a", store)
    try:
        yield handles
    finally:
        handles.close()
        async with asyncio.timeout(WITHIN):
            await store.close()


async def test_a_task_of_another_server_is_read_in_time_and_whole(
    postgres_url: str, redis_server: RedisServer
) -> None:
    """With Redis, after its loss, and after an empty restart. Takes seconds, because without hints
    each update is up to a second late."""
    own(redis_server)
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        both = [
            await stack.enter_async_context(tasks_of(postgres_url, node, redis_server.url))
            for node in NODES
        ]
        writer, reader = both
        await writer.store.claim(ContextKey("a", "", "c"), NODES[0], 1e9)
        original = begin(writer, "t")
        happen(writer, original, Text("first"))
        await writer.store.flush()
        copy = await reader.find("t")
        assert copy and copy.elsewhere
        numbers: list[int] = []

        async def read() -> None:
            async for entries in copy.log.follow(0, 3600.0):
                numbers.extend(one.number for one in entries)

        reading = asyncio.create_task(read())

        async def waits(count: int) -> list[float]:
            found = []
            for number in range(count):
                begun = loop.time()
                happen(writer, original, Text(f"text {number}"))
                async with asyncio.timeout(WITHIN):
                    await copy.log.reached(original.log.last)
                found.append(loop.time() - begun)
            return sorted(found)

        async def in_time() -> None:
            async with asyncio.timeout(WITHIN):
                while (await waits(5))[2] > POLL / 3:
                    pass

        assert (await waits(12))[6] < POLL / 3
        assert isinstance(reader.store, PostgresStore) and reader.store.bus.works
        redis_server.kill()
        assert (await waits(2))[-1] < 2 * POLL
        redis_server.start()
        await in_time()
        happen(writer, original, Done())
        async with asyncio.timeout(WITHIN):
            await reading
        assert numbers == list(range(1, original.log.last + 1))
