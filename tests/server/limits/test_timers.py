"""Clients that are slow, silent or numerous, or speak no HTTP, against the real server: each is
disconnected in time, without an effect on other clients."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import psutil
import pytest
import pytest_asyncio

from bridge.transports.listener.connection_limits import MALFORMED
from tests.support import agent
from tests.support.bridge_process import BridgeProcess, bridge
from tests.support.client import Client, Json, artifact_text, state, task_id
from tests.support.liveness import Liveness, listening

pytestmark = pytest.mark.asyncio(loop_scope="module")
WITHIN = 60.0
HEADER, BODY, STALL = 1.0, 3.0, 0.6  # seconds
LATER = 1.5  # seconds that the machine may add; with HEADER, less than BODY
PACE = 0.05  # seconds between two bytes of a slow client
BETWEEN = 0.003  # seconds between two connections of a good one, which is no flood
CONNECTIONS, PER_PEER = 60, 25
PER_SECOND = 100
MIB = 2**20
SETTINGS: Json = {
    "AGENT_ADAPTER": "jsonl",
    "AGENT_BINARY": sys.executable,
    "AGENT_ARGS": f"-I -S {agent.PROGRAM}",
    "BRIDGE_STORE": "memory",
    "BRIDGE_DRAIN_MS": "0",
    "BRIDGE_STOP_GRACE_MS": "300",
    "BRIDGE_MAX_SESSIONS": "100",
    "BRIDGE_MAX_TEXT_BYTES": str(32 * MIB),
    "BRIDGE_MAX_CONNECTIONS": str(CONNECTIONS),
    "BRIDGE_MAX_CONNECTIONS_PER_PEER": str(PER_PEER),
    "BRIDGE_MAX_CONNECTIONS_PER_SECOND": str(PER_SECOND),
    "BRIDGE_HEADER_TIMEOUT_MS": str(int(HEADER * 1000)),
    "BRIDGE_BODY_TIMEOUT_MS": str(int(BODY * 1000)),
    "BRIDGE_STALL_TIMEOUT_MS": str(int(STALL * 1000)),
}
HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
POST = (
    b"POST /a2a/jsonrpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"A2A-Version: 1.0\r\nContent-Length: %d\r\n\r\n"
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BridgeProcess]:
    workspace = tmp_path_factory.mktemp("server") / "workspace"
    workspace.mkdir()
    async with bridge(workspace, **SETTINGS) as server:
        yield server
    assert server.process.returncode == 0
    assert "Traceback" not in server.log


@pytest_asyncio.fixture(loop_scope="module")
async def client(server: BridgeProcess) -> AsyncIterator[Client]:
    """A correct client with a new connection for each request."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=WITHIN, sock_read=WITHIN)
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    async with aiohttp.ClientSession(
        timeout=timeout, connector=connector, read_bufsize=2**25
    ) as http:
        yield Client(http, server.url)


@pytest_asyncio.fixture(loop_scope="module")
async def live() -> AsyncIterator[Liveness]:
    async with listening() as live:
        yield live


