"""The events of a task: reported by the agent (AgentEvent) or caused from outside (ControlEvent).

An adapter and the task exchange only events. They are frozen, so that a batch may be passed on
and kept. Do not subclass them: dispatch is by exact type (state.TRANSITIONS).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import orjson

from bridge.task.message import Message, Part
from bridge.task.text import DATA_BYTES, STATUS_CHARS, capped, capped_object, shortened

OptionKind = Literal["allow_once", "allow_always", "reject_once", "reject_always", "choice"]
SESSION_LOST = "session-lost"
"""The reason of a Failed: the CLI no longer has the conversation that it should resume."""
ChangeKind = Literal["create", "update", "delete"]
PlanStatus = Literal["pending", "in_progress", "completed"]
QuestionKind = Literal["permission", "choice", "plan", "text", "auth"]


# --- events of an agent --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The CLI took up the turn. `session_id`: the CLI's own id of the session, for a resume."""

    session_id: str | None = None
    model: str | None = None
    version: str | None = None
    mode: str | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer. `new_block` starts a part of its own. `parent`: the tool call of the
    sub-agent that wrote the text; such text does not belong to the answer."""

    text: str
    new_block: bool = False
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Retracted:
    """The last `length` characters of the answer do not count: the stream of the model broke, and
    is repeated."""

    length: int


@dataclass(frozen=True, slots=True)
class Thought:
    text: str


@dataclass(frozen=True, slots=True)
class Status:
    """A short text on progress, for people; `data` has the same content for programs."""

    text: str
    data: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`truncated`: size in bytes of each value that bounded() has cut, by its name."""

    id: str
    name: str
    input: Any
    parent: str | None = None
    truncated: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file that a tool changed; `diff` is a unified diff, empty where the CLI gave none."""

    path: str
    kind: ChangeKind
    diff: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """`truncated` as in ToolCall."""

    id: str
    output: Any
    is_error: bool = False
    name: str | None = None
    parent: str | None = None
    changes: tuple[FileChange, ...] = ()
    truncated: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class PlanEntry:
    text: str
    status: PlanStatus


@dataclass(frozen=True, slots=True)
class Plan:
    """The agent's to-do list; each event has the whole list."""

    entries: tuple[PlanEntry, ...]


@dataclass(frozen=True, slots=True)
class ArtifactChunk:
    """A result that the agent delivers besides its answer."""

    id: str
    parts: tuple[Part, ...]
    name: str | None = None
    description: str | None = None
    append: bool = False
    last_chunk: bool = True
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Option:
    """`description`: the meaning of the choice; for `allow_always`, the later requests that it
    covers."""

    id: str
    name: str
    kind: OptionKind = "choice"
    description: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """The agent waits for the client: a permission, a choice, a plan to approve, a login.

    `text` names the whole action (subject.text_of). `subject`: the object of the question (tool,
    input …) for programs; `free_text`: whether the client may answer in its own words; `multiple`:
    whether it may choose several options; `schema`: of the value that own words must have; `form`:
    the id of the form that it belongs to, which one refusal closes; `patience`: seconds that it
    waits for its answer, 0 = unlimited; `truncated` as in ToolCall.
    """

    id: str
    kind: QuestionKind
    text: str
    options: tuple[Option, ...] = ()
    subject: Mapping[str, Any] | None = None
    free_text: bool = False
    multiple: bool = False
    truncated: Mapping[str, int] | None = None
    schema: Mapping[str, Any] | None = None
    form: str = ""
    patience: float = 0.0


@dataclass(frozen=True, slots=True)
class QuestionWithdrawn:
    id: str


@dataclass(frozen=True, slots=True)
class Usage:
    """The cost of the turn. Tokens are counts; `extra`: further members, shown unchanged."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cost_usd: float | None = None
    extra: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The turn succeeded. `summary`: the last words of the answer, if they are not its last block;
    `text`: more words, for the final status. `details` are for programs."""

    text: str | None = None
    summary: str | None = None
    details: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The turn failed. `text` tells a person how to react; `reason` is a word for programs."""

    text: str
    reason: str = "agent-error"
    details: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """The agent refuses the task."""

    text: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A direct A2A Message instead of a task; allowed only as the first output of a turn."""

    parts: tuple[Part, ...]


