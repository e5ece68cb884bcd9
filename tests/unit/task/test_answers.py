"""The meaning of a client's message as the answer to a question."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from bridge.task.answers import hint, is_hasty, is_word, read_answer
from bridge.task.events import Option, OptionKind, Question, QuestionKind
from bridge.task.message import DataPart, Message, Part, RawPart, Role, TextPart
from tests.support.cases import each
from tests.support.questions import ALLOW, BLUE, CHOICE, DARK, DENY, PERMISSION, PLAN, RED, SEVERAL

NEVER = Option("deny_always", "Never again", "reject_always")

WORDS = Question("q", "text", "Your name?", free_text=True)


def message(*parts: Part | str) -> Message:
    made = tuple(TextPart(part) if isinstance(part, str) else part for part in parts)
    return Message("m", Role.USER, made)


def chosen(question: Question, *parts: Part | str) -> list[str] | None:
    """The ids of the options in the answer; None where it was not understood."""
    answer = read_answer(question, message(*parts))
    return None if answer is None else [option.id for option in answer.options]


def data(**members: Any) -> DataPart:
    return DataPart(members)


# --- by id ---------------------------------------------------------------------------------------


def test_an_option_may_be_chosen_by_its_id_in_data() -> None:
    assert chosen(PERMISSION, data(optionId="allow_always")) == ["allow_always"]
    assert chosen(PERMISSION, data(optionIds=["deny"])) == ["deny"]


def test_an_id_counts_more_than_words() -> None:
    assert chosen(PERMISSION, "yes", data(optionId="deny")) == ["deny"]


@each(
    "members",
    [
        {"optionId": "nonsense"},
        {"optionId": 5},
        {"optionId": ["allow"]},
        {"optionIds": ["allow", "nonsense"]},
        {"optionIds": [{}]},
    ],
)
def test_an_unknown_id_is_not_helped_with_a_guess(members: dict[str, Any]) -> None:
    assert chosen(PERMISSION, "yes", DataPart(members)) is None
    assert chosen(PLAN, "yes", DataPart(members)) is None


def test_several_ids_answer_only_a_question_that_takes_several() -> None:
    both = data(optionIds=["b", "r", "b"])
    assert chosen(SEVERAL, both) == ["r", "b"]  # each once, in the order of the options
    assert chosen(CHOICE, both) is None
    assert chosen(CHOICE, data(optionId="r"), data(optionId="b")) is None
    assert chosen(SEVERAL, data(optionId="r"), data(optionId="b")) == ["r", "b"]


@each("members", [{}, {"optionId": None}, {"optionIds": []}, {"questionId": "q"}, {"more": 1}])
def test_data_without_an_id_leaves_it_to_the_words(members: dict[str, Any]) -> None:
    assert chosen(PERMISSION, "yes", DataPart(members)) == ["allow"]


@each("value", [[1], "allow", None, 5])
def test_data_that_is_not_an_object_is_passed_over(value: Any) -> None:
    assert chosen(PERMISSION, DataPart(value), "no") == ["deny"]


def test_an_answer_to_another_question_is_not_an_answer_to_this_one() -> None:
    assert chosen(PERMISSION, data(questionId="old", optionId="allow")) is None
    assert chosen(PERMISSION, "yes", data(questionId="old")) is None
    assert chosen(WORDS, "Ann", data(questionId="old")) is None
    assert chosen(PERMISSION, data(questionId="q", optionId="allow")) == ["allow"]
    assert chosen(PERMISSION, data(questionId=None, optionId="allow")) == ["allow"]


# --- by name -------------------------------------------------------------------------------------


@each(
    ("text", "option"),
    [
        ("r", "r"),
        ("Red", "r"),
        ("  red \n", "r"),
        ("RED!", "r"),
        ('"Blue"', "b"),
        ("dark   blue", "d"),
        ("Dark blue.", "d"),
    ],
)
def test_an_option_may_be_chosen_by_id_or_name_however_it_is_spelled(
    text: str, option: str
) -> None:
    assert chosen(CHOICE, text) == [option]


def test_an_id_is_preferred_to_a_name_that_is_the_same() -> None:
    first, second = Option("x", "y"), Option("y", "x")
    assert chosen(Question("q", "choice", "?", (first, second)), "y") == ["y"]


@each("text", ["Red, Blue", "r;b", "Blue\nred", "red , blue, red"])
def test_several_options_may_be_named_where_several_are_taken(text: str) -> None:
    assert chosen(SEVERAL, text) == ["r", "b"]
    assert chosen(CHOICE, text) is None


@each("text", ["Red, Green", "Red,", "Red and Blue"])
def test_of_several_names_all_must_be_known(text: str) -> None:
    assert chosen(SEVERAL, text) is None


# --- by word -------------------------------------------------------------------------------------


@each("text", ["yes", "Y", "ok", "Okay.", "allow", "Allow once", "approve", "accept", "Sure!"])
def test_words_for_yes_allow_once(text: str) -> None:
    assert chosen(PERMISSION, text) == ["allow"]


@each("text", ["always", "Always allow", "yes always", "allow all"])
def test_words_for_always_allow_always(text: str) -> None:
    assert chosen(PERMISSION, text) == ["allow_always"]


@each("text", ["no", "N", "deny", "Reject", "cancel", "stop"])
def test_words_for_no_reject(text: str) -> None:
    assert chosen(PERMISSION, text) == ["deny"]


def of_kinds(*kinds: OptionKind) -> Question:
    options = tuple(Option(f"o{number}", f"O{number}", kind) for number, kind in enumerate(kinds))
    return Question("q", "permission", "?", options)


def test_yes_never_means_always() -> None:
    assert chosen(of_kinds("allow_always", "reject_once"), "yes") is None
    assert chosen(of_kinds("allow_always", "allow_once"), "yes") == ["o1"]


def test_always_is_never_narrowed_to_once() -> None:
    assert chosen(of_kinds("allow_once", "reject_once"), "always") is None


def test_a_denial_uses_the_available_option() -> None:
    assert chosen(of_kinds("reject_always"), "no") == ["o0"]
    assert chosen(of_kinds("reject_always", "reject_once"), "no") == ["o1"]
    assert chosen(of_kinds("reject_once", "reject_always"), "never") == ["o1"]
    assert chosen(of_kinds("allow_once"), "no") is None


@each("kind", ["permission", "plan", "auth"])
def test_words_decide_where_something_is_to_be_decided(kind: QuestionKind) -> None:
    assert chosen(Question("q", kind, "?", (ALLOW, DENY)), "yes") == ["allow"]


def test_words_do_not_decide_a_choice() -> None:
    assert chosen(Question("q", "choice", "?", (ALLOW, DENY)), "yes") is None


def test_a_name_counts_more_than_a_word() -> None:
    tricky = Question("q", "permission", "?", (Option("a", "No", "allow_once"), DENY))
    assert chosen(tricky, "no") == ["a"]


def test_a_name_that_two_options_share_but_for_its_spelling_is_not_guessed() -> None:
    alike = Question("q", "permission", "?", (Option("a", "Go!", "allow_once"), Option("b", "go")))
    assert chosen(alike, "GO") is None
    assert chosen(alike, "Go!") == ["a"]


LIST = "Which?\n1. Red\n2) Blue\n 3: Dark blue.\n4. Green"


@each(
    ("text", "option"),
    [("1", "r"), ("2.", "b"), ("**3**", "d"), ("Option 2", "b"), ("Answer: 1", "r")],
)
def test_a_number_is_an_answer_where_the_question_numbers_its_options(
    text: str, option: str
) -> None:
    assert chosen(Question("q", "choice", LIST, (BLUE, RED, DARK)), text) == [option]


@each("text", ["4", "0", "11", "1.5", "-1"])
def test_a_number_that_the_question_does_not_show_is_not_understood(text: str) -> None:
    assert chosen(Question("q", "choice", LIST, (BLUE, RED, DARK)), text) is None


# What models and people really say to a permission. `None`: it is asked again.
PHRASES: dict[str | None, list[str]] = {
    "allow": [
        *("yes", "Yes.", "YES!", "y", "yeah", "Yep", "ok", "Okay.", "Sure!", "allow", "Allow it"),
        *("allow once", "approve", "Approved", "Approved.", "I approve", "I approve.", "accept"),
        *("Go ahead", "go ahead!", "Please proceed.", "Do it", "Yes, please", "Yes, go ahead."),
        *("ok, go ahead", "Sure, go ahead", "**Yes**", "`Allow`", "“Allow”", "'yes'", "*Allow*."),
        *("Answer: yes", "Answer: **Allow**", "**Answer:** Allow", "Option: Allow"),
        *("My answer is: yes", "My decision: approved", "You may", "Permission granted."),
    ],
    "allow_always": [
        *("always", "Always.", "Yes, always", "always allow", "Allow always", "“always allow”"),
        *("Always allow in this session", "**Always allow in this session**", "allow all"),
        "Answer: Always allow in this session.",
    ],
    "deny": [
        *("no", "No.", "nope", "deny", "Denied.", "reject", "decline", "stop", "cancel", "never"),
        *(
            "No thanks",
            "No, thank you.",
            "Don't",
            "Don’t.",  # noqa: RUF001
            "do not",
            "Do not do it",
            "Don't run it",
        ),
        *(
            "I don't approve",
            "Answer: no",
            "**Deny**",
            "Deny because it is slow",
            "Deny: wrong file",
        ),
        *("No, use pytest", "**No**, use pytest", "no - too risky", "Do not, it is dangerous"),
        *("No, don't.", "Please don't", "Not approved", "no because it deletes files"),
    ],
    None: [
        *("yes, but only read", "yes and no", "yes if it is safe", "yes?", "maybe", "not yet"),
        *("no problem", "no objections", "not now", "allow or deny", "yes, don't", "I guess so"),
        *("Don't worry, go ahead", "You decide", "allow everything from now on", "yes to all"),
        *("why do you ask", "approve always or once", "Answer:", "Answer: perhaps", "1", "🙂"),
        "Allow, Always allow in this session, Deny",
    ],
}


@each(("text", "option"), [(text, option) for option, texts in PHRASES.items() for text in texts])
def test_what_people_and_models_say_to_a_permission(text: str, option: str | None) -> None:
    assert chosen(PERMISSION, text) == (None if option is None else [option])


def test_no_phrase_is_read_as_more_than_it_says() -> None:
    assert len([text for texts in PHRASES.values() for text in texts]) >= 60
    for option, texts in PHRASES.items():
        for text in texts:
            wide = of_kinds("allow_always", "reject_always")
            assert chosen(wide, text) in (None, ["o0"] if option == "allow_always" else ["o1"])
            # whatever is added to an approval makes it none
            for more in (" but not in /etc", ", then always", " except tests", " if you must"):
                if option in ("allow", "allow_always"):
                    assert chosen(PERMISSION, text + more) is None, text + more


def test_a_label_before_a_label_is_not_looked_behind() -> None:
    assert chosen(PERMISSION, "answer: " * 100_000 + "yes") is None


# --- refusals with a reason ----------------------------------------------------------------------


@each(
    ("text", "reason"),
    [
        ("no, use pytest", "use pytest"),
        ("No. Use pytest.", "Use pytest."),
        ("deny: too dangerous", "too dangerous"),
        ("reject - wrong file", "wrong file"),
        ("Deny because it is **slow**", "because it is **slow**"),
        ("**No**: “why”?", "“why”?"),
        ("don’t, it is late", "it is late"),  # noqa: RUF001
        ("NO!\nfirst line\nsecond line", "first line\nsecond line"),
    ],
)
def test_a_refusal_may_carry_its_reason(text: str, reason: str) -> None:
    answer = read_answer(PERMISSION, message(text))
    assert answer
    assert (answer.options, answer.text) == ((DENY,), reason)


@each(
    "text",
    [
        "yes, but only once",
        "yes if it is safe",
        "no problem, go ahead",
        "nobody minds",
        "notify me",
        "I would rather say no, thanks",
    ],
)
def test_an_approval_may_not_carry_conditions_and_nothing_is_guessed(text: str) -> None:
    assert chosen(PERMISSION, text) is None


def test_without_a_deny_option_there_is_no_denial() -> None:
    assert chosen(CHOICE, "no, none of them") is None


# --- free text -----------------------------------------------------------------------------------


def test_words_of_ones_own_are_an_answer_where_they_are_allowed() -> None:
    answer = read_answer(WORDS, message("  Ann \n"))
    assert answer
    assert (answer.question_id, answer.text, answer.options) == ("q", "Ann", ())
    assert answer.message == message("  Ann \n")
    assert chosen(PLAN, "more tests, please") == []


def test_options_count_more_than_free_text() -> None:
    assert chosen(PLAN, "Allow") == chosen(PLAN, "yes") == ["allow"]


@each("parts", [[""], ["  \n"], [RawPart("aGk=")], [data(more=1)]])
def test_nothing_is_not_an_answer(parts: list[Part | str]) -> None:
    for question in (WORDS, PERMISSION, CHOICE, SEVERAL, PLAN):
        assert chosen(question, *parts) is None


def test_text_in_several_parts_is_one_text() -> None:
    answer = read_answer(WORDS, message("a", data(more=1), "b"))
    assert answer
    assert answer.text == "a\n\nb"


@each("text", ["perhaps", "1", "allowed", "yesno", "deny allow", "☃"])
def test_nonsense_is_not_understood(text: str) -> None:
    assert chosen(PERMISSION, text) is None


# --- hints and words -----------------------------------------------------------------------------


def test_a_hint_names_the_mistake() -> None:
    assert hint(PERMISSION, message("per\nhaps")) == (
        '"per haps" is none of the possible answers, so nothing was decided.'
    )
    assert "no text" in hint(PERMISSION, message(data(more=1)))
    assert len(hint(PERMISSION, message("x" * 100_000))) < 400


def test_a_hint_names_the_option_and_the_closed_question() -> None:
    unknown = message(data(questionId=PERMISSION.id, optionIds=["x", "y"]))
    assert hint(PERMISSION, unknown).startswith('"x, y" is none of the possible answers')
    for closed in (data(questionId="other", optionId="allow"), data(questionId="other")):
        assert "is closed" in hint(PERMISSION, message(closed))


def test_a_word_differs_from_a_sentence() -> None:
    assert all(is_word(text) for text in ("no", "No.", " YES ", "allow   once", "never"))
    assert not any(is_word(text) for text in ("", "no way", "noo", "no, use pytest"))


WORD, FACTS = TextPart("Yes!"), DataPart({"questionId": "q"})


@each(
    ("parts", "asked", "milliseconds", "hasty"),
    [
        ((WORD,), 2, 0, True),
        ((WORD,), 2, 699, True),
        ((WORD,), 2, 700, False),
        ((WORD,), 2, -5, False),  # the clock was set back: nobody must wait for it
        ((WORD,), 1, 0, False),
        ((WORD, FACTS), 2, 0, False),
        ((TextPart("yes, but only this once"),), 2, 0, False),
        ((TextPart(""),), 2, 0, False),
    ],
)
def test_a_bare_word_right_after_a_later_question_is_hasty(
    parts: tuple[Part, ...], asked: int, milliseconds: int, hasty: bool
) -> None:
    message = Message("m", Role.USER, parts)
    assert is_hasty(message, asked, timedelta(milliseconds=milliseconds)) is hasty


# --- lists ---------------------------------------------------------------------------------------

NAMES = ("a, b", "c", "d; e", "d")


@each(
    ("text", "ids"),
    [
        ("c", ["c"]),
        ("a, b", ["a, b"]),
        ('"a, b", "c"', ["a, b", "c"]),
        ("c; a, b\nd", ["a, b", "c", "d"]),
        ("d; e, c", ["c", "d; e"]),
        ("c, c", ["c"]),
        ("a", None),
        ("a, c", None),
        ("c,", None),
        ("c, " * 5_000, None),
    ],
)
def test_an_option_in_a_list_may_have_separators_in_its_name(
    text: str, ids: list[str] | None
) -> None:
    options = tuple(Option(name, name) for name in NAMES)
    assert chosen(Question("q", "choice", "?", options, multiple=True), text) == ids


def test_a_list_with_two_meanings_is_not_understood() -> None:
    options = tuple(Option(name, name) for name in ("a", "b", "a, b"))
    question = Question("q", "choice", "?", options, multiple=True)
    assert chosen(question, "a, b") is None
    assert chosen(question, "b") == ["b"]
    assert chosen(question, data(optionIds=["a, b"])) == ["a, b"]


def test_a_no_with_a_reason_is_no_refusal_of_a_choice() -> None:
    options = (Option("false", "No"), Option("(decline)", "Decline the form", "reject_once"))
    assert chosen(Question("q", "choice", "?", options), "no, thanks") is None
    assert chosen(Question("q", "permission", "?", options), "no, thanks") == ["(decline)"]


def test_a_hint_says_which_value_is_needed() -> None:
    question = Question("q", "text", "?", free_text=True, schema={"type": "integer", "minimum": 1})
    assert hint(question, message("x")) == (
        '"x" is not a whole number from 1, so nothing was decided.'
    )
