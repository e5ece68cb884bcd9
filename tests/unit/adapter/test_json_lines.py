"""Lines in which other output stands beside JSON objects."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from bridge.adapter.fields import Json, output_status
from bridge.adapter.json_lines import PLACES, Halves, read
from bridge.task.events import AgentEvent, Status
from tests.support.cases import each

Heard = list[tuple[str, object]]


def heard(line: bytes) -> Heard:
    """The objects and the other output of a line, in their order."""
    found: Heard = []

    def receive(value: Json, _: bytes) -> list[AgentEvent]:
        found.append(("object", dict(value)))
        return []

    def show(text: bytes) -> Status:
        found.append(("output", text.decode()))
        return output_status(text)

    list(read(line, receive, show))
    return found


@each(
    "line, expected",
    [
        (b'{"a":1}', [("object", {"a": 1})]),
        (b'npm notice\x1b[0m{"a":1}', [("output", "npm notice\x1b[0m"), ("object", {"a": 1})]),
        (b'\x1b[?25h{"a":1}', [("output", "\x1b[?25h"), ("object", {"a": 1})]),
        (b'{"a":1}\x1b[0m\r', [("object", {"a": 1})]),
        (b'{"a":1}\x1b]0;title\x07', [("object", {"a": 1})]),
        (b'{"a":1}{"b":2} {"c":3}', [("object", {one: n}) for n, one in enumerate("abc", 1)]),
        (b'use {"x": 5}: {"a":1}', [("output", 'use {"x": 5}: '), ("object", {"a": 1})]),
        (b'{ "a" }{"b":[{"c":"}{"}]}', [("output", '{ "a" }'), ("object", {"b": [{"c": "}{"}]})]),
        (b'\xff{"a":"\xc3\xa9"}', [("output", "\ufffd"), ("object", {"a": "\u00e9"})]),
        # An object within a sentence belongs to the sentence.
        (b'{"a":1} is the answer', [("output", '{"a":1} is the answer')]),
        (b'if (x) { y({"a":1}) }', [("output", 'if (x) { y({"a":1}) }')]),
        (b'words {"a":1', [("output", 'words {"a":1')]),
        (b"}", [("output", "}")]),
        (b"[1]", [("output", "[1]")]),
        (b"  ", []),
    ],
)
def test_objects_at_the_end_of_a_line(line: bytes, expected: Heard) -> None:
    assert heard(line) == expected


@each(
    "line",
    [
        b'{"' * 500_000 + b"}",
        b'{"a":1}' * 140_000 + b"x}",
        b"x" + b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
        b"x}" + b"\x1b[0" * 250_000,
        b"x}" + b"\x1b]" * 500_000,
        b"x " + json.dumps({"a": "}{" * 500_000}).encode(),
    ],
    ids=["starts", "objects", "depth", "gap", "titles", "string"],
)
def test_a_hostile_line_is_read_in_linear_time(line: bytes) -> None:
    began = time.thread_time()
    heard(line)
    assert time.thread_time() - began < 0.5


def pieces(*lines: str) -> list[Any]:
    """The values of the lines of one CLI."""
    halves, found = Halves(), list[Any]()

    def receive(value: Any, line: bytes) -> Iterable[AgentEvent]:
        found.append(value)
        return ()

    for line in lines:
        list(read(line.encode(), receive, halves=halves))
    return found


def test_a_character_that_is_divided_between_two_lines_is_whole() -> None:
    first, second = '{"a": {"b": ["x \\ud83d"]}}', '{"a": {"b": ["\\ude00 y"]}}'
    assert pieces(first, second) == [{"a": {"b": ["x "]}}, {"a": {"b": ["😀 y"]}}]
    assert pieces(first, '{"other": "😀"}', f"noise {second}")[2] == {"a": {"b": ["😀 y"]}}
    split = [f'{{"text": "{half}"}}' for half in (r"\ud83d", r"\ude00\ud83d", r"\ude01")]
    assert "".join(one["text"] for one in pieces(*split)) == "😀😁"


def test_half_a_character_at_another_place_stays_a_mark() -> None:
    assert pieces(r'{"a": "\ud83d"}', r'{"b": "\ude00"}') == [{"a": ""}, {"b": "?"}]
    assert pieces(r'{"a": "\ud83d"}', r'{"a": "x\ude00"}', r'{"a": "\ude00"}') == [
        {"a": ""},
        {"a": "x?"},
        {"a": "?"},
    ]


def test_the_halves_that_wait_are_limited() -> None:
    halves = Halves()
    for number in range(10 * PLACES):
        halves.join({f"member {number}": "\ud83d"})
    second = {"member 0": "\ude00"}
    assert halves.join(second) == second  # the first half is forgotten
