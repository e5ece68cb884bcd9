"""The request and the task of a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from bridge.task.message import Message, MessageTrace, Role
from bridge.task.state import Task
from bridge.telemetry.log_context import TASKS, KnownTasks, context
from bridge.telemetry.observation import REQUEST, RequestInfo
from bridge.telemetry.tracing.context import TraceContext, traced

BEGAN = RequestInfo("rest", "began", "::1")
NOW = RequestInfo("grpc", "now", "::2")


def task(name: str) -> Task:
    return Task(name, "c", datetime.now(UTC), owner="ide")


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    TASKS.add("main", task("t"), BEGAN)
    yield
    TASKS.drop("t")


def test_a_line_about_a_task_has_the_request_that_began_it() -> None:
    assert context({"task": "t", "logger": "bridge.session.turn"}) == {
        **{"agent": "main", "principal": "ide", "context": "c"},
        **{"request_id": "began", "binding": "rest", "peer": "::1"},
    }
    assert TASKS.request_of("t") == "began"


def test_a_line_of_a_request_has_that_request() -> None:
    token = REQUEST.set(NOW)
    try:
        found = context({"task": "t", "logger": "bridge.transports.sse"})
        assert (found["request_id"], found["agent"]) == ("now", "main")
        found = context({"logger": "bridge.auth.authentication"})
        assert found == {"request_id": "now", "binding": "grpc", "peer": "::2"}
        # A reader of a session still sees the request that began the session.
        assert context({"task": "t", "logger": "bridge.session.turn"})["request_id"] == "began"
        assert context({"logger": "bridge.session.turn"}) == {}
    finally:
        REQUEST.reset(token)


def test_a_line_has_the_span_of_its_request_or_of_the_turn() -> None:
    trace, span = "a" * 32, "b" * 16
    one = task("traced")
    prompt = Message("m", Role.USER, (), trace=MessageTrace(f"00-{trace}-{span}-01"))
    one.history.append(prompt)
    began = replace(BEGAN, trace=TraceContext(trace, span, True))
    known = KnownTasks()
    known.add("main", one, began)
    turn = traced(one)
    assert turn and turn.span_id != span
    found = known.members("traced")
    assert (found["trace_id"], found["span_id"]) == (trace, turn.span_id)
    token = REQUEST.set(replace(NOW, trace=TraceContext(trace, span, False)))
    try:
        line = context({"task": "t", "logger": "bridge.transports.sse"})
        assert (line["trace_id"], line["span_id"]) == (trace, span)
    finally:
        REQUEST.reset(token)


def test_a_line_without_a_request_or_a_task_has_no_context() -> None:
    assert context({"logger": "bridge.transports.sse"}) == {}
    assert context({"logger": "bridge.x", "task": "other"}) == {}
    assert context({"logger": "bridge.x", "task": 5}) == {}


def test_a_task_without_a_request_has_its_other_members() -> None:
    tasks = KnownTasks()
    tasks.add("main", task("restored"), None)
    assert tasks.members("restored") == {"agent": "main", "principal": "ide", "context": "c"}
    assert tasks.request_of("restored") is None
    tasks.drop("restored")
    tasks.drop("restored")
    assert (len(tasks), tasks.request_of("restored")) == (0, None)


def test_the_number_of_known_tasks_has_a_limit() -> None:
    tasks = KnownTasks(most=3)
    for number in range(5):
        tasks.add("main", task(str(number)), None)
    assert len(tasks) == 3
    assert tasks.members("1") == {}
    assert tasks.members("4")
