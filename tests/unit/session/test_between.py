"""What happens when a CLI acts between two turns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bridge.adapter import unasked
from bridge.session.between import MOST, NAME, BetweenTurns, Unasked
from bridge.task.events import (
    AgentEvent,
    Done,
    Question,
    Started,
    Status,
    Text,
    Thought,
    ToolCall,
    Usage,
)

ASKED = Question("q", "permission", "May I?", subject={"name": "Bash", "input": {"a": 1}})


def heard(
    *events: AgentEvent, grace: float = 60.0, late: float = 60.0
) -> tuple[BetweenTurns, list[Unasked]]:
    between, reports = BetweenTurns(grace, late), list[Unasked]()
    between.report = reports.append
    between.receive(events)
    return between, reports


def acts(reports: Sequence[Unasked]) -> list[str]:
    return [one.act for one in reports]


async def test_a_question_is_refused_and_may_be_late() -> None:
    _, reports = heard(ASKED, unasked("request", "hook", {"b": 2}))
    assert reports == [
        Unasked("request", "Bash", "refused", {"a": 1}, ASKED),
        Unasked("request", "Bash", "stopped"),
        Unasked("request", "hook", "refused", {"b": 2}),
    ]


async def test_a_turn_of_its_own_is_stopped_once() -> None:
    between, reports = heard(unasked("turn", "goal"), unasked("turn", "goal"))
    assert acts(reports) == ["ignored", "stopped", "ignored"]
    assert between.busy


async def test_output_just_after_a_turn_may_belong_to_it() -> None:
    between, reports = heard(unasked("output", "x"), ToolCall("1", "Bash", {"command": "ls"}))
    assert acts(reports) == ["ignored", "ignored"]
    assert reports[1].input == {"command": "ls"}
    assert not between.busy


async def test_later_output_is_work() -> None:
    _, reports = heard(unasked("output", "x"), late=0.0)
    assert acts(reports) == ["ignored", "stopped"]


async def test_the_session_of_a_cli_that_does_not_stop_is_ended() -> None:
    between, reports = heard(unasked("turn", "goal"), grace=0.01)
    await asyncio.sleep(0.02)  # the grace
    between.receive([unasked("turn", "goal")])
    assert acts(reports) == ["ignored", "stopped", "ignored", "ended"]


async def test_a_cli_that_has_stopped_can_take_a_prompt() -> None:
    between, _ = heard(unasked("turn", "goal"), grace=0.01)
    await asyncio.sleep(0.02)  # the grace
    assert not between.busy


async def test_the_second_time_it_is_not_told_again() -> None:
    between, reports = heard(unasked("turn", "goal"), grace=0.01)
    between.begin()  # a turn of a task has ended
    await asyncio.sleep(0.02)  # the grace
    between.receive([ASKED])
    assert acts(reports)[2:] == ["refused", "ended"]


@pytest.mark.parametrize("event", [Text("x"), Thought("x")])
async def test_a_text_is_reported_once_and_is_no_work(event: AgentEvent) -> None:
    between, reports = heard(*[event] * 5)
    assert acts(reports) == ["ignored"]
    assert not between.busy


@pytest.mark.parametrize("event", [Started("s"), Status("x"), Status("x", {"type": "y"})])
async def test_other_events_mean_nothing(event: AgentEvent) -> None:
    assert heard(event, Usage(), Done())[1] == []


@pytest.mark.parametrize("before", [[], [ToolCall("1", "x", {})] * (2 * MOST)])
async def test_the_session_of_a_cli_that_asks_too_often_is_ended(before: list[AgentEvent]) -> None:
    """At once, and once between two turns: a question without an answer would stop the CLI."""
    between, reports = heard(*before, *[ASKED] * (3 * MOST))
    assert acts(reports).count("refused") == (0 if before else MOST)
    assert acts(reports).count("ended") == 1
    assert len(reports) == MOST + 2
    between.begin()
    reports.clear()
    between.receive([ASKED])
    assert acts(reports) == ["refused"]


async def test_names_are_cut() -> None:
    _, (report, *_) = heard(unasked("turn", "n" * 1000))
    assert report.name == "n" * NAME
