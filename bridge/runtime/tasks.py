"""The task manager: the operations of clients on the tasks of one agent. Only the context of a task
writes the task. sending/ begins tasks, and removal.py removes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from bridge.a2a.requests import SendParams
from bridge.adapter import Adapter
from bridge.auth.principal import OPERATOR, Principal, Scope, authorize
from bridge.errors import TaskNotCancelable, Unavailable, UnsupportedOperation
from bridge.runtime.agent import DEFAULT_POLICY, Agent, Policy
from bridge.runtime.audience import Audience, Listener
from bridge.runtime.contexts import Contexts
from bridge.runtime.nodes.asking import OtherServers
from bridge.runtime.nodes.commands import Elsewhere
from bridge.runtime.recorder import Recorder
from bridge.runtime.removal import Notifier, Removal
from bridge.runtime.sending.send import SendOperation, Sent
from bridge.session.pool import SessionPool
from bridge.session.prewarm import Prewarm
from bridge.session.tally import SessionTally
from bridge.store.changes import ContextKey
from bridge.store.handle import TaskHandle, TaskHandles
from bridge.store.protocol import CANNOT_WRITE
from bridge.task.state import StatusUpdate, Task
from bridge.telemetry.observation import message_trace
from bridge.workspace.attachments import Attachments
from bridge.workspace.paths import Workspaces

# A stream must begin with a Task or with a Message. An agent that may reply with a Message has
# this many seconds to do so before its client is shown a Task.
REPLY_WITHIN = 10.0
MOST_SERVERS = 5  # that are asked for one request, if its context moves meanwhile

Watcher = Callable[[TaskHandle, Sequence[StatusUpdate]], None]


class TaskManager:
    """`adapter` defines the messages that its agents can read, and the kinds of their replies.
    `find` returns a task of any owner, or None. `accept`: see SendOperation.send(). `others`: the
    servers with the contexts that this one does not have."""

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
        self._replies = adapter.may_reply
        self._tasks = tasks
        self._notifier = notifier
        self._background: set[asyncio.Task[None]] = set()
        self._policy = policy
        self._audience = Audience(policy.grace, self._abandon)
        self._watchers: list[Watcher] = []
        self._places = workspaces
        self._past: list[Attachments] = []  # of running conversations, before a change
        self._warm = Prewarm(agent.sessions.make, pool, workspaces.default, agent.warm, agent.trust)
        recorder = Recorder(
            tasks,
            agent.audit,
            on_status=self._changed,
            on_end=self._finished,
            on_lost=self._lost,
            observers=agent.observers,
        )
        self.quotas = pool.quotas
        self.contexts = Contexts(
            agent,
            tasks,
            recorder=recorder,
            prewarm=self._warm,
            cwd=workspaces.default,
            adopted=self._adopted,
        )
        self.removal = Removal(self.contexts, notifier)
        self.others = OtherServers(tasks)
        self._sending = SendOperation(
            self.contexts,
            adapter,
            workspaces,
            policy=policy,
            get=self.get,
            begun=self._audience.leave,  # starts the timer until its client listens
        )
        self.accept = self._sending.send
        self.find = tasks.find
        self.kept: Sequence[str] = ()  # markers of the sessions that survive this server

    def warm_up(self) -> None:
        """Start sessions ahead of their tasks from now on. Call it after the work of an earlier
        server is restored: its clients may return from now on."""
        self._warm.begin()
        for handle in self._tasks.unfinished():
            if not handle.task.question:
                self._audience.leave(handle)

    def change(
        self, agent: Agent, adapter: type[Adapter], workspaces: Workspaces, policy: Policy
    ) -> None:
        """Begin new conversations with these settings; running ones keep theirs, but the rules."""
        before, warm = self._agent, self._warm
        if (agent.sessions, agent.warm, workspaces) != (before.sessions, before.warm, self._places):
            self._warm = Prewarm(
                agent.sessions.make, warm.pool, workspaces.default, agent.warm, agent.trust
            )
            self._begin_soon(warm.close())
            self._warm.begin()
        if agent.attachments is not before.attachments:
            self._past.append(before.attachments)
        self._agent, self._policy, self._places = agent, policy, workspaces
        self._replies = adapter.may_reply
        self.contexts.change(agent, workspaces.default, self._warm)
        self._sending.change(adapter, workspaces, policy)
        self._audience.change(policy.grace)

    # --- operations ----------------------------------------------------------------------------

    async def send(self, params: SendParams, principal: Principal = OPERATOR) -> Sent:
        """Accept the message of the principal, at the server that has its context. Raises
        RequestError; the message then had no effect, unless the error says that it may have."""
        trace = message_trace()
        if trace:
            params = replace(params, message=replace(params.message, trace=trace))
        for _ in range(MOST_SERVERS):
            try:
                return await self.accept(params, principal)
            except Elsewhere as error:
                accepted = await self.others.send(error, params, principal)
            handle = await self.find(accepted.task_id) if accepted else None
            if accepted and handle:
                return Sent(handle, accepted.after, accepted.again)
        raise Unavailable(CANNOT_WRITE)

    async def get(
        self, task_id: str, principal: Principal = OPERATOR, scope: Scope = "read"
    ) -> TaskHandle:
        """The task; the client knows it from now on. Raises Forbidden and TaskNotFound."""
        handle = await self._tasks.find(task_id)
        authorize(principal, scope, task_id, handle.task.owner if handle else None)
        assert handle
        self._show(handle)
        self._audience.touch(handle)
        return handle

    def _show(self, handle: TaskHandle) -> None:
        handle.show()
        context = None if handle.task.state.terminal else self.contexts.get(handle.context)
        if context:
            context.shown(handle)

    async def cancel(self, task_id: str, principal: Principal = OPERATOR) -> TaskHandle:
        """End the task, at the server that has its context. Raises TaskNotCancelable, the errors of
        get(), and Unavailable."""
        for _ in range(MOST_SERVERS):
            handle = await self.get(task_id, principal, "cancel")
            if handle.task.state.terminal or handle.back:
                raise TaskNotCancelable(f"The task is {handle.task.state.value} already.")
            if not handle.elsewhere:
                self._agent.audit.note("cancel", handle.task, principal.id)
                self.contexts.of(handle).cancel(handle)
                await self._leave(handle.context)
                return handle
            if await self._canceled(handle, principal):
                return await self.get(task_id, principal, "cancel")
        raise Unavailable(CANNOT_WRITE)

    async def _canceled(self, handle: TaskHandle, principal: Principal) -> bool:
        """Whether the server that has the context of the task has canceled it. If no server has it,
        this one takes it."""
        try:
            await self.contexts.take(handle.context)
        except Elsewhere as error:
            return await self.others.cancel(error, handle.task.id, principal)
        return False

    async def subscribe(
        self, task_id: str, again: bool, principal: Principal = OPERATOR
    ) -> TaskHandle:
        """`again`: the client resumes a broken stream, which may have ended already."""
        handle = await self.get(task_id, principal)
        if handle.task.state.terminal and not again:
            text = f"The task is {handle.task.state.value}: nothing more will come. Get it instead."
            raise UnsupportedOperation(text)
        return handle

    def listen(self, handle: TaskHandle) -> AbstractContextManager[Listener]:
        """The context in which a client listens; the listener shows whether the client left."""
        return self._audience.listen(handle)

    async def settled(self, sent: Sent) -> None:
        """Wait until the task, after this message, has ended or waits for the client."""
        if sent.again and sent.handle.task.state.interrupted:
            return
        async for batch in sent.handle.log.follow(sent.after, pause=3600.0):
            for entry in batch:
                if isinstance(entry.update, StatusUpdate) and entry.update.state.interrupted:
                    return

    async def begin(self, handle: TaskHandle, pause: float) -> AsyncIterator[None]:
        """Wait until the kind of the reply is known: only some agents may reply with a Message.
        Yields each time that `pause` seconds have passed."""
        loop = asyncio.get_running_loop()
        end = loop.time() + REPLY_WITHIN
        while self._may_reply(handle) and handle.log.visible < 1 and loop.time() < end:
            try:
                await asyncio.wait_for(handle.log.changed(), min(pause, end - loop.time()))
            except TimeoutError:
                yield
        handle.shown = False
        if handle.task.reply is None:
            self._show(handle)

    def _may_reply(self, handle: TaskHandle) -> bool:
        """Whether a Message may replace the task soon. A task in the queue stays a task."""
        context = self.contexts.get(handle.context)
        return self._replies and context is not None and not context.waits(handle)

    def has_context(self, owner: str, context_id: str) -> bool:
        return self.contexts.get(ContextKey(self._tasks.agent, owner, context_id)) is not None

    def directory(self, handle: TaskHandle) -> str | None:
        """The working directory of the task, if the server has its context."""
        context = self.contexts.get(handle.context)
        return context.lease.start.cwd if context else None

    def beginning(self, task: Task) -> tuple[str, str] | None:
        """How the task got its session (see Lease.began), and its working directory; None if this
        server does not have its context."""
        context = self.contexts.get(ContextKey(self._tasks.agent, task.owner, task.context_id))
        return (context.lease.began, context.lease.start.cwd) if context else None

    def working(self, marker: str) -> TaskHandle | None:
        """The task of the session whose processes have this marker."""
        leases = ((context, context.lease.session) for context in self.contexts)
        found = (context for context, one in leases if one and one.marker == marker)
        context = next(found, None)
        return context.current if context else None

    # --- for the server ------------------------------------------------------------------------

    async def close(self, drain: float, keep: bool = False) -> None:
        """Accept no more messages, leave tasks that have not begun to other servers of the store,
        and wait up to `drain` seconds for the working agents. Then end all tasks and sessions. With
        `keep`, leave the sessions that can survive this server to another one (see `kept`)."""
        self._sending.closed = True
        self._audience.close()
        for handle in self._tasks.unfinished():
            await self.contexts.let_go(handle.context)
        cooling = asyncio.create_task(self._warm.close())
        unfinished = [one for one in self._tasks.unfinished() if not one.task.state.interrupted]
        running = [asyncio.create_task(_ended(handle)) for handle in unfinished]
        if running and drain:
            await asyncio.wait(running, timeout=drain)
        for waiter in running:
            waiter.cancel()
        contexts = list(self.contexts)
        if keep:
            self.kept = [marker for context in contexts for marker in context.detach()]
        await asyncio.gather(cooling, *(context.shut_down() for context in contexts))
        self._tasks.close()
        for one in (self._agent.attachments, *self._past):
            one.close()

    def lose(self, copied: bool) -> None:
        """The incarnation of this server has ended. `copied`: a server with its identity runs."""
        self.kept = self.contexts.lose(keep=not copied)

    def kill(self) -> None:
        """End every process immediately, without waiting."""
        self._warm.kill()
        for context in self.contexts:
            context.lease.kill()

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` with every status update of every task from now on."""
        self._watchers.append(watcher)

    @property
    def open_tasks(self) -> Sequence[TaskHandle]:
        """The tasks that have not ended."""
        return self._tasks.unfinished()

    @property
    def sessions(self) -> SessionTally:
        """The counts of the sessions of the agent."""
        return self._agent.sessions.tally

    @property
    def warm(self) -> int:
        """The sessions that are ready for a task."""
        return self._warm.ready

    def figures(self) -> dict[str, int]:
        """Numbers for GET /health: unfinished tasks, known contexts and, if prewarming is
        configured, sessions that are ready for a task."""
        known = {"tasks": len(self._tasks.unfinished()), "contexts": len(self.contexts)}
        return {**known, "warm": self._warm.ready} if self._agent.warm.number else known

    # --- changes of tasks ----------------------------------------------------------------------

    def _adopted(self, tasks: Sequence[TaskHandle]) -> None:
        """This server continues tasks of another one."""
        for handle in tasks:
            if not handle.task.question:
                self._audience.leave(handle)
            if self._notifier:
                self._begin_soon(self._notifier.resume(handle))

    async def _leave(self, key: ContextKey) -> None:
        """Leave a context that this server has taken to other servers, if it has no slots."""
        if self.contexts.pool.limit == 0:
            await self.contexts.let_go(key)

    def _begin_soon(self, work: Coroutine[Any, Any, None]) -> None:
        working = asyncio.create_task(work)
        self._background.add(working)  # the loop holds only weak references
        working.add_done_callback(self._background.discard)

    def _abandon(self, handle: TaskHandle) -> None:
        """Cancel the task, because its client did not return in time."""
        self._agent.audit.note("cancel", handle.task, "bridge", by="disconnect")
        text = (
            f"Canceled: no client followed the task for {self._policy.grace:g} s "
            "(BRIDGE_ON_DISCONNECT)."
        )
        self.contexts.of(handle).cancel(handle, text)

    def _changed(self, handle: TaskHandle, updates: Sequence[StatusUpdate]) -> None:
        for watcher in self._watchers:
            watcher(handle, updates)
        if updates[-1].state.terminal:
            self._begin_soon(self.removal.expire(self._policy.retention))

    def _lost(self, handle: TaskHandle) -> None:
        """Abandon the context of the task, because another server owns it."""
        self._tasks.remove(handle.task.id)
        for one in self.contexts.abandon(handle):
            self.quotas.ended(one.task.owner)
            self._tasks.remove(one.task.id)

    def _finished(self, handle: TaskHandle) -> None:
        self.quotas.ended(handle.task.owner)
        if handle.task.reply and not handle.shown:
            self.removal.replaced(handle)
        else:
            handle.task.reply = None
        self.contexts.remove_cold(self._policy.retention.tasks)


async def _ended(handle: TaskHandle) -> None:
    while not handle.log.closed:
        await handle.log.changed()
