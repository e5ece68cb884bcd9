"""A request of JSON-RPC 2.0. Its service parameters are in the object if the binding has no headers
for each request (A2A 1.0 §12.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from multidict import CIMultiDict

from bridge import errors
from bridge.a2a.codec import Codec, Operation
from bridge.a2a.codecs import CODECS
from bridge.task.nearest import unknown_method
from bridge.transports import sse
from bridge.transports.negotiation import ServiceParameters, codec_for

RequestId = str | int | float | None
MAX_ID = 256  # characters; every item of a stream repeats the id
PARAMETERS = "a2a-service-parameters"
"""The member with the service parameters, of the request or of `params.metadata`."""
KNOWN = (
    "A2A-Version",
    "A2A-Extensions",
    "Last-Event-ID",
    "Idempotency-Key",
    "X-Request-Id",
    "traceparent",
)
"""The service parameters that a request may set. Others are ignored."""
CREDENTIALS = ("Authorization", "X-API-Key", "Cookie")
LONGEST_PARAMETER = 4096  # bytes


class Parameters:
    """The service parameters of one request: those of the connection, which a request overrides."""

    query: Mapping[str, Any] = {}

    def __init__(self, defaults: Mapping[str, str], given: Mapping[str, str]) -> None:
        self.headers: CIMultiDict[str] = CIMultiDict(defaults)
        self.headers.update(given)


class AnsweredError(Exception):
    """The error in the answer of another server. `encoded`: as it encoded it."""

    def __init__(self, encoded: Mapping[str, Any]) -> None:
        super().__init__(str(encoded.get("message")))
        self.encoded = encoded


@dataclass(frozen=True, slots=True)
class EnvelopeRequest:
    """A request that is valid but for its params. `seen`: the last item that the client has.
    `answered`: it has an id, so that the client gets an answer."""

    id: RequestId
    answered: bool
    name: str
    codec: Codec
    operation: Operation
    params: Mapping[str, Any]
    parameters: Parameters
    seen: int | None


def read_request(envelope: Any, defaults: Mapping[str, str]) -> EnvelopeRequest:
    """The request in an envelope. `defaults`: the service parameters of the connection. Raises
    RequestError."""
    check_envelope(envelope)
    params = envelope.get("params")
    metadata = params.get("metadata") if isinstance(params, dict) else None
    found = metadata.get(PARAMETERS) if isinstance(metadata, dict) else None
    given = {**_given(found), **_given(envelope.get(PARAMETERS))}
    parameters = Parameters(defaults, given)
    name, codec = method_of(envelope, parameters)
    return EnvelopeRequest(
        id=id_of(envelope),
        answered="id" in envelope,
        name=name,
        codec=codec,
        operation=codec.methods[name],
        params=params_of(envelope),
        parameters=parameters,
        seen=sse.last_event_id(parameters),
    )


def _given(member: Any) -> dict[str, str]:
    """The known service parameters of a member, by their usual names. Raises InvalidParams."""
    if member is None:
        return {}
    if not isinstance(member, dict):
        raise _wrong("not an object")
    usual = {name.lower(): name for name in KNOWN}
    given: dict[str, str] = {}
    for name, value in member.items():
        if name.lower() in map(str.lower, CREDENTIALS):
            raise _wrong(f"{name[:20]} is not allowed here: the connection has the credentials")
        if name.lower() in usual:
            if not isinstance(value, str) or len(value.encode()) > LONGEST_PARAMETER:
                raise _wrong(f"{name} must be a string of at most {LONGEST_PARAMETER} bytes")
            given[usual[name.lower()]] = value
    return given


def _wrong(problem: str) -> errors.InvalidParams:
    return errors.InvalidParams(f"{PARAMETERS}: {problem}.", [(PARAMETERS, problem)])


def id_of(envelope: Any) -> RequestId:
    """The id of a possible request; None without a valid id."""
    request_id = envelope.get("id") if isinstance(envelope, dict) else None
    if isinstance(request_id, bool) or not isinstance(request_id, RequestId):
        return None
    return None if isinstance(request_id, str) and len(request_id) > MAX_ID else request_id


def check_envelope(envelope: Any) -> None:
    """Raise InvalidRequest unless the body is a JSON-RPC 2.0 request."""
    if isinstance(envelope, list):
        raise errors.InvalidRequest("Batches are not supported. Send one request at a time.")
    if not isinstance(envelope, dict) or envelope.get("jsonrpc") != "2.0":
        raise errors.InvalidRequest('The body must be an object with "jsonrpc": "2.0".')
    if envelope.get("id") is not None and id_of(envelope) is None:
        text = f"id must be a string of at most {MAX_ID} characters, a number or null."
        raise errors.InvalidRequest(text)


def method_of(envelope: Mapping[str, Any], request: ServiceParameters) -> tuple[str, Codec]:
    """The method and its codec. Checks the method before the version (1.0 §9.5)."""
    method = envelope.get("method")
    if not isinstance(method, str):
        raise errors.InvalidRequest("method must be a string.")
    codecs = tuple(codec for codec in CODECS if method in codec.methods)
    if not codecs:
        known = [one for codec in CODECS for one in codec.methods]
        raise errors.MethodNotFound(unknown_method(method, known))
    return method, codec_for(request, method, codecs)


def params_of(envelope: Mapping[str, Any]) -> Mapping[str, Any]:
    """The params; {} without any. Raises InvalidParams."""
    params = envelope.get("params")
    if params is None:
        params = {}
    if not isinstance(params, dict):
        raise errors.InvalidParams("params must be an object.", [("params", "not an object")])
    return params
