"""The service lf.a2a.v1.A2AService over the operations of the server.

The handlers take and return bytes. grpcio would send the text of an exception of a deserializer, or
of a handler, to the client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import grpc
import grpc.aio
import orjson

from bridge.a2a.codec import STREAMING, Codec, Operation
from bridge.a2a.codecs import CODECS
from bridge.auth.principal import Principal
from bridge.auth.token_bucket import RateLimitedLogs
from bridge.errors import InvalidParams, MethodNotFound, RequestError, Unavailable
from bridge.task.nearest import no_such, unknown_method
from bridge.telemetry.observation import REQUEST, RequestInfo, observed
from bridge.transports import sse
from bridge.transports.grpc.messages import POOL, StreamItems, decode, encode, message_class
from bridge.transports.grpc.request import GrpcAgent, Messages, RpcRequest
from bridge.transports.grpc.status import DETAILS, status_of
from bridge.transports.json_body import AT_ONCE, in_thread
from bridge.transports.negotiation import (
    activated_extensions,
    codec_for,
    shows_retry,
)
from bridge.transports.operation import Caller, Operations, Pending
from bridge.transports.stream import Batch

log = logging.getLogger(__name__)
log.addFilter(RateLimitedLogs())

SERVICE = "lf.a2a.v1.A2AService"
_ITEMS = StreamItems()
_LARGE = ThreadPoolExecutor(1, "protobuf")  # for larger requests, to leave a core free
_VERSIONS = tuple(codec for codec in CODECS if codec.has_grpc)

Identify = Callable[[RpcRequest], Awaitable[Principal]]
Context = Any  # grpc.aio.ServicerContext

REQUEST_ID = "x-request-id"
"""Metadata with the id of the call: initial for an answer, trailing for an error."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the service: its operation, and the classes of its messages."""

    name: str
    operation: Operation
    request: Any
    response: Any


def methods() -> list[Method]:
    """The methods of the service. They have the names of JSON-RPC 1.0."""
    return [
        Method(
            one.name,
            _VERSIONS[0].methods[one.name],
            message_class(one.input_type.full_name),
            message_class(one.output_type.full_name),
        )
        for one in POOL.FindServiceByName(SERVICE).methods
    ]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A call after the checks of its sender and its message. `seen`: the last item that the client
    has received."""

    operations: Operations
    codec: Codec
    caller: Caller
    params: dict[str, Any]
    seen: int | None


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The handlers by the path of their method. `refuse` ends the call of an unknown method."""

    def __init__(
        self,
        handlers: Mapping[str, Any],
        refuse: Callable[[Context, Exception], Awaitable[None]],
    ) -> None:
        self._handlers = handlers
        self._refuse = refuse

    def service(self, details: Any) -> Any:
        _, service, method = details.method.rsplit("/", 2)
        if service != SERVICE or details.method in self._handlers:
            return self._handlers.get(details.method)
        known = [path.rpartition("/")[2] for path in self._handlers]
        error = MethodNotFound(unknown_method(method, known))

        async def refuse(messages: object, context: Context) -> None:
            await self._refuse(context, error)

        return grpc.stream_stream_rpc_method_handler(refuse)


