"""An entry of a stream of requests as a request of the other bindings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from multidict import CIMultiDict

from bridge.a2a.codec import Codec, Operation
from bridge.errors import (
    BodyTooLarge,
    InvalidParams,
    InvalidRequest,
    RequestError,
)
from bridge.runtime.sending.idempotency import UNIQUE
from bridge.transports.envelope.request import check_envelope, id_of, method_of, params_of
from bridge.transports.json_body import decode_json
from bridge.transports.redis.names import CORRELATION

MOST_PARAMETERS = 64 * 1024  # bytes
MOST_VALUE = 4096  # characters of a service parameter
SENDS = frozenset({Operation.SEND, Operation.STREAM})
PARAMETERS = ("A2A-Version", "A2A-Extensions", "Last-Event-ID", "traceparent")
"""The service parameters; others are ignored."""


class UnusableEntry(Exception):
    """An entry that is not a request. `correlation`: its id, if it has a valid one, so that it can
    be answered with `error`. `str(unusable)`: the reason for operators."""

    def __init__(self, reason: str, correlation: str | None = None) -> None:
        super().__init__(reason)
        self.correlation = correlation
        self.error: RequestError = InvalidRequest(f"The entry is not a request: {reason}.")


@dataclass(frozen=True, slots=True)
class EntryContent:
    """The fields of an entry. `correlation`: the id of the request, chosen by the client;
    `parameters`: the service parameters, not checked yet."""

    correlation: str
    payload: bytes
    parameters: Any

    def decode(self, most: int) -> Any:
        """The payload as JSON. `most`: bytes. Raises BodyTooLarge, ParseError, InvalidRequest."""
        if len(self.payload) > most:
            raise BodyTooLarge("The payload exceeds BRIDGE_MAX_BODY_BYTES.")
        return decode_json(self.payload)


@dataclass(frozen=True, slots=True)
class EntryCall:
    """A JSON-RPC request. `id`: of JSON-RPC, None for a notification, which has none. `seen`: the
    last item that the client has received; `traceparent`: not validated."""

    id: Any
    codec: Codec
    operation: Operation
    params: Mapping[str, Any]
    seen: int | None
    traceparent: str | None
    is_notification: bool


class _Parameters:
    """Service parameters in the form that negotiation.py reads."""

    query: Mapping[str, Any] = {}

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers: CIMultiDict[str] = CIMultiDict(headers)


def read_fields(fields: Mapping[bytes, bytes]) -> EntryContent:
    """The content of an entry. Raises UnusableEntry."""
    given = fields.get(b"id", b"").decode("ascii", "replace")
    if not CORRELATION.fullmatch(given):
        raise UnusableEntry("its field id is not 1 to 64 characters of [A-Za-z0-9_-]")
    if b"payload" not in fields:
        raise UnusableEntry("it has no field payload", given)
    written = fields.get(b"parameters") or b"{}"
    try:
        if len(written) > MOST_PARAMETERS:
            raise ValueError
        parameters = orjson.loads(written)
    except ValueError:
        raise UnusableEntry("its field parameters is not JSON", given) from None
    return EntryContent(given, fields[b"payload"], parameters)


def read_call(body: Any, parameters: Any) -> EntryCall:
    """The request in a decoded payload. Raises InvalidRequest for a body that is not a request, and
    the other errors of an envelope."""
    check_envelope(body)
    given = _Parameters(_parameters(parameters))
    method, codec = method_of(body, given)
    params = params_of(body)
    seen = given.headers.get("Last-Event-ID", "").strip()
    return EntryCall(
        id=id_of(body),
        codec=codec,
        operation=codec.methods[method],
        params=params,
        seen=int(seen) if seen.isascii() and seen.isdigit() and len(seen) < 20 else None,
        traceparent=given.headers.get("traceparent"),
        is_notification="id" not in body,
    )


def _parameters(given: Any) -> Mapping[str, str]:
    """The known service parameters. Raises InvalidParams."""
    if not isinstance(given, dict):
        raise InvalidParams("parameters must be an object.", [("parameters", "not an object")])
    names = {name.lower(): name for name in PARAMETERS}
    found = {names[one.lower()]: value for one, value in given.items() if one.lower() in names}
    for name, value in found.items():
        if not isinstance(value, str) or len(value) > MOST_VALUE:
            problem = f"must be a string of at most {MOST_VALUE} characters"
            raise InvalidParams(f"{name} {problem}.", [(f"parameters.{name}", problem)])
    return found


def check_message(operation: Operation, params: Mapping[str, Any]) -> None:
    """Raise InvalidParams for a message that a redelivery could not recognize."""
    message = params.get("message")
    given = message.get("messageId") if isinstance(message, dict) else None
    if operation in SENDS and isinstance(given, str) and len(given) < UNIQUE:
        problem = f"must have at least {UNIQUE} characters: a request may be delivered twice"
        raise InvalidParams(f"messageId {problem}.", [("message.messageId", problem)])


def with_config_id(
    codec: Codec, operation: Operation, params: Mapping[str, Any], correlation: str
) -> Mapping[str, Any]:
    """The params, where a new push config without an id has the one of the request: a redelivery
    must not make a second config."""
    if operation is not Operation.PUSH_CREATE or codec.default_push_id or params.get("id"):
        return params
    return {**params, "id": correlation}


def task_of(payload: bytes) -> str | None:
    """The id of the task in an item of a stream, of any version; None for a direct Message."""
    for one in _objects(payload):
        if "parts" in one:
            return None
        if "taskId" in one:
            return str(one["taskId"])
        if "id" in one and "status" in one:
            return str(one["id"])
    return None


def state_of(payload: bytes) -> str | None:
    """The state of the task in an item of a stream, in the words of its version; None for an item
    without one."""
    found = (one["status"]["state"] for one in _objects(payload) if "status" in one)
    return next(found, None)


def _objects(payload: bytes) -> Iterator[dict[str, Any]]:
    """The result, or in 1.0 the object inside of it."""
    result = orjson.loads(payload).get("result")
    if not isinstance(result, dict):
        return
    for name in ("task", "statusUpdate", "artifactUpdate", "message"):
        if isinstance(result.get(name), dict):
            yield result[name]
            return
    yield result
