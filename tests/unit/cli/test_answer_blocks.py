"""The blocks of an answer, and their drawing."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bridge.cli.client.answer_blocks import drawn, finished
from tests.support.cases import each

# A text, and the part of it that further text cannot change.
BLOCKS = {
    "one block": ("a\nb", ""),
    "an empty line may precede an item": ("a\n\n", ""),
    "two blocks": ("a\n\nb", "a\n\n"),
    "a list with space": ("- a\n\n- b\n\nc", "- a\n\n- b\n\n"),
    "numbers": ("1. a\n\n1. b\n", ""),
    "an item with two paragraphs": ("- a\n\n  b\n\nc", "- a\n\n  b\n\n"),
    "code": ("```py\na\n\nb\n", ""),
    "code that ends": ("```py\na\n\nb\n```\n\nc", "```py\na\n\nb\n```\n\n"),
    "a longer fence": ("````\n```\n\nb\n````\n\nc", "````\n```\n\nb\n````\n\n"),
    "a table": ("|a|\n|-|\n|b|\n\nc", "|a|\n|-|\n|b|\n\n"),
}


@each("name", BLOCKS)
def test_a_block_is_finished_if_no_text_can_change_it(name: str) -> None:
    text, whole = BLOCKS[name]
    assert text[: finished(text)] == whole


@given(st.lists(st.sampled_from(["a", "\n", "- ", "```", "# ", "1. ", " ", "|", "\n\n"])))
def test_a_finished_block_stays_finished(pieces: list[str]) -> None:
    ends = [finished("".join(pieces[:number])) for number in range(len(pieces) + 1)]
    assert ends == sorted(ends)


def lines(text: str, width: int = 40, colour: bool = False) -> list[str]:
    console = Console(
        file=io.StringIO(), width=width, force_terminal=colour, color_system="standard"
    )
    return [line.plain for line in drawn(text, console, width)]


SHOWN = {
    "a heading": ("## Two *words*", ["Two words"]),
    "emphasis": ("a **b** _c_ `d`", ["a b c d"]),
    "a list": ("- a\n- b", [" • a", " • b"]),
    "code": ("```py\nx = 1\n```", [" x = 1"]),
    "one empty line between blocks": (
        "a\n\n```\nb\n\nc\n```\n\nd",
        ["a", "", " b", "", " c", "", "d"],
    ),
    "tags": ("a <b>c</b> <!-- d -->", ["a <b>c</b> <!-- d -->"]),
    "a block of tags": ("<div>\nhidden\n</div>", ["<div> hidden </div>"]),
    "entities": ("a &#8238; &lt;", ["a &#8238; &lt;"]),
    "a link shows its target": ("[a](https://x.example/y)", ["a (https://x.example/y)"]),
    "words are not cut": ("word " * 9, ["word word word word", "word word word word", "word"]),
}


@each("name", SHOWN)
def test_a_block_is_drawn(name: str) -> None:
    text, shown = SHOWN[name]
    assert lines(text, 20 if name.startswith("words") else 60) == shown


def test_a_drawn_block_fits_and_has_no_controls() -> None:
    text = (
        "# \x1b]52;c;eXk=\x07h\n\n```\x1b[2Jpy\n\x1b[1A\u202e"
        + "x" * 90
        + "\n```\n\n|a|\n|-|\n|\x9b|"
    )
    for line in lines(text, 30, colour=True):
        assert len(line) <= 30 and not set(line) & set("\x1b\x07\x9b\u202e"), line
