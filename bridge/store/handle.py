"""The tasks that a server has in memory: each with the log of its updates.

The store has the events of a task, from which Task.apply makes the same state and updates again. So
the content of a finished task is evicted, and read back on demand.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from bridge.store.event_log import EventLog
from bridge.store.protocol import ContextKey, Fence, Store, TaskHead
from bridge.store.replay import Recent, blank_task, replay, retold
from bridge.store.serialization import load, moment
from bridge.task.message import Message, TextPart
from bridge.task.state import StatusUpdate, Task, Update

log = logging.getLogger(__name__)

T = TypeVar("T")

FEW, SHORT = 32, 8 * 1024  # messages, and their characters, of a history that is kept for lists
NEWEST = 128 * 1024  # bytes of a task's updates that are kept for those who come back to it
MOST_BEHIND = 448 * 1024  # the same for a reader who is behind: in memory it is about twice that
ENTRY = 256  # bytes that an update takes, besides its events
SMALL = 16 * 1024  # bytes of a finished task whose content stays in memory
LARGE = 1024 * 1024  # bytes of one that leaves much memory behind


@dataclass(slots=True, eq=False, weakref_slot=True)
class TaskHandle:
    """A task and the log of its updates. `fence`: the right to write it; `lost`: another server has
    that by now. `shown`: a client knows the task, so that a direct reply of the agent can no longer
    stand for it. `begun`: the CLI may have seen its prompt. `batches`: of events that were
    appended. `size`: bytes in the store.

    Where the content was evicted, `task` is its head alone (see Task.head); `back` reads the rest,
    for whole(). `outline` is what lists show of it, unless that is long or was never shown.
    """

    task: Task
    agent: str = ""
    log: EventLog[Update] = field(default_factory=EventLog)
    fence: Fence | None = None
    lost: bool = False
    shown: bool = False
    begun: bool = False
    batches: int = 0
    size: int = 0
    back: Callable[[TaskHandle], Awaitable[Task]] | None = None
    outline: Task | None = None

    @property
    def context(self) -> ContextKey:
        return ContextKey(self.agent, self.task.owner, self.task.context_id)

    async def whole(self) -> Task:
        """The task with its content. Returns at once unless that was evicted; then the task has
        ended, and this raises Unavailable, DataLoss or TaskNotFound where it cannot be read."""
        return await self.back(self) if self.back else self.task

    async def listed(self) -> Task:
        """The task; its artifacts may be missing. As whole()."""
        if self.back is None:
            return self.task
        return self.outline or self.keep_outline(await self.back(self))

    def keep_outline(self, whole: Task) -> Task:
        outline = whole.outline()
        history = outline.history
        if len(history) <= FEW and sum(map(_letters, history)) <= SHORT:
            self.outline = outline
        return outline


def _letters(said: Message | StatusUpdate) -> int:
    """About how many characters it has."""
    if isinstance(said, StatusUpdate):
        return len(repr(said.event))
    return sum(
        len(part.text) if isinstance(part, TextPart) else len(repr(part)) for part in said.parts
    )


class TaskHandles:
    """The tasks of one agent. `freed` is called when a large task has left the memory."""

    def __init__(self, agent: str, store: Store, freed: Callable[[], None] = lambda: None) -> None:
        self.agent = agent
        self.store = store
        self._freed = freed
        self._recent = Recent(store)
        self._handles: dict[str, TaskHandle] = {}

    async def find(self, task_id: str) -> TaskHandle | None:
        """The task, if the agent has it."""
        known = self._handles.get(task_id)
        head = None if known else await self.store.head(task_id)
        if head is None or head.context.agent != self.agent:
            return known
        return self._handles.get(task_id) or self._ended(head)

    def unfinished(self) -> Sequence[TaskHandle]:
        return [one for one in self._handles.values() if not one.task.state.terminal]

    def add(self, handle: TaskHandle) -> None:
        """The task of the handle begins."""
        task = handle.task
        handle.agent = self.agent
        self._handles[task.id] = handle
        handle.log.bound(NEWEST, MOST_BEHIND, ENTRY, partial(retold, self.store, task.head()))

    def remove(self, task_id: str) -> None:
        """The task was removed from the store."""
        self._handles.pop(task_id, None)
        self._recent.forget(task_id)

    def evict(self, handle: TaskHandle) -> None:
        """The end of the task is committed: its content leaves the memory once its readers have
        read it. It stays there of a task that is hardly larger without it."""
        large = handle.size >= SMALL
        handle.log.release(entries=large)
        if not large or handle.task.id not in self._handles:
            return
        handle.keep_outline(handle.task)
        handle.task, handle.back = handle.task.head(), self._whole
        if handle.size >= LARGE:
            self._freed()

    async def restore(self) -> Sequence[tuple[TaskHandle, Message]]:
        """The tasks that an earlier server has left unfinished, with their prompts. A task whose
        prompt is damaged stays in the store."""
        found = []
        for one in await self.store.unfinished(self.agent):
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
        """Let everything happen to the task that has happened to it."""
        task, updates_of = handle.task, handle.log
        try:
            async for batches, updates in replay(self.store, task):
                updates_of.add(updates)
                updates_of.weigh(sum(len(batch.events) for batch in batches))
                updates_of.publish(updates_of.last)
                if batches and updates_of.last != batches[-1].last:
                    text = "updates have other numbers than before"
                    log.warning(text, extra={"task": task.id})
        except Exception:
            log.exception("a task cannot be read", extra={"task": task.id})
        task.reply = None  # it is a task by now, which clients may get
        if task.state.terminal:
            handle.log.close()

    def _ended(self, head: TaskHead) -> TaskHandle:
        task = blank_task(head)
        task.state, task.status_time = head.state, moment(head.changed)
        handle = TaskHandle(task, shown=True, begun=head.begun, size=head.size)
        handle.batches, handle.back = head.batches, self._whole
        self.add(handle)
        handle.log.skip(head.last)
        handle.log.close()
        return handle

    async def _whole(self, handle: TaskHandle) -> Task:
        return await self._recent.get(handle.task, handle.size)


def readable(kind: type[T], data: bytes) -> T | None:
    """The value, or None where another version has written it, or it is damaged."""
    try:
        return load(kind, data)
    except ValueError:
        log.exception("a stored value cannot be read", extra={"kind": kind})
        return None
