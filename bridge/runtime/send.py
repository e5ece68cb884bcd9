"""The operation Send Message: the way of one message from the request to its task."""

from __future__ import annotations

import re
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from bridge.a2a.requests import SendParams
from bridge.adapter import Adapter, SessionStart
from bridge.auth.principal import OPERATOR, Principal, authorize
from bridge.errors import (
    ContentTypeNotSupported,
    InvalidParams,
    Unavailable,
    UnsupportedOperation,
)
from bridge.runtime.agent import Policy
from bridge.runtime.context import Context
from bridge.runtime.contexts import Contexts
from bridge.runtime.extension import Options, read_options
from bridge.runtime.idempotency import IdempotencyIndex, Reservation
from bridge.store.handle import TaskHandle
from bridge.store.protocol import CANNOT_WRITE, ContextKey, Fence
from bridge.task.message import DataPart, Message, RawPart, UrlPart
from bridge.task.state import Task
from bridge.workspace.paths import Workspaces, check_place

CONTEXT_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@dataclass(frozen=True, slots=True)
class Sent:
    """An accepted message. Its updates have numbers above `after`. `again`: the message was already
    accepted before, and begins no work."""

    handle: TaskHandle
    after: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class _Request:
    """A message while the server decides about it."""

    message: Message
    params: SendParams
    principal: Principal
    reserved: Reservation
    fence: Fence


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
        self._adapter = adapter
        self._workspaces = workspaces
        self._policy = policy
        self._get = get
        self._begun = begun
        self._idempotency = IdempotencyIndex(self._tasks.agent, self._tasks.store)
        self.closed = False

    async def send(self, params: SendParams, principal: Principal = OPERATOR) -> Sent:
        """Accept the message of the principal. Raises RequestError; the message then had no
        effect."""
        message = params.message
        self._check_available()
        async with self._idempotency.reserve(principal.id, message) as reserved:
            known = await self._tasks.find(reserved.task_id) if reserved.task_id else None
            if known and (params.retries or not known.task.state.terminal):
                authorize(principal, "read")
                return Sent(known, known.log.last, again=True)
            context_id = message.context_id or str(uuid.uuid4())
            key = ContextKey(self._tasks.agent, principal.id, context_id)
            named = await self._named(message, principal, key)
            if named and params.purpose == "begin":
                text = "The context asks a question; answer it before you delegate more to it."
                raise UnsupportedOperation(text)
            async with self._contexts.claimed(named.context if named else key) as fence:
                # No await from here to Context.submit(), so that no other code runs in between.
                self._check_available()
                message = self._agent.attachments.check(message, principal.workspaces)
                request = _Request(message, params, principal, reserved, fence)
                return self._answer(named, request) if named else self._begin(request)

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
        reopens = request.params.reopens and message.context_id and not _names_question(message)
        if task.state.terminal and not reopens:
            text = (
                f"The task is {task.state.value}; to continue, send a message with its contextId."
            )
            raise UnsupportedOperation(text)
        only_answers = request.params.purpose == "answer"
        if not _answers(message, task) if only_answers else _is_late(message, task):
            raise UnsupportedOperation("The question is closed, so the answer had no effect.")
        context = self._contexts.get(handle.context)
        if context:
            check_place(context.lease.start.cwd, principal.workspaces)
        if context and self._steers(context, handle, message):
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
        self._check_same(context, self._options(replace(request, message=message)))
        sent = self._accepted(handle, request)
        context.answer(handle, message, principal.id)
        return sent

    def _accepted(self, handle: TaskHandle, request: _Request) -> Sent:
        """Assign the message to an existing task."""
        self._tasks.store.append(request.reserved.accept(handle.task.id), fence=handle.fence)
        return Sent(handle, handle.log.last)

    def _steers(self, context: Context, handle: TaskHandle, message: Message) -> bool:
        return self._policy.when_busy == "steer" and context.can_steer(handle, message)

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
        message, principal, policy = request.message, request.principal, self._policy
        authorize(principal, "run")
        options = self._options(request)
        context = self._context(options, request)
        running = context.only_task
        if running and self._steers(context, running, message):
            return self._steer(context, running, message, request)
        self._check_queue(context)
        self._contexts.pool.quotas.begin(principal.id)
        on_disconnect = options.on_disconnect or policy.on_disconnect
        task = Task(
            str(uuid.uuid4()),
            context.id,
            datetime.now(UTC),
            show_thoughts=policy.show_thoughts if options.thoughts is None else options.thoughts,
            owner=principal.id,
            attended=request.params.attends and on_disconnect == "cancel",
        )
        message = replace(message, task_id=task.id, context_id=context.id)
        task.history.append(message)
        notifies = request.params.push is not None
        handle = TaskHandle(task, self._tasks.agent, fence=request.fence, notifies=notifies)
        accepted = request.reserved.accept(task.id)
        self._contexts.recorder.begin(handle, message, accepted, hidden=self._agent.replies)
        facts = {"agent": self._tasks.agent, "cwd": context.lease.start.cwd}
        self._agent.audit.message("task", task, principal.id, message, **facts)
        context.submit(handle, message)
        self._begun(handle)
        return Sent(handle, 0)

    def _options(self, request: _Request) -> Options:
        """The choices of the client in the metadata. Raises InvalidParams."""
        metadata = request.message.metadata, request.params.metadata
        return read_options(*metadata, adapter=self._adapter, models=self._policy.models)

    def _context(self, options: Options, request: _Request) -> Context:
        """The context of the message, which may be new."""
        principal, named = request.principal, request.message.context_id
        if named is not None and not CONTEXT_ID.fullmatch(named):
            text = "contextId may have up to 128 letters, digits and _ . : -"
            raise InvalidParams(text, [("message.contextId", text)])
        known = self._contexts.get(request.fence.context)
        if known:
            check_place(known.lease.start.cwd, principal.workspaces)
            self._check_same(known, options)
            return known
        cwd = self._workspaces.resolve(options.cwd, principal.workspaces)
        start = SessionStart(cwd, str(uuid.uuid4()), options=options.session, owner=principal.id)
        context = self._contexts.add(start, request.fence)
        context.lease.save()
        return context

    def _check_same(self, context: Context, options: Options) -> None:
        """The options of a context cannot change. Raises InvalidParams if `options` differ."""
        start = context.lease.start
        if options.cwd is not None and self._workspaces.resolve(options.cwd) != start.cwd:
            text = "this context works in another directory; begin a new context"
            raise InvalidParams(text, [("metadata.bridge.cwd", text)])
        for name in ("model", "mode", "budget_usd"):
            wanted = getattr(options.session, name)
            if wanted is not None and wanted != getattr(start.options, name):
                text = f"this context began with another {name}; begin a new context"
                raise InvalidParams(text, [(f"metadata.bridge.{name}", text)])

    def _check_queue(self, context: Context) -> None:
        """Raises UnsupportedOperation if the context does not take another task now."""
        if self._policy.when_busy == "reject" and not context.lease.idle:
            raise UnsupportedOperation("Task is already working.")
        if context.queued >= self._policy.queue:
            text = f"{context.queued} tasks of this context are waiting already"
            raise UnsupportedOperation(f"{text} (BRIDGE_MAX_TASKS_PER_CONTEXT).")


def _answers(message: Message, task: Task) -> bool:
    """Whether the message names the open question of the task."""
    found = [part.data for part in message.parts if isinstance(part, DataPart)]
    question = task.question
    return question is not None and any(data.get("questionId") == question.id for data in found)


def _is_late(message: Message, task: Task) -> bool:
    """Whether the message is an answer, but no question is open."""
    return task.question is None and _names_question(message)


def _names_question(message: Message) -> bool:
    """Whether the message can only be an answer. The answer may be too late."""
    found = (part.data for part in message.parts if isinstance(part, DataPart))
    return any(isinstance(data, dict) and "questionId" in data for data in found)
