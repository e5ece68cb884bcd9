"""The task manager: the operations of clients on tasks. Only the context of a task writes the
task. The manager finds or makes the context."""

from __future__ import annotations

import asyncio
import math
import re
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal, Protocol

from bridge.a2a.requests import SendParams
from bridge.adapter import Adapter, SessionStart
from bridge.auth.principal import OPERATOR, Principal, Scope, authorize
from bridge.auth.quotas import Quotas
from bridge.errors import (
    ContentTypeNotSupported,
    InvalidParams,
    TaskNotCancelable,
    Unavailable,
    UnsupportedOperation,
)
from bridge.runtime.agent import Agent
from bridge.runtime.audience import Audience, Listener
from bridge.runtime.context import Context
from bridge.runtime.extension import OnDisconnect, Options, read_options
from bridge.runtime.idempotency import IdempotencyIndex, Reservation
from bridge.runtime.lease import Lease, StoredSession
from bridge.runtime.questions import Questions
from bridge.runtime.recorder import Recorder
from bridge.session.pool import SessionPool
from bridge.session.prewarm import Prewarm
from bridge.store.handle import TaskHandle, TaskHandles, readable
from bridge.store.protocol import (
    ContextKey,
    ContextRemoved,
    ContextSaved,
    Fence,
    OpenSession,
    Retention,
    SessionClosed,
    TaskRemoved,
)
from bridge.store.serialization import micros
from bridge.task.message import DataPart, Message, RawPart, UrlPart
from bridge.task.state import StatusUpdate, Task
from bridge.workspace.paths import Workspaces, check_place

CONTEXT_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
# A stream must begin with a Task or with a Message. An agent that may reply with a Message has
# this many seconds to do so before its client is shown a Task.
REPLY_WITHIN = 10.0
NODE = "local"  # the only node of a server that does not share its store


@dataclass(frozen=True, slots=True)
class Sent:
    """An accepted message. Its updates have numbers above `after`. `again`: the message was already
    accepted before, and begins no work."""

    record: TaskHandle
    after: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """The contexts of an agent, its unfinished tasks with their prompts, and its open sessions."""

    contexts: Sequence[ContextSaved]
    tasks: Sequence[tuple[TaskHandle, Message]]
    sessions: Sequence[OpenSession]
    fences: Mapping[ContextKey, Fence]


