"""The spans of turns, from the events of their tasks. The same events always make the same spans,
so a server that restores a task can send all of them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from bridge.task.events import (
    ENDINGS,
    Answered,
    Event,
    Failed,
    Interrupted,
    Prompted,
    Question,
    QuestionWithdrawn,
    Queued,
    Retracted,
    Started,
    Status,
    Text,
    TimedOut,
    ToolCall,
    ToolResult,
    Usage,
)
from bridge.task.message import Message
from bridge.task.state import Task
from bridge.task.transitions import ENDINGS as ENDS
from bridge.task.transitions import TaskState
from bridge.telemetry.tracing import catalog
from bridge.telemetry.tracing.catalog import SpanKind, Value
from bridge.telemetry.tracing.content import Content
from bridge.telemetry.tracing.context import TraceContext, read_header
from bridge.telemetry.tracing.spans import Emit, EndedSpan, nanoseconds

LEAST_QUEUE = timedelta(milliseconds=50)
"""A shorter wait for a slot has no span, unless the task was told its position."""
UNSENT = timedelta(seconds=10)
"""An exporter sends a span within this time: one that ended later before a crash may be lost."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BY = {"rule": "rule", "timeout": "timeout", "limit": "timeout"}
_Attributes = dict[str, Value]


@dataclass(frozen=True, slots=True)
class TracedAgent:
    """The agent of a turn. `model`: of its settings. `cache_apart`: its CLI does not count the
    tokens of the cache as input tokens."""

    id: str
    name: str
    provider: str
    model: str | None = None
    cache_apart: bool = False


@dataclass(slots=True)
class _Begun:
    """The begin of a span below the turn. `number`: of its event."""

    number: int
    time: datetime
    event: ToolCall | Question


@dataclass(slots=True)
class _Known:
    model: str | None = None
    usage: Usage | None = None
    start: str | None = None
    queued: bool = False
    answered: datetime | None = None
    last: datetime | None = None
    tools: dict[str, _Begun] = field(default_factory=dict)
    asked: dict[str, _Begun] = field(default_factory=dict)


