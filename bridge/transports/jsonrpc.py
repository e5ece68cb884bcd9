"""The JSON-RPC 2.0 binding (A2A 1.0 §9, 0.3 §3.2.1): both versions at one address."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
from aiohttp import web

from bridge import errors
from bridge.a2a.codec import STREAMING, Codec, Operation
from bridge.a2a.codecs import CODECS
from bridge.transports import blocking, sse
from bridge.transports.envelope.request import (
    RequestId,
    check_envelope,
    id_of,
    method_of,
    params_of,
)
from bridge.transports.json_body import read_json
from bridge.transports.negotiation import (
    JSON,
    activated_extensions,
    declares_json,
    retry_after,
)
from bridge.transports.operation import Caller, Operations, Pending
from bridge.transports.stream import Stream

log = logging.getLogger(__name__)

_NEWEST = CODECS[0]
STATUS: Mapping[type[Exception], int] = {
    errors.BodyTooLarge: 413,
    errors.Forbidden: 403,
    errors.TooManyRequests: 429,
}


class JsonRpc:
    """The handler of POST requests."""

    def __init__(
        self,
        operations: Operations,
        caller: Callable[[web.Request], Caller],
    ) -> None:
        self._operations = operations
        self._caller = caller

    async def handle(self, request: web.Request) -> web.StreamResponse:
        request_id: RequestId = None
        codec = _NEWEST
        try:
            envelope = await read_json(request)
            request_id = id_of(envelope)
            check_envelope(envelope)
            method, codec = method_of(envelope, request)
            operation, params = codec.methods[method], params_of(envelope)
            if "id" not in envelope:
                return await self._notified(request, codec, operation, params)
            result = await self._result(request, codec, operation, params)
            del envelope, params  # a stream may stay open for days
            if isinstance(result, Stream):
                before = b'{"jsonrpc":"2.0","id":' + orjson.dumps(request_id) + b',"result":'
                failed = partial(_encode_error, codec, request_id)
                return await sse.respond(request, result, failed, before, b"}")
            if isinstance(result, Pending):
                return await _respond_pending(request, codec, request_id, result)
            body = orjson.dumps({"jsonrpc": "2.0", "id": request_id, "result": result})
            named = activated_extensions(request) if codec.extended else {}
            return await blocking.answer(request, body, {"Content-Type": JSON, **named})
        except errors.InvalidRequest as error:
            if error.body is not None:
                request_id = id_of(error.body)
            return await _respond_error(request, codec, request_id, error)
        except errors.RequestError as error:
            return await _respond_error(request, codec, request_id, error)
        except Exception as error:
            log.exception("request failed", extra={"event": "request.failed"})
            return await _respond_error(request, codec, request_id, error)

    async def _notified(
        self, request: web.Request, codec: Codec, operation: Operation, params: Mapping[str, Any]
    ) -> web.Response:
        """Execute a notification, which has no answer, not even an error (JSON-RPC 2.0 §4.1).
        Raises errors with an HTTP status, and InvalidParams: a request that cannot be executed is
        invalid. Like a request without a method, it is answered with the id null."""
        caller = replace(self._caller(request), stays=False)
        try:
            if operation in (Operation.SEND, Operation.STREAM):  # a stream does not block
                await self._operations.stream(codec, Operation.STREAM, params, caller)
            elif operation not in STREAMING:
                await self._operations.call(codec, operation, params, caller)
        except errors.RequestError as error:
            if isinstance(error, errors.InvalidParams) or type(error) in STATUS:
                raise
            log.info("a notification failed", extra={"error": str(error)})
        return web.Response(status=204)

    def _result(
        self, request: web.Request, codec: Codec, operation: Operation, params: Mapping[str, Any]
    ) -> Awaitable[Any]:
        """A Stream, or JSON."""
        caller = self._caller(request)
        if operation in STREAMING:
            seen = sse.last_event_id(request)
            return self._operations.stream(codec, operation, params, caller, seen)
        return self._operations.call(codec, operation, params, caller)


def _respond(
    body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    data = orjson.dumps(body)
    return web.Response(body=data, status=status, headers=headers, content_type=JSON)


async def _respond_pending(
    request: web.Request, codec: Codec, request_id: RequestId, pending: Pending
) -> web.StreamResponse:
    def encode(result: Any) -> bytes:
        return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "result": result})

    encode_error = partial(_encode_error, codec, request_id)
    headers = {"Content-Type": JSON, **activated_extensions(request)}
    return await blocking.respond(request, pending, headers, encode, encode_error)


def _encode_error(codec: Codec, request_id: RequestId, error: Exception) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "error": codec.encode_error(error)})


async def _respond_error(
    request: web.Request, codec: Codec, request_id: RequestId, error: Exception
) -> web.StreamResponse:
    """Most errors have status 200, because clients of JSON-RPC read no other; STATUS has the
    exceptions."""
    body = {"jsonrpc": "2.0", "id": request_id, "error": codec.encode_error(error)}
    status = STATUS.get(type(error))
    if status:
        return _respond(body, status, retry_after(error))
    if isinstance(error, errors.ContentTypeNotSupported) and not declares_json(request):
        return _respond(body, 415)
    if request.headers.get("Accept") == "text/event-stream" and codec.errors_in_streams:
        return await sse.respond_error(request, orjson.dumps(body))
    return _respond(body)
