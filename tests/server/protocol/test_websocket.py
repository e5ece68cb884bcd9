"""The peculiarities of the WebSocket binding: its handshake, its frames, its close codes, and many
requests on one connection. test_equivalence.py compares its answers with the other bindings."""

from __future__ import annotations

import asyncio
import json
import socket as sockets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientWebSocketResponse, WSMsgType

from bridge.auth.config import AuthConfig
from bridge.auth.principal import Token, digest
from tests.support.bindings import EnvelopeBinding, numbered, over_websocket
from tests.support.client import Json, RpcError, state
from tests.support.liveness import Liveness
from tests.support.prometheus import page_of
from tests.support.rest import message
from tests.support.served import Server, serving

SEND = "SendStreamingMessage"
WITHIN = 60.0
PING = 0.2  # seconds
STALL = 1.0  # seconds
MOST = 200_000  # bytes of a frame
ALICE, BOB = "alice" * 4, "bob" * 6
SETTINGS: Json = {
    "bridge_websocket": True,
    "bridge_stall_timeout_ms": int(1000 * STALL),
    "bridge_max_body_bytes": MOST,
    "bridge_allowed_origins": ["https://app.example"],
}


@pytest.fixture
async def server(workspace: Path) -> AsyncIterator[Server]:
    async with serving(workspace, **SETTINGS) as server:
        yield server


@asynccontextmanager
async def connected(
    server: Server, path: str = "/a2a/ws", **more: Any
) -> AsyncIterator[ClientWebSocketResponse]:
    url = f"ws{server.url.removeprefix('http')}{path}"
    async with server.http.ws_connect(url, max_msg_size=0, **more) as socket:
        yield socket


def request(method: str, params: Json, **members: Any) -> Json:
    """A request of 1.0 with the id 1."""
    envelope = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return {**envelope, "a2a-service-parameters": {"A2A-Version": "1.0"}, **members}


async def answer(socket: ClientWebSocketResponse) -> Json:
    async with asyncio.timeout(WITHIN):
        found: Json = await socket.receive_json()
    return found


async def closed(socket: ClientWebSocketResponse) -> int | None:
    """The code with which the server closes the connection."""
    async with asyncio.timeout(WITHIN):
        async for _ in socket:
            pass
    return socket.close_code


# --- the handshake -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "null"}, 403),
    ],
)
async def test_a_foreign_page_gets_no_connection(
    server: Server, headers: dict[str, str], status: int
) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with connected(server, headers=headers):
            pass
    assert refused.value.status == status


async def test_an_allowed_page_gets_a_connection(server: Server) -> None:
    async with connected(server, headers={"Origin": "https://app.example"}) as socket:
        await socket.send_json(request("ListTasks", {}))
        assert "tasks" in (await answer(socket))["result"]


async def test_the_handshake_chooses_subprotocol_and_extensions(server: Server) -> None:
    """And no compression."""
    more = "Sec-WebSocket-Protocol: other, a2a.v1\r\nSec-WebSocket-Extensions: permessage-deflate"
    uri = "urn:coding-agent-bridge:v1"
    reader, writer = await asyncio.open_connection(*address(server))
    writer.write(f"{HANDSHAKE[:-2]}{more}\r\nA2A-Extensions: {uri}\r\n\r\n".encode())
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    writer.close()
    assert {"Sec-WebSocket-Protocol: a2a.v1", f"A2A-Extensions: {uri}"} <= set(lines)
    assert not [line for line in lines if line.startswith("Sec-WebSocket-Extensions")]


async def test_a_plain_request_is_told_to_upgrade(server: Server) -> None:
    async with server.http.get(f"{server.url}/a2a/ws") as response:
        assert (response.status, response.headers["Upgrade"]) == (426, "websocket")


async def test_the_handshake_needs_credentials(workspace: Path) -> None:
    """Each principal sees its own tasks, as over HTTP. Credentials in a frame are an error."""
    tokens = {name: Token(hash=f"sha256:{digest(one).hex()}") for name, one in _KEYS.items()}
    async with serving(workspace, bridge_websocket=True, tokens=tokens) as server:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with connected(server):
                pass
        assert refused.value.status == 401
        async with (
            over_websocket(server, Authorization=f"Bearer {ALICE}") as alice,
            over_websocket(server, **{"X-API-Key": BOB}) as bob,
        ):
            task = await alice.send("text hi")
            named = {"id": task["id"]}
            assert (await alice.ask("GetTask", named))["id"] == task["id"]
            assert (await bob.ask("GetTask", named))["error"] == "TASK_NOT_FOUND"
            _, queue = await bob.begin("GetTask", named, Authorization=f"Bearer {ALICE}")
            assert (await queue.get())["error"]["code"] == -32602


