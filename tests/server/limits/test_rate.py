"""How often something may happen: buckets, the door of a server, and lines of the log."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from bridge.a2a.card import Card
from bridge.auth.principal import OPERATOR, Principal
from bridge.auth.token_bucket import LINES_A_BURST, RateLimitedLogs, TokenBucket, TokenBuckets
from bridge.server.app.application import make_app
from bridge.server.app.sites import ServedAgent
from bridge.server.settings.root import Settings
from bridge.transports.listener.connection_limits import Connection, ConnectionLimits, LimitedRunner
from bridge.transports.listener.rate_limit import (
    ACCEPTED_AT_ONCE,
    MOST_PEERS,
    REFUSED_AT_ONCE,
    SHARED,
    Peers,
    RateLimitedListener,
    peer_of,
)
from bridge.transports.operation import Operations
from tests.support.cases import each
from tests.support.counting import counted
from tests.support.served import serving

WITHIN = 60.0
SLOW = 0.001  # per second: nothing is filled again while a test runs


# --- buckets -----------------------------------------------------------------------------------


def test_a_bucket_lets_a_burst_through_and_then_so_many_per_second() -> None:
    bucket = TokenBucket(SLOW, 3)
    assert [bucket.take() for _ in range(5)] == [True, True, True, False, False]
    quick = TokenBucket(200, 10)
    begun, taken = time.monotonic(), 0
    while taken < 100:
        taken += quick.take()
        assert time.monotonic() - begun < WITHIN
    assert taken <= 10 + 200 * (time.monotonic() - begun) + 1


def test_who_has_waited_long_has_a_burst_and_no_more() -> None:
    bucket = TokenBucket(100, 5)
    begun = time.monotonic()
    while time.monotonic() - begun < 0.3:  # in which 30 would have come together
        pass
    begun = time.monotonic()
    taken = [bucket.take() for _ in range(30)].count(True)
    assert 5 <= taken <= 5 + 100 * (time.monotonic() - begun) + 1


def test_the_debt_of_a_bucket_is_limited() -> None:
    bucket = TokenBucket(100, 10)
    for _ in range(1000):
        bucket.charge(10)
    begun = time.monotonic()
    while not bucket.take():
        assert time.monotonic() - begun < WITHIN
    assert time.monotonic() - begun > 0.09  # from -10 to 1, at 100 per second


def test_the_longest_unused_bucket_is_evicted() -> None:
    buckets: TokenBuckets[int] = TokenBuckets(most=2)
    first, second = (buckets.get(key, SLOW, 1) for key in (1, 2))
    assert buckets.get(1, SLOW, 1) is first
    buckets.get(3, SLOW, 1)
    assert buckets.get(1, SLOW, 1) is first and buckets.get(2, SLOW, 1) is not second


def test_a_bucket_tells_how_long_to_wait() -> None:
    bucket = TokenBucket(rate=0.5, burst=1)
    assert bucket.wait() == 0
    assert bucket.take() and not bucket.take()
    assert 1.5 < bucket.wait() <= 2


def test_each_peer_has_a_bucket_and_local_programs_have_a_larger_one() -> None:
    peers = Peers(SLOW, burst=2, shared=5)
    assert [peers.admits("192.0.2.1") for _ in range(3)] == [True, True, False]
    assert peers.admits("192.0.2.2")
    for address in SHARED:
        peers.charge(address, 100)  # which is not theirs alone
        assert [peers.admits(address) for _ in range(6)] == [True] * 5 + [False]
    peers.charge("192.0.2.3", 1)
    assert [peers.admits("192.0.2.3") for _ in range(2)] == [True, False]
    unlimited = Peers(0, burst=0, shared=0)
    unlimited.charge("192.0.2.1", 100)
    assert all(unlimited.admits("192.0.2.1") for _ in range(1000))


def test_so_many_peers_are_remembered_the_last_ones() -> None:
    peers = Peers(SLOW, burst=1, shared=1)
    assert peers.admits("busy")
    for number in range(2 * MOST_PEERS):
        assert peers.admits(number)
        assert number % 100 or not peers.admits("busy")


@each(
    ("address", "peer"),
    [
        (("192.0.2.1", 5), "192.0.2.1"),
        (("::1", 5, 0, 0), "::1"),
        (("2001:db8:1:2:3::4", 5, 0, 0), 0x20010DB800010002),
        (("2001:db8:1:2:ffff::1", 5, 0, 0), 0x20010DB800010002),
        (("fe80::1%eth0", 5, 0, 2), 0xFE80000000000000),
        ("", ""),
        (None, ""),
    ],
)
def test_a_peer_is_an_address_or_a_network_of_them(address: object, peer: object) -> None:
    assert peer_of(address) == peer


# --- the door ----------------------------------------------------------------------------------


@asynccontextmanager
async def doorkeeper(per_second: int, **more: int) -> AsyncIterator[int]:
    """A server with that limit, and its port."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", answer)
    runner = LimitedRunner(
        app, ConnectionLimits(per_second=per_second, **more), shutdown_timeout=0.5
    )
    await runner.setup()
    site = runner.site(socket.create_server(("127.0.0.1", 0)))
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def answered(port: int, last: int = 1, send: bytes | None = None) -> int:
    """The status that a new connection of 127.0.0.`last` gets; 0 if it is cut."""
    request = send or b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    async with asyncio.timeout(WITHIN):
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(f"127.0.0.{last}", 0)
            )
        except ConnectionError:
            return 0
        try:
            writer.write(request)
            line = await reader.readline()
            return int(line.split()[1]) if line else 0
        except ConnectionError:
            return 0
        finally:
            writer.transport.abort()


