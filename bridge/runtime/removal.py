"""The removal of finished tasks: beyond the limits of the operator, at a request for their owner,
and when a Message has replaced a task."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from bridge.errors import Unavailable
from bridge.runtime.contexts import Contexts
from bridge.store.changes import TaskRemoved
from bridge.store.handle import TaskHandle
from bridge.store.protocol import Retention, TaskQuery
from bridge.store.serialization import micros


class Notifier(Protocol):
    """Delivers the updates of tasks. No task is removed before the delivery."""

    async def resume(self, handle: TaskHandle) -> None:
        """Deliver the updates of a task that another server had."""

    async def expire(self, task_id: str) -> bool:
        """Give up the delivery. Returns whether there was any; the result is kept with the task."""

    def after_delivery(self, task_id: str, call: Callable[[], None]) -> None:
        """Call `call` when all updates of the task, which has ended, are delivered."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """The numbers of deleted tasks and conversations; `open`: the tasks that have not ended."""

    tasks: int
    conversations: int
    open: Sequence[str]


class Removal:
    """Removes tasks of the agent of `contexts`, with their attachments."""

    def __init__(self, contexts: Contexts, notifier: Notifier | None) -> None:
        self._contexts = contexts
        self._tasks = contexts.tasks
        self._store = contexts.tasks.store
        self._notifier = notifier

    async def of_owner(self, owner: str) -> Deleted:
        """Remove the finished tasks of the owner, and its conversations that have neither an open
        task nor a session. Notifications that were not delivered are lost. Raises Unavailable."""
        query = TaskQuery(agents=(self._tasks.agent,), owner=owner)
        heads = (await self._store.list(query)).heads
        finished = [head for head in heads if head.state.terminal]
        for head in finished:
            if self._notifier:
                await self._notifier.expire(head.task_id)
            self._remove(head.task_id)
            self._contexts.agent.attachments.forget(head.context.name, head.task_id)
        conversations = self._contexts.remove_cold(0, owner)
        left = [head.task_id for head in heads if not head.state.terminal]
        return Deleted(len(finished), conversations, left)

    async def expire(self, retention: Retention) -> None:
        """Remove the finished tasks that exceed the limits of number, age or size. The next call
        continues if the store cannot be read now."""
        with contextlib.suppress(Unavailable):
            await self._expire_all(replace(retention, agent=self._tasks.agent))

    async def _expire_all(self, retention: Retention) -> None:
        for task_id in await self._store.expired(retention, micros(datetime.now(UTC))):
            if self._notifier and await self._notifier.expire(task_id):
                continue  # its dead letters are kept until the next call
            head = await self._store.head(task_id)
            self._remove(task_id)
            if head:
                self._contexts.agent.attachments.forget(head.context.name, task_id)

    def replaced(self, handle: TaskHandle) -> None:
        """A Message replaces the task, which has ended: no client knows it."""
        task_id = handle.task.id
        if self._notifier and handle.notifies:
            self._tasks.remove(task_id)
            self._notifier.after_delivery(task_id, lambda: self._remove(task_id))
        else:
            self._remove(task_id)

    def _remove(self, task_id: str) -> None:
        self._store.append([TaskRemoved(task_id)], fence=None)
        self._tasks.remove(task_id)
