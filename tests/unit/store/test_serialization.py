"""Stored data of tasks can be read: every event, every message, and the task after any events."""

from __future__ import annotations

import json
import random
import typing
import warnings
from base64 import b64encode
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.a2a.codecs import CODECS
from bridge.adapter import AgentConfig, Prompt, SessionOptions, SessionStart
from bridge.adapter.input import AdapterInput
from bridge.server import registry
from bridge.store.serialization import (
    EVENTS,
    dump,
    dump_events,
    load,
    load_events,
    micros,
    moment,
)
from bridge.task.events import (
    Answer,
    Answered,
    ArtifactChunk,
    Done,
    Event,
    FileChange,
    NotUnderstood,
    Option,
    Plan,
    PlanEntry,
    Question,
    Reply,
    Status,
    Steered,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from bridge.task.message import DataPart, Message, Part, RawPart, Role, TextPart, UrlPart
from bridge.task.state import Task, Update
from tests import CHECKOUT
from tests.support.cases import each
from tests.support.samples import SAMPLES, some_event
from tests.support.strategies import JSON, MAYBE_TEXT, METADATA, TEXT

BASE64 = st.binary(max_size=12).map(lambda content: b64encode(content).decode())
ABOUT = (MAYBE_TEXT, MAYBE_TEXT, METADATA)  # what every kind of part may have
PARTS: st.SearchStrategy[Part] = st.one_of(
    st.builds(TextPart, TEXT, *ABOUT),
    st.builds(RawPart, BASE64, *ABOUT),
    st.builds(UrlPart, TEXT, *ABOUT),
    st.builds(DataPart, JSON, *ABOUT),
)
NAMES = st.lists(TEXT, max_size=2).map(tuple)
MESSAGES = st.builds(
    Message,
    TEXT,
    st.sampled_from(Role),
    st.lists(PARTS, max_size=3).map(tuple),
    MAYBE_TEXT,
    MAYBE_TEXT,
    NAMES,
    NAMES,
    METADATA,
)
SIZES = st.none() | st.dictionaries(TEXT, st.integers(0, 2**40), max_size=2)
# Members whose type says less than what may be in them.
st.register_type_strategy(Message, MESSAGES)
LOOSE: dict[tuple[type, str], st.SearchStrategy[Any]] = {
    (ToolCall, "input"): JSON,
    (ToolResult, "output"): JSON,
    **{(kind, "truncated"): SIZES for kind in (ToolCall, ToolResult, Question)},
    (ArtifactChunk, "parts"): st.lists(PARTS, max_size=3).map(tuple),
    (Reply, "parts"): st.lists(PARTS, max_size=3).map(tuple),
}
FREE = {"data", "metadata", "subject", "extra", "details", "schema"}  # JSON objects, or nothing


def made(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Any value of a dataclass, from the types of its members."""
    hints = typing.get_type_hints(kind)
    members: dict[str, st.SearchStrategy[Any]] = {}
    for one in fields(kind):
        known = LOOSE.get((kind, one.name))
        if known is None:
            known = METADATA if one.name in FREE else _of(hints[one.name])
        members[one.name] = known
    return st.builds(kind, **members)


def _of(hint: Any) -> st.SearchStrategy[Any]:
    if hint is Message:
        return MESSAGES
    if isinstance(hint, type) and is_dataclass(hint):
        return made(hint)
    if typing.get_origin(hint) is tuple:
        return st.lists(_of(typing.get_args(hint)[0]), max_size=3).map(tuple)
    arguments = [one for one in typing.get_args(hint) if one is not type(None)]
    if typing.get_origin(hint) is not typing.Literal and len(arguments) == 1:  # or None
        return st.none() | _of(arguments[0])
    if hint is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    return st.integers(-(2**63), 2**63 - 1) if hint is int else st.from_type(hint)


@pytest.fixture(autouse=True)
def strict() -> typing.Iterator[None]:
    """That something is written which its type does not allow is but a warning of the library."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# --- one by one --------------------------------------------------------------------------------


def test_every_event_has_a_name() -> None:
    assert set(EVENTS.values()) == set(typing.get_args(Event)) == set(SAMPLES)
    assert {name: kind.__name__ for name, kind in EVENTS.items()} == {n: n for n in EVENTS}


def test_the_samples_survive_a_round_trip() -> None:
    events = list(SAMPLES.values())
    assert load_events(dump_events(events)) == events
    assert load_events(dump_events([])) == []


@each("kind", EVENTS.values(), ids=list(EVENTS))
def test_any_event_survives_a_round_trip(kind: type[Any]) -> None:
    @given(made(kind))
    def check(event: Event) -> None:
        (again,) = load_events(dump_events([event]))
        assert (again, type(again)) == (event, type(event))
        assert dump_events([again]) == dump_events([event])

    check()


@given(MESSAGES)
def test_any_message_survives_a_round_trip(message: Message) -> None:
    again = load(Message, dump(message))
    assert again == message
    assert [type(part) for part in again.parts] == [type(part) for part in message.parts]


@given(made(AdapterInput))
def test_an_adapter_input_survives_a_round_trip(told: AdapterInput) -> None:
    assert load(AdapterInput, dump(told)) == told


@given(made(SessionStart))
def test_a_start_survives_a_round_trip(start: SessionStart) -> None:
    assert load(SessionStart, dump(start)) == start


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)))
def test_times_are_kept_to_the_microsecond(time: datetime) -> None:
    time = time.replace(tzinfo=UTC)
    assert moment(micros(time)) == time
    assert micros(time + timedelta(microseconds=1)) == micros(time) + 1


