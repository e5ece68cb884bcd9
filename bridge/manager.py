"""The task manager: what clients may do with tasks. The only writer of tasks is a task's context,
which the manager finds or makes."""

from __future__ import annotations

import asyncio
import hashlib
import re
import uuid
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from typing import Literal

from bridge.a2a.codec import ListParams, Page, SendParams
from bridge.adapter import Adapter
from bridge.context import Agent, Context, SessionPool
from bridge.errors import (
    ContentTypeNotSupported,
    InvalidParams,
    TaskNotCancelable,
    TaskNotFound,
    Unavailable,
    UnsupportedOperation,
)
from bridge.message import Message, UrlPart, media_type
from bridge.options import Options, read_options
from bridge.page import page
from bridge.store.memory import MemoryStore, Record
from bridge.task import StatusUpdate, Task, Update
from bridge.workspace import Workspaces

CONTEXT_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
# A stream must begin with a Task or with a Message. An agent that may reply with a Message has
# this many seconds to do so before its client is shown a Task.
REPLY_WITHIN = 10.0


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was taken. What follows from it has numbers above `after`. `again`: it had
    been taken before, and nothing was begun."""

    record: Record
    after: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """What clients of an agent may do. `models`: those that they may choose from. `when_busy`:
    whether a message to a context that works waits its turn, or is refused. `queue`: how many
    tasks of one context may wait."""

    show_thoughts: bool = False
    models: tuple[str, ...] = ()
    when_busy: Literal["queue", "reject"] = "queue"
    queue: int = 100


DEFAULT_POLICY = Policy()
Watcher = Callable[[Record, Sequence[Update]], None]


class Taken:
    """The messages that were taken, so that one that is sent again begins nothing (§3.3.1).

    Only ids that are long enough to be unique count: clients that number their messages, or call
    all of them alike, mean a new one each time.
    """

    UNIQUE = 16  # characters
    KEPT = 10_000

    def __init__(self) -> None:
        self._messages: dict[str, tuple[bytes, weakref.ref[Record]]] = {}

    def find(self, message: Message) -> Record | None:
        """The task that the message went to. Raises InvalidParams if the id was another's."""
        digest, record = self._messages.get(message.id, (b"", None))
        known = record() if record else None  # forgotten with its task
        if known and digest != _digest(message):
            text = "another message was sent with this messageId"
            raise InvalidParams(text, [("message.messageId", text)])
        return known

    def add(self, message: Message, record: Record) -> None:
        if len(message.id) >= self.UNIQUE:
            self._messages[message.id] = _digest(message), weakref.ref(record)
        if len(self._messages) > self.KEPT:
            del self._messages[next(iter(self._messages))]