_KEYS = {"alice": ALICE, "bob": BOB}


@pytest.mark.parametrize(
    "path", ["/a2a/ws?A2A-Version=1.0", "/agents/jsonl/a2a/ws?A2A-Version=1.0"]
)
async def test_the_handshake_has_default_parameters(server: Server, path: str) -> None:
    async with connected(server, path) as socket:
        bare = request("ListTasks", {})
        del bare["a2a-service-parameters"]
        await socket.send_json(bare)
        assert "tasks" in (await answer(socket))["result"]
        older = {**bare, "method": "tasks/get", "params": {"id": "none"}}
        await socket.send_json(older)
        assert (await answer(socket))["error"]["code"] == -32009  # of 1.0: tasks/get is of 0.3
        inside = {"metadata": {"a2a-service-parameters": {"a2a-version": "0.3"}}}
        await socket.send_json({**older, "params": {"id": "none", **inside}})
        assert (await answer(socket))["error"]["code"] == -32001


async def test_the_card_names_the_connection(server: Server) -> None:
    async with server.http.get(f"{server.url}/.well-known/agent-card.json") as response:
        listed = (await response.json())["supportedInterfaces"]
    url = f"ws{server.url.removeprefix('http')}/a2a/ws"
    found = [one for one in listed if one["url"] == url]
    assert [one["protocolVersion"] for one in found] == ["1.0", "0.3"]
    assert {one["protocolBinding"] for one in found} == {"urn:coding-agent-bridge:websocket:v1"}


# --- requests ------------------------------------------------------------------------------------


async def test_requests_run_side_by_side(server: Server, live: Liveness) -> None:
    """While a stream is open: another id gets its answer, the same id is refused."""
    async with connected(server) as socket:
        params = {"message": message(f"text a\nwait {live.path} one\ntext b")}
        await socket.send_json(request(SEND, params))
        first = await answer(socket)
        assert (first["id"], first["eventId"]) == (1, 0)
        await live.pid("one")
        task_id = first["result"]["task"]["id"]
        await socket.send_json(request("GetTask", {"id": task_id}, id="1"))
        await socket.send_json(request("GetTask", {"id": task_id}))
        found: list[Json] = []
        while len([one for one in found if "eventId" not in one]) < 2:
            found.append(await answer(socket))
        (refused,) = [one for one in found if "error" in one]
        assert (refused["id"], refused["error"]["code"]) == (1, -32600)
        await live.release("one")
        numbers = [one["eventId"] for one in found if "eventId" in one]
        while "streamEnd" not in (frame := await answer(socket)):
            numbers.append(frame["eventId"])
        assert numbers == list(range(1, len(numbers) + 1))
        await socket.send_json(request("GetTask", {"id": task_id}))  # the id is free again
        assert state((await answer(socket))["result"]) == "completed"


async def test_a_connection_has_at_most_32_requests(server: Server, live: Liveness) -> None:
    async with over_websocket(server) as binding:
        params = {"message": message(f"status a\nwait {live.path} agent")}
        _, queue = await binding.begin(SEND, params)
        task_id = (await queue.get())["result"]["task"]["id"]
        subscribed = [await binding.begin("SubscribeToTask", {"id": task_id}) for _ in range(31)]
        for _, one in subscribed:
            assert "task" in (await one.get())["result"]
        refused = await binding.ask("GetTask", {"id": task_id})
        assert "At most 32" in refused["message"]
        request_id, one = subscribed[0]
        await binding.cancel_stream(request_id)
        _ = [item async for item in numbered(one)]  # it ends
        assert (await binding.ask("GetTask", {"id": task_id}))["id"] == task_id
        await live.release("agent")


async def test_a_stopped_stream_is_no_disconnect(workspace: Path, live: Liveness) -> None:
    """Its task continues; that of a lost connection is canceled after the grace."""
    settings: Json = {"bridge_on_disconnect": "cancel", "bridge_disconnect_grace_ms": 100}
    async with serving(workspace, bridge_websocket=True, **settings) as server:
        async with over_websocket(server) as staying:
            begun, queue = await staying.begin(
                SEND, {"message": message(f"status a\nwait {live.path} a")}
            )
            kept = (await queue.get())["result"]["task"]["id"]
            await staying.cancel_stream(begun)
            _ = [item async for item in numbered(queue)]  # it ends
            await staying.cancel_stream(begun)  # again: no answer
            async with over_websocket(server) as leaving:
                params = {"message": message(f"status a\nwait {live.path} b")}
                _, queue = await leaving.begin(SEND, params)
                lost = (await queue.get())["result"]["task"]["id"]
            assert await listed(staying, "TASK_STATE_CANCELED") == [lost]
            await live.release("a")
            assert await listed(staying, "TASK_STATE_COMPLETED") == [kept]