class Raw:
    """A connection from 127.0.0.`last` that sends these bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.begun = time.monotonic()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def ended(self, pace: float = WITHIN, byte: bytes = b"") -> bytes:
        """The answer of the server until it closes the connection; one byte is sent each `pace`
        seconds."""
        said = b""
        async with asyncio.timeout(WITHIN):
            while True:
                try:
                    async with asyncio.timeout(pace):
                        data = await self.reader.read(2**16)
                except TimeoutError:
                    self.writer.write(byte)
                    continue
                except ConnectionError:
                    return said
                if not data:
                    return said
                said += data

    @property
    def sent_again(self) -> int:
        """Packets that the kernel had to retransmit, because the server's queue of connections was
        full. The first retransmission comes after a second (tcpi_total_retrans of Linux)."""
        info = self.writer.get_extra_info("socket").getsockopt(
            socket.IPPROTO_TCP, socket.TCP_INFO, 104
        )
        return int.from_bytes(info[100:104], sys.byteorder)

    @property
    def age(self) -> float:
        return time.monotonic() - self.begun


@asynccontextmanager
async def raw(server: BridgeProcess, last: int = 1) -> AsyncIterator[Raw]:
    port = int(server.url.rpartition(":")[2])
    async with asyncio.timeout(WITHIN):
        streams = await asyncio.open_connection(
            "127.0.0.1", port, local_addr=(f"127.0.0.{last}", 0)
        )
    try:
        yield Raw(*streams)
    finally:
        streams[1].transport.abort()


async def paced(pace: float = PACE) -> None:
    """The waiting time of a slow client, which is the subject of these tests."""
    await asyncio.sleep(pace)


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ")[1]) if answer.startswith(b"HTTP/1.") else 0


# --- slow clients ------------------------------------------------------------------------------


async def test_a_silent_connection_is_cut_in_time(server: BridgeProcess) -> None:
    async with raw(server) as one:
        answer = await one.ended()
        assert HEADER <= one.age + 0.05 and one.age < HEADER + LATER
    assert status_of(answer) == 408
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == 408


@pytest.mark.parametrize("begin", [b"G", HEAD, HEAD + b"X-A: ", b"\r\n"])
async def test_headers_that_trickle_are_cut_in_time(server: BridgeProcess, begin: bytes) -> None:
    async with raw(server) as one:
        one.send(begin)
        answer = await one.ended(PACE, b"x" if begin != b"\r\n" else b"\r\n")
        assert one.age < HEADER + LATER
    assert status_of(answer) == (400 if begin == b"G" else 408)  # which is no method


async def test_the_headers_of_a_second_request_are_cut_in_time_too(server: BridgeProcess) -> None:
    async with raw(server) as one:
        one.send(HEAD + b"\r\n")
        await one.reader.readuntil(b"}}")
        one.begun = time.monotonic()
        one.send(HEAD)
        await one.ended(PACE, b"x")
        assert one.age < HEADER + LATER


async def test_a_connection_may_rest_between_two_requests(server: BridgeProcess) -> None:
    async with raw(server) as resting, raw(server) as silent:
        resting.send(HEAD + b"\r\n")
        await resting.reader.readuntil(b"}}")
        await silent.ended()
        async with raw(server) as another:
            await another.ended()
        resting.send(HEAD + b"Connection: close\r\n\r\n")
        assert b"HTTP/1.1 200" in await resting.ended()


async def test_a_body_that_stops_is_cut_in_time(server: BridgeProcess) -> None:
    for length in (100, 10_000_000):
        async with raw(server) as one:
            one.send(POST % length + b'{"jsonrpc"')
            answer = await one.ended()
            assert HEADER <= one.age + 0.05 and one.age < HEADER + LATER
        assert status_of(answer) == 408


async def test_a_body_that_trickles_is_cut_in_time(server: BridgeProcess) -> None:
    for head in (POST % 10_000, POST.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked")):
        async with raw(server) as one:
            one.send(head)
            answer = await one.ended(PACE, b" " if b"Length" in head else b"1\r\n \r\n")
            assert BODY <= one.age + 0.05 and one.age < BODY + LATER
        assert status_of(answer) == 408


async def test_a_body_that_is_large_gets_more_time(server: BridgeProcess) -> None:
    text = "x" * 600_000
    params = {"id": "none", "x": text}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": params}).encode()
    async with raw(server) as one, raw(server) as clock:
        one.send(POST % len(body))
        pieces = [body[start : start + 30_000] for start in range(0, len(body), 30_000)]
        for piece in pieces[:-1]:
            one.send(piece)
            with suppress(TimeoutError):
                async with asyncio.timeout(1.4 * BODY / len(pieces)):
                    await one.reader.readexactly(1)
                    raise AssertionError("it was cut")
        assert one.age > 1.2 * BODY and clock.age > HEADER
        one.send(pieces[-1])
        answer = await one.reader.readuntil(b"-32001")
        assert status_of(answer) == 200


async def test_a_pause_of_the_server_is_not_its_clients(
    server: BridgeProcess, client: Client
) -> None:
    """Clients that connect while the server is stopped, that connect later, and whose body comes
    later."""
    body = b'{"jsonrpc": "2.0", "id": 1, "method": "Nothing"}'
    async with raw(server) as early, raw(server) as late, raw(server) as slow:
        slow.send(POST % len(body))
        async with client.session.get(f"{client.url}/health") as response:
            assert response.status == 200  # and the others are known by now
        process = psutil.Process(server.process.pid)
        process.suspend()
        early.send(HEAD + b"\r\n")
        try:
            await paced(HEADER + 1.0)
        finally:
            process.resume()
        async with asyncio.timeout(WITHIN):
            assert b" 200 " in await early.reader.readuntil(b"}}")
            late.send(HEAD + b"\r\n")
            assert b" 200 " in await late.reader.readuntil(b"}}")
            slow.send(body)
            assert b" 200 " in await slow.reader.readuntil(b"}")


async def test_slow_handlers_are_not_cut(
    server: BridgeProcess, client: Client, live: Liveness
) -> None:
    """A send that waits, and a stream without news, outlast every timer."""
    script = f"wait {live.path} agent\ntext late"
    sending = asyncio.create_task(client.send(script, contextId="slow"))
    await live.pid("agent")
    listed = await client.call("ListTasks", {"contextId": "slow"})
    (waiting,) = listed["tasks"]
    async with client.subscribe(waiting["id"]) as items:
        for _ in range(4):
            async with raw(server) as silent:
                await silent.ended()
        await live.release("agent")
        assert artifact_text(await sending) == "late"
        last = [item async for item in items][-1]
        assert state(last) == "completed"


# --- slow readers ------------------------------------------------------------------------------


async def unread(
    server: BridgeProcess, request: bytes, last: int = 1, room: int = 1024
) -> socket.socket:
    """A client with the smallest buffers that sends a request and then reads nothing."""
    stalled = socket.socket()
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    stalled.bind((f"127.0.0.{last}", 0))
    stalled.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_connect(stalled, ("127.0.0.1", int(server.url.rpartition(":")[2])))
        await loop.sock_sendall(stalled, request)
    except BaseException:  # such as a cancellation at the end of a test
        stalled.close()
        raise
    return stalled


async def reset(stalled: socket.socket, client: Client) -> None:
    """Until the server has reset the connection, which shows that it keeps no state for it."""
    async with asyncio.timeout(WITHIN):
        while stalled.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != b"\x07":
            await (await client.session.get(f"{client.url}/health")).read()
            await paced(BETWEEN)


def subscription(task: str) -> bytes:
    params = {"id": task}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": params}
    data = json.dumps(body).encode()
    return POST % len(data) + data


@pytest_asyncio.fixture(loop_scope="module")
async def talkative(client: Client, live: Liveness) -> AsyncIterator[str]:
    """A running task with two megabytes of output, which every subscriber gets."""
    script = "repeat 500000 x\n" * 4 + f"wait {live.path} talker\ntext end"
    async with client.stream(script) as items:
        first = await anext(items)
        await live.pid("talker")
        yield task_id(first)
        await live.release("talker")
        assert state([item async for item in items][-1]) == "completed"


async def test_a_stream_without_a_reader_is_cut_in_time_and_costs_little(
    server: BridgeProcess, client: Client, talkative: str
) -> None:
    process = psutil.Process(server.process.pid)
    with await unread(server, subscription(talkative)) as first:
        await reset(first, client)
    before = process.memory_info().rss
    begun = time.monotonic()
    stalled = [await unread(server, subscription(talkative)) for _ in range(20)]
    most = 0
    for one in stalled:
        most = max(most, process.memory_info().rss)
        await reset(one, client)
        one.close()
    assert time.monotonic() - begun < STALL + 2 * LATER
    assert most - before < 20 * (2 + 1) * MIB, f"{(most - before) / MIB:.0f} MiB for 20 readers"


async def test_an_answer_without_a_reader_is_cut_in_time(
    server: BridgeProcess, client: Client, talkative: str
) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": talkative}}
    data = json.dumps(body).encode()
    begun = time.monotonic()
    with await unread(server, POST % len(data) + data) as stalled:
        await reset(stalled, client)
    assert time.monotonic() - begun < STALL + LATER


async def test_a_reader_that_trickles_is_cut_in_time_and_one_that_reads_steadily_is_not(
    server: BridgeProcess, client: Client, talkative: str
) -> None:
    loop = asyncio.get_running_loop()
    slow = await unread(server, subscription(talkative))
    steady = await unread(server, subscription(talkative), room=64 * 1024)
    begun, read = time.monotonic(), 0

    async def trickle() -> None:
        with suppress(ConnectionError):
            while slow.fileno() != -1 and await loop.sock_recv(slow, 512):
                await paced()

    trickling = asyncio.create_task(trickle())
    with slow, steady:
        while read < 1_900_000:  # in longer than a stall may last
            async with asyncio.timeout(WITHIN):
                data = await loop.sock_recv(steady, 16 * 1024)
            assert data, "the steady reader was cut"
            read += len(data)
            await paced(PACE / 5)
        assert time.monotonic() - begun > STALL
        await reset(slow, client)
        trickling.cancel()
        await asyncio.wait([trickling])


# --- many connections --------------------------------------------------------------------------


async def test_one_address_has_so_many_connections_and_no_more(
    server: BridgeProcess, client: Client
) -> None:
    async with AsyncExitStack() as stack:
        held = [await stack.enter_async_context(raw(server, 9)) for _ in range(PER_PEER)]
        for _ in range(3):
            async with raw(server, 9) as refused:
                refused.send(HEAD + b"\r\n")
                answer = await refused.ended()
                assert status_of(answer) == 503
                assert b"\r\nRetry-After: 1\r\n" in answer
        async with raw(server, 10) as other:
            other.send(HEAD + b"Connection: close\r\n\r\n")
            assert status_of(await other.ended()) == 200
        for one in held:
            assert status_of(await one.ended()) == 408
        async with raw(server, 9) as again:
            again.send(HEAD + b"Connection: close\r\n\r\n")
            assert status_of(await again.ended()) == 200


async def test_at_the_limit_the_longest_waiting_connection_is_closed(
    server: BridgeProcess, client: Client
) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(raw(server, 20))
        for number in range(CONNECTIONS - 1):
            await stack.enter_async_context(raw(server, 20 + number // 20))
        async with raw(server) as late:
            late.send(HEAD + b"Connection: close\r\n\r\n")
            assert status_of(await late.ended()) == 200
        assert await first.ended() == b""  # it was not told that it is late
        assert first.age < HEADER + LATER


async def test_who_works_is_not_pushed_out(server: BridgeProcess, client: Client) -> None:
    """All connections have a stream: the server asks another client to retry later."""
    task = task_id(await client.send("ask q Who?"))  # which says little: its readers need not read
    async with AsyncExitStack() as stack:
        streams = []
        for _ in range(CONNECTIONS):
            one = await stack.enter_async_context(raw(server))
            one.send(subscription(task))
            assert b"200" in await one.reader.readline()
            streams.append(one)
        async with raw(server) as refused:
            assert status_of(await refused.ended()) == 503
        streams[0].writer.transport.abort()
        async with asyncio.timeout(WITHIN):
            while True:
                async with raw(server) as again:
                    again.send(HEAD + b"Connection: close\r\n\r\n")
                    if status_of(await again.ended()) == 200:
                        break
        assert all(not one.reader.at_eof() for one in streams[1:])


# --- another client meanwhile ------------------------------------------------------------------

Attack = Callable[[BridgeProcess, str], Awaitable[float]]


async def silence(server: BridgeProcess, task: str) -> float:
    async with raw(server, 30) as one:
        await one.ended()
        return one.age - HEADER


async def slow_header(server: BridgeProcess, task: str) -> float:
    async with raw(server, 31) as one:
        one.send(HEAD)
        await one.ended(PACE, b"x")
        return one.age - HEADER


async def slow_body(server: BridgeProcess, task: str) -> float:
    async with raw(server, 32) as one:
        one.send(POST % 10_000)
        await one.ended(PACE, b" ")
        return one.age - BODY


async def slow_reader(server: BridgeProcess, task: str) -> float:
    begun = time.monotonic()
    with await unread(server, subscription(task), 33) as one:
        async with asyncio.timeout(WITHIN):
            while one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != b"\x07":
                await paced()
    return time.monotonic() - begun - STALL


ATTACKS: dict[str, Attack] = {
    one.__name__: one for one in (silence, slow_header, slow_body, slow_reader)
}
AT_ONCE, ASKED = 20, 200
FLOOR = 0.08  # seconds: what they ask for takes its time, too, 20 times two megabytes at once
ROUNDS = 5  # of which the best counts: others who use the machine are not in all of them


async def asked(client: Client) -> list[float]:
    """The duration of requests over a new connection each, all of which must be answered. On a busy
    machine a client may be too late between its connect and its request; its connection may then be
    closed."""
    took = []
    for _ in range(ASKED):
        begun = time.perf_counter()
        response = await client.session.get(f"{client.url}/health")
        await response.read()
        took.append(time.perf_counter() - begun)
        assert response.status == 200 or (response.status == 408 and took[-1] > HEADER)
        await paced(BETWEEN)
    return took


async def p99(client: Client) -> float:
    return sorted(await asked(client))[int(ASKED * 0.99)]


@asynccontextmanager
async def attacked(server: BridgeProcess, task: str, name: str) -> AsyncIterator[list[float]]:
    """The seconds that each client which was cut could stay too long."""
    late: list[float] = []

    async def attack() -> None:
        while True:
            late.append(await ATTACKS[name](server, task))

    async with asyncio.timeout(60):
        attacks = [asyncio.create_task(attack()) for _ in range(AT_ONCE)]
        yield late
        for one in attacks:
            assert not one.done(), one.exception()
            one.cancel()
        await asyncio.wait(attacks)


@pytest.mark.parametrize("name", ATTACKS)
async def test_another_client_is_answered_while_slow_ones_are_cut(
    server: BridgeProcess, client: Client, talkative: str, name: str
) -> None:
    """The clients are cut after seconds, which is how long this takes."""
    async with attacked(server, talkative, name) as late:
        await asked(client)
        while len(late) < AT_ONCE:
            await asked(client)
    assert max(late) < LATER


@pytest.mark.soak
@pytest.mark.parametrize("name", ATTACKS)
async def test_slow_clients_do_not_delay_another_one(
    server: BridgeProcess, client: Client, talkative: str, name: str
) -> None:
    alone = [await p99(client) for _ in range(ROUNDS)]
    async with attacked(server, talkative, name) as late:
        meanwhile = [await p99(client) for _ in range(ROUNDS)]
        while len(late) < AT_ONCE:  # until they have been cut
            meanwhile.append(await p99(client))
    print(f"{name}: {len(late)} cut, at most {max(late):.2f} s late; p99 in ms:")
    print(f"{[round(one * 1000, 1) for one in alone]} alone,")
    print(f"{[round(one * 1000, 1) for one in meanwhile]} meanwhile")
    assert min(meanwhile) <= 2 * min(alone) + FLOOR


# --- floods ------------------------------------------------------------------------------------

TIGHT = {name for name in SETTINGS if "_CONNECTIONS" in name or "_TIMEOUT" in name}
NOTHING, NONSENSE = b"", b"\x16\x03\x01" + bytes(100)
JITTER = 0.005  # seconds that a machine adds which others use, too


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def decoy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BridgeProcess]:
    """Another server: flooded in the place of ours, it costs the machine the same."""
    workspace = tmp_path_factory.mktemp("decoy") / "workspace"
    workspace.mkdir()
    async with bridge(workspace, **SETTINGS) as server:
        yield server


@asynccontextmanager
async def flooded(server: BridgeProcess, sent: bytes) -> AsyncIterator[list[bool]]:
    """About 800 new connections per second, each of which sends this. Of those that it became
    known of in time: whether they were cut, or answered."""
    cut: list[bool] = []

    async def one() -> None:
        while True:
            begun = time.monotonic()
            with suppress(TimeoutError):
                try:
                    async with raw(server, 34) as connection:
                        connection.send(sent)
                        async with asyncio.timeout(PACE):
                            cut.append(not await connection.reader.read(1))
                except ConnectionError:
                    cut.append(True)
            await paced(max(0.0, PACE - (time.monotonic() - begun)))

    flood = [asyncio.create_task(one()) for _ in range(2 * AT_ONCE)]
    yield cut
    for task in flood:
        assert not task.done(), task.exception()
        task.cancel()
    await asyncio.wait(flood)


FLOODS = {"connections": (NOTHING, 1), "nonsense": (NONSENSE, 1 + MALFORMED)}
BURST = 2 * PER_SECOND


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_is_cut_and_another_client_is_answered(
    server: BridgeProcess, client: Client, name: str
) -> None:
    """`cost`: the number of connections that one of the flood counts as. Connections above the
    limit can only have arrived before the server reached the limit."""
    sent, cost = FLOODS[name]
    begun = time.monotonic()
    async with asyncio.timeout(WITHIN), flooded(server, sent) as cut:
        await asked(client)
        while not any(cut):
            await asked(client)
    allowed = 2 * BURST + PER_SECOND * (time.monotonic() - begun)
    print(f"{cut.count(True)} connections cut, {cut.count(False)} answered, {allowed:.0f} allowed")
    assert cut.count(False) <= allowed / cost + 2 * AT_ONCE


@pytest.mark.soak
@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_does_not_delay_another_client(
    server: BridgeProcess, decoy: BridgeProcess, client: Client, name: str
) -> None:
    sent, _ = FLOODS[name]
    async with flooded(decoy, sent):
        other = [await p99(client) for _ in range(ROUNDS)]
    async with flooded(server, sent) as cut:
        meanwhile = [await p99(client) for _ in range(ROUNDS)]
        while not any(cut):
            meanwhile.append(await p99(client))
    print(f"{cut.count(True)} connections cut, {cut.count(False)} answered; p99 in ms:")
    print(f"{[round(one * 1000, 1) for one in other]} where another is flooded,")
    print(f"{[round(one * 1000, 1) for one in meanwhile]} here")
    assert min(meanwhile) <= 2 * min(other) + JITTER


async def test_two_thousand_streams_at_once_are_not_a_flood(tmp_path: Path) -> None:
    count = 2000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 < hard < 2 * count:
        pytest.skip("this user may not have so many files open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    own = {name: value for name, value in SETTINGS.items() if name not in TIGHT}
    (tmp_path / "workspace").mkdir()
    async with bridge(tmp_path / "workspace", **own) as server, aiohttp.ClientSession() as http:
        task = await Client(http, server.url).send("ask q Who?")

        async def stream(stack: AsyncExitStack) -> tuple[int, int]:
            one = await stack.enter_async_context(raw(server))
            one.send(subscription(task_id(task)))
            return status_of(await one.reader.readline()), one.sent_again

        async with AsyncExitStack() as stack:
            got = await asyncio.gather(*(stream(stack) for _ in range(count)))
        assert {status for status, _ in got} == {200}
        assert {sent_again for _, sent_again in got} == {0}  # the kernel kept all that came
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- the log -----------------------------------------------------------------------------------


@pytest.mark.soak
async def test_clients_that_speak_no_http_do_not_fill_the_log(
    server: BridgeProcess, client: Client
) -> None:
    before = len(server.log.splitlines())
    count = 10_000
    kinds = [
        b"\x16\x03\x01" + bytes(50),
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n bad\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 9000 + b"\r\n\r\n",
    ]
    numbers = iter(range(count))

    async def send() -> None:
        for number in numbers:
            with suppress(ConnectionError):  # they come too fast, too
                async with raw(server) as one:
                    one.send(kinds[number % len(kinds)])
                    assert status_of(await one.ended()) in (400, 0)

    async with asyncio.timeout(60):
        await asyncio.gather(*(send() for _ in range(20)))
    lines = server.log.splitlines()[before:]
    malformed = [line for line in lines if "malformed request" in line]
    assert 1 <= len(malformed) and len(lines) <= 100, lines[:5]
    assert "Traceback" not in server.log


async def test_the_server_serves_as_before(server: BridgeProcess, client: Client) -> None:
    task: Json = await client.send("text still here")
    assert artifact_text(task) == "still here"
