"""As test_turns.py, over the other bindings and in what surrounds a request. Each place of a text
gets one of the shapes there, because the code below the bindings is the same."""

from __future__ import annotations

import asyncio
import json
import socket
import uuid
from collections.abc import Iterator, Sequence
from itertools import chain, cycle
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp

from bridge.transports.envelope.stdio import Framing
from tests.support.bindings import envelope
from tests.support.hostile_requests import (
    LONG,
    TOKEN,
    Json,
    attack,
    measured,
    message,
    named,
    rpc,
    sends,
)
from tests.support.hostile_text import SHAPES, TURN, cpu_seconds, repeated
from tests.support.redis_broker import RedisBroker, RedisCaller, token
from tests.support.served import Server

WITHIN = 60.0
IN_A_HEAD = 7_900  # characters of a header or a target, which may have 8,190
TEXTS = [repeated(one, LONG) for one in SHAPES.values()]
PARAMETERS = ("A2A-Version", "A2A-Extensions", "Last-Event-ID", "traceparent", "Idempotency-Key")
HEADERS = (
    *PARAMETERS,
    *("Authorization", "X-API-Key", "Cookie", "Host", "Origin", "Accept", "Accept-Encoding"),
    *("Accept-Language", "Content-Type", "Content-Length", "If-None-Match", "Range", "Forwarded"),
    *("X-Forwarded-For", "X-Request-Id", "tracestate", "baggage", "Connection", "Upgrade"),
    *("Expect", "Transfer-Encoding", "User-Agent", "Mcp-Method", "MCP-Protocol-Version"),
)


def requests() -> Iterator[tuple[str, Json]]:
    """Each operation with a long text in each member, one shape in each."""
    asked = (chain((("SendMessage", one) for one in sends(text)), named(text)) for text in TEXTS)
    turn = cycle(range(len(TEXTS)))
    yield from (same[next(turn)] for same in zip(*asked, strict=True))


# --- WebSocket and stdio -------------------------------------------------------------------------


async def frames(server: Server, frame: str) -> None:
    url = f"ws{server.url.removeprefix('http')}/a2a/ws"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(url, headers=headers, max_msg_size=0) as connection,
    ):
        await connection.send_str(frame)
        await connection.receive(WITHIN)


def over_websocket(server: Server, frame: str) -> None:
    asyncio.run(frames(server, frame))  # in a loop of its own, which is not measured


async def test_no_frame_of_a_websocket_keeps_the_loop(workspace: Path) -> None:
    """Some seconds: fifty connections with frames of 1 MB."""

    async with (
        measured(workspace, bridge_websocket=True) as (server, turns),
        asyncio.timeout(WITHIN),
    ):
        await asyncio.to_thread(over_websocket, server, envelope(1, "GetTask", {"id": "x"}))

        def attacks() -> Iterator[tuple[Any, ...]]:
            for method, params in requests():
                yield over_websocket, server, envelope(1, method, params)
            for name, text in zip((*PARAMETERS, "x"), TEXTS, strict=True):
                yield over_websocket, server, text
                yield over_websocket, server, json.dumps({"jsonrpc": text, "id": text})
                given: Json = {name: text}
                yield over_websocket, server, envelope(1, "GetTask", {"id": "x"}, **given)
                known = {"a2a-service-parameters": {name: text[:4000]}}
                yield over_websocket, server, envelope(1, "GetTask", {"id": "x", "metadata": known})

        await attack(turns, attacks())


async def test_a_large_answer_over_a_websocket_is_joined_beside_the_loop(workspace: Path) -> None:
    """60 MB of JSON from 10 MB of control characters, in some seconds."""
    settings: Any = {"bridge_websocket": True}
    async with measured(workspace, **settings) as (server, turns), asyncio.timeout(WITHIN):
        script = "\n".join(["repeat 1000000 \x01"] * 10)
        sent = {"message": message(parts=[{"text": f"{script}\ndone"}])}
        task = (await asyncio.to_thread(rpc, server, "SendMessage", sent))["result"]["task"]
        frame = envelope(1, "GetTask", {"id": task["id"]})
        await attack(turns, iter([(over_websocket, server, frame)]))


