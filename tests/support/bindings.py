"""One interface to all bindings."""

from __future__ import annotations

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from google.protobuf.json_format import ParseDict, ParseError

from bridge.transports.grpc.messages import POOL
from tests.support.client import Json, RpcError
from tests.support.grpc_client import GrpcClient, GrpcError
from tests.support.redis_broker import RedisCaller
from tests.support.rest import BAD_REQUEST, ERROR_INFO, Rest, message
from tests.support.served import Server
from tests.support.stdio_server import Child, child

# By method: verb and path of the other binding. What the path does not name goes into the query
# of a GET or DELETE, and into the body of a POST.
ROUTES = {
    "SendMessage": ("POST", "/message:send"),
    "SendStreamingMessage": ("POST", "/message:stream"),
    "GetTask": ("GET", "/tasks/{id}"),
    "ListTasks": ("GET", "/tasks"),
    "CancelTask": ("POST", "/tasks/{id}:cancel"),
    "SubscribeToTask": ("GET", "/tasks/{id}:subscribe"),
    "CreateTaskPushNotificationConfig": ("POST", "/tasks/{taskId}/pushNotificationConfigs"),
    "GetTaskPushNotificationConfig": ("GET", "/tasks/{taskId}/pushNotificationConfigs/{id}"),
    "ListTaskPushNotificationConfigs": ("GET", "/tasks/{taskId}/pushNotificationConfigs"),
    "DeleteTaskPushNotificationConfig": ("DELETE", "/tasks/{taskId}/pushNotificationConfigs/{id}"),
    "GetExtendedAgentCard": ("GET", "/extendedAgentCard"),
}


class Binding(ABC):
    """One binding of the server, in the words of the operations."""

    def __init__(self, server: Server) -> None:
        self.server = server

    @abstractmethod
    async def ask(self, method: str, params: Json) -> Json:
        """The result, or {"error": reason, "wrong": fields, "message": text}."""

    @abstractmethod
    async def stream(self, method: str, params: Json) -> list[Json]:
        """All items of a stream."""

    def subscribe(self, task_id: str) -> AbstractAsyncContextManager[AsyncIterator[Json]]:
        """The items of a subscription; the first one has arrived when it was read."""
        subscribed: AbstractAsyncContextManager[AsyncIterator[Json]]
        subscribed = self.server.client().subscribe(task_id)
        return subscribed

    async def send(self, text: str, **members: Any) -> Json:
        sent = await self.ask("SendMessage", {"message": message(text, **members)})
        task: Json = sent["task"]
        return task


class RestBinding(Binding):
    async def ask(self, method: str, params: Json) -> Json:
        verb, path, body = self._route(method, params)
        answer = await Rest(self.server.http, self.server.url).ask(verb, path, body)
        assert (answer.status == 200) is ("error" not in answer.body)
        if "error" in answer.body:
            return failed(answer.error["message"], answer.error["details"])
        result: Json = answer.body
        return result

    async def stream(self, method: str, params: Json) -> list[Json]:
        items = Rest(self.server.http, self.server.url).items(*self._route(method, params))
        return [item async for item in items]

    def _route(self, method: str, params: Json) -> tuple[str, str, Json | None]:
        verb, template = ROUTES[method]
        in_path = re.findall(r"\{(\w+)\}", template)
        path = template.format(**{name: quote(str(params[name]), safe="") for name in in_path})
        rest = {name: value for name, value in params.items() if name not in in_path}
        if verb == "POST":
            return verb, path, rest
        words = {k: v if isinstance(v, str) else json.dumps(v) for k, v in rest.items()}
        return verb, path + (f"?{urlencode(words)}" if words else ""), None


STREAMS = {"SendStreamingMessage", "SubscribeToTask"}
CONTENT = {"text", "data"}  # two contents of a part


class NotInProtobuf(Exception):
    """Protobuf cannot represent the request."""


