"""Streams of one server over each of its bindings, for clients that change the binding when they
come back. All of them yield the same pairs of number and item."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import grpc
from aiohttp import ClientSession

from tests.support.client import Json, RpcError
from tests.support.grpc_client import GrpcClient, GrpcError, connected

RETRIES = {"A2A-Version": "1.0", "A2A-Extensions": "urn:coding-agent-bridge:v1"}
"""Headers of clients that send a message until it is taken."""
Numbered = AsyncGenerator[tuple[int, Json]]
Open = Callable[[ClientSession, str, str, Json, int | None], Numbered]
"""The items of a method's stream, at the server with this base URL, after the number that the
client has seen. Raises RpcError, and one of GONE if the server is gone."""
CODES = {"UNSUPPORTED_OPERATION": -32004, "TASK_NOT_FOUND": -32001}


async def over_sse(
    http: ClientSession, url: str, method: str, params: Json, seen: int | None
) -> Numbered:
    headers = RETRIES if seen is None else {**RETRIES, "Last-Event-ID": str(seen)}
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


async def over_grpc(
    http: ClientSession, url: str, method: str, params: Json, seen: int | None
) -> Numbered:
    async with http.get(f"{url}/.well-known/agent-card.json") as response:
        card = await response.json()
    offered = {one["protocolBinding"]: one["url"] for one in card["supportedInterfaces"]}
    async with connected(offered["GRPC"]) as client:
        async with aclosing(through_grpc(client, method, params, seen)) as items:
            async for number, item in items:
                yield number, item


async def through_grpc(client: GrpcClient, method: str, params: Json, seen: int | None) -> Numbered:
    metadata = {"a2a_extensions": RETRIES["A2A-Extensions"]}
    if seen is not None:
        metadata["last_event_id"] = str(seen)
    try:
        async with aclosing(client.items(method, params, **metadata)) as items:
            async for item in items:
                yield _numbered(item)
    except GrpcError as error:
        raise _translated(error) from None


async def over_websocket(
    http: ClientSession, url: str, method: str, params: Json, seen: int | None
) -> Numbered:
    given = dict(RETRIES) if seen is None else {**RETRIES, "Last-Event-ID": str(seen)}
    envelope = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    async with http.ws_connect(f"ws{url.removeprefix('http')}/a2a/ws", max_msg_size=0) as socket:
        await socket.send_json({**envelope, "a2a-service-parameters": given})
        async for frame in socket:
            answer = json.loads(frame.data)
            if "error" in answer:
                raise RpcError(answer["error"])
            if "streamEnd" in answer:
                return
            yield answer["eventId"], answer["result"]
    raise ConnectionError("the connection ended before the stream")


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


BINDINGS: dict[str, Open] = {"sse": over_sse, "grpc": over_grpc, "websocket": over_websocket}
