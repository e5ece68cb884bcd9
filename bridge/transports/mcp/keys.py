"""The same call, one task: message ids of repeated calls, and marks that are stored with a task.

A mark is a message of the task without a content. The store keeps it as long as the task, so that
it survives a restart of the server.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from bridge.errors import Unavailable
from bridge.store.changes import MessageAccepted, MessageKey
from bridge.store.handle import TaskHandle
from bridge.store.protocol import CANNOT_WRITE, WRITE_WITHIN, OnCommit, Store, StoreError

NAMESPACE = "mcp"
"""The agent of the marks: no agent of the server has messages with these ids."""
DIGITS = 40  # hexadecimal digits of a message id


def message_id(*parts: str) -> str:
    """The id of the message that a call sends. Equal parts give equal ids."""
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass"))
    return f"mcp-{digest.hexdigest()[:DIGITS]}"


class Marks:
    """Facts about tasks, for one owner each."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def has(self, handle: TaskHandle, mark: str) -> bool:
        return await self._find(handle.task.owner, f"{handle.task.id}/{mark}") is not None

    def set(self, handle: TaskHandle, mark: str) -> None:
        self._append(handle, f"{handle.task.id}/{mark}")

    async def keep(self, handle: TaskHandle, mark: str) -> None:
        """Set the mark, and wait for its commit. Raises Unavailable."""
        done: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()

        def committed(error: StoreError | None) -> None:
            if not done.done():
                done.set_result(error)

        self._append(handle, f"{handle.task.id}/{mark}", then=committed)
        try:
            async with asyncio.timeout(WRITE_WITHIN):
                error = await done
        except TimeoutError:
            raise Unavailable(CANNOT_WRITE) from None
        if error:
            raise Unavailable(CANNOT_WRITE)

    async def same_call(self, owner: str, arguments: Mapping[str, Any]) -> str | None:
        """The newest task of an equal call of this owner that had no key."""
        return await self._find(owner, _name(arguments))

    def note_call(
        self, handle: TaskHandle, arguments: Mapping[str, Any], before: str | None
    ) -> None:
        """The call with these arguments began the task. `before`: the result of same_call()."""
        self._append(handle, _name(arguments), before)

    async def _find(self, owner: str, name: str) -> str | None:
        known = await self._store.message(MessageKey(NAMESPACE, owner, name, b""))
        return known.task_id if known else None

    def _append(
        self,
        handle: TaskHandle,
        name: str,
        before: str | None = None,
        then: OnCommit | None = None,
    ) -> None:
        key = MessageKey(NAMESPACE, handle.task.owner, name, b"")
        accepted = MessageAccepted(key, handle.task.id, before)
        self._store.append([accepted], fence=None, then=then)


def _name(arguments: Mapping[str, Any]) -> str:
    encoded = orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)
    return f"call/{hashlib.sha256(encoded).hexdigest()}"
