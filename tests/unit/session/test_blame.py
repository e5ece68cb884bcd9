"""The text for an exception of an adapter names the place in the code of its author."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

from bridge.adapter import (
    Adapter,
    AgentConfig,
    AgentEvent,
    Answer,
    Launch,
    Option,
    Prompt,
    Question,
    SessionStart,
)
from bridge.session.blame import culprit, failure_of


class Parrot(Adapter):
    name = "parrot"
    title = "Parrot"

    def launch(self) -> Launch:
        return Launch(_words(self.config))

    def prompt(self, prompt: Prompt) -> None:
        self.send(prompt.text)  # type: ignore[arg-type]

    def receive_line(self, line: bytes) -> Iterable[AgentEvent]:
        yield from ()


def _words(config: Any) -> Any:
    return config.nothing


def caught(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:
        assert error.__traceback__
        return error.with_traceback(error.__traceback__.tb_next)  # without this function
    raise AssertionError


@pytest.fixture
def parrot() -> Parrot:
    return Parrot(AgentConfig("parrot"), SessionStart("/", "s"))


def line_of(code: Callable[..., object], after: int) -> int:
    return inspect.getsourcelines(code)[1] + after


def test_the_last_line_of_the_author_is_named(parrot: Parrot) -> None:
    error = caught(parrot.launch)
    assert culprit(error) is parrot
    failed = failure_of(parrot, error)
    assert failed.reason == "adapter-error"
    assert failed.text == (
        f"The adapter parrot failed in _words() at test_blame.py:{line_of(_words, 1)}: "
        "AttributeError: 'AgentConfig' object has no attribute 'nothing'. The server's log has the "
        "details."
    )


def test_the_line_of_the_author_is_named_if_the_contract_raises(parrot: Parrot) -> None:
    error = caught(lambda: parrot.prompt(type("", (), {"text": "words"})()))
    place = f"in prompt() at test_blame.py:{line_of(Parrot.prompt, 1)}: TypeError: "
    assert place in failure_of(parrot, error).text


def test_a_method_without_a_line_in_the_traceback_is_named(parrot: Parrot) -> None:
    error = TypeError("'NoneType' object is not iterable")
    line = line_of(Parrot.receive_line, 0)
    text = failure_of(parrot, error, "receive_line").text
    assert f"failed in receive_line() at test_blame.py:{line}: TypeError: 'None" in text


def test_a_missing_method_names_the_class(parrot: Parrot) -> None:
    asked = Question("q", "permission", "May it?", (Option("y", "Yes", "allow_once"),))
    error = caught(partial(parrot.answer, asked, Answer("q", "y")))
    text = failure_of(parrot, error).text
    assert "parrot failed in Parrot: NotImplementedError: parrot asked a question and has" in text


def test_an_error_of_the_bridge_is_of_no_adapter() -> None:
    assert culprit(caught(lambda: int("x"))) is None
