"""The store of a server: it commits changes (changes.py) and answers reads.

A store is the durable truth about the tasks, contexts and sessions of all agents of a server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bridge.store.changes import (
    Change,
    ContextKey,
    ContextSaved,
    EventBatch,
    Fence,
    MessageKey,
    PushConfig,
    PushFailed,
)
from bridge.task.transitions import TaskState

WRITE_WITHIN = 10.0
"""Seconds for a commit that a client waits for."""

CANNOT_WRITE = "The server cannot write to its store now. Retry later."
"""The message of the Unavailable error after that time, or while the store has a problem."""

CANNOT_READ = "The server cannot read its store now; try again in a moment."
DAMAGED = "The stored task is damaged; the server's log says more."
"""The messages of the Unavailable and the DataLoss error of a read."""


# --- reads ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskHead:
    """A task without its content. `changed` is the time of its newest status, `batches` the number
    of its newest batch, `last` that of its newest update, `size` the bytes of prompt and events.
    `node`: the id of the server that has its context; None if the store does not know it."""

    task_id: str
    context: ContextKey
    created: int
    thoughts: bool
    attended: bool
    changed: int
    state: TaskState
    batches: int
    last: int
    size: int
    begun: bool
    node: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class KnownMessage:
    """A message that was accepted; `task_id` is the newest task that it belongs to. `context`: of
    the task, if the store is shared."""

    task_id: str
    context: ContextKey | None = field(default=None, compare=False)


Position = tuple[int, str]
"""The position of a task in a list, the newest status first: `changed`, then the id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQuery:
    """None and 0 mean no limit. `changed_since`: only tasks whose newest status is not older.
    `after`: only tasks behind this position."""

    agents: Sequence[str]
    owner: str | None = None
    context_id: str | None = None
    state: TaskState | None = None
    changed_since: int | None = None
    after: Position | None = None
    limit: int = 0


@dataclass(frozen=True, slots=True)
class TaskPage:
    """`after`: the position where the next page begins, None on the last one. `total` counts the
    tasks of all pages."""

    heads: Sequence[TaskHead]
    after: Position | None
    total: int


@dataclass(frozen=True, slots=True)
class UnfinishedTask:
    head: TaskHead
    prompt: bytes


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session that was not closed: its inputs in their order, and its position (OutputRead)."""

    id: str
    context: ContextKey
    start: bytes
    position: int
    given: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Retention:
    """The finished tasks of one agent that are kept: at most `tasks`, `of_context` of each context,
    for `days`, in `bytes` of the whole store, and `of_owner` bytes for each owner; 0 means
    unlimited for all but `tasks`."""

    agent: str = ""
    tasks: int = 1000
    of_context: int = 0
    days: int = 0
    bytes: int = 0
    of_owner: Callable[[str], int] = lambda owner: 0


REPORTS = (b'["Started",', b'["Usage",')
"""How the events begin that Store.reports() looks for."""


# --- the store -----------------------------------------------------------------------------------


class StoreError(Exception):
    """An append was rejected as a whole. A retry has the same result."""


class FenceLost(StoreError):
    """Another claim has taken the context."""


class Conflict(StoreError):
    """The message belongs to another task by now."""


OnCommit = Callable[[StoreError | None], None]
"""Called on the event loop, in the order of the appends. None: the changes are committed."""


class Store(Protocol):
    """`durable`: committed changes survive the process. `congested`: so many changes wait that the
    caller should pause. `schema`: the version of the schema, 0 for none. `backlog`: the bytes of
    changes that are not committed. `stored`: the bytes of the medium, 0 if they are unknown.
    `problem`: why no commit is possible now; changes are kept and retried.

    Reads return committed changes, and all that this process has committed. They suspend only for
    I/O. They raise LookupError for an unknown task, except head(); Unavailable while the medium
    cannot be read, and DataLoss if it is damaged. So does claim().

    `node`: the id of this server for claims. Other servers may use the store, too (SharedStore);
    then the tasks of a context belong to the server that has claimed it.
    """

    durable: bool
    node: str
    schema: int

    @property
    def congested(self) -> bool: ...

    @property
    def backlog(self) -> int: ...

    @property
    def stored(self) -> int: ...

    @property
    def problem(self) -> str | None: ...

    async def open(self) -> None:
        """Raises ConfigurationError if the medium cannot be used."""

    async def flush(self) -> None:
        """Return after the commit of all appends so far."""

    async def close(self) -> None:
        """Commit the waiting changes, for a bounded time."""

    def append(
        self, changes: Sequence[Change], *, fence: Fence | None, then: OnCommit | None = None
    ) -> None:
        """Commit the changes together, after all earlier appends. `fence` is None for retention,
        for push configs, and for tasks of a context without a holder. Task id and batch number are
        a key: a batch that the store has is not written again."""

    def time_commits(self, timed: Callable[[float], None]) -> None:
        """Call `timed` with the seconds of each commit from now on."""

    def on_relief(self, call: Callable[[], None]) -> None:
        """Call `call` once, as soon as the store is not congested."""

    async def claim(self, key: ContextKey, node: str, ttl: float) -> Fence | None:
        """The fence of the context for `ttl` seconds: the same one for its holder, None while
        another node holds it."""

    async def renew(self, node: str, ttl: float) -> Sequence[Fence]:
        """Keep all fences of the node for another `ttl` seconds. Returns those that it has lost
        since the last call."""

    async def release(self, fence: Fence) -> None:
        """Let other nodes claim the context."""

    async def head(self, task_id: str) -> TaskHead | None: ...

    async def prompt(self, task_id: str) -> bytes: ...

    async def read(self, task_id: str, after: int = 0) -> Sequence[EventBatch]:
        """The next batches after number `after`: as many as one read may return, and at least one
        if there is any."""

    def follow(self, task_id: str, after: int) -> AsyncIterator[Sequence[EventBatch]]:
        """The batches after number `after`, as they are committed, up to the end of the task."""

    async def list(self, query: TaskQuery) -> TaskPage:
        """The tasks with the newest status first, then by id."""

    async def message(self, key: MessageKey) -> KnownMessage | None:
        """Also a message of this process whose commit is under way: the log of its task shows
        nothing before."""

    async def unfinished(
        self, agent: str, context: ContextKey | None = None
    ) -> Sequence[UnfinishedTask]:
        """The unfinished tasks of this context, or of all contexts of this node, in the order of
        their creation."""

    async def contexts(
        self, agent: str, context: ContextKey | None = None
    ) -> Sequence[ContextSaved]:
        """This context, if it was saved, or all saved contexts of this node."""

    async def sessions(self, agent: str) -> Sequence[OpenSession]: ...

    async def reports(self, task_ids: Sequence[str]) -> Sequence[tuple[str, bytes]]:
        """The events of the batches of these tasks in which a CLI reports its model or its usage
        (Started, Usage): pairs of task id and events, those of one task in their order. Other
        batches are not transferred. Unknown tasks are skipped."""

    async def expired(self, retention: Retention, now: int) -> Sequence[str]:
        """Ids of finished tasks to remove, the oldest of each owner first. See retention.py for
        tasks with undelivered notifications."""

    async def push_configs(self, task_id: str | None = None) -> Sequence[PushConfig]:
        """The configs of the task, or of all tasks, in the order of their creation."""

    async def push_failures(self, task_id: str) -> Sequence[PushFailed]:
        """The dead letters of the task, by config and number."""
