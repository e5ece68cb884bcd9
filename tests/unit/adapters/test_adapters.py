"""The contract of all adapters. A new file in adapters/ is tested here without being named. The
tests also cover the search for adapters."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
import pytest

from bridge.adapter import (
    Adapter,
    AgentConfig,
    ExitStatus,
    Launch,
    Prompt,
    SessionStart,
    explain_exit,
)
from bridge.adapter.testing import GARBAGE, PROMPT, AdapterTests, begin, broken, check
from bridge.errors import ConfigurationError
from bridge.server import registry
from bridge.task.events import ENDINGS, AgentEvent, Answer, Done, Failed, Question, Text
from tests import CHECKOUT
from tests.support.cases import each
from tests.support.print_recipes import rows
from tests.support.transcripts import shape

TESTS = CHECKOUT / "tests"
BUILT_IN = [path.stem.replace("_", "-") for path in TESTS.parent.glob("adapters/[a-z]*.py")]
load = lru_cache(registry.load)


def make(name: str, *, resume: bool = False) -> Adapter:
    config = AgentConfig(
        "/opt/agent", ("--one", "two"), model="m", force=True, runner=("/opt/python", "/runner.py")
    )
    start = SessionStart("/workspace", "11111111-2222-3333-4444-555555555555", resume)
    kind = load(name)
    if name == "replay":  # it plays another one's recordings
        return kind(config, start, dialect=registry.load("claude-code"))  # type: ignore[call-arg]
    return kind(config, start)


# --- the contract --------------------------------------------------------------------------------


def test_there_are_adapters() -> None:
    assert {"claude-code", "jsonl", "replay"} <= set(BUILT_IN)
    assert set(registry.names()) >= set(BUILT_IN)


@each("name", BUILT_IN)
def test_the_attributes_of_an_adapter_are_consistent(name: str) -> None:
    adapter = registry.load(name)
    assert issubclass(adapter, Adapter)
    assert adapter.name == name
    assert adapter.title
    assert os.sep not in adapter.binary
    assert adapter.input_modes
    assert all("/" in mode for mode in adapter.input_modes)
    assert all(
        pattern == pattern.strip("*") + "*" * pattern.endswith("*")
        for pattern in adapter.environment
    )
    assert adapter.__module__.replace("._", ".") == f"bridge.adapters.{name.replace('-', '_')}"


@each("name", BUILT_IN)
@each("resume", [False, True])
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


@each("name", BUILT_IN)
def test_launching_twice_is_the_same(name: str) -> None:
    adapter = make(name)
    assert adapter.launch() == adapter.launch()


@each("name", BUILT_IN)
def test_pending_bytes_are_returned_once_and_in_complete_lines(name: str) -> None:
    adapter = make(name)
    begin(adapter)
    data = adapter.data_to_send()
    assert data.endswith(b"\n")
    assert adapter.data_to_send() == b""


@each("name", BUILT_IN)
def test_an_exit_in_the_middle_of_a_turn_ends_it_once(name: str) -> None:
    adapter = make(name)
    begin(adapter)
    events = list(adapter.receive_exit(ExitStatus(-9, "last \x1b[1mwords\n")))
    assert [type(event) for event in events if isinstance(event, ENDINGS)] == [Failed]
    assert isinstance(events[-1], Failed)
    assert "signal 9" in events[-1].text
    assert "words" in events[-1].text
    check(events)


@each("name", BUILT_IN)
def test_an_answer_to_a_question_that_was_never_asked_breaks_nothing(name: str) -> None:
    adapter = make(name)
    begin(adapter)
    adapter.answer(Question("gone", "permission", "?"), Answer("gone", "yes"))


@each("name", BUILT_IN)
def test_an_interrupt_says_whether_the_cli_will_end_the_turn(name: str) -> None:
    """It will if it has been asked to. Codex and ACP agents have no turn yet that could be named,
    and a program behind `jsonl` need not know the request."""
    adapter = make(name)
    begin(adapter)
    adapter.data_to_send()
    ends = adapter.interrupt()
    assert ends is (name not in ("acp", "codex", "jsonl", "replay"))
    assert adapter.data_to_send() or not ends


@each("line", GARBAGE.values(), ids=GARBAGE)
@each("name", BUILT_IN)
def test_garbage_neither_breaks_an_adapter_nor_ends_the_turn(name: str, line: bytes) -> None:
    adapter = make(name)
    begin(adapter)
    events = list(adapter.receive_line(line))
    assert not any(isinstance(event, ENDINGS) for event in events)
    check(events)


# --- the kit for adapters of other distributions --------------------------------------------------

CHECKS = [name for name in vars(AdapterTests) if name.startswith("test_")]


@each("name", sorted(set(BUILT_IN) - {"replay"}))  # which needs a recording
@each("check_name", CHECKS)
def test_built_in_adapters_pass_the_kit(name: str, check_name: str) -> None:
    kit: Any = type("Kit", (AdapterTests,), {"adapter": load(name)})
    getattr(kit(), check_name)()


class Kept(Adapter):
    """It follows the contract; each subclass breaks one rule."""

    name = title = "kept"

    def launch(self) -> Launch:
        return Launch((self.config.binary, *self.config.args))

    def prompt(self, prompt: Prompt) -> None:
        self.send(b"go\n")

    def answer(self, question: Question, answer: Answer) -> None:
        pass

    def receive_line(self, line: bytes) -> Iterator[AgentEvent]:
        yield from ()


class Flag(Kept):
    def prompt(self, prompt: Prompt) -> None:
        self.said = prompt.text

    def launch(self) -> Launch:
        return Launch((*super().launch().argv, getattr(self, "said", "")))


class Counted(Kept):
    count = 0

    def prompt(self, prompt: Prompt) -> None:
        type(self).count += 1
        self.send(b"%d\n" % self.count)


class Cut(Kept):
    def prompt(self, prompt: Prompt) -> None:
        self.send(b"go")


class Twice(Kept):
    def data_to_send(self) -> bytes:
        return b"go\n"


class Trusting(Kept):
    def receive_line(self, line: bytes) -> Iterator[AgentEvent]:
        yield Text(json.loads(line)["text"])


class Hasty(Kept):
    def receive_line(self, line: bytes) -> Iterator[AgentEvent]:
        yield Done()


class Silent(Kept):
    def receive_exit(self, status: ExitStatus) -> Iterator[AgentEvent]:
        yield from ()


def failures(adapter: type[Adapter]) -> list[str]:
    kit: Any = type("Kit", (AdapterTests,), {"adapter": adapter, "lines": (b'{"text": "x"}',)})
    found = []
    for name in CHECKS:
        try:
            getattr(kit(), name)()
        except Exception:
            found.append(name)
    return found


@each(
    ("adapter", "failing"),
    [
        (Kept, None),
        (Flag, "test_it_launches_its_program_without_the_prompt"),
        (Counted, "test_it_writes_the_same_bytes_again"),
        (Cut, "test_it_writes_each_byte_once_and_in_lines"),
        (Twice, "test_it_writes_each_byte_once_and_in_lines"),
        (Trusting, "test_garbage_ends_no_turn"),
        (Trusting, "test_it_relies_on_no_member_of_a_line"),
        (Hasty, "test_garbage_ends_no_turn"),
        (Silent, "test_an_exit_within_a_turn_ends_it_once"),
    ],
)
def test_the_kit_finds_breaches_of_the_contract(
    adapter: type[Adapter], failing: str | None
) -> None:
    found = failures(adapter)
    assert failing in found if failing else not found


# --- every line that was ever recorded, with every member missing or of another kind -------------

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


RECORDED = [
    pytest.param(name, line, id=f"{name}-{line.get('type')}-{number}")
    for name in BUILT_IN
    for number, line in enumerate(recorded_shapes(TESTS / "transcripts" / name))
]


@each(("name", "line"), RECORDED)
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


@each("name", [f"{__name__}:not_an_adapter", f"{__name__}:missing", f"{__name__}:"])
def test_a_value_that_is_not_an_adapter_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match="not a subclass"):
        registry.load(name)


@each("name", ["no_such_module:X", "tests.no_such_module:X"])
def test_a_module_that_is_missing_is_named(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name.partition(":")[0]):
        registry.load(name)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError) as caught:
        registry.load("claude")
    assert "'claude'" in str(caught.value)
    for name in BUILT_IN:
        assert name in str(caught.value)


@each("name", registry.WITHDRAWN)
def test_a_withdrawn_name_is_answered_with_its_replacement_and_its_recipe(name: str) -> None:
    other, recipe = registry.WITHDRAWN[name]
    (args, *more), _, (variables,), _ = rows()[other]
    assert recipe == " ".join([f"AGENT_ARGS='{args}'", *more])
    adapter = registry.load(other)
    assert adapter.binary == other
    assert set(adapter.environment) <= set(variables.split(","))
    assert name not in registry.names()
    with pytest.raises(ConfigurationError) as caught:
        registry.load(name)
    wanted = (name, f"Use {other},", f"AGENT_ADAPTER=generic AGENT_BINARY={other} {recipe}")
    assert [one for one in wanted if one not in str(caught.value)] == []


def test_an_installed_distribution_may_bring_an_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "foreign-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(
        f"[{registry.GROUP}]\nforeign = {__name__}:Foreign\nwrong = {__name__}:not_an_adapter\n"
        f"codex-exec = {__name__}:Foreign\n"  # a name that was withdrawn is free
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.load("foreign") is registry.load("codex-exec") is Foreign
    assert registry.names()[-3:] == ["codex-exec", "foreign", "wrong"]
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
    assert one.unsupported_reason(one.config) is None
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
