"""The task: its states, what may happen in each, and what subscribers are told.

Rule 1: everything that changes a task's state is in TRANSITIONS.
Rule 2: both parties' events, the agent's and the client's, go through Task.apply().

Nothing here waits, reads a clock or knows a protocol version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import Any, assert_never

from bridge.task import render
from bridge.task.events import (
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
)
from bridge.task.message import Message, Part, Role, TextPart

ANSWER_ID = "assistant-response"
LAST_WORDS = 64 * 1024  # characters of the answer that the final status repeats
GAP = "\n\n"  # between two blocks of an answer: clients join the pieces as they come
LOOSE = 256  # pieces of a text that are joined at once: each costs more than its few letters
MOST_TEXT = 512 * 1024  # characters in one update: the JS SDK takes 4 MiB per line of a stream


class TaskState(Enum):
    """A2A 1.0 §4.1.3. The values are the names of 0.3; 1.0 spells them TASK_STATE_…"""

    SUBMITTED = "submitted"
    WORKING = "working"
    INPUT_REQUIRED = "input-required"
    AUTH_REQUIRED = "auth-required"
    COMPLETED = "completed"
    CANCELED = "canceled"
    FAILED = "failed"
    REJECTED = "rejected"

    # Enum's own is a function in Python, which each event would call several times.
    __hash__ = object.__hash__

    terminal: bool
    """Nothing happens any more: there are no TRANSITIONS."""
    interrupted: bool
    """Waiting for the client (§3.2.2)."""


Progress = Started | Status | Thought | ToolCall | ToolResult | Plan | Queued
Conversation = Prompted | Question | QuestionWithdrawn | Answered | NotUnderstood | Steered

_PROGRESS = (Started, Status, Thought, ToolCall, ToolResult, Plan)
_OUTPUT = (*_PROGRESS, Text, Retracted, ArtifactChunk, Usage)
# What an event may lead to; the first is what it does unless its rule says otherwise.
Targets = tuple[TaskState, ...]

_WAITING: Targets = (TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED)
ENDINGS: Mapping[type, Targets] = {
    Done: (TaskState.COMPLETED,),
    Reply: (TaskState.COMPLETED,),
    Failed: (TaskState.FAILED,),
    Rejected: (TaskState.REJECTED,),
    Canceled: (TaskState.CANCELED,),
    TimedOut: (TaskState.FAILED,),
    Interrupted: (TaskState.FAILED,),
}
_RUNNING: dict[type, Targets] = {
    **dict.fromkeys(_OUTPUT, (TaskState.WORKING,)),
    QuestionWithdrawn: (TaskState.WORKING,),
    Prompted: (TaskState.WORKING,),
    Steered: (TaskState.WORKING,),
    Question: _WAITING,  # by its kind
    **ENDINGS,
}


def _waiting(state: TaskState) -> dict[type, Targets]:
    """Output of the agent does not answer the question that is open; the answer may bring the
    next question."""
    return {
        **dict.fromkeys((*_OUTPUT, Prompted, Question, NotUnderstood), (state,)),
        **dict.fromkeys((Answered, QuestionWithdrawn), (TaskState.WORKING, *_WAITING)),
        **ENDINGS,
    }


TRANSITIONS: Mapping[TaskState, Mapping[type, Targets]] = {
    TaskState.SUBMITTED: {**_RUNNING, Queued: (TaskState.SUBMITTED,)},
    # A question about the repository is answered before there is a slot.
    TaskState.WORKING: {**_RUNNING, Queued: (TaskState.WORKING,)},
    TaskState.INPUT_REQUIRED: _waiting(TaskState.INPUT_REQUIRED),
    TaskState.AUTH_REQUIRED: _waiting(TaskState.AUTH_REQUIRED),
    TaskState.COMPLETED: {},
    TaskState.CANCELED: {},
    TaskState.FAILED: {},
    TaskState.REJECTED: {},
}
for _state, _events in TRANSITIONS.items():
    _state.terminal, _state.interrupted = not _events, _state in _WAITING


class IllegalTransition(Exception):
    """The event cannot happen in this state: a bug of the caller, never of a client."""


@dataclass(frozen=True, slots=True)
class StatusUpdate:
    state: TaskState
    time: datetime
    message: Message | None = None
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ArtifactUpdate:
    """`append` adds `parts` to the artifact; otherwise it is created, or replaced."""

    artifact_id: str
    parts: tuple[Part, ...]
    name: str | None = None
    description: str | None = None
    append: bool = False
    last_chunk: bool = False
    metadata: Mapping[str, Any] | None = None


Update = StatusUpdate | ArtifactUpdate


@dataclass(slots=True)
class Artifact:
    """An artifact as it stands. Streamed text is kept in pieces and joined when it is read, and
    some of them now and then, so that appending costs the same however long the text has become."""

    id: str
    name: str | None = None
    description: str | None = None
    metadata: Mapping[str, Any] | None = None
    open: bool = True
    _parts: list[Part] = field(default_factory=list)
    _pieces: list[str] | None = None  # of the text part that is still growing, the last one
    _loose: int = 0  # those of them that were not joined yet, at the end

    def extend(self, parts: Iterable[Part]) -> None:
        self._join()
        self._parts.extend(parts)

    def add_text(self, text: str, new_block: bool) -> str:
        """Add a piece of text, and return it as it stands there: a new block begins with a blank
        line, unless the text before it ends in a newline."""
        if new_block or self._pieces is None:
            self._join()
            self._pieces = []
            text = self._gap() + text
        self._pieces.append(text)
        self._loose += 1
        if self._loose == LOOSE:
            self._pieces[-LOOSE:] = ["".join(self._pieces[-LOOSE:])]
            self._loose = 0
        return text

    def retract(self, length: int) -> None:
        """Take the last `length` characters of text away again, and the gaps between them."""
        self._join()
        while length > 0 and self._parts and isinstance(part := self._parts[-1], TextPart):
            self._parts.pop()
            said = len(part.text) - len(self._gap())
            if said > length:
                self._pieces = [part.text[:-length]]
            length -= said

    @property
    def last_block(self) -> str:
        """The text that was said last, without the gap before it."""
        last = self.parts[-1] if self.parts else None
        return last.text.strip() if isinstance(last, TextPart) else ""

    def _gap(self) -> str:
        """What a block begins with that comes after these parts."""
        last = self._parts[-1] if self._parts else None
        before = last.text if isinstance(last, TextPart) else ""
        return GAP if before and not before.endswith("\n") else ""

    @property
    def parts(self) -> Sequence[Part]:
        if self._pieces is None:
            return self._parts
        self._pieces, self._loose = ["".join(self._pieces)], 0
        return [*self._parts, TextPart(self._pieces[0])]

    def shed(self) -> None:
        """Drop what it holds, but for the end of a text that can still be added to."""
        if self._pieces is None:
            self._parts = self._parts[-1:]
        else:
            self._parts.clear()
            self._pieces, self._loose = ["".join(self._pieces)[-LAST_WORDS - 1 :]], 0

    def _join(self) -> None:
        if self._pieces is not None:
            self._parts.append(TextPart("".join(self._pieces)))
            self._pieces, self._loose = None, 0


@dataclass(slots=True)
class Task:
    """One turn of one CLI session, and all that a client may ask about it.

    The messages in which the agent asks or ends are in `history` at once, where clients that read
    no status look for them; those on progress when the next status replaces them.
    """

    id: str
    context_id: str
    created: datetime
    show_thoughts: bool = False
    owner: str = ""  # id of the principal whose it is
    attended: bool = False  # to be canceled when nobody listens any more
    state: TaskState = TaskState.SUBMITTED
    status_time: datetime = field(init=False)
    status_message: Message | None = None
    history: list[Message] = field(default_factory=list)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    questions: list[Question] = field(default_factory=list)
    asked: int = 0  # questions that clients have seen
    asked_at: datetime | None = None  # when the last of them was published
    reply: Message | None = None
    queued: Queued | None = None  # it waits for a slot
    _usage: Usage | None = None
    _held: list[Event] = field(default_factory=list)  # progress made while a question is open
    _messages: int = 0

    def __post_init__(self) -> None:
        self.status_time = self.created

    @property
    def question(self) -> Question | None:
        """The question that is open; several are asked one after the other."""
        return self.questions[0] if self.questions else None

    def anew(self) -> Task:
        """The task as it was before anything happened, but for its prompt."""
        facts = self.show_thoughts, self.owner, self.attended
        return Task(self.id, self.context_id, self.created, *facts)

    def head(self) -> Task:
        """The task without what was said: by which it is found, listed and dropped."""
        head = self.anew()
        head.state, head.status_time = self.state, self.status_time
        return head

    def outline(self) -> Task:
        """The task without its artifacts."""
        outline = self.head()
        outline.status_message, outline.metadata = self.status_message, self.metadata
        outline.history = self.history
        return outline

    def shed(self) -> None:
        """Drop what was said. The updates to come are the same, but for those of Retracted."""
        self.history.clear()
        for artifact in self.artifacts.values():
            artifact.shed()

    def quick_answer(self, within: float) -> Message | None:
        """The answer as a Message, if the task completed within so many seconds."""
        took = (self.status_time - self.created).total_seconds()
        answer = self.artifacts.get(ANSWER_ID)
        if self.state is not TaskState.COMPLETED or not took <= within > 0 or answer is None:
            return None
        identity = f"{self.id}-answer"
        return Message(identity, Role.AGENT, tuple(answer.parts), self.id, self.context_id)

    def apply(self, event: Event, now: datetime) -> list[Update]:
        """Let `event` happen. Returns what every subscriber is told, in order.

        Raises IllegalTransition if the table has no such event in this state.
        """
        before, targets = self.state, TRANSITIONS[self.state].get(type(event))
        if targets is None:
            raise IllegalTransition(f"{type(event).__name__} in {before.value}")
        if self.questions and isinstance(event, _PROGRESS):
            self._held.append(event)
            return []
        self.queued = None
        updates = self._apply(event, targets[0], now)
        if self.state not in (before, *targets):
            raise IllegalTransition(f"{type(event).__name__}: {before} to {self.state}")
        return updates

    # --- one method per kind of event ----------------------------------------------------------

    def _apply(self, event: Event, target: TaskState, now: datetime) -> list[Update]:
        match event:
            case Text():
                return self._enter(target, now) + self._add_text(event)
            case Retracted():
                return self._enter(target, now) + self._retract(event)
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
            case Reply():
                # Of no task: the client is never shown one.
                self.reply = replace(self._message(*event.parts), task_id=None)
                return self._finish(target, now, self.reply)
            case Failed() | Rejected() | Canceled() | TimedOut() | Interrupted():
                message = self._worded(*render.ending(event))
                return self._finish(target, now, message, render.reason(event))
            case _:
                assert_never(event)

    def _progress(self, event: Progress, target: TaskState, now: datetime) -> list[Update]:
        match event:
            case Started():
                return [self._started(event, target, now)]
            case Thought() if not self.show_thoughts:
                return []
            case Queued():
                self.queued = event
                return [self._say(target, now, *render.queued(event))]
            case Thought() | Status() | ToolCall() | ToolResult() | Plan():
                return [self._say(target, now, *render.progress(event))]
            case _:
                assert_never(event)

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
                return self._settle(event.answer.question_id, now)
            case Steered():
                self._hear(event.message)
                return [self._status(target, now, None, {"bridge": {"steered": event.message.id}})]
            case NotUnderstood():
                self._hear(event.message)
                return [self._asked(self.questions[0], now, event.hint)]
            case _:
                assert_never(event)

    def _started(self, event: Started, target: TaskState, now: datetime) -> Update:
        known = {
            "sessionId": event.session_id,
            "model": event.model,
            "cliVersion": event.version,
            "mode": event.mode,
        }
        facts = {name: value for name, value in known.items() if value is not None}
        return self._status(target, now, None, {"bridge": facts} if facts else None)

    def _enter(self, target: TaskState, now: datetime) -> list[Update]:
        """A status update, where the state changes without anything being said."""
        return [self._status(target, now)] if target is not self.state else []

    def _add_text(self, event: Text) -> list[Update]:
        artifact_id, name = ANSWER_ID, "Assistant response"
        if event.parent is not None:
            artifact_id, name = f"subagent-{event.parent}", "Sub-agent output"
        artifact = self.artifacts.get(artifact_id)
        append = artifact is not None
        if artifact is None:
            artifact = self.artifacts[artifact_id] = Artifact(artifact_id, name)
        text = artifact.add_text(event.text, event.new_block)
        updates: list[Update] = []
        for start in range(0, len(text) or 1, MOST_TEXT):
            part = TextPart(text[start : start + MOST_TEXT])
            updates.append(ArtifactUpdate(artifact_id, (part,), name, append=append or start > 0))
        return updates

    def _retract(self, event: Retracted) -> list[Update]:
        artifact = self.artifacts.get(ANSWER_ID)
        if artifact is None:
            return []
        artifact.retract(event.length)
        parts = tuple(artifact.parts) or (TextPart(""),)
        return [ArtifactUpdate(artifact.id, parts, artifact.name)]

    def _add_chunk(self, event: ArtifactChunk) -> Update:
        artifact = self.artifacts.get(event.id)
        append = event.append and artifact is not None
        if artifact is None or not append:
            artifact = Artifact(event.id, event.name, event.description, event.metadata)
            self.artifacts[event.id] = artifact
        artifact.extend(event.parts)
        artifact.open = False
        return ArtifactUpdate(
            event.id,
            event.parts,
            event.name,
            event.description,
            append,
            event.last_chunk,
            event.metadata,
        )

    def _ask(self, question: Question, now: datetime) -> Update:
        self.asked, self.asked_at = self.asked + 1, now
        return self._asked(question, now)

    def _asked(self, question: Question, now: datetime, hint: str = "") -> Update:
        state = TaskState.AUTH_REQUIRED if question.kind == "auth" else TaskState.INPUT_REQUIRED
        return self._say(state, now, *render.question(question, hint))

    def _settle(self, question_id: str, now: datetime) -> list[Update]:
        """The question is answered or withdrawn: ask the next one, or go on."""
        first = self.question
        self.questions = [q for q in self.questions if q.id != question_id]
        if first is None or first.id != question_id:
            return []
        if self.question:
            return [self._ask(self.question, now)]
        updates: list[Update] = [self._status(TaskState.WORKING, now)]
        held, self._held = self._held, []
        for event in held:
            updates += self.apply(event, now)
        return updates

    def _done(self, event: Done, target: TaskState, now: datetime) -> list[Update]:
        """Many clients show the final status and no artifact, others the artifacts alone: the last
        words are in both."""
        artifact = self.artifacts.get(ANSWER_ID)
        said = artifact.last_block if artifact else ""
        words = (event.summary or "").strip() or said
        more = (event.text or "").strip()
        words = words if more in words else f"{words}{GAP}{more}".strip()
        updates = self._add_text(Text(words, new_block=True)) if words and not said else []
        message = self._message(TextPart(_end_of(words))) if words else None
        facts = {"bridge": {"result": event.details}} if event.details else None
        return self._finish(target, now, message, facts, before=updates)

    def _finish(
        self,
        target: TaskState,
        now: datetime,
        message: Message | None,
        facts: Mapping[str, Any] | None = None,
        before: Sequence[Update] = (),
    ) -> list[Update]:
        """The last updates of the task; the terminal status comes last, with `facts` in its
        metadata."""
        self.questions.clear()
        updates: list[Update] = []
        for event in self._held:
            updates += self._apply(event, TaskState.WORKING, now)
        self._held = []
        updates += before
        updates += [self._close(artifact) for artifact in self.artifacts.values() if artifact.open]
        metadata = dict(facts or {})
        if self._usage:
            metadata["usage"] = render.usage(self._usage)
        return [*updates, self._status(target, now, message, metadata or None)]

    def _close(self, artifact: Artifact) -> Update:
        artifact.open = False
        end = (TextPart(""),)  # an artifact update must have a part (§4.1.7)
        return ArtifactUpdate(artifact.id, end, artifact.name, append=True, last_chunk=True)

    # --- status and messages -------------------------------------------------------------------

    def _say(
        self, state: TaskState, now: datetime, text: str, facts: render.Facts | None
    ) -> Update:
        """A status with a message. One on progress is a line: clients that print all of them put
        nothing between."""
        line = text if state.interrupted else f"{text}\n"
        return self._status(state, now, self._worded(line, facts))

    def _status(
        self,
        state: TaskState,
        now: datetime,
        message: Message | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Update:
        self._remember(self.status_message)
        self.state, self.status_time, self.status_message = state, now, message
        if state.terminal or state.interrupted:
            self._remember(message)
        for name, facts in (metadata or {}).items():
            self.metadata[name] = {**self.metadata.get(name, {}), **facts}
        return StatusUpdate(state, now, message, metadata)

    def _message(self, *parts: Part) -> Message:
        self._messages += 1
        identity = f"{self.id}-{self._messages}"
        return Message(identity, Role.AGENT, parts, self.id, self.context_id)

    def _worded(self, text: str, facts: render.Facts | None) -> Message:
        return replace(self._message(TextPart(text)), facts=facts)

    def _hear(self, message: Message | None) -> None:
        """The client's message comes after the question that it is about."""
        self._remember(self.status_message)
        self.status_message = None
        self._remember(message)

    def _remember(self, message: Message | None) -> None:
        last = self.history[-1] if self.history else None
        if message is None:
            return
        named = replace(message, task_id=self.id, context_id=self.context_id)
        if named != last:  # clients may give one id to several messages
            self.history.append(named)


def _end_of(text: str) -> str:
    """`text`, or where it is long its end: the whole is in the artifact."""
    if len(text) <= LAST_WORDS:
        return text
    return f"[…] {text[-LAST_WORDS:]}"