async def test_only_a_client_above_its_rate_is_cut() -> None:
    async with doorkeeper(5, per_peer=10) as port:
        begun = time.monotonic()
        got = [await answered(port, 9) for _ in range(100)]
        took = time.monotonic() - begun
        assert got[:10] == [200] * 10
        assert 10 <= got.count(200) <= 10 + 5 * took + 1
        assert set(got) == {200, 0}
        for other in (1, 10):
            assert [await answered(port, other) for _ in range(5)] == [200] * 5
        async with asyncio.timeout(WITHIN):
            while await answered(port, 9) != 200:  # some time later it may again
                pass


def pending(address: tuple[str, int], count: int, stack: ExitStack) -> list[socket.socket]:
    """Connections of 127.0.0.9 that the kernel keeps until the server accepts them."""
    made = []
    for _ in range(count):
        one = stack.enter_context(socket.create_connection(address, WITHIN, ("127.0.0.9", 0)))
        one.setblocking(False)
        made.append(one)
    return made


def is_cut(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_one_pass_of_the_door_cuts_so_many_and_no_more() -> None:
    """The loop serves others between two passes."""
    with (
        ExitStack() as stack,
        RateLimitedListener(socket.create_server(("127.0.0.1", 0)), lambda _: False) as door,
    ):
        door.listen()
        door.setblocking(False)
        flood = pending(door.getsockname(), 3 * REFUSED_AT_ONCE, stack)
        for passes in (1, 2, 3):
            with pytest.raises(BlockingIOError):
                door.accept()
            assert sum(map(is_cut, flood)) == passes * REFUSED_AT_ONCE


async def test_one_turn_of_the_loop_accepts_so_many_and_no_more() -> None:
    with ExitStack() as stack:
        async with doorkeeper(0, per_peer=1000) as port:
            with counted() as calls:
                pending(("127.0.0.1", port), 100, stack)
                made = [0]
                for _ in range(1000):
                    await asyncio.sleep(0)  # a turn of the loop
                    made.append(calls.of(Connection.connection_made))
            assert made[-1] == 100
            # In each pass, asyncio may accept one more than it was told.
            turns = pairwise(made)
            assert max(after - before for before, after in turns) <= ACCEPTED_AT_ONCE + 1


async def test_rejected_connections_reach_no_handler() -> None:
    with ExitStack() as stack:
        async with doorkeeper(1, per_peer=10) as port:
            begun = time.monotonic()
            with counted() as calls:
                flood = pending(("127.0.0.1", port), 500, stack)
                for _ in range(1000):
                    await asyncio.sleep(0)  # a turn of the loop
            assert sum(map(is_cut, flood)) > 400
            allowed = 10 + 1 + time.monotonic() - begun
            assert calls.of(Connection.__init__) <= allowed
            assert calls.of(Peers.admits) == 500
            assert calls.ours < 500 * 20


async def test_a_burst_of_this_machine_passes() -> None:
    async with doorkeeper(5) as port:
        got = await asyncio.gather(*(answered(port) for _ in range(20 * ACCEPTED_AT_ONCE)))
        assert set(got) == {200}


async def test_who_speaks_no_http_is_cut_sooner() -> None:
    async with doorkeeper(5, per_peer=40) as port:
        got = [await answered(port, 9, b"nonsense\r\n\r\n") for _ in range(30)]
        assert 4 <= got.count(400) <= 6
        assert got[-20:].count(0) >= 19
        assert await answered(port, 10) == 200
        assert await answered(port) == 200


async def test_without_a_limit_all_may_come() -> None:
    async with doorkeeper(0) as port:
        assert {await answered(port, 9) for _ in range(200)} == {200}


async def test_connections_that_are_open_are_served_while_others_are_cut() -> None:
    async with doorkeeper(1, per_peer=2) as port, aiohttp.ClientSession() as http:
        flood = [asyncio.create_task(answered(port, 9)) for _ in range(500)]
        for _ in range(50):
            async with http.get(f"http://127.0.0.1:{port}/") as response:
                assert await response.text() == "hello"
        assert (await asyncio.gather(*flood)).count(0) >= 490


# --- lines of the log --------------------------------------------------------------------------


def record(message: str) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": message})


def test_a_repeated_log_line_is_written_a_few_times_and_then_counted() -> None:
    seldom = RateLimitedLogs()
    assert [seldom.filter(record("a")) for _ in range(1000)].count(True) == LINES_A_BURST
    assert seldom.filter(record("another"))
    begun = time.monotonic()
    while not seldom.filter(later := record("a")):
        assert time.monotonic() - begun < WITHIN
    assert vars(later)["more"] >= 990


def test_lines_that_are_never_the_same_are_counted_together() -> None:
    seldom = RateLimitedLogs()
    told = [seldom.filter(record(f"{number}")) for number in range(10_000)].count(True)
    assert told <= 2 * LINES_A_BURST
    assert len(seldom._kinds) <= LINES_A_BURST + 1


class Broken(Operations):
    """Operations with a mistake in them."""

    def __init__(self) -> None:
        pass

    async def call(self, *_: Any) -> Any:
        raise RuntimeError("a secret")


def make_broken(address: str) -> Card:
    raise RuntimeError("a secret")


class Identified:
    """The operator sends each request; one header breaks the server."""

    async def __call__(self, request: web.Request) -> Principal:
        return await identify(request)

    async def known(self, request: web.Request) -> Principal:
        return await identify(request)


async def identify(request: web.Request) -> Principal:
    if request.headers.get("Authorization") == "break":
        raise RuntimeError("a secret")
    return OPERATOR


REQUESTS = {
    "identification": ("/a2a/rest/tasks", {"Authorization": "break"}),
    "card": ("/.well-known/agent-card.json", {}),
    "operation": ("/a2a/rest/tasks", {"A2A-Version": "1.0"}),
}


@pytest.mark.parametrize("where", REQUESTS)
async def test_a_handler_that_fails_does_not_fill_the_log(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    nothing: Any = None
    agent = ServedAgent(
        id="broken", manager=nothing, router=nothing, operations=Broken(), card=make_broken
    )
    runner = LimitedRunner(
        make_app(agent, [], settings=Settings(), identify=Identified()),
        ConnectionLimits(),
    )
    await runner.setup()
    await runner.site(socket.create_server(("127.0.0.1", 0))).start()
    path, headers = REQUESTS[where]
    url = f"http://127.0.0.1:{runner.addresses[0][1]}{path}"
    begun, sent = time.monotonic(), 0
    async with asyncio.timeout(WITHIN), aiohttp.ClientSession(headers=headers) as http:
        while sent < 1000 or not failures(caplog):  # another test may have had its lines
            sent += 1
            async with http.get(url) as response:
                assert response.status == 500
                error = (await response.json())["error"]
                assert error["status"] == "INTERNAL" and "secret" not in str(error)
    await runner.cleanup()
    failed = failures(caplog)
    assert len(failed) <= LINES_A_BURST + time.monotonic() - begun + 1
    assert all(one.exc_info for one in failed)


def failures(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.levelno >= logging.WARNING]


async def test_connections_without_credentials_give_way_to_others(tmp_path: Path) -> None:
    """All programs of a machine have one address, agents included."""
    settings: dict[str, Any] = {"bridge_token": "t" * 32, "bridge_max_connections": 16}
    async with serving(tmp_path, **settings) as server, AsyncExitStack() as stack:
        host, port = server.url.removeprefix("http://").split(":")

        async def opened() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            return reader, writer

        async def status(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
            headers = f"Host: {host}\r\nAuthorization: Bearer {'t' * 32}\r\nA2A-Version: 1.0"
            writer.write(f"GET /tasks HTTP/1.1\r\n{headers}\r\n\r\n".encode())
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WITHIN)
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            await asyncio.wait_for(reader.readexactly(length), WITHIN)
            return head.split()[1]

        old = await opened()
        assert await status(*old) == b"200"
        for _ in range(50):
            _, writer = await opened()
            writer.write(b"POST /a2a HTTP/1.1\r\nHost: localhost\r\nContent-")
        assert await status(*old) == b"200"
        assert await status(*await opened()) == b"200"
