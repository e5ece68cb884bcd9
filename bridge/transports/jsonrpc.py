"""The JSON-RPC 2.0 binding (A2A 1.0 §9, 0.3 §3.2.1): both versions at one address."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from bridge import errors
from bridge.a2a import CODECS, Codec, Operation
from bridge.transports import sse
from bridge.transports.operation import STREAMING, Operations

log = logging.getLogger(__name__)

JSON_TYPES = frozenset({"application/json", "application/a2a+json"})
_VERSION = re.compile(r"(\d+\.\d+)(?:\.\d+)*")
_NEWEST = CODECS[0]
RequestId = str | int | float | None


@dataclass(frozen=True, slots=True)
class Call:
    """A request that is well formed: what it asks for, in which version."""

    id: RequestId
    codec: Codec
    operation: Operation
    params: Mapping[str, Any]


class JsonRpc:
    """The handler of POST requests."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def handle(self, request: web.Request) -> web.StreamResponse:
        request_id: RequestId = None
        codec = _NEWEST
        try:
            envelope = _envelope(await _body(request))
            request_id = envelope.get("id")
            call = _call(envelope, request)
            codec = call.codec
            return await self._answer(request, call)
        except errors.InvalidRequest as error:
            return await _respond_error(request, codec, None, error)
        except errors.RequestError as error:
            return await _respond_error(request, codec, request_id, error)
        except Exception as error:
            log.exception("request failed")
            return await _respond_error(request, codec, request_id, error)

    async def _answer(self, request: web.Request, call: Call) -> web.StreamResponse:
        if call.operation in STREAMING:
            stream = await self._operations.stream(call.codec, call.operation, call.params)
            before = b'{"jsonrpc":"2.0","id":' + orjson.dumps(call.id) + b',"result":'
            return await sse.respond(request, stream, before, b"}")
        result = await self._operations.call(call.codec, call.operation, call.params)
        return _respond({"jsonrpc": "2.0", "id": call.id, "result": result})


async def _body(request: web.Request) -> bytes:
    if request.content_type not in JSON_TYPES:
        text = "Send the request with Content-Type: application/json."
        raise errors.ContentTypeNotSupported(text)
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        text = "The body is larger than this server takes (BRIDGE_MAX_BODY_BYTES)."
        raise errors.BodyTooLarge(text) from error


def _envelope(body: bytes) -> dict[str, Any]:
    try:
        envelope = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise errors.ParseError(f"The body is not JSON: {error}") from None
    if isinstance(envelope, list):
        raise errors.InvalidRequest("Batches are not supported; send one request at a time.")
    if not isinstance(envelope, dict) or envelope.get("jsonrpc") != "2.0":
        raise errors.InvalidRequest('The body must be an object with "jsonrpc": "2.0".')
    request_id = envelope.get("id")
    if isinstance(request_id, bool) or not isinstance(request_id, str | int | float | None):
        raise errors.InvalidRequest("id must be a string, a number or null.")
    return envelope


def _call(envelope: Mapping[str, Any], request: web.Request) -> Call:
    """Raises, in this order: envelope, method, version, params (checklist of 1.0 §9.5)."""
    method = envelope.get("method")
    if not isinstance(method, str):
        raise errors.InvalidRequest("method must be a string.")
    if not any(method in codec.methods for codec in CODECS):
        raise errors.MethodNotFound(f"There is no method {method[:100]!r}.")
    codec = _codec(request, method)
    params = envelope.get("params")
    if params is None:
        params = {}
    if not isinstance(params, dict):
        raise errors.InvalidParams("params must be an object.", [("params", "not an object")])
    return Call(envelope.get("id"), codec, codec.methods[method], params)


def _codec(request: web.Request, method: str) -> Codec:
    """The version that the client asked for (§3.6): absent means 0.3, the patch is ignored."""
    wanted = request.headers.get("A2A-Version") or request.query.get("A2A-Version") or "0.3"
    match = _VERSION.fullmatch(wanted.strip())
    for codec in CODECS:
        if match and codec.version == match[1] and method in codec.methods:
            return codec
    supported = ", ".join(codec.version for codec in CODECS)
    text = f"{method} is not a method of A2A {wanted[:20]}; set the header A2A-Version."
    if not match or all(codec.version != match[1] for codec in CODECS):
        text = f"A2A {wanted[:20]!r} is not supported, only {supported}."
    raise errors.VersionNotSupported(text, supportedVersions=supported)


def _respond(body: Mapping[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


async def _respond_error(
    request: web.Request, codec: Codec, request_id: RequestId, error: Exception
) -> web.StreamResponse:
    """Errors are HTTP 200 in JSON-RPC, for its clients read no other (but an oversized body)."""
    body = {"jsonrpc": "2.0", "id": request_id, "error": codec.encode_error(error)}
    if isinstance(error, errors.BodyTooLarge):
        return _respond(body, 413)
    if request.headers.get("Accept") == "text/event-stream" and codec.version == "0.3":
        # The official 0.3 client looks for the error inside a stream, and loses it elsewhere.
        return await sse.respond_error(request, orjson.dumps(body))
    return _respond(body)
