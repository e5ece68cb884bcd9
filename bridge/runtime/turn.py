"""The turn of one task in the session of its context."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from bridge.adapter import CONFIGURATION, Prompt, SessionOptions, SessionStart
from bridge.adapter.input import AdapterInput
from bridge.errors import InputUnknown, LaunchError, WorkspaceError
from bridge.runtime.agent import Agent
from bridge.runtime.lease import Lease, StoredSession
from bridge.runtime.questions import (
    PROJECT_CONFIG,
    TOO_MANY,
    Questions,
    allows,
    decision,
    give_up,
)
from bridge.runtime.recorder import Recorder
from bridge.session.blame import culprit, failure_of
from bridge.session.session import Session
from bridge.store.handle import TaskHandle
from bridge.store.serialization import micros
from bridge.task.events import (
    SESSION_LOST,
    Answer,
    Answered,
    Canceled,
    Event,
    Failed,
    Interrupted,
    Prompted,
    Question,
    Queued,
    Reply,
    Started,
    Status,
    Steered,
    Text,
    Thought,
    TimedOut,
)
from bridge.task.message import Message
from bridge.task.silence import silence
from bridge.task.transitions import TaskState
from bridge.telemetry.tracing.context import traced

log = logging.getLogger(__name__)

FORGOTTEN = "The agent does not remember this turn: its model was still answering."


class Turn:
    """`prompt` begins the turn. `left` is the session in which an earlier server began the turn.
    `active`: the turn has begun and has not ended."""

    def __init__(
        self,
        handle: TaskHandle,
        prompt: Message,
        agent: Agent,
        *,
        recorder: Recorder,
        questions: Questions,
        lease: Lease,
        left: StoredSession | None = None,
    ) -> None:
        self.handle = handle
        self.prompt = prompt
        self.left = left
        self.active = False
        self._agent = agent
        self._recorder = recorder
        self._questions = questions
        self._lease = lease
        self._before: SessionStart | None = None  # without the choices of the prompt
        self._notice: Status | None = None  # for the first output
        self._choices = prompt.choices or {}
        answers = filter(None, (update.answer for update in handle.task.reported))
        self._approvals = {option.kind for one in answers for option in one.options}

    @property
    def ended(self) -> bool:
        return self.handle.task.state.terminal

    async def run(self) -> None:
        """Run the turn to its end. An exception becomes the failure of the task."""
        self.active = True
        try:
            try:
                await (self._resume(self.left) if self.left else self._begin())
            except (LaunchError, OSError):
                self._agent.check(self._lease.start.cwd)  # the directory may be the cause
                raise
        except Exception as error:
            self.apply(_failure(error, self.handle.task.id))
        finally:
            self.active = False

    async def _begin(self) -> None:
        attachments = self._agent.attachments
        try:
            self._agent.check(self._lease.start.cwd)
            message, left = attachments.read(self.prompt)
            if left:
                text = (
                    f"Left out of the message, since this agent does not read it: {', '.join(left)}"
                )
                self.apply(Status(text, {"type": "left_out", "mediaTypes": left}))
            message = await attachments.save(self._lease.key, self.handle.task.id, message)
            session = await self._live_session()
            if session:
                options = SessionOptions(**self._choices)
                given = session.told("prompt", message, options=options)
                if not session.adapter.handshaking:
                    self.prompted()  # committed together with the input
                give = partial(session.prompt, Prompt.of(message, options))
                begin = partial(self._give, session, given, give)
                await session.run(begin, self._receive, self.prompted, self._quiet)
        finally:
            if not (self._lease.session and self._lease.session.lasts):
                await self._lease.close()

    async def _resume(self, left: StoredSession) -> None:
        try:
            self._lease.attach(left)
        except Exception as error:
            log.exception("a session cannot be continued", extra={"task": self.handle.task.id})
            text = "The server restarted and does not know which input the agent got."
            reason = "restart" if isinstance(error, InputUnknown | OSError) else "adapter-error"
            if adapter := culprit(error):
                text = failure_of(adapter, error).text
            self.apply(Interrupted(text, reason))
        session = self._lease.session
        assert session
        try:
            if not self.ended:
                waiting = self.handle.task.state.interrupted
                self._watch()
                if not session.adapter.handshaking:
                    self.prompted()
                begin = partial(session.go_on, waiting)
                await session.run(begin, self._receive, self.prompted, self._quiet)
        finally:
            if self.handle.task.state is not TaskState.COMPLETED or not session.lasts:
                await self._lease.close()

    def prompted(self) -> None:
        """The CLI has the prompt. A task that a direct reply may replace stays hidden until the
        first output of the agent, unless a client already knows the task."""
        unknown = self._agent.replies and not self.handle.shown
        if self.handle.task.state is TaskState.SUBMITTED and not unknown:
            slot = self._lease.slot_at if self.prompt.trace else None
            self.apply(Prompted(self._lease.began, micros(slot)) if slot else Prompted())

    async def _live_session(self) -> Session | None:
        """The idle session, or a new session when a slot is free. None: the task has ended."""
        self._before = self._lease.start
        changed, session = self._lease.choose(self._choices), self._lease.session
        if session and not set(session.adapter.changes).issuperset(changed):
            await self._lease.close()
        await self._lease.prepare(self._agent.attachments.folder(self._lease.key))
        span = traced(self.handle.task)
        self._lease.traceparent = span.header if span else None
        if self._lease.session is None:
            await self._ask_for_trust()
        if self.ended:
            return None
        return await self._lease.acquire(lambda: not self.ended, self._queued)

    def _queued(self, ahead: int, answers: int) -> None:
        if not self.handle.task.queued:
            facts = {"task": self.handle.task.id, "ahead": ahead, **self._lease.pool.figures()}
            log.info("task waits for a slot", extra=facts)
        self.apply(Queued(ahead, answers))

    async def _ask_for_trust(self) -> None:
        """Ask whether the CLI may use the project files. Without permission, the task fails if the
        bridge cannot prevent their use."""
        task, cwd = self.handle.task, self._lease.start.cwd
        if self._lease.start.trusted is None and not self.ended:
            question = self._questions.project_question(cwd)
            if question and not task.question:
                self.apply(question)
            self._watch()
            while task.question:
                await self.handle.log.changed()
        trusted = self._lease.start.trusted
        found = None if trusted else self._questions.project_report(cwd)
        if isinstance(found, Failed):
            self.apply(found)
        elif trusted is None:
            self._notice = found

    # --- events --------------------------------------------------------------------------------

    def _receive(self, events: Sequence[Event]) -> None:
        happened: list[Event] = []
        decided: list[tuple[Question, Answer]] = []
        for event in events:
            match event:
                case Text():  # first, because most events are texts
                    pass
                case Started():
                    self._note(event)
                case Failed(reason=reason) if reason == CONFIGURATION and self._before:
                    self._lease.restore(self._before)
                case Failed(reason=reason) if reason == SESSION_LOST:
                    self._lease.remember(str(uuid.uuid4()), resume=False)
                case Question():
                    cwd = self._lease.start.cwd
                    asked = self._questions.prepared(event, cwd)
                    answer = self._questions.decide(asked, cwd)
                    if answer:
                        decided.append((asked, answer))
                        self._recorder.note_decision(self.handle, asked, answer)
                    happened.append(decision(asked, answer) if answer else asked)
                    continue
            happened.append(event)
        if self._notice:
            self._add_notice(happened)
        self.apply(*happened)
        for question, answer in decided:
            self._settle(question, answer)

    def _add_notice(self, happened: list[Event]) -> None:
        """Put the notice before the first output. A direct reply has no place for it."""
        if self._notice and Reply not in map(type, happened):
            happened.insert(0, self._notice)
            self._notice = None
            self._lease.trust(False)

    def _note(self, started: Started) -> None:
        """Record the conversation of the CLI, and its mode."""
        session, session_id = self._lease.session, started.session_id
        resumes = session and "resume" not in session.adapter.limitations
        # The id may become an argument of a command.
        if resumes and session_id and not session_id.startswith("-"):
            self._lease.remember(session_id, resume=True)
        if started.mode:
            self._lease.note_mode(started.mode, self._approvals)

    def _quiet(self, seconds: float) -> None:
        """The CLI has said nothing for so many seconds."""
        self.apply(silence(self.handle.task, seconds, datetime.now(UTC)))

    def apply(self, *events: Event) -> None:
        """Apply `events` to the task, without thoughts that the operator forbids."""
        session, handle = self._lease.session, self.handle
        if not self._agent.thoughts:
            events = tuple(event for event in events if type(event) is not Thought)
        before = handle.task.state
        self._recorder.record(handle, events, read=self._lease.read if self.active else None)
        if session:
            self._recorder.slow_down(session.pause)
        state = handle.task.state
        if self.active and (state is not before or state.interrupted):
            self._watch()
            if session and not state.terminal:
                session.waiting(state.interrupted)
        most = self._agent.most_bytes
        if most and max(handle.size, handle.audited) > most and not state.terminal:
            self.end(_too_large(most))

    def end(self, event: Event) -> None:
        """End the task. The CLI gets an interrupt after the commit: a crash between the two would
        otherwise record a failure."""
        session = self._lease.session if self.active else None
        if session and session.adapter.forgets and isinstance(event, Canceled):
            event = Canceled(f"{event.text} {FORGOTTEN}")
        pending = session.streams.pending_output() if session and not self.ended else ()
        self.apply(*pending, event)
        if session:
            self._recorder.after_commit(partial(session.begin_stop, interrupt=True))
        self._lease.wake()

    def answer(self, message: Message, by: str) -> None:
        """Give `message` of the principal with the id `by` to the open question."""
        question = self.handle.task.question
        assert question
        read = self._questions.read(self.handle.task, message, by=by, now=datetime.now(UTC))
        if isinstance(read, Answered):
            self._settle(question, read.answer, read)
        else:
            self.apply(read)

    def steer(self, message: Message) -> None:
        """Add `message` to the turn."""
        session, task = self._lease.session, self.handle.task
        prompt = Prompt.of(replace(message, task_id=task.id, context_id=task.context_id))
        given = session.told("steer", prompt.message) if session else None
        self.apply(Steered(replace(message, context_id=task.context_id)))
        if session and given:
            self._give(session, given, partial(session.steer, prompt))

    def _settle(self, question: Question, answer: Answer, *events: Event) -> None:
        """Apply `events`, and give the CLI the answer to its question."""
        session = self._lease.session
        self._approvals |= {option.kind for option in answer.options}
        if question.id == PROJECT_CONFIG and not session:
            self._lease.trust(allows(answer))
        self.apply(*events)
        if session:
            given = session.told("answer", question=question, answer=answer)
            self._give(session, given, partial(session.answer, question, answer))

    def _give(self, session: Session, given: AdapterInput, give: Callable[[], None]) -> None:
        """Give the CLI an input after its commit, so that no server gives it twice. Reading pauses
        until then, so that the recorded position of the output stays exact."""

        def then() -> None:
            if not self.ended:
                give()
            session.pause(False)

        session.pause(True)
        session_id = session.spool.name if session.spool else None
        self._recorder.record_input(self.handle, given, session_id=session_id, then=then)

    def _watch(self) -> None:
        """Start or stop the timer of the open question."""
        question = self.handle.task.question
        if question is self._questions.watched:
            return
        on_timeout = partial(self._give_up, question)
        now = datetime.now(UTC)
        waited = now - (self.handle.task.asked_at or now)
        self._questions.watch(question, waited, on_timeout)
        if question:
            since = self.handle.task.status_time
            self._lease.wait(since, partial(on_timeout, TOO_MANY, "limit"))
        else:
            self._lease.work()

    def _give_up(self, question: Question | None, text: str, by: str) -> None:
        if question is None or self.handle.task.question is not question:
            return
        end = give_up(question, text, by)
        if isinstance(end, TimedOut):
            self.end(end)
        else:
            answer, note = end
            self._settle(question, answer, Answered(answer), note)


def _too_large(most: int) -> TimedOut:
    text = f"The task took more than {most} bytes and was stopped (BRIDGE_MAX_TASK_BYTES sets the"
    return TimedOut(f"{text} limit). The next message continues the conversation.", "task-size")


def _failure(error: Exception, task_id: str) -> Failed:
    """The end of a task after its turn raised `error`."""
    match error:
        case WorkspaceError():
            log.warning(str(error), extra={"task": task_id})
            text = (
                f"The agent cannot work in {error.name}: {error.cause}. Restore the directory, or "
                "begin a new context in another one."
            )
            return Failed(text, "workspace", {"path": error.name, "cause": error.cause})
        case LaunchError():
            log.warning(str(error), extra={"task": task_id})
            text = f"The agent could not be started: {error.problem}. The server's log says more."
            return Failed(text, "launch")
    if adapter := culprit(error):
        return failure_of(adapter, error)
    log.error("turn failed", exc_info=error, extra={"task": task_id})
    return Failed("Internal error; the server's log has it.", "internal")
