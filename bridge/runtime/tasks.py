"""The task manager: what clients may do with tasks. The only writer of tasks is a task's context,
which the manager finds or makes."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, Protocol

from bridge.a2a.codec import SendParams
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
from bridge.runtime.idempotency import Taken, key_of_message
from bridge.runtime.lease import Lease
from bridge.runtime.questions import Questions
from bridge.runtime.recorder import Recorder
from bridge.session.pool import SessionPool
from bridge.session.prewarm import Prewarm
from bridge.store.tasks import Record, Stored, TaskStore
from bridge.task.message import DataPart, Message, RawPart, UrlPart
from bridge.task.state import StatusUpdate, Task
from bridge.workspace.paths import Workspaces, check_place

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
    what becomes of a message to a context that works: it waits its turn, is refused, or joins the
    running turn where the CLI can take it. `queue`: how many tasks of one context may wait.
    `on_disconnect`: what becomes of a task whose client is gone for `grace` seconds."""

    show_thoughts: bool = False
    models: tuple[str, ...] = ()
    when_busy: Literal["queue", "reject", "steer"] = "queue"
    queue: int = 100
    on_disconnect: OnDisconnect = "continue"
    grace: float = 10.0


DEFAULT_POLICY = Policy()


class Notifier(Protocol):
    """Who keeps something for each task, and must hear that it will not be asked for any more."""

    async def forget(self, task_id: str) -> None:
        """The finished task was dropped to make room."""

    def leave(self, task_id: str) -> None:
        """The task ended with a direct reply, and no client has seen it."""


Watcher = Callable[[Record, Sequence[StatusUpdate]], None]