@dataclass(frozen=True, slots=True)
class _Request:
    """A send request while the server decides about it."""

    params: SendParams
    principal: Principal
    reserved: Reservation
    fence: Fence


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules for clients of an agent. `models`: the models that they may choose. `when_busy`:
    a message to a busy context waits for its turn, is refused, or joins the running turn if the
    CLI can take it. `queue`: the maximum number of waiting tasks of one context. `on_disconnect`:
    the treatment of a task without a client for `grace` seconds. `retention`: the finished tasks
    that are kept."""

    show_thoughts: bool = False
    models: tuple[str, ...] = ()
    when_busy: Literal["queue", "reject", "steer"] = "queue"
    queue: int = 100
    on_disconnect: OnDisconnect = "continue"
    grace: float = 10.0
    retention: Retention = field(default_factory=Retention)


DEFAULT_POLICY = Policy()


class Notifier(Protocol):
    """Delivers the updates of tasks. The manager removes no task before the delivery."""

    async def expire(self, task_id: str) -> bool:
        """Give up the delivery. Returns whether there was any; the result is kept with the task."""

    def after_delivery(self, task_id: str, call: Callable[[], None]) -> None:
        """Call `call` when all updates of the task, which has ended, are delivered."""


Watcher = Callable[[TaskHandle, Sequence[StatusUpdate]], None]


class TaskManager:
    """`adapter` defines the messages that its agents can read, and the kinds of their replies."""

    def __init__(
        self,
        agent: Agent,
        adapter: type[Adapter],
        workspaces: Workspaces,
        tasks: TaskHandles,
        pool: SessionPool,
        *,
        policy: Policy = DEFAULT_POLICY,
        notifier: Notifier | None = None,
    ) -> None:
        self._agent = agent
        self._adapter = adapter
        self._workspaces = workspaces
        self._tasks = tasks
        self._store = tasks.store
        self._pool = pool
        self._notifier = notifier
        self._background: set[asyncio.Task[None]] = set()
        self._policy = policy
        self._audience = Audience(policy.grace, self._abandon)
        self._idempotency = IdempotencyIndex(tasks.agent, tasks.store)
        self._watchers: list[Watcher] = []
        self._contexts: dict[str, Context] = {}
        self._warm = Prewarm(agent.sessions.make, pool, workspaces.default, agent.warm, agent.trust)
        self._recorder = Recorder(
            tasks,
            agent.audit,
            on_status=self._changed,
            on_end=self._finished,
            on_lost=self._lost,
        )
        self._closing = False
        self.kept: Sequence[str] = ()  # markers of the sessions that survive this server

    async def load(self) -> Stored:
        """The stored state of this agent from an earlier server. The store must be open."""
        agent, fences = self._tasks.agent, dict[ContextKey, Fence]()
        contexts, tasks = await self._store.contexts(agent), await self._tasks.restore()
        for key in (*(saved.context for saved in contexts), *(task.context for task, _ in tasks)):
            fences[key] = await self._claim(key)
        for task, _ in tasks:
            task.fence = fences[task.context]
        return Stored(contexts, tasks, await self._store.sessions(agent), fences)

    async def _claim(self, key: ContextKey) -> Fence:
        """Claim the right to write the context. Raises Unavailable if another server has it."""
        fence = await self._store.claim(key, NODE, math.inf)
        if fence is None:
            raise Unavailable("Another server works in this context; try again in a moment.")
        return fence

    def restore(self, stored: Stored, reattach: bool) -> set[str]:
        """Continue the work of an earlier server. Tasks that had not begun begin now. With
        `reattach`, running tasks continue with their running CLIs. Returns the ids of the sessions
        that are used again."""
        for saved in stored.contexts:
            start = readable(SessionStart, saved.start)
            if start:
                self._new_context(start, stored.fences[saved.context])
        unfinished: dict[str, list[tuple[TaskHandle, Message]]] = {}
        for record, prompt in stored.tasks:
            self._pool.quotas.resume(record.task.owner)
            key = record.context.name
            if key not in self._contexts:  # its start is damaged
                start = SessionStart(self._workspaces.default, str(uuid.uuid4()))
                self._new_context(start, stored.fences[record.context])
            unfinished.setdefault(key, []).append((record, prompt))
        found = stored.sessions if reattach else ()
        left = {one.context.name: StoredSession.read(one) for one in found}
        kept: set[str] = set()
        for key, tasks in unfinished.items():
            session = left.get(key) if tasks[0][0].begun else None
            self._contexts[key].restore(tasks, session)
            kept |= {session.id} if session else set()
        for gone in {one.id for one in stored.sessions} - kept:
            self._store.append([SessionClosed(gone)], fence=None)
        return kept

    def warm_up(self) -> None:
        """Start sessions ahead of their tasks from now on. Call it after the work of an earlier
        server is restored: its clients may return from now on."""
        self._warm.begin()
        for record in self._tasks.unfinished():
            if not record.task.question:
                self._audience.leave(record)

    # --- operations ----------------------------------------------------------------------------

    async def send(self, params: SendParams, principal: Principal = OPERATOR) -> Sent:
        """Begin a task, or answer the question of a task. Raises RequestError."""
        message = params.message
        self._check_available()
        async with self._idempotency.reserve(principal.id, message) as reserved:
            known = await self._tasks.find(reserved.task_id) if reserved.task_id else None
            if known and (params.retries or not known.task.state.terminal):
                authorize(principal, "read")
                return Sent(known, known.log.last, again=True)
            named = await self._named(message, principal)
            async with self._claimed(self._context_of(named, message, principal)) as fence:
                # No await from here to Context.submit(), so that no other code runs in between.
                self._check_available()
                message = self._agent.attachments.check(message, principal.workspaces)
                request = _Request(replace(params, message=message), principal, reserved, fence)
                return self._answer(named, request) if named else self._begin(message, request)

    def _context_of(
        self, named: TaskHandle | None, message: Message, principal: Principal
    ) -> ContextKey:
        """The context of the named task, or else the context of the message, which may be new."""
        if named:
            return named.context
        context_id = message.context_id or str(uuid.uuid4())
        return ContextKey(self._tasks.agent, principal.id, context_id)

    @asynccontextmanager
    async def _claimed(self, key: ContextKey) -> AsyncIterator[Fence]:
        """Hold the right to write the context. Release it if the context was not begun."""
        fence = await self._claim(key)
        try:
            yield fence
        finally:
            if key.name not in self._contexts:
                await self._store.release(fence)

    def _check_available(self) -> None:
        """Raises Unavailable if the server shuts down or cannot write."""
        if self._closing:
            raise Unavailable("The server is shutting down; try again in a moment.")
        if self._store.problem:
            raise Unavailable("The server cannot write anything down now; try again in a moment.")

    async def _named(self, message: Message, principal: Principal) -> TaskHandle | None:
        """The task that the message names, or the task with a question in the named context."""
        if message.task_id is not None:
            return await self.get(message.task_id, principal)
        context = self._contexts.get(self._context_of(None, message, principal).name)
        asking = context.current if context else None
        if asking is None or asking.task.question is None:
            return None
        return await self.get(asking.task.id, principal)

    def _begin(self, message: Message, request: _Request) -> Sent:
        """Begin a task for `message`, or add the message to the running turn."""
        params, principal = request.params, request.principal
        authorize(principal, "run")
        options = self._options(message, params)
        context = self._context(message, options, request)
        running = context.only_task
        if running and self._steers(context, running, message):
            return self._steer(context, running, message, request)
        self._check_queue(context)
        self._pool.quotas.begin(principal.id)
        thoughts = self._policy.show_thoughts if options.thoughts is None else options.thoughts
        attended = params.attends and "cancel" == (
            options.on_disconnect or self._policy.on_disconnect
        )
        now = datetime.now(UTC)
        task = Task(
            str(uuid.uuid4()),
            context.id,
            now,
            show_thoughts=thoughts,
            owner=principal.id,
            attended=attended,
        )
        message = replace(message, task_id=task.id, context_id=context.id)
        task.history.append(message)
        record = TaskHandle(
            task, self._tasks.agent, fence=request.fence, notifies=params.push is not None
        )
        self._recorder.begin(record, message, request.reserved.accept(task.id))
        facts = {"agent": self._tasks.agent, "cwd": context.lease.start.cwd}
        self._agent.audit.message("task", task, principal.id, message, **facts)
        context.submit(record, message)
        self._audience.leave(record)  # start the timer until its client listens
        return Sent(record, 0)

    async def get(
        self, task_id: str, principal: Principal = OPERATOR, scope: Scope = "read"
    ) -> TaskHandle:
        """The task; the client knows it from now on. Raises Forbidden and TaskNotFound."""
        record = await self._tasks.find(task_id)
        authorize(principal, scope, task_id, record.task.owner if record else None)
        assert record
        self._show(record)
        self._audience.touch(record)
        return record

    async def cancel(self, task_id: str, principal: Principal = OPERATOR) -> TaskHandle:
        record = await self.get(task_id, principal, "cancel")
        if record.task.state.terminal or record.back:
            raise TaskNotCancelable(f"The task is {record.task.state.value} already.")
        self._agent.audit.note("cancel", record.task, principal.id)
        self._contexts[record.context.name].cancel(record)
        return record

    async def subscribe(
        self, task_id: str, again: bool, principal: Principal = OPERATOR
    ) -> TaskHandle:
        """`again`: the client resumes a broken stream, which may have ended already."""
        record = await self.get(task_id, principal)
        if record.task.state.terminal and not again:
            text = f"The task is {record.task.state.value}: nothing more will come. Get it instead."
            raise UnsupportedOperation(text)
        return record

    def listen(self, record: TaskHandle) -> AbstractContextManager[Listener]:
        """The context in which a client listens; the listener shows whether the client left."""
        return self._audience.listen(record)

    async def settled(self, sent: Sent) -> None:
        """Wait until the task, after this message, has ended or waits for the client."""
        if sent.again and sent.record.task.state.interrupted:
            return
        async for batch in sent.record.log.follow(sent.after, pause=3600.0):
            for entry in batch:
                if isinstance(entry.update, StatusUpdate) and entry.update.state.interrupted:
                    return

    async def begin(self, record: TaskHandle, pause: float) -> AsyncIterator[None]:
        """Wait until the kind of the reply is known: only some agents may reply with a Message.
        Yields each time that `pause` seconds have passed."""
        loop = asyncio.get_running_loop()
        end = loop.time() + REPLY_WITHIN
        while self._may_reply(record) and record.log.visible < 1 and loop.time() < end:
            try:
                await asyncio.wait_for(record.log.changed(), min(pause, end - loop.time()))
            except TimeoutError:
                yield
        record.shown = record.task.reply is None
        if record.shown:
            self._show(record)

    def _may_reply(self, record: TaskHandle) -> bool:
        """Whether a Message may replace the task soon. A task in the queue stays a task."""
        context = self._contexts.get(record.context.name)
        return self._adapter.may_reply and context is not None and not context.waits(record)

    async def close(self, drain: float, keep: bool = False) -> None:
        """Accept no more messages, and wait up to `drain` seconds for the working agents. Then end
        all tasks and sessions. With `keep`, leave the sessions that can survive this server to
        another server (see `kept`)."""
        self._closing = True
        self._audience.close()
        cooling = asyncio.create_task(self._warm.close())
        unfinished = [r for r in self._tasks.unfinished() if not r.task.state.interrupted]
        running = [asyncio.create_task(self._ended(record)) for record in unfinished]
        if running and drain:
            await asyncio.wait(running, timeout=drain)
        for waiter in running:
            waiter.cancel()
        contexts = list(self._contexts.values())
        if keep:
            self.kept = [marker for context in contexts for marker in context.detach()]
        await asyncio.gather(cooling, *(context.shut_down() for context in contexts))
        self._agent.attachments.close()

    def has_context(self, owner: str, context_id: str) -> bool:
        return ContextKey(self._tasks.agent, owner, context_id).name in self._contexts

    async def find(self, task_id: str) -> TaskHandle | None:
        """The task of any owner."""
        return await self._tasks.find(task_id)

    @property
    def quotas(self) -> Quotas:
        return self._pool.quotas

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` with every status update of every task from now on."""
        self._watchers.append(watcher)

    def figures(self) -> dict[str, int]:
        """Numbers for GET /health: unfinished tasks, known contexts and, if prewarming is
        configured, sessions that are ready for a task."""
        known = {"tasks": len(self._tasks.unfinished()), "contexts": len(self._contexts)}
        return {**known, "warm": self._warm.ready} if self._agent.warm.number else known

    def kill(self) -> None:
        """End every process immediately, without waiting."""
        self._warm.kill()
        for context in self._contexts.values():
            context.lease.kill()

    def _abandon(self, record: TaskHandle) -> None:
        """Cancel the task, because its client did not return in time."""
        self._agent.audit.note("cancel", record.task, "bridge", by="disconnect")
        text = (
            f"Canceled: no client followed the task for {self._policy.grace:g} s "
            "(BRIDGE_ON_DISCONNECT)."
        )
        self._contexts[record.context.name].cancel(record, text)

    # --- parts of the operations ---------------------------------------------------------------

    def _options(self, message: Message, params: SendParams) -> Options:
        """The choices of the client in the metadata. Raises InvalidParams."""
        return read_options(
            message.metadata, params.metadata, adapter=self._adapter, models=self._policy.models
        )

    def _answer(self, record: TaskHandle, request: _Request) -> Sent:
        params, principal, task = request.params, request.principal, record.task
        message = replace(params.message, task_id=task.id)
        authorize(principal, "approve" if task.question else "run")
        if message.context_id not in (None, task.context_id):
            text = "contextId is not the one of this task"
            raise InvalidParams(text, [("message.contextId", "does not belong to the task")])
        reopens = params.reopens and message.context_id and not _names_question(message)
        if task.state.terminal and not reopens:
            text = f"The task is {task.state.value}; to go on, send a message with its contextId."
            raise UnsupportedOperation(text)
        context = self._contexts.get(record.context.name)
        if context:
            check_place(context.lease.start.cwd, principal.workspaces)
        if context and self._steers(context, record, message):
            return self._steer(context, record, message, request)
        if task.question is None or context is None:
            return self._begin_next(task, message, request)
        if any(isinstance(part, RawPart | UrlPart) for part in message.parts):
            raise ContentTypeNotSupported("An answer is text or data; send files with a prompt.")
        options = self._options(message, params)
        self._check_same(context, options)
        sent = self._accepted(record, request)
        context.answer(record, message, principal.id)
        return sent

    def _accepted(self, record: TaskHandle, request: _Request) -> Sent:
        """Assign the message to an existing task."""
        self._store.append(request.reserved.accept(record.task.id), fence=record.fence)
        return Sent(record, record.log.last)

    def _begin_next(self, task: Task, message: Message, request: _Request) -> Sent:
        """Begin the next turn with a message that names a task without a question."""
        if task.owner != request.principal.id:
            text = "The task has no open question. Only its owner can continue the conversation."
            raise UnsupportedOperation(text)
        named = replace(message, task_id=None, context_id=task.context_id)
        return self._begin(named, request)

    def _show(self, record: TaskHandle) -> None:
        """A client knows the task from now on."""
        record.shown = True
        if record.task.state.terminal:
            return
        context = self._contexts.get(record.context.name)
        if context:
            context.shown(record)

    def _steers(self, context: Context, record: TaskHandle, message: Message) -> bool:
        return self._policy.when_busy == "steer" and context.can_steer(record, message)

    def _steer(
        self, context: Context, record: TaskHandle, message: Message, request: _Request
    ) -> Sent:
        sent = self._accepted(record, request)
        self._agent.audit.message("steer", record.task, request.principal.id, message)
        context.steer(record, message)
        return sent

    def _context(self, message: Message, options: Options, request: _Request) -> Context:
        principal, key = request.principal, request.fence.context
        if message.context_id is not None and not CONTEXT_ID.fullmatch(message.context_id):
            text = "contextId may have up to 128 letters, digits and _ . : -"
            raise InvalidParams(text, [("message.contextId", text)])
        known = self._contexts.get(key.name)
        if known:
            check_place(known.lease.start.cwd, principal.workspaces)
            self._check_same(known, options)
            return known
        cwd = self._workspaces.resolve(options.cwd, principal.workspaces)
        session = options.session
        start = SessionStart(cwd, str(uuid.uuid4()), options=session, owner=principal.id)
        context = self._new_context(start, request.fence)
        context.lease.save()
        return context

    def _new_context(self, start: SessionStart, fence: Fence) -> Context:
        agent = self._agent
        lease = Lease(
            start,
            store=self._store,
            fence=fence,
            make=agent.sessions.make,
            prewarm=self._warm,
            idle_seconds=agent.idle_seconds,
            waits_a_minute=agent.resumes_next_minute,
        )
        questions = Questions(agent.rules, agent.trust, timeout=agent.patience)
        context = Context(agent, recorder=self._recorder, questions=questions, lease=lease)
        self._contexts[lease.key] = context
        return context

    def _check_queue(self, context: Context) -> None:
        """Raises UnsupportedOperation if the context does not take another task now."""
        if self._policy.when_busy == "reject" and not context.lease.idle:
            raise UnsupportedOperation("Task is already working.")
        if context.queued >= self._policy.queue:
            text = f"{context.queued} tasks of this context are waiting already"
            raise UnsupportedOperation(f"{text} (BRIDGE_MAX_TASKS_PER_CONTEXT).")

    def _check_same(self, context: Context, options: Options) -> None:
        """The options of a context cannot change. Raises InvalidParams if `options` differ."""
        if (
            options.cwd is not None
            and self._workspaces.resolve(options.cwd) != context.lease.start.cwd
        ):
            text = "this context works in another directory; begin a new context"
            raise InvalidParams(text, [("metadata.bridge.cwd", text)])
        for name in ("model", "mode", "budget_usd"):
            wanted = getattr(options.session, name)
            if wanted is not None and wanted != getattr(context.lease.start.options, name):
                text = f"this context began with another {name}; begin a new context"
                raise InvalidParams(text, [(f"metadata.bridge.{name}", text)])

    def _changed(self, record: TaskHandle, updates: Sequence[StatusUpdate]) -> None:
        for watcher in self._watchers:
            watcher(record, updates)
        if updates[-1].state.terminal:
            expiring = asyncio.create_task(self._expire())
            self._background.add(expiring)  # the loop holds only weak references
            expiring.add_done_callback(self._background.discard)

    def _lost(self, record: TaskHandle) -> None:
        """Abandon the context of the task, because another server owns it."""
        self._tasks.remove(record.task.id)
        context = self._contexts.pop(record.context.name, None)
        if context is None:
            return
        for one in context.abandon():
            self._pool.quotas.ended(one.task.owner)
            self._tasks.remove(one.task.id)
        closing = asyncio.create_task(context.shut_down())
        self._background.add(closing)
        closing.add_done_callback(self._background.discard)

    async def _expire(self) -> None:
        """Remove the finished tasks that exceed the limits of number, age or size."""
        retention = replace(self._policy.retention, agent=self._tasks.agent)
        for task_id in await self._store.expired(retention, micros(datetime.now(UTC))):
            if self._notifier and await self._notifier.expire(task_id):
                continue  # its dead letters are kept until the next call
            head = await self._store.head(task_id)
            self._remove(task_id)
            if head:
                self._agent.attachments.forget(head.context.name, task_id)

    def _remove(self, task_id: str) -> None:
        self._store.append([TaskRemoved(task_id)], fence=None)
        self._tasks.remove(task_id)

    def _finished(self, record: TaskHandle) -> None:
        self._pool.quotas.ended(record.task.owner)
        task_id = record.task.id
        if record.task.reply and not record.shown:  # a Message replaces the task
            if self._notifier and record.notifies:
                self._tasks.remove(task_id)
                self._notifier.after_delivery(task_id, lambda: self._remove(task_id))
            else:
                self._remove(task_id)
        else:
            record.task.reply = None
        while len(self._contexts) > self._policy.retention.tasks:
            cold = next((key for key, one in self._contexts.items() if one.lease.cold), None)
            if cold is None:
                return
            lease = self._contexts.pop(cold).lease
            self._store.append([ContextRemoved(lease.fence.context)], fence=lease.fence)

    async def _ended(self, record: TaskHandle) -> None:
        while not record.log.closed:
            await record.log.changed()


def _names_question(message: Message) -> bool:
    """Whether the message can only be an answer. The answer may be too late."""
    found = (part.data for part in message.parts if isinstance(part, DataPart))
    return any(isinstance(data, dict) and "questionId" in data for data in found)
