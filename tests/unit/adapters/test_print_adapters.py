"""The adapters of print modes, as pure code: their rules, and recordings of the CLIs (published
ones for Cursor) with the expected events, which were reviewed."""

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
    Retracted,
    Started,
    Status,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from bridge.task.message import Message, Role, TextPart, UrlPart
from tests import CHECKOUT
from tests.support.cases import each
from tests.support.transcripts import described, shape

NAMES = ("cursor", "gemini-print", "copilot-print", "opencode-run", "codex-exec")
FOLDER = CHECKOUT / "tests" / "transcripts"
RECORDINGS = [path for name in NAMES for path in sorted((FOLDER / name).glob("*.jsonl"))]
WRITE = "WRITE_GOLDENS"  # set it to 1 to update the expected events
ID = "11111111-2222-4333-8444-555555555555"
Json = dict[str, Any]


load = cache(registry.load)  # which looks into a folder each time


class Play:
    """Plays the session's part and the runner's: the CLI's lines are wrapped as the runner does."""

    def __init__(self, name: str, *, force: bool = False, resume: str = "", **options: Any) -> None:
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
        self.adapter = load(name)(config, start)

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
        super().__init__(spawn["adapter"], resume=spawn.get("resume", ""))
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


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def rows_of(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_there_are_recordings_of_all() -> None:
    assert {path.parent.name for path in RECORDINGS} == set(NAMES)


@each("path", RECORDINGS, ids=name_of)
def test_a_recording_becomes_the_events_written_down_for_it(path: Path) -> None:
    told = [json.dumps(entry, ensure_ascii=False) for entry in Recording(rows_of(path)).run()]
    text = "[\n" + ",\n".join(told) + "\n]\n"
    golden = path.with_suffix(".events.json")
    if os.environ.get(WRITE):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), f"to update them: {WRITE}=1"


@each("path", RECORDINGS, ids=name_of)
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
            known = repr((path.parent.name, shape(row["data"], 4)))
            if row["dir"] == "out" and isinstance(row["data"], dict) and known not in found:
                found.add(known)
                yield pytest.param(rows[: number + 1], id=f"{name_of(path)}-{number}")


@each("rows", list(shapes()))
def test_no_member_of_a_recorded_line_is_relied_upon_blindly(rows: list[Json]) -> None:
    """The line comes where it came, with every member missing or of another kind."""
    *before, last = rows
    for changed in broken(last["data"]):
        recording = Recording([*before, {**last, "data": changed}])
        deque(recording.run(), maxlen=0)
        check(recording.events)


# --- arguments -----------------------------------------------------------------------------------

WANTED: dict[str, tuple[list[str], list[str]]] = {
    "cursor": (
        ["--print", "--output-format=stream-json", "--stream-partial-output", "--trust"],
        ["--model=m", "--", " do it\n\nAttached file: /files/a b.txt"],
    ),
    "gemini-print": (["--output-format=stream-json"], ["--model=m"]),
    "copilot-print": (
        ["--output-format=json", "--no-ask-user", f"--session-id={ID}", "--model=m"],
        [],
    ),
    "opencode-run": (
        ["run", "--format=json", "--thinking", "--model=m"],
        ["--file=/files/a b.txt"],
    ),
    "codex-exec": (
        ["--config=features.goals=false", "exec", "--json", "--skip-git-repo-check"],
        ["--model=m", "-"],
    ),
}
FORCE = {
    "cursor": "--force",
    "gemini-print": "--approval-mode=yolo",
    "copilot-print": "--allow-all",
    "opencode-run": "--auto",
    "codex-exec": "--dangerously-bypass-approvals-and-sandbox",
}
RESUME = {
    "cursor": ["--resume=old"],
    "gemini-print": ["--resume=old"],
    "copilot-print": ["--resume=old"],
    "opencode-run": ["--session=old"],
    "codex-exec": ["resume", "old", "-"],
}


@each("name", NAMES)
def test_the_arguments_are_those_of_the_operator_and_then_its_own(name: str) -> None:
    first, last = WANTED[name]
    assert Play(name).argv() == ["/opt/agent", "--own", *first, *last]


@each("name", NAMES)
def test_only_the_operator_switches_permissions_off(name: str) -> None:
    kind = registry.load(name)
    assert FORCE[name] in Play(name, force=True).argv()
    for mode in (None, *kind.modes):
        assert FORCE[name] not in Play(name, mode=mode).argv()


@each("name", ["gemini-print", "codex-exec"])
def test_a_mode_of_the_client_narrows_what_the_operator_allows(name: str) -> None:
    for mode in registry.load(name).modes:
        assert FORCE[name] not in Play(name, force=True, mode=mode).argv()