class TurnSpans:
    """The spans of one task. `context`: of its turn. `emit` gets each span when it has ended.
    `restored`: the events are those of an earlier server, which may not have sent the span of the
    request."""

    def __init__(
        self,
        agent: TracedAgent,
        task: Task,
        context: TraceContext,
        emit: Emit,
        *,
        content: Content | None = None,
        restored: bool = False,
    ) -> None:
        prompt = task.history[0]
        assert isinstance(prompt, Message)
        self.task = task
        self._id, self._created = task.id, task.created
        self._common: _Attributes = {
            "a2a.task.id": task.id,
            "gen_ai.conversation.id": task.context_id,
        }
        self._agent = agent
        self._prompt = prompt
        self._context = context
        self._emit = emit
        self._content = content
        self._said = content.answer() if content else None
        self._restored = restored
        self._known = _Known()
        self._number = 0  # of events without texts: only some observers get all texts

    def apply(self, events: Sequence[Event], time: datetime) -> None:
        """The next events of the task, which happened at this time."""
        for event in events:
            if isinstance(event, Text):
                if self._said and event.parent is None:
                    self._said.add(event)
                continue
            self._number += 1
            if isinstance(event, ENDINGS):
                self._end(event, time)
            else:
                self._apply(event, time)
        self._known.last = time

    def _apply(self, event: Event, time: datetime) -> None:
        known = self._known
        match event:
            case Started(model=str(model)) if model:
                known.model = model
            case Usage():
                known.usage = event
            case Queued():
                known.queued = True
            case Prompted():
                self._prompted(event, time)
            case ToolCall():
                begun = known.tools.setdefault(event.id, _Begun(self._number, time, event))
                begun.event = event  # a tool may be announced again when its input is known
            case ToolResult():
                self._tool(known.tools.pop(event.id, None), time, event)
            case Retracted() if self._said:
                self._said.retract(event.length)
            case Question() | Answered() | QuestionWithdrawn() | Status():
                self._ask(event, time)

    def _ask(self, event: Event, time: datetime) -> None:
        known = self._known
        match event:
            case Question():
                known.answered = known.answered or time
                known.asked.setdefault(event.id, _Begun(self._number, time, event))
            case Answered():
                self._question(known.asked.pop(event.answer.question_id, None), time, event)
            case QuestionWithdrawn():
                self._question(known.asked.pop(event.id, None), time)
            case Status(data={"type": "decision", "by": "rule"}):
                facts: _Attributes = {"bridge.question.kind": "permission"}
                facts["bridge.question.answered_by"] = "rule"
                self._below(catalog.QUESTION, self._number, time, time, facts)

    def _prompted(self, event: Prompted, time: datetime) -> None:
        """The end of the wait for a slot, and of the start of the session."""
        if event.slot_at is None:
            return
        self._known.start = event.start
        slot = max(self._created, _EPOCH + timedelta(microseconds=event.slot_at))
        if self._known.queued or slot - self._created >= LEAST_QUEUE:
            self._below(catalog.QUEUE, self._number, self._created, slot, {})
        if event.start != "warm":
            facts: _Attributes = {"bridge.session.start": event.start}
            self._below(catalog.SESSION, self._number, slot, time, facts)

    def _tool(self, begun: _Begun | None, time: datetime, result: ToolResult | None = None) -> None:
        """`result`: None for a call that was open at the end of the turn."""
        if begun is None or not isinstance(begun.event, ToolCall):
            return
        call = begun.event
        facts: _Attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": catalog.tool_name(call.name),
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.type": catalog.tool_type(call.name),
        }
        if result is None or result.is_error:
            facts["error.type"] = "tool_error" if result else "no_result"
        if self._content:
            facts["gen_ai.tool.call.arguments"] = self._content.value(call.input)
            if result:
                facts["gen_ai.tool.call.result"] = self._content.value(result.output)
        failed = result is not None and result.is_error
        self._below(catalog.TOOL, begun.number, begun.time, time, facts, failed=failed)

    def _question(
        self, begun: _Begun | None, time: datetime, answered: Answered | None = None
    ) -> None:
        if begun is None or not isinstance(begun.event, Question):
            return
        facts: _Attributes = {"bridge.question.kind": begun.event.kind}
        link = None
        if answered:
            answer = answered.answer
            facts["bridge.question.answered_by"] = _BY.get(answer.by, "client")
            trace = answer.message.trace if answer.message else None
            link = read_header(trace.header) if trace else None
        self._below(catalog.QUESTION, begun.number, begun.time, time, facts, link=link)

    def _end(self, event: Event, time: datetime) -> None:
        known, state = self._known, ENDS[type(event)][0]
        if isinstance(event, TimedOut) and event.reason in _BY:
            self._time_out(time)
        for begun in list(known.asked.values()):
            self._question(begun, time)
        for begun in list(known.tools.values()):
            self._tool(begun, time)
        facts: _Attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": self._agent.provider,
            "gen_ai.agent.id": self._agent.id,
            "gen_ai.agent.name": self._agent.name,
            **self._common,
            "a2a.task.state": state.value,
            **_optional("gen_ai.request.model", known.model or self._agent.model),
            **_optional("bridge.session.start", known.start),
            **(usage_of(known.usage, self._agent.cache_apart) if known.usage else {}),
        }
        if isinstance(event, Failed | TimedOut | Interrupted):
            facts["error.type"] = event.reason
        elif state is TaskState.REJECTED:
            facts["error.type"] = "rejected"
        if self._content and self._said:
            facts["gen_ai.input.messages"] = self._content.message("user", self._prompt.text)
            facts["gen_ai.output.messages"] = self._said.message()
        failed = "error.type" in facts
        begin, end = nanoseconds(self._created), nanoseconds(time)
        if self._restored:
            self._request(time)
        self._emit(
            EndedSpan(catalog.TURN, self._context, begin, max(begin, end), facts, failed=failed)
        )

    def _time_out(self, time: datetime) -> None:
        """The time limit answered the open questions."""
        for begun in self._known.asked.values():
            assert isinstance(begun.event, Question)
            facts: _Attributes = {"bridge.question.kind": begun.event.kind}
            facts["bridge.question.answered_by"] = "timeout"
            self._below(catalog.QUESTION, begun.number, begun.time, time, facts)
        self._known.asked.clear()

    def _request(self, end: datetime) -> None:
        """The span of the request that began the task, unless the earlier server has sent it."""
        trace, known = self._prompt.trace, self._known
        above = read_header(trace.header) if trace else None
        if not trace or not above or not trace.method:
            return
        answered = known.answered if trace.waits else self._created
        if answered and (known.last or end) - answered > UNSENT:
            return
        facts: _Attributes = {
            "a2a.method.name": trace.method,
            "a2a.message.id": self._prompt.id,
            **self._common,
            "gen_ai.agent.name": self._agent.name,
            "bridge.binding": trace.binding,
            "bridge.request_id": trace.request_id,
        }
        context = TraceContext(above.trace_id, above.span_id, above.sampled, trace.parent)
        begin, last = nanoseconds(self._created), nanoseconds(answered or end)
        self._emit(EndedSpan(catalog.REQUEST, context, begin, max(begin, last), facts))

    def _below(
        self,
        kind: SpanKind,
        number: int,
        begin: datetime,
        end: datetime,
        facts: _Attributes,
        *,
        failed: bool = False,
        link: TraceContext | None = None,
    ) -> None:
        context = self._context.below(self._id, number, kind.name)
        first = nanoseconds(begin)
        last = max(first, nanoseconds(end))
        links = (link,) if link else ()
        self._emit(EndedSpan(kind, context, first, last, facts, failed=failed, links=links))


def usage_of(usage: Usage, apart: bool = False) -> _Attributes:
    """The tokens of a turn. The convention counts those of the cache as input tokens, and some
    CLIs do not. `apart`: this CLI does not."""
    extra = usage.extra or {}
    read, created = _count(extra, catalog.CACHE_READ), _count(extra, catalog.CACHE_CREATION)
    sent = usage.input_tokens
    if sent is not None and apart:
        sent += (read or 0) + (created or 0)
    return {
        **_optional("gen_ai.usage.input_tokens", sent),
        **_optional("gen_ai.usage.output_tokens", usage.output_tokens),
        **_optional("gen_ai.usage.cache_read.input_tokens", read),
        **_optional("gen_ai.usage.cache_creation.input_tokens", created),
        **_optional("bridge.cost_usd", usage.cost_usd),
    }


def _count(extra: object, names: Sequence[str]) -> int | None:
    found = [extra.get(name) for name in names] if isinstance(extra, dict) else []
    return next((one for one in found if isinstance(one, int) and not isinstance(one, bool)), None)


def _optional(name: str, value: Value | None) -> _Attributes:
    return {} if value is None else {name: value}
