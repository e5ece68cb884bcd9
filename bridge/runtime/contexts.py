"""The contexts of one agent, and the work that an earlier server left in them."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from weakref import WeakValueDictionary

from bridge.adapter import SessionStart
from bridge.runtime.agent import Agent
from bridge.runtime.context import Context
from bridge.runtime.lease import Lease, StoredSession
from bridge.runtime.nodes.commands import Elsewhere
from bridge.runtime.questions import Questions
from bridge.runtime.recorder import Recorder
from bridge.session.prewarm import Prewarm
from bridge.store.changes import ContextKey, ContextRemoved, ContextSaved, Fence, SessionClosed
from bridge.store.cluster import Take
from bridge.store.handle import TaskHandle, TaskHandles, readable
from bridge.store.protocol import OpenSession
from bridge.task.events import Interrupted
from bridge.task.message import Message

RESTARTED = Interrupted("The server restarted and the agent process was lost.", "restart")
NODE_LOST = Interrupted("The server that ran this task was lost.", "node-lost")


@dataclass(frozen=True, slots=True)
class Stored:
    """The contexts of an agent, its unfinished tasks with their prompts, and its open sessions."""

    contexts: Sequence[ContextSaved]
    tasks: Sequence[tuple[TaskHandle, Message]]
    sessions: Sequence[OpenSession]
    fences: Mapping[ContextKey, Fence]


class Contexts:
    """`cwd`: the directory of a context whose stored start is damaged. `adopted` gets
    the unfinished tasks of a context that another server had."""

    def __init__(
        self,
        agent: Agent,
        tasks: TaskHandles,
        *,
        recorder: Recorder,
        prewarm: Prewarm,
        cwd: str,
        adopted: Callable[[Sequence[TaskHandle]], None] = lambda tasks: None,
    ) -> None:
        self._cluster = tasks.cluster
        self._adopted = adopted
        self.agent = agent
        self.tasks = tasks
        self.recorder = recorder
        self.pool = prewarm.pool
        self._store = tasks.store
        self._prewarm = prewarm
        self._cwd = cwd
        self._contexts: dict[ContextKey, Context] = {}
        self._claiming: WeakValueDictionary[ContextKey, asyncio.Lock] = WeakValueDictionary()
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._contexts)

    def __iter__(self) -> Iterator[Context]:
        return iter(list(self._contexts.values()))

    def change(self, agent: Agent, cwd: str, prewarm: Prewarm) -> None:
        """Begin new contexts with these settings. The rules also hold for the present ones."""
        self.agent, self._cwd, self._prewarm = agent, cwd, prewarm
        for context in self:
            context.change_rules(agent.rules)

    def get(self, key: ContextKey) -> Context | None:
        return self._contexts.get(key)

    def of(self, handle: TaskHandle) -> Context:
        """The context of an unfinished task."""
        return self._contexts[handle.context]

    def add(self, start: SessionStart, fence: Fence) -> Context:
        """A new context with the launch parameters of its first session."""
        agent = self.agent
        lease = Lease(
            start,
            store=self._store,
            fence=fence,
            make=agent.sessions.make,
            prewarm=self._prewarm,
            idle_seconds=agent.idle_seconds,
            share=agent.sessions.share,
        )
        lease.audit = agent.audit
        questions = Questions(agent.rules, agent.trust, timeout=agent.patience)
        context = Context(agent, recorder=self.recorder, questions=questions, lease=lease)
        self._contexts[fence.context] = context
        return context

    @asynccontextmanager
    async def claimed(self, key: ContextKey) -> AsyncIterator[Fence]:
        """Hold the right to write the context. Release it if the context was not begun. Raises
        Elsewhere if another server has it, and Unavailable."""
        claiming = self._claiming.setdefault(key, asyncio.Lock())
        # One at a time: a message that is refused must not release the fence of another message.
        async with claiming:
            fence = await self._claim(key)
            try:
                yield fence
            finally:
                if key not in self._contexts:
                    await self._store.release(fence)

    async def _claim(self, key: ContextKey) -> Fence:
        fence = await self._store.claim(key, self._store.node, math.inf)
        if fence is None:
            raise Elsewhere(key, await self._cluster.holder(key) if self._cluster else None)
        return fence

    async def take(self, key: ContextKey, lost: Interrupted = NODE_LOST) -> None:
        """Continue a context that no server has, or that this server has taken; see adopt(). Raises
        Elsewhere and Unavailable."""
        async with self.claimed(key) as fence:
            await self.adopt(fence, lost)

    # --- the work of an earlier server ---------------------------------------------------------

    async def load(self) -> Stored:
        """The stored state of this agent from an earlier server, without the contexts that another
        server has taken meanwhile. The store must be open."""
        agent, fences = self.tasks.agent, dict[ContextKey, Fence]()
        contexts, tasks = await self._store.contexts(agent), await self.tasks.restore()
        for key in (*(saved.context for saved in contexts), *(task.context for task, _ in tasks)):
            fence = await self._store.claim(key, self._store.node, math.inf)
            if fence:
                fences[key] = fence
        for task, _ in tasks:
            task.fence = fences.get(task.context)
            if task.fence is None:
                self.tasks.remove(task.task.id)
        contexts = [saved for saved in contexts if saved.context in fences]
        tasks = [(task, prompt) for task, prompt in tasks if task.fence]
        return Stored(contexts, tasks, await self._store.sessions(agent), fences)

    async def adopt(self, fence: Fence, lost: Interrupted = NODE_LOST) -> None:
        """Continue the claimed context, if another server had it. Its tasks that had not begun
        begin now, and the other ones end with `lost`."""
        key = fence.context
        if not fence.saved or key in self._contexts:
            return
        contexts = await self._store.contexts(self.tasks.agent, key)
        tasks = await self.tasks.restore(key)
        for task, _ in tasks:
            task.fence = fence
        self.restore(Stored(contexts, tasks, (), {key: fence}), reattach=False, lost=lost)
        self._adopted([task for task, _ in tasks if not task.task.state.terminal])

    async def let_go(self, key: ContextKey) -> None:
        """Leave a context to any server, if it has no session, no task in it has begun, and the
        client chose no role."""
        context = self._contexts.get(key)
        start = context and context.lease.start
        # Another directory may exist at this server alone.
        known = start and start.cwd == self._cwd and start.role is None
        if self._cluster is None or context is None or not known or not context.movable:
            return
        async with self._claiming.setdefault(key, asyncio.Lock()):
            if self._contexts.get(key) is not context or not context.movable:
                return  # a message was faster
            waiting = context.leave()
            del self._contexts[key]
            for handle in waiting:
                self.pool.quotas.ended(handle.task.owner)
                self.tasks.remove(handle.task.id)
            await self._store.flush()
            await self._store.release(context.lease.fence)
        if waiting:
            await self._cluster.offer()

    async def take_over(self, key: ContextKey, take: Take) -> None:
        """Adopt a context of a lost server, unless this one has it by now. Raises Unavailable."""
        async with self._claiming.setdefault(key, asyncio.Lock()):
            fence = await take()
            if fence:
                await self.adopt(fence)

    async def finish(self, key: ContextKey, take: Take) -> Fence | None:
        """End the tasks of a context of a lost server: no other server has its directory. Returns
        its fence after the commit. Raises Unavailable."""
        async with self._claiming.setdefault(key, asyncio.Lock()):
            fence = await take()
            tasks = [task for task, _ in await self.tasks.restore(key)] if fence else []
            for task in tasks:
                task.fence = fence
                self.pool.quotas.resume(task.task.owner)
                self.recorder.record(task, [NODE_LOST])
            await self._store.flush()
            self._adopted(tasks)  # this server delivers their notifications
            return fence

    def restore(self, stored: Stored, reattach: bool, lost: Interrupted = RESTARTED) -> set[str]:
        """Continue the work of an earlier server. Tasks that had not begun begin now. With
        `reattach`, running tasks continue with their running CLIs; the other ones end with `lost`.
        Returns the ids of the sessions that are used again."""
        for saved in stored.contexts:
            start = readable(SessionStart, saved.start)
            if start:
                context = self.add(start, stored.fences[saved.context])
                if saved.share not in (None, context.lease.share):  # not in the settings any more
                    context.lease.save()
        unfinished: dict[ContextKey, list[tuple[TaskHandle, Message]]] = {}
        for handle, prompt in stored.tasks:
            self.pool.quotas.resume(handle.task.owner)
            if handle.context not in self._contexts:  # its start is damaged
                start = SessionStart(self._cwd, str(uuid.uuid4()))
                self.add(start, stored.fences[handle.context])
            unfinished.setdefault(handle.context, []).append((handle, prompt))
        found = stored.sessions if reattach else ()
        left = {one.context: StoredSession.read(one) for one in found}
        kept: set[str] = set()
        for key, tasks in unfinished.items():
            session = left.get(key) if tasks[0][0].begun else None
            self._contexts[key].restore(tasks, session, lost)
            kept |= {session.id} if session else set()
        for gone in {one.id for one in stored.sessions} - kept:
            self._store.append([SessionClosed(gone)], fence=None)
        return kept

    # --- several servers -----------------------------------------------------------------------

    def doubt(self, doubtful: bool) -> None:
        """Another server may take the contexts from now on, or not any more: their tasks cannot be
        read meanwhile, and the time of paused CLIs does not count."""
        self.tasks.in_doubt = doubtful
        for context in self:
            context.pause(doubtful)

    def lose(self, keep: bool) -> Sequence[str]:
        """Other servers own the contexts: end all logs without another update, and kill the CLIs.
        With `keep`, those of pinned contexts live on. Returns the markers of their sessions."""
        return [marker for context in self for marker in context.lose(keep)]

    # --- the end of a context ------------------------------------------------------------------

    def abandon(self, handle: TaskHandle) -> Sequence[TaskHandle]:
        """Stop the context of the task, because another server owns it. Returns its unfinished
        tasks."""
        context = self._contexts.pop(handle.context, None)
        if context is None:
            return ()
        closing = asyncio.create_task(context.shut_down())
        self._closing.add(closing)  # the loop holds only weak references
        closing.add_done_callback(self._closing.discard)
        return context.abandon()

    def remove_cold(self, most: int, owner: str | None = None) -> int:
        """Forget the oldest contexts without a session, until `most` are left. `owner`: only those
        of this owner count. Returns the number of removed ones."""
        if len(self._contexts) <= most:
            return 0
        found = [key for key in self._contexts if owner in (None, key.owner)]
        excess = len(found) - most
        cold = [key for key in found if excess > 0 and self._contexts[key].lease.cold]
        for key in cold[: max(excess, 0)]:
            lease = self._contexts.pop(key).lease
            self._store.append([ContextRemoved(key)], fence=lease.fence)
        return min(len(cold), max(excess, 0))
