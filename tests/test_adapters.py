"""What every adapter must do, whichever CLI it is for: a new file in adapters/ is tested here
without being named. And how adapters are found."""

from __future__ import annotations

import gc
import json
import os
import typing
import weakref
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import orjson
import pytest

from bridge import registry
from bridge.a2a import CODECS
from bridge.adapter import (
    Adapter,
    AgentConfig,
    ExitStatus,
    Launch,
    Prompt,
    SessionStart,
    explain_exit,
)
from bridge.errors import ConfigurationError
from bridge.events import ENDINGS, AgentEvent, Answer, Event, Failed, Question
from bridge.message import DataPart, Message, RawPart, Role, TextPart, UrlPart
from bridge.task import Task

TESTS = Path(__file__).parent
BUILT_IN = [path.stem.replace("_", "-") for path in TESTS.parent.glob("adapters/[a-z]*.py")]
load = lru_cache(registry.load)


@lru_cache
def type_hints(of: type) -> dict[str, Any]:
    return typing.get_type_hints(of)


PROMPT = "do --not=read this; as $(a command)\nor `a flag`"
NOW = datetime(2026, 1, 2, tzinfo=UTC)
EVENTS: tuple[type, ...] = typing.get_args(Event)


def make(name: str, *, resume: bool = False) -> Adapter:
    config = AgentConfig(
        "/opt/agent", ("--one", "two"), model="m", force=True, runner=("/opt/python", "/runner.py")
    )
    start = SessionStart("/workspace", "11111111-2222-3333-4444-555555555555", resume)
    kind = load(name)
    if name == "replay":  # it plays another one's recordings
        return kind(config, start, dialect=registry.load("claude-code"))  # type: ignore[call-arg]
    return kind(config, start)


def begin(adapter: Adapter) -> None:
    parts = (
        TextPart(PROMPT),
        DataPart({"a": 1}),
        RawPart("aGk=", "text/plain", "f"),
        UrlPart("https://example.org/x"),
    )
    adapter.prompt(Prompt("t", "c", Message("m", Role.USER, parts)))


def check(events: list[AgentEvent]) -> None:
    """Whatever is said can be told to clients of every version."""
    task = Task("t", "c", NOW, show_thoughts=True)
    for event in events:
        assert type(event) in EVENTS
        check_strings(event)
        if not task.state.terminal:
            task.apply(event, NOW)
    for codec in CODECS:
        orjson.dumps(codec.encode_task(task))


def check_strings(value: Any) -> None:
    if isinstance(value, tuple):
        for one in value:
            check_strings(one)
    if not is_dataclass(value):
        return
    kind: type = type(value)
    hints = type_hints(kind)
    for one in fields(value):
        member = getattr(value, one.name)
        if hints[one.name] is str:
            assert isinstance(member, str), (value, one.name)
        elif hints[one.name] == str | None:
            assert member is None or isinstance(member, str), (value, one.name)
        check_strings(member)


# --- the contract --------------------------------------------------------------------------------


def test_there_are_adapters() -> None:
    assert {"claude-code", "jsonl", "replay"} <= set(BUILT_IN)
    assert set(registry.names()) >= set(BUILT_IN)


@pytest.mark.parametrize("name", BUILT_IN)
def test_an_adapter_says_what_it_is(name: str) -> None:
    adapter = registry.load(name)
    assert issubclass(adapter, Adapter)
    assert adapter.name == name
    assert adapter.title
    assert adapter.binary_setting.isupper()
    assert os.sep not in adapter.binary
    assert adapter.input_modes
    assert all("/" in mode for mode in adapter.input_modes)
    assert all(
        pattern == pattern.strip("*") + "*" * pattern.endswith("*")
        for pattern in adapter.environment
    )
    assert adapter.__module__ == f"bridge.adapters.{name.replace('-', '_')}"


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("resume", [False, True])
def test_a_launch_is_the_binary_with_its_arguments_and_no_prompt(name: str, resume: bool) -> None:
    adapter = make(name, resume=resume)
    launch = adapter.launch()
    begin(adapter)
    assert adapter.launch() == launch
    argv = list(launch.argv)
    if launch.argv == adapter.config.runner:  # which is told what to run
        argv = json.loads(adapter.data_to_send())["run"]["argv"]
    assert argv[:3] == ["/opt/agent", "--one", "two"]
    assert all(isinstance(one, str) and "\0" not in one for one in argv)
    # Where it has to be an argument, it cannot be taken for a flag.
    flags = argv[: argv.index("--")] if "--" in argv else argv
    assert not any(PROMPT in one and not one.startswith("--prompt=") for one in flags)
    assert all(isinstance(value, str) for value in launch.env.values())


