"""The metrics of the tasks of one agent, from their events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from bridge.task.events import (
    ENDINGS,
    Answered,
    Event,
    Failed,
    Interrupted,
    NotUnderstood,
    Prompted,
    Question,
    QuestionWithdrawn,
    Queued,
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
from bridge.task.silence import is_silence
from bridge.task.state import Task
from bridge.telemetry.metrics.catalog import OTHER, REASONS, UNKNOWN
from bridge.telemetry.metrics.tools import kind_of

_FROM_OUTSIDE = (Queued, Prompted, Steered, Answered, NotUnderstood, *ENDINGS)
_BY_TIMEOUT = ("timeout", "limit")  # keywords of Answer.by
_CACHE = {"cache_read": "cacheReadTokens", "cache_creation": "cacheCreationTokens"}
_KNOWN = frozenset(REASONS)


class AgentSink(Protocol):
    """Takes the figures of one agent. Times are seconds."""

    def ended(self, state: str, reason: str, seconds: float) -> None: ...

    def prompted(self, seconds: float) -> None: ...

    def first_event(self, start: str, seconds: float) -> None: ...

    def answered(self, kind: str, by: str, seconds: float) -> None: ...

    def tool(self, kind: str, outcome: str, seconds: float) -> None: ...

    def used(self, model: str, tokens: Iterable[tuple[str, int]], cost: float) -> None: ...


@dataclass(slots=True)
class _Observed:
    """A task that has not ended. `last`: the time of its last event."""

    last: datetime
    prompted: datetime | None = None
    heard: bool = False
    model: str = UNKNOWN
    usage: Usage | None = None
    tools: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    asked: dict[str, tuple[str, datetime]] = field(default_factory=dict)


class TaskMetrics:
    """Observes the tasks of one agent. `start_of` returns how the session of a task began: cold,
    warm or resumed. A task that began before it was observed has no first event and no time in the
    queue."""

    texts = True

    def __init__(self, sink: AgentSink, start_of: Callable[[Task], str]) -> None:
        self._sink = sink
        self._start_of = start_of
        self._tasks: dict[str, _Observed] = {}

    def __len__(self) -> int:
        """The number of observed tasks that have not ended."""
        return len(self._tasks)

    def last_event(self, task: Task) -> datetime:
        """The time of the last event of a task that has not ended."""
        known = self._tasks.get(task.id)
        return known.last if known else task.status_time

    def forget(self, open_tasks: Iterable[str]) -> None:
        """Drop all tasks but these: another server ended the others."""
        kept = set(open_tasks)
        self._tasks = {name: one for name, one in self._tasks.items() if name in kept}

    def began(self, task: Task) -> None:
        self._tasks[task.id] = _Observed(task.created)

    def recorded(self, task: Task, events: Sequence[Event], time: datetime) -> None:
        known = self._tasks.get(task.id)
        if known is None:
            known = self._tasks[task.id] = _Observed(time, prompted=time, heard=True)
        if is_silence(events[0]):
            return
        known.last = time
        for event in events:
            kind = type(event)
            if known.heard and (kind is Text or kind is Thought):  # most events
                continue
            self._record(task, known, event, time)
        if task.state.terminal:
            self._end(task, known, events[-1], time)

    def _record(self, task: Task, known: _Observed, event: Event, time: datetime) -> None:
        if not known.heard:
            self._hear(task, known, event, time)
        match event:
            case Started(model=str(model)) if model:
                known.model = model
            case Usage():
                known.usage = event
            case ToolCall():
                known.tools.setdefault(event.id, (kind_of(event.name), time))
            case ToolResult():
                self._tool(known, event.id, "error" if event.is_error else "ok", time)
            case Status(data={"type": "decision", "by": "rule"}):
                self._sink.answered("permission", "rule", 0.0)
            case Question():
                known.asked.setdefault(event.id, (event.kind, time))
            case Answered(answer):
                by = "timeout" if answer.by in _BY_TIMEOUT else "client"
                self._answer(known, answer.question_id, by, time)
            case QuestionWithdrawn():
                known.asked.pop(event.id, None)

    def _hear(self, task: Task, known: _Observed, event: Event, time: datetime) -> None:
        """The events up to the first one of the agent."""
        if isinstance(event, Prompted):
            known.prompted = time
            self._sink.prompted(_seconds(task.created, time))
        elif known.prompted and not isinstance(event, _FROM_OUTSIDE):
            known.heard = True
            self._sink.first_event(self._start_of(task), _seconds(known.prompted, time))

    def _answer(self, known: _Observed, question: str, by: str, time: datetime) -> None:
        kind, asked = known.asked.pop(question, ("", time))
        if kind:
            self._sink.answered(kind, by, _seconds(asked, time))

    def _tool(self, known: _Observed, call: str, outcome: str, time: datetime) -> None:
        kind, begun = known.tools.pop(call, ("", time))
        if kind:
            self._sink.tool(kind, outcome, _seconds(begun, time))

    def _end(self, task: Task, known: _Observed, last: Event, time: datetime) -> None:
        del self._tasks[task.id]
        if isinstance(last, TimedOut) and last.reason in _BY_TIMEOUT:
            for question in list(known.asked):
                self._answer(known, question, "timeout", time)
        for call in list(known.tools):
            self._tool(known, call, "error", time)
        if known.usage:
            self._sink.used(known.model, _tokens(known.usage), known.usage.cost_usd or 0.0)
        reason = ""
        if isinstance(last, Failed | TimedOut | Interrupted):
            reason = last.reason if last.reason in _KNOWN else OTHER
        self._sink.ended(task.state.value, reason, _seconds(task.created, time))


def _tokens(usage: Usage) -> Iterable[tuple[str, int]]:
    """The tokens by type, as the CLI reports them. Counters never decrease."""
    found: list[tuple[str, object]] = [
        ("input", usage.input_tokens),
        ("output", usage.output_tokens),
    ]
    found += [(kind, (usage.extra or {}).get(name)) for kind, name in _CACHE.items()]
    return [(kind, count) for kind, count in found if isinstance(count, int) and count > 0]


def _seconds(begin: datetime, end: datetime) -> float:
    """Not negative, also if the clock was set back."""
    return max(0.0, (end - begin).total_seconds())
