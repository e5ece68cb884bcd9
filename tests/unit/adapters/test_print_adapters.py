"""PrintModeAdapter and its adapter for Cursor, as pure code: their rules, and published recordings
of the CLI with the expected events, which were reviewed."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bridge.adapter import AgentConfig, ExitStatus, Prompt, SessionOptions, SessionStart, unasked
from bridge.adapter.print_mode import PrintModeAdapter
from bridge.adapter.testing import broken, check
from bridge.server import registry
from bridge.task.events import (
    ENDINGS,
    SESSION_LOST,
    AgentEvent,
    Done,
    Failed,
    Started,
    Status,
    Text,
    ToolCall,
    ToolResult,
)
from bridge.task.message import Message, Role, TextPart, UrlPart
from tests import CHECKOUT
from tests.support.cases import each
from tests.support.transcripts import described, shape

RECORDINGS = sorted((CHECKOUT / "tests/transcripts/cursor").glob("*.jsonl"))
WRITE = "WRITE_GOLDENS"  # set it to 1 to update the expected events
ID = "11111111-2222-4333-8444-555555555555"
Json = dict[str, Any]


load = cache(registry.load)  # which looks into a folder each time


class Play:
    """Plays the session's part and the runner's: the CLI's lines are wrapped as the runner does."""

    def __init__(self, *, force: bool = False, resume: str = "", **options: Any) -> None:
        start = SessionStart(
            "/workspace", resume or ID, bool(resume), SessionOptions(**options), folder=None
        )
        config = AgentConfig(
            "/opt/agent",
            ("--own",),
            model="m",
            force=force,
            runner=("runner",),
            project_config=True,  # what keeps a CLI from it is in test_poisoned.py
        )
        self.adapter = load("cursor")(config, start)

    def prompt(self, text: str = "do it") -> list[Json]:
        parts = (TextPart(text), UrlPart("file:///files/a%20b.txt"))
        self.adapter.prompt(Prompt("t", "c", Message("m", Role.USER, parts)))
        return self.sent()

    def sent(self) -> list[Json]:
        return [json.loads(line) for line in self.adapter.data_to_send().splitlines()]

    def argv(self, text: str = "do it") -> list[str]:
        (order,) = self.prompt(text)
        argv: list[str] = order["run"]["argv"]
        return argv

    def heard(self, **told: Any) -> list[AgentEvent]:
        return list(self.adapter.receive_line(json.dumps(told).encode()))

    def line(self, **event: Any) -> list[AgentEvent]:
        return self.heard(line=json.dumps(event))

    def exit(self, code: int = 0, stderr: str = "") -> list[AgentEvent]:
        return self.heard(exit=code, stderr=stderr)


# --- recordings ----------------------------------------------------------------------------------


class Recording(Play):
    def __init__(self, rows: list[Json]) -> None:
        spawn = rows[0]["data"]
        super().__init__(resume=spawn.get("resume", ""))
        self._rows = rows
        self._running = True
        self._stderr = ""
        self.events: list[AgentEvent] = []

    def run(self) -> Iterator[Json]:
        yield from ({"out": order} for order in self.prompt())
        for row in self._rows[1:]:
            yield from self._row(row["dir"], row["data"])
            yield from ({"out": order} for order in self.sent())

    def _row(self, direction: str, data: Any) -> Iterator[Json]:
        match direction:
            case "out":
                text = data if isinstance(data, str) else json.dumps(data)
                yield from self._told(self.heard(line=text))
            case "err":
                self._stderr += f"{data}\n"
            case "note" if data["note"] == "cancel":
                yield {"in": "cancel", "answered": self.adapter.interrupt()}
            case "note":
                yield from self._told(self.exit(data["rc"], self._stderr))

    def _told(self, events: Iterable[AgentEvent]) -> Iterator[Json]:
        for event in events:
            self.events.append(event)
            yield described(event) if self._running else {**described(event), "ignored": True}
            self._running = self._running and not isinstance(event, ENDINGS)


