"""The `jsonl` protocol, line by line and in both directions (docs/jsonl-protocol.md)."""

from __future__ import annotations

import json
from typing import Any

from bridge.adapter import Adapter, AgentConfig, ExitStatus, Prompt, SessionStart, Stdin
from bridge.server import registry
from bridge.task.events import (
    AgentEvent,
    Answer,
    ArtifactChunk,
    Done,
    Failed,
    Option,
    Question,
    Rejected,
    Reply,
    Status,
    Text,
    Thought,
    ToolCall,
    ToolResult,
    Usage,
)
from bridge.task.message import DataPart, Message, RawPart, Role, TextPart, UrlPart
from tests.support.cases import each

Jsonl = registry.load("jsonl")
MESSAGE = Message(
    "m-1",
    Role.USER,
    (
        TextPart("first"),
        DataPart({"a": None}, metadata={"k": 1}),
        TextPart("second", "text/markdown"),
        RawPart("aGk=", "image/png", "a.png"),
        UrlPart("https://example.org/x"),
    ),
    metadata={"bridge": {"cwd": "/x"}},
)
PARTS = [
    {"text": "first"},
    {"data": {"a": None}, "metadata": {"k": 1}},
    {"text": "second", "mediaType": "text/markdown"},
    {"raw": "aGk=", "mediaType": "image/png", "filename": "a.png"},
    {"url": "https://example.org/x"},
]


def adapter() -> Adapter:
    config = AgentConfig("/opt/agent", ("--any", "args"), model="ignored", force=True)
    made: Adapter = Jsonl(config, SessionStart("/workspace", "s"))
    return made


def running() -> Adapter:
    made = adapter()
    prompt(made)
    return made


def prompt(to: Adapter, message: Message = MESSAGE) -> Any:
    to.prompt(Prompt("t-1", "c-1", message))
    return written(to)


def written(by: Adapter) -> Any:
    """The one line that the program finds on its stdin."""
    data = by.data_to_send()
    assert data.endswith(b"\n")
    assert data.count(b"\n") == 1
    return json.loads(data)


def say(to: Adapter, **line: Any) -> list[AgentEvent]:
    return list(to.receive_line(json.dumps(line).encode()))


def hear(**line: Any) -> list[AgentEvent]:
    """The events of one line of a running turn."""
    return say(running(), **line)


# --- launching -----------------------------------------------------------------------------------


def test_the_program_is_started_with_its_arguments_and_keeps_its_stdin() -> None:
    launch = adapter().launch()
    assert launch.argv == ("/opt/agent", "--any", "args")
    assert launch.stdin is Stdin.LINES
    assert launch.env == {}


def test_any_kind_of_part_is_taken_and_files_may_be_addresses() -> None:
    assert Jsonl.input_modes == ("*/*",)
    assert Jsonl.takes_urls
    assert Jsonl.may_reply


# --- stdin: bridge → program ---------------------------------------------------------------------


def test_a_prompt_has_everything_of_the_message() -> None:
    assert prompt(adapter()) == {
        "type": "prompt",
        "protocol": 1,
        "taskId": "t-1",
        "contextId": "c-1",
        "messageId": "m-1",
        "text": "first\n\nsecond",
        "parts": PARTS,
        "metadata": {"bridge": {"cwd": "/x"}},
    }


def test_a_prompt_without_metadata_has_an_empty_object() -> None:
    assert prompt(adapter(), Message("m", Role.USER, (TextPart("x"),)))["metadata"] == {}


def test_an_answer_has_everything_of_the_message() -> None:
    one = running()
    question = Question("q-1", "permission", "?", (Option("ok", "OK", "allow_once"),))
    one.answer(question, Answer("q-1", "read otherwise", question.options, MESSAGE))
    assert written(one) == {
        "type": "answer",
        "taskId": "t-1",
        "questionId": "q-1",
        "messageId": "m-1",
        "text": "first\n\nsecond",
        "optionId": "ok",
        "parts": PARTS,
        "metadata": {"bridge": {"cwd": "/x"}},
    }


def test_an_answer_in_words_has_no_option() -> None:
    one = running()
    message = Message("m-2", Role.USER, (TextPart("blue"),))
    one.answer(Question("q-1", "text", "?"), Answer("q-1", "blue", (), message))
    line = written(one)
    assert line["optionId"] is None
    assert (line["text"], line["metadata"]) == ("blue", {})


def test_a_cancel_names_the_task_and_waits_for_nothing() -> None:
    one = running()
    assert not one.interrupt()
    assert written(one) == {"type": "cancel", "taskId": "t-1"}


# --- stdout: program → bridge --------------------------------------------------------------------


