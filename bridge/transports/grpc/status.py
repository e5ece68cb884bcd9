"""The status of a failed call (A2A 1.0 §10.6): a code, a text, and google.rpc details."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.json_format import ParseDict

from bridge.errors import MethodNotFound
from bridge.transports.grpc.messages import POOL, message_class
from bridge.transports.rest import encode_error

DETAILS = "grpc-status-details-bin"
MOST_TEXT = 1024  # bytes of the text; gRPC writes up to three bytes for each of them
MOST_DETAILS = 3072  # bytes; clients refuse metadata above 8 KiB by default
_STATUS = message_class("google.rpc.Status")


def status_of(error: Exception) -> tuple[grpc.StatusCode, str, bytes]:
    """The code, the text, and a google.rpc.Status as bytes. An unexpected exception reveals no
    details. The last details are left out if they exceed MOST_DETAILS."""
    encoded = encode_error(error)
    is_unknown = isinstance(error, MethodNotFound)  # over HTTP, it is a path that is not found
    code = grpc.StatusCode["UNIMPLEMENTED" if is_unknown else encoded["status"]]
    text = _shortened(encoded["message"])
    body: dict[str, Any] = {
        "code": code.value[0],
        "message": text,
        "details": encoded["details"],
    }
    data = _serialized(body)
    while len(data) > MOST_DETAILS:
        _drop_one(body["details"])
        data = _serialized(body)
    return code, text, data


def _shortened(text: str) -> str:
    """At most MOST_TEXT bytes of a text."""
    data = text.encode("utf-8", "replace")
    if len(data) <= MOST_TEXT:
        return text
    return data[: MOST_TEXT - 3].decode("utf-8", "ignore") + "…"


def _drop_one(details: list[dict[str, Any]]) -> None:
    """Remove the last field violation, else the last member of the last detail."""
    last = details[-1]
    inner = last.get("fieldViolations") or last.get("metadata")
    if isinstance(inner, list):
        last["fieldViolations"] = inner[:-1]
    elif inner:
        last["metadata"] = dict(list(inner.items())[:-1])
    else:
        details.pop()


def _serialized(body: dict[str, Any]) -> bytes:
    data: bytes = ParseDict(body, _STATUS(), descriptor_pool=POOL).SerializeToString()
    return data