async def listed(binding: EnvelopeBinding, status: str) -> list[str]:
    """The tasks with this state, once there is one. A list does not count as a client's return."""
    async with asyncio.timeout(WITHIN):
        while not (found := (await binding.ask("ListTasks", {"status": status}))["tasks"]):  # noqa: ASYNC110
            await asyncio.sleep(0.03)  # more than 50 frames a second end the connection
    return [one["id"] for one in found]


async def test_a_stream_can_be_stopped_before_its_first_item(
    server: Server, live: Liveness
) -> None:
    """Its id is free again, and a request of that id that has no stream has its answer."""
    async with connected(server) as socket:
        params = {"message": message(f"text a\nwait {live.path} agent")}
        stop = {"jsonrpc": "2.0", "id": 1, "cancelStream": True}
        for frame in (request(SEND, params), stop):
            await socket.send_json(frame)
        assert await answer(socket) == {"jsonrpc": "2.0", "id": 1, "streamEnd": True}
        for frame in (request("ListTasks", {}), stop):
            await socket.send_json(frame)
        (task,) = (await answer(socket))["result"]["tasks"]
        await socket.send_json(request("SubscribeToTask", {"id": task["id"]}))
        assert (await answer(socket))["result"]["task"]["id"] == task["id"]
        await live.release("agent")
        while "streamEnd" not in await answer(socket):
            pass


async def test_a_stream_resumes_after_its_last_item(server: Server, live: Liveness) -> None:
    params = {"message": message(f"status a\nstatus b\nwait {live.path} agent\nstatus c\ndone")}
    async with over_websocket(server) as first:
        _, queue = await first.begin(SEND, params)
        await live.pid("agent")
        task = (await queue.get())["result"]["task"]
        begun = await queue.get()
    async with over_websocket(server) as second:
        seen = str(begun["eventId"])
        _, queue = await second.begin("SubscribeToTask", {"id": task["id"]}, Last_Event_ID=seen)
        await live.release("agent")
        items = [item async for item in numbered(queue)]
    assert [number for number, _ in items] == list(range(2, len(items) + 2))
    assert state(items[-1][1]) == "completed"


async def test_an_error_of_a_stream_has_an_end(server: Server) -> None:
    async with over_websocket(server) as binding:
        _, queue = await binding.begin("SubscribeToTask", {"id": "none"})
        with pytest.raises(RpcError, match="-32001"):
            _ = [item async for item in numbered(queue)]
        assert await queue.get() == {"jsonrpc": "2.0", "id": 1, "streamEnd": True}


async def test_a_frame_without_an_id_has_no_answer(server: Server) -> None:
    """It takes effect."""
    async with connected(server) as socket:
        sent = request("SendMessage", {"message": {**message("text hi"), "contextId": "silent"}})
        for silent in (request("GetTask", {"id": "none"}), sent):
            del silent["id"]
            await socket.send_json(silent)
        async with asyncio.timeout(WITHIN):
            while True:
                await socket.send_json(request("ListTasks", {"contextId": "silent"}))
                listed = await answer(socket)
                assert listed["id"] == 1
                if listed["result"]["tasks"]:
                    break


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("{", -32700),
        ("[]", -32600),
        ("7", -32600),
        ('{"jsonrpc":"2.0","id":{},"method":"GetTask"}', -32600),
        ('{"jsonrpc":"2.0","id":1,"method":"Nothing"}', -32601),
        ('{"jsonrpc":"2.0","id":1,"method":"GetTask","params":7}', -32602),
        ('{"jsonrpc":"2.0","id":1,"method":"GetTask","a2a-service-parameters":7}', -32602),
        ("\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), -32700),
    ],
)
async def test_a_wrong_frame_gets_an_error(server: Server, frame: str, code: int) -> None:
    """The connection stays open."""
    async with connected(server, "/a2a/ws?A2A-Version=1.0") as socket:
        await socket.send_str(frame)
        assert (await answer(socket))["error"]["code"] == code
        await socket.send_json(request("ListTasks", {}))
        assert "result" in await answer(socket)


# --- the end of a connection ----------------------------------------------------------------------


