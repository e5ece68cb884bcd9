"""The spans of a turn from its events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bridge.server import registry
from bridge.store.serialization import dump, dump_events, load, load_events, micros
from bridge.task.events import (
    Answer,
    Answered,
    Canceled,
    Done,
    Event,
    Failed,
    Interrupted,
    Prompted,
    Question,
    QuestionWithdrawn,
    Queued,
    Rejected,
    Started,
    Status,
    Text,
    TimedOut,
    ToolCall,
    ToolResult,
    Usage,
)
from bridge.task.message import Message, MessageTrace, Role, TextPart
from bridge.task.state import Task
from bridge.telemetry.tracing import catalog
from bridge.telemetry.tracing.catalog import MOST_CONTENT
from bridge.telemetry.tracing.content import Content
from bridge.telemetry.tracing.context import traced
from bridge.telemetry.tracing.spans import EndedSpan
from bridge.telemetry.tracing.turns import TracedAgent, TurnSpans, usage_of
from tests.support.cases import each
from tests.support.recordings import RECORDINGS, Play, name_of, rows_of

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADER = f"00-{TRACE}-{SPAN}-01"
AGENT = TracedAgent("main", "Reviewer", "anthropic", cache_apart=True)
REQUEST = MessageTrace(HEADER, "1" * 16, "SendMessage", "rest", "r1")


class Turn:
    """Events one second apart, each in a batch of its own."""

    def __init__(self, trace: MessageTrace = REQUEST, **options: Any) -> None:
        self.task = Task("t", "c", BEGIN)
        prompt = Message("m", Role.USER, (TextPart("my token-123 prompt"),), trace=trace)
        self.task.history.append(prompt)
        context = traced(self.task)
        assert context
        self.context = context
        self.spans: list[EndedSpan] = []
        self.maker = TurnSpans(AGENT, self.task, context, self.spans.append, **options)
        self._time = BEGIN

    def happen(self, *events: Event, after: float = 1.0) -> list[EndedSpan]:
        for event in events:
            self._time += timedelta(seconds=after)
            self.maker.apply([event], self._time)
        return self.spans

    def one(self, name: str) -> EndedSpan:
        (found,) = [span for span in self.spans if span.kind.name.startswith(name)]
        return found


def seconds(span: EndedSpan) -> tuple[float, float]:
    begin = micros(BEGIN) * 1000
    return (span.begin - begin) / 1e9, (span.end - begin) / 1e9


def slot(after: float) -> int:
    return micros(BEGIN + timedelta(seconds=after))


def test_a_span_is_written_at_its_end() -> None:
    turn = Turn()
    assert turn.happen(Prompted("cold", slot(0.5)), Started(model="opus"))[0].name == "bridge.queue"
    assert [span.name for span in turn.spans] == ["bridge.queue", "bridge.session_start"]
    turn.happen(ToolCall("x", "Bash", {}), ToolResult("x", "out"))
    assert turn.spans[-1].name == "execute_tool Bash"
    turn.happen(Usage(1, 2, 306, 0.5, {"cacheReadTokens": 3, "cacheCreationTokens": 300}), Done())
    end = turn.spans[-1]
    assert end.name == "invoke_agent Reviewer" and seconds(end) == (0, 6)
    assert end.context == turn.context and end.context.parent == SPAN
    assert end.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "opus",
        "gen_ai.agent.id": "main",
        "gen_ai.agent.name": "Reviewer",
        "gen_ai.conversation.id": "c",
        "gen_ai.usage.input_tokens": 304,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.cache_creation.input_tokens": 300,
        "a2a.task.id": "t",
        "a2a.task.state": "completed",
        "bridge.session.start": "cold",
        "bridge.cost_usd": 0.5,
    }
    assert seconds(turn.one("bridge.queue")) == (0, 0.5)
    assert seconds(turn.one("bridge.session_start")) == (0.5, 1)
    assert all(span.context.parent == end.context.span_id for span in turn.spans[:-1])


def test_the_queue_has_a_span_if_the_task_waited() -> None:
    short, told = Turn(), Turn()
    short.happen(Prompted("warm", slot(0.01)), Done())
    assert [span.name for span in short.spans] == ["invoke_agent Reviewer"]
    told.happen(Queued(1, 0), Prompted("warm", slot(0.01)))
    assert [span.name for span in told.spans] == ["bridge.queue"]
    earlier = Turn()  # a server without traces began it
    assert earlier.happen(Prompted()) == []


@each(
    ("end", "state", "error"),
    [
        (Done(), "completed", None),
        (Canceled(), "canceled", None),
        (Failed("secret", "model-error"), "failed", "model-error"),
        (TimedOut("secret"), "failed", "timeout"),
        (Interrupted("secret", "restart"), "failed", "restart"),
        (Rejected("secret"), "rejected", "rejected"),
    ],
)
def test_each_end_has_its_state(end: Event, state: str, error: str | None) -> None:
    turn = Turn()
    span = turn.happen(end)[-1]
    found = span.attributes.get("error.type"), span.attributes["a2a.task.state"]
    assert found == (error, state) and span.failed == (error is not None)
    assert "secret" not in repr(span)


def test_what_is_open_at_the_end_ends_with_the_turn() -> None:
    turn = Turn()
    turn.happen(ToolCall("x", "Bash", {}), Question("q", "choice", "?"), Interrupted("", "restart"))
    assert seconds(turn.one("execute_tool")) == (1, 3)
    assert turn.one("execute_tool").attributes["error.type"] == "no_result"
    assert seconds(turn.one("bridge.question")) == (2, 3)
    assert turn.one("bridge.question").attributes == {"bridge.question.kind": "choice"}
    other = Turn()
    other.happen(Question("q", "text", "?"), TimedOut("", "timeout"))
    assert other.one("bridge.question").attributes["bridge.question.answered_by"] == "timeout"


def test_questions_link_to_the_request_that_answered() -> None:
    answer = Message("a", Role.USER, (), trace=MessageTrace(f"00-{'a' * 32}-{'b' * 16}-01"))
    said = Answered(Answer("q", "yes", message=answer, by="ide"))
    turn = Turn()
    turn.happen(Question("q", "permission", "Run rm?"), said)
    turn.happen(Question("r", "text", "?"), Answered(Answer("r", "", by="limit")))
    turn.happen(Question("s", "text", "?"), QuestionWithdrawn("s"))
    turn.happen(Status("Denied", {"type": "decision", "by": "rule"}))
    first, second, third, fourth = turn.spans
    assert [(one.trace_id, one.span_id) for one in first.links] == [("a" * 32, "b" * 16)]
    by = [one.attributes.get("bridge.question.answered_by") for one in turn.spans]
    assert by == ["client", "timeout", None, "rule"]
    assert not second.links and not third.links and seconds(fourth) == (7, 7)
    assert "'ide'" not in repr(turn.spans) and "Run" not in repr(turn.spans)


def test_a_title_of_a_call_is_not_a_name() -> None:
    turn = Turn()
    names = ("Read /home/me/secret.txt", "mcp__db__query", "shell: cat /etc/passwd", "a" * 99)
    for name in names:
        turn.happen(ToolCall(name, name, {}), ToolResult(name, "", is_error=name == names[1]))
    assert [span.name for span in turn.spans] == [
        "execute_tool read",
        "execute_tool mcp__db__query",
        "execute_tool execute",
        "execute_tool other",
    ]
    assert len({span.context.span_id for span in turn.spans}) == len(names)
    second = turn.spans[1]
    assert second.attributes["gen_ai.tool.type"] == "extension"
    assert second.attributes["error.type"] == "tool_error" and second.failed


def test_restored_events_make_the_same_spans() -> None:
    """Whatever texts are between them, and however they are batched."""
    events: Sequence[Event] = (
        Prompted("cold", slot(0.4)),
        ToolCall("x", "Bash", {}),
        ToolResult("x", ""),
        Question("q", "choice", "?"),
        Answered(Answer("q", "")),
        Done(),
    )
    first, again = Turn(), Turn()
    first.happen(*events)
    again.happen(*load_events(dump_events(events)))
    assert first.spans == again.spans and len(first.spans) == 5
    texts = Turn()
    texts.maker.apply([Text("a"), ToolCall("x", "Bash", {}), Text("b")], BEGIN)
    alone = Turn()
    alone.maker.apply([ToolCall("x", "Bash", {})], BEGIN)
    done = [ToolResult("x", "")]
    for one in (texts, alone):
        one.maker.apply(done, BEGIN)
    assert texts.spans == alone.spans


def test_the_span_of_an_interrupted_request_is_made_again() -> None:
    """Unless the server before had time to send it."""

    def requests(trace: MessageTrace, *events: Event, after: float) -> list[EndedSpan]:
        turn = Turn(trace, restored=True)
        turn.happen(*events, after=after)
        turn.happen(Interrupted("", "restart"), after=100)
        return [span for span in turn.spans if span.kind is catalog.REQUEST]

    waits = MessageTrace(HEADER, "1" * 16, "SendMessage", "rest", "r1", waits=True)
    (early,) = requests(REQUEST, Prompted(), after=1)
    assert early.name == "SendMessage" and early.context.span_id == SPAN
    assert early.context.parent == "1" * 16 and seconds(early) == (0, 0)
    assert early.attributes["bridge.request_id"] == "r1"
    assert requests(REQUEST, Prompted(), after=11) == []
    assert len(requests(waits, Prompted(), after=11)) == 1
    asked = Question("q", "choice", "?")
    assert requests(waits, asked, Status("x"), Status("y"), after=11) == []
    assert requests(MessageTrace(HEADER), Prompted(), after=1) == []
    turn = Turn()
    assert [span.kind for span in turn.happen(Done())] == [catalog.TURN]


# --- content -------------------------------------------------------------------------------------


def cleaned(text: str) -> str:
    return text.replace("token-123", "[redacted]")


def test_content_is_redacted_and_short() -> None:
    turn = Turn(content=Content(cleaned))
    call = {"command": "echo token-123", "token-123": ["token-123", 2**70, b"x"], "n": "\ud800"}
    turn.happen(ToolCall("x", "Bash", call), ToolResult("x", "token-123 " * 9999))
    turn.happen(Text("I said token-"), Text("123"), Text("sub", parent="x"))
    turn.happen(Text("\nlong " * 9999, new_block=True), Done())
    tool, end = turn.one("execute_tool").attributes, turn.one("invoke_agent").attributes
    content = [*tool.values(), *end.values()]
    assert not [one for one in content if "token-123" in str(one) or "sub" in str(one)]
    assert max(len(str(one).encode()) for one in content) <= MOST_CONTENT
    (said,) = json.loads(str(end["gen_ai.output.messages"]))
    assert said["parts"][0]["content"].startswith("I said [redacted]\n\n\nlong long"[:17])
    assert (said["role"], said["finish_reason"]) == ("assistant", "stop")
    assert json.loads(str(end["gen_ai.input.messages"])) == [
        {"role": "user", "parts": [{"type": "text", "content": "my [redacted] prompt"}]}
    ]


def test_retracted_text_is_not_recorded() -> None:
    answer = Content(str).answer()
    answer.add(Text("abc"))
    answer.add(Text("x" * 3 * MOST_CONTENT))
    answer.retract(3 * MOST_CONTENT + 1)
    answer.add(Text("def"))
    assert json.loads(answer.message())[0]["parts"][0]["content"] == "abdef"


def test_without_the_variable_no_span_has_content() -> None:
    turn = Turn()
    turn.happen(ToolCall("x", "Bash", {"a": "secret"}), ToolResult("x", "secret"), Text("secret"))
    turn.happen(Done("secret", "secret"))
    assert "secret" not in repr(turn.spans) and "prompt" not in repr(turn.spans)


# --- tokens --------------------------------------------------------------------------------------


def adapter_of(path: Path) -> str:
    return str(rows_of(path)[0]["begin"]["adapter"])


WITH_TOKENS = [
    path
    for path in RECORDINGS
    if path.stem == "allowed" and "input_tokens" in path.read_text() and "[[" in path.read_text()
]


@each("path", WITH_TOKENS, ids=name_of)
def test_the_input_tokens_of_each_provider_contain_the_cache(path: Path) -> None:
    """The recordings of Anthropic's models read nothing from the cache, so it is written into
    them."""
    written = path.read_text("utf-8")
    for name in ("cache_read_input_tokens", "cachedReadTokens"):
        written = written.replace(f'{name}\\":0', f'{name}\\":300')
        written = written.replace(f'{name}\\": 0', f'{name}\\": 300')
    adapter, play = registry.load(adapter_of(path)), Play()
    rows = [json.loads(line) for line in written.splitlines()]
    found = [event for row in rows for event in play.row(row) if isinstance(event, Usage)]
    used = [one for one in found if one.input_tokens is not None]
    for one in used:
        tokens = usage_of(one, adapter.cache_apart)
        sent = tokens["gen_ai.usage.input_tokens"]
        cached = tokens.get("gen_ai.usage.cache_read.input_tokens", 0)
        if adapter.cache_apart:
            assert cached and sent == (one.input_tokens or 0) + int(cached)
        else:
            assert sent == one.input_tokens
    assert used or path.parent.name in ("codex-acp", "openhands")  # only the size of the context


def test_some_recordings_have_tokens_of_the_cache() -> None:
    names = {path.parent.name for path in WITH_TOKENS}
    assert names >= {"claude-code", "codex", "claude-agent-acp"}


# --- stored members -------------------------------------------------------------------------------


def test_an_older_store_can_be_read_and_a_newer_one_too() -> None:
    message = Message("m", Role.USER, (TextPart("x"),), trace=REQUEST)
    data = json.loads(dump(message))
    assert load(Message, json.dumps(data).encode()).trace == REQUEST
    del data["trace"]
    assert load(Message, json.dumps(data).encode()).trace is None
    assert load_events(b'[["Prompted",{}]]') == [Prompted()]
    later = b'[["Prompted",{"start":"cold","slot_at":5,"new":1}]]'
    assert load_events(later) == [Prompted()]  # a member that this version does not know
    assert repr(message) == repr(Message("m", Role.USER, (TextPart("x"),)))  # see idempotency.py


def test_a_table_names_the_conventions() -> None:
    assert catalog.CONVENTIONS == {
        "docs/gen-ai/a2a.md": "6718089f",
        "model/gen-ai/spans.yaml": "7e7e4e76",
    }
    for span in catalog.SPANS:
        assert not span.content & span.attributes
        named = span.name.partition("{")[2].rstrip("}")
        assert not named or named in span.attributes
