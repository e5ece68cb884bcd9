"""Adapters of programs without a protocol, as an author writes them."""

from __future__ import annotations

import json

import pytest

from bridge.adapter import (
    AgentConfig,
    AgentEvent,
    Answer,
    Done,
    Lines,
    Message,
    Prompt,
    Question,
    Role,
    SessionStart,
    Text,
    TextPart,
)
from bridge.adapter.line_mode import ALLOW, LineAdapter, TerminalAdapter, plain

LINES = Lines(terminal=True, end=r"^sage> $", question=r"\[y/N\] $", answers=("y", "n"))


class Sage(TerminalAdapter):
    name = "sage"
    title = "Sage"
    binary = "sage"
    lines = LINES


class Hidden(LineAdapter):
    """It asks for a terminal and does not say so to the sandbox."""

    name = "hidden"
    title = "Hidden"
    lines = LINES


def prompt(text: str) -> Prompt:
    return Prompt.of(Message("m", Role.USER, (TextPart(text),), "t", "c"))


def begun(kind: type[LineAdapter]) -> LineAdapter:
    config = AgentConfig("/opt/sage", runner=("/runner",), lines=Lines(end="of the operator"))
    adapter = kind(config, SessionStart("/", "s"))
    adapter.prompt(prompt("what is a bird"))
    return adapter


def heard(adapter: LineAdapter, **report: object) -> list[AgentEvent]:
    return [*adapter.receive_line(json.dumps(report).encode())]


def orders(adapter: LineAdapter) -> list[dict[str, object]]:
    return [json.loads(line) for line in adapter.data_to_send().splitlines()]


def test_a_turn_of_a_program_on_a_terminal() -> None:
    adapter = begun(Sage)
    (order,) = orders(adapter)
    assert order["run"] == {
        **{"argv": ["/opt/sage"], "input": "", "open": True, "pty": True},
        "env": {"TERM": "dumb"},
    }
    assert heard(adapter, tail="sage> ") == []
    assert orders(adapter) == [{"write": "what is a bird\n"}]
    (question,) = heard(adapter, tail="Look? [y/N] ")
    assert isinstance(question, Question)
    adapter.answer(question, Answer(question.id, "allow", (ALLOW,)))
    assert orders(adapter) == [{"write": "y\n"}]
    events = [*heard(adapter, line="Look? [y/N] An animal."), *heard(adapter, tail="sage> ")]
    assert [one for one in events if isinstance(one, Text | Done)] == [Text("An animal.\n"), Done()]


def test_a_terminal_that_the_sandbox_hides_is_an_error_of_the_author() -> None:
    with pytest.raises(ValueError, match="/dev/pts in writable_paths, as TerminalAdapter has"):
        begun(Hidden)


@pytest.mark.parametrize("text", ["/quit", " /quit", "\n!ls"])
def test_a_prompt_is_no_command(text: str) -> None:
    assert plain(text, "/!") == f"\u200b{text}"
    assert plain("a / b", "/!") == "a / b"
