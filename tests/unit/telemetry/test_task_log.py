"""The lines about tasks."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bridge.task.events import (
    Answer,
    Answered,
    Done,
    Event,
    Failed,
    Prompted,
    Question,
    Queued,
    Started,
    Status,
    Text,
    Usage,
)
from bridge.task.state import Task
from bridge.telemetry.log_context import KnownTasks
from bridge.telemetry.observation import REQUEST, RequestInfo
from bridge.telemetry.task_log import TaskLog

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)


class Turn:
    """A task whose events happen one second apart."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self.known = KnownTasks()
        self.log = TaskLog("main", lambda task: ("cold", "/x"), self.known)
        self.task = Task("t", "c", BEGUN, owner="ide")
        self._caplog = caplog
        self._time = BEGUN

    def begin(self) -> None:
        token = REQUEST.set(RequestInfo("rest", "began", "::1"))
        self.log.began(self.task)
        REQUEST.reset(token)

    def happen(self, *events: Event) -> None:
        for event in events:
            self._time += timedelta(seconds=1)
            self.task.apply(event, self._time)
            self.log.recorded(self.task, [event], self._time)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [vars(record) for record in self._caplog.records]

    @property
    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]


@pytest.fixture
def turn(caplog: pytest.LogCaptureFixture) -> Turn:
    return Turn(caplog)


def test_a_task_has_a_line_for_its_start_and_its_end(turn: Turn) -> None:
    turn.begin()
    turn.happen(Queued(1, 0), Prompted(), Started("s", "opus"), Text("a secret plan"))
    turn.happen(Usage(400, 80, cost_usd=0.0032), Done())
    assert turn.events == ["task.started", "task.ended"]
    started, ended = turn.lines
    for line in (started, ended):
        assert (line["task"], line["context"], line["principal"]) == ("t", "c", "ide")
        assert (line["agent"], line["request_id"], line["peer"]) == ("main", "began", "::1")
    assert started["queued_seconds"] == 2.0
    assert (started["start"], started["cwd"]) == ("cold", "/x")
    assert (ended["state"], ended["reason"], ended["seconds"]) == ("completed", None, 6.0)
    assert (ended["model"], ended["input_tokens"], ended["output_tokens"]) == ("opus", 400, 80)
    assert (ended["cost_usd"], ended["levelname"]) == (0.0032, "INFO")
    assert ended["message"] == "task completed after 6.0 s"
    assert "plan" not in str(turn.lines)
    assert len(turn.known) == 0


def test_a_failed_task_is_a_warning_with_its_reason(turn: Turn) -> None:
    turn.begin()
    turn.happen(Failed("no login", "auth"))
    (line,) = turn.lines
    assert (line["event"], line["levelname"], line["reason"]) == ("task.ended", "WARNING", "auth")


def test_output_without_a_prompt_also_starts_a_task(turn: Turn) -> None:
    turn.begin()
    turn.happen(Text("a"), Text("b"), Done())
    assert turn.events == ["task.started", "task.ended"]


def test_an_answer_has_the_request_of_the_client_that_gave_it(turn: Turn) -> None:
    turn.begin()
    turn.happen(Prompted(), Question("q", "permission", "Run rm?"))
    token = REQUEST.set(RequestInfo("grpc", "answers", "::2"))
    turn.happen(Answered(Answer("q", "yes", by="boss")))
    REQUEST.reset(token)
    _, asked, answered = turn.lines
    assert (asked["event"], asked["question"], asked["kind"]) == (
        *("question.asked", "q", "permission"),
    )
    assert asked["request_id"] == "began"
    assert (answered["event"], answered["answered_by"]) == ("question.answered", "client")
    assert (answered["principal"], answered["request_id"]) == ("boss", "answers")
    assert (answered["seconds"], answered["peer"], answered["task"]) == (1.0, "::2", "t")
    assert "rm" not in asked["message"]


def test_a_timeout_and_a_rule_answer_for_no_request(turn: Turn) -> None:
    turn.begin()
    turn.happen(Prompted(), Question("q", "permission", "?"))
    token = REQUEST.set(RequestInfo("grpc", "another", "::2"))
    turn.happen(Answered(Answer("q", "", by="timeout")))
    turn.happen(Status("allowed", {"type": "decision", "by": "rule"}))
    REQUEST.reset(token)
    timeout, rule = turn.lines[-2:]
    assert (timeout["answered_by"], rule["answered_by"]) == ("timeout", "rule")
    assert (timeout["request_id"], rule["request_id"]) == ("began", "began")
    assert (timeout["principal"], rule["question"]) == ("ide", None)


def test_a_task_of_an_earlier_server_has_no_request_and_no_start(turn: Turn) -> None:
    token = REQUEST.set(RequestInfo("grpc", "another", "::2"))
    turn.happen(Prompted(), Text("a"), Done())
    REQUEST.reset(token)
    (line,) = turn.lines
    assert (line["event"], line["agent"], "request_id" in line) == ("task.ended", "main", False)