class GrpcBinding(Binding):
    def __init__(self, server: Server, client: GrpcClient) -> None:
        super().__init__(server)
        self.client = client

    async def ask(self, method: str, params: Json) -> Json:
        self._check(method, params)
        try:
            if method in STREAMS:
                items = [item async for item in self.client.items(method, params)]
                raise AssertionError(items)
            result = await self.client.call(method, params)
            return {"nextPageToken": "", **result} if method == "ListTasks" else result
        except GrpcError as error:
            return failed(error.text, error.details)

    async def stream(self, method: str, params: Json) -> list[Json]:
        self._check(method, params)
        return [item async for item in self.client.items(method, params)]

    def _check(self, method: str, params: Json) -> None:
        """Raise NotInProtobuf, but not for a member that protobuf does not know. ParseDict changes
        some wrong parts instead of failing."""
        parts = params.get("message", {}).get("parts") or []
        for part in filter(lambda one: one is not None, parts):
            if part == [] or part.get("raw") == "!" or part.keys() >= CONTENT:
                raise NotInProtobuf
        try:
            ParseDict(params, self.client.methods[method].request(), descriptor_pool=POOL)
        except ParseError as problem:
            if "has no field named" not in str(problem):
                raise NotInProtobuf from None


LOST: Json = {}
"""In the queue of a request whose connection has ended."""


class EnvelopeBinding(Binding):
    """A connection on which requests run side by side. `send` sends a frame; `frames` come from
    the server until the connection ends."""

    def __init__(
        self, send: Callable[[str], Awaitable[None]], frames: AsyncIterator[str | bytes]
    ) -> None:
        self._send = send
        self._ids = 0
        self._open: dict[int, asyncio.Queue[Json]] = {}
        self.reading = asyncio.create_task(self._read(frames))

    async def _read(self, frames: AsyncIterator[str | bytes]) -> None:
        try:
            async for frame in frames:
                answer = json.loads(frame)
                self._open[answer["id"]].put_nowait(answer)
        finally:
            for queue in self._open.values():
                queue.put_nowait(LOST)

    async def close(self) -> None:
        self.reading.cancel()
        await asyncio.wait([self.reading])

    async def begin(
        self, method: str, params: Json, **parameters: str
    ) -> tuple[int, asyncio.Queue[Json]]:
        """Send a request. Its frames arrive in the queue. Raises ConnectionError."""
        if self.reading.done():
            raise ConnectionError("the connection has ended")
        self._ids += 1
        queue = self._open[self._ids] = asyncio.Queue()
        await self._send(envelope(self._ids, method, params, **parameters))
        return self._ids, queue

    async def cancel_stream(self, request_id: int) -> None:
        await self._send(json.dumps({"jsonrpc": "2.0", "id": request_id, "cancelStream": True}))

    async def ask(self, method: str, params: Json) -> Json:
        _, queue = await self.begin(method, params)
        answer = await next_frame(queue)
        if "error" not in answer:
            assert not STREAMS & {method}, answer
            return answer["result"] or {}
        if method in STREAMS:
            assert (await queue.get())["streamEnd"] is True
        return failed(answer["error"]["message"], answer["error"]["data"])

    async def stream(self, method: str, params: Json) -> list[Json]:
        _, queue = await self.begin(method, params)
        return [item async for _, item in numbered(queue)]

    @asynccontextmanager
    async def subscribe(self, task_id: str) -> AsyncIterator[AsyncIterator[Json]]:
        _, queue = await self.begin("SubscribeToTask", {"id": task_id})
        yield (item async for _, item in numbered(queue))


async def next_frame(queue: asyncio.Queue[Json]) -> Json:
    """Raises ConnectionError if the connection has ended."""
    async with asyncio.timeout(30):
        frame = await queue.get()
    if frame is LOST:
        raise ConnectionError("the connection ended before the answer")
    return frame


def envelope(request_id: int, method: str, params: Json, **parameters: str) -> str:
    """The frame of a request. Names of `parameters` may have _ in place of -."""
    sent = {name.replace("_", "-"): value for name, value in parameters.items()}
    body = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
    return json.dumps({**body, "a2a-service-parameters": {"A2A-Version": "1.0", **sent}})


async def numbered(queue: asyncio.Queue[Json]) -> AsyncGenerator[tuple[int, Json]]:
    """See items_of."""
    while item := item_of(await next_frame(queue)):
        yield item


