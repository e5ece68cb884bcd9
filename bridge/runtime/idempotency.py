"""Which message is a repetition of an earlier one, so that a retry begins no second task (§3.3.1).

A repetition has the principal, the id and the content of the earlier message. The id alone does not
identify a message: many clients, the official test suites among them, use one id for messages that
have nothing to do with each other.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from bridge.store.tasks import Record
from bridge.task.message import DataPart, Message, Part, RawPart, TextPart

UNIQUE = 16  # characters; a shorter id is a number or a name, which a client uses again
KEPT = 10_000  # messages of one agent

Key = tuple[str, bytes]
_VERSION = b"\1"  # of the digest; the digests of servers up to 0.1.0 have none
_OLD_SIZE = hashlib.sha256().digest_size


class Taken:
    """The messages that an agent has taken, and the task of each."""

    def __init__(self) -> None:
        self._messages: dict[Key, weakref.ref[Record]] = {}
        self._old: set[str] = set()  # names in keys with a digest of _old_digest()

    def find(self, key: Key, message: Message) -> Record | None:
        """The task of the same message, unless it was forgotten. `key`: of `message`."""
        found = self._messages.get(key)
        if found is None and key[0] in self._old:
            found = self._messages.get((key[0], _old_digest(message)))
        return found() if found else None

    def add(self, key: Key, record: Record) -> None:
        name, content = key
        if len(content) == _OLD_SIZE:
            self._old.add(name)
        self._messages.pop(key, None)  # what was added last is dropped last
        self._messages[key] = weakref.ref(record)
        if len(self._messages) > KEPT:
            del self._messages[next(iter(self._messages))]


def key_of_message(name: str, message: Message) -> Key | None:
    """What identifies the message; None if its id is too short to be unique. `name`: what the
    server calls that id, which two principals may choose alike."""
    return (name, digest(message)) if len(message.id) >= UNIQUE else None


def digest(message: Message) -> bytes:
    """Of the decoded message, so that neither the protocol version, nor the order of members, nor
    the spelling of base64 makes a difference; without the position at which the client wants to
    resume the stream, which is another one in each retry."""
    facts = {
        "role": message.role.value,
        "parts": [_part(part) for part in message.parts],
        "task": message.task_id,
        "context": message.context_id,
        "references": message.reference_task_ids,
        "extensions": message.extensions,
        "metadata": _without_position(message.metadata),
    }
    data = orjson.dumps(facts, option=orjson.OPT_SORT_KEYS)
    return _VERSION + hashlib.sha256(data).digest()


def _part(part: Part) -> list[Any]:
    match part:
        case TextPart():
            content: Any = part.text
        case RawPart():
            content = part.base64
        case DataPart():
            content = part.data
        case _:
            content = part.url
    common = (part.media_type or None, part.filename or None, part.metadata or None)
    return [type(part).__name__, content, *common]


def _without_position(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    kept = dict(metadata or {})
    if isinstance(bridge := kept.get("bridge"), dict):
        kept["bridge"] = {name: value for name, value in bridge.items() if name != "after"}
        if not kept["bridge"]:
            del kept["bridge"]
    return kept


def _old_digest(message: Message) -> bytes:
    """The digest of the servers up to 0.1.0: a client may retry across an upgrade."""
    metadata = dict(message.metadata or {})
    if isinstance(bridge := metadata.get("bridge"), dict):
        metadata["bridge"] = {name: value for name, value in bridge.items() if name != "after"}
    said = repr(replace(message, metadata=metadata))
    return hashlib.sha256(said.encode("utf-8", "surrogatepass")).digest()