@pytest.mark.parametrize("busy", [False, True])
async def test_withdrawn_credentials_close_it_at_once(workspace: Path, busy: bool) -> None:
    """Also while no request is open."""
    tokens = {"alice": Token(hash=f"sha256:{digest(ALICE).hex()}")}
    async with serving(workspace, bridge_websocket=True, tokens=tokens) as server:
        headers = {"Authorization": f"Bearer {ALICE}"}
        async with connected(server, headers=headers) as socket:
            await socket.send_json(request(SEND, {"message": message("permit q May I?")}))
            task = (await answer(socket))["result"]["task"]["id"]
            while "streamEnd" not in await answer(socket):
                pass
            if busy:
                await socket.send_json(request("SubscribeToTask", {"id": task}))
                await answer(socket)
            server.identity.change(AuthConfig(required=True), None, None)
            if busy:
                assert (await answer(socket))["error"]["data"][0]["reason"] == "UNAUTHENTICATED"
            assert await closed(socket) == 4401


async def test_a_stopping_server_closes_it(workspace: Path) -> None:
    async with aiohttp.ClientSession() as http:
        async with serving(workspace, bridge_websocket=True) as server:
            socket = await http.ws_connect(f"{server.url}/a2a/ws")
            ending = asyncio.create_task(closed(socket))
        assert await ending == 1001


async def test_a_binary_frame_closes_it(server: Server) -> None:
    async with connected(server) as socket:
        await socket.send_bytes(json.dumps(request("ListTasks", {})).encode())
        assert await closed(socket) == 1003


async def test_a_frame_that_is_too_large_closes_it(server: Server) -> None:
    async with connected(server) as socket:
        await socket.send_str("x" * (MOST + 1))
        assert await closed(socket) == 1009


async def test_too_many_frames_close_it(server: Server) -> None:
    async with connected(server) as socket:
        for _ in range(600):
            if socket.closed:
                break
            await socket.send_str('{"jsonrpc":"2.0","id":1,"cancelStream":true}')
        assert await closed(socket) == 1008


async def test_a_client_that_answers_no_ping_is_disconnected(workspace: Path) -> None:
    settings: Json = {"bridge_websocket": True, "bridge_websocket_ping_ms": int(1000 * PING)}
    async with (
        serving(workspace, **settings) as server,
        connected(server, autoping=False) as socket,
    ):
        async with asyncio.timeout(WITHIN):
            assert (await socket.receive()).type is WSMsgType.PING
            while (await socket.receive()).type is WSMsgType.PING:
                pass
        assert socket.closed


BULK = f"repeat 1000 {'x' * 10_000}"
HANDSHAKE = (
    "GET /a2a/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def address(server: Server) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


async def opened(server: Server, text: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection with small buffers on which a stream has begun, and nothing is read."""
    raw = sockets.socket()
    raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, address(server))
    reader, writer = await asyncio.open_connection(sock=raw, limit=1024)
    writer.write(HANDSHAKE.encode())
    await reader.readuntil(b"\r\n\r\n")
    frame = json.dumps(request(SEND, {"message": message(text)})).encode()
    writer.write(b"\x81\xfe" + len(frame).to_bytes(2) + bytes(4) + frame)  # masked with zeros
    return reader, writer


async def test_a_client_that_reads_nothing_is_disconnected(server: Server) -> None:
    """Takes two stalls: one to find out, one until the connection is aborted. It counts once."""
    _, writer = await opened(server, BULK)
    raw = writer.get_extra_info("socket")
    async with asyncio.timeout(WITHIN):
        while raw.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, 1) != b"\x07":  # reset
            async with server.http.get(f"{server.url}/health") as response:
                assert response.status == 200
    writer.close()
    page = await page_of(server.http, server.url)
    assert page.value("bridge_slow_readers_cut_total", binding="http") == 1


@pytest.mark.soak
async def test_a_client_that_reads_again_gets_the_items_and_the_reason(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Takes a stall of four seconds: the client has a quarter of it to read."""
    caplog.set_level("INFO")
    async with serving(workspace, **{**SETTINGS, "bridge_stall_timeout_ms": 4000}) as server:
        reader, writer = await opened(server, BULK)
        async with asyncio.timeout(WITHIN), server.http as http:
            while "does not read its answer" not in caplog.text:
                async with http.get(f"{server.url}/health"):
                    pass
            received = await reader.read()
        writer.close()
    assert received.endswith(b"\x88\x0d" + (4408).to_bytes(2, "big") + b"slow reader")


async def test_a_client_that_reads_steadily_is_not_disconnected(server: Server) -> None:
    """Takes two stalls, in which there is always more to read."""
    reader, writer = await opened(server, BULK)
    loop, last = asyncio.get_running_loop(), b""
    until = loop.time() + 2.5 * STALL
    async with asyncio.timeout(WITHIN):
        while loop.time() < until:
            assert await reader.readexactly(10_000)
            await asyncio.sleep(0.05)  # 200 KB a second
        while b"streamEnd" not in last:
            last = last[-100:] + await reader.read(2**16)
            assert not reader.at_eof()
    writer.close()
