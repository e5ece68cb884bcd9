"""The operation Send Message: the way of one message from the request to its task."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from bridge.a2a.requests import SendParams
from bridge.adapter import Adapter, SessionStart
from bridge.auth.principal import OPERATOR, Principal, authorize
from bridge.errors import (
    ContentTypeNotSupported,
    InvalidParams,
    TaskNotFound,
    Unavailable,
    UnsupportedOperation,
)
from bridge.runtime.agent import Policy
from bridge.runtime.context import Context
from bridge.runtime.contexts import Contexts
from bridge.runtime.extension import Options
from bridge.runtime.nodes.commands import Accepted, Elsewhere, done
from bridge.runtime.nodes.roles import Roles
from bridge.runtime.recorder import created_by
from bridge.runtime.sending.idempotency import IdempotencyIndex, Reservation
from bridge.runtime.sending.start import ContextStarts, changed
from bridge.store.changes import Change, ContextKey, ContextSaved, Fence
from bridge.store.cluster import Command
from bridge.store.handle import TaskHandle, readable
from bridge.store.protocol import CANNOT_WRITE
from bridge.store.serialization import dump
from bridge.task.answers import names_open, names_question
from bridge.task.message import Message, RawPart, UrlPart
from bridge.task.state import Task
from bridge.workspace.paths import Workspaces, check_place


@dataclass(frozen=True, slots=True)
class Sent:
    """An accepted message. Its updates have numbers above `after`. `again`: the message was already
    accepted before, and begins no work."""

    handle: TaskHandle
    after: int
    again: bool = False


@dataclass(slots=True)
class _Start:
    """The id of the task that a message may begin. `used`: it begins the task."""

    task_id: str
    used: bool = False


@dataclass(frozen=True, slots=True)
class _Request:
    """A message while the server decides about it."""

    message: Message
    params: SendParams
    principal: Principal
    reserved: Reservation
    fence: Fence
    start: _Start
    command: Command | None

    def accept(self, task_id: str, after: int) -> Sequence[Change]:
        """The changes that assign the message to this task, and answer the server that sent it."""
        changes = self.reserved.accept(task_id)
        if self.command:
            return [*changes, done(self.command, Accepted(task_id, after))]
        return changes


class SendOperation:
    """Begins a task, answers the question of a task, or adds to a running turn.

    `get`: TaskManager.get(). `begun` gets each new task. `adapter` defines the messages that its
    agents can read. `closed`: the server shuts down.
    """

    def __init__(
        self,
        contexts: Contexts,
        adapter: type[Adapter],
        workspaces: Workspaces,
        *,
        policy: Policy,
        get: Callable[[str, Principal], Awaitable[TaskHandle]],
        begun: Callable[[TaskHandle], None],
    ) -> None:
        self._contexts = contexts
        self._agent = contexts.agent
        self._tasks = contexts.tasks
        self._cluster = cluster = contexts.tasks.cluster
        self._roles = cluster and Roles(cluster, self._tasks.agent, self._tasks.store.node)
        self._get = get
        self._begun = begun
        self._idempotency = IdempotencyIndex(self._tasks)
        self.closed = False
        self.change(adapter, workspaces, policy)

    def change(self, adapter: type[Adapter], workspaces: Workspaces, policy: Policy) -> None:
        """Accept later messages with these settings and those of the contexts."""
        self._agent = self._contexts.agent
        self._starts = ContextStarts(adapter, workspaces, policy.models, policy.role)
        self._policy = policy

    async def send(
        self, params: SendParams, principal: Principal = OPERATOR, command: Command | None = None
    ) -> Sent:
        """Accept the message of the principal. Raises RequestError; the message then had no
        effect. `command`: with which another server has sent it."""
        message = params.message
        self._check_available()
        async with self._idempotency.reserve(principal.id, message) as reserved:
            known = await self._known(reserved)
            if known and (params.retries or not known.task.state.terminal):
                authorize(principal, "read")
                again = Sent(known, known.log.last, again=True)
                if command:
                    known.show()  # another server shows it
                    answer = done(command, Accepted(known.task.id, again.after, again=True))
                    self._tasks.store.append([answer], fence=None)
                return again
            context_id = message.context_id or (command.context.id if command else "")
            key = ContextKey(self._tasks.agent, principal.id, context_id or str(uuid.uuid4()))
            named = await self._named(message, principal, key)
            if named and params.purpose == "begin":
                text = "The context asks a question; answer it before you delegate more to it."
                raise UnsupportedOperation(text)
            if self._roles and not (command or named or self._contexts.get(key)):
                await self._direct(self._roles, key, params, principal)
            async with (
                self._contexts.claimed(named.context if named else key) as fence,
                self._admitted(principal, named) as start,
            ):
                request = _Request(
                    message, params, principal, reserved, fence=fence, start=start, command=command
                )
                if await self._is_placed(request):
                    return await self._place(request)
                await self._contexts.adopt(fence)
                if named and named.elsewhere:
                    named = await self._get(named.task.id, principal)
                # No await from here to Context.submit(), so that no other code runs in between.
                self._check_available()
                message = self._agent.attachments.check(message, principal.workspaces)
                request = replace(request, message=message)
                return self._answer(named, request) if named else self._begin(request)

    async def _known(self, reserved: Reservation) -> TaskHandle | None:
        """The task to which the message belongs. Raises Elsewhere if its server hides it."""
        if reserved.task_id is None:
            return None
        known, key = await self._tasks.find(reserved.task_id), reserved.context
        if known is None and self._cluster and key:
            holder = await self._cluster.holder(key)
            if holder and holder.id != self._tasks.store.node:
                raise Elsewhere(key, holder)
        return known

    def _check_available(self) -> None:
        """Raises Unavailable if the server shuts down or cannot write."""
        if self.closed:
            raise Unavailable("The server is shutting down; try again in a moment.")
        if self._tasks.store.problem:
            raise Unavailable(CANNOT_WRITE)

    async def _named(
        self, message: Message, principal: Principal, key: ContextKey
    ) -> TaskHandle | None:
        """The task that the message names, or the task with a question in the named context."""
        if message.task_id is not None:
            return await self._get(message.task_id, principal)
        context = self._contexts.get(key)
        asking = context.current if context else None
        if asking is None or asking.task.question is None:
            return None
        return await self._get(asking.task.id, principal)

    # --- a message that names a task -----------------------------------------------------------

    def _answer(self, handle: TaskHandle, request: _Request) -> Sent:
        """Answer the question of the task, add to its turn, or begin the next task."""
        principal, task = request.principal, handle.task
        message = replace(request.message, task_id=task.id)
        authorize(principal, "approve" if task.question else "run")
        if message.context_id not in (None, task.context_id):
            text = "contextId is not the one of this task"
            raise InvalidParams(text, [("message.contextId", "does not belong to the task")])
        reopens = request.params.reopens and message.context_id and not names_question(message)
        if task.state.terminal and not reopens:
            text = (
                f"The task is {task.state.value}; to continue, send a message with its contextId."
            )
            raise UnsupportedOperation(text)
        late = task.question is None and names_question(message)
        only_answers = request.params.purpose == "answer"
        if not names_open(message, task.question) if only_answers else late:
            raise UnsupportedOperation("The question is closed, so the answer had no effect.")
        context = self._contexts.get(handle.context)
        if context:
            check_place(context.lease.start.cwd, principal.workspaces)
        if context and self._steers(context, handle, request):
            return self._steer(context, handle, message, request)
        if task.question is None or context is None:
            if task.owner != principal.id:
                text = (
                    "The task has no open question. Only its owner can continue the conversation."
                )
                raise UnsupportedOperation(text)
            message = replace(message, task_id=None, context_id=task.context_id)
            return self._begin(replace(request, message=message))
        if any(isinstance(part, RawPart | UrlPart) for part in message.parts):
            raise ContentTypeNotSupported("An answer is text or data; send files with a prompt.")
        options = self._starts.options(message, request.params)
        self._starts.check_same(context.lease.start, options)
        sent = self._accepted(handle, request)
        context.answer(handle, message, principal.id)
        return sent

    def _accepted(self, handle: TaskHandle, request: _Request) -> Sent:
        """Assign the message to an existing task."""
        accepted = request.accept(handle.task.id, handle.log.last)
        self._tasks.store.append(accepted, fence=handle.fence)
        return Sent(handle, handle.log.last)

    def _steers(self, context: Context, handle: TaskHandle, request: _Request) -> bool:
        if self._policy.when_busy != "steer" or not context.can_steer(handle, request.message):
            return False
        options = self._starts.options(request.message, request.params)
        return not changed(context.lease.start, options)  # a turn has one mode and one model

    def _steer(
        self, context: Context, handle: TaskHandle, message: Message, request: _Request
    ) -> Sent:
        sent = self._accepted(handle, request)
        self._agent.audit.message("steer", handle.task, request.principal.id, message)
        context.steer(handle, message)
        return sent

    # --- a message that begins a task ----------------------------------------------------------

    def _begin(self, request: _Request) -> Sent:
        """Begin a task in the context, or add the message to its running turn."""
        message, principal = request.message, request.principal
        authorize(principal, "run")
        options = self._starts.options(request.message, request.params)
        context = self._context(options, request)
        running = context.only_task
        if running and self._steers(context, running, request):
            return self._steer(context, running, message, request)
        self._check_queue(context)
        self._contexts.pool.quotas.begin(principal.id)
        handle, message = self._made(context.id, options, request)
        task = handle.task
        accepted, hidden = request.accept(task.id, 0), self._agent.replies and not handle.shown
        self._contexts.recorder.begin(handle, message, accepted, hidden=hidden)
        facts = {"agent": self._tasks.agent, "cwd": context.lease.start.cwd}
        self._agent.audit.message("task", task, principal.id, message, **facts)
        context.submit(handle, message)
        self._begun(handle)
        return Sent(handle, 0)

    def _made(
        self, context_id: str, options: Options, request: _Request
    ) -> tuple[TaskHandle, Message]:
        """The task of the message, and the message with its ids."""
        policy, principal = self._policy, request.principal
        on_disconnect = options.on_disconnect or policy.on_disconnect
        request.start.used = True
        asked = policy.thoughts == "always" if options.thoughts is None else options.thoughts
        task = Task(
            request.start.task_id,
            context_id,
            datetime.now(UTC),
            show_thoughts=asked and policy.thoughts != "off",
            owner=principal.id,
            attended=request.params.attends and on_disconnect == "cancel",
        )
        message = replace(
            request.message,
            task_id=task.id,
            context_id=context_id,
            choices=options.choices or None,
        )
        task.history.append(message)
        handle = TaskHandle(
            task,
            self._tasks.agent,
            fence=request.fence,
            shown=request.command is not None,  # another server shows it
            notifies=request.params.push is not None,
        )
        return handle, message

    # --- several servers -----------------------------------------------------------------------

    async def _direct(
        self, roles: Roles, key: ContextKey, params: SendParams, principal: Principal
    ) -> None:
        """Raises Elsewhere if the client chose the role of another server."""
        role = self._starts.options(params.message, params).role
        if role is not None:
            authorize(principal, "run")
            await roles.direct(key, role)

    @asynccontextmanager
    async def _admitted(
        self, principal: Principal, named: TaskHandle | None
    ) -> AsyncIterator[_Start]:
        """The task that the message may begin. It counts for the quotas at all servers from now on.
        Raises TooManyRequests."""
        start = _Start(str(uuid.uuid4()))
        quota = self._contexts.pool.quotas.of(principal.id)
        limited = quota.tasks or quota.starts_per_minute
        if self._cluster is None or not limited or (named and named.task.question):
            yield start
            return
        await self._cluster.admit(
            principal.id, start.task_id, tasks=quota.tasks, per_minute=quota.starts_per_minute
        )
        try:
            yield start
        finally:
            if not start.used:
                await self._cluster.withdraw(start.task_id)

    async def _is_placed(self, request: _Request) -> bool:
        """Whether any server with a free slot shall begin the task: this one has none, and the
        conversation is not in its memory."""
        if self._cluster is None or self._contexts.get(request.fence.context):
            return False
        pool = self._contexts.pool
        if pool.free or request.message.task_id is not None:
            return False
        if pool.limit == 0:
            return True
        options = self._starts.options(request.message, request.params)
        if options.role is not None or options.cwd is not None:  # it may exist here only
            return False
        servers = await self._cluster.nodes()
        return any(one.runs and one.id != self._tasks.store.node for one in servers)

    async def _place(self, request: _Request) -> Sent:
        """Store the task in a context without a server."""
        assert self._cluster
        store, key = self._tasks.store, request.fence.context
        authorize(request.principal, "run")
        message = self._agent.attachments.check(request.message, request.principal.workspaces)
        # The server that takes the task would not see that its client listens here.
        params = replace(request.params, attends=False)
        request = replace(request, message=message, params=params)
        options = self._starts.options(request.message, request.params)
        saved = [] if not request.fence.saved else await store.contexts(key.agent, key)
        start = readable(SessionStart, saved[0].start) if saved else None
        if start is None:
            start = self._starts.new(options, request.params, request.principal)
            share = self._agent.sessions.share(start.cwd)
            store.append([ContextSaved(key, dump(start), share)], fence=request.fence)
        else:
            self._starts.check(start, options, request.principal)
        handle, message = self._made(key.id, options, request)
        created = created_by(handle, dump(message))
        store.append([created, *request.accept(handle.task.id, 0)], fence=request.fence)
        facts = {"agent": self._tasks.agent, "cwd": start.cwd}
        self._agent.audit.message("task", handle.task, request.principal.id, message, **facts)
        await store.flush()
        await store.release(request.fence)
        await self._cluster.offer()
        placed = await self._tasks.find(handle.task.id)
        if placed is None:  # it was removed meanwhile
            raise TaskNotFound.of_task(handle.task.id)
        return Sent(placed, 0)

    # --- contexts ------------------------------------------------------------------------------

    def _context(self, options: Options, request: _Request) -> Context:
        """The context of the message, which may be new."""
        known = self._contexts.get(request.fence.context)
        if known:
            self._starts.check(known.lease.start, options, request.principal)
            return known
        start = self._starts.new(options, request.params, request.principal)
        context = self._contexts.add(start, request.fence)
        context.lease.save()
        return context

    def _check_queue(self, context: Context) -> None:
        """Raises UnsupportedOperation if the context does not take another task now."""
        if self._policy.when_busy == "reject" and not context.lease.idle:
            raise UnsupportedOperation("Task is already working.")
        if context.queued >= self._policy.queue:
            text = f"{context.queued} tasks of this context are waiting already."
            raise UnsupportedOperation(text)