class TaskManager:
    """`adapter` says what messages its agents can read and how they may answer."""

    def __init__(
        self,
        agent: Agent,
        adapter: type[Adapter],
        workspaces: Workspaces,
        store: TaskStore,
        pool: SessionPool,
        *,
        policy: Policy = DEFAULT_POLICY,
        notifier: Notifier | None = None,
    ) -> None:
        self._agent = agent
        self._adapter = adapter
        self._workspaces = workspaces
        self._store = store
        self._pool = pool
        self._notifier = notifier
        self._forgetting: set[asyncio.Task[None]] = set()
        self._policy = policy
        self._audience = Audience(policy.grace, self._abandon)
        self._taken = Taken()
        self._watchers: list[Watcher] = []
        self._contexts: dict[str, Context] = {}
        self._warm = Prewarm(agent.sessions.make, pool, workspaces.default, agent.warm, agent.trust)
        self._recorder = Recorder(
            store, agent.audit, on_status=self._changed, on_end=self._finished
        )
        self._closing = False
        self.kept: Sequence[str] = ()  # markers of the sessions that outlive this server

    def restore(self, stored: Stored, reattach: bool) -> set[str]:
        """Go on with what an earlier server has left: tasks that had not begun are begun now, and
        those that were running go on where their CLIs are, if `reattach`. Returns the ids of the
        sessions that are gone on with."""
        for message_id, known, record in stored.taken:
            self._taken.add((message_id, known), record)
        for key, start in stored.starts.items():
            self._new_context(key, start)
        for record in self._store.unfinished():
            self._pool.quotas.resume(record.task.owner)
        unfinished: dict[str, list[tuple[Record, Message]]] = {}
        for record in self._store.unfinished():
            key = _key(record.task)
            if key not in self._contexts:  # what is known of it is damaged
                start = SessionStart(self._workspaces.default, str(uuid.uuid4()))
                self._new_context(key, start)
            pair = (record, stored.prompts[record.task.id])
            unfinished.setdefault(key, []).append(pair)
        left = {session.context_id: session for session in stored.sessions if reattach}
        kept: set[str] = set()
        for key, tasks in unfinished.items():
            session = left.get(key) if tasks[0][0].begun else None
            self._contexts[key].restore(tasks, session)
            kept |= {session.id} if session else set()
        for gone in stored.sessions:
            if gone.id not in kept:
                self._store.remove_session(gone.id)
        return kept

    def warm_up(self) -> None:
        """Have sessions ready from now on; nothing of an earlier server is left by now, and its
        clients may come back."""
        self._warm.begin()
        for record in self._store.unfinished():
            if not record.task.question:
                self._audience.leave(record)

    # --- operations ----------------------------------------------------------------------------

    def send(self, params: SendParams, principal: Principal = OPERATOR) -> Sent:
        """Begin a task, or answer the question of one. Raises RequestError."""
        message = params.message
        if self._closing:
            raise Unavailable("The server is shutting down; try again in a moment.")
        if self._store.problem:
            raise Unavailable("The server cannot write anything down now; try again in a moment.")
        key = key_of_message(key_of(principal.id, message.id), message)
        known = self._taken.find(key, message) if key else None
        if known and (params.retries or not known.task.state.terminal):
            authorize(principal, "read")
            return Sent(known, known.log.last, again=True)
        checked = self._agent.attachments.check(message, principal.workspaces)
        sent = self._take(replace(params, message=checked), principal)
        if key:
            self._taken.add(key, sent.record)
            self._store.take(*key, sent.record)
        return sent

    def _take(self, params: SendParams, principal: Principal) -> Sent:
        message = params.message
        if message.task_id is None and message.context_id:
            key = key_of(principal.id, message.context_id)
            message = replace(message, task_id=self._asking_task(key))
        if message.task_id is not None:
            return self._answer(message, params, principal)
        return self._begin(message, params, principal)

    def _begin(self, message: Message, params: SendParams, principal: Principal) -> Sent:
        """A task of its own for `message`, or its place in the turn that runs."""
        authorize(principal, "run")
        options = self._options(message, params)
        context = self._context(message, options, principal)
        running = context.only_task
        if running and self._steers(context, running, message):
            return self._steer(context, running, message, principal)
        self._check_queue(context)
        self._pool.quotas.begin(principal.id)
        thoughts = self._policy.show_thoughts if options.thoughts is None else options.thoughts
        attended = params.attends and "cancel" == (
            options.on_disconnect or self._policy.on_disconnect
        )
        now = datetime.now(UTC)
        task = Task(str(uuid.uuid4()), context.id, now, thoughts, principal.id, attended)
        message = replace(message, task_id=task.id, context_id=context.id)
        task.history.append(message)
        record = Record(task)
        self._store.add(record, message)
        facts = {"agent": self._store.agent, "cwd": context.lease.start.cwd}
        self._agent.audit.message("task", task, principal.id, message, **facts)
        context.submit(record, message)
        self._audience.leave(record)  # until its client listens
        return Sent(record, 0)

    def get(self, task_id: str, principal: Principal = OPERATOR, scope: Scope = "read") -> Record:
        """The task, which the client now knows. Raises Forbidden and TaskNotFound."""
        record = self._store.get(task_id)
        authorize(principal, scope, task_id, record.task.owner if record else None)
        assert record
        self._show(record)
        self._audience.touch(record)
        return record

    def cancel(self, task_id: str, principal: Principal = OPERATOR) -> Record:
        record = self.get(task_id, principal, "cancel")
        if record.task.state.terminal:
            raise TaskNotCancelable(f"The task is {record.task.state.value} already.")
        self._agent.audit.note("cancel", record.task, principal.id)
        self._contexts[_key(record.task)].cancel(record)
        return record

    def subscribe(self, task_id: str, again: bool, principal: Principal = OPERATOR) -> Record:
        """`again`: the client goes on with a stream that broke, maybe at its very end."""
        record = self.get(task_id, principal)
        if record.task.state.terminal and not again:
            text = f"The task is {record.task.state.value}: nothing more will come. Get it instead."
            raise UnsupportedOperation(text)
        return record

    def listen(self, record: Record) -> AbstractContextManager[Listener]:
        """As long as somebody listens to the task, who says whether it has left."""
        return self._audience.listen(record)

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
        while self._may_reply(record) and record.log.visible < 1 and loop.time() < end:
            try:
                await asyncio.wait_for(record.log.changed(), min(pause, end - loop.time()))
            except TimeoutError:
                yield
        record.shown = record.task.reply is None
        if record.shown:
            self._show(record)

    def _may_reply(self, record: Record) -> bool:
        """Whether a Message may take the task's place soon: what waits its turn is a task."""
        context = self._contexts.get(_key(record.task))
        return self._adapter.may_reply and context is not None and not context.waits(record)

    async def close(self, drain: float, keep: bool = False) -> None:
        """Take no more messages; give the agents that work `drain` seconds, then end everything,
        or `keep` for another server what can outlive this one (see `kept`)."""
        self._closing = True
        self._audience.close()
        cooling = asyncio.create_task(self._warm.close())
        unfinished = [r for r in self._store.unfinished() if not r.task.state.interrupted]
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

    def knows(self, principal: Principal, task_id: str | None, context_id: str | None) -> bool:
        """Whether the task, or else the context, is one of this agent's that it may see."""
        if task_id is not None:
            record = self._store.get(task_id)
            return record is not None and principal.sees(record.task.owner)
        return context_id is not None and key_of(principal.id, context_id) in self._contexts

    @property
    def quotas(self) -> Quotas:
        return self._pool.quotas

    def records(self) -> Sequence[Record]:
        return self._store.all()

    def watch(self, watcher: Watcher) -> None:
        """Have `watcher` told of every status of every task, from now on."""
        self._watchers.append(watcher)

    def figures(self) -> dict[str, int]:
        """For GET /health: tasks that have not ended, contexts that are known, and, if there are to
        be any, sessions that wait for one."""
        known = {"tasks": len(self._store.unfinished()), "contexts": len(self._contexts)}
        return {**known, "warm": self._warm.ready} if self._agent.warm.number else known

    def kill(self) -> None:
        """End every process at once, without waiting for any."""
        self._warm.kill()
        for context in self._contexts.values():
            context.lease.kill()

    def _abandon(self, record: Record) -> None:
        """Its client has gone for good."""
        self._agent.audit.note("cancel", record.task, "bridge", by="disconnect")
        text = (
            f"Canceled: its client was gone for {self._policy.grace:g} s, and nobody else followed "
            "it (BRIDGE_ON_DISCONNECT)."
        )
        self._contexts[_key(record.task)].cancel(record, text)

    # --- parts of them -------------------------------------------------------------------------

    def _options(self, message: Message, params: SendParams) -> Options:
        """What the client asks for in metadata. Raises InvalidParams."""
        return read_options(
            message.metadata, params.metadata, adapter=self._adapter, models=self._policy.models
        )

    def _answer(self, message: Message, params: SendParams, principal: Principal) -> Sent:
        assert message.task_id is not None
        record = self.get(message.task_id, principal)
        task = record.task
        authorize(principal, "approve" if task.question else "run")
        if message.context_id not in (None, task.context_id):
            text = "contextId is not the one of this task"
            raise InvalidParams(text, [("message.contextId", "does not belong to the task")])
        reopens = params.reopens and message.context_id and not _names_question(message)
        if task.state.terminal and not reopens:
            text = f"The task is {task.state.value}; to go on, send a message with its contextId."
            raise UnsupportedOperation(text)
        context = self._contexts.get(_key(task))
        if context:
            check_place(context.lease.start.cwd, principal.workspaces)
        if context and self._steers(context, record, message):
            return self._steer(context, record, message, principal)
        if task.question is None or context is None:
            return self._begin_next(task, message, params, principal)
        if any(isinstance(part, RawPart | UrlPart) for part in message.parts):
            raise ContentTypeNotSupported("An answer is text or data; send files with a prompt.")
        options = self._options(message, params)
        self._check_same(context, options)
        sent = Sent(record, record.log.last)
        context.answer(record, message, principal.id)
        return sent

    def _begin_next(
        self, task: Task, message: Message, params: SendParams, principal: Principal
    ) -> Sent:
        """The message names a task that asks nothing: it is for the turn after that one."""
        if task.owner != principal.id:
            text = "The task asks nothing, and only its owner can go on with its conversation."
            raise UnsupportedOperation(text)
        named = replace(message, task_id=None, context_id=task.context_id)
        return self._begin(named, params, principal)

    def _show(self, record: Record) -> None:
        """A client knows the task from now on."""
        record.shown = True
        context = self._contexts.get(_key(record.task))
        if context:
            context.shown(record)

    def _steers(self, context: Context, record: Record, message: Message) -> bool:
        return self._policy.when_busy == "steer" and context.can_steer(record, message)

    def _steer(
        self, context: Context, record: Record, message: Message, principal: Principal
    ) -> Sent:
        sent = Sent(record, record.log.last)
        self._agent.audit.message("steer", record.task, principal.id, message)
        context.steer(record, message)
        return sent

    def _asking_task(self, key: str) -> str | None:
        """The task of a context that waits for its client."""
        context = self._contexts.get(key)
        record = context.current if context else None
        return record.task.id if record and record.task.question else None

    def _context(self, message: Message, options: Options, principal: Principal) -> Context:
        if message.context_id is not None and not CONTEXT_ID.fullmatch(message.context_id):
            text = "contextId may have up to 128 letters, digits and _ . : -"
            raise InvalidParams(text, [("message.contextId", text)])
        key = key_of(principal.id, message.context_id or str(uuid.uuid4()))
        known = self._contexts.get(key)
        if known:
            check_place(known.lease.start.cwd, principal.workspaces)
            self._check_same(known, options)
            return known
        cwd = self._workspaces.resolve(options.cwd, principal.workspaces)
        session = options.session
        start = SessionStart(cwd, str(uuid.uuid4()), options=session, owner=principal.id)
        self._store.put_context(key, start)
        return self._new_context(key, start)

    def _new_context(self, key: str, start: SessionStart) -> Context:
        agent = self._agent
        lease = Lease(
            key,
            start,
            store=self._store,
            make=agent.sessions.make,
            prewarm=self._warm,
            idle_seconds=agent.idle_seconds,
            waits_a_minute=agent.resumes_next_minute,
        )
        questions = Questions(agent.rules, agent.trust, timeout=agent.patience)
        context = Context(agent, recorder=self._recorder, questions=questions, lease=lease)
        self._contexts[key] = context
        return context

    def _check_queue(self, context: Context) -> None:
        """Raises UnsupportedOperation if the context does not take another task now."""
        if self._policy.when_busy == "reject" and not context.lease.idle:
            raise UnsupportedOperation("Task is already working.")
        if context.queued >= self._policy.queue:
            text = f"{context.queued} tasks of this context are waiting already"
            raise UnsupportedOperation(f"{text} (BRIDGE_MAX_TASKS_PER_CONTEXT).")

    def _check_same(self, context: Context, options: Options) -> None:
        """What a conversation began with stays as it is. Raises InvalidParams."""
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

    def _changed(self, record: Record, updates: Sequence[StatusUpdate]) -> None:
        for watcher in self._watchers:
            watcher(record, updates)

    def _finished(self, record: Record) -> None:
        self._pool.quotas.ended(record.task.owner)
        if record.task.reply and not record.shown:
            self._store.remove(record.task.id)  # a Message was the answer, there is no task
            if self._notifier:
                self._notifier.leave(record.task.id)
        else:
            record.task.reply = None
            for gone in self._store.finished(record):
                self._forget(gone.task)
        while len(self._contexts) > self._store.keep:
            cold = next((key for key, one in self._contexts.items() if one.lease.cold), None)
            if cold is None:
                return
            del self._contexts[cold]
            self._store.remove_context(cold)

    def _forget(self, task: Task) -> None:
        self._agent.attachments.forget(_key(task), task.id)
        if self._notifier is None:
            return
        forgetting = asyncio.ensure_future(self._notifier.forget(task.id))
        self._forgetting.add(forgetting)  # the loop itself keeps no task alive
        forgetting.add_done_callback(self._forgetting.discard)

    async def _ended(self, record: Record) -> None:
        while not record.log.closed:
            await record.log.changed()


def key_of(owner: str, name: str) -> str:
    """What a client's name for something is called here: two of them may choose the same one."""
    return name if owner == OPERATOR.id else f"{owner}/{name}"


def _key(task: Task) -> str:
    """Of its context."""
    return key_of(task.owner, task.context_id)


def _names_question(message: Message) -> bool:
    """Whether it can be nothing but an answer, for which it may be too late."""
    found = (part.data for part in message.parts if isinstance(part, DataPart))
    return any(isinstance(data, dict) and "questionId" in data for data in found)
