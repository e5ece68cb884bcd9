"""The messages of A2A 1.0 in protobuf: requests as the JSON that the codec decodes, and the JSON of
results as bytes.

The classes come from a descriptor set (scripts/proto) in a pool of its own. Generated modules would
check the versions of protobuf and grpcio at their import, and use the pool that other libraries of
the process share.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import Error as JsonError
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from bridge.a2a.codec import Codec
from bridge.errors import InvalidParams, InvalidRequest, ParseError
from bridge.task.text import is_deep
from bridge.transports.json_body import MAX_DEPTH, MAX_TOKENS

EXACT = 2**53  # doubles represent all integers up to this one
DEEPEST = 35  # levels of JSON in a result: up to three levels of messages each, of 100 at most
_TEXT_CHUNK = {"taskId", "contextId", "artifact", "append", "lastChunk"}
_STATUS = {"taskId", "contextId", "status"}
_MESSAGE = {"messageId", "role", "parts", "taskId", "contextId"}


def _load() -> DescriptorPool:
    data = Path(__file__).with_name("a2a.binpb").read_bytes()
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(data).file:
        pool.Add(file)
    return pool


POOL = _load()


@cache
def message_class(name: str) -> Any:
    """The class of a message by its full name."""
    return GetMessageClass(POOL.FindMessageTypeByName(name))


STREAM_RESPONSE = message_class("lf.a2a.v1.StreamResponse")
STATES: Mapping[str, int] = {
    value.name: value.number for value in POOL.FindEnumTypeByName("lf.a2a.v1.TaskState").values
}
ROLES: Mapping[str, int] = {
    value.name: value.number for value in POOL.FindEnumTypeByName("lf.a2a.v1.Role").values
}


# --- requests ----------------------------------------------------------------------------------


def decode(kind: Any, data: bytes) -> dict[str, Any]:
    """The request of the class `kind` as the JSON of the HTTP bindings. Raises ParseError,
    InvalidRequest and InvalidParams. protobuf has only doubles inside metadata and data parts, so
    whole numbers become integers there."""
    try:
        message = kind.FromString(data)
    except DecodeError:
        text = f"The request is not a message {kind.DESCRIPTOR.full_name}, or is nested too deeply."
        raise ParseError(text) from None
    _check_members(message, MAX_TOKENS)
    try:
        decoded = MessageToDict(message, descriptor_pool=POOL)
    except (JsonError, ValueError, OverflowError):  # NaN, infinity, a time beyond the year 9999
        text = "The request has a number or a time that JSON cannot represent."
        raise InvalidParams(text, [("params", "not representable in JSON")]) from None
    checked: dict[str, Any] = _checked(decoded, MAX_DEPTH)
    return checked


def _check_members(message: Any, left: int) -> int:
    """Raise InvalidRequest for more than `left` members, before an object is created for each.
    Returns the number of members that are left."""
    for field, value in message.ListFields():
        left -= len(value) if field.is_repeated else 1
        if left < 0:
            raise InvalidRequest(f"The request has more than {MAX_TOKENS} members.")
        if field.message_type is None:
            continue
        inner = value if field.is_repeated else (value,)
        if field.message_type.GetOptions().map_entry:
            is_message = field.message_type.fields_by_name["value"].message_type
            inner = value.values() if is_message else ()
        for one in inner:
            left = _check_members(one, left)
    return left


def _checked(value: Any, levels: int) -> Any:
    """`value` with integers in place of whole doubles. Raises InvalidRequest for more than `levels`
    levels."""
    match value:
        case float():
            return int(value) if value.is_integer() and abs(value) < EXACT else value
        case dict() | list() if not levels:
            text = f"The request is nested more than {MAX_DEPTH} levels deep."
            raise InvalidRequest(text)
        case dict():
            return {name: _checked(one, levels - 1) for name, one in value.items()}
        case list():
            return [_checked(one, levels - 1) for one in value]
    return value


# --- results -----------------------------------------------------------------------------------


def encode(kind: Any, result: Any) -> bytes:
    """The result of an operation as a message of the class `kind`; None is an empty message."""
    return _serialized(_parsed(kind, result or {}))


def _parsed(kind: Any, result: Mapping[str, Any]) -> Any:
    flat = _flattened(result, DEEPEST) if is_deep(result, DEEPEST) else result
    return ParseDict(flat, kind(), ignore_unknown_fields=True, descriptor_pool=POOL)


def _flattened(value: Any, levels: int) -> Any:
    """`value` with the JSON text of each object and list below `levels` levels."""
    match value:
        case dict() | list() if not levels:
            return orjson.dumps(value).decode()
        case dict():
            return {name: _flattened(one, levels - 1) for name, one in value.items()}
        case list():
            return [_flattened(one, levels - 1) for one in value]
    return value


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString(deterministic=True)
    return data


class StreamItems:
    """The items of a stream: bridge/transports/stream.py, Wire. A client that activates EXTENSION
    gets the number of each item in `metadata.bridge.eventId`."""

    def opening(self, codec: Codec, data: bytes, number: int) -> bytes:
        item = orjson.loads(data)
        return encode(STREAM_RESPONSE, _numbered(item, number) if codec.extended else item)

    def update(self, codec: Codec, encoded: Mapping[str, Any], number: int) -> bytes:
        if codec.extended:
            return encode(STREAM_RESPONSE, _numbered(encoded, number))
        return _serialized(plain_item(encoded) or _parsed(STREAM_RESPONSE, encoded))


def _numbered(item: Mapping[str, Any], number: int) -> dict[str, Any]:
    (name, content), *_ = item.items()
    metadata = content.get("metadata") or {}
    bridge = {**(metadata.get("bridge") or {}), "eventId": number}
    return {name: {**content, "metadata": {**metadata, "bridge": bridge}}}


def plain_item(item: Mapping[str, Any]) -> Any:
    """The message of a piece of text or of a status without metadata, the items that a stream has
    most of; None for others. It takes a fraction of the time of ParseDict."""
    (name, content), *_ = item.items()
    if name == "artifactUpdate":
        return _text_chunk(content)
    return _plain_status(content) if name == "statusUpdate" else None


def _text_chunk(content: Mapping[str, Any]) -> Any:
    artifact = content["artifact"]
    parts = artifact["parts"]
    if content.keys() != _TEXT_CHUNK or artifact.keys() - {"artifactId", "name", "parts"}:
        return None
    if len(parts) != 1 or parts[0].keys() != {"text"}:
        return None
    message = STREAM_RESPONSE()
    update = message.artifact_update
    update.task_id, update.context_id = content["taskId"], content["contextId"]
    update.append, update.last_chunk = content["append"], content["lastChunk"]
    update.artifact.artifact_id = artifact["artifactId"]
    update.artifact.name = artifact.get("name", "")
    update.artifact.parts.add().text = parts[0]["text"]
    return message


def _plain_status(content: Mapping[str, Any]) -> Any:
    status = content["status"]
    said = status.get("message")
    if content.keys() != _STATUS or status.keys() - {"state", "timestamp", "message"}:
        return None
    if said and (said.keys() - _MESSAGE or any(one.keys() != {"text"} for one in said["parts"])):
        return None
    message = STREAM_RESPONSE()
    update = message.status_update
    update.task_id, update.context_id = content["taskId"], content["contextId"]
    update.status.state = STATES[status["state"]]
    update.status.timestamp.FromDatetime(datetime.fromisoformat(status["timestamp"]))
    if said:
        sent = update.status.message
        sent.message_id, sent.role = said["messageId"], ROLES[said["role"]]
        sent.task_id, sent.context_id = said.get("taskId", ""), said.get("contextId", "")
        for part in said["parts"]:
            sent.parts.add().text = part["text"]
    return message