async def items_of(frames: AsyncIterator[Json]) -> AsyncGenerator[tuple[int, Json]]:
    """The items of a stream with their numbers, to its end. Raises RpcError, and ConnectionError
    if the connection ends first."""
    async for frame in frames:
        if not (item := item_of(frame)):
            return
        yield item
    raise ConnectionError("the connection ended before the stream")


def item_of(frame: Json) -> tuple[int, Json] | None:
    """The item in a frame of a stream; None for its end. Raises RpcError."""
    if "error" in frame:
        raise RpcError(frame["error"])
    return None if frame.get("streamEnd") else (frame["eventId"], frame["result"])


@asynccontextmanager
async def over_websocket(server: Server, **headers: str) -> AsyncIterator[EnvelopeBinding]:
    """The same server through a WebSocket connection."""
    url = f"ws{server.url.removeprefix('http')}/a2a/ws"
    async with server.http.ws_connect(url, headers=headers, max_msg_size=0) as socket:
        binding = EnvelopeBinding(socket.send_str, (frame.data async for frame in socket))
        try:
            yield binding
        finally:
            await binding.close()


@asynccontextmanager
async def over_stdio(
    workspace: Path, *arguments: str, headers: bool = False, **env: Any
) -> AsyncIterator[EnvelopeBinding]:
    """`coding-agent-bridge stdio` with these arguments. `headers`: each frame has the header
    Content-Length."""
    async with child(
        workspace, *arguments, headers=headers, stderr=None, cwd=None, **env
    ) as process:
        binding = piped(process)
        try:
            yield binding
            assert await process.leave() == 0
        finally:
            await binding.close()


def piped(process: Child) -> EnvelopeBinding:
    """The server at the other end of the pipes."""

    async def send(frame: str) -> None:
        process.send(frame.encode())

    return EnvelopeBinding(send, process.frames())


class RedisBinding(Binding):
    """Each message gets an id of its own, because a redelivery is recognized by it. Answers have
    the given one again."""

    def __init__(self, server: Server, caller: RedisCaller) -> None:
        super().__init__(server)
        self.caller = caller
        self._given = {caller.name: "local"}  # the principal of the other bindings

    async def ask(self, method: str, params: Json) -> Json:
        payloads = await self._payloads(method, params)
        assert len(payloads) == 1, payloads
        return self._result(payloads[0])

    async def stream(self, method: str, params: Json) -> list[Json]:
        *items, end = await self._payloads(method, params)
        assert end == {}
        return [self._result(item) for item in items]

    async def _payloads(self, method: str, params: Json) -> list[Json]:
        sent = params.get("message")
        if isinstance(sent, dict) and isinstance(sent.get("messageId"), str):
            unique = f"{len(self._given):016}-{sent['messageId']}"
            self._given[unique] = sent["messageId"]
            params = {**params, "message": {**sent, "messageId": unique}}
        correlation = await self.caller.send(method, params)
        return [self._restored(one) async for _, one in self.caller.items(correlation)]

    def _restored(self, payload: Any) -> Any:
        if isinstance(payload, dict):
            return {name: self._restored(one) for name, one in payload.items()}
        if isinstance(payload, list):
            return [self._restored(one) for one in payload]
        return self._given.get(payload, payload) if isinstance(payload, str) else payload

    def _result(self, payload: Json) -> Json:
        if "error" in payload:
            return failed(payload["error"]["message"], payload["error"]["data"])
        result: Json = payload["result"] or {}
        return result


@asynccontextmanager
async def over_unix(server: Server, path: Path) -> AsyncIterator[Server]:
    """The same server through its Unix socket."""
    connector, timeout = aiohttp.UnixConnector(str(path)), aiohttp.ClientTimeout(30)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, read_bufsize=2**25
    ) as http:
        yield Server(http, "http://localhost", server.managers)


def failed(text: str, details: list[Json]) -> Json:
    (info,) = [one for one in details if one["@type"] == ERROR_INFO]
    wrong = [one["fieldViolations"] for one in details if one["@type"] == BAD_REQUEST]
    facts = info.get("metadata", {})
    return {"error": info["reason"], "facts": facts, "wrong": wrong, "message": text}