@each("name", NAMES)
def test_a_conversation_is_resumed_by_its_id(name: str) -> None:
    argv = Play(name, resume="old").argv()
    assert [one for one in argv if one in RESUME[name]] == RESUME[name]
    assert f"--session-id={ID}" not in argv


@each("name", NAMES)
@each("text", ["--help", "-", "/help", "@x", "!ls", "logout"])
def test_a_prompt_is_on_stdin_or_behind_the_end_of_the_flags(name: str, text: str) -> None:
    play = Play(name)
    (order,) = play.prompt(text)
    run = order["run"]
    assert not run["open"]
    if name == "cursor":
        assert run["argv"][-2] == "--"
        assert run["argv"][-1].startswith(" \u200b/help" if text == "/help" else f" {text}")
        assert run["input"] == ""
    else:
        assert not any(text in one for one in run["argv"] if text not in ("-", "@x"))
        assert run["input"].removeprefix("\u200b").startswith(text)


def test_a_gemini_command_is_not_one() -> None:
    (order,) = Play("gemini-print").prompt("/memory show")
    assert order["run"]["input"].startswith("\u200b/memory show")
    (order,) = Play("gemini-print").prompt("plain")
    assert order["run"]["input"].startswith("plain")


# --- turns, as all of them have them -------------------------------------------------------------

BEGINS: dict[str, Json] = {
    "cursor": {"type": "system", "subtype": "init", "session_id": "s-1", "model": "Auto"},
    "gemini-print": {"type": "init", "session_id": "s-1", "model": "flash"},
    "copilot-print": {"type": "user.message", "data": {}},
    "opencode-run": {"type": "step_start", "sessionID": "s-1", "part": {}},
    "codex-exec": {"type": "thread.started", "thread_id": "s-1"},
}
ENDS: dict[str, Json] = {
    "cursor": {"type": "result", "subtype": "success", "is_error": False, "result": "x"},
    "gemini-print": {"type": "result", "status": "success"},
    "copilot-print": {"type": "result", "exitCode": 0},
    "codex-exec": {"type": "turn.completed", "usage": {}},
}


def begun(name: str, **settings: Any) -> Play:
    play = Play(name, **settings)
    play.prompt()
    (started,) = play.line(**BEGINS[name])
    assert isinstance(started, Started)
    if name == "gemini-print" and not settings:  # which keeps nothing before that
        play.line(type="message", role="assistant", content="")
    return play


def ending(events: list[AgentEvent]) -> AgentEvent:
    (found,) = [event for event in events if isinstance(event, ENDINGS)]
    return found


@each("name", NAMES)
def test_the_next_turn_continues_with_the_id_that_was_heard(name: str) -> None:
    play = begun(name)
    if name in ENDS:
        play.line(**ENDS[name])
    play.exit()
    wanted = ID if name == "copilot-print" else "s-1"  # which takes the one that it is given
    argv = play.argv()
    assert any(one in (wanted, f"--resume={wanted}", f"--session={wanted}") for one in argv)


@each("name", NAMES)
def test_an_id_that_was_never_heard_is_not_resumed(name: str) -> None:
    play = Play(name)
    play.prompt()
    assert isinstance(ending(play.exit(1, "no network")), Failed)
    assert "resume" not in " ".join(play.argv())


@each("name", NAMES)
def test_an_id_that_would_be_a_flag_is_not_resumed(name: str) -> None:
    """The CLI chooses its id; for codex-exec the id is a separate argument."""
    play = begun(name)
    assert isinstance(play.adapter, PrintModeAdapter)
    list(play.adapter.began("--force"))
    if name in ENDS:
        play.line(**ENDS[name])
    play.exit()
    assert "--force" not in " ".join(play.argv())


@each("name", ENDS)
def test_the_final_line_ends_the_turn_and_not_the_exit(name: str) -> None:
    play = begun(name)
    assert isinstance(ending(play.line(**ENDS[name])), Done)
    assert play.line(**ENDS[name]) == [unasked("output", "line")]
    assert play.exit(1, "trouble afterwards") == []


@each("name", ENDS)
def test_an_exit_without_an_end_is_a_failure(name: str) -> None:
    play = begun(name)
    failed = ending(play.exit(0, "last words"))
    assert isinstance(failed, Failed)
    assert "last words" in failed.text


@each("name", NAMES)
def test_a_lingering_process_is_stopped_before_the_next_prompt(name: str) -> None:
    play = begun(name)
    play.line(**ENDS.get(name, {"type": "none"}))
    assert play.prompt("second") == [{"stop": True}]
    assert play.line(**ENDS.get(name, BEGINS[name])) == []
    assert play.line(**BEGINS[name]) == []
    assert play.exit(-15) == []
    (order,) = play.sent()
    assert "run" in order
    assert play.line(**BEGINS[name])