class A2AService:
    """`agents` by tenant; the tenant "" is the agent at the root. `ours`: the address of the
    listener, as in RpcRequest. `stall`: seconds after which a stream ends if its client does not
    read."""

    def __init__(
        self,
        agents: Mapping[str, GrpcAgent],
        identify: Identify,
        *,
        ours: tuple[str, int] | None,
        stall: float,
    ) -> None:
        self._agents = agents
        self._identify = identify
        self._ours = ours
        self._stall = stall
        self._messages = Messages(stall)
        self._stopping = False
        self.cut = 0  # clients that did not read

    def stop(self) -> None:
        """Refuse new calls from now on; open calls continue."""
        self._stopping = True

    def handler(self) -> Any:
        """The handler of all methods, for a server of grpc.aio. For grpcio, all of them take and
        answer with a stream: one message and the status are the same bytes, a call begins with its
        headers, and a read and a write can have a limit."""
        handlers = {}
        for one in methods():
            answer = self._stream if one.operation in STREAMING else self._call
            guarded = partial(self._guarded, answer, one)
            handlers[f"/{SERVICE}/{one.name}"] = grpc.stream_stream_rpc_method_handler(guarded)
        return _Handlers(handlers, self.refuse)

    async def principal(self, context: Context) -> tuple[Principal, RpcRequest]:
        """The sender of a call. Raises Unauthenticated, the errors of Identity, and Unavailable if
        the server stops."""
        if self._stopping:
            raise Unavailable("The server is shutting down; try again in a moment.")
        request = RpcRequest(context.invocation_metadata(), context.peer(), self._ours)
        info = _named(request)
        principal = await self._identify(request)
        REQUEST.set(replace(info, principal=principal.id))
        return principal, request

    async def _guarded(
        self,
        answer: Callable[[Method, Context], Awaitable[None]],
        method: Method,
        messages: object,
        context: Context,
    ) -> None:
        """Answer a call; an error becomes its status."""
        try:
            return await answer(method, context)
        except grpc.aio.InternalError:  # the client has left
            raise asyncio.CancelledError from None
        except RequestError as error:
            problem: Exception = error
        except Exception as error:
            log.exception("request failed", extra={"event": "request.failed"})
            problem = error
        await self.refuse(context, problem)

    async def refuse(self, context: Context, error: Exception) -> None:
        """End a call with the status of an error. A client that does not read gets it later."""
        code, text, details = status_of(error)
        try:
            async with asyncio.timeout(self._stall):
                named = ((REQUEST_ID, observed().id),) if REQUEST.get() else ()
                await context.abort(code, text, ((DETAILS, details), *named))
        except (TimeoutError, grpc.aio.InternalError):
            raise asyncio.CancelledError from None  # grpcio writes no line to the log for it

    async def _call(self, method: Method, context: Context) -> None:
        call = await self._prepared(method, context)
        result = await call.operations.call(call.codec, method.operation, call.params, call.caller)
        if isinstance(result, Pending):
            result = await result.answer()
        if isinstance(result, orjson.Fragment):
            item = await in_thread(_encoded, method.response, result)
        else:
            item = encode(method.response, result)
        await self._write(context, item)

    async def _stream(self, method: Method, context: Context) -> None:
        call = await self._prepared(method, context)
        stream = await call.operations.stream(
            call.codec, method.operation, call.params, call.caller, call.seen
        )
        del call  # a stream may stay open for days
        async with aclosing(replace(stream, wire=_ITEMS).items(_never)) as batches:
            async for batch in batches:
                for _, item in batch or ():
                    await self._write(context, item)

    async def _write(self, context: Context, item: bytes) -> None:
        """Send a message. Waits until the buffer of the call has space for it."""
        try:
            async with asyncio.timeout(self._stall):
                await context.write(item)
        except TimeoutError:
            self.cut += 1
            facts = {"event": "stream.cut", "cause": "slow"}
            log.info("a client does not read its answer", extra=facts)
            text = f"The client read nothing for {self._stall:g} s. Resume with last-event-id."
            raise Unavailable(text) from None

    async def _prepared(self, method: Method, context: Context) -> _Prepared:
        """Checks the sender before it reads the message. Raises RequestError."""
        principal, request = await self.principal(context)
        data = await self._messages.read(context, principal.id)
        codec = codec_for(request, method.name, _VERSIONS)
        if len(data) <= AT_ONCE:
            params = decode(method.request, data)
        else:
            loop = asyncio.get_running_loop()
            params = await loop.run_in_executor(_LARGE, decode, method.request, data)
        tenant = params.pop("tenant", "")
        agent = self._agent(tenant)
        activated = activated_extensions(request)
        info = observed()
        info.subject.tenant = tenant or None
        pairs = tuple((name.lower(), value) for name, value in activated.items())
        await context.send_initial_metadata(((REQUEST_ID, info.id), *pairs))
        caller = Caller(agent.address, principal, shows_retry(request), info=info)
        seen = sse.last_event_id(request)
        return _Prepared(agent.operations, codec, caller, params, seen)

    def _agent(self, tenant: str) -> GrpcAgent:
        if tenant not in self._agents:
            text = no_such("agent", tenant, [*filter(None, self._agents)])
            raise InvalidParams(text, [("tenant", "unknown")])
        return self._agents[tenant]


def _named(request: RpcRequest) -> RequestInfo:
    """The facts of the call, which is the current request from now on."""
    given, trace = request.headers.get("X-Request-Id"), request.headers.get("traceparent")
    info = RequestInfo.named("grpc", given, request.remote, trace)
    REQUEST.set(info)
    return info


def _encoded(kind: Any, result: orjson.Fragment) -> bytes:
    """The message of a large result. Runs in a thread."""
    return encode(kind, orjson.loads(orjson.dumps(result)))


def _never(batch: Batch) -> bool:
    """A call has no way to send items at once."""
    return False
