"""The lines of a tool on a screen."""

from __future__ import annotations

from typing import Any

from bridge.cli.client.tools import duration, figures, first_lines, head_of, label_of, output_of
from bridge.task.events import FileChange, ToolCall, ToolResult
from tests.support.cases import each

DIFF = "--- /w/a\n+++ /w/a\n@@ -3,1 +3,2 @@\n-x\n+y\n+z\n"
LABELS: dict[str, tuple[Any, str]] = {
    "command": ({"command": "cat /w/a /w/b", "description": "d"}, "T cat a b"),
    "list": ({"command": ["bash", "-c", "ls /w/x"]}, "T ls x"),
    "path": ({"file_path": "/w/src/a.py", "limit": 3}, "T src/a.py"),
    "filePath": ({"filePath": "/w/src/a.py"}, "T src/a.py"),
    "the directory itself": ({"path": "/w"}, "T /w"),
    "another directory": ({"path": "/work/a"}, "T /work/a"),
    "inside of a word": ({"command": "ls /mnt/w/a"}, "T ls /mnt/w/a"),
    "pattern": ({"pattern": "*.py"}, "T *.py"),
    "other members": ({"a": 1}, 'T {"a": 1}'),
    "text": ("do /w/x", "T do x"),
    "nothing": (None, "T"),
}


@each("name", LABELS)
def test_a_tool_is_named_with_its_subject(name: str) -> None:
    given, label = LABELS[name]
    assert label_of(ToolCall("c", "T", given), "/w/") == label


def test_a_tool_that_has_ended_is_one_line() -> None:
    done = ToolResult("c", "out", changes=(FileChange("/w/a", "update", DIFF),))
    assert head_of(done, "Edit a", 1.25) == ("● Edit a +2 \N{MINUS SIGN}1 · 1.2 s", "green")
    assert head_of(ToolResult("c", "no", True), "Bash x", 75.0) == (
        "● Bash x · failed · 1:15",
        "red",
    )
    assert head_of(ToolResult("c", ""), "Read a", 0.01) == ("● Read a", "green")


OUTPUTS: dict[str, tuple[Any, str]] = {
    "text": ("a\nb\n", "a\nb"),
    "parts": ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
    "stdout": ({"stdout": "a\n", "exitCode": 0}, "a"),
    "object": ({"a": 1}, '{\n  "a": 1\n}'),
    "controls": ("\x1b[2Ja\u202e", "\N{REPLACEMENT CHARACTER}[2Ja\N{REPLACEMENT CHARACTER}"),
    "nothing": (None, ""),
}


@each("name", OUTPUTS)
def test_an_output_is_text(name: str) -> None:
    output, text = OUTPUTS[name]
    assert output_of(ToolResult("c", output)) == text


def test_a_change_is_shown_instead_of_the_output() -> None:
    result = ToolResult("c", "updated", changes=(FileChange("/w/a", "update", DIFF),))
    assert [*first_lines(output_of(result), True)][1:] == [
        ("      3 -x", "red"),
        ("      3 +y", "green"),
        ("      4 +z", "green"),
    ]
    assert output_of(ToolResult("c", "why", True, changes=result.changes)) == "why"


def test_at_most_five_lines_of_an_output_are_shown() -> None:
    shown = [text for text, _ in first_lines("\n".join("abcdefg"), False)]
    assert shown == ["⎿ a", "  b", "  c", "  d", "  e", "  … 2 more lines: o"]
    assert [*first_lines("", False)] == []


def test_figures_are_short() -> None:
    assert (duration(5), duration(65), duration(3_725)) == ("0:05", "1:05", "1:02:05")
    assert figures(5.9, 1480, 0.0042) == ["0:05", "1,480 tokens", "$0.0042"]
    assert figures(5, None, 1.5) == ["0:05", "$1.50"]