@pytest.mark.parametrize("name", BUILT_IN)
def test_launching_twice_is_the_same(name: str) -> None:
    adapter = make(name)
    assert adapter.launch() == adapter.launch()


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_is_owed_is_owed_once_and_in_whole_lines(name: str) -> None:
    adapter = make(name)
    begin(adapter)
    data = adapter.data_to_send()
    assert data.endswith(b"\n")
    assert adapter.data_to_send() == b""


@pytest.mark.parametrize("name", BUILT_IN)
def test_an_exit_in_the_middle_of_a_turn_ends_it_once(name: str) -> None:
    adapter = make(name)
    begin(adapter)
    events = list(adapter.receive_exit(ExitStatus(-9, "last \x1b[1mwords\n")))
    assert [type(event) for event in events if isinstance(event, ENDINGS)] == [Failed]
    assert isinstance(events[-1], Failed)
    assert "signal 9" in events[-1].text
    assert "words" in events[-1].text
    check(events)


@pytest.mark.parametrize("name", BUILT_IN)
def test_an_adapter_whose_process_has_ended_is_no_garbage(name: str) -> None:
    """It goes at once, with all that it remembers, rather than when a collector comes by, which
    it seldom does (bridge/heap.py)."""
    gc.collect()
    gc.disable()
    try:
        adapter = make(name)
        begin(adapter)
        list(adapter.receive_line(b'{"type": "text", "text": "one"}'))
        list(adapter.receive_exit(ExitStatus(-9, "")))
        gone = weakref.ref(adapter)
        del adapter
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("name", BUILT_IN)
def test_an_answer_to_a_question_that_was_never_asked_breaks_nothing(name: str) -> None:
    adapter = make(name)
    begin(adapter)
    adapter.answer(Question("gone", "permission", "?"), Answer("gone", "yes"))


@pytest.mark.parametrize("name", BUILT_IN)
def test_an_interrupt_says_whether_the_cli_will_end_the_turn(name: str) -> None:
    adapter = make(name)
    begin(adapter)
    assert adapter.interrupt() in (True, False)


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