def test_members_that_did_not_exist_yet_have_their_default() -> None:
    assert load_events(b'[["Text",{"text":"x"}]]') == [Text("x")]
    written = b'[["Done",{"text":"x","of_a_later_version":1}]]'
    assert load_events(written) == [Done("x")]


def test_parts_with_shared_members_keep_their_kind() -> None:
    about = ("text/plain", "name", {"text": "t", "data": 1, "url": "u", "base64": "eA=="})
    parts = (
        TextPart("", *about),
        RawPart("", *about),
        UrlPart("", *about),
        DataPart(None, *about),
        DataPart({"text": "x"}, *about),
    )
    message = Message("m", Role.USER, parts)
    again = load(Message, dump(message))
    assert [(type(one), one) for one in again.parts] == [(type(one), one) for one in parts]


def test_values_keep_their_types() -> None:
    odd = {"a": 1, "b": 1.0, "c": "1", "d": True, "e": None, "f": [2**64 - 1, -(2**63), 1e300]}
    events: list[Event] = [
        ToolCall("c", "Bash", odd),
        ToolResult("c", [odd], changes=(FileChange("p", "update", "d"),)),
        Status("s", odd),
        Usage(1, 2, 3, 0.1, odd),
        Plan((PlanEntry("p", "completed"),)),
        Question("q", "choice", "?", (Option("1", "n"),), odd, True, True),
        Answered(Answer("q", "1", (Option("1", "n"),), Message("m", Role.USER, ()))),
        NotUnderstood(Message("m", Role.USER, (DataPart(odd),)), "h"),
        Steered(Message("m", Role.USER, (DataPart(odd),))),
    ]
    again = load_events(dump_events(events))
    assert again == events
    assert repr(again) == repr(events)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_json_is_written_up_to_the_depth_of_requests() -> None:
    """Requests and lines of CLIs may be 200 deep (readable.DEPTH), of which a part of a message
    has 195."""
    events: list[Event] = [ToolCall("c", "n", nested(200)), Status("s", {"x": nested(199)})]
    assert load_events(dump_events(events)) == events
    message = Message("m", Role.USER, (DataPart(nested(195)),))
    assert load(Message, dump(message)) == message
    question = Question("q", "text", "?")
    for told in (
        AdapterInput("prompt", 0, message),
        AdapterInput("answer", 0, question=question, answer=Answer("q", "x", message=message)),
    ):
        assert load(AdapterInput, dump(told)) == told


def test_a_deep_question_can_be_read_again() -> None:
    told = AdapterInput(
        "answer", 0, question=Question("q", "text", "?", subject={"x": nested(198)})
    )
    assert load(AdapterInput, dump(told)) == told


# --- what agents say ---------------------------------------------------------------------------


def _line(**members: Any) -> bytes:
    return json.dumps(members).encode()


