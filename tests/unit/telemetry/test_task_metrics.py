"""The metrics of tasks and requests: events go in, and the page of the registry comes out."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bridge import errors
from bridge.task.events import (
    Answer,
    Answered,
    Canceled,
    Done,
    Event,
    Failed,
    Interrupted,
    Option,
    Prompted,
    Question,
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
from bridge.task.silence import silence
from bridge.task.state import Task
from bridge.telemetry.metrics.catalog import CATALOG, MOST_MODELS, REASONS
from bridge.telemetry.metrics.exposition import Exposition
from bridge.telemetry.metrics.requests import RequestMetrics, code_of
from bridge.telemetry.metrics.tasks import TaskMetrics
from bridge.telemetry.metrics.tools import kind_of
from bridge.telemetry.observation import AnsweredRequest, RequestInfo
from tests.support import documents, prometheus
from tests.support.metrics_table import READ_BY_TWO_AGENTS
from tests.support.prometheus import Page

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
MOST_SERIES = 600


class Observed:
    """A registry with agents, and a clock of its own."""

    def __init__(self, *agents: str) -> None:
        self.exposition = Exposition(lambda: ())
        self.started = "cold"
        self.agents = {
            one: TaskMetrics(self.exposition.agent(one), lambda task: self.started)
            for one in agents
        }

    @property
    def page(self) -> Page:
        return Page(self.exposition.page().decode())

    def run(self, agent: str, *events: tuple[float, Event], name: str = "t") -> Task:
        """A task with these events, each with its time in seconds."""
        task, observer = Task(name, "c", BEGIN), self.agents[agent]
        observer.began(task)
        for seconds, event in events:
            now = BEGIN + timedelta(seconds=seconds)
            task.apply(event, now)
            observer.recorded(task, [event], now)
        return task


@pytest.fixture
def one() -> Observed:
    return Observed("a")


ENDS: Sequence[tuple[Event, str, str]] = (
    (Done(), "completed", ""),
    (Canceled(), "canceled", ""),
    (Rejected("no"), "rejected", ""),
    (Failed("no", "auth"), "failed", "auth"),
    (Failed("no", "a-word-of-a-cli"), "failed", "other"),
    (TimedOut("late"), "failed", "timeout"),
    (Interrupted("down"), "failed", "shutdown"),
)


@pytest.mark.parametrize(("end", "state", "reason"), ENDS)
def test_each_end_counts_with_its_reason(
    one: Observed, end: Event, state: str, reason: str
) -> None:
    names = {"agent": "a", "state": state, "reason": reason}
    assert one.page.value("bridge_tasks_total", **names) == 0  # there before its first increment
    one.run("a", (1, Prompted()), (9, end))
    page = one.page
    assert page.value("bridge_tasks_total", **names) == 1
    assert sum(page.samples["bridge_tasks_total"].values()) == 1
    assert page.value("bridge_task_duration_seconds_sum", agent="a") == 9
    assert len(one.agents["a"]) == 0


def test_a_status_about_silence_is_no_event_of_the_agent(one: Observed) -> None:
    task = one.run("a", (1, Prompted()))
    now = BEGIN + timedelta(seconds=121)
    said = silence(task, 120, now)
    task.apply(said, now)
    one.agents["a"].recorded(task, [said], now)
    assert one.agents["a"].last_event(task) == BEGIN + timedelta(seconds=1)
    assert one.page.value("bridge_first_event_seconds_count", agent="a", start="cold") == 0


def test_the_times_of_a_task(one: Observed) -> None:
    one.started = "resumed"
    one.run(
        "a",
        (2, Queued(1, 0)),
        (5, Prompted()),
        (6, Text("x")),
        (7, Text("y")),
        (8, Done()),
    )
    page = one.page
    assert page.value("bridge_task_queue_seconds_sum", agent="a") == 5
    assert page.value("bridge_first_event_seconds_sum", agent="a", start="resumed") == 1
    assert page.value("bridge_first_event_seconds_count", agent="a", start="resumed") == 1
    assert page.value("bridge_first_event_seconds_count", agent="a", start="cold") == 0


def test_the_last_event_is_known_until_the_end(one: Observed) -> None:
    task = one.run("a", (1, Prompted()), (4, Text("x")))
    assert one.agents["a"].last_event(task) == BEGIN + timedelta(seconds=4)
    one.agents["a"].forget(["another"])
    assert one.agents["a"].last_event(task) == task.status_time


def test_tools_have_their_kind_outcome_and_time(one: Observed) -> None:
    one.run(
        "a",
        (0, Prompted()),
        (1, ToolCall("1", "Bash", {})),
        (2, ToolCall("2", "Read", {})),
        (4, ToolResult("1", "ok")),
        (5, ToolResult("2", "no", is_error=True)),
        (5, ToolResult("unknown", "no")),
        (6, ToolCall("3", "mcp__server__read", {})),
        (9, Done()),
    )
    page = one.page
    calls = {k: v for k, v in page.samples["bridge_tool_calls_total"].items() if v}
    assert {tuple(sorted(dict(k).items())) for k in calls} == {
        (("agent", "a"), ("kind", kind), ("outcome", outcome))
        for kind, outcome in (("execute", "ok"), ("read", "error"), ("other", "error"))
    }
    assert page.value("bridge_tool_duration_seconds_sum", agent="a", kind="execute") == 3


@pytest.mark.parametrize(
    ("by", "answered_by"), [("ide", "client"), ("timeout", "timeout"), ("limit", "timeout")]
)
def test_a_question_has_the_time_until_its_answer(one: Observed, by: str, answered_by: str) -> None:
    question = Question("q", "permission", "May it?", (Option("y", "Yes"),))
    answered = Answered(Answer("q", "yes", by=by))
    one.run("a", (0, Prompted()), (1, question), (21, answered), (22, Done()))
    names = {"agent": "a", "kind": "permission", "answered_by": answered_by}
    assert one.page.value("bridge_question_wait_seconds_sum", **names) == 20


@pytest.mark.parametrize(("end", "count"), [(TimedOut("late"), 1), (Canceled(), 0), (Done(), 0)])
def test_a_question_that_ends_its_task_by_timeout_counts(
    one: Observed, end: Event, count: int
) -> None:
    one.run("a", (0, Prompted()), (1, Question("q", "text", "Who?")), (31, end))
    names = {"agent": "a", "kind": "text", "answered_by": "timeout"}
    key = prometheus.series("bridge_question_wait_seconds_count", **names)
    assert one.page[key] == count


def test_a_rule_answers_at_once(one: Observed) -> None:
    decided = Status("Allowed", {"type": "decision", "questionId": "q", "by": "rule"})
    one.run("a", (0, Prompted()), (1, decided), (2, Done()))
    names = {"agent": "a", "kind": "permission", "answered_by": "rule"}
    assert one.page.value("bridge_question_wait_seconds_count", **names) == 1


def test_the_last_usage_of_a_turn_counts_once(one: Observed) -> None:
    cache = {"cacheReadTokens": 7, "cacheCreationTokens": 3, "other": 9}
    one.run(
        "a",
        (0, Prompted()),
        (1, Started(model="m")),
        (2, Usage(1, 1, 2, 0.1)),
        (3, Usage(10, 20, 40, 0.5, cache)),
        (4, Done()),
    )
    found = {dict(k)["type"]: v for k, v in one.page.samples["bridge_tokens_total"].items()}
    assert found == {"input": 10, "output": 20, "cache_read": 7, "cache_creation": 3}
    assert one.page.value("bridge_cost_usd_total", agent="a", model="m") == 0.5


def test_a_task_from_before_the_first_observation_counts_its_end(one: Observed) -> None:
    task = Task("old", "c", BEGIN)
    task.apply(Prompted(), BEGIN)
    task.apply(Text("x"), BEGIN)
    now = BEGIN + timedelta(seconds=30)
    task.apply(Done(), now)
    one.agents["a"].recorded(task, [Done()], now)
    assert one.page.value("bridge_task_duration_seconds_sum", agent="a") == 30
    assert one.page.value("bridge_task_queue_seconds_count", agent="a") == 0


def test_a_clock_that_was_set_back_gives_no_negative_time(one: Observed) -> None:
    one.run("a", (0, Prompted()), (-5, Done()))
    assert one.page.value("bridge_task_duration_seconds_sum", agent="a") == 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Bash", "execute"),
        ("run_shell_command", "execute"),
        ("WebFetch", "fetch"),
        ("MultiEdit", "edit"),
        ("read_file", "read"),
        ("Grep", "search"),
        ("TodoWrite", "think"),
        ("switch_mode", "switch_mode"),
        ("rm", "delete"),
        ("mcp__files__read", "other"),
        ("frobnicate", "other"),
        ("", "other"),
        ("read " + "x" * 80, "other"),
    ],
)
def test_the_kind_of_a_tool(name: str, kind: str) -> None:
    assert kind_of(name) == kind


# --- requests ------------------------------------------------------------------------------------


def answered(metrics: RequestMetrics, error: BaseException | None = None, **info: Any) -> None:
    about = RequestInfo(info.get("binding", "jsonrpc"))
    operation = info.get("operation", "send")
    metrics.answered(AnsweredRequest(about, operation, "1.0", "p", seconds=0.01, error=error))


def test_a_request_counts_by_its_code(one: Observed) -> None:
    refused = Counter[str]()
    metrics = RequestMetrics(one.exposition, refused)
    answered(metrics)
    answered(metrics, errors.TooManyRequests("later"))
    answered(metrics, RuntimeError("secret"), binding="strange")
    found = {
        (dict(k)["binding"], dict(k)["code"]): v
        for k, v in one.page.samples["bridge_requests_total"].items()
    }
    assert found == {
        ("jsonrpc", "ok"): 1,
        ("jsonrpc", "too_many_requests"): 1,
        ("other", "internal_error"): 1,
    }
    assert dict(refused) == {"limit": 1}
    assert "secret" not in one.page.text


def test_a_client_that_has_left_is_no_error_of_the_server() -> None:
    assert code_of(asyncio.CancelledError()) == "canceled"
    assert code_of(errors.TaskNotFound("no")) == "task_not_found"


# --- the registry --------------------------------------------------------------------------------


def ten_thousand(chance: random.Random) -> Iterator[tuple[str, list[tuple[float, Event]]]]:
    """Tasks of two agents with 25 models each, every end and reason, tools, questions."""
    tools = ("Read", "Edit", "Bash", "Grep", "WebFetch", "Task", "mcp__x__y")
    ends = [*(end for end, _, _ in ENDS), *(Failed("no", reason) for reason in REASONS)]
    for number in range(10_000):
        question = Question("q", "permission", "May it?", (Option("y", "Yes"),))
        yield (
            f"agent-{number % 2}",
            [
                (1, Prompted()),
                (2, Started(model=f"model-{number % 50}")),
                (3, ToolCall("t", tools[number % len(tools)], {})),
                (4, ToolResult("t", "x", is_error=number % 3 == 0)),
                (5, question),
                (6, Answered(Answer("q", "yes", by=("ide", "timeout")[number % 2]))),
                (7, Usage(1, 1, 2, 0.01, {"cacheReadTokens": 1, "cacheCreationTokens": 1})),
                (8, Text(f"text {chance.random()}")),
                (9, ends[number // 2 % len(ends)]),
            ],
        )


def test_ten_thousand_tasks_of_fifty_models_make_few_series() -> None:
    """And a request of each common operation over two bindings. Takes a second for its tasks."""
    both = Observed("agent-0", "agent-1")
    for number, (agent, events) in enumerate(ten_thousand(random.Random(1))):
        both.started = ("cold", "warm", "resumed")[number % 3]
        both.run(agent, *events, name=str(number))
    requests = RequestMetrics(both.exposition, Counter())
    for binding in ("jsonrpc", "rest"):
        for operation in ("send", "stream", "get"):
            answered(requests, binding=binding, operation=operation)
            answered(requests, errors.Unavailable("later"), binding=binding, operation=operation)
    page = both.page
    models = {dict(key)["model"] for key in page.samples["bridge_tokens_total"]}
    assert len(models) == MOST_MODELS + 1 and "other" in models
    assert sum(page.samples["bridge_tasks_total"].values()) == 10_000
    assert sum(page.samples["bridge_tokens_total"].values()) == 40_000
    assert page.series + READ_BY_TWO_AGENTS <= MOST_SERIES
    text = " ".join(documents.METRICS.read_text("utf-8").split())
    assert f"of 50 models and 7 kinds of tools it had {page.series + READ_BY_TWO_AGENTS}." in text


def test_the_page_of_metrics_has_the_catalog() -> None:
    page = documents.METRICS.read_text("utf-8")
    assert documents.with_metrics(page) == page
    assert all(f"| `{one.shown}` |" in page for one in CATALOG)


def test_no_label_can_have_the_value_of_a_client() -> None:
    labels = {label for family in CATALOG for label in family.labels}
    forbidden = {"task", "context", "principal", "path", "tool", "peer", "user", "cwd", "name"}
    assert labels.isdisjoint(forbidden)
