"""A context: one conversation with one CLI session. Its tasks run one after the other.

The session is kept warm between turns, and given up when it has been idle for too long or when
another context needs its place; the next message resumes the CLI's own conversation.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from bridge.adapter import Adapter, AgentConfig, Prompt, SessionOptions, SessionStart
from bridge.errors import LaunchError
from bridge.events import (
    SESSION_LOST,
    Answered,
    Canceled,
    Event,
    Failed,
    Interrupted,
    NotUnderstood,
    Started,
)
from bridge.message import Message
from bridge.question import hint, read_answer
from bridge.session import Limits, Session
from bridge.store.memory import Record
from bridge.task import Update

log = logging.getLogger(__name__)


class Agent:
    """What a context needs to know of the agent behind it: how to make one of its sessions."""

    def __init__(
        self,
        adapter: Callable[[AgentConfig, SessionStart], Adapter],
        config: AgentConfig,
        environment: Mapping[str, str],
        limits: Limits,
        idle_seconds: float,
    ) -> None:
        self._adapter = adapter
        self._config = config
        self._environment = environment
        self._limits = limits
        self.idle_seconds = idle_seconds

    def session(self, start: SessionStart) -> Session:
        return Session(self._adapter(self._config, start), self._environment, self._limits)


class SessionPool:
    """The places for live sessions. A context that has none waits its turn for one; a warm but
    idle session gives up its place to whoever waits."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._contexts: dict[Context, None] = {}  # those that hold a place, longest idle first
        self._queue: deque[object] = deque()
        self._changed: asyncio.Future[None] | None = None

    async def enter(self, context: Context, wanted: Callable[[], bool]) -> None:
        """Wait for a place; come back without one when it is `wanted` no more (see notify)."""
        if context in self._contexts:
            return
        ticket = object()
        self._queue.append(ticket)
        try:
            while wanted() and not (self._queue[0] is ticket and await self._make_room()):
                await self._wait()
            if wanted():
                self._contexts[context] = None
        finally:
            self._queue.remove(ticket)
            self.notify()

    def leave(self, context: Context) -> None:
        self._contexts.pop(context, None)
        self.notify()

    def rest(self, context: Context) -> None:
        """The context's session has nothing to do: it is now the last to be given up."""
        if context in self._contexts:
            del self._contexts[context]
            self._contexts[context] = None
        self.notify()

    def notify(self) -> None:
        """Those who wait shall look again."""
        if self._changed and not self._changed.done():
            self._changed.set_result(None)
        self._changed = None

    async def _make_room(self) -> bool:
        if len(self._contexts) >= self._limit:
            idle = next((context for context in self._contexts if context.idle), None)
            if idle:
                await idle.close()
        return len(self._contexts) < self._limit

    async def _wait(self) -> None:
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)