@each("name", NAMES)
def test_an_interrupt_stops_it_and_its_exit_ends_the_turn(name: str) -> None:
    play = begun(name)
    assert play.adapter.interrupt()
    (order,) = play.sent()
    assert order == ({"interrupt": True} if name == "opencode-run" else {"stop": True})
    failed = ending(play.exit(0))
    assert isinstance(failed, Failed)
    assert failed.reason == "interrupted"
    assert not play.adapter.interrupt()


@each("name", ENDS)
def test_an_end_after_an_interrupt_is_the_interrupt_s(name: str) -> None:
    play = begun(name)
    play.adapter.interrupt()
    failed = ending(play.line(**ENDS[name]))
    assert isinstance(failed, Failed)
    assert failed.reason == "interrupted"


@each("name", NAMES)
def test_a_prompt_that_waits_for_another_process_is_given_up_with_an_interrupt(name: str) -> None:
    play = begun(name)
    play.line(**ENDS.get(name, {"type": "none"}))
    play.prompt("second")
    assert play.adapter.interrupt()
    play.sent()
    failed = ending(play.exit(-9))
    assert isinstance(failed, Failed)
    assert failed.reason == "interrupted"
    assert play.sent() == []


LOST = {
    "cursor": "Error: Chat old not found",
    "gemini-print": 'Error resuming session: Invalid session identifier "old".',
    "copilot-print": "Error: No session, task, or name matched 'old'.",
    "opencode-run": "\x1b[91m\x1b[1mError: \x1b[0mSession not found",
    "codex-exec": "Error: thread/resume: no rollout found for thread id old (code -32600)",
}


@each("name", NAMES)
def test_a_conversation_that_is_gone_is_lost(name: str) -> None:
    play = Play(name, resume="old")
    play.prompt()
    failed = ending(play.exit(1, LOST[name]))
    assert isinstance(failed, Failed)
    assert failed.reason == SESSION_LOST


@each("name", NAMES)
def test_a_new_conversation_cannot_be_lost(name: str) -> None:
    play = Play(name)
    play.prompt()
    failed = ending(play.exit(1, LOST[name]))
    assert isinstance(failed, Failed)
    assert failed.reason == "exit"


@each("name", NAMES)
def test_a_line_without_a_handler_becomes_a_status(name: str) -> None:
    play = begun(name)
    (status,) = play.line(type="something.new", data=1)
    assert isinstance(status, Status) and "something.new" in status.text
    assert play.heard(line="  ") == []
    (status,) = play.heard(line="plain words")
    assert isinstance(status, Status)
    for pattern in getattr(play.adapter, "ignored", ()):
        assert play.line(type=pattern.replace("*", "new_type")) == []


@each("name", NAMES)
def test_print_modes_come_after_adapters_that_can_ask(name: str) -> None:
    order = [adapter.name for adapter in registry.with_binary()]
    native = {"gemini-print": "gemini", "opencode-run": "opencode", "codex-exec": "codex"}
    if name in native:
        assert order.index(native[name]) < order.index(name)


# --- each one's own ------------------------------------------------------------------------------


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
    play = begun("cursor")
    events: list[AgentEvent] = []
    for text, kind in pieces:
        if kind == "t":
            call = {"readToolCall": {"args": {"path": "x"}}}
            play.line(type="tool_call", subtype="started", call_id="c", tool_call=call)
        else:
            events += play.line(**cursor_text(text, ts=kind in "db", call=kind == "b"))
    assert texts(events) == wanted


def cursor_tool(call: Json, result: Json | None = None) -> list[AgentEvent]:
    play = begun("cursor")
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
    play = begun("cursor")
    call = {"shellToolCall": {"args": {"command": "x"}, "result": {"rejected": {}}}}
    play.line(type="tool_call", subtype="completed", call_id="c", tool_call=call)
    done = ending(play.line(**ENDS["cursor"]))
    assert isinstance(done, Done)
    assert done.details == {"denied": ["shell"]}


def test_an_error_of_cursor_without_a_result_is_the_failure() -> None:
    play = begun("cursor")
    (status,) = play.line(type="error", message="out of credits")
    assert isinstance(status, Status)
    failed = ending(play.exit(1))
    assert isinstance(failed, Failed)
    assert failed.text == "out of credits"


def copilot_delta(text: str) -> Json:
    return {"type": "assistant.message_delta", "data": {"messageId": "m", "deltaContent": text}}


