"""The HTTP+JSON binding of A2A 1.0 (§11): operations as routes, errors in the format of google.rpc.

A request of 0.3 gets the JSON of its specification (0.3 §3.2.3). The card does not offer it: the
official SDKs of 0.3 send the JSON of protobuf messages instead, in dialects that differ.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from bridge import errors
from bridge.a2a.codec import STREAMING, Codec, Operation
from bridge.a2a.codecs import CODECS
from bridge.task.nearest import LONGEST_NAME, nearest
from bridge.transports import blocking, sse
from bridge.transports.json_body import read_json
from bridge.transports.negotiation import (
    JSON,
    activated_extensions,
    codec_for,
    declares_json,
    media_type,
    retry_after,
)
from bridge.transports.operation import PRINCIPAL, Caller, Operations, Pending

log = logging.getLogger(__name__)

_TASK = "/tasks/{id:[^/]+}"
_PUSH = "/tasks/{taskId:[^/]+}/pushNotificationConfigs"
# Subscribe is GET in the proto and POST in the text of the specification (§5.3, §11.3.2).
ROUTES: tuple[tuple[str, str, Operation], ...] = (
    ("POST", "/message:send", Operation.SEND),
    ("POST", "/message:stream", Operation.STREAM),
    ("GET", "/tasks", Operation.LIST),
    ("POST", _TASK + ":cancel", Operation.CANCEL),
    ("GET", _TASK + ":subscribe", Operation.SUBSCRIBE),
    ("POST", _TASK + ":subscribe", Operation.SUBSCRIBE),
    ("GET", _TASK, Operation.GET),  # after the others: the first match wins
    ("POST", _PUSH, Operation.PUSH_CREATE),
    ("GET", _PUSH, Operation.PUSH_LIST),
    ("GET", _PUSH + "/{id:[^/]+}", Operation.PUSH_GET),
    ("DELETE", _PUSH + "/{id:[^/]+}", Operation.PUSH_DELETE),
    ("GET", "/extendedAgentCard", Operation.EXTENDED_CARD),
)
# HTTP status and google.rpc code of each error (1.0.1 §5.4).
STATUS: Mapping[type[Exception], tuple[int, str]] = {
    errors.TaskNotFound: (404, "NOT_FOUND"),
    errors.TaskNotCancelable: (400, "FAILED_PRECONDITION"),
    errors.PushNotificationNotSupported: (400, "FAILED_PRECONDITION"),
    errors.UnsupportedOperation: (400, "FAILED_PRECONDITION"),
    errors.ContentTypeNotSupported: (400, "INVALID_ARGUMENT"),
    errors.ExtendedCardNotConfigured: (400, "FAILED_PRECONDITION"),
    errors.ExtensionSupportRequired: (400, "FAILED_PRECONDITION"),
    errors.VersionNotSupported: (400, "FAILED_PRECONDITION"),
    errors.ParseError: (400, "INVALID_ARGUMENT"),
    errors.InvalidRequest: (400, "INVALID_ARGUMENT"),
    errors.MethodNotFound: (404, "NOT_FOUND"),
    errors.InvalidParams: (400, "INVALID_ARGUMENT"),
    errors.BodyTooLarge: (413, "RESOURCE_EXHAUSTED"),
    errors.Unauthenticated: (401, "UNAUTHENTICATED"),
    errors.TooManyRequests: (429, "RESOURCE_EXHAUSTED"),
    errors.Forbidden: (403, "PERMISSION_DENIED"),
    errors.Unavailable: (503, "UNAVAILABLE"),
    errors.DataLoss: (500, "DATA_LOSS"),
}
_NUMBERS = ("pageSize", "historyLength", "status")  # ProtoJSON also has numbers for enums
OURS = frozenset({"tenant", "served"})
"""The parts of a path besides the parameters. `served`: the id of the agent."""
_ID = re.compile(r"\{\w+\}")  # in the template of a path
_NUMBER = re.compile(r"-?[0-9]{1,30}")
_FLAGS = {"true": True, "false": False}


def routes(prefix: str, handler: Callable[[Operation], Handler]) -> Iterator[web.RouteDef]:
    """The routes below `prefix`, and below any tenant there. The card declares no tenant, so that
    the bridge ignores it (§8.3.2)."""
    for method, path, operation in ROUTES:
        for start in (prefix, prefix + "/{tenant}"):
            yield web.route(method, start + path, handler(operation))


class Rest:
    """The handlers of ROUTES."""

    def __init__(
        self,
        operations: Operations,
        caller: Callable[[web.Request], Caller],
    ) -> None:
        self._operations = operations
        self._caller = caller

    def handler(self, operation: Operation) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                codec = codec_for(request, request.path, tuple(CODECS))
                params = await _params(request)
                return await self._answer(request, codec, operation, params)
            except errors.RequestError as error:
                return _respond_error(request, error)
            except Exception as error:
                log.exception("request failed", extra={"event": "request.failed"})
                return _respond_error(request, error)

        return handle

    async def _answer(
        self, request: web.Request, codec: Codec, operation: Operation, params: Mapping[str, Any]
    ) -> web.StreamResponse:
        caller = self._caller(request)
        if operation in STREAMING:
            seen = sse.last_event_id(request)
            stream = await self._operations.stream(codec, operation, params, caller, seen)
            return await sse.respond(request, stream, encode_stream_error)
        result = await self._operations.call(codec, operation, params, caller)
        if isinstance(result, Pending):
            headers = {
                "Content-Type": media_type(request, codec.media_type),
                **activated_extensions(request),
            }
            return await blocking.respond(request, result, headers, orjson.dumps, _cut)
        return await _respond(request, codec, result)


def _cut(error: Exception) -> None:
    """An HTTP+JSON answer cannot become an error after its status was sent."""
    text = "a send failed after its answer had begun"
    log.error(text, exc_info=error, extra={"event": "request.failed"})


async def _params(request: web.Request) -> dict[str, Any]:
    """Body, query and path as one JSON object, like the params of JSON-RPC."""
    body: dict[str, Any] = {}
    if request.method == "POST":
        body = _object(await read_json(request, empty={}))
    query = {_camel(name): _value(_camel(name), text) for name, text in request.query.items()}
    path = {name: value for name, value in request.match_info.items() if name not in OURS}
    return {**query, **body, **path}


def _object(decoded: Any) -> dict[str, Any]:
    if not isinstance(decoded, dict):
        raise errors.InvalidParams("The body must be an object.", [("body", "not an object")])
    return decoded


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _value(name: str, text: str) -> Any:
    """A query parameter as JSON. Decoding rejects invalid values."""
    if name in _NUMBERS and _NUMBER.fullmatch(text):
        return int(text)
    return _FLAGS.get(text, text) if name == "includeArtifacts" else text


async def _respond(request: web.Request, codec: Codec, result: Any) -> web.StreamResponse:
    body = orjson.dumps({} if result is None else result)
    kind = media_type(request, codec.media_type)
    headers = {"Content-Type": kind, **activated_extensions(request)}
    return await blocking.answer(request, body, headers)


def respond_error(request: web.Request, error: dict[str, Any]) -> web.Response:
    """The answer for an error of encode_error(). It is plain JSON for clients without Accept:
    unlike a result, it has the format of AIP-193, not of A2A (§11.6)."""
    return web.Response(
        body=orjson.dumps({"error": error}),
        status=error["code"],
        content_type=media_type(request, JSON),
    )


def encode_error(error: Exception) -> dict[str, Any]:
    """A google.rpc.Status in JSON, with the HTTP status as its code (§11.6)."""
    status, name = STATUS.get(type(error), (500, "INTERNAL"))
    encoded = CODECS[0].encode_error(error)
    return {
        "code": status,
        "status": name,
        "message": encoded["message"],
        "details": encoded["data"],
    }


def encode_stream_error(error: Exception) -> bytes:
    """The last item of a stream that ends with an error."""
    return orjson.dumps({"error": encode_error(error)})


def _respond_error(request: web.Request, error: Exception) -> web.Response:
    body = encode_error(error)
    if isinstance(error, errors.ContentTypeNotSupported) and not declares_json(request):
        body["code"] = 415  # the status of HTTP for an unreadable body
    response = respond_error(request, body)
    response.headers.update({**activated_extensions(request), **retry_after(error)})
    return response


def _hint(request: web.Request) -> str:
    """The similar path, for a client with credentials."""
    given = request.path[:LONGEST_NAME]
    known = [*_paths(request, given.split("/"))]
    return nearest(given, known) if PRINCIPAL in request and given not in known else ""


def _paths(request: web.Request, given: Sequence[str]) -> Iterator[str]:
    """The paths of the server with as many parts as the given one, and with its ids."""
    for resource in request.app.router.resources():
        parts = resource.canonical.split("/")
        if len(parts) == len(given) and "{tenant}" not in parts:
            pairs = zip(parts, given, strict=True)
            yield "/".join(one.replace(_id(one), own.partition(":")[0]) for one, own in pairs)


def _id(part: str) -> str:
    """The variable in a part of a template."""
    found = _ID.search(part)
    return found[0] if found else "{}"


def respond_unrouted(
    request: web.Request,
    error: web.HTTPNotFound | web.HTTPMethodNotAllowed,
    text: str | None = None,
) -> web.Response:
    """The answer for a path without a route, with `text`, or for a method that the path does not
    have."""
    if isinstance(error, web.HTTPNotFound):
        text = text or f"Unknown path.{_hint(request)}"
        return respond_error(request, encode_error(errors.MethodNotFound(text)))
    allowed = error.headers["Allow"]
    text = f"This path supports only {allowed}.{_hint(request)}"
    body = encode_error(errors.MethodNotFound(text))
    body |= {"code": 405, "status": "UNIMPLEMENTED"}
    response = respond_error(request, body)
    response.headers["Allow"] = allowed
    return response