# --- events of a client or the operating system ------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """The client's answer to one question: the options it chose, or its own words. `by`: the id of
    the principal that answered; `rule` for a rule of the operator, `timeout` if no answer came in
    time, `limit` if too many questions were open."""

    question_id: str
    text: str
    options: tuple[Option, ...] = ()
    message: Message | None = None
    by: str = ""

    @property
    def option(self) -> Option | None:
        return self.options[0] if self.options else None


@dataclass(frozen=True, slots=True)
class Answered:
    answer: Answer


@dataclass(frozen=True, slots=True)
class Prompted:
    """The CLI got the prompt, so that the task is working, even before any output. With traces:
    `slot_at`, when the task had its slot (microseconds since 1970), and `start`, how its session
    began: cold, warm or resumed."""

    start: str = field(default="", compare=False)
    slot_at: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Queued:
    """The task waits for a session. `ahead`: the tasks before it; `answers`: the sessions that wait
    for a person, and take no slot."""

    ahead: int
    answers: int


@dataclass(frozen=True, slots=True)
class Steered:
    """The client's message joined the running turn."""

    message: Message


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """The client's message did not answer the open question. The question is asked again."""

    message: Message
    hint: str


@dataclass(frozen=True, slots=True)
class Canceled:
    text: str = "Canceled by the client."


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A limit of the bridge ended the turn; `reason` says which one."""

    text: str
    reason: str = "timeout"


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The bridge ended the turn: it is shutting down, or it was restarted."""

    text: str
    reason: str = "shutdown"


AgentEvent = (
    Started
    | Text
    | Retracted
    | Thought
    | Status
    | ToolCall
    | ToolResult
    | Plan
    | ArtifactChunk
    | Question
    | QuestionWithdrawn
    | Usage
    | Done
    | Failed
    | Rejected
    | Reply
)
ControlEvent = (
    Answered | NotUnderstood | Prompted | Queued | Steered | Canceled | TimedOut | Interrupted
)
Event = AgentEvent | ControlEvent

ENDINGS = (Done, Failed, Rejected, Reply, Canceled, TimedOut, Interrupted)


def merge_text(events: Iterable[AgentEvent]) -> list[AgentEvent]:
    """Join neighbouring pieces of the same block: fewer updates, the same bytes."""
    merged: list[AgentEvent] = []
    run: list[str] = []  # the texts to add to merged[-1]
    for event in events:
        last = merged[-1] if merged else None
        match event:
            case Text() if isinstance(last, Text):
                if event.parent == last.parent and not event.new_block:
                    run.append(event.text)
                    continue
            case Thought() if isinstance(last, Thought):
                run.append(event.text)
                continue
        _close_run(merged, run)
        merged.append(event)
    _close_run(merged, run)
    return merged


def _close_run(merged: list[AgentEvent], run: list[str]) -> None:
    if run:
        last = merged[-1]
        assert isinstance(last, Text | Thought)
        merged[-1] = replace(last, text=last.text + "".join(run))
        run.clear()


E = TypeVar("E", bound=Event)
BOUNDED = frozenset((Question, ToolCall, ToolResult, Status))
"""The events that bounded() changes."""


def bounded(event: E) -> E:
    """`event` with the values of tools cut to DATA_BYTES of JSON each, and a status text cut to
    the characters that one_line() reads. `truncated` has the first size of each value that was
    cut. A second call changes nothing."""
    if type(event) not in BOUNDED:  # most events are text, and work here costs time for each
        return event
    values: dict[str, tuple[Any, int | None]] = {}
    match event:
        case ToolCall():
            values = {"input": capped(event.input)}
        case ToolResult():
            values = {"output": capped(event.output), "changes": _capped(event.changes)}
        case Question() if event.subject is not None:
            values = {"subject": capped_object(event.subject)}
        case Status() if len(event.text) > 4 * STATUS_CHARS:
            return replace(event, text=event.text[: 4 * STATUS_CHARS])
    sizes = {name: size for name, (_, size) in values.items() if size is not None}
    if not sizes:
        return event
    assert isinstance(event, ToolCall | ToolResult | Question)
    fitting: dict[str, Any] = {name: values[name][0] for name in sizes}
    return replace(event, **fitting, truncated={**sizes, **(event.truncated or {})})


def _capped(changes: tuple[FileChange, ...]) -> tuple[tuple[FileChange, ...], int | None]:
    """The first changes that fit, and the size, as capped() returns them."""
    try:
        size = len(orjson.dumps(changes)) if changes else 0
    except TypeError:
        return (), 0
    if size <= DATA_BYTES:
        return changes, None
    kept: list[FileChange] = []
    left = DATA_BYTES - 2  # brackets
    for change in changes:
        short = replace(change, path=shortened(change.path), diff=shortened(change.diff))
        left -= len(orjson.dumps(short)) + 1
        if left < 0:
            break
        kept.append(short)
    return tuple(kept), size