def rows_of(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_there_are_recordings() -> None:
    assert RECORDINGS


@each("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recording_becomes_the_events_written_down_for_it(path: Path) -> None:
    told = [json.dumps(entry, ensure_ascii=False) for entry in Recording(rows_of(path)).run()]
    text = "[\n" + ",\n".join(told) + "\n]\n"
    golden = path.with_suffix(".events.json")
    if os.environ.get(WRITE):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), f"to update them: {WRITE}=1"


@each("path", RECORDINGS, ids=lambda path: path.stem)
def test_the_turn_of_a_recording_ends_exactly_once(path: Path) -> None:
    recording = Recording(rows_of(path))
    deque(recording.run(), maxlen=0)
    assert [isinstance(event, ENDINGS) for event in recording.events].count(True) == 1
    check(recording.events)


def shapes() -> Iterator[Any]:
    """One line of each shape, with the recording in which it comes."""
    found = set()
    for path in RECORDINGS:
        rows = rows_of(path)
        for number, row in enumerate(rows):
            known = repr(shape(row["data"], 4))
            if row["dir"] == "out" and isinstance(row["data"], dict) and known not in found:
                found.add(known)
                yield pytest.param(rows[: number + 1], id=f"{path.stem}-{number}")


@each("rows", list(shapes()))
def test_no_member_of_a_recorded_line_is_relied_upon_blindly(rows: list[Json]) -> None:
    """The line comes where it came, with every member missing or of another kind."""
    *before, last = rows
    for changed in broken(last["data"]):
        recording = Recording([*before, {**last, "data": changed}])
        deque(recording.run(), maxlen=0)
        check(recording.events)


# --- arguments -----------------------------------------------------------------------------------

FORCE = "--force"


def test_the_arguments_are_those_of_the_operator_and_then_its_own() -> None:
    first = ["--print", "--output-format=stream-json", "--stream-partial-output", "--trust"]
    last = ["--model=m", "--", " do it\n\nAttached file: /files/a b.txt"]
    assert Play().argv() == ["/opt/agent", "--own", *first, *last]


def test_only_the_operator_switches_permissions_off() -> None:
    assert FORCE in Play(force=True).argv()
    for mode in (None, *registry.load("cursor").modes):
        assert FORCE not in Play(mode=mode).argv()


def test_a_conversation_is_resumed_by_its_id() -> None:
    assert "--resume=old" in Play(resume="old").argv()


@each("text", ["--help", "-", "/help", "@x", "!ls", "logout"])
def test_a_prompt_is_behind_the_end_of_the_flags(text: str) -> None:
    (order,) = Play().prompt(text)
    run = order["run"]
    assert not run["open"]
    assert run["argv"][-2] == "--"
    assert run["argv"][-1].startswith(" \u200b/help" if text == "/help" else f" {text}")
    assert run["input"] == ""


# --- turns ---------------------------------------------------------------------------------------

BEGINS: Json = {"type": "system", "subtype": "init", "session_id": "s-1", "model": "Auto"}
ENDS: Json = {"type": "result", "subtype": "success", "is_error": False, "result": "x"}


def begun() -> Play:
    play = Play()
    play.prompt()
    assert play.line(**BEGINS) == [Started("s-1", "Auto")]
    return play


def ending(events: list[AgentEvent]) -> AgentEvent:
    (found,) = [event for event in events if isinstance(event, ENDINGS)]
    return found


def test_the_next_turn_continues_with_the_id_that_was_heard() -> None:
    play = begun()
    play.line(**ENDS)
    play.exit()
    assert "--resume=s-1" in play.argv()


def test_an_id_that_was_never_heard_is_not_resumed() -> None:
    play = Play()
    play.prompt()
    assert isinstance(ending(play.exit(1, "no network")), Failed)
    assert "resume" not in " ".join(play.argv())


def test_an_id_that_would_be_a_flag_is_not_resumed() -> None:
    """The CLI chooses its id, and an adapter may pass it as a separate argument."""
    play = begun()
    assert isinstance(play.adapter, PrintModeAdapter)
    list(play.adapter.began("--force"))
    play.line(**ENDS)
    play.exit()
    assert "--force" not in " ".join(play.argv())


def test_the_final_line_ends_the_turn_and_not_the_exit() -> None:
    play = begun()
    assert isinstance(ending(play.line(**ENDS)), Done)
    assert play.line(**ENDS) == [unasked("output", "line")]
    assert play.exit(1, "trouble afterwards") == []


def test_an_exit_without_an_end_is_a_failure() -> None:
    failed = ending(begun().exit(0, "last words"))
    assert isinstance(failed, Failed)
    assert "last words" in failed.text


def test_a_lingering_process_is_stopped_before_the_next_prompt() -> None:
    play = begun()
    play.line(**ENDS)
    assert play.prompt("second") == [{"stop": True}]
    assert play.line(**ENDS) == []
    assert play.line(**BEGINS) == []
    assert play.exit(-15) == []
    (order,) = play.sent()
    assert "run" in order
    assert play.line(**BEGINS)


def test_an_interrupt_stops_it_and_its_exit_ends_the_turn() -> None:
    play = begun()
    assert play.adapter.interrupt()
    assert play.sent() == [{"stop": True}]
    failed = ending(play.exit(0))
    assert isinstance(failed, Failed)
    assert failed.reason == "interrupted"
    assert not play.adapter.interrupt()


def test_an_end_after_an_interrupt_is_the_interrupt_s() -> None:
    play = begun()
    play.adapter.interrupt()
    failed = ending(play.line(**ENDS))
    assert isinstance(failed, Failed)
    assert failed.reason == "interrupted"


def test_a_prompt_that_waits_for_another_process_is_given_up_with_an_interrupt() -> None:
    play = begun()
    play.line(**ENDS)
    play.prompt("second")
    assert play.adapter.interrupt()
    play.sent()
    failed = ending(play.exit(-9))
    assert isinstance(failed, Failed)
    assert failed.reason == "interrupted"
    assert play.sent() == []


@each(("resume", "reason"), [("old", SESSION_LOST), ("", "exit")])
def test_only_a_conversation_that_is_resumed_can_be_lost(resume: str, reason: str) -> None:
    play = Play(resume=resume)
    play.prompt()
    failed = ending(play.exit(1, "Error: Chat old not found"))
    assert isinstance(failed, Failed)
    assert failed.reason == reason


def test_a_line_without_a_handler_becomes_a_status() -> None:
    play = begun()
    (status,) = play.line(type="something.new", data=1)
    assert isinstance(status, Status) and "something.new" in status.text
    assert play.heard(line="  ") == []
    (status,) = play.heard(line="plain words")
    assert isinstance(status, Status)
    assert play.line(type="user") == []


def test_a_program_that_is_not_there_fails_the_turn() -> None:
    play = Play()
    play.prompt()
    failed = ending(play.heard(error="No such file or directory", running=False))
    assert isinstance(failed, Failed)
    assert failed.reason == "launch"
    assert not play.adapter.interrupt()
    assert "run" in play.prompt("again")[0]


def test_exit_status_is_kept_for_programs() -> None:
    play = Play()
    play.prompt()
    failed = ending(play.exit(2, "error: unexpected argument"))
    assert isinstance(failed, Failed)
    assert failed.details is not None
    assert failed.details["exitCode"] == ExitStatus(2).code


# --- Cursor's own --------------------------------------------------------------------------------


def cursor_text(text: str, *, ts: bool = False, call: bool = False) -> Json:
    event: Json = {"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}}
    return event | ({"timestamp_ms": 1} if ts else {}) | ({"model_call_id": "m"} if call else {})


def texts(events: Iterable[AgentEvent]) -> list[tuple[str, bool]]:
    return [(event.text, event.new_block) for event in events if isinstance(event, Text)]


@each(
    ("pieces", "wanted"),
    [
        ([("He", "d"), ("y", "d"), ("Hey", "b"), ("Hey", "f")], [("He", True), ("y", False)]),
        ([("Hello", "b"), ("Bye", "f")], [("Hello", True), ("Bye", True)]),
        ([("Hello", "f")], [("Hello", True)]),
        ([("Hel", "d"), ("Hello", "f")], [("Hel", True), ("lo", False)]),
        ([("Hello", "d"), ("Something else", "f")], [("Hello", True)]),
        ([("A", "d"), ("A", "b"), ("", "t"), ("A", "f")], [("A", True), ("A", True)]),
        ([("A", "d"), ("A", "b"), ("", "t"), ("B", "d"), ("B", "f")], [("A", True), ("B", True)]),
        ([("", "d"), ("", "f")], []),
    ],
)  # fmt: skip
def test_cursor_says_its_text_once(
    pieces: list[tuple[str, str]], wanted: list[tuple[str, bool]]
) -> None:
    """d: a piece, b: the whole before a tool, f: at the end, t: a tool."""
    play = begun()
    events: list[AgentEvent] = []
    for text, kind in pieces:
        if kind == "t":
            call = {"readToolCall": {"args": {"path": "x"}}}
            play.line(type="tool_call", subtype="started", call_id="c", tool_call=call)
        else:
            events += play.line(**cursor_text(text, ts=kind in "db", call=kind == "b"))
    assert texts(events) == wanted


def cursor_tool(call: Json, result: Json | None = None) -> list[AgentEvent]:
    play = begun()
    events = play.line(type="tool_call", subtype="started", call_id="c\nd", tool_call=call)
    if result is not None:
        name = next(iter(call))
        done = {name: {**call[name], "result": result}}
        events += play.line(type="tool_call", subtype="completed", call_id="c\nd", tool_call=done)
    return events


def test_a_tool_of_cursor_has_the_name_of_its_member() -> None:
    (call,) = cursor_tool({"mcpToolCall": {"args": {"name": "x"}}})
    assert call == ToolCall("c\nd", "mcp", {"name": "x"})
    (call,) = cursor_tool({"function": {"name": "f", "arguments": '{"a": 1}'}})
    assert call == ToolCall("c\nd", "f", {"a": 1})
    (call,) = cursor_tool({"unheard": 5})
    assert call == ToolCall("c\nd", "tool", {"unheard": 5})


@each(
    ("result", "output", "failed"),
    [
        ({"success": {"exitCode": 0, "stdout": "a", "stderr": "b"}}, "ab", False),
        ({"success": {"exitCode": 2, "stdout": "", "stderr": "b"}}, "b", True),
        ({"failure": {"exitCode": 2, "stdout": "", "stderr": "b"}}, "b", True),
        ({"rejected": {"reason": ""}}, "Rejected: it needs a permission.", True),
        ({"rejected": {"reason": "not today"}}, "not today", True),
        ({"error": {"errorMessage": "no such file"}}, "no such file", True),
        ({"permissionDenied": {"x": 1}}, {"x": 1}, True),
        ({"startSuccess": {"x": 1}}, {"x": 1}, False),
    ],
)
def test_the_results_of_tools_of_cursor(result: Json, output: Any, failed: bool) -> None:
    _, said = cursor_tool({"shellToolCall": {"args": {"command": "x"}}}, result)
    assert isinstance(said, ToolResult)
    assert (said.output, said.is_error) == (output, failed)


def test_the_details_contain_the_rejection_of_cursor() -> None:
    play = begun()
    call = {"shellToolCall": {"args": {"command": "x"}, "result": {"rejected": {}}}}
    play.line(type="tool_call", subtype="completed", call_id="c", tool_call=call)
    done = ending(play.line(**ENDS))
    assert isinstance(done, Done)
    assert done.details == {"denied": ["shell"]}


def test_an_error_of_cursor_without_a_result_is_the_failure() -> None:
    play = begun()
    (status,) = play.line(type="error", message="out of credits")
    assert isinstance(status, Status)
    failed = ending(play.exit(1))
    assert isinstance(failed, Failed)
    assert failed.text == "out of credits"