@each(
    ("line", "event"),
    [
        ({"type": "text", "text": "a\nb"}, Text("a\nb")),
        ({"type": "text", "text": ""}, Text("")),
        ({"type": "thought", "text": "hm"}, Thought("hm")),
        ({"type": "status", "text": "busy"}, Status("busy")),
        (
            {"type": "tool_call", "id": "1", "name": "grep", "input": {"a": [1]}},
            ToolCall("1", "grep", {"a": [1]}),
        ),
        ({"type": "tool_result", "id": "1", "output": "out"}, ToolResult("1", "out")),
        (
            {"type": "tool_result", "id": "1", "output": {"a": 1}, "isError": True},
            ToolResult("1", {"a": 1}, True),
        ),
        ({"type": "done"}, Done()),
        ({"type": "done", "text": "bye"}, Done("bye")),
        ({"type": "failed", "text": "no"}, Failed("no")),
        ({"type": "failed"}, Failed("The agent failed.")),
        ({"type": "rejected", "text": "no"}, Rejected("no")),
        ({"type": "rejected"}, Rejected("The agent rejected the task.")),
        (
            {"type": "auth_required", "id": "a", "text": "Log in."},
            Question("t-1-1", "auth", "Log in.", free_text=True),
        ),
        ({"type": "message", "text": "hi"}, Reply((TextPart("hi"),))),
        (
            {"type": "message", "parts": [{"text": "hi"}, {"data": 1}]},
            Reply((TextPart("hi"), DataPart(1))),
        ),
        (
            {"type": "artifact", "artifactId": "a", "name": "n", "parts": PARTS},
            ArtifactChunk("a", MESSAGE.parts, "n"),
        ),
        (
            {
                "type": "artifact",
                "artifactId": "a",
                "description": "d",
                "parts": [{"text": "x"}],
                "append": True,
                "lastChunk": False,
                "metadata": {"k": 1},
            },
            ArtifactChunk("a", (TextPart("x"),), None, "d", True, False, {"k": 1}),
        ),
    ],
)
def test_each_line_becomes_its_event(line: dict[str, Any], event: AgentEvent) -> None:
    assert hear(**line) == [event]
    assert hear(**line, someday={"unknown": 1}) == [event]  # unknown members are ignored


def test_known_figures_of_a_usage_count_and_others_are_passed_on() -> None:
    line = {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3, "costUsd": 0.01, "more": "x"}
    assert hear(type="usage", **line) == [Usage(1, 2, 3, 0.01, {"more": "x"})]
    assert hear(type="usage", costUsd=2) == [Usage(cost_usd=2)]


@each("value", [True, "1", -1, 1.5, 2**53, None, [1]])
def test_a_figure_that_is_no_number_is_passed_on(value: Any) -> None:
    assert hear(type="usage", inputTokens=value) == [Usage(extra={"inputTokens": value})]


def test_a_tool_result_is_named_after_its_call_in_the_same_turn() -> None:
    one = running()
    say(one, type="tool_call", id="1", name="grep")
    assert say(one, type="tool_result", id="1") == [ToolResult("1", None, name="grep")]
    prompt(one)
    assert say(one, type="tool_result", id="1") == [ToolResult("1", None)]


def question(**line: Any) -> Question:
    (asked,) = hear(type="question", id="q", text="?", **line)
    assert isinstance(asked, Question)
    return asked


def test_a_question_with_kinds_is_a_permission() -> None:
    options = [
        {"id": "a", "name": "Yes", "kind": "allow_once"},
        {"id": "b", "name": "Always", "kind": "allow_always"},
        {"id": "c", "name": "No", "kind": "reject_once"},
        {"id": "d", "name": "Never", "kind": "reject_always"},
        {"id": "e", "name": "Other", "kind": "choice"},
    ]
    asked = question(options=options, data={"k": 1})
    assert asked == Question(
        "t-1-1",
        "permission",
        "?\nk: 1",
        (
            Option("a", "Yes", "allow_once"),
            Option("b", "Always", "allow_always"),
            Option("c", "No", "reject_once"),
            Option("d", "Never", "reject_always"),
            Option("e", "Other", "choice"),
        ),
        {"k": 1},
        free_text=True,
    )


def test_an_id_that_the_program_uses_twice_names_two_questions() -> None:
    """Else the second click of a double click would answer the next question before it is drawn."""
    one = running()
    first, second = (say(one, type="question", id="q", text=text)[0] for text in ("ls?", "rm?"))
    assert isinstance(first, Question) and isinstance(second, Question)
    assert first.id != second.id
    one.answer(second, Answer(second.id, "yes"))
    assert written(one)["questionId"] == "q"
    prompt(one)
    (third,) = say(one, type="question", id="q", text="again?")
    assert isinstance(third, Question)
    assert third.id not in (first.id, second.id)


def test_the_questions_of_two_tasks_of_a_conversation_have_different_ids() -> None:
    """Also if the program was started again in between."""
    asked = []
    for task in ("4f1c9a52-0001", "93bb61f0-0002"):
        one = adapter()
        one.prompt(Prompt(task, "c-1", MESSAGE))
        asked += say(one, type="question", id="q", text="?")
    first, second = asked
    assert isinstance(first, Question) and isinstance(second, Question)
    assert first.id != second.id


def test_the_text_of_a_permission_has_the_data_that_programs_get() -> None:
    allow = [{"id": "a", "name": "Yes", "kind": "allow_once", "description": "this time"}]
    asked = question(options=allow, data={"name": "http", "input": {"method": "DELETE"}})
    assert asked.text == "?\nmethod: DELETE"
    assert asked.options[0].description == "this time"


