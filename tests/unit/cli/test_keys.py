"""Keys of a terminal, and the card of a question that they answer."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from bridge.cli.client.card import COUNTS_AFTER, QuestionCard, Show, decorated, until
from bridge.cli.client.keyboard import Key, KeyParser
from bridge.cli.client.line_editor import CURSOR, LineEditor
from bridge.client.questions import ChosenAnswer, Leave, OpenQuestion
from bridge.task.events import Option, Question
from bridge.task.subject import how_to_answer, text_of

ONCE = Option("o", "Allow", "allow_once")
ALWAYS = Option("w", "Always allow Bash", "allow_always")
NO = Option("n", "Do not", "reject_once")
SUBJECT = {"name": "Bash", "input": {"command": "npm test", "timeout": 5}}


def question(*options: Option, **members: object) -> OpenQuestion:
    return OpenQuestion("q", "permission", "May I?", options or (ONCE, ALWAYS, NO), **members)  # type: ignore[arg-type]


def card(asked: OpenQuestion) -> QuestionCard:
    return QuestionCard(asked, "agent", "/work", 0.0)


def wrap(text: str, width: int) -> list[str]:
    return [
        line[start : start + width]
        for line in text.split("\n")
        for start in range(0, max(len(line), 1), width)
    ]


def press(to: QuestionCard, *names: str, now: float = 1.0) -> object:
    """The action of the last key; a second passes before each."""
    action: object = None
    for number, name in enumerate(names):
        text = name if len(name) == 1 else ""
        action = to.press(Key(name, text), now + number)
    return action


# --- bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b"y", ["y"]),
        (b"\r", ["enter"]),
        (b"\x7f", ["backspace"]),
        (b"\x04", ["end"]),
        (b"\x1b[A", ["up"]),
        (b"\x1bOD", ["left"]),
        (b"\x1b[3~", ["delete"]),
        (b"\x17", ["word"]),
        (b"\x1b\r", ["newline"]),
        (b"\t", ["tab"]),
        (b"\x0f", ["outputs"]),
        (b"\x0c", ["redraw"]),
        (b"\x1b[1;5C", []),
        (b"\x1bOP", []),
        (b"\x1by", []),
        (b"\x00\x02", []),
        ("ä".encode(), ["ä"]),
        (b"\x1b[200~y\x1b[201~", ["paste"]),
        (b"\x1b[200~y", []),
    ],
)
def test_bytes_become_keys(data: bytes, names: list[str]) -> None:
    assert [key.name for key in KeyParser().feed(data)] == names


def test_a_paste_is_one_key_also_in_pieces() -> None:
    parser, found = KeyParser(), list[Key]()
    for byte in b"\x1b[200~y\ra\x1b[2J\x1b[201~n":
        found += parser.feed(bytes([byte]))
    assert found == [Key("paste", "y\ra\x1b[2J", alone=False), Key("n", "n")]


def test_an_escape_is_a_key_if_nothing_follows() -> None:
    parser = KeyParser()
    assert parser.rest() == [] and parser.feed(b"\x1b") == []
    assert parser.rest() == [Key("escape")] and parser.rest() == []
    assert parser.feed(b"\x1b") == parser.feed(b"[Z") == parser.rest() == []
    assert parser.feed(b"\x1b") == [] and parser.feed(b"y") == []


def test_keys_that_come_together_are_not_alone() -> None:
    assert [key.alone for key in KeyParser().feed(b"y\r")] == [False, False]
    assert [key.alone for key in KeyParser().feed(b"\x1b[200~y\x1b[201~")] == [False]


# --- the card -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "action"),
    [
        (["y"], ChosenAnswer((ONCE,))),
        (["n"], ChosenAnswer((NO,))),
        (["a"], None),
        (["a", "a"], ChosenAnswer((ALWAYS,))),
        (["a", "y"], ChosenAnswer((ONCE,))),
        (["a", "x", "a"], None),
        (["2"], None),
        (["2", "2"], ChosenAnswer((ALWAYS,))),
        (["2", "a"], ChosenAnswer((ALWAYS,))),
        (["3"], ChosenAnswer((NO,))),
        (["4"], None),
        (["0"], None),
        (["enter"], None),
        (["r", "enter"], None),
        (["r", "b", "c", "backspace", "enter"], ChosenAnswer((NO,), "b")),
        (["r", "b", "escape", "enter"], None),
        (["t", "o", "k", "enter"], ChosenAnswer((), "ok")),
        (["t", "clear", "enter"], None),
    ],
)
def test_keys_decide(names: list[str], action: object) -> None:
    assert press(card(question()), *names) == action


def test_a_question_without_an_option_has_no_key_for_it() -> None:
    for name in ("y", "a", "n", "r", "t"):
        assert press(card(question(Option("x", "Red", "choice"), free_text=False)), name) is None


def test_several_options_are_toggled_and_sent_by_enter() -> None:
    colours = [Option(name, name, "choice") for name in ("red", "green", "blue")]
    several = question(*colours, multiple=True)
    assert press(card(several), "3", "1", "2", "2", "enter") == ChosenAnswer(
        (colours[2], colours[0])
    )
    assert press(card(several), "enter") is None
    assert press(card(several), "1", "1", "enter") is None


def test_a_key_counts_only_after_a_quiet_time() -> None:
    asked = card(question())
    for time in (0.0, COUNTS_AFTER - 0.01, COUNTS_AFTER + 0.1, 2 * COUNTS_AFTER):
        assert asked.press(Key("y", "y"), time) is None
    assert asked.press(Key("y", "y"), 4 * COUNTS_AFTER) == ChosenAnswer((ONCE,))
    held = card(question())
    assert held.press(Key("a", "a"), 1.0) is None
    assert held.press(Key("a", "a"), 1.0 + COUNTS_AFTER / 2) is None
    assert held.press(Key("a", "a"), 1.0 + 3 * COUNTS_AFTER) == ChosenAnswer((ALWAYS,))


def test_a_paste_never_decides_but_can_be_a_reason() -> None:
    pasted = card(question())
    assert pasted.press(Key("paste", "y", alone=False), 1.0) is None
    assert pasted.press(Key("y", "y", alone=False), 2.0) is None
    press(pasted, "r", now=3.0)
    pasted.press(Key("paste", "use\npytest", alone=False), 4.0)
    assert press(pasted, "enter", now=5.0) == ChosenAnswer((NO,), "use\npytest")


def test_leaving_and_showing_decide_nothing() -> None:
    assert isinstance(press(card(question()), "q"), Leave)
    assert isinstance(press(card(question()), "end"), Leave)
    assert press(card(question(subject=SUBJECT)), "d") == Show("May I?")
    assert '"optionId"' not in str(press(card(question()), "v"))


@pytest.mark.parametrize(("width", "height"), [(80, 23), (40, 14)])
@pytest.mark.parametrize("count", [1, 3, 9, 20])
def test_a_card_fits_and_always_shows_its_options(width: int, height: int, count: int) -> None:
    options = [Option(str(n), f"Option {n} " + "x" * 100, "choice") for n in range(count)]
    asked = replace(question(*options), text="\n".join("word " * 50 for _ in range(90)))
    lines = card(asked).lines(wrap, width, height)
    assert len(lines) <= height
    assert all(len(text) <= width for text, _ in lines)
    assert sum("Option" in text for text, _ in lines) == min(count, 9)
    assert any("more lines: d" in text for text, _ in lines)


def test_the_reach_of_an_answer_for_always_is_shown_before_the_second_press() -> None:
    asked = card(question())
    press(asked, "a")
    red = [text for text, style in asked.lines(wrap, 80, 20) if style == "bold red"]
    assert any(ALWAYS.name in text for text in red)


def test_a_card_shows_the_text_of_the_question_and_no_json() -> None:
    red = Option("r", "Red", "choice", "the colour of fire")
    asked = Question("q", "choice", "Which?", (red,), {"options": [{"label": "Red"}]})
    text = f"Which?\n{how_to_answer(asked)}"
    opened = OpenQuestion("q", "choice", text, (red,), asked.subject, free_text=False)
    lines = card(opened).lines(wrap, 60, 20)
    assert [line for line, _ in lines[1:-1]] == ["│ Which?", "  1 Red", "    the colour of fire"]


def test_the_lines_of_a_change_have_colours() -> None:
    subject = {"title": "Edit: a", "changes": ["--- a\n+++ a\n@@ -7,1 +7,1 @@\n-x\n+y\n"]}
    lines = decorated(text_of(subject), wrap, 60)
    assert lines[2:] == [("    7 -x", "red"), ("    7 +y", "green")]


def test_no_row_of_a_long_line_looks_like_another_line() -> None:
    request = "Run it?\ncommand: " + "x" * 11 + "cwd: /safe  " + "y" * 20 + "\n    1 +" + "z" * 30
    rows = [row for row, _ in decorated(request, wrap, 20)]
    assert [row for row in rows if row[0] != " "] == ["Run it?", "command: xxxxxxx"]
    assert all(len(row) <= 20 for row in rows)


def test_the_card_says_until_when_it_waits() -> None:
    end = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    asked = question(until=end.isoformat(), then="deny")
    assert until(asked) == f"denied at {end.astimezone():%H:%M}"
    assert until(replace(asked, then="end")) == f"the task ends at {end.astimezone():%H:%M}"
    assert until(question()) == until(replace(asked, until="soon")) == ""


def test_the_pager_has_what_the_text_of_the_question_cuts() -> None:
    subject = {"title": "Run it?", "input": {"command": "\n".join(["word " * 9] * 300)}}
    asked = question(subject=subject)
    asked = replace(asked, text=f"Not understood.\n{text_of(subject)}")
    assert "more characters are not shown" in asked.text
    shown = press(card(asked), "d")
    assert shown == Show(f"Not understood.\n{text_of(subject, 10**6)}")


def test_a_line_that_was_begun_before_the_card_is_its_answer_after_a_pause() -> None:
    draft = QuestionCard(question(free_text=False), "agent", None, 0.0, line=LineEditor("ye"))
    for name in ("s", "enter", "enter"):  # the person has not seen the card yet
        assert draft.press(Key(name, "s" if name == "s" else ""), COUNTS_AFTER / 2) is None
    assert any("Answer: yes" in text for text, _ in draft.lines(wrap, 80, 20))
    assert press(draft, "enter", now=2.0) == ChosenAnswer((), "yes")


def test_keys_answer_after_the_draft_is_left() -> None:
    draft = QuestionCard(question(), "agent", None, 0.0, line=LineEditor("y"))
    assert press(draft, "y", "escape", "y") == ChosenAnswer((ONCE,))


def test_words_answer_each_question_of_a_conversation() -> None:
    asked = QuestionCard(question(free_text=False), "agent", None, 0.0, line=LineEditor())
    assert press(asked, "t", "o", "k", "enter") == ChosenAnswer((), "ok")


# --- a line -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ("a b", "ab|"),
        ("a b left c", "ac|b"),
        ("a b left left left delete", "|b"),
        ("a b home c line-end d", "cabd|"),
        ("a b left backspace", "|b"),
        ("a b left kill", "a|"),
        ("a b left clear", "|b"),
        ("a newline b", "a\nb|"),
        ("a blank b c word d", "a d|"),
        ("backspace delete right", "|"),
        ("a escape f1", "a|"),
    ],
)
def test_a_line_is_edited(names: str, shown: str) -> None:
    line = LineEditor()
    for name in names.split():
        line.press(Key(name, {"blank": " "}.get(name, name if len(name) == 1 else "")))
    assert line.shown == shown.replace("|", CURSOR)


def test_a_paste_keeps_its_line_breaks() -> None:
    line = LineEditor("a")
    line.press(Key("paste", "b\r\nc\rd"))
    assert line.shown == f"ab\nc\nd{CURSOR}"
    assert line.take() == "ab\nc\nd" and line.text == ""


def test_a_backslash_before_enter_breaks_the_line() -> None:
    line = LineEditor("a\\")
    assert line.breaks() and line.text == "a\n"
    assert not line.breaks() and line.text == "a\n"
    asked = card(question())
    assert press(asked, "r", "b", "\\", "enter", "c", "enter") == ChosenAnswer((NO,), "b\nc")


def test_earlier_lines_come_back_and_the_draft_stays() -> None:
    line = LineEditor()
    for text in ("one", "two", " "):
        line.press(Key("paste", text))
        line.take()
    line.press(Key("x", "x"))
    seen = []
    for name in ("up", "up", "up", "down", "down", "down"):
        line.press(Key(name))
        seen.append(line.text)
    assert seen == ["two", "one", "one", "two", "x", "x"]
