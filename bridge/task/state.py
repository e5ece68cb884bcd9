"""The task, and the updates for subscribers. transitions.py has its states.

The events of both parties, agent and client, go through Task.apply().

This module does not wait, read a clock or know a protocol version. render.py makes the texts of
status updates, for a reader only.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import assert_never

from bridge.task.artifact import ANSWER_ID, GAP, SUBAGENT, Artifact, ArtifactUpdate, end_of
from bridge.task.events import (
    Answer,
    Answered,
    ArtifactChunk,
    Canceled,
    Done,
    Event,
    Failed,
    Interrupted,
    NotUnderstood,
    Plan,
    Prompted,
    Question,
    QuestionWithdrawn,
    Queued,
    Rejected,
    Reply,
    Retracted,
    Started,
    Status,
    Steered,
    Text,
    Thought,
    TimedOut,
    ToolCall,
    ToolResult,
    Usage,
    bounded,
)
from bridge.task.message import Message
from bridge.task.transitions import PROGRESS, TRANSITIONS, IllegalTransition, TaskState

WORDLESS = "The agent ended its turn without a word."
Progress = Started | Status | Thought | ToolCall | ToolResult | Plan | Queued
Conversation = Prompted | Question | QuestionWithdrawn | Answered | NotUnderstood | Steered


@dataclass(frozen=True, slots=True)
class StatusUpdate:
    """A status without its text (see render.py). `event`: the cause; None for a change of state
    without a text. `number`: the number of its message in the task; None if it has none. `hint`:
    the problem of the last answer, for a question that is asked again. `usage`: the usage of the
    turn, on the terminal update. `answer`: the answer that closed a question."""

    state: TaskState
    time: datetime
    event: Event | None = None
    number: int | None = None
    hint: str = ""
    usage: Usage | None = None
    answer: Answer | None = None


Update = StatusUpdate | ArtifactUpdate


@dataclass(slots=True)
class Task:
    """One turn of one CLI session, with all data that a client may request about it.

    `history` has the messages of clients, and the updates that have a message: a question or an
    end at once, progress when the next status replaces it. `status`: the update that brought the
    newest status, unless a message of the client came after it. `reported`: the updates that have
    metadata. `reply`: the update of a direct reply, sent instead of the task.
    """

    id: str
    context_id: str
    created: datetime
    show_thoughts: bool = False
    owner: str = ""  # id of the principal that owns the task
    attended: bool = False  # the task is canceled when it has no listener
    state: TaskState = TaskState.SUBMITTED
    status_time: datetime = field(init=False)
    status: StatusUpdate | None = None
    history: list[Message | StatusUpdate] = field(default_factory=list)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    reported: list[StatusUpdate] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    asked: int = 0  # questions that clients have seen
    asked_at: datetime | None = None  # time when the last of them was published
    reply: StatusUpdate | None = None
    queued: Queued | None = None  # set while the task waits for a slot
    _usage: Usage | None = None
    _held: list[Event] = field(default_factory=list)  # progress made while a question is open
    _messages: int = 0
    _told: bool = False  # clients have seen words on progress

    def __post_init__(self) -> None:
        self.status_time = self.created

    @property
    def question(self) -> Question | None:
        """The open question; several questions are asked one after the other."""
        return self.questions[0] if self.questions else None

    def blank_copy(self) -> Task:
        """The task before its first event, without its prompt."""
        facts = self.show_thoughts, self.owner, self.attended
        return Task(self.id, self.context_id, self.created, *facts)

    def head(self) -> Task:
        """The task without its content: enough to find, list and drop it."""
        head = self.blank_copy()
        head.state, head.status_time = self.state, self.status_time
        return head

    def outline(self) -> Task:
        """The task without its artifacts."""
        outline = self.head()
        outline.status, outline.reported = self.status, self.reported
        outline.history = self.history
        return outline

    def snapshot(self) -> Task:
        """A copy that another thread can read while this task changes."""
        snapshot = copy(self)
        snapshot.history, snapshot.reported = [*self.history], [*self.reported]
        snapshot.artifacts = {name: one.snapshot() for name, one in self.artifacts.items()}
        return snapshot

    def drop_content(self) -> None:
        """Free the content. Later updates stay the same, except those of Retracted."""
        self.history.clear()
        for artifact in self.artifacts.values():
            artifact.drop_content()

    def apply(self, event: Event, now: datetime) -> list[Update]:
        """Apply `event`. Returns the updates for all subscribers, in order.

        Raises IllegalTransition if the table has no such event in this state.
        """
        before, targets = self.state, TRANSITIONS[self.state].get(type(event))
        if targets is None:
            raise IllegalTransition(f"{type(event).__name__} in {before.value}")
        if self.questions and isinstance(event, PROGRESS):
            self._held.append(event)
            return []
        self.queued = None
        updates = self._apply(event, targets[0], now)
        if self.state not in (before, *targets):
            raise IllegalTransition(f"{type(event).__name__}: {before} to {self.state}")
        return updates

    def _apply(self, event: Event, target: TaskState, now: datetime) -> list[Update]:
        match event:
            case Text():
                updates = self._enter(target, now) if target is not self.state else []
                return updates + self._add_text(event)
            case Retracted():
                answer = self.artifacts.get(ANSWER_ID)
                retracted = [answer.retract(event.length)] if answer else []
                return [*self._enter(target, now), *retracted]
            case ArtifactChunk():
                return [*self._enter(target, now), self._add_chunk(event)]
            case Started() | Thought() | Status() | ToolCall() | ToolResult() | Plan() | Queued():
                return self._progress(event, target, now)
            case Usage():
                self._usage = event
                return []
            case (
                Prompted()
                | Question()
                | QuestionWithdrawn()
                | Answered()
                | NotUnderstood()
                | Steered()
            ):
                return self._converse(event, target, now)
            case Done():
                return self._done(event, target, now)
            case Reply() | Failed() | Rejected() | Canceled() | TimedOut() | Interrupted():
                return self._finish(event, target, now, self._next_number())
            case _:
                assert_never(event)

    def _progress(self, event: Progress, target: TaskState, now: datetime) -> list[Update]:
        if isinstance(event, Thought) and not self.show_thoughts:
            return []
        if isinstance(event, Queued):
            self.queued = event
        self._told = self._told or isinstance(event, Status)
        number = None if isinstance(event, Started) else self._next_number()
        return [self._change(target, now, event, number)]

    def _converse(self, event: Conversation, target: TaskState, now: datetime) -> list[Update]:
        match event:
            case Prompted():
                return self._enter(target, now)
            case Question():
                self.questions.append(event)
                return [self._ask(event, now)] if len(self.questions) == 1 else []
            case QuestionWithdrawn():
                return self._settle(event.id, now)
            case Answered():
                self._hear(event.answer.message)
                return self._settle(event.answer.question_id, now, event.answer)
            case Steered():
                self._hear(event.message)
                return [self._change(target, now, event)]
            case NotUnderstood():
                self._hear(event.message)
                return [self._ask(self.questions[0], now, event.hint)]
            case _:
                assert_never(event)

    def _enter(self, target: TaskState, now: datetime) -> list[Update]:
        """A status update without a message, if the state changes."""
        return [self._change(target, now)] if target is not self.state else []

    def _add_text(self, event: Text) -> list[ArtifactUpdate]:
        artifact_id, name = ANSWER_ID, "Assistant response"
        if event.parent is not None:
            artifact_id, name = f"{SUBAGENT}{event.parent}", "Sub-agent output"
        artifact = self.artifacts.get(artifact_id)
        if artifact is None:
            new = self.artifacts[artifact_id] = Artifact(artifact_id, name)
            return new.add_text(event.text, event.new_block, append=False)
        return artifact.add_text(event.text, event.new_block)

    def _add_chunk(self, event: ArtifactChunk) -> Update:
        artifact = self.artifacts.get(event.id)
        append = event.append and artifact is not None
        if artifact is None or not append:
            artifact = Artifact(event.id, event.name, event.description, event.metadata)
            self.artifacts[event.id] = artifact
        return artifact.add_chunk(event, append)

    def _ask(
        self,
        question: Question,
        now: datetime,
        hint: str | None = None,
        answer: Answer | None = None,
    ) -> Update:
        """Ask a question, or ask it again: `hint` is the problem of the last answer. `answer`: the
        one to the question before."""
        if hint is None:
            self.asked, self.asked_at = self.asked + 1, now
        state = TaskState.AUTH_REQUIRED if question.kind == "auth" else TaskState.INPUT_REQUIRED
        number, asked = self._next_number(), bounded(question)
        if question.patience:  # an answer that is not understood does not prolong the time
            passed = (now - (self.asked_at or now)).total_seconds()
            asked = replace(asked, patience=max(0.001, question.patience - passed))
        return self._change(state, now, asked, number, hint=hint or "", answer=answer)

    def _settle(
        self, question_id: str, now: datetime, answer: Answer | None = None
    ) -> list[Update]:
        """The question is answered or withdrawn: ask the next one, or continue."""
        first = self.question
        refused = answer and answer.option and answer.option.kind.startswith("reject")
        form = next((q.form for q in self.questions if q.id == question_id and refused), "")
        self.questions = [
            q for q in self.questions if q.id != question_id and not (form and q.form == form)
        ]
        if first is None or first.id != question_id:
            return []
        if self.question:
            return [self._ask(self.question, now, answer=answer)]
        updates: list[Update] = [self._change(TaskState.WORKING, now, answer=answer)]
        held, self._held = self._held, []
        for event in held:
            updates += self.apply(event, now)
        return updates

    def _done(self, event: Done, target: TaskState, now: datetime) -> list[Update]:
        """Many clients show only the final status, others only the artifacts. So both have the last
        words: the event of the update has them as its text."""
        artifact = self.artifacts.get(ANSWER_ID)
        said = artifact.last_block if artifact else ""
        words = (event.summary or "").strip() or said
        more = (event.text or "").strip()
        words = words if more in words else f"{words}{GAP}{more}".strip()
        updates = self._add_text(Text(words, new_block=True)) if words and not said else ()
        words = words or ("" if self.artifacts or self._told else WORDLESS)
        number = self._next_number() if words else None
        said_last = Done(end_of(words), details=event.details)
        return self._finish(said_last, target, now, number, before=updates)

    def _finish(
        self,
        event: Event,
        target: TaskState,
        now: datetime,
        number: int | None,
        *,
        before: Sequence[Update] = (),
    ) -> list[Update]:
        """The last updates of the task; the terminal status comes last."""
        self.questions.clear()
        updates: list[Update] = []
        for held in self._held:
            updates += self._apply(held, TaskState.WORKING, now)
        self._held = []
        updates += before
        updates += [artifact.close() for artifact in self.artifacts.values() if artifact.open]
        end = self._change(target, now, event, number, usage=self._usage)
        if isinstance(event, Reply):
            self.reply = end
        return [*updates, end]

    def _change(
        self,
        state: TaskState,
        now: datetime,
        event: Event | None = None,
        number: int | None = None,
        *,
        hint: str = "",
        usage: Usage | None = None,
        answer: Answer | None = None,
    ) -> StatusUpdate:
        self._remember(self.status)
        update = StatusUpdate(state, now, event, number, hint=hint, usage=usage, answer=answer)
        self.state, self.status_time, self.status = state, now, update
        if state.terminal or state.interrupted:
            self._remember(update)
        if state.terminal or answer or isinstance(event, Started | Steered):
            self.reported.append(update)
        return update

    def _next_number(self) -> int:
        self._messages += 1
        return self._messages

    def _hear(self, message: Message | None) -> None:
        """Put the client's message into the history, after the question that it answers."""
        self._remember(self.status)
        self.status = None
        if message:
            self._remember(replace(message, task_id=self.id, context_id=self.context_id))

    def _remember(self, said: Message | StatusUpdate | None) -> None:
        last = self.history[-1] if self.history else None
        if said is None or (isinstance(said, StatusUpdate) and said.number is None):
            return
        if said != last:  # clients may give one id to several messages
            self.history.append(said)