def test_a_question_without_kinds_is_a_choice_and_without_options_wants_words() -> None:
    choice = question(options=[{"id": "a"}, {"id": "b", "name": "B", "kind": "brand_new"}])
    assert choice.kind == "choice"
    assert choice.options == (Option("a", "a"), Option("b", "B"))
    for asked in (question(), question(options=[]), question(options=None)):
        assert (asked.kind, asked.options, asked.free_text) == ("text", (), True)


def test_artifacts_without_an_id_are_separate() -> None:
    one = running()

    def artifact_id(**line: Any) -> str:
        (event,) = say(one, type="artifact", parts=[{"text": "x"}], **line)
        assert isinstance(event, ArtifactChunk)
        return event.id

    assert artifact_id(name="report") == artifact_id(name="report") == "report"
    first, second = artifact_id(), artifact_id()
    assert first != second
    assert artifact_id(append=True) == second
    assert artifact_id() not in (first, second)


@each("parts", [None, [], "x", [{}], [{"text": "x", "url": "y"}]])
def test_an_artifact_without_valid_parts_is_reported_and_dropped(parts: Any) -> None:
    (status,) = hear(type="artifact", artifactId="a", parts=parts)
    assert isinstance(status, Status)


def test_a_message_is_a_reply_only_as_the_first_line_of_a_turn() -> None:
    one = running()
    say(one, type="text", text="x")
    (status,) = say(one, type="message", text="hi")
    assert isinstance(status, Status)
    prompt(one)
    assert say(one, type="message", text="hi") == [Reply((TextPart("hi"),))]


def test_an_unknown_line_does_not_count_as_the_first_line() -> None:
    one = running()
    assert say(one, type="hello", text="x") == []
    assert say(one, no="type") == []
    assert say(one, type="message", text="hi") == [Reply((TextPart("hi"),))]


@each("line", [b"loading model...", b"[1]", b"5", b'{"type":"done"', b"\xff"])
def test_a_line_that_is_not_a_json_object_is_shown_and_never_ends_the_turn(line: bytes) -> None:
    (status,) = running().receive_line(line)
    text = line.decode(errors="replace")
    assert status == Status(text, {"type": "output", "text": text})


def test_an_empty_line_says_nothing() -> None:
    assert list(running().receive_line(b" ")) == []


def test_an_exit_before_the_end_of_the_turn_tells_the_code_and_the_last_words() -> None:
    (failed,) = running().receive_exit(ExitStatus(3, "Traceback…\nKeyError: 'x'\n"))
    assert isinstance(failed, Failed)
    assert "exit status 3" in failed.text
    assert "KeyError: 'x'" in failed.text
    assert failed.details == {"exitCode": 3, "stderr": "Traceback…\nKeyError: 'x'"}


# --- sloppy programs -----------------------------------------------------------------------------


@each(
    ("line", "event"),
    [
        ({"type": "text", "text": 5}, Text("5")),
        ({"type": "text"}, Text("")),
        ({"type": "text", "text": {"a": 1}}, Text('{"a":1}')),
        ({"type": "tool_call", "id": 7, "name": None}, ToolCall("7", "", None)),
        ({"type": "tool_result", "id": 7, "isError": "false"}, ToolResult("7", None)),
        ({"type": "done", "text": ["a"]}, Done('["a"]')),
        ({"type": "done", "text": None}, Done()),
        (
            {"type": "artifact", "artifactId": 1, "parts": [{"text": "x"}], "metadata": "m"},
            ArtifactChunk("1", (TextPart("x"),)),
        ),
    ],
)
def test_members_of_the_wrong_kind_are_read_as_text_or_left_out(
    line: dict[str, Any], event: AgentEvent
) -> None:
    assert hear(**line) == [event]


@each("options", [5, "ab", {"id": "a"}, [5, None, "a"]])
def test_options_that_are_none_leave_a_question_for_words(options: Any) -> None:
    asked = question(options=options)
    assert (asked.kind, asked.options) == ("text", ())


@each("kind", [None, 5, [], {}, ["allow_once"]])
def test_an_option_of_a_strange_kind_is_a_choice(kind: Any) -> None:
    assert question(options=[{"id": "a", "kind": kind}]).options == (Option("a", "a"),)


def test_a_text_that_was_cut_in_the_middle_of_a_character_is_not_lost() -> None:
    one = running()
    assert list(one.receive_line(b'{"type":"text","text":"a\\ud83d"}')) == [Text("a")]
    assert list(one.receive_line(b'{"type":"status","text":"between"}'))
    assert list(one.receive_line(b'{"type":"text","text":"\\ude00b"}')) == [Text("😀b")]
    assert list(one.receive_line(b'{"type":"text","text":"\\ude00"}')) == [Text("?")]
    latin = b'{"type":"text","text":"caf\xe9"}'
    assert list(running().receive_line(latin)) == [Text("caf\ufffd")]
    marked = b'\xef\xbb\xbf{"type":"text","text":"x"}'
    assert list(running().receive_line(marked)) == [Text("x")]
