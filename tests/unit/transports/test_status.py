"""The status of a failed call."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote

import grpc

from bridge import errors
from bridge.transports.grpc.messages import message_class
from bridge.transports.grpc.status import status_of
from bridge.transports.rest import STATUS
from tests.support.cases import each

HEADERS = 8 * 1024  # bytes of metadata that a client accepts by default


def read(data: bytes) -> list[Any]:
    status = message_class("google.rpc.Status").FromString(data)
    kinds = [one.type_url.rpartition("/")[2] for one in status.details]
    found = [message_class(kind)() for kind in kinds]
    for one, detail in zip(status.details, found, strict=True):
        assert one.Unpack(detail)
    return found


@each("kind", [*STATUS])
def test_each_error_has_its_code_and_reason(kind: type[errors.RequestError]) -> None:
    code, text, data = status_of(kind("Because."))
    is_method = kind is errors.MethodNotFound  # a path over HTTP
    assert code.name == ("UNIMPLEMENTED" if is_method else STATUS[kind][1])
    assert text == "Because."
    info = read(data)[0]
    assert info.domain == "a2a-protocol.org"
    assert info.reason


def test_an_unexpected_exception_reveals_nothing() -> None:
    code, text, data = status_of(ValueError("secret path"))
    assert code is grpc.StatusCode.INTERNAL
    assert "secret" not in text
    assert b"secret" not in data


def test_fields_and_the_time_to_wait_are_details() -> None:
    _, _, data = status_of(errors.InvalidParams("No.", [("id", "missing")]))
    assert [one.field for one in read(data)[1].field_violations] == ["id"]
    _, _, data = status_of(errors.TooManyRequests("Later.", 7))
    assert read(data)[1].retry_delay.seconds == 7


@each(
    "error",
    [
        errors.InvalidParams("é" * 5000, [(f"field-{n}", "é" * 200) for n in range(100)]),
        errors.TaskNotFound("x" * 5000, **{f"fact{n}": "é" * 1000 for n in range(20)}),
        errors.InvalidParams("short", [("id", "é" * 20_000)]),
    ],
)
def test_a_status_fits_into_the_metadata_of_a_client(error: Exception) -> None:
    _, text, data = status_of(error)
    assert read(data)[0].reason
    assert len(quote(text)) + len(base64.b64encode(data)) < HEADERS
