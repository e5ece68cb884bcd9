"""Every adapter between two turns: what a CLI says then reaches no task and does not come before
the next answer, and each of its requests is answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bridge.adapter import unasked
from bridge.adapter.unasked import UNASKED
from bridge.task.answers import denial
from bridge.task.events import (
    AgentEvent,
    Answer,
    Done,
    Failed,
    Question,
    Started,
    Status,
    Text,
    ToolCall,
)
from tests.support.cases import each
from tests.support.dialects import Cli, Json, OfAcp, OfClaude, OfCodex, OfGeneric, OfJsonl

FORMS: Json = {"mode": "form", "message": "?", "requestedSchema": {"properties": {"a": {}}}}
CLIS: dict[str, Callable[..., Cli]] = {
    "claude-code": OfClaude,
    "codex": OfCodex,
    "acp": OfAcp,
    "jsonl": OfJsonl,
    "generic": OfGeneric,
}


def idle(name: str, **config: Any) -> Any:
    """The CLI after a turn."""
    cli = CLIS[name](**config)
    cli.begin()
    assert any(isinstance(event, Done) for event in cli.end())
    cli.received()
    return cli


def kinds(said: list[AgentEvent]) -> list[tuple[str, str]]:
    """The kinds and names of the reports; there is nothing else but facts of the session."""
    found = [event.data for event in said if isinstance(event, Status) and event.data]
    assert all(isinstance(event, Status | Started) for event in said)
    return [(one["kind"], one["name"]) for one in found if one["type"] == UNASKED]


def ask_claude(cli: OfClaude, subtype: str = "can_use_tool", **facts: Any) -> list[AgentEvent]:
    request = {"subtype": subtype, **facts}
    return cli.say(type="control_request", request_id="r", request=request)


def permit(cli: OfAcp) -> list[AgentEvent]:
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
    params = {"toolCall": {"toolCallId": "1", "title": "rm"}, "options": options}
    return cli.say(id=7, method="session/request_permission", params=params)


# --- Claude Code ---------------------------------------------------------------------------------


def wake(cli: OfClaude) -> list[AgentEvent]:
    """ScheduleWakeup and cron jobs begin a turn so (2.1.332)."""
    return [
        *cli.state("running"),
        *cli.command("started", "own", wakeup_source="schedule_wakeup"),
        *cli.say(type="system", subtype="init", session_id="s"),
    ]


def test_a_turn_that_claude_code_begins_by_itself_is_stopped() -> None:
    cli = idle("claude-code")
    assert kinds(wake(cli)) == [("turn", "session_state_changed")]
    assert kinds(cli.text("FOREIGN")) == [("output", "assistant")]
    assert kinds(cli.say(type="result", subtype="success", result="FOREIGN")) == [
        ("output", "result")
    ]
    assert kinds(cli.state("idle")) == []
    assert cli.adapter.stop_unasked()
    (sent,) = cli.received()
    assert sent["request"] == {"subtype": "interrupt"}


def test_a_tool_between_turns_is_reported_with_its_input() -> None:
    cli = idle("claude-code")
    block = {"type": "tool_use", "id": "1", "name": "Bash", "input": {"command": "ls"}}
    said = cli.say(type="assistant", message={"id": "m", "content": [block]})
    assert said == [unasked("output", "Bash", {"command": "ls"})]


@each(
    ("request", "name"),
    [
        ({"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": "x"}}, "Bash"),
        (
            {"subtype": "can_use_tool", "tool_name": "AskUserQuestion", "input": {}},
            "AskUserQuestion",
        ),
        ({"subtype": "hook_callback"}, "hook_callback"),
        ({"subtype": "elicitation", "message": "?"}, "elicitation"),
        ({"subtype": "request_user_dialog"}, "request_user_dialog"),
        ({"subtype": "brand_new"}, "brand_new"),
    ],
)
def test_every_request_of_claude_code_is_refused(request: Json, name: str) -> None:
    cli = idle("claude-code")
    assert kinds(cli.say(type="control_request", request_id="r", request=request)) == [
        ("request", name)
    ]
    (sent,) = cli.received()
    response = sent["response"]
    assert response["request_id"] == "r"
    if request["subtype"] == "can_use_tool":
        assert response["response"]["behavior"] == "deny"
    else:
        assert response["subtype"] == "error"


def test_a_turn_of_its_own_does_not_come_before_the_next_answer() -> None:
    """The prompt was sent just after the CLI had begun the turn."""
    cli = idle("claude-code")
    cli.prompt()
    said = [*wake(cli), *cli.text("FOREIGN"), *cli.text("FOREIGN")]
    assert kinds(said) == [("output", "assistant")], "it is said once"
    asked = ask_claude(cli, tool_name="Bash", input={"command": "rm"})
    assert kinds(asked) == [("request", "Bash")]
    assert kinds(cli.say(type="result", subtype="success", result="FOREIGN")) == []
    assert cli.state("idle") == []
    prompt, denied = cli.received()
    assert denied["response"]["response"]["behavior"] == "deny"
    cli.of_prompt = prompt["uuid"]
    for state in ("queued", "started"):
        cli.command(state, cli.of_prompt)
    assert cli.text("mine") == [Text("mine", new_block=True)]
    assert isinstance(cli.end()[-1], Done)


def test_a_turn_of_its_own_after_the_result_ends_the_task() -> None:
    cli = OfClaude()
    cli.state("running")
    cli.begin()
    cli.text("mine")
    cli.result()
    said = cli.text("FOREIGN")
    assert [type(event) for event in said][-2:] == [Done, Status]
    assert not any(isinstance(event, Text) for event in said)


@each("announces", [True, False])
def test_work_while_claude_code_changes_its_mode_is_not_the_next_answer(announces: bool) -> None:
    cli = idle("claude-code") if announces else OfClaude()
    cli.prompt(mode="plan")
    (asked,) = cli.received()
    assert kinds(cli.text("FOREIGN")) == [("output", "assistant")]
    cli.say(
        type="control_response", response={"subtype": "success", "request_id": asked["request_id"]}
    )
    cli.take()
    assert cli.text("mine") == [Text("mine", new_block=True)]


def test_work_after_a_refused_mode_reaches_no_task() -> None:
    cli = OfClaude()
    cli.prompt(mode="plan")
    (asked,) = cli.received()
    response = {"subtype": "error", "request_id": asked["request_id"]}
    (failed,) = cli.say(type="control_response", response=response)
    assert isinstance(failed, Failed)
    assert kinds(cli.text("FOREIGN")) == [("output", "assistant")]


def test_an_older_claude_code_does_not_announce_prompts() -> None:
    cli = OfClaude()
    cli.prompt()
    assert cli.text("mine") == [Text("mine", new_block=True)]
    said = cli.say(type="result", subtype="success", result="mine")
    assert isinstance(said[-1], Done)
    assert kinds(cli.text("FOREIGN")) == [("output", "assistant")]
    cli.prompt()
    assert cli.text("mine") == [Text("mine", new_block=True)]


# --- Codex ---------------------------------------------------------------------------------------


def test_a_turn_of_codex_that_runs_already_is_not_the_next_answer() -> None:
    cli = idle("codex")
    assert kinds(cli.told("turn/started", turn={"id": "own"})) == [("turn", "turn/started")]
    cli.begin()
    item = {"type": "agentMessage", "id": "i", "text": "FOREIGN"}
    params = {"threadId": "th", "turnId": "own", "item": item}
    assert cli.say(method="item/completed", params=params) == []
    assert cli.told("turn/completed", turn={"id": "own", "status": "completed"}) == []


def test_a_refused_model_of_codex_is_not_requested_again() -> None:
    cli = idle("codex")
    cli.prompt(model="bad")
    (failed,) = cli.reply("turn/start", error={"code": -1, "message": "no such model"})
    assert isinstance(failed, Failed) and failed.reason == "configuration"
    cli.prompt()
    (sent,) = cli.received()
    assert "model" not in sent["params"]


# --- ACP -----------------------------------------------------------------------------------------


@each("kind", ["agent_message_chunk", "agent_thought_chunk", "tool_call"])
def test_output_of_an_agent_of_acp_is_reported(kind: str) -> None:
    cli = idle("acp")
    content = {"type": "text", "text": "FOREIGN"}
    assert kinds(cli.update(kind, content=content, toolCallId="1")) == [("output", kind)]
    assert cli.adapter.stop_unasked()
    (sent,) = cli.received()
    assert (sent["method"], sent["params"]) == ("session/cancel", {"sessionId": "s"})


def test_the_quiet_after_the_answer_of_an_agent_of_acp_belongs_to_the_turn() -> None:
    """Its texts do. Its requests are refused, and nothing needs to be told to stop."""
    cli = OfAcp()
    cli.begin()
    *_, done = cli.say(id=cli.turn, result={"stopReason": "end_turn"})
    assert isinstance(done, Done)
    assert cli.text("late") == [Text("late", new_block=True)]
    assert kinds(permit(cli)) == [("request", "rm")]
    (last,) = cli.adapter.conclude()
    assert isinstance(last, Done)
    assert kinds(cli.text("FOREIGN")) == [("output", "agent_message_chunk")]


def test_an_agent_of_acp_that_works_while_its_mode_is_changed() -> None:
    cli = idle("acp")
    cli.prompt(mode="plan")
    (asked,) = cli.received()
    assert kinds(cli.text("FOREIGN")) == [("output", "agent_message_chunk")]
    assert kinds(permit(cli)) == [("request", "rm")]
    (refused,) = cli.received()
    assert refused["result"]["outcome"]["outcome"] == "cancelled"
    cli.say(id=asked["id"], result={})
    (prompt,) = cli.received()
    assert prompt["method"] == "session/prompt"
    assert cli.text("mine")[-1] == Text("mine", new_block=True)


def test_a_goal_of_kimi_is_closed_before_its_turn_ends() -> None:
    cli = OfAcp("kimi", {"sessionCapabilities": {"close": {}}})
    cli.begin()
    cli.update("tool_call", toolCallId="1", title="CreateGoal", status="completed")
    assert cli.say(id=cli.turn, result={"stopReason": "end_turn"}) == []
    assert cli.adapter.spent
    cli.text("late")
    (done,) = cli.reply("session/close")
    assert isinstance(done, Done)
    assert kinds(permit(cli)) == [("request", "rm")]


@each("kind", ["usage_update", "available_commands_update", "current_mode_update", "new"])
def test_facts_of_the_session_are_no_work(kind: str) -> None:
    assert kinds(idle("acp").update(kind, used=1, currentModeId="x")) == []


@each("force", [False, True])
def test_a_permission_of_acp_is_cancelled(force: bool) -> None:
    cli = idle("acp", force=force)
    assert kinds(permit(cli)) == [("request", "rm")]
    (sent,) = cli.received()
    assert (sent["id"], sent["result"]) == (7, {"outcome": {"outcome": "cancelled"}})


@each(
    "method",
    ["elicitation/create", "cursor/ask_question", "cursor/create_plan", "_qwencode/start_turn"],
)
def test_every_request_of_an_agent_of_acp_is_answered(method: str) -> None:
    cli = idle("acp")
    params = {**FORMS, "questions": [{"id": "q", "options": []}]}
    assert kinds(cli.say(id=7, method=method, params=params)) == [("request", method)]
    (sent,) = cli.received()
    assert sent["id"] == 7
    result = sent.get("result") or {}
    assert "error" in sent or "cancel" in str(result)


def goal(can: Json, **tool: Any) -> tuple[OfAcp, list[AgentEvent]]:
    cli = OfAcp("kimi", can)
    cli.begin()
    cli.update("tool_call", toolCallId="1", status="completed", **tool)
    cli.text("done")
    return cli, cli.end()


CLOSE: Json = {"sessionCapabilities": {"close": {}}}


@each(
    "tool",
    [
        {"title": "CreateGoal"},
        {"title": "CreateGoal: win"},
        {"title": "Bash", "rawInput": {"run_in_background": True}},
    ],
)
def test_a_turn_of_kimi_after_which_it_works_on_ends_its_session_first(tool: Json) -> None:
    cli, said = goal(CLOSE, **tool)
    assert said == []
    assert cli.adapter.spent
    assert isinstance(cli.reply("session/close")[-1], Done)


def test_an_agent_without_a_close_is_ended_with_its_process() -> None:
    cli, said = goal({}, title="CreateGoal")
    assert isinstance(said[-1], Done)
    assert cli.adapter.spent


def test_other_tools_of_kimi_keep_its_session() -> None:
    cli, said = goal(CLOSE, title="Bash", rawInput={"run_in_background": False})
    assert isinstance(said[-1], Done)
    assert not cli.adapter.spent


# --- other programs ------------------------------------------------------------------------------


def refuse(cli: Cli, question: Question) -> None:
    """As the session does it."""
    cli.adapter.answer(question, denial(question, UNASKED) or Answer(question.id, "No task."))


def test_a_question_of_a_program_is_answered() -> None:
    cli = idle("jsonl")
    (question,) = cli.say(type="question", id="q", text="Who?")
    refuse(cli, question)
    (sent,) = cli.received()
    assert (sent["type"], sent["questionId"], sent["optionId"]) == ("answer", "q", None)
    assert cli.adapter.stop_unasked()
    assert cli.received()[0]["type"] == "cancel"


def test_a_question_of_a_line_program_is_denied_even_if_all_is_allowed() -> None:
    cli = idle("generic", force=True)
    said = cli.say(tail="Delete it? [y/n]")
    (question,) = [event for event in said if isinstance(event, Question)]
    assert cli.received() == []
    refuse(cli, question)
    assert cli.received() == [{"write": "n\n"}]
    assert cli.adapter.stop_unasked()
    assert cli.received() == [{"interrupt": True}]


@each("name", CLIS)
def test_what_was_said_between_turns_is_not_in_the_next_one(name: str) -> None:
    cli = idle(name)
    lines: dict[str, Callable[[], Any]] = {
        "claude-code": lambda: cli.text("FOREIGN"),
        "codex": lambda: cli.told("item/agentMessage/delta", itemId="i", delta="FOREIGN"),
        "acp": lambda: cli.text("FOREIGN"),
        "jsonl": lambda: cli.say(type="text", text="FOREIGN"),
        "generic": lambda: cli.say(line="FOREIGN"),
    }
    lines[name]()
    cli.begin()
    said = cli.end()
    assert "FOREIGN" not in str([event for event in said if not isinstance(event, ToolCall)])
