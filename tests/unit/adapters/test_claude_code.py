"""The dialect of Claude Code beyond the recordings: the exact bytes to the CLI, and lines that are
broken or unknown. Recordings are in test_transcripts.py."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from bridge.adapter import Adapter, AgentConfig, ExitStatus, Prompt, SessionStart, Stdin
from bridge.server import registry
from bridge.task.events import (
    SESSION_LOST,
    AgentEvent,
    Answer,
    Done,
    Failed,
    Option,
    Plan,
    PlanEntry,
    Question,
    QuestionWithdrawn,
    Retracted,
    Started,
    Status,
    Text,
    Thought,
    ToolCall,
    ToolResult,
    Usage,
)
from bridge.task.message import DataPart, Message, Part, RawPart, Role, TextPart, UrlPart
from tests.support.cases import each

ClaudeCode = registry.load("claude-code")
SESSION = "11111111-2222-3333-4444-555555555555"


def adapter(*, resume: bool = False, **config: Any) -> Adapter:
    start = SessionStart("/workspace", SESSION, resume)
    made: Adapter = ClaudeCode(AgentConfig("/bin/claude", **config), start)
    return made


def running(**config: Any) -> Adapter:
    """An adapter in the middle of a turn."""
    made = adapter(**config)
    prompt(made, TextPart("go"))
    return made


def prompt(to: Adapter, *parts: Part) -> Any:
    to.prompt(Prompt("task", "context", Message("m", Role.USER, parts)))
    (sent,) = lines(to)
    return sent


def lines(of: Adapter) -> list[Any]:
    data = of.data_to_send()
    assert data == b"" or data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def say(to: Adapter, **line: Any) -> list[AgentEvent]:
    return list(to.receive_line(json.dumps(line).encode()))


def stream(to: Adapter, event: Mapping[str, Any], **more: Any) -> list[AgentEvent]:
    return say(to, type="stream_event", event=event, **more)


def delta(to: Adapter, text: str) -> list[AgentEvent]:
    return stream(
        to, {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}
    )


def begin_message(to: Adapter, message_id: str) -> list[AgentEvent]:
    begun = stream(to, {"type": "message_start", "message": {"id": message_id}})
    return [*begun, *stream(to, {"type": "content_block_start", "content_block": {}})]


def assistant(to: Adapter, message_id: str, *blocks: Any, **more: Any) -> list[AgentEvent]:
    message = {"id": message_id, "content": list(blocks)}
    return say(to, type="assistant", message=message, **more)


def text_block(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def result(to: Adapter, **members: Any) -> list[AgentEvent]:
    return say(to, type="result", **{"subtype": "success", "result": "ok", **members})


def ask(to: Adapter, tool: str, arguments: Any, **more: Any) -> list[Question]:
    request = {"subtype": "can_use_tool", "tool_name": tool, "input": arguments, **more}
    asked = say(to, type="control_request", request_id="r1", request=request)
    assert all(isinstance(one, Question) for one in asked)
    return [one for one in asked if isinstance(one, Question)]


def reply(to: Adapter, question: Question, *options: str, text: str = "") -> Any:
    """The control_response for an answer, without its envelope."""
    chosen = tuple(option for option in question.options if option.id in options)
    to.answer(question, Answer(question.id, text or ", ".join(options), chosen))
    sent = lines(to)
    if not sent:
        return None
    (line,) = sent
    assert line["type"] == "control_response"
    assert line["response"]["subtype"] == "success"
    assert line["response"]["request_id"] == "r1"
    return line["response"]["response"]


def usage_of(events: list[AgentEvent]) -> Usage:
    (usage,) = [event for event in events if isinstance(event, Usage)]
    return usage


# --- launch --------------------------------------------------------------------------------------


def test_a_new_session_is_launched_with_its_id_and_speaks_on_pipes() -> None:
    launch = adapter().launch()
    assert launch.argv == (
        "/bin/claude",
        "-p",
        "--verbose",
        "--include-partial-messages",
        "--input-format",
        "stream-json",
        "--output-format",
        "stream-json",
        "--permission-prompt-tool",
        "stdio",
        "--disallowedTools=Monitor,ScheduleWakeup",
        "--setting-sources=user",
        "--strict-mcp-config",
        "--add-dir=.",
        f"--session-id={SESSION}",
    )
    assert launch.stdin is Stdin.LINES


def test_a_resumed_session_is_named_in_one_argument() -> None:
    argv = adapter(resume=True).launch().argv
    assert f"--resume={SESSION}" in argv
    assert not any(one.startswith("--session-id") for one in argv)


def test_model_and_force_and_the_operators_arguments_are_passed_on() -> None:
    argv = adapter(model="-opus", force=True, args=("--add-dir", "/x")).launch().argv
    assert argv[:3] == ("/bin/claude", "--add-dir", "/x")
    assert "--model=-opus" in argv  # one argument, so that it cannot be read as a flag
    assert "--dangerously-skip-permissions" in argv


def test_permissions_are_not_skipped_unless_the_operator_says_so() -> None:
    assert "--dangerously-skip-permissions" not in adapter().launch().argv


def test_the_state_of_the_session_is_always_announced() -> None:
    env = adapter(env={"CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS": "0"}).launch().env
    assert env["CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS"] == "1"


def test_background_work_is_off_unless_the_operator_turns_it_on() -> None:
    assert adapter().launch().env["CLAUDE_CODE_DISABLE_BACKGROUND_TASKS"] == "1"
    chosen = adapter(env={"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "0"}).launch().env
    assert "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS" not in chosen  # the server's own value stands


@each(
    ("force", "superuser", "env", "objects"),
    [
        (True, True, {}, True),
        (True, True, {"IS_SANDBOX": "0"}, True),
        (True, True, {"IS_SANDBOX": "1"}, False),
        (True, False, {}, False),
        (False, True, {}, False),
    ],
)
def test_skipping_permissions_as_root_is_refused_at_the_start(
    force: bool, superuser: bool, env: dict[str, str], objects: bool
) -> None:
    config = AgentConfig("/bin/claude", force=force, superuser=superuser, env=env)
    problem = ClaudeCode.unsupported_reason(config)
    assert (problem is not None) == objects
    assert problem is None or "IS_SANDBOX" in problem


# --- prompts -------------------------------------------------------------------------------------


def test_a_prompt_is_plain_text_with_an_id_of_its_own() -> None:
    one = adapter()
    first, second = prompt(one, TextPart("/cost @/etc/passwd")), prompt(one, TextPart("b"))
    assert first == {
        "type": "user",
        "message": {"role": "user", "content": [text_block("/cost @/etc/passwd")]},
        "uuid": first["uuid"],
        "client_composed": True,
    }
    assert len(first["uuid"]) == 36
    assert first["uuid"] != second["uuid"]


def test_a_prompt_is_one_line_however_many_it_has() -> None:
    one = adapter()
    text = "a\nb\r\nc\u2028d\x85e"
    one.prompt(Prompt("t", "c", Message("m", Role.USER, (TextPart(text),))))
    data = one.data_to_send()
    assert data.count(b"\n") == 1
    assert json.loads(data)["message"]["content"] == [text_block(text)]


PNG = base64.b64encode(b"\x89PNG").decode()
PDF = base64.b64encode(b"%PDF").decode()
NOTES = base64.b64encode("né\n".encode()).decode()


@each(
    ("part", "block"),
    [
        (TextPart("hi"), text_block("hi")),
        (DataPart({"a": [1, None]}), text_block('{"a":[1,null]}')),
        (UrlPart("https://example.org/x"), text_block("Attached: https://example.org/x")),
        (
            RawPart(PNG, "image/png"),
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": PNG},
            },
        ),
        (
            RawPart(PDF, "Application/PDF; version=1.7"),
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
            },
        ),
        (RawPart(NOTES, "text/plain", "n.txt"), text_block('<file name="n.txt">\nné\n\n</file>')),
        (RawPart(NOTES, "application/json"), text_block('<file name="file">\nné\n\n</file>')),
        (
            RawPart(base64.b64encode(b"\xff").decode(), "text/x-c", "a.c"),
            text_block('<file name="a.c">\n\ufffd\n</file>'),
        ),
    ],
)
def test_each_kind_of_part_becomes_its_content_block(part: Part, block: Any) -> None:
    assert prompt(adapter(), part)["message"]["content"] == [block]


def test_the_order_of_the_parts_is_kept() -> None:
    sent = prompt(adapter(), TextPart("1"), RawPart(PNG, "image/png"), TextPart("2"))
    kinds = [block["type"] for block in sent["message"]["content"]]
    assert kinds == ["text", "image", "text"]


# --- text ----------------------------------------------------------------------------------------


def test_streamed_text_is_not_repeated_by_the_complete_message() -> None:
    one = running()
    assert begin_message(one, "m1") == []
    assert delta(one, "a ") == [Text("a ", new_block=True)]
    assert delta(one, "b") == [Text("b")]
    assert assistant(one, "m1", text_block("a b")) == []
    stream(one, {"type": "content_block_stop"})
    stream(one, {"type": "content_block_start", "content_block": {}})
    assert delta(one, "c") == [Text("c", new_block=True)]


def test_the_complete_message_adds_text_that_was_not_streamed() -> None:
    one = running()
    begin_message(one, "m1")
    delta(one, "a")
    assert assistant(one, "m1", text_block("ab")) == [Text("b")]


def test_text_without_deltas_comes_with_the_complete_message() -> None:
    one = running()
    both = assistant(one, "m1", text_block("a"), text_block("b"))
    assert both == [Text("a", new_block=True), Text("b", new_block=True)]


def test_a_different_complete_message_replaces_its_deltas() -> None:
    one = running()
    begin_message(one, "m1")
    delta(one, "xyz")
    assert assistant(one, "m1", text_block("abc")) == [Retracted(3), Text("abc", new_block=True)]


def test_a_broken_stream_is_retracted_when_the_text_is_streamed_again() -> None:
    one = running()
    begin_message(one, "m1")
    delta(one, "half of")
    assert begin_message(one, "m2") == [Retracted(7)]
    assert delta(one, "all of it") == [Text("all of it", new_block=True)]
    assert assistant(one, "m2", text_block("all of it")) == []


def test_the_complete_message_replaces_a_broken_stream() -> None:
    one = running()
    begin_message(one, "m1")
    delta(one, "half")
    repeated = assistant(one, "m2", text_block("whole"))
    assert repeated == [Retracted(4), Text("whole", new_block=True)]


def test_confirmed_text_is_not_retracted_by_the_next_message() -> None:
    one = running()
    begin_message(one, "m1")
    delta(one, "one")
    assistant(one, "m1", text_block("one"))
    assert begin_message(one, "m2") == []


def test_an_unfinished_stream_of_the_last_turn_is_not_retracted_in_this_one() -> None:
    one = running()
    begin_message(one, "m1")
    delta(one, "cut")
    result(
        one, subtype="error_during_execution", is_error=True, terminal_reason="aborted_streaming"
    )
    prompt(one, TextPart("next"))
    assert begin_message(one, "m2") == []


def test_thoughts_are_streamed_and_not_repeated() -> None:
    one = running()
    begin_message(one, "m1")
    thinking = {"type": "thinking_delta", "thinking": "hm"}
    thought = stream(one, {"type": "content_block_delta", "delta": thinking})
    assert thought == [Thought("hm")]
    assert assistant(one, "m1", {"type": "thinking", "thinking": "hm", "signature": "s"}) == []


def test_a_sub_agents_text_is_kept_apart_and_said_once() -> None:
    one = running()
    piece = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "in"}}
    assert stream(one, piece, parent_tool_use_id="toolu_1") == []
    said = assistant(one, "m9", text_block("inner"), parent_tool_use_id="toolu_1")
    assert said == [Text("inner", new_block=True, parent="toolu_1")]


def test_a_sub_agent_does_not_disturb_the_stream_of_the_answer() -> None:
    one = running()
    begin_message(one, "m1")
    delta(one, "outer")
    assistant(one, "m9", text_block("inner"), parent_tool_use_id="toolu_1")
    assert assistant(one, "m1", text_block("outer")) == []


def test_the_text_of_an_api_error_is_not_an_answer() -> None:
    one = running()
    assert assistant(one, "m1", text_block("API Error: 500"), error="server_error") == []


# --- tools ---------------------------------------------------------------------------------------


def test_a_to_do_list_is_a_plan() -> None:
    todos = [
        {"content": "a", "status": "completed"},
        {"content": "b", "status": "in_progress"},
        {"content": "c", "status": "new and unknown"},
        "nonsense",
    ]
    block = {"type": "tool_use", "id": "t1", "name": "TodoWrite", "input": {"todos": todos}}
    call, plan = assistant(running(), "m1", block)
    assert isinstance(call, ToolCall)
    entries = (
        PlanEntry("a", "completed"),
        PlanEntry("b", "in_progress"),
        PlanEntry("c", "pending"),
        PlanEntry("", "pending"),
    )
    assert plan == Plan(entries)


def tool_result(to: Adapter, content: Any, **more: Any) -> ToolResult:
    block = {"type": "tool_result", "tool_use_id": "t1", "content": content}
    (event,) = say(
        to, type="user", message={"content": [{**block, **more.pop("block", {})}]}, **more
    )
    assert isinstance(event, ToolResult)
    return event


def test_the_output_of_a_tool_is_text_where_it_is_text() -> None:
    one = running()
    assistant(one, "m1", {"type": "tool_use", "id": "t1", "name": "Read", "input": {}})
    blocks = [text_block("a"), {"type": "image", "source": {}}, text_block("b")]
    assert tool_result(one, blocks) == ToolResult("t1", "a\n[image]\nb", name="Read")
    assert tool_result(one, "x", block={"is_error": True}).is_error


def test_a_prompt_that_is_played_back_is_not_said() -> None:
    one = running()
    block = {"type": "tool_result", "tool_use_id": "t1", "content": "x"}
    assert say(one, type="user", isReplay=True, message={"content": [block]}) == []
    assert say(one, type="user", message={"content": "plain"}) == []


def change(**written: Any) -> str:
    event = tool_result(running(), "ok", tool_use_result={"filePath": "/w/f", **written})
    (changed,) = event.changes
    return changed.diff


def test_a_new_file_is_a_diff_from_nothing() -> None:
    new = {"type": "create", "structuredPatch": []}
    head = "--- /dev/null\n+++ /w/f\n"
    assert change(content="a\nb\n", **new) == head + "@@ -0,0 +1,2 @@\n+a\n+b\n"
    assert change(content="", **new) == head
    no_end = "@@ -0,0 +1,1 @@\n+a\u2028b\x0cc\n\\ No newline at end of file\n"
    assert change(content="a\u2028b\x0cc", **new) == head + no_end


def test_an_edit_is_its_hunks() -> None:
    hunk = {"oldStart": 3, "oldLines": 1, "newStart": 3, "newLines": 2, "lines": ["-a", "+b", "+c"]}
    assert change(structuredPatch=[hunk]) == ("--- /w/f\n+++ /w/f\n@@ -3,1 +3,2 @@\n-a\n+b\n+c\n")


def test_a_change_with_invalid_hunks_is_a_change() -> None:
    assert change(structuredPatch=[{"lines": 5}]) == ""


def test_the_result_names_the_changed_files_once_each() -> None:
    one = running()
    for path in ("/w/a", "/w/b", "/w/a"):
        written: Any = {"filePath": path, "structuredPatch": []}
        tool_result(one, "ok", tool_use_result=written)
    done = result(one)[-1]
    assert isinstance(done, Done)
    assert done.details is not None
    assert done.details["changedFiles"] == ["/w/a", "/w/b"]
    prompt(one, TextPart("next"))
    assert result(one)[-1] == Done(summary="ok", details={})


def test_a_failed_edit_changes_nothing() -> None:
    event = tool_result(
        running(),
        "no",
        block={"is_error": True},
        tool_use_result={"filePath": "/w/f", "structuredPatch": []},
    )
    assert event.changes == ()


# --- permissions ---------------------------------------------------------------------------------

COMMAND = {"command": "make", "description": "build"}
SUGGESTIONS: list[dict[str, Any]] = [
    {
        "type": "addRules",
        "rules": [{"toolName": "Bash", "ruleContent": "make"}],
        "behavior": "allow",
        "destination": "localSettings",
    },
    {"type": "setMode", "mode": "acceptEdits", "destination": "session"},
]


def test_a_permission_shows_the_command_and_its_choices() -> None:
    (asked,) = ask(
        running(),
        "Bash",
        COMMAND,
        tool_use_id="t1",
        permission_suggestions=SUGGESTIONS,
        decision_reason="outside",
    )
    assert asked.id == "task-1"
    assert asked.kind == "permission"
    assert asked.text == "Claude Code asks to use Bash: make\ndescription: build\n(outside)"
    kinds = [(option.id, option.kind) for option in asked.options]
    assert kinds == [
        ("allow", "allow_once"),
        ("allow_always", "allow_always"),
        ("deny", "reject_once"),
    ]
    assert asked.subject == {
        "toolCallId": "t1",
        "name": "Bash",
        "tool": "Bash",
        "title": "Claude Code asks to use Bash: make",
        "command": "make",
        "note": "outside",
        "input": COMMAND,
    }
    assert asked.options[1].description == (
        "no more questions in this conversation about the command `make`; "
        "every change of a file in its directories"
    )
    assert not asked.free_text


def test_without_suggestions_there_is_no_always() -> None:
    (asked,) = ask(running(), "mcp__x", {"a": 1})
    assert [option.id for option in asked.options] == ["allow", "deny"]
    assert asked.text == "Claude Code asks to use mcp__x\na: 1"


def test_allow_echoes_the_input() -> None:
    one = running()
    (asked,) = ask(one, "Bash", COMMAND, permission_suggestions=SUGGESTIONS)
    assert reply(one, asked, "allow") == {"behavior": "allow", "updatedInput": COMMAND}


def test_always_holds_for_the_session_and_never_writes_settings() -> None:
    one = running()
    (asked,) = ask(one, "Bash", COMMAND, permission_suggestions=SUGGESTIONS)
    assert reply(one, asked, "allow_always") == {
        "behavior": "allow",
        "updatedInput": COMMAND,
        "updatedPermissions": [{**each, "destination": "session"} for each in SUGGESTIONS],
    }


@each("text", ["deny", "Deny", "no", "No.", "N"])
def test_a_plain_no_has_no_reason(text: str) -> None:
    one = running()
    (asked,) = ask(one, "Bash", COMMAND)
    assert reply(one, asked, "deny", text=text) == {
        "behavior": "deny",
        "message": "The user said no.",
    }


def test_a_refusal_carries_its_reason() -> None:
    one = running()
    (asked,) = ask(one, "Bash", COMMAND)
    assert reply(one, asked, "deny", text="use ninja") == {
        "behavior": "deny",
        "message": "The user said no. use ninja",
    }


def test_an_answer_is_used_once() -> None:
    one = running()
    (asked,) = ask(one, "Bash", COMMAND)
    assert reply(one, asked, "allow") is not None
    assert reply(one, asked, "allow") is None


def test_a_withdrawn_question_cannot_be_answered() -> None:
    one = running()
    (asked,) = ask(one, "Bash", COMMAND)
    withdrawn = say(one, type="control_cancel_request", request_id="r1")
    assert withdrawn == [QuestionWithdrawn("task-1")]
    assert reply(one, asked, "allow") is None
    assert say(one, type="control_cancel_request", request_id="r1") == []


def test_a_plan_may_be_approved_or_sent_back_with_words() -> None:
    for options, text, response in (
        (("approve",), "", {"behavior": "allow", "updatedInput": {"plan": "1. x"}}),
        (("revise",), "", {"behavior": "deny", "message": "The user said no."}),
        ((), "no tests?", {"behavior": "deny", "message": "The user said no. no tests?"}),
    ):
        one = running()
        (asked,) = ask(one, "ExitPlanMode", {"plan": "1. x"})
        assert asked.kind == "plan"
        assert asked.text.endswith("\n\n1. x")
        assert asked.free_text
        assert reply(one, asked, *options, text=text) == response


def test_a_plan_that_the_request_leaves_out_is_taken_from_the_tool_call() -> None:
    one = running()
    block = {"type": "tool_use", "id": "t1", "name": "ExitPlanMode", "input": {"plan": "P"}}
    assistant(one, "m1", block)
    (asked,) = ask(one, "ExitPlanMode", {}, tool_use_id="t1")
    assert asked.text.endswith("\n\nP")


QUESTIONS = [
    {"question": "Which?", "header": "H", "options": [{"label": "A"}, {"label": "B"}]},
    {
        "question": "What?",
        "options": [{"label": "C"}, {"label": "D"}],
        "multiSelect": True,
    },
]


def test_several_questions_are_answered_with_one_response() -> None:
    one = running()
    first, second = ask(one, "AskUserQuestion", {"questions": QUESTIONS, "more": 1})
    assert (first.id, second.id) == ("task-1", "task-2")
    assert (first.multiple, second.multiple) == (False, True)
    assert first.options == (Option("A", "A"), Option("B", "B"))
    assert reply(one, first, text="neither") is None
    assert reply(one, second, "C", "D") == {
        "behavior": "allow",
        "updatedInput": {
            "questions": QUESTIONS,
            "more": 1,
            "answers": {"Which?": "neither", "What?": "C, D"},
        },
    }


def test_all_questions_of_a_request_are_withdrawn_with_it() -> None:
    one = running()
    ask(one, "AskUserQuestion", {"questions": QUESTIONS})
    withdrawn = say(one, type="control_cancel_request", request_id="r1")
    assert withdrawn == [QuestionWithdrawn("task-1"), QuestionWithdrawn("task-2")]


def test_a_question_without_questions_is_a_permission() -> None:
    (asked,) = ask(running(), "AskUserQuestion", {})
    assert asked.kind == "permission"


def control(to: Adapter, **request: Any) -> list[Question]:
    asked = say(to, type="control_request", request_id="r1", request=request)
    assert all(isinstance(one, Question) for one in asked)
    return [one for one in asked if isinstance(one, Question)]


def elicit(to: Adapter, **request: Any) -> list[Question]:
    known = {"mcp_server_name": "shop", "message": "Which?", "mode": "form"}
    return control(to, subtype="elicitation", **{**known, **request})


def test_a_form_of_an_mcp_server_is_asked_and_answered() -> None:
    one = running()
    properties = {"size": {"type": "string", "enum": ["S", "L"]}, "count": {"type": "integer"}}
    size, count = elicit(
        one, requested_schema={"type": "object", "properties": properties, "required": ["size"]}
    )
    assert size.text == "The MCP server shop asks:\nWhich?\nsize"
    assert reply(one, size, "L") is None
    assert reply(one, count, text="3") == {"action": "accept", "content": {"size": "L", "count": 3}}


def test_a_form_of_an_mcp_server_may_be_declined_and_is_cancelled_by_nobody() -> None:
    one = running()
    (asked,) = elicit(one, requested_schema={"properties": {"size": {"type": "string"}}})
    assert lines(one) == []
    assert reply(one, asked, "(decline)") == {"action": "decline"}
    (asked,) = elicit(one, title="Delete it", description="for good", requested_schema=None)
    assert asked.kind == "permission"
    assert "Delete it" in asked.text and "for good" in asked.text
    assert reply(one, asked, "accept") == {"action": "accept", "content": {}}
    assert reply(one, elicit(one)[0], "decline") == {"action": "decline"}


def test_an_address_of_an_mcp_server_is_to_be_visited() -> None:
    one = running()
    (asked,) = elicit(one, mode="url", url="https://x.test/login")
    assert (asked.kind, asked.subject) == ("auth", {"url": "https://x.test/login"})
    assert asked.text.endswith("\nhttps://x.test/login")
    assert reply(one, asked, "accept") == {"action": "accept"}


def test_an_elicitation_that_the_cli_takes_back_is_withdrawn() -> None:
    one = running()
    (asked,) = elicit(one)
    withdrawn = say(one, type="control_cancel_request", request_id="r1")
    assert withdrawn == [QuestionWithdrawn(asked.id)]


DIALOG = {"title": "Retry?", "options": [{"label": "Again", "value": {"retry": True}}, "stop"]}


@each(
    ("options", "text", "response"),
    [
        (("Again",), "", {"behavior": "completed", "result": {"retry": True}}),
        (("stop",), "", {"behavior": "completed", "result": "stop"}),
        (("(dismiss)",), "", {"behavior": "cancelled"}),
        ((), '{"model": "x"}', {"behavior": "completed", "result": {"model": "x"}}),
        ((), "later", {"behavior": "completed", "result": "later"}),
    ],
)
def test_a_dialog_of_the_cli_is_asked(options: tuple[str, ...], text: str, response: Any) -> None:
    one = running()
    request = {"dialog_kind": "refusal", "payload": DIALOG, "tool_use_id": "t1"}
    (asked,) = control(one, subtype="request_user_dialog", **request)
    assert asked.text.startswith("Claude Code shows the dialog refusal\n")
    assert "title: Retry?" in asked.text
    assert reply(one, asked, *options, text=text) == response


def test_an_id_that_the_cli_uses_twice_names_two_questions() -> None:
    one = running()
    (first,) = ask(one, "Bash", {"command": "ls"})
    (second,) = ask(one, "Bash", {"command": "rm -rf /"})
    assert first.id != second.id


def test_requests_that_the_bridge_does_not_serve_are_refused() -> None:
    one = running()
    request = {"subtype": "hook_callback", "callback_id": "h"}
    assert say(one, type="control_request", request_id="r7", request=request) == []
    (line,) = lines(one)
    assert line["response"] == {
        "subtype": "error",
        "request_id": "r7",
        "error": "The bridge does not serve hook_callback.",
    }


@each(
    "request_", [None, 5, {"subtype": "can_use_tool", "input": [], "tool_name": "AskUserQuestion"}]
)
def test_a_request_in_an_unknown_shape_does_not_leave_the_cli_waiting(request_: Any) -> None:
    one = running()
    events = say(one, type="control_request", request_id="r8", request=request_)
    waits = [event for event in events if isinstance(event, Question)]
    refused = [line for line in lines(one) if line["response"]["subtype"] == "error"]
    assert len(waits) + len(refused) == 1


def test_an_interrupt_is_a_request_of_its_own() -> None:
    one = running()
    assert one.interrupt()
    (line,) = lines(one)
    assert line == {
        "type": "control_request",
        "request_id": line["request_id"],
        "request": {"subtype": "interrupt"},
    }


# --- the end of a turn ---------------------------------------------------------------------------


def test_the_result_ends_the_turn_where_no_state_is_announced() -> None:
    usage, done = result(running(), result="bye", num_turns=2)
    assert isinstance(usage, Usage)
    assert done == Done(summary="bye", details={"turns": 2})


def state(to: Adapter, name: str) -> list[AgentEvent]:
    return say(to, type="system", subtype="session_state_changed", state=name)


def test_an_announced_turn_ends_when_the_session_is_idle_and_the_last_result_counts() -> None:
    one = running()
    assert state(one, "running") == []
    assert result(one, result="first") == []
    assert result(one, result="second") == []
    assert state(one, "idle")[-1] == Done(summary="second", details={})


def test_a_turn_lasts_until_the_session_is_idle() -> None:
    one = running()
    state(one, "running")
    result(one)
    assert state(one, "running") == state(one, "requires_action") == []
    assert state(one, "idle") != []
    assert state(one, "idle") == []


def test_idle_without_a_result_ends_nothing() -> None:
    one = running()
    assert state(one, "running") == state(one, "idle") == []


def test_a_result_of_another_prompt_is_not_this_turns() -> None:
    one = adapter()
    mine = prompt(one, TextPart("go"))["uuid"]
    assert result(one, user_message_uuids=["somebody-elses"]) == []
    assert result(one, user_message_uuids=["somebody-elses", mine]) != []


def test_a_steered_turn_ends_when_all_of_its_prompts_were_heard() -> None:
    one = adapter()
    first = prompt(one, TextPart("go"))["uuid"]
    state(one, "running")
    one.steer(Prompt("task", "context", Message("m-2", Role.USER, (TextPart("left"),))))
    (steered,) = lines(one)
    assert (steered["message"]["content"], steered["client_composed"]) == (
        [text_block("left")],
        True,
    )
    usage = {"input_tokens": 3, "output_tokens": 1}
    cost = {"model_usage_since_last_result": {"m": {"costUSD": 0.5}}}
    result(one, result="gone", user_message_uuids=[first], usage=usage, **cost)
    assert state(one, "idle") == []  # it has not begun with the other one yet
    result(one, result="left", user_message_uuids=[steered["uuid"]], usage=usage, **cost)
    spent, done = state(one, "idle")
    assert isinstance(spent, Usage)
    assert (spent.input_tokens, spent.output_tokens, spent.cost_usd) == (6, 2, 1.0)
    assert done == Done(summary="left", details={})


def test_a_process_that_exits_after_its_result_has_finished_the_turn() -> None:
    one = running()
    state(one, "running")
    result(one, result="last words")
    ended = list(one.receive_exit(ExitStatus(0)))
    assert ended[-1] == Done(summary="last words", details={})


def test_a_process_that_exits_without_a_result_has_failed() -> None:
    (failed,) = running().receive_exit(ExitStatus(-9, "killed\n"))
    assert isinstance(failed, Failed)
    assert failed.reason == "exit"
    assert "signal 9" in failed.text
    assert "killed" in failed.text


def test_a_lost_conversation_differs_from_other_failures() -> None:
    lost = ExitStatus(1, "No conversation found with session ID: x")
    (failed,) = adapter(resume=True).receive_exit(lost)
    assert isinstance(failed, Failed)
    assert failed.reason == SESSION_LOST
    errors = ["No conversation found with session ID: x"]
    _, said = result(running(), subtype="error_during_execution", is_error=True, errors=errors)
    assert isinstance(said, Failed)
    assert said.reason == SESSION_LOST
    assert SESSION in said.text


def test_success_that_is_an_error_has_failed() -> None:
    _, failed = result(running(), is_error=True, result="API Error: 500", api_error_status=500)
    assert isinstance(failed, Failed)
    assert (failed.text, failed.reason) == ("API Error: 500", "model-error")


@each("status", [401, 403])
def test_the_error_for_a_refused_key_names_the_remedy(status: int) -> None:
    _, failed = result(running(), is_error=True, api_error_status=status)
    assert isinstance(failed, Failed)
    assert failed.reason == "auth"
    assert "ANTHROPIC_API_KEY" in failed.text


def test_internal_diagnoses_of_an_interrupted_turn_are_not_shown() -> None:
    _, failed = result(
        running(),
        subtype="error_during_execution",
        is_error=True,
        terminal_reason="aborted_tools",
        errors=["[ede_diagnostic] internal"],
    )
    assert failed == Failed("The turn was interrupted.", "interrupted")


def test_an_api_error_of_the_last_turn_is_forgotten() -> None:
    one = running()
    assistant(one, "m1", text_block("x"), error="authentication_failed")
    result(one, is_error=True)
    prompt(one, TextPart("again"))
    _, failed = result(one, is_error=True, result="other")
    assert isinstance(failed, Failed)
    assert failed.reason == "model-error"


def test_the_usage_of_a_turn_is_the_growth_of_the_total() -> None:
    one = running()
    assert usage_of(result(one, total_cost_usd=0.5)).cost_usd == 0.5
    prompt(one, TextPart("more"))
    assert usage_of(result(one, total_cost_usd=0.75)).cost_usd == 0.25


def test_the_usage_of_a_turn_is_that_of_the_cli_if_it_has_one() -> None:
    recent = {"opus": {"costUSD": 0.25}, "haiku": {"costUSD": 0.5}, "x": {}}
    usage = usage_of(result(running(), total_cost_usd=9.0, model_usage_since_last_result=recent))
    assert usage.cost_usd == 0.75


def test_all_tokens_are_counted() -> None:
    tokens = {
        "input_tokens": 1,
        "output_tokens": 20,
        "cache_read_input_tokens": 300,
        "cache_creation_input_tokens": 4000,
    }
    usage = usage_of(result(running(), usage=tokens))
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (1, 20, 4321)
    assert usage.extra == {"cacheReadTokens": 300, "cacheCreationTokens": 4000}


def test_a_denied_tool_is_named_in_the_result() -> None:
    done = result(running(), permission_denials=[{"tool_name": "Bash"}])[-1]
    assert isinstance(done, Done)
    assert done.details == {"denied": ["Bash"]}


# --- progress ------------------------------------------------------------------------------------


def test_a_retry_says_why_and_when() -> None:
    (status,) = say(
        running(),
        type="system",
        subtype="api_retry",
        attempt=2,
        max_retries=10,
        retry_delay_ms=1234.5,
        error_status=429,
        error="rate_limit",
        uuid="not shown",
    )
    assert isinstance(status, Status)
    assert status.text == "The model did not answer (429 rate_limit); retry 2 of 10 in 1.2 s"
    assert status.data == {
        "type": "retry",
        "attempt": 2,
        "max_retries": 10,
        "retry_delay_ms": 1234.5,
        "error_status": 429,
        "error": "rate_limit",
    }


def test_the_beginning_of_a_turn_tells_the_session() -> None:
    started = say(
        running(),
        type="system",
        subtype="init",
        session_id="s",
        model="m",
        claude_code_version="2",
        permissionMode="plan",
    )
    assert started == [Started("s", "m", "2", "plan")]


@each(
    "line",
    [
        {"type": "rate_limit_event", "x": 1},
        {"type": "system", "subtype": "brand_new"},
        {"type": "stream_event", "event": {"type": "brand_new"}},
        {"type": "stream_event", "event": {"type": "content_block_delta", "delta": {"type": "?"}}},
        {"type": "assistant", "message": {"id": "m", "content": [{"type": "brand_new"}]}},
        {"type": "control_response", "response": {"subtype": "success"}},
        {"no": "type"},
        {"type": ["result"]},
    ],
)
def test_unknown_messages_are_ignored(line: dict[str, Any]) -> None:
    assert say(running(), **line) == []


@each("line", [b"", b"  ", b"\t"])
def test_an_empty_line_says_nothing(line: bytes) -> None:
    assert list(running().receive_line(line)) == []


@each(
    "line",
    [b"npm WARN deprecated", b"[1, 2]", b"5", b"null", b'{"type": "result"', b"\xff\x00\x1b[31m"],
)
def test_a_line_that_is_not_a_json_object_is_shown(line: bytes) -> None:
    (status,) = running().receive_line(line)
    text = line.decode(errors="replace")
    assert status == Status(text, {"type": "output", "text": text})


def test_a_line_of_unknown_shape_is_shown_and_the_turn_continues() -> None:
    one = running()
    (status,) = say(one, type="assistant", message="?")
    assert isinstance(status, Status)
    assert result(one)[-1] == Done(summary="ok", details={})


def test_half_a_surrogate_pair_does_not_lose_the_line() -> None:
    line = b'{"type":"result","subtype":"success","result":"cut \\ud83d"}'
    assert list(running().receive_line(line))[-1] == Done(summary="cut ", details={})


@each("member", [None, 5, [], {}, "x", [5], [None]])
@each(
    "name",
    [
        "usage",
        "total_cost_usd",
        "model_usage_since_last_result",
        "errors",
        "permission_denials",
        "terminal_reason",
        "api_error_status",
        "subtype",
        "result",
    ],
)
@each("is_error", [False, True])
def test_a_result_with_any_members_ends_the_turn(name: str, member: Any, is_error: bool) -> None:
    ending = result(running(), is_error=is_error, **{name: member})[-1]
    assert isinstance(ending, Failed if is_error else Done)