def test_copilot_repeats_its_text_after_a_retry() -> None:
    play = begun("copilot-print")
    events = [*play.line(**copilot_delta("ab")), *play.line(type="assistant.turn_retry", data={})]
    events += play.line(**copilot_delta("abc"))
    events += play.line(type="assistant.message", data={"content": "abc"})
    assert events == [Text("ab", True), Retracted(2), Text("abc", True)]


def test_copilot_without_deltas_has_complete_messages() -> None:
    play = begun("copilot-print")
    events = play.line(type="assistant.message", data={"content": "one"})
    events += play.line(type="assistant.message", data={"content": "two"})
    assert events == [Text("one", True), Text("two", True)]


def test_codex_reports_the_usage_of_the_turn() -> None:
    play = begun("codex-exec")
    first = play.line(type="turn.completed", usage={"input_tokens": 100, "output_tokens": 20})
    assert isinstance(first[0], Usage)
    assert (first[0].input_tokens, first[0].total_tokens) == (100, 120)
    play.exit()
    play.prompt()
    second = play.line(type="turn.completed", usage={"input_tokens": 250, "output_tokens": 50})
    assert isinstance(second[0], Usage)
    assert (second[0].input_tokens, second[0].output_tokens) == (150, 30)


def test_the_earlier_usage_of_a_resumed_codex_conversation_is_not_counted() -> None:
    play = begun("codex-exec", resume="old")
    (done,) = play.line(type="turn.completed", usage={"input_tokens": 900, "output_tokens": 90})
    assert isinstance(done, Done)
    play.exit()
    play.prompt()
    events = play.line(type="turn.completed", usage={"input_tokens": 1000, "output_tokens": 100})
    assert isinstance(events[0], Usage)
    assert events[0].total_tokens == 110


def test_a_warning_of_codex_is_not_a_failure() -> None:
    play = begun("codex-exec")
    item = {"id": "item_0", "type": "error", "message": "Model metadata not found"}
    (status,) = play.line(type="item.completed", item=item)
    assert isinstance(status, Status)
    (status,) = play.line(type="error", message="Reconnecting... 1/1")
    assert isinstance(status, Status)
    assert isinstance(ending(play.line(**ENDS["codex-exec"])), Done)


def test_opencode_ends_with_its_exit() -> None:
    play = begun("opencode-run")
    tokens = {"input": 10, "output": 2, "total": 12}
    for _ in range(2):
        play.line(type="step_finish", part={"reason": "stop", "tokens": tokens, "cost": 0.25})
    used, done = play.exit()
    assert used == Usage(20, 4, 24, 0.5)
    assert isinstance(done, Done)


def test_opencode_without_a_word_has_not_answered() -> None:
    play = Play("opencode-run")
    play.prompt()
    assert isinstance(ending(play.exit(0)), Failed)


def test_variables_of_the_operator_win() -> None:
    config = AgentConfig("/opt/agent", env={"NO_COLOR": "0"}, runner=("runner",))
    adapter = registry.load("gemini-print")(config, SessionStart("/workspace", ID))
    adapter.prompt(Prompt("t", "c", Message("m", Role.USER, (TextPart("x"),))))
    env = json.loads(adapter.data_to_send())["run"]["env"]
    assert env == {"GEMINI_CLI_NO_RELAUNCH": "true"}
    assert adapter.launch().argv == ("runner",)


def test_a_program_that_is_not_there_fails_the_turn() -> None:
    play = Play("gemini-print")
    play.prompt()
    failed = ending(play.heard(error="No such file or directory", running=False))
    assert isinstance(failed, Failed)
    assert failed.reason == "launch"
    assert not play.adapter.interrupt()
    assert "run" in play.prompt("again")[0]


def test_gemini_does_not_resume_an_empty_conversation() -> None:
    play = Play("gemini-print")
    play.prompt()
    assert play.line(**BEGINS["gemini-print"]) == [Started(None, "flash")]
    assert isinstance(ending(play.line(type="result", status="error")), Failed)
    play.exit(145)
    assert "resume" not in " ".join(play.argv())
    play.line(**BEGINS["gemini-print"])
    said = play.line(type="message", role="assistant", content="well")
    assert said == [Started("s-1", "flash"), Text("well", True)]
    play.exit()
    assert "--resume=s-1" in play.argv()


def test_the_status_of_a_login_that_is_missing_is_gemini_s_exit_code() -> None:
    play = Play("gemini-print")
    play.prompt()
    failed = ending(play.exit(41, "Please set an Auth method"))
    assert isinstance(failed, Failed)
    assert failed.reason == "auth"


def test_exit_status_is_kept_for_programs() -> None:
    play = Play("codex-exec")
    play.prompt()
    failed = ending(play.exit(2, "error: unexpected argument"))
    assert isinstance(failed, Failed)
    assert failed.details is not None
    assert failed.details["exitCode"] == ExitStatus(2).code