@pytest.mark.parametrize("line", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("name", BUILT_IN)
def test_garbage_neither_breaks_an_adapter_nor_ends_the_turn(name: str, line: bytes) -> None:
    adapter = make(name)
    begin(adapter)
    events = list(adapter.receive_line(line))
    assert not any(isinstance(event, ENDINGS) for event in events)
    check(events)


# --- every line that was ever recorded, with every member missing or of another kind -------------

REPLACEMENTS: tuple[Any, ...] = (None, 5, [1])
LISTS = ("tools", "skills", "agents", "commands", "slash_commands", "mcp_servers", "models")


def recorded_shapes(folder: Path) -> list[Any]:
    """One line of each shape in the recordings of a CLI."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*/*.jsonl")):
        for text in path.read_text("utf-8").splitlines():
            row = json.loads(text)
            if row["dir"] == "out" and isinstance(row["data"], dict):
                line = {name: v for name, v in row["data"].items() if name not in LISTS}
                found.setdefault(repr(shape(line, 3)), line)
    return list(found.values())


def shape(value: Any, depth: int) -> Any:
    if isinstance(value, dict) and depth:
        return {
            name: one if name in ("type", "subtype") else shape(one, depth - 1)
            for name, one in sorted(value.items())
        }
    if isinstance(value, list):
        return sorted({repr(shape(one, depth)) for one in value})
    return type(value).__name__


def places(value: Any, depth: int = 6) -> Iterator[tuple[Any, ...]]:
    """The paths of all members; of a list, the first one stands for all."""
    below = list(value.items()) if isinstance(value, dict) else []
    below += list(enumerate(value))[:1] if isinstance(value, list) else []
    for name, one in below if depth else ():
        yield (name,)
        yield from ((name, *rest) for rest in places(one, depth - 1))


def broken(line: Any) -> Iterator[Any]:
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


RECORDED = [
    pytest.param(name, line, id=f"{name}-{line.get('type')}-{number}")
    for name in BUILT_IN
    for number, line in enumerate(recorded_shapes(TESTS / "transcripts" / name))
]


@pytest.mark.parametrize(("name", "line"), RECORDED)
def test_no_member_of_a_recorded_line_is_relied_upon_blindly(name: str, line: Any) -> None:
    for changed in broken(line):
        adapter = make(name)
        begin(adapter)
        said = list(adapter.receive_line(orjson.dumps(changed)))
        if said:
            check(said)


# --- finding adapters ----------------------------------------------------------------------------


class Foreign(Adapter):
    """An adapter from somewhere else."""

    name = "foreign"
    title = "Foreign"

    def launch(self) -> Launch:
        return Launch(("/bin/true",))

    def prompt(self, prompt: Prompt) -> None:
        self.send(b"hi\n")

    def receive_line(self, line: bytes) -> Iterator[AgentEvent]:
        yield from ()


not_an_adapter = 5


def test_an_adapter_may_be_named_by_module_and_class() -> None:
    assert registry.load(f"{__name__}:Foreign") is Foreign


@pytest.mark.parametrize(
    "name", [f"{__name__}:not_an_adapter", f"{__name__}:missing", f"{__name__}:"]
)
def test_what_is_no_adapter_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match="not a subclass"):
        registry.load(name)


@pytest.mark.parametrize("name", ["no_such_module:X", "tests.no_such_module:X"])
def test_a_module_that_is_missing_is_named(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name.partition(":")[0]):
        registry.load(name)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError) as caught:
        registry.load("claude")
    assert "'claude'" in str(caught.value)
    for name in BUILT_IN:
        assert name in str(caught.value)


def entries(*, group: str, name: str | None = None) -> list[EntryPoint]:
    known = [
        EntryPoint("foreign", f"{__name__}:Foreign", registry.GROUP),
        EntryPoint("wrong", f"{__name__}:not_an_adapter", registry.GROUP),
    ]
    return [one for one in known if one.group == group and name in (None, one.name)]


def test_an_installed_distribution_may_bring_an_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", entries)
    assert registry.load("foreign") is Foreign
    assert registry.names()[-2:] == ["foreign", "wrong"]
    with pytest.raises(ConfigurationError, match="'wrong' is not a subclass"):
        registry.load("wrong")


def test_adapters_with_a_binary_can_be_looked_for() -> None:
    found = list(registry.with_binary())
    assert "claude-code" in [adapter.name for adapter in found]
    assert all(adapter.binary for adapter in found)


# --- the defaults of the base class --------------------------------------------------------------


def foreign() -> Foreign:
    return Foreign(AgentConfig("/bin/true"), SessionStart("/workspace", "s"))


def test_an_adapter_need_only_say_how_to_launch_prompt_and_read() -> None:
    one = foreign()
    assert not one.interrupt()
    assert one.objection(one.config) is None
    (failed,) = one.receive_exit(ExitStatus(3))
    assert isinstance(failed, Failed)
    assert (
        failed.text
        == "Foreign ended before it had answered (exit status 3). It said nothing on stderr."
    )
    with pytest.raises(NotImplementedError, match="foreign"):
        one.answer(Question("q", "text", "?"), Answer("q", "x"))


def test_the_last_words_of_a_process_are_cut_from_the_front() -> None:
    text, reason, details = explain_exit("X", ExitStatus(-15, "a" * 9000 + "the end\n"))
    assert reason == "exit"
    assert "(signal 15)" in text
    assert text.endswith("the end")
    assert len(text) < 6200
    assert details["exitCode"] == -15
    assert details["stderr"].endswith("the end")
