"""Texts of clients and agents that are as long as a request or a line can be. Code that takes time
with the square of a length would stop the server for all clients."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import InvalidParams
from bridge.files.folders import PATH_MAX
from bridge.runtime.extension import Profile, known_value
from bridge.sandbox.denied import explain
from bridge.session.redaction import MARK, Redactor, Secrets
from bridge.task import answers, text
from bridge.task.events import Option, Question, Text, ToolCall, bounded
from bridge.task.message import Message, Role, TextPart
from bridge.task.rules.approval_policy import Decision, Rule, decide
from bridge.workspace.paths import Workspaces
from tests.support.cases import each
from tests.support.hostile_text import FRAGMENTS, SHAPES, TURN, cpu_seconds, repeated, uses

LONG = 1_000_000
RULES = (
    Rule("deny", command="rm *"),
    Rule("deny", path="*/.env"),
    Rule("ask", command="git push*"),
    Rule("allow", path="src/*"),
    Rule("allow", tool="*"),
)
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jRmNHl0w5N_XgL0n3I9P"
CHOICE = Question("1", "choice", "1. One\n2. Two", (Option("a", "One"), Option("b", "Two")))


def slow(call: Callable[[str], object]) -> dict[str, float]:
    """The fragments of a text that keeps the event loop for longer than a turn of it may take. A
    tenth of the length shows that the time grows with its square."""
    took = {}
    for one in FRAGMENTS:
        hostile = repeated(one, LONG if one in SHAPES.values() else LONG // 10)
        took[one] = cpu_seconds(lambda: call(hostile))  # noqa: B023 - called at once
    return {one: seconds for one, seconds in took.items() if seconds > TURN}


def test_every_pattern_of_the_code_is_linear() -> None:
    """A pattern that is quadratic takes a second for 50,000 characters."""
    different = {(use.pattern, use.method): use for use in uses()}
    assert len(different) >= 90
    found = []
    for use in different.values():
        as_used: Any = getattr(use.pattern, use.method)
        for fragment in FRAGMENTS:
            hostile: Any = repeated(fragment, LONG // 20)
            if isinstance(use.pattern.pattern, bytes):
                hostile = hostile.encode()
            arguments = (hostile[:0], hostile) if use.method == "sub" else (hostile,)
            seconds = cpu_seconds(lambda: _all(as_used(*arguments)))  # noqa: B023 - called at once
            if seconds > TURN:
                found.append((use.place, use.pattern.pattern, fragment, seconds))
                break
    assert not found


def _all(result: Any) -> object:
    return list(result) if isinstance(result, Iterator) else result


# --- rules ---------------------------------------------------------------------------------------


@each("member", ["command", "file_path", "cwd", "content", "unknown", "/key"])
def test_rules_decide_about_a_long_request_in_time(member: str) -> None:
    def decided(value: Any) -> Decision:
        return decide(RULES, {"name": "Bash", "input": {member: value}}, "/work", os.path.realpath)

    assert not slow(decided)
    for many in (["a b"] * 50_000, {f"/{number}": "/x" for number in range(50_000)}):
        assert cpu_seconds(lambda: decided(many)) < TURN  # noqa: B023 - called at once


@each(
    "command",
    [
        ";".join(f"sudo sh x{n} y z w" for n in range(60_000)),
        "sudo sh " * 2_000,
        [f"sudo sh x{n}" for n in range(60_000)],
        "eval x y z " * 1_400,
    ],
    ids=["wrappers in pieces", "nested shells", "a list", "evaluators"],
)
def test_a_command_with_very_many_readings_is_shown_to_a_person(command: str) -> None:
    def decided() -> Decision:
        wish = {"name": "Bash", "input": {"command": command}}
        return decide(RULES, wish, "/work", os.path.realpath)

    assert cpu_seconds(decided) < TURN
    assert decided() == "ask"


@each("wish", [{"command": "x" * 20_000}, {"path": "a/" * 4_000}, {"a": [{"b": [[[[1]]]]}]}])
def test_no_rule_allows_what_was_not_read(wish: Any) -> None:
    subject = {"name": "Bash", "input": wish}
    assert decide(RULES, subject, "/work", os.path.realpath) == "ask"
    alone = [Rule("allow", command="*"), Rule("allow", path="*")]
    assert decide(alone, subject, "/work", os.path.realpath) == "ask"
    assert decide([Rule("allow", tool="Bash")], subject, "/work", os.path.realpath) == "allow"


def test_a_rule_that_denies_the_beginning_of_a_long_command_denies_it() -> None:
    wish = {"name": "Bash", "input": {"command": "rm -rf /; " + "x" * LONG}}
    assert decide(RULES, wish, "/work", os.path.realpath) == "deny"


# --- paths ---------------------------------------------------------------------------------------


@pytest.fixture
def deepest(tmp_path: Path) -> Iterator[str]:
    """A folder whose path is as long as a path can be."""
    made = [str(tmp_path)]
    while len(made[-1]) < PATH_MAX - 10:
        made.append(f"{made[-1]}/folder-x")
        os.mkdir(made[-1])
    yield made[-1]
    for path in made[:0:-1]:  # the library's removal is recursive
        os.rmdir(path)


@each("longest", [True, False])
def test_a_path_that_is_too_long_is_refused(tmp_path: Path, longest: bool) -> None:
    workspaces = Workspaces(str(tmp_path), [])
    name = "x" * 256 if longest else "a/" * (LONG // 2)
    for call in (workspaces.resolve, lambda path: workspaces.file(f"file:///{path}")):

        def refused(call: Callable[[str], object] = call) -> None:
            with pytest.raises(InvalidParams, match=r"has more than|names no file"):
                call(name)

        assert cpu_seconds(refused) < TURN


def test_every_path_is_refused_in_time(tmp_path: Path) -> None:
    workspaces = Workspaces(str(tmp_path), [])

    def refused(path: str) -> None:
        for call in (workspaces.resolve, lambda one: workspaces.file(f"file:///{one}")):
            with pytest.raises(InvalidParams):
                call(path)

    assert not slow(refused)


def test_a_path_as_long_as_a_path_can_be_is_taken(tmp_path: Path, deepest: str) -> None:
    assert Workspaces(str(tmp_path), []).resolve(deepest) == deepest


def test_the_search_for_a_denied_path_takes_little_time(tmp_path: Path, deepest: str) -> None:
    """Also for very many paths in the words of an error, and for deep ones."""
    rules = {"profile": "landlock", "hide": [str(tmp_path / str(n)) for n in range(100)]}

    def explained(words: str) -> None:
        explain(f"EACCES: permission denied, open '{deepest}' {words}", rules, ended=True)
        explain(f"EACCES: {words}", rules, ended=True)

    assert not slow(explained)


# --- texts ---------------------------------------------------------------------------------------

SECRETS = Secrets(["a-known+secret/of=this"], patterns=True)


@each(
    "call",
    [
        SECRETS.clean,
        SECRETS.found,
        SECRETS.beginning,
        lambda value: Redactor(SECRETS).clean([Text(value)]),
        lambda value: SECRETS.clean_all(ToolCall("1", value, {value: value})),
        text.readable,
        text.exact,
        text.one_line,
        text.capped,
        lambda value: text.json_object(value.encode()),
        lambda value: text.json_object(b'{"a":"' + value.encode() + b'\xff"}'),
        lambda value: bounded(ToolCall("1", "x", [value, value])),
        lambda value: answers.read_answer(CHOICE, said(value)),
        lambda value: answers.hint(CHOICE, said(value)),
        answers.is_word,
        lambda value: Profile(keywords=("one", "two words", "x" * 20)).found_in(value),
        lambda value: re.search("no agent", str(unknown(value))),
    ],
)
def test_no_text_takes_longer_than_a_turn(call: Callable[[str], object]) -> None:
    assert not slow(call)


def said(value: str) -> Message:
    return Message("1", Role.USER, (TextPart(value),))


def unknown(name: str) -> InvalidParams:
    with pytest.raises(InvalidParams) as refused:
        known_value("agent", name, {"main": 1, "other": 2})
    return refused.value


@each("before", ["", "x ", "token=", '"', "Bearer ", "a.", "key-", "jwt:"])
def test_the_secret_parts_of_a_token_are_redacted_wherever_it_stands(before: str) -> None:
    clean = SECRETS.clean(f"{before}{JWT}\n")
    assert MARK in clean
    assert not any(part in clean for part in JWT.split(".")[1:])
