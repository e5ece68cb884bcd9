"""Detects repeated messages, so that a retry does not begin a second task (§3.3.1).

A repetition has the principal, the id and the content of the earlier message. The id alone does not
identify a message: many clients, such as the official test suites, use one id for unrelated
messages.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import orjson

from bridge.store.changes import Change, ContextKey, MessageAccepted, MessageKey
from bridge.store.cluster import Cluster
from bridge.store.handle import TaskHandles
from bridge.task.message import DataPart, Message, Part, RawPart, TextPart

UNIQUE = 16  # characters; a shorter id is a number or a name, and a client uses it again
_VERSION = b"\1"  # of the digest; the digests of servers up to 0.1.0 have none


@dataclass(slots=True)
class Reservation:
    """One message. Its repetitions wait until it is accepted or refused. `task_id`: the task to
    which it already belongs. `context`: of that task, if the store is shared. `key` is None for a
    message without a unique id. `accepted`: the server has accepted it."""

    key: MessageKey | None = None
    task_id: str | None = None
    context: ContextKey | None = None
    accepted: bool = False

    def accept(self, task_id: str) -> Sequence[Change]:
        """The changes that assign the message to this task."""
        self.accepted = True
        return [MessageAccepted(self.key, task_id, self.task_id)] if self.key else []


class IdempotencyIndex:
    """The messages that the agent of `tasks` has accepted, and the task of each."""

    def __init__(self, tasks: TaskHandles) -> None:
        self._agent = tasks.agent
        self._cluster = tasks.cluster
        self._store = tasks.store
        self._reserved: dict[MessageKey, asyncio.Event] = {}

    @asynccontextmanager
    async def reserve(self, owner: str, message: Message) -> AsyncIterator[Reservation]:
        """Reserve the message of the principal `owner` until the server accepted or refused it."""
        if len(message.id) < UNIQUE:
            yield Reservation()
            return
        key = MessageKey(self._agent, owner, message.id, digest(message))
        while key in self._reserved:
            await self._reserved[key].wait()
        decided = self._reserved[key] = asyncio.Event()
        try:
            if self._cluster:
                async with _reserved(self._cluster, key) as reservation:
                    yield reservation
                return
            for one in (key, replace(key, digest=_old_digest(message))):
                if known := await self._store.message(one):
                    yield Reservation(one, known.task_id)
                    return
            yield Reservation(key)
        finally:
            del self._reserved[key]
            decided.set()


@asynccontextmanager
async def _reserved(cluster: Cluster, key: MessageKey) -> AsyncIterator[Reservation]:
    """Reserve the message at all servers."""
    known = await cluster.reserve(key)
    reservation = Reservation(key, known.task_id, known.context) if known else Reservation(key)
    try:
        yield reservation
    finally:
        if known is None and not reservation.accepted:
            await cluster.unreserve(key)


def digest(message: Message) -> bytes:
    """The digest of the decoded message. The protocol version, the order of members and the
    spelling of base64 make no difference to it. It excludes the position from which the client
    resumes the stream, because each retry has another position."""
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
    """The digest of servers up to 0.1.0, because a client may retry across an upgrade."""
    metadata = dict(message.metadata or {})
    if isinstance(bridge := metadata.get("bridge"), dict):
        metadata["bridge"] = {name: value for name, value in bridge.items() if name != "after"}
    said = repr(replace(message, metadata=metadata))
    return hashlib.sha256(said.encode("utf-8", "surrogatepass")).digest()
