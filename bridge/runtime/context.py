"""A context: one conversation with one CLI session. Its tasks run one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from bridge.runtime.agent import Agent
from bridge.runtime.lease import Lease, StoredSession
from bridge.runtime.questions import Questions
from bridge.runtime.recorder import Recorder
from bridge.runtime.turn import Turn
from bridge.store.handle import TaskHandle
from bridge.task.events import Canceled, Interrupted
from bridge.task.message import Message
from bridge.task.rules.approval_policy import Rule
from bridge.task.transitions import TaskState


class Context:
    """The queue of one conversation, and its worker. `lease` holds its session."""

    def __init__(
        self, agent: Agent, *, recorder: Recorder, questions: Questions, lease: Lease
    ) -> None:
        self.id = lease.fence.context.id
        self.lease = lease
        self._agent = agent
        self._recorder = recorder
        self._questions = questions
        self._turn = partial(Turn, agent=agent, recorder=recorder, questions=questions, lease=lease)
        self._current: Turn | None = None
        self._queue: list[Turn] = []
        self._worker: asyncio.Task[None] | None = None
        self._detached = False

    @property
    def current(self) -> TaskHandle | None:
        """The task that has the turn."""
        return self._current.handle if self._current else None

    @property
    def only_task(self) -> TaskHandle | None:
        """The running task, if no other task waits behind it."""
        return self.current if not self._queue else None

    @property
    def queued(self) -> int:
        """The number of tasks that wait behind the running task."""
        return sum(not turn.ended for turn in self._queue)

    def waits(self, handle: TaskHandle) -> bool:
        """Whether another task has its turn before `handle`."""
        return handle is not next((turn.handle for turn in self._turns()), None)

    def restore(
        self,
        tasks: Sequence[tuple[TaskHandle, Message]],
        session: StoredSession | None,
        lost: Interrupted,
    ) -> None:
        """Continue the unfinished tasks of an earlier server. The first task may have begun in
        `session`; a begun task without one ends with `lost`."""
        for handle, prompt in tasks:
            turn = self._turn(handle, prompt, left=session if handle.begun else None)
            if handle.begun and not session:
                turn.apply(lost)
            else:
                self._queue.append(turn)
        if self._queue:
            self._begin_work()

    def change_rules(self, rules: Sequence[Rule]) -> None:
        """Decide the next questions by these rules."""
        self._questions.change_rules(rules)

    # --- operations of clients -----------------------------------------------------------------

    def submit(self, handle: TaskHandle, message: Message) -> None:
        """Queue a turn: `message` is its prompt."""
        self._queue.append(self._turn(handle, message))
        if self._worker is None:
            self._begin_work()

    def answer(self, handle: TaskHandle, message: Message, by: str) -> None:
        """Give `message` of the principal with the id `by` to the open question of `handle`."""
        self._turn_of(handle).answer(message, by)

    def can_steer(self, handle: TaskHandle, message: Message) -> bool:
        """Whether `message` can join the turn of `handle`. The task must run without another task
        behind it, and the CLI must be able to read the message without a conversion."""
        running = handle is self.only_task and handle.task.state is TaskState.WORKING
        return running and self._agent.steers and self._agent.attachments.fits(message)

    def steer(self, handle: TaskHandle, message: Message) -> None:
        """Add `message` to the turn of `handle`."""
        self._turn_of(handle).steer(message)

    def shown(self, handle: TaskHandle) -> None:
        """A client knows the task from now on."""
        if self._agent.replies and self._current and self.current is handle and handle.begun:
            self._current.prompted()

    def cancel(self, handle: TaskHandle, reason: str | None = None) -> None:
        """End the task now and stop its CLI. The worker waits for the end of the CLI."""
        self._turn_of(handle).end(Canceled(reason) if reason else Canceled())

    def detach(self) -> Sequence[str]:
        """Leave the unfinished tasks to another server, unless a task runs in a session that cannot
        survive this server. Returns the marker of the session that survives."""
        session, turn = self.lease.session, self._current
        running = turn and turn.handle.begun and not turn.ended
        survives = session and session.spool and session.healthy
        if not self._recorder.durable or (running and not survives):
            return ()
        self._detached = True
        self._questions.close()
        for left in self._turns():
            if not left.ended:
                left.handle.log.close()  # its readers reconnect to the next server
        if self._worker:
            self._worker.cancel()
        return (self.lease.detach(),) if running else ()

    @property
    def movable(self) -> bool:
        """Whether any server can continue the context: nothing in it has begun."""
        begun = self.lease.session or self.lease.start.resume
        return not (begun or self._detached or any(t.handle.begun for t in self._turns()))

    def leave(self) -> Sequence[TaskHandle]:
        """Leave a movable context to another server. The readers of its tasks reconnect. Returns
        its unfinished tasks."""
        left = [turn.handle for turn in self._turns() if not turn.ended]
        self.detach()
        return left

    def abandon(self) -> Sequence[TaskHandle]:
        """Another server owns the context: stop the session, and end the logs of the unfinished
        tasks. Returns these tasks."""
        self._detached = True
        self._questions.close()
        lost = [turn.handle for turn in self._turns() if not turn.ended]
        for handle in lost:
            handle.lost = True
            handle.log.abandon()
        if self._worker:
            self._worker.cancel()
        self.lease.kill()
        return lost

    def lose(self, keep: bool) -> Sequence[str]:
        """See Contexts.lose()."""
        for turn in self._turns():
            if not turn.ended:
                turn.handle.lost = True
                turn.handle.log.abandon()
        kept = self.detach() if keep and self.lease.share is None else ()
        if not self._detached:
            self.abandon()
        return kept

    def pause(self, paused: bool) -> None:
        """Stop or resume the clock of the turn: the CLI of a movable context is frozen."""
        session, turn = self.lease.session, self._current
        if session and turn and self.lease.share is not None:
            session.waiting(paused or turn.handle.task.state.interrupted)

    async def shut_down(self) -> None:
        """End all tasks and the session. Returns after the end of its processes."""
        for turn in () if self._detached else self._turns():
            if not turn.ended:
                turn.end(Interrupted("The bridge was shut down before the task had ended."))
        if self._worker:
            await asyncio.wait([self._worker])
        await self.lease.close()

    # --- the worker ----------------------------------------------------------------------------

    def _turns(self) -> Sequence[Turn]:
        return [self._current, *self._queue] if self._current else list(self._queue)

    def _turn_of(self, handle: TaskHandle) -> Turn:
        return next(turn for turn in self._turns() if turn.handle is handle)

    def _begin_work(self) -> None:
        self.lease.engage()
        self._worker = asyncio.create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._queue:
                self._current = self._queue.pop(0)
                await self._current.run()
        finally:
            self._current = None
            self._worker = None
            self.lease.mark_idle()
