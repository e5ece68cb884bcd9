"""Text of the agent made fit for people, and its JSON made fit for the wire."""

from __future__ import annotations

import json
from typing import Any

import orjson

from bridge.task.events import Event, FileChange, Question, Status, ToolCall, ToolResult, bounded
from bridge.task.text import (
    DATA_BYTES,
    DEPTH,
    MESSAGE_CHARS,
    STATUS_CHARS,
    capped,
    exact,
    is_deep,
    json_object,
    one_line,
    readable,
)
from tests.support.cases import each


@each(
    ("text", "shown"),
    [
        ("plain\n\ttext", "plain\n\ttext"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;https://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\x1bcb", "ab"),
        ("bell\x07 null\x00 del\x7f csi\x9b", "bell null del csi"),
        ("line\r\nend\r", "line\nend"),
        ("safe\u202efoo\u2066", "safefoo"),
        ("é 😀 日本 \u2028", "é 😀 日本 \u2028"),
        ("", ""),
    ],
)
def test_a_text_is_shown_as_a_terminal_would(text: str, shown: str) -> None:
    assert readable(text) == shown


def test_a_long_text_is_cut_and_says_so() -> None:
    assert readable("x" * MESSAGE_CHARS) == "x" * MESSAGE_CHARS
    cut = readable("x" * (MESSAGE_CHARS + 1))
    assert len(cut) == MESSAGE_CHARS
    assert cut.endswith("x…")
    assert readable("abcdef", 3) == "ab…"


@each(
    ("text", "shown"),
    [
        ("make\n\ttest", "make\n\ttest"),
        ("\x1b[8mhidden\x1b[0m", "�[8mhidden�[0m"),
        ("\x1b]0;rm -rf /\x07", "�]0;rm -rf /�"),
        ("a\rb", "a�b"),
        ("\u202eback\u200f", "�back�"),
    ],
)
def test_nothing_is_hidden_from_a_person_who_decides(text: str, shown: str) -> None:
    assert exact(text) == shown


def test_cut_text_for_a_person_who_decides_is_counted() -> None:
    assert exact("abcdef", 6) == "abcdef"
    assert exact("abcdef", 4) == "abcd… (2 more characters are not shown)"


@each(
    ("text", "line"),
    [
        ("a\n b\t c ", "a b c"),
        ("\x1b[31ma\x1b[0m\nb", "a b"),
        ("x" * STATUS_CHARS, "x" * STATUS_CHARS),
        ("x" * (STATUS_CHARS + 1), "x" * (STATUS_CHARS - 1) + "…"),
        ("y" * 10**6, "y" * (STATUS_CHARS - 1) + "…"),
        ("", ""),
    ],
)
def test_a_status_is_one_short_line(text: str, line: str) -> None:
    assert one_line(text) == line


# --- data --------------------------------------------------------------------------------------


@each("value", [None, 5, "text", [1, {"a": None}], {}, "x" * 4000, ["y" * 10000]])
def test_small_values_are_not_changed(value: Any) -> None:
    assert capped(value) == (value, None)


@each(
    "value",
    [
        "x" * 20_000,
        {"path": "/a", "content": "x" * 20_000},
        {"edits": [{"old": "x" * 9_000, "new": "y" * 9_000}]},
        ["z" * 100] * 1_000,
        {str(number): number for number in range(10_000)},
        ("é" * 20_000,),
    ],
)
def test_large_values_are_cut_and_show_their_size(value: Any) -> None:
    short, size = capped(value)
    assert size == len(orjson.dumps(value))
    assert len(orjson.dumps(short)) <= DATA_BYTES


def test_a_cut_keeps_the_small_members() -> None:
    short, _ = capped({"path": "/a", "content": "x" * 20_000, "number": 5})
    assert (short["path"], short["number"]) == ("/a", 5)
    assert short["content"] == "x" * 4000 + "…"


def nested(levels: int) -> Any:
    value: Any = 5
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


@each("value", [nested(400), {1, 2}, {"a": object()}, "\ud83d" * 9000])
def test_a_value_without_json_does_not_break_the_task(value: Any) -> None:
    shown, _ = capped(value)
    assert orjson.dumps(shown)


# --- lines of JSON -----------------------------------------------------------------------------


@each(
    ("line", "value"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b"  {}\r", {}),
        ('{"a": "é\u2028"}'.encode(), {"a": "é\u2028"}),
        (b'{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
        (b'{"a": "\\ud83d"}', {"a": "?"}),
        (b'{"\\udcff": ["\\ude00x"]}', {"?": ["?x"]}),
        (b'{"a": "caf\xe9"}', {"a": "caf\ufffd"}),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
    ],
)
def test_an_object_is_read_even_where_a_character_is_broken(line: bytes, value: Any) -> None:
    assert json_object(line) == value


@each(
    "line",
    [
        b"",
        b"text",
        b"5",
        b"null",
        b'"x"',
        b"[{}]",
        b'{"a": 1',
        b'{"a": 1} {"b": 2}',
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b"{'a': 1}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_a_value_differs_from_an_object_with_that_value(line: bytes) -> None:
    assert json_object(line) is None


def test_data_that_is_nested_too_deeply_is_refused() -> None:
    assert json_object(json.dumps({"b": nested(DEPTH - 1)}).encode()) is None
    at_the_limit = json.dumps({"b": nested(DEPTH - 2)}).encode()
    assert json_object(at_the_limit) is not None
    wide = json.dumps({"a": [{}] * 1000}).encode()
    assert json_object(wide) is not None


def test_depth_is_counted_in_levels() -> None:
    assert not is_deep(nested(DEPTH - 1))
    assert is_deep(nested(DEPTH))
    assert not is_deep([[]] * 1000)


# --- events that are cut before they happen ------------------------------------------------------

LARGE = {"content": "x" * 100_000, "path": "/w/a"}
MANY = tuple(FileChange(f"/w/{number}", "update", "+x\n" * 500) for number in range(100))


@each(
    ("event", "name"),
    [
        (ToolCall("c", "Write", LARGE), "input"),
        (ToolCall("c", "Write", [["y" * 3000] * 10] * 10), "input"),
        (ToolResult("c", "z" * 1_000_000), "output"),
        (ToolResult("c", "ok", changes=MANY), "changes"),
        (Question("q", "permission", "?", subject=LARGE), "subject"),
    ],
)
def test_a_large_value_of_a_tool_is_cut_once_and_its_size_is_noted(event: Event, name: str) -> None:
    cut = bounded(event)
    assert isinstance(cut, ToolCall | ToolResult | Question)
    assert cut.truncated == {name: len(orjson.dumps(getattr(event, name)))}
    assert len(orjson.dumps(getattr(cut, name))) <= DATA_BYTES
    assert bounded(cut) == cut


def test_of_many_changes_the_first_ones_are_kept() -> None:
    cut = bounded(ToolResult("c", "ok", changes=MANY))
    assert len(cut.changes) > 3
    assert cut.changes == MANY[: len(cut.changes)]


def test_a_status_keeps_the_text_that_is_shown() -> None:
    status = Status("word " * 100_000, {"k": 1})
    cut = bounded(status)
    assert len(cut.text) < 1000
    assert (one_line(cut.text), cut.data) == (one_line(status.text), {"k": 1})


@each("event", [ToolCall("c", "Read", {"path": "/w"}), ToolResult("c", "ok"), Status("s")])
def test_small_events_are_left_as_they_are(event: Event) -> None:
    assert bounded(event) is event
