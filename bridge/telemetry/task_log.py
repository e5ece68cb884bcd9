"""The lines of the log about the tasks of one agent, from their events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from bridge.task.events import (
    ENDINGS,
    Answered,
    Event,
    Failed,
    Interrupted,
    NotUnderstood,
    Question,
    QuestionWithdrawn,
    Queued,
    Retracted,
    Started,
    Status,
    Steered,
    Text,
    Thought,
    TimedOut,
    Usage,
)
from bridge.task.silence import is_silence
from bridge.task.state import Task
from bridge.task.transitions import TaskState
from bridge.telemetry.log_context import MOST_TASKS, NO_CLIENT, TASKS, KnownTasks
from bridge.telemetry.observation import REQUEST, observed

log = logging.getLogger(__name__)

_OUTPUT = frozenset({Text, Thought, Retracted})  # most events
_FROM_OUTSIDE = (Queued, Steered, Answered, NotUnderstood, *ENDINGS)


@dataclass(slots=True)
class _Open:
    """A task that has not ended. `asked`: the times of its open questions, by id."""

    started: bool = False
    model: str | None = None
    usage: Usage | None = None
    asked: dict[str, datetime] = field(default_factory=dict)


class TaskLog:
    """Observes the tasks of the agent with this id. `beginning`: how a task got its session, and
    its directory. No line has a text of a client or of the agent. A task that an earlier server
    began has no line for its start."""

    texts = False

    def __init__(
        self,
        agent: str,
        beginning: Callable[[Task], tuple[str, str] | None],
        known: KnownTasks = TASKS,
    ) -> None:
        self._agent = agent
        self._beginning = beginning
        self._known = known
        self._open: dict[str, _Open] = {}

    def began(self, task: Task) -> None:
        self._known.add(self._agent, task, REQUEST.get())
        self._remember(task, _Open())

    def recorded(self, task: Task, events: Sequence[Event], time: datetime) -> None:
        known = self._open.get(task.id)
        if known is None:
            self._known.add(self._agent, task, None)
            known = self._remember(task, _Open(started=True))
        for event in events:
            if not known.started or type(event) not in _OUTPUT:
                self._record(task, known, event, time)
        if task.state.terminal:
            self._end(task, known, events[-1], time)

    def _remember(self, task: Task, known: _Open) -> _Open:
        if len(self._open) >= MOST_TASKS:
            del self._open[next(iter(self._open))]
        self._open[task.id] = known
        return known

    def _record(self, task: Task, known: _Open, event: Event, time: datetime) -> None:
        if isinstance(event, Started) and event.model:
            known.model = event.model
        if not (known.started or isinstance(event, _FROM_OUTSIDE) or is_silence(event)):
            known.started = True
            queued = _seconds(task.created, time)
            start, cwd = self._beginning(task) or (None, None)
            facts = {"queued_seconds": queued, "model": known.model, "start": start, "cwd": cwd}
            self._log(logging.INFO, task, "task.started", "task started", facts)
        match event:
            case Usage():
                known.usage = event
            case Question():
                known.asked.setdefault(event.id, time)
                facts = {"question": event.id, "kind": event.kind}
                self._log(logging.INFO, task, "question.asked", "question asked", facts)
            case Status(data={"type": "decision", "by": "rule"}):
                self._answered(task, None, "rule", 0.0)
            case Answered(answer):
                asked = known.asked.pop(answer.question_id, time)
                self._answered(task, answer.question_id, answer.by, _seconds(asked, time))
            case QuestionWithdrawn():
                known.asked.pop(event.id, None)

    def _answered(self, task: Task, question: str | None, by: str, seconds: float) -> None:
        facts: dict[str, Any] = {"question": question, "answered_by": by, "seconds": seconds}
        if by not in NO_CLIENT:  # the request that answers, and not the one that began the task
            facts |= {"answered_by": "client", "principal": by or None}
            if REQUEST.get():
                request = observed()
                facts |= {"request_id": request.id, "binding": request.binding}
                facts["peer"] = request.peer
        self._log(logging.INFO, task, "question.answered", "question answered", facts)

    def _end(self, task: Task, known: _Open, last: Event, time: datetime) -> None:
        seconds = _seconds(task.created, time)
        usage = known.usage or Usage()
        reason = last.reason if isinstance(last, Failed | TimedOut | Interrupted) else None
        facts = {
            "state": task.state.value,
            "reason": reason,
            "seconds": seconds,
            "model": known.model,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cost_usd": usage.cost_usd,
        }
        level = logging.WARNING if task.state is TaskState.FAILED else logging.INFO
        self._log(level, task, "task.ended", f"task {task.state.value} after {seconds} s", facts)
        del self._open[task.id]
        self._known.drop(task.id)

    def _log(self, level: int, task: Task, event: str, text: str, facts: dict[str, Any]) -> None:
        if log.isEnabledFor(level):
            members = {"event": event, "task": task.id, **self._known.members(task.id), **facts}
            log.log(level, text, extra=members)


def _seconds(begin: datetime, end: datetime) -> float:
    """In ms. Not negative, also if the clock was set back."""
    return round(max(0.0, (end - begin).total_seconds()), 3)