def test_no_bytes_of_a_parent_process_keep_their_reader() -> None:
    for text in (*TEXTS, "\n" * LONG):
        for first in ("", "Content-Length: 9\r\n\r\n"):
            data = f"{first}{text}\n{{}}\n".encode()

            def read(data: bytes = data) -> None:
                framing = Framing(2 * LONG)
                for start in range(0, len(data), 64):
                    list(framing.feed(data[start : start + 64]))

            assert cpu_seconds(read) < 20 * TURN  # in a thread of its own; the square takes minutes


# --- Redis ---------------------------------------------------------------------------------------


async def entries(broker: RedisBroker, fields: dict[str, str]) -> None:
    async with broker.client() as client:
        caller = RedisCaller(client)
        await client.xadd(caller.requests(), fields)
        async for _ in caller.items(fields["id"]):
            pass


def over_redis(broker: RedisBroker, fields: dict[str, str]) -> None:
    asyncio.run(entries(broker, fields))


def entry(method: str, params: Json, **more: str) -> dict[str, str]:
    payload = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    parameters = json.dumps({"A2A-Version": "1.0"})
    return {"id": uuid.uuid4().hex, "payload": payload, "parameters": parameters, **more}


async def test_no_entry_of_redis_keeps_the_loop(workspace: Path, broker: RedisBroker) -> None:
    """Some seconds: fifty entries of 1 MB."""

    settings: Any = {"bridge_redis_url": broker.url, "tokens": {"alice": token()}}
    async with measured(workspace, **settings) as (_, turns), asyncio.timeout(WITHIN):
        await asyncio.to_thread(over_redis, broker, entry("GetTask", {"id": "x"}))

        def attacks() -> Iterator[tuple[Any, ...]]:
            for method, params in requests():
                yield over_redis, broker, entry(method, params)
            for text in TEXTS:
                for more in ({"payload": text}, {"parameters": text}):
                    yield over_redis, broker, entry("GetTask", {"id": "x"}, **more)
                named = json.dumps({"A2A-Version": text})
                yield over_redis, broker, entry("GetTask", {"id": "x"}, parameters=named)

        await attack(turns, attacks())


# --- HTTP ----------------------------------------------------------------------------------------


def exchange(server: Server, lines: Sequence[str]) -> None:
    """Send a head, and read the beginning of the answer."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), WITHIN) as connection:
        try:
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            connection.recv(4096)
        except ConnectionError:
            pass  # a head that is too long is refused before its end


def heads(text: str) -> Iterator[list[str]]:
    """Heads of requests with the text in each part."""
    target = quote(text, safe="/")[: len(text)].replace("%", "%25")[: len(text)]
    usual = ["Host: localhost", f"Authorization: Bearer {TOKEN}", "A2A-Version: 1.0"]
    for name in ("contextId", "status", "pageToken", "statusTimestampAfter", "pageSize", "x"):
        yield [f"GET /tasks?{name}={target} HTTP/1.1", *usual]
    yield [f"GET /tasks?{'status=a&' * (len(text) // 10)} HTTP/1.1", *usual]
    for place in ("tasks", "tasks/x/pushNotificationConfigs", "agents", "a2a", "monitor/tasks"):
        yield [f"GET /{place}/{target} HTTP/1.1", *usual]
    yield [f"POST /tasks/{target}:cancel HTTP/1.1", *usual, "Content-Length: 0"]
    for name in HEADERS:
        known = [one for one in usual if not one.startswith(f"{name}:")]
        for request in ("GET /tasks", "POST /mcp"):
            yield [f"{request} HTTP/1.1", *known, f"{name}: {text}"]
    for kind in ("Basic ", "Bearer ", "Bearer eyJhbGciOiJSUzI1NiJ9."):
        yield ["GET /tasks HTTP/1.1", "Host: localhost", f"Authorization: {kind}{text}"]
    yield ["GET /tasks HTTP/1.1", *usual, *(f"X-{number}: {text[:9]}" for number in range(500))]


async def test_no_head_of_a_request_keeps_the_loop(workspace: Path) -> None:
    """Some seconds: five hundred requests. A longer head is refused by the parser."""
    async with measured(workspace) as (server, turns), asyncio.timeout(WITHIN):

        def attacks() -> Iterator[tuple[Any, ...]]:
            for text in TEXTS:
                yield from ((exchange, server, one) for one in heads(text[:IN_A_HEAD]))
                yield exchange, server, [f"GET /tasks?x={quote(text)} HTTP/1.1"]
                yield exchange, server, ["GET /tasks HTTP/1.1", f"Host: {text}"]

        await attack(turns, attacks())
