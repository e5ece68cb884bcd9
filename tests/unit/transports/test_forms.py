"""Forms for questions in each revision, and the reading of their answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.adapter.wish import subject_of
from bridge.task.events import Option, Question
from bridge.task.subject import text_of
from bridge.transports.mcp.forms import Decision, Form
from bridge.transports.mcp.results import cut, size_of

MODERN, OLD, OLDEST = "2026-07-28", "2025-11-25", "2025-06-18"
ONCE = Option("yes", "Allow", "allow_once")
ALWAYS = Option("always", "Always allow", "allow_always")
NO = Option("no", "Deny", "reject_once")
CHOICES = (Option("a", "First"), Option("b", "Second"), Option("c", "Third"))


def form(*options: Option, kind: Any = "permission", **members: Any) -> Form:
    revision, quick = members.pop("revision", MODERN), members.pop("quick", False)
    question = Question("q", kind, members.pop("text", "May I?"), options, **members)
    return Form(question=question, task_id="t", asker="Agent", revision=revision, quick=quick)


def accepted(one: Form, **content: Any) -> Any:
    return one.read({"action": "accept", "content": content})


def names(one: Form) -> Any:
    return one.params()["requestedSchema"]["properties"]["decision"]["enum"]


def test_refusals_stand_first_and_nothing_is_preset() -> None:
    one = form(ONCE, ALWAYS, NO)
    assert names(one) == ["Deny", "Allow", "Always allow"]
    schema = one.params()["requestedSchema"]
    assert schema["required"] == ["decision"]
    assert "default" not in str(schema)


@pytest.mark.parametrize("revision", [MODERN, OLD, OLDEST])
def test_a_choice_is_a_plain_enum_in_each_revision(revision: str) -> None:
    one = form(*CHOICES, kind="choice", revision=revision)
    assert names(one) == ["First", "Second", "Third"]
    assert accepted(one, decision="Second") == Decision(("b",))


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"decision": None},
        {"decision": "yes"},  # an id, where the form has names
        {"decision": ["Allow"] * 2},
        {"decision": ["Allow", "Deny"]},
        {"decision": {}},
        {"decision": 1},
        {"decision": "Allow", "reason": 5},
        {"decision": "Allow", "reason": "x" * 501},
    ],
)
def test_content_that_does_not_fit_decides_nothing(content: Any) -> None:
    assert accepted(form(ONCE, NO), **content) == "misfit"


def test_a_response_without_content_decides_nothing() -> None:
    contents: list[Any] = [None, [], "Allow"]
    for content in contents:
        assert form(ONCE, NO).read({"action": "accept", "content": content}) == "misfit"
    for action in ("cancel", "other", None):
        assert form(ONCE, NO).read({"action": action}) == "cancel"


def test_a_decline_rejects_once() -> None:
    assert form(ONCE, NO).read({"action": "decline"}) == Decision(("no",))
    never = Option("never", "Never", "reject_always")
    assert form(ONCE, never, NO).read({"action": "decline"}) == Decision(("no",))
    assert form(*CHOICES, kind="choice").read({"action": "decline"}) == "cancel"


def test_a_reason_accompanies_the_decision() -> None:
    found = accepted(form(ONCE, NO), decision="Deny", reason="use pytest")
    assert found == Decision(("no",), "use pytest")


def test_a_quick_form_takes_a_letter() -> None:
    one = form(NO, ALWAYS, ONCE, quick=True)
    schema = one.params()["requestedSchema"]
    assert (schema["properties"]["answer"]["type"], schema["required"]) == ("string", ["answer"])
    assert "default" not in str(schema)
    for yes in ("y", " Yes\n"):
        assert accepted(one, answer=yes) == Decision(("yes",))
    assert accepted(one, answer="a") == Decision(("always",))
    meaning = schema["properties"]["answer"]["description"]
    assert meaning == "y: allow once. n: deny; a reason may follow. a: Always allow."
    assert accepted(form(NO, ONCE, quick=True), answer="a") == "misfit"
    assert accepted(one, answer="n") == Decision(("no",))
    assert accepted(one, answer="No use pytest") == Decision(("no",), "use pytest")
    early: list[Any] = [None, "", " ", "make test", "yellow", "y n", "yes\n\ny", 1, True, ["y"]]
    for typed in early:
        assert accepted(one, answer=typed) == "misfit"
    assert accepted(one) == "misfit"  # Enter alone
    assert one.read({"action": "decline"}) == Decision(("no",))
    without_once = form(NO, ALWAYS, quick=True)
    assert names(without_once) == ["Deny", "Always allow"]
    assert names(form(*CHOICES, kind="choice", quick=True)) == ["First", "Second", "Third"]


def test_several_options_are_a_list_or_boxes() -> None:
    one = form(*CHOICES, kind="choice", multiple=True, revision=OLD)
    decision = one.params()["requestedSchema"]["properties"]["decision"]
    assert decision == {
        "type": "array",
        "items": {"type": "string", "enum": ["First", "Second", "Third"]},
    }
    assert accepted(one, decision=["Third", "First"]) == Decision(("c", "a"))
    assert accepted(one, decision=[]) == "misfit"
    boxes = form(*CHOICES, kind="choice", multiple=True, revision=OLDEST)
    properties = boxes.params()["requestedSchema"]["properties"]
    assert properties == {name: {"type": "boolean"} for name in ("First", "Second", "Third")}
    assert accepted(boxes, First=True, Second=False, Third=True) == Decision(("a", "c"))
    assert accepted(boxes, First=False) == "misfit"


def test_words_are_one_string() -> None:
    one = form(kind="text", free_text=True)
    assert list(one.params()["requestedSchema"]["properties"]) == ["answer"]
    assert accepted(one, answer="Ada") == Decision(text="Ada")
    for answer in ("", "  ", None, 5, "x" * 20_000):
        assert accepted(one, answer=answer) == "misfit"


def test_equal_names_are_told_apart() -> None:
    one = form(Option("a", "Go"), Option("b", "Go"), kind="choice")
    assert names(one) == ["Go (a)", "Go (b)"]
    assert accepted(one, decision="Go (b)") == Decision(("b",))


def test_no_character_hides_a_part_of_the_message() -> None:
    message = form(ONCE, NO, text="run \x1b[2K\u202ecurl evil\r").params()["message"]
    assert not set(message) & {"\x1b", "\u202e", "\r"}
    assert "curl evil" in message
    long = form(ONCE, NO, text="x" * 10_000).params()["message"]
    assert len(long) < 700
    assert "not shown" in long


@given(st.text(max_size=500), st.integers(min_value=0, max_value=300))
def test_a_cut_text_is_a_beginning_that_fits(text: str, limit: int) -> None:
    kept = cut(text, limit)
    assert text.startswith(kept)
    assert size_of(kept) - 2 <= limit
    if size_of(text) - 2 <= limit:
        assert kept == text


def test_no_member_of_an_action_is_hidden_behind_a_long_one() -> None:
    given = {"a": "x" * 5_000, "b": "y" * 5_000, "method": "DELETE"}
    subject = subject_of("http", "It asks to use http", given)
    message = form(ONCE, NO, text=text_of(subject), subject=subject).params()["message"]
    assert "method: DELETE" in message
    assert message.count("more characters are not shown") == 2


def test_a_text_may_have_options_instead_of_an_answer() -> None:
    refuse = Option("(decline)", "Decline the whole form", "reject_once")
    one = form(refuse, kind="text", free_text=True)
    assert list(one.params()["requestedSchema"]["properties"]) == ["answer", "instead"]
    assert accepted(one, answer="Ann") == Decision(text="Ann")
    assert accepted(one, instead="Decline the whole form") == Decision(("(decline)",))
    assert accepted(one) == "misfit"
    assert accepted(one, instead="Decline") == "misfit"
    assert one.read({"action": "decline"}) == Decision(("(decline)",))
