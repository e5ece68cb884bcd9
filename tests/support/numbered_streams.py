"""Streams of one server over each of its bindings, for clients that come back with the last number
that they have seen, also over another binding. All of them yield the same pairs of number and
item."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from aiohttp import ClientSession, ClientTimeout, UnixConnector

from tests.support.bindings import EnvelopeBinding, envelope, items_of, next_frame, numbered
from tests.support.client import Json, RpcError
from tests.support.grpc_client import GrpcClient, GrpcError
from tests.support.redis_broker import RedisCaller

EXTENSION = "urn:coding-agent-bridge:v1"
"""Clients of this extension may send a message until it is taken."""
NUMBER = "Last-Event-ID"
CODES = {"UNSUPPORTED_OPERATION": -32004, "TASK_NOT_FOUND": -32001}
NARROW = [("grpc.http2.bdp_probe", 0)]  # the window of a gRPC client stays at 64 KiB
LARGE, SMALL = 2**25, 2**16  # bytes that a client has room for


@dataclass
class Reach:
    """How clients reach a server, which may change with a restart. `url`: of its HTTP port, "" for
    a server without a listener; `headers`: of each request, with the credentials; `socket`: its
    Unix socket; `pipes`: to the server without a listener, or to a proxy; `redis`: for requests
    through Redis. `narrow`: the receive buffers of the clients are small."""

    http: ClientSession
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    socket: Path | None = None
    pipes: EnvelopeBinding | None = None
    redis: RedisCaller | None = None
    narrow: bool = False

    async def call(self, method: str, params: Json) -> Json:
        """The result of a method without a stream. Raises RpcError, or one of the errors of a lost
        connection."""
        if self.url:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            url, headers = f"{self.url}/a2a/jsonrpc", self.headers | _parameters(None)
            async with self.http.post(url, json=body, headers=headers) as response:
                answer = await response.json()
        else:
            assert self.pipes
            _, queue = await self.pipes.begin(method, params, **_parameters(None))
            answer = await next_frame(queue)
        if "error" in answer:
            raise RpcError(answer["error"])
        result: Json = answer["result"]
        return result


Numbered = AsyncGenerator[tuple[int, Json]]
Open = Callable[[Reach, str, Json, int | None], Numbered]
"""The items of a method's stream after the number that the client has seen. Raises RpcError, or
one of the errors of a lost connection."""


def may_repeat(error: RpcError) -> bool:
    """Whether the server asks the client to try again."""
    reasons = [one.get("reason") for one in error.error.get("data") or ()]
    return "UNAVAILABLE" in reasons or "try again" in str(error)


def _parameters(seen: int | None) -> dict[str, str]:
    given = {"A2A-Version": "1.0", "A2A-Extensions": EXTENSION}
    return given if seen is None else {**given, NUMBER: str(seen)}


async def over_sse(reach: Reach, method: str, params: Json, seen: int | None) -> Numbered:
    async with aclosing(_events(reach, reach.http, reach.url, method, params, seen)) as items:
        async for item in items:
            yield item


async def over_unix(reach: Reach, method: str, params: Json, seen: int | None) -> Numbered:
    room, timeout = SMALL if reach.narrow else LARGE, ClientTimeout(total=None, sock_read=30)
    connector = UnixConnector(str(reach.socket))
    async with ClientSession(connector=connector, timeout=timeout, read_bufsize=room) as http:
        items = _events(reach, http, "http://localhost", method, params, seen)
        async with aclosing(items):
            async for item in items:
                yield item


async def _events(
    reach: Reach, http: ClientSession, url: str, method: str, params: Json, seen: int | None
) -> Numbered:
    headers = reach.headers | _parameters(seen)
    body = {"jsonrpc": "2.0", "id": "s-1", "method": method, "params": params}
    async with http.post(f"{url}/a2a/jsonrpc", json=body, headers=headers) as response:
        if response.content_type != "text/event-stream":
            raise RpcError((await response.json())["error"])
        async for number, item in _frames(response.content):
            yield number, item


async def _frames(content: Any) -> AsyncIterator[tuple[int, Json]]:
    """Complete events of a stream; the client has not seen an incomplete one."""
    number, data = 0, b""
    async for line in content:
        if line.startswith(b"id: "):
            number = int(line[4:])
        elif line.startswith(b"data: "):
            data = line[6:]
        elif line == b"\n" and data:
            answer = json.loads(data)
            if "error" in answer:
                raise RpcError(answer["error"])
            yield number, answer["result"]
            data = b""


async def over_websocket(reach: Reach, method: str, params: Json, seen: int | None) -> Numbered:
    url = f"ws{reach.url.removeprefix('http')}/a2a/ws"
    async with reach.http.ws_connect(url, headers=reach.headers, max_msg_size=0) as socket:
        await socket.send_str(envelope(1, method, params, **_parameters(seen)))
        frames = (json.loads(frame.data) async for frame in socket)
        async with aclosing(items_of(frames)) as items:
            async for item in items:
                yield item


async def over_pipes(reach: Reach, method: str, params: Json, seen: int | None) -> Numbered:
    """The connection is shared by all clients: one that leaves cancels its stream."""
    assert reach.pipes
    binding = reach.pipes
    request, queue = await binding.begin(method, params, **_parameters(seen))
    try:
        async with aclosing(numbered(queue)) as items:
            async for item in items:
                yield item
    finally:
        if not binding.reading.done():
            await binding.cancel_stream(request)  # without effect after its end


async def over_redis(reach: Reach, method: str, params: Json, seen: int | None) -> Numbered:
    """The answer continues after a restart of the server."""
    assert reach.redis
    correlation = await reach.redis.send(method, params, **_parameters(seen))
    async with aclosing(reach.redis.numbered(correlation)) as items:
        async for item in items:
            yield item


async def over_grpc(reach: Reach, method: str, params: Json, seen: int | None) -> Numbered:
    async with reach.http.get(f"{reach.url}/.well-known/agent-card.json") as response:
        card = await response.json()
    offered = {one["protocolBinding"]: one["url"] for one in card["supportedInterfaces"]}
    options = [("grpc.use_local_subchannel_pool", 1), *(NARROW if reach.narrow else [])]
    async with grpc.aio.insecure_channel(offered["GRPC"], options) as channel:
        client = GrpcClient(channel, **_metadata(reach.headers))
        async with aclosing(through_grpc(client, method, params, seen)) as items:
            async for item in items:
                yield item


async def through_grpc(client: GrpcClient, method: str, params: Json, seen: int | None) -> Numbered:
    sent = _metadata(_parameters(seen))
    try:
        async with aclosing(client.items(method, params, **sent)) as items:
            async for item in items:
                yield _numbered(item)
    except GrpcError as error:
        raise _translated(error) from None


def _metadata(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower().replace("-", "_"): value for name, value in headers.items()}


def _numbered(item: Json) -> tuple[int, Json]:
    """The item as over SSE: without its number, with members that are false, which protobuf does
    not send, and with whole numbers, which a Struct does not have."""
    (kind,) = item
    if kind == "artifactUpdate":
        item[kind] = {"append": False, "lastChunk": False, **item[kind]}
    metadata = item[kind]["metadata"]
    number = int(metadata["bridge"].pop("eventId"))
    if not metadata["bridge"]:
        del metadata["bridge"]
    if not metadata:
        del item[kind]["metadata"]
    whole: Json = _whole(item)
    return number, whole


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _whole(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _translated(error: GrpcError) -> Exception:
    """A lost connection has no details; a server that stops has."""
    if not error.details:
        return ConnectionError(str(error))
    reason = next((one["reason"] for one in error.details if "reason" in one), "")
    if error.code is grpc.StatusCode.UNAVAILABLE:
        return RpcError({"code": -32603, "message": f"{error.text} (try again)"})
    return RpcError({"code": CODES.get(reason, -32603), "message": error.text})


BINDINGS: dict[str, Open] = {
    "sse": over_sse,
    "unix": over_unix,
    "websocket": over_websocket,
    "grpc": over_grpc,
    "redis": over_redis,
    "proxy": over_pipes,
}
"""The bindings of a server that listens; `proxy`: of its proxy on pipes. The only one of a server
without a listener is over_pipes."""