class TaskManager:
    """`adapter` says what messages its agents can read and how they may answer. `forgotten` is
    told of each finished task that has been dropped to make room."""

    def __init__(
        self,
        agent: Agent,
        adapter: type[Adapter],
        workspaces: Workspaces,
        store: MemoryStore,
        pool: SessionPool,
        *,
        policy: Policy = DEFAULT_POLICY,
        forgotten: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self._agent = agent
        self._adapter = adapter
        self._workspaces = workspaces
        self._store = store
        self._pool = pool
        self._forgotten = forgotten
        self._forgetting: set[asyncio.Task[None]] = set()
        self._policy = policy
        self._taken = Taken()
        self._watchers: list[Watcher] = []
        self._contexts: dict[str, Context] = {}
        self._closing = False

    # --- operations ----------------------------------------------------------------------------

    def send(self, params: SendParams) -> Sent:
        """Begin a task, or answer the question of one. Raises RequestError."""
        message = params.message
        self._check_parts(message)
        if self._closing:
            raise Unavailable("The server is shutting down; try again in a moment.")
        known = self._taken.find(message)
        if known:
            return Sent(known, known.log.last, again=True)
        sent = self._take(params)
        self._taken.add(message, sent.record)
        return sent

    def _take(self, params: SendParams) -> Sent:
        message = params.message
        if params.answers_by_context and message.task_id is None:
            message = replace(message, task_id=self._waiting_task(message.context_id))
        if message.task_id is not None:
            return self._answer(message)
        options = read_options(
            message.metadata, params.metadata, adapter=self._adapter, models=self._policy.models
        )
        context = self._context(message, options)
        self._check_queue(context)
        thoughts = self._policy.show_thoughts if options.thoughts is None else options.thoughts
        task = Task(str(uuid.uuid4()), context.id, datetime.now(UTC), show_thoughts=thoughts)
        message = replace(message, task_id=task.id, context_id=context.id)
        task.history.append(message)
        record = Record(task)
        self._store.add(record)
        context.submit(record, message)
        return Sent(record, 0)

    def get(self, task_id: str) -> Record:
        """The task, which the client now knows. Raises TaskNotFound."""
        record = self._store.get(task_id)
        if record is None:
            raise TaskNotFound("No such task.", taskId=task_id)
        record.shown = True
        return record

    def list(self, asked: ListParams) -> tuple[Sequence[Task], Page]:
        """The tasks of a page. Raises InvalidParams."""
        records = self._store.all()
        for record in records:
            record.shown = True
        return page((record.task for record in records), asked)

    def cancel(self, task_id: str) -> Record:
        record = self.get(task_id)
        if record.task.state.terminal:
            raise TaskNotCancelable(f"The task is {record.task.state.value} already.")
        self._contexts[record.task.context_id].cancel(record)
        return record

    def subscribe(self, task_id: str) -> Record:
        record = self.get(task_id)
        if record.task.state.terminal:
            text = f"The task is {record.task.state.value}: nothing more will come. Get it instead."
            raise UnsupportedOperation(text)
        return record

    async def settled(self, sent: Sent) -> None:
        """Until the task has ended or waits for the client, looking from the message on."""
        if sent.again and sent.record.task.state.interrupted:
            return
        async for batch in sent.record.log.follow(sent.after, pause=3600.0):
            for entry in batch:
                if isinstance(entry.update, StatusUpdate) and entry.update.state.interrupted:
                    return

    async def begin(self, record: Record, pause: float) -> AsyncIterator[None]:
        """Until it is known whether the agent replies with a Message, which only some may do; an
        item each time that `pause` seconds have passed."""
        loop = asyncio.get_running_loop()
        end = loop.time() + REPLY_WITHIN
        while self._adapter.may_reply and not len(record.log) and loop.time() < end:
            try:
                await asyncio.wait_for(record.log.changed(), min(pause, end - loop.time()))
            except TimeoutError:
                yield
        record.shown = record.task.reply is None

    async def close(self, drain: float) -> None:
        """Take no more messages; give the agents that work `drain` seconds, then end everything."""
        self._closing = True
        unfinished = [r for r in self._store.unfinished() if not r.task.state.interrupted]
        running = [asyncio.create_task(self._ended(record)) for record in unfinished]
        if running and drain:
            await asyncio.wait(running, timeout=drain)
        for waiter in running:
            waiter.cancel()
        await asyncio.gather(*(context.shut_down() for context in self._contexts.values()))

    def records(self) -> Sequence[Record]:
        return self._store.all()

    def watch(self, watcher: Watcher) -> None:
        """Have `watcher` told of every update of every task, from now on."""
        self._watchers.append(watcher)

    def figures(self) -> dict[str, int]:
        """For GET /health: tasks that have not ended, and contexts that are known."""
        return {"tasks": len(self._store.unfinished()), "contexts": len(self._contexts)}

    def kill(self) -> None:
        """End every process at once, without waiting for any."""
        for context in self._contexts.values():
            context.kill()

    # --- parts of them -------------------------------------------------------------------------

    def _answer(self, message: Message) -> Sent:
        assert message.task_id is not None
        record = self.get(message.task_id)
        task = record.task
        if message.context_id not in (None, task.context_id):
            text = "contextId is not the one of this task"
            raise InvalidParams(text, [("message.contextId", "does not belong to the task")])
        if task.state.terminal:
            text = f"The task is {task.state.value}; to go on, send a message with its contextId."
            raise UnsupportedOperation(text)
        if task.question is None:
            text = "The task is working and asks nothing; send a message with only its contextId"
            raise UnsupportedOperation(f"{text} to queue the next one.")
        sent = Sent(record, record.log.last)
        self._contexts[task.context_id].answer(record, message)
        return sent

    def _waiting_task(self, context_id: str | None) -> str | None:
        """The one task of a context, where it waits for its client and nothing waits behind it."""
        context = self._contexts.get(context_id) if context_id else None
        record = context.only_task if context else None
        return record.task.id if record and record.task.question else None

    def _context(self, message: Message, options: Options) -> Context:
        if message.context_id is not None and not CONTEXT_ID.fullmatch(message.context_id):
            text = "contextId may have up to 128 letters, digits and _ . : -"
            raise InvalidParams(text, [("message.contextId", text)])
        known = self._contexts.get(message.context_id) if message.context_id else None
        if known:
            self._check_same(known, options)
            return known
        context_id = message.context_id or str(uuid.uuid4())
        cwd = self._workspaces.resolve(options.cwd)
        context = Context(
            context_id,
            cwd,
            options.session,
            self._agent,
            self._pool,
            self._finished,
            self._changed,
        )
        self._contexts[context_id] = context
        return context

    def _check_queue(self, context: Context) -> None:
        """Raises UnsupportedOperation if the context does not take another task now."""
        if self._policy.when_busy == "reject" and not context.idle:
            raise UnsupportedOperation("Task is already working.")
        if context.queued >= self._policy.queue:
            text = f"{context.queued} tasks of this context are waiting already"
            raise UnsupportedOperation(f"{text} (BRIDGE_MAX_TASKS_PER_CONTEXT).")

    def _check_same(self, context: Context, options: Options) -> None:
        """What a conversation began with stays as it is. Raises InvalidParams."""
        if options.cwd is not None and self._workspaces.resolve(options.cwd) != context.cwd:
            text = "this context works in another directory; begin a new context"
            raise InvalidParams(text, [("metadata.bridge.cwd", text)])
        for name in ("model", "mode", "budget_usd"):
            wanted = getattr(options.session, name)
            if wanted is not None and wanted != getattr(context.options, name):
                text = f"this context began with another {name}; begin a new context"
                raise InvalidParams(text, [(f"metadata.bridge.{name}", text)])

    def _check_parts(self, message: Message) -> None:
        for part in message.parts:
            if isinstance(part, UrlPart) and not self._adapter.takes_urls:
                text = "This agent takes files by value (raw, or bytes in 0.3), not by address."
                raise ContentTypeNotSupported(text)
            kind = media_type(part)
            if not any(fnmatch(kind, pattern) for pattern in self._adapter.input_modes):
                modes = ", ".join(self._adapter.input_modes)
                raise ContentTypeNotSupported(f"This agent cannot read {kind}, only {modes}.")

    def _changed(self, record: Record, updates: Sequence[Update]) -> None:
        for watcher in self._watchers:
            watcher(record, updates)

    def _finished(self, record: Record) -> None:
        if record.task.reply and not record.shown:
            self._store.remove(record.task.id)  # a Message was the answer, there is no task
        else:
            record.task.reply = None
            for task_id in self._store.finished(record):
                self._forget(task_id)
        while len(self._contexts) > self._store.keep:
            cold = next((key for key, one in self._contexts.items() if one.cold), None)
            if cold is None:
                return
            del self._contexts[cold]

    def _forget(self, task_id: str) -> None:
        if self._forgotten is None:
            return
        forgetting = asyncio.ensure_future(self._forgotten(task_id))
        self._forgetting.add(forgetting)  # the loop itself keeps no task alive
        forgetting.add_done_callback(self._forgetting.discard)

    async def _ended(self, record: Record) -> None:
        while not record.log.closed:
            await record.log.changed()


def _digest(message: Message) -> bytes:
    return hashlib.sha256(repr(message).encode("utf-8", "surrogatepass")).digest()
