"""The messages of gRPC: requests as JSON, and items of streams as bytes."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.json_format import ParseDict

from bridge.a2a.codec import Operation
from bridge.a2a.codecs import CODECS, EXTENDED
from bridge.errors import InvalidParams, InvalidRequest, ParseError
from bridge.transports.grpc.messages import (
    POOL,
    STREAM_RESPONSE,
    StreamItems,
    decode,
    encode,
    message_class,
    plain_item,
)
from bridge.transports.grpc.service import methods
from bridge.transports.json_body import MAX_DEPTH, MAX_TOKENS
from tests.support.cases import each
from tests.support.grpc_client import to_json

SEND = message_class("lf.a2a.v1.SendMessageRequest")
GET = message_class("lf.a2a.v1.GetTaskRequest")
LIST = message_class("lf.a2a.v1.ListTasksRequest")
VALUE = message_class("google.protobuf.Value")
WHEN = "2026-11-21T22:55:03.012Z"
IDS = {"taskId": "t-1", "contextId": "c-1"}
STATUS = {"state": "TASK_STATE_WORKING", "timestamp": WHEN}
SAID = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "é"}], **IDS}
ARTIFACT = {"artifactId": "assistant-response", "name": "Assistant response"}
CHUNK = {**IDS, "append": True, "lastChunk": False}
LAST = {**IDS, "append": False, "lastChunk": True}
PLAIN: list[Any] = [
    {"artifactUpdate": {**CHUNK, "artifact": {**ARTIFACT, "parts": [{"text": "hello "}]}}},
    {"artifactUpdate": {**LAST, "artifact": {"artifactId": "a", "parts": [{"text": ""}]}}},
    {"statusUpdate": {**IDS, "status": STATUS}},
    {"statusUpdate": {**IDS, "status": {**STATUS, "timestamp": "2026-01-31T00:00:00.000Z"}}},
    {"statusUpdate": {**IDS, "status": {**STATUS, "message": SAID}}},
]
OTHER: list[Any] = [
    {"artifactUpdate": {**CHUNK, "artifact": {**ARTIFACT, "parts": [{"data": {"a": 1}}]}}},
    {
        "artifactUpdate": {
            **CHUNK,
            "artifact": {**ARTIFACT, "parts": [{"text": "a", "mediaType": "text/html"}]},
        }
    },
    {
        "artifactUpdate": {
            **CHUNK,
            "artifact": {**ARTIFACT, "parts": [{"text": "a"}], "metadata": {"a": 1}},
        }
    },
    {"statusUpdate": {**IDS, "status": STATUS, "metadata": {"usage": {"totalTokens": 3}}}},
    {
        "statusUpdate": {
            **IDS,
            "status": {**STATUS, "message": {**SAID, "metadata": {"bridge": {"tool": "x"}}}},
        }
    },
    {"task": {"id": "t-1", "contextId": "c-1", "status": STATUS}},
    {"message": SAID},
]


def data_of(kind: Any, content: Any) -> bytes:
    data: bytes = ParseDict(content, kind(), descriptor_pool=POOL).SerializeToString()
    return data


# --- requests ----------------------------------------------------------------------------------


def test_whole_numbers_are_integers() -> None:
    numbers = {"after": 17, "half": 0.5, "most": 2**53 - 1, "more": 2.0**60, "list": [-3, True]}
    sent = {"message": {"messageId": "m", "metadata": {"bridge": numbers}}}
    found = decode(SEND, data_of(SEND, sent))["message"]["metadata"]["bridge"]
    assert found == numbers
    assert [type(found[name]) for name in numbers] == [int, float, int, float, list]
    assert [type(one) for one in found["list"]] == [int, bool]


def test_an_explicit_zero_is_not_an_absent_number() -> None:
    assert decode(GET, data_of(GET, {"id": "t", "historyLength": 0})) == {
        **{"id": "t", "historyLength": 0},
    }
    assert decode(GET, data_of(GET, {"id": "t"})) == {"id": "t"}


def test_null_is_a_data_part() -> None:
    sent = {"message": {"parts": [{"data": None}]}}
    assert decode(SEND, data_of(SEND, sent)) == sent


@each("data", [b"\xff", b"\x12\x05ab", b"\x12\x01\xff"])
def test_malformed_bytes_are_a_parse_error(data: bytes) -> None:
    with pytest.raises(ParseError) as caught:
        decode(GET, data)
    assert "Error" not in str(caught.value)


@each("number", [float("nan"), float("inf")])
def test_numbers_without_json_are_refused(number: float) -> None:
    request = SEND()
    request.metadata.fields["a"].number_value = number
    with pytest.raises(InvalidParams):
        decode(SEND, request.SerializeToString())


def test_a_time_without_json_is_refused() -> None:
    request = LIST()
    request.status_timestamp_after.seconds = 2**60
    with pytest.raises(InvalidParams):
        decode(LIST, request.SerializeToString())


def test_the_limits_are_those_of_json() -> None:
    many = SEND()
    many.message.parts.add().data.list_value.values.extend([VALUE(bool_value=True)] * MAX_TOKENS)
    with pytest.raises(InvalidRequest, match="members"):
        decode(SEND, many.SerializeToString())


def test_a_deep_request_is_refused() -> None:
    """Each level of JSON is two or three levels of messages, and parsers stop at 100."""
    request = SEND()
    value = request.metadata.fields["a"]
    for _ in range(MAX_DEPTH):
        value = value.list_value.values.add()
    with pytest.raises(ParseError):
        decode(SEND, request.SerializeToString())


@each("wrap", [lambda inner: [inner], lambda inner: {"a": inner}])
def test_a_deep_result_ends_in_text(wrap: Any) -> None:
    """Clients could not read more levels."""
    deep: Any = 1
    for _ in range(MAX_DEPTH):
        deep = wrap(deep)
    task = {"id": "t", "artifacts": [{"artifactId": "a", "parts": [{"data": deep}]}]}
    kind = message_class("lf.a2a.v1.SendMessageResponse")
    found = to_json(kind.FromString(encode(kind, {"task": task})))
    value = found["task"]["artifacts"][0]["parts"][0]["data"]
    while not isinstance(value, str):
        (value,) = value if isinstance(value, list) else value.values()
    assert "1" in value


# --- items of streams --------------------------------------------------------------------------


@each("item", PLAIN)
def test_plain_items_have_the_bytes_of_parse_dict(item: Any) -> None:
    built = plain_item(item)
    assert built is not None
    assert built.SerializeToString(deterministic=True) == encode(STREAM_RESPONSE, item)
    assert StreamItems().update(CODECS[0], item, 7) == encode(STREAM_RESPONSE, item)


@each("item", OTHER)
def test_other_items_are_not_plain(item: Any) -> None:
    assert plain_item(item) is None
    assert StreamItems().update(CODECS[0], item, 7) == encode(STREAM_RESPONSE, item)


@each("item", [*PLAIN, *OTHER])
def test_an_extended_client_gets_the_number(item: Any) -> None:
    found = STREAM_RESPONSE.FromString(StreamItems().update(EXTENDED[0], item, 7))
    content = getattr(found, found.WhichOneof("payload"))
    assert content.metadata["bridge"]["eventId"] == 7
    content.metadata["bridge"].fields.pop("eventId")
    if not content.metadata["bridge"].fields:
        content.metadata.fields.pop("bridge")
    if not content.metadata.fields:
        content.ClearField("metadata")
    assert found == STREAM_RESPONSE.FromString(encode(STREAM_RESPONSE, item))


# --- descriptors -------------------------------------------------------------------------------


def test_each_operation_has_a_method() -> None:
    assert {one.operation for one in methods()} == set(Operation)