class Context:
    """`cwd` never changes, the CLI's conversation goes on; the process that serves it may change.

    `finished` is told of each task that has come to its end, `changed` of every update.
    """

    def __init__(
        self,
        context_id: str,
        cwd: str,
        options: SessionOptions,
        agent: Agent,
        pool: SessionPool,
        finished: Callable[[Record], None],
        changed: Callable[[Record, Sequence[Update]], None] = lambda record, updates: None,
    ) -> None:
        self.id = context_id
        self.cwd = cwd
        self.options = options
        self._agent = agent
        self._pool = pool
        self._finished = finished
        self._changed = changed
        self._queue: deque[tuple[Record, Message]] = deque()
        self._current: Record | None = None
        self._worker: asyncio.Task[None] | None = None
        self._start = SessionStart(cwd, str(uuid.uuid4()), options=options)
        self._session: Session | None = None
        self._closing: asyncio.Task[None] | None = None
        self._idle_timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Context {self.id} {'idle' if self.idle else 'busy'} {self._session}>"

    @property
    def idle(self) -> bool:
        return self._worker is None

    @property
    def only_task(self) -> Record | None:
        """The task that runs, if no other one waits behind it."""
        return self._current if not self._queue else None

    @property
    def queued(self) -> int:
        """How many tasks wait behind the one that runs."""
        return sum(not record.task.state.terminal for record, _ in self._queue)

    @property
    def cold(self) -> bool:
        """Nothing runs or is kept warm: all that would be forgotten is the conversation's id."""
        return self.idle and self._session is None and self._closing is None

    # --- what clients do -----------------------------------------------------------------------

    def submit(self, record: Record, message: Message) -> None:
        """Queue a turn: `message` is its prompt."""
        self._queue.append((record, message))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())

    def answer(self, record: Record, message: Message) -> None:
        """`message` is for the open question of `record`."""
        question = record.task.question
        assert question
        answer = read_answer(question, message)
        if answer is None:
            self._apply(record, NotUnderstood(message, hint(question)))
            return
        self._apply(record, Answered(answer))
        if self._session:
            self._session.answer(question, answer)

    def cancel(self, record: Record) -> None:
        """The task is canceled now; its CLI is told to stop now, and the worker waits for that."""
        self._end(record, Canceled())

    async def shut_down(self) -> None:
        """End all tasks and the session, and wait until its processes are gone."""
        text = "The bridge was shut down before the task had ended."
        for record in [*(record for record, _ in self._queue), self._current]:
            if record and not record.task.state.terminal:
                self._end(record, Interrupted(text))
        if self._worker:
            await asyncio.wait([self._worker])
        await self.close()

    def kill(self) -> None:
        """End the session's processes at once, without waiting."""
        if self._session:
            self._session.kill()

    def _end(self, record: Record, event: Canceled | Interrupted) -> None:
        if record is self._current and self._session:
            self._session.begin_stop(interrupt=True)
        self._apply(record, event)
        self._pool.notify()  # it may have waited for a place

    # --- the worker ----------------------------------------------------------------------------

    async def _work(self) -> None:
        if self._idle_timer:
            self._idle_timer.cancel()
        try:
            while self._queue:
                self._current, message = self._queue.popleft()
                await self._turn_or_fail(self._current, message)
        finally:
            self._current = None
            self._worker = None
            self._rest()

    async def _turn_or_fail(self, record: Record, message: Message) -> None:
        try:
            await self._turn(record, message)
        except LaunchError as error:
            self._apply(record, Failed(f"The agent could not be started: {error}.", "launch"))
        except Exception:
            log.exception("turn failed", extra={"task": record.task.id})
            self._apply(record, Failed("Internal error; the server's log has it.", "internal"))

    async def _turn(self, record: Record, message: Message) -> None:
        try:
            session = await self._live_session(record)
            if session:
                prompt = Prompt(record.task.id, self.id, message)
                await session.run(prompt, lambda events: self._receive(record, events))
        finally:
            if not (self._session and self._session.healthy):
                await self.close()

    async def _live_session(self, record: Record) -> Session | None:
        """The warm session, or a new one as soon as there is a place. None: the task was
        canceled meanwhile."""
        if not (self._session and self._session.healthy):
            await self.close()
        if not record.task.state.terminal:
            await self._pool.enter(self, lambda: not record.task.state.terminal)
        if self._session is None and not record.task.state.terminal:
            session = self._agent.session(self._start)
            await session.open()
            self._session = session
            if record.task.state.terminal:  # canceled while it started: leave nothing behind
                await self.close()
        return None if record.task.state.terminal else self._session

    def _receive(self, record: Record, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Started) and event.session_id:
                self._start = replace(self._start, session_id=event.session_id, resume=True)
            elif isinstance(event, Failed) and event.reason == SESSION_LOST:
                self._start = replace(self._start, session_id=str(uuid.uuid4()), resume=False)
        self._apply(record, *events)

    def _apply(self, record: Record, *events: Event) -> None:
        """Let `events` happen to the task, up to its end; then its log is closed for good."""
        task = record.task
        if task.state.terminal:
            log.debug("event after the end", extra={"task": task.id, "events": len(events)})
            return
        now = datetime.now(UTC)
        for event in events:
            updates = task.apply(event, now)
            record.log.append(updates)
            self._changed(record, updates)
            if task.state.terminal:
                record.log.close()
                self._finished(record)
                return
        if record is self._current and self._session:
            self._session.waiting(task.state.interrupted)

    # --- the session's end ---------------------------------------------------------------------

    def _rest(self) -> None:
        """The turns are done: keep the session warm for a while."""
        self._pool.rest(self)
        if self._session:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(self._agent.idle_seconds, self._expire)

    def _expire(self) -> None:
        if self.idle:
            self._begin_close()

    def _begin_close(self) -> None:
        if self._session:
            self._closing = asyncio.create_task(self._close(self._session))
            self._session = None

    async def close(self) -> None:
        """Give up the session, if there is one; wait until its processes are gone."""
        self._begin_close()
        while self._closing:
            await asyncio.shield(self._closing)
        self._pool.leave(self)

    async def _close(self, session: Session) -> None:
        if self._idle_timer:
            self._idle_timer.cancel()
        try:
            await session.stop()
        finally:
            if not self._start.resume:  # an id that was tried once may be taken
                self._start = replace(self._start, session_id=str(uuid.uuid4()), resume=False)
            self._closing = None
            self._pool.leave(self)
