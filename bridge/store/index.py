"""The part of a store that one process answers from memory: heads, message keys and fences.

MemoryStore and SqliteStore share it. They are the only writers of their medium. So their reads of
heads never suspend, and an append is checked before it reaches the medium.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count

from bridge.store.changes import (
    LOCAL,
    Change,
    ContextKey,
    ContextRemoved,
    EventBatch,
    Fence,
    MessageAccepted,
    MessageKey,
    PushAdvanced,
    PushChange,
    PushConfig,
    PushFailed,
    PushRemoved,
    PushSaved,
    TaskBegun,
    TaskCreated,
    TaskRemoved,
)
from bridge.store.protocol import (
    Conflict,
    FenceLost,
    KnownMessage,
    Position,
    Retention,
    StoreError,
    TaskHead,
    TaskPage,
    TaskQuery,
    UnfinishedTask,
)
from bridge.store.retention import expired
from bridge.task.transitions import TaskState

_AT_ONCE = {MessageAccepted, ContextRemoved, TaskRemoved}  # indexed before their commit
Name = tuple[str, str, bytes]
"""The identity of a message: its agent, its name and its digest."""


def name_of(key: MessageKey) -> Name:
    return key.agent, key.name, key.digest


_HEAD = [one.name for one in fields(TaskHead)][1:-1]  # without `node`


@dataclass(slots=True)
class IndexedTask:
    """The current members of the TaskHead, and the messages of the task."""

    context: ContextKey
    created: int
    thoughts: bool
    attended: bool
    changed: int
    size: int
    state: TaskState = TaskState.SUBMITTED
    batches: int = 0
    last: int = 0
    begun: bool = False
    messages: list[Name] = field(default_factory=list)

    def head(self, task_id: str) -> TaskHead:
        return TaskHead(task_id, *(getattr(self, name) for name in _HEAD))

    def matches(self, query: TaskQuery) -> bool:
        return (
            self.context.agent in query.agents
            and query.owner in (None, self.context.owner)
            and query.context_id in (None, self.context.id)
            and query.state in (None, self.state)
            and (query.changed_since is None or self.changed >= query.changed_since)
        )


@dataclass(slots=True)
class _Lease:
    fence: Fence
    node: str
    until: float


class TaskIndex:
    """`_accept` checks an append in the order of the calls; `_commit` shows its changes to readers.
    `stored`: the bytes of the medium."""

    stored = 0
    node = LOCAL  # the only server that uses the store

    def __init__(self) -> None:
        self._tasks: dict[str, IndexedTask] = {}
        self._finished: dict[str, TaskHead] = {}  # in the order in which they ended
        self._messages: dict[Name, str] = {}
        self._accepted: dict[Name, str] = {}  # before their commit
        self._leases: dict[ContextKey, _Lease] = {}
        self._lost: dict[str, list[Fence]] = {}  # by node
        self._tokens = count(1)
        self._followers: dict[str, asyncio.Event] = {}
        self._push: dict[str, dict[str, PushConfig]] = {}  # by task, then by config id

    # --- writing -------------------------------------------------------------------------------

    def _accept(self, changes: Sequence[Change], fence: Fence | None) -> StoreError | None:
        """The reason to reject the append. None: it will be committed."""
        if fence and not self._is_held(fence):
            return FenceLost(f"another claim has taken the context {fence.context.id}")
        if _AT_ONCE.isdisjoint(map(type, changes)):
            return None
        for change in changes:
            if isinstance(change, MessageAccepted):
                name = name_of(change.key)
                known = self._accepted.get(name) or self._messages.get(name)
                if known not in (change.replaces, change.task_id):
                    return Conflict(f"the message belongs to the task {known}")
        for change in changes:
            if isinstance(change, MessageAccepted):
                self._accepted[name_of(change.key)] = change.task_id
            elif isinstance(change, ContextRemoved):  # at once: the next claim may come before
                self._leases.pop(change.context, None)  # the commit
            elif isinstance(change, TaskRemoved):  # at once: reads leave it out from now on
                self._remove(change.task_id)
        return None

    def _commit(self, changes: Sequence[Change]) -> None:
        for change in changes:
            match change:
                case EventBatch():
                    self._add(change)
                case TaskCreated():
                    self._create(change)
                case TaskBegun():
                    if task := self._tasks.get(change.task_id):
                        task.begun = True
                case MessageAccepted():
                    self._know(name_of(change.key), change.task_id)
                case TaskRemoved():
                    self._remove(change.task_id)
                case PushSaved() | PushAdvanced() | PushFailed() | PushRemoved():
                    self._change_push(change)

    def _change_push(self, change: PushChange) -> None:
        match change:
            case PushSaved(config) if config.task_id in self._tasks:
                configs = self._push.setdefault(config.task_id, {})
                if known := configs.get(config.id):
                    config = replace(config, cursor=known.cursor, attempts=known.attempts)
                configs[config.id] = config
            case PushAdvanced(task_id, config_id, cursor, attempts, due):
                known = self._push.get(task_id, {}).get(config_id)
                if known and cursor >= known.cursor:
                    new = replace(known, cursor=cursor, attempts=attempts, due=due)
                    self._push[task_id][config_id] = new
            case PushRemoved(task_id, config_id):
                self._push.get(task_id, {}).pop(config_id, None)

    def _create(self, change: TaskCreated) -> bool:
        """Add the task. Returns whether it is a new one."""
        if change.task_id in self._tasks:
            return False
        self._tasks[change.task_id] = IndexedTask(
            change.context,
            change.created,
            change.thoughts,
            change.attended,
            changed=change.created,
            size=len(change.prompt),
        )
        return True

    def _add(self, batch: EventBatch) -> bool:
        """Add the batch to its task. Returns whether it is a new one."""
        task_id, number, _, events, last, state, changed = batch
        task = self._tasks.get(task_id)
        if task is None or number <= task.batches:
            return False
        task.batches, task.last = number, last
        task.size += len(events)
        if state and changed is not None:
            task.state, task.changed = state, changed
            if state.terminal:
                self._finished[task_id] = task.head(task_id)
        if task_id in self._followers:
            self._followers.pop(task_id).set()
        return True

    def _know(self, name: Name, task_id: str) -> None:
        if self._accepted.get(name) == task_id:
            del self._accepted[name]
        task = self._tasks.get(task_id)
        if task:
            self._messages[name] = task_id
            task.messages.append(name)

    def _remove(self, task_id: str) -> None:
        task = self._tasks.pop(task_id, None)
        self._push.pop(task_id, None)
        if task is None:
            return
        for name in task.messages:
            if self._messages.get(name) == task_id:
                del self._messages[name]
        self._finished.pop(task_id, None)
        if task_id in self._followers:
            self._followers.pop(task_id).set()

    # --- fences --------------------------------------------------------------------------------

    async def claim(self, key: ContextKey, node: str, ttl: float) -> Fence | None:
        now, lease = time.monotonic(), self._leases.get(key)
        if lease and lease.node == node:
            lease.until = now + ttl
            return lease.fence
        if lease and lease.until > now:
            return None
        if lease:
            self._lost.setdefault(lease.node, []).append(lease.fence)
        fence = Fence(key, next(self._tokens))
        self._leases[key] = _Lease(fence, node, now + ttl)
        return fence

    async def renew(self, node: str, ttl: float) -> Sequence[Fence]:
        until = time.monotonic() + ttl
        for lease in self._leases.values():
            if lease.node == node:
                lease.until = until
        return self._lost.pop(node, [])

    async def release(self, fence: Fence) -> None:
        if self._is_held(fence):
            del self._leases[fence.context]

    def _is_held(self, fence: Fence) -> bool:
        lease = self._leases.get(fence.context)  # the comparison takes longer than an identity
        return lease is not None and (lease.fence is fence or lease.fence == fence)

    # --- reading -------------------------------------------------------------------------------

    async def head(self, task_id: str) -> TaskHead | None:
        task = self._tasks.get(task_id)
        return task.head(task_id) if task else None

    async def list(self, query: TaskQuery) -> TaskPage:
        found: list[tuple[Position, IndexedTask]] = [
            ((-task.changed, task_id), task)
            for task_id, task in self._tasks.items()
            if task.matches(query)
        ]
        total = len(found)
        if query.after:
            changed, task_id = query.after
            found = [one for one in found if one[0] > (-changed, task_id)]
        found.sort(key=lambda one: one[0])
        shown = found[: query.limit or None]
        heads = [task.head(task_id) for (_, task_id), task in shown]
        more = len(shown) < len(found)
        return TaskPage(heads, (heads[-1].changed, heads[-1].task_id) if more else None, total)

    async def message(self, key: MessageKey) -> KnownMessage | None:
        name = name_of(key)
        task_id = self._accepted.get(name) or self._messages.get(name)
        return KnownMessage(task_id) if task_id else None

    async def expired(self, retention: Retention, now: int) -> Sequence[str]:
        finished: dict[str, list[TaskHead]] = {}
        for head in self._finished.values():
            if head.context.agent == retention.agent:
                finished.setdefault(head.context.owner, []).append(head)
        undelivered = {
            task_id
            for task_id, configs in self._push.items()
            if any(config.cursor < self._tasks[task_id].last for config in configs.values())
        }
        return expired(finished, retention, now=now, stored=self.stored, undelivered=undelivered)

    async def push_configs(self, task_id: str | None = None) -> Sequence[PushConfig]:
        if task_id is not None:
            return list(self._push.get(task_id, {}).values())
        return [config for configs in self._push.values() for config in configs.values()]

    async def unfinished(
        self, agent: str, context: ContextKey | None = None
    ) -> Sequence[UnfinishedTask]:
        return [
            UnfinishedTask(task.head(task_id), await self.prompt(task_id))
            for task_id, task in list(self._tasks.items())
            if task.context.agent == agent and not task.state.terminal
            if context in (None, task.context)
        ]

    async def follow(self, task_id: str, after: int) -> AsyncIterator[Sequence[EventBatch]]:
        while True:
            task = self._tasks.get(task_id)
            if task and task.batches > after:
                batches = await self.read(task_id, after)
                after = batches[-1].number
                yield batches
            elif task is None or task.state.terminal:
                return
            else:
                await self._followers.setdefault(task_id, asyncio.Event()).wait()

    async def prompt(self, task_id: str) -> bytes:
        raise NotImplementedError

    async def read(self, task_id: str, after: int = 0) -> Sequence[EventBatch]:
        raise NotImplementedError
