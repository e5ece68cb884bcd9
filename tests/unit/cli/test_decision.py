"""The line of an answer, and its question in the history of a task."""

from __future__ import annotations

from bridge.cli.client.decision import asked_in, decision
from bridge.task.events import Option
from bridge.task.facts import Closed
from tests.support.cases import each

OPTIONS = (
    Option("o", "Allow", "allow_once"),
    Option("w", "Always", "allow_always"),
    Option("n", "No", "reject_once"),
    Option("r", "Red", "choice"),
    Option("b", "Blue", "choice"),
)
DECISIONS: dict[str, tuple[tuple[str, ...], bool, str, str]] = {
    "allowed": (("o",), True, "", "✓ allowed by you"),
    "by another client": (("o",), False, "", "✓ allowed by anna"),
    "always": (("w",), True, "", "✓ always allowed by you"),
    "denied": (("n",), True, "", "✗ denied by you"),
    "with a reason": (("n",), True, "too\nslow", "✗ denied by you: too slow"),
    "choices": (("r", "b"), True, "", "✓ answered by you: Red, Blue"),
    "words": ((), True, "the third", "✓ answered by you: the third"),
    "words of another client": ((), False, "", "· answered by anna"),
    "an unknown option": (("x",), False, "", "· answered by anna: x"),
}


@each("name", DECISIONS)
def test_a_decision_has_its_author(name: str) -> None:
    ids, mine, words, line = DECISIONS[name]
    text, style = decision(Closed("q", "anna", ids, "m"), OPTIONS, mine, words)
    assert text == line
    assert style == {"✓": "green", "✗": "red", "·": "dim"}[line[0]]


def test_the_question_of_an_answer_is_found_in_the_history() -> None:
    def message(identity: str, text: str) -> dict[str, object]:
        facts = {"type": "question", "questionId": identity, "kind": "permission", "options": []}
        return {"parts": [{"text": text}], "metadata": {"bridge": facts}}

    task = {"history": [message("q1", "one?"), message("q2", "two?"), {"parts": []}]}
    found = asked_in(task, "q1")
    assert found and found.request == "one?"
    assert asked_in(task, "q3") is None and asked_in({}, "q1") is None