ODD: list[Any] = [None, True, 0, 1.5, "x", [], ["x"], {}, {"a": [None]}]
KNOWN: dict[str, dict[str, Any]] = {
    "text": {"text": "x"},
    "status": {"text": "x"},
    "tool_call": {"id": "c", "name": "n", "input": {}},
    "tool_result": {"id": "c", "output": "x", "isError": False},
    "artifact": {"artifactId": "a", "name": "n", "parts": [{"text": "x"}], "metadata": {}},
    "question": {
        "id": "q",
        "text": "?",
        "options": [{"id": "1", "name": "n", "kind": "choice"}],
        "data": {},
    },
    "auth_required": {"id": "q", "text": "?"},
    "usage": {"inputTokens": 1},
    "done": {"text": "x"},
    "failed": {"text": "x"},
    "rejected": {"text": "x"},
    "message": {"parts": [{"text": "x"}]},
}
CASES = [(kind, name) for kind, members in KNOWN.items() for name in members]


@each(("kind", "name"), CASES)
def test_any_output_of_a_program_can_be_stored_and_read(kind: str, name: str) -> None:
    """Where it cannot, the task is lost with the next restart."""
    for value in ODD:
        adapter = registry.load("jsonl")(AgentConfig("x"), SessionStart("/", "s"))
        adapter.prompt(Prompt("t", "c", Message("m", Role.USER, ())))
        events = list(adapter.receive_line(_line(**{**KNOWN[kind], "type": kind, name: value})))
        assert events
        assert load_events(dump_events(events)) == events


# --- a task, from its events -------------------------------------------------------------------

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def seen(task: Task) -> list[bytes]:
    """All that a client can see of the task, in every version."""
    return [orjson.dumps(codec.encode_task(task, None)) for codec in CODECS]


@each("seed", range(150))
def test_a_task_is_its_events(seed: int) -> None:
    """Written in groups of any size and read again, they make the same task and the same updates,
    so that every number means the same."""
    chance = random.Random(seed)
    prompt = Message("m", Role.USER, (TextPart("go"),), "t", "c")
    first = Task("t", "c", NOW, show_thoughts=seed % 2 == 0, history=[prompt])
    updates: list[Update] = []
    rows: list[tuple[int, bytes]] = []
    group: list[Event] = []
    time = NOW
    for number in range(80):
        if first.state.terminal:
            break
        event = some_event(chance, first, number)
        updates += first.apply(event, time)
        group.append(event)
        if chance.random() < 0.4 or first.state.terminal:
            rows.append((micros(time), dump_events(group)))
            group, time = [], time + timedelta(microseconds=chance.randrange(10**9))
    rows.append((micros(time), dump_events(group)))

    second = Task("t", "c", moment(micros(NOW)), show_thoughts=seed % 2 == 0, history=[prompt])
    again = [u for at, data in rows for e in load_events(data) for u in second.apply(e, moment(at))]
    assert again == updates
    assert second == first
    assert seen(second) == seen(first)


def test_options_of_a_conversation_are_kept() -> None:
    start = SessionStart("/w", "s", True, SessionOptions("m", "plan", 0.5), "/f")
    assert load(SessionStart, dump(start)) == start
    assert load(SessionStart, b'{"cwd":"/w","session_id":"s"}') == SessionStart("/w", "s")


def test_nothing_of_tests_is_written_into_the_checkout() -> None:
    assert not (CHECKOUT / ".hypothesis").exists()


def test_events_of_the_version_before_truncated_values_can_be_read() -> None:
    written = (
        b'[["ToolCall",{"id":"c","name":"Write","input":{"a":1},"parent":null}],'
        b'["ToolResult",{"id":"c","output":"ok","is_error":false,"name":null,"parent":null,'
        b'"changes":[{"path":"/w/a","kind":"create","diff":"+a"}]}],'
        b'["Question",{"id":"q","kind":"text","text":"?","options":[],"subject":null,'
        b'"free_text":true,"multiple":false}]]'
    )
    assert load_events(written) == [
        ToolCall("c", "Write", {"a": 1}),
        ToolResult("c", "ok", changes=(FileChange("/w/a", "create", "+a"),)),
        Question("q", "text", "?", free_text=True),
    ]
