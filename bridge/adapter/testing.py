"""A conformance kit for adapters. It needs nothing but pytest, or any runner like it.

Subclass `AdapterTests` in a test module of your own; pytest runs its methods:

    from bridge.adapter.testing import AdapterTests
    from parrot_adapter import Parrot

    class TestParrot(AdapterTests):
        adapter = Parrot
        lines = (b'{"kind": "word", "text": "hello"}', b'{"kind": "over"}')

`lines` are the CLI's output in a turn: each is also passed with every member missing or of another
type.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, is_dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, ClassVar

import orjson

from bridge.adapter import Adapter, AgentConfig, ExitStatus, Prompt, SessionStart
from bridge.task.events import ENDINGS, AgentEvent, Answer, Event, Failed, Question
from bridge.task.message import DataPart, Message, RawPart, Role, TextPart, UrlPart
from bridge.task.state import Task

PROMPT = "do --not=read this; as $(a command)\nor `a flag`"
"""A prompt that must not reach the CLI as a flag."""
NOW = datetime(2026, 1, 2, tzinfo=UTC)
EVENTS: tuple[type, ...] = typing.get_args(Event)
REPLACEMENTS: tuple[Any, ...] = (None, 5, [1])
CONFIG = AgentConfig(
    "/opt/agent", ("--one", "two"), model="m", force=True, runner=("/opt/python", "/runner.py")
)
GARBAGE = {
    "empty": b"",
    "spaces": b"   \t",
    "text": b"Warning: something",
    "binary": bytes(range(256)),
    "nul": b"\x00" * 10,
    "ansi": b"\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "latin-1": b'{"type": "text", "text": "caf\xe9"}',
    "surrogate": b'{"type": "text", "text": "\\ud83d"}',
    "bom": b'\xef\xbb\xbf{"type": "text", "text": "x"}',
    "cut": b'{"type": "result", "sub',
    "huge": b'{"type": "x", "y": "' + b"z" * 2_000_000 + b'"}',
    "deep list": b"[" * 100_000,
    "deep object": b'{"type":' * 100_000,
    "deep and whole": b'{"type":"x","y":' * 500 + b"1" + b"}" * 500,
    "deep input": b'{"type":"tool_call","id":"1","name":"x","input":'
    + b"[" * 400
    + b"]" * 400
    + b"}",
    "big number": b'{"type": "text", "text": 123456789012345678901234567890}',
    "nan": b'{"type": "usage", "costUsd": NaN}',
    **{
        f"json {text}": text.encode() for text in ("null", "true", "5", "-1.5e9", '"x"', "[]", "{}")
    },
    **{f"type {text}": f'{{"type": {text}}}'.encode() for text in ("null", "5", "[]", "{}", '""')},
}
"""Lines that no CLI should print, by name."""


@lru_cache
def _type_hints(of: type) -> dict[str, Any]:
    return typing.get_type_hints(of)


def begin(adapter: Adapter) -> None:
    """Begin a turn, with a part of each kind."""
    parts = (
        TextPart(PROMPT),
        DataPart({"a": 1}),
        RawPart("aGk=", "text/plain", "f"),
        UrlPart("https://example.org/x"),
    )
    adapter.prompt(Prompt("t", "c", Message("m", Role.USER, parts)))


def check(events: Sequence[AgentEvent]) -> None:
    """Raise AssertionError unless clients of every protocol version can be sent these events."""
    task = Task("t", "c", NOW, show_thoughts=True)
    for event in events:
        assert type(event) in EVENTS, f"not an event: {event!r}"
        _check_strings(event)
        if not task.state.terminal:
            task.apply(event, NOW)
    orjson.dumps([asdict(event) for event in events])


def _check_strings(value: Any) -> None:
    if isinstance(value, tuple):
        for one in value:
            _check_strings(one)
    if not is_dataclass(value):
        return
    kind: type = type(value)
    hints = _type_hints(kind)
    for one in fields(value):
        member, hint = getattr(value, one.name), hints[one.name]
        optional = hint == str | None and member is None
        if hint in (str, str | None) and not optional:
            assert isinstance(member, str), f"{one.name} is not a string: {value!r}"
        _check_strings(member)


def places(value: Any, depth: int = 6) -> Iterator[tuple[Any, ...]]:
    """The paths of all members; of a list, the first one stands for all."""
    below = list(value.items()) if isinstance(value, dict) else []
    below += list(enumerate(value))[:1] if isinstance(value, list) else []
    for name, one in below if depth else ():
        yield (name,)
        yield from ((name, *rest) for rest in places(one, depth - 1))


def broken(line: Any) -> Iterator[Any]:
    """A decoded line with each of its members missing or replaced."""
    whole = orjson.dumps(line)
    for path in places(line):
        for number in range(len(REPLACEMENTS) + 1):
            changed = orjson.loads(whole)
            inner = changed
            for name in path[:-1]:
                inner = inner[name]
            if number < len(REPLACEMENTS):
                inner[path[-1]] = REPLACEMENTS[number]
            else:
                del inner[path[-1]]
            yield changed


class AdapterTests:
    """The contract of bridge.adapter.Adapter, as tests. A subclass names the `adapter`."""

    adapter: ClassVar[type[Adapter]]
    config: ClassVar[AgentConfig] = CONFIG
    lines: ClassVar[Sequence[bytes]] = ()

    def make(self, *, resume: bool = False) -> Adapter:
        session = "11111111-2222-3333-4444-555555555555"
        return self.adapter(self.config, SessionStart("/workspace", session, resume))

    def begun(self) -> Adapter:
        adapter = self.make()
        begin(adapter)
        return adapter

    def play(self) -> tuple[list[AgentEvent], bytes]:
        """The events and the bytes of the adapter in a turn in which the CLI prints `lines`."""
        adapter, events = self.begun(), list[AgentEvent]()
        data = adapter.data_to_send()
        for line in self.lines:
            events += adapter.receive_line(line)
            data += adapter.data_to_send()
        return events, data

    def test_it_describes_itself(self) -> None:
        adapter = self.adapter
        assert issubclass(adapter, Adapter), "not a subclass of bridge.adapter.Adapter"
        assert adapter.name and adapter.title, "name and title are needed"
        assert "/" not in adapter.binary, "binary is a name on PATH, not a path"
        for pattern in adapter.environment:
            assert "*" not in pattern[:-1], f"{pattern}: a `*` may only be the last character"

    def test_it_launches_its_program_without_the_prompt(self) -> None:
        for resume in (False, True):
            adapter = self.make(resume=resume)
            launch = adapter.launch()
            begin(adapter)
            assert adapter.launch() == launch, "launch() depends on the prompt"
            argv = list(launch.argv)
            if launch.argv == self.config.runner:
                argv = orjson.loads(adapter.data_to_send().partition(b"\n")[0])["run"]["argv"]
            expected = [self.config.binary, *self.config.args]
            assert argv[: len(expected)] == expected, "the operator's AGENT_ARGS come first"
            flags = argv[: argv.index("--")] if "--" in argv else argv
            for word in flags:
                hidden = PROMPT not in word or word.startswith("--")
                assert hidden, f"the prompt can be read as a flag: {word!r}"

    def test_it_writes_the_same_bytes_again(self) -> None:
        assert self.play() == self.play(), "a clock or a random id makes a difference"

    def test_it_writes_each_byte_once_and_in_lines(self) -> None:
        adapter = self.begun()
        data = adapter.data_to_send()
        assert not data or data.endswith(b"\n"), "the last line has no newline"
        assert adapter.data_to_send() == b"", "data_to_send() gives the same bytes twice"

    def test_its_events_can_be_sent_to_clients(self) -> None:
        check(self.play()[0])

    def test_garbage_ends_no_turn(self) -> None:
        for name, line in GARBAGE.items():
            events = list(self.begun().receive_line(line))
            ended = [event for event in events if isinstance(event, ENDINGS)]
            assert not ended, f"{name}: the turn ends with {ended}"
            check(events)

    def test_it_relies_on_no_member_of_a_line(self) -> None:
        for line in self.lines:
            try:
                decoded = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            for changed in broken(decoded):
                check(list(self.begun().receive_line(orjson.dumps(changed))))

    def test_an_exit_within_a_turn_ends_it_once(self) -> None:
        events = list(self.begun().receive_exit(ExitStatus(-9, "last words\n")))
        ended = [event for event in events if isinstance(event, ENDINGS)]
        assert len(ended) == 1 and isinstance(ended[0], Failed), f"endings: {ended}"
        assert "last words" in ended[0].text, "the failure does not contain the end of stderr"
        check(events)

    def test_an_unknown_answer_breaks_nothing(self) -> None:
        if "questions" not in self.adapter.limitations:
            self.begun().answer(Question("gone", "permission", "?"), Answer("gone", "yes"))

    def test_an_interrupt_returns_whether_the_cli_ends_the_turn(self) -> None:
        assert isinstance(self.begun().interrupt(), bool)
