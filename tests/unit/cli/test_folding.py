"""Rows of a terminal that begin with an indent."""

from __future__ import annotations

import pytest

from bridge.cli.client.folding import folded, message


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("short", ["short"]),
        ("0123456789", ["0123456789"]),
        ("0123456789State: x", ["0123456789", "  State: x"]),
        ("a" * 26, ["a" * 10, "  " + "a" * 8, "  " + "a" * 8]),
        ("\N{CJK UNIFIED IDEOGRAPH-4E00}" * 6, ["一" * 5, "  一"]),
        ("e\N{COMBINING ACUTE ACCENT}" * 10, ["e\N{COMBINING ACUTE ACCENT}" * 10]),
        ("a\tb" * 2, ["a\tba", "  \tb"]),
        ("ab\ncd", ["ab", "cd"]),
    ],
)
def test_a_long_line_goes_on_with_an_indent(text: str, rows: list[str]) -> None:
    assert folded(text, 10)[0].split("\n") == rows
    assert folded(text, None) == (text, 0)


def test_a_line_can_come_in_pieces() -> None:
    first, column = folded("01234567", 10)
    second, column = folded("89State", 10, column)
    assert first + second == "0123456789\n  State" and column == 7


def test_only_the_first_line_of_a_message_begins_at_the_edge() -> None:
    text = "coding-agent-bridge: no\nState: completed"
    assert message(text, None) == "coding-agent-bridge: no\n  State: completed"
    assert all(row.startswith("  ") for row in message(text, 12).split("\n")[1:])
