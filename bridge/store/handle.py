"""The tasks that a server has in memory, each with the log of its updates.

The store has the events of a task. Task.apply makes the same state and updates from them again. So
the content of a finished task is evicted, and read back on demand.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from bridge.errors import Unavailable
from bridge.store.changes import ContextKey, Fence
from bridge.store.cluster import Cluster
from bridge.store.event_log import EventLog
from bridge.store.protocol import CANNOT_WRITE, WRITE_WITHIN, Store, TaskHead
from bridge.store.replay import Recent, blank_task, replay, replay_updates
from bridge.store.serialization import load, moment
from bridge.task.message import Message, TextPart
from bridge.task.state import StatusUpdate, Task, Update

log = logging.getLogger(__name__)

T = TypeVar("T")

FEW, SHORT = 32, 8 * 1024  # most messages, and their characters, of a history kept for lists
NEWEST = 128 * 1024  # bytes of a task's newest updates that are kept for returning readers
MOST_BEHIND = 448 * 1024  # the same for a reader that is behind; it takes about twice the memory
ENTRY = 256  # bytes of memory that an update takes, besides its events
SMALL = 16 * 1024  # bytes of a finished task whose content stays in memory
LARGE = 1024 * 1024  # bytes of a finished task whose eviction frees much memory


@dataclass(slots=True, eq=False, weakref_slot=True)
class TaskHandle:
    """A task and the log of its updates. `fence`: the right to write it; `lost`: another server has
    that right by now. `shown`: a client knows the task, so that a direct reply of the agent can no
    longer replace it. `notifies`: the send that began it has a push config. `elsewhere`: another
    server writes it, and this handle follows. `begun`: the CLI may have seen its prompt. `batches`:
    the number of appended event batches. `size`: bytes in the store; `audited`: in the audit log,
    as far as this server wrote them. `renumbered`: the updates have
    other numbers here than at the server that wrote them. `reveal`: shows a hidden task at other
    servers; None if it is not hidden.

    After an eviction, `task` is its head alone (see Task.head), and `back` reads the rest for
    whole(). `outline`: the part that lists show; None if it is long or was never shown.
    """

    task: Task
    agent: str = ""
    log: EventLog[Update] = field(default_factory=EventLog)
    fence: Fence | None = None
    lost: bool = False
    shown: bool = False
    notifies: bool = False
    elsewhere: bool = False
    begun: bool = False
    batches: int = 0
    size: int = 0
    audited: int = 0
    renumbered: bool = False
    reveal: Callable[[], None] | None = None
    back: Callable[[TaskHandle], Awaitable[Task]] | None = None
    outline: Task | None = None

    @property
    def context(self) -> ContextKey:
        return ContextKey(self.agent, self.task.owner, self.task.context_id)

    def continues(self, seen: int) -> bool:
        """Whether a client that has seen the updates up to this number needs only the later ones.
        Else its copy of the task is not valid."""
        return seen <= self.log.last and not self.renumbered

    def show(self) -> None:
        """A client knows the task from now on."""
        self.shown = True
        reveal, self.reveal = self.reveal, None
        if reveal:
            reveal()

    async def whole(self) -> Task:
        """The task with its content. Returns at once unless the content was evicted. An evicted
        task has ended. Raises Unavailable, DataLoss or TaskNotFound if it cannot be read."""
        return await self.back(self) if self.back else self.task

    async def listed(self) -> Task:
        """The task; its artifacts may be missing. Raises as whole() does."""
        if self.back is None:
            return self.task
        return self.outline or self.keep_outline(await self.back(self))

    def keep_outline(self, whole: Task) -> Task:
        outline = whole.outline()
        history = outline.history
        if len(history) <= FEW and sum(map(_letters, history)) <= SHORT:
            self.outline = outline
        return outline


async def durable(answer: T, *handles: TaskHandle) -> T:
    """`answer`, after the commit of all updates of `handles`. Raises Unavailable."""
    awaited = [(one.log, one.log.last) for one in handles if one.log.visible < one.log.last]
    if not awaited:
        return answer
    try:
        async with asyncio.timeout(WRITE_WITHIN):
            for log, number in awaited:
                await log.reached(number)
    except TimeoutError:
        raise Unavailable(CANNOT_WRITE) from None
    return answer


def _letters(said: Message | StatusUpdate) -> int:
    """The approximate number of characters in a message."""
    if isinstance(said, StatusUpdate):
        return len(repr(said.event))
    return sum(
        len(part.text) if isinstance(part, TextPart) else len(repr(part)) for part in said.parts
    )


class TaskHandles:
    """The tasks of one agent. `cluster`: the other servers of the store. `freed` is called when a
    large task has left the memory."""

    def __init__(self, agent: str, store: Store, freed: Callable[[], None] = lambda: None) -> None:
        self.agent = agent
        self.store = store
        self.cluster: Cluster | None = None
        self.in_doubt = False  # another server may write these tasks
        self._freed = freed
        self._recent = Recent(store)
        self._handles: dict[str, TaskHandle] = {}

    async def find(self, task_id: str) -> TaskHandle | None:
        """The task with this id, or None if the agent does not have it."""
        known = self._handles.get(task_id)
        head = None if known else await self.store.head(task_id)
        if head is None or head.context.agent != self.agent:
            return known
        return self._handles.get(task_id) or self._ended(head)

    def unfinished(self) -> Sequence[TaskHandle]:
        return [one for one in self._handles.values() if not one.task.state.terminal]

    def add(self, handle: TaskHandle) -> None:
        """Register the handle, and bound its log."""
        task = handle.task
        handle.agent = self.agent
        self._handles[task.id] = handle
        handle.log.bound(NEWEST, MOST_BEHIND, partial(replay_updates, self.store, task.head()))

    def remove(self, task_id: str) -> None:
        """Forget a task that was removed from the store."""
        self._handles.pop(task_id, None)
        self._recent.forget(task_id)

    def evict(self, handle: TaskHandle) -> None:
        """Evict the content of a task whose end is committed, once its readers have read it. The
        content of a small task stays in memory, since its eviction would save little."""
        large = handle.size >= SMALL
        handle.log.release(entries=large)
        if not large or handle.task.id not in self._handles:
            return
        handle.keep_outline(handle.task)
        handle.task, handle.back = handle.task.head(), self._whole
        if handle.size >= LARGE:
            self._freed()

    def close(self) -> None:
        """End the readers of tasks that other servers write."""

    async def restore(
        self, context: ContextKey | None = None
    ) -> Sequence[tuple[TaskHandle, Message]]:
        """The tasks that an earlier server has left unfinished, with their prompts: those of this
        context, or of all contexts of this server. A task with a damaged prompt stays in the
        store."""
        found = []
        for one in await self.store.unfinished(self.agent, context):
            prompt = readable(Message, one.prompt)
            if prompt:
                task = blank_task(one.head)
                task.history.append(prompt)
                begun, size = one.head.begun, one.head.size
                handle = TaskHandle(task, shown=True, begun=begun, size=size)
                handle.batches = one.head.batches
                self.add(handle)
                await self._replay(handle)
                found.append((handle, prompt))
        return found

    async def _replay(self, handle: TaskHandle) -> None:
        """Apply the stored events to the task, and publish its updates."""
        task, updates_of = handle.task, handle.log
        try:
            async for batches, updates in replay(self.store, task):
                size = sum(len(batch.events) for batch in batches)
                weight = ENTRY + size // (len(updates) or 1)
                updates_of.publish(updates_of.add(updates, weight))
                if batches and updates_of.last != batches[-1].last and not handle.renumbered:
                    handle.renumbered = True
                    text = "updates have other numbers than before"
                    log.warning(text, extra={"task": task.id})
        except Exception:
            log.exception("a task cannot be read", extra={"task": task.id})
        task.reply = None  # from now on clients get the task instead
        if task.state.terminal:
            handle.log.close()

    def _ended(self, head: TaskHead) -> TaskHandle:
        handle = TaskHandle(headed(head), shown=True, begun=head.begun, size=head.size)
        handle.batches, handle.back = head.batches, self._whole
        self.add(handle)
        handle.log.skip(head.last)
        handle.log.close()
        return handle

    async def _whole(self, handle: TaskHandle) -> Task:
        return await self._recent.get(handle.task, handle.size)


def headed(head: TaskHead) -> Task:
    """The task of the head, without its content."""
    task = blank_task(head)
    task.state, task.status_time = head.state, moment(head.changed)
    return task


def readable(kind: type[T], data: bytes) -> T | None:
    """The value, or None if it is damaged or was written by another version."""
    try:
        return load(kind, data)
    except ValueError:
        log.exception("a stored value cannot be read", extra={"kind": kind})
        return None
