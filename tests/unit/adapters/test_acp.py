"""The ACP adapter, line by line and in both directions (Agent Client Protocol, version 1)."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bridge.adapter import Adapter, AgentConfig, ExitStatus, Prompt, SessionOptions, SessionStart
from bridge.server import registry
from bridge.task.answers import hint, read_answer
from bridge.task.events import (
    ENDINGS,
    SESSION_LOST,
    AgentEvent,
    Answer,
    ArtifactChunk,
    Done,
    Failed,
    Option,
    Plan,
    PlanEntry,
    Question,
    QuestionWithdrawn,
    Started,
    Status,
    Text,
    Thought,
    ToolCall,
    ToolResult,
    Usage,
)
from bridge.task.message import DataPart, Message, Part, RawPart, Role, TextPart, UrlPart
from bridge.task.text import DATA_BYTES
from tests.support.cases import each

Json = dict[str, Any]
Acp = registry.load("acp")
PLAIN = AgentConfig("/opt/agent")  # without AGENT_FORCE, for which Cursor has another dialect
ADAPTERS = {name: registry.load(name).variant_for(PLAIN) for name in registry.names()}
PRESETS = [name for name, adapter in ADAPTERS.items() if issubclass(adapter, Acp)]
LOADS: Json = {"loadSession": True}
RESUMES: Json = {"loadSession": True, "sessionCapabilities": {"resume": {}, "list": {}}}
FOR_EDITORS = (
    "available_commands_update",
    "session_info_update",
    "config_option_update",
    "user_message_chunk",
)
NO_OPTIONS = SessionOptions()
OPTIONS = (
    {"optionId": "x1", "name": "Always", "kind": "allow_always"},
    {"optionId": "x2", "name": "Once", "kind": "allow_once"},
    {"optionId": "x3", "name": "No", "kind": "reject_once"},
)


class Talk:
    """A conversation with the adapter; the test plays the agent."""

    def __init__(
        self,
        name: str = "acp",
        *,
        resume: bool = False,
        options: SessionOptions = NO_OPTIONS,
        folder: str | None = None,
        **config: Any,
    ) -> None:
        start = SessionStart("/workspace", "s-1", resume, options, folder)
        kind = registry.load(name).variant_for(PLAIN)
        self.adapter: Adapter = kind(AgentConfig("/opt/agent", **config), start)
        self.owed: list[Json] = []
        self.session = "s-1"  # in the updates of the agent

    def prompt(self, *parts: Part) -> None:
        message = Message("m", Role.USER, parts or (TextPart("hello"),))
        self.adapter.prompt(Prompt("t", "c", message))

    def hear(self, **message: Any) -> list[AgentEvent]:
        return list(self.adapter.receive_line(json.dumps({"jsonrpc": "2.0", **message}).encode()))

    def written(self) -> list[Json]:
        """All messages to the agent that the test has not read yet."""
        self.owed += map(json.loads, self.adapter.data_to_send().splitlines())
        owed, self.owed = self.owed, []
        return owed

    def asked(self, method: str) -> Json:
        """The next message to the agent, which must be this request."""
        first, *self.owed = self.written()
        assert first.get("method") == method, first
        return first

    def reply(self, method: str, result: Any = None, **members: Any) -> list[AgentEvent]:
        """Answer the request that comes next, which must be this one."""
        answer = {"result": result if result is not None else {}}
        return self.hear(id=self.asked(method)["id"], **(members or answer))

    def nothing(self) -> None:
        """Answer the request that comes behind the history of session/load."""
        unknown = {"code": -32601, "message": "Method not found"}
        assert self.reply("_coding-agent-bridge/nothing", error=unknown) == []

    def initialized(self, capabilities: Json | None = None, **members: Any) -> list[AgentEvent]:
        result = {
            "protocolVersion": 1,
            "agentCapabilities": capabilities or {},
            "agentInfo": {"name": "a", "version": "9.8"},
            **members,
        }
        return self.reply("initialize", result)

    def running(self, capabilities: Json | None = None, **session: Any) -> Talk:
        """Up to the prompt, which the agent has been sent."""
        self.prompt()
        self.initialized(capabilities)
        assert self.reply("session/new", {"sessionId": "s-1", **session}) == []
        return self

    def update(self, **update: Any) -> list[AgentEvent]:
        params = {"sessionId": self.session, "update": update}
        return self.hear(method="session/update", params=params)

    def text(self, text: str, **members: Any) -> list[AgentEvent]:
        content = {"type": "text", "text": text}
        return self.update(sessionUpdate="agent_message_chunk", content=content, **members)

    def begun(self) -> Talk:
        """As running(), after the first output: later events are those of the test."""
        self.running().asked("session/prompt")
        self.heard()
        return self

    def heard(self) -> None:
        assert isinstance(self.text("x")[0], Started)

    def permission(self, number: Any = 0, options: Sequence[Json] = OPTIONS, **call: Any) -> Any:
        tool = {"toolCallId": "t1", "title": "rm x", "kind": "execute", **call}
        params = {"sessionId": "s-1", "toolCall": tool, "options": options}
        return self.hear(id=number, method="session/request_permission", params=params)

    def question(self, number: Any = 0, **members: Any) -> Question:
        *_, question = self.permission(number, **members)
        assert isinstance(question, Question)
        return question

    def answer(self, question: Question, text: str) -> None:
        """The client's words, read as those of a client are."""
        message = Message("a", Role.USER, (TextPart(text),))
        answer = read_answer(question, message)
        assert answer, text
        self.adapter.answer(question, answer)

    def end(self, **result: Any) -> list[AgentEvent]:
        """Answer the prompt, which has been read already."""
        return self.hear(id=3, result=result)


# --- launching -----------------------------------------------------------------------------------


def test_the_operator_can_configure_any_agent() -> None:
    launch = Talk(args=("acp", "--x"), model="m").adapter.launch()
    assert launch.argv == ("/opt/agent", "acp", "--x")
    assert launch.env == {}


@each(
    ("name", "argv"),
    [
        ("gemini", ["--model=m", "--acp"]),
        ("opencode", ["acp"]),
        ("copilot", ["--model=m", "--acp"]),
        ("cursor", ["acp"]),
        ("qwen", ["--model=m", "--acp"]),
        ("kilo", ["acp"]),
        ("cline", ["--acp"]),
        ("goose", ["acp"]),
        ("kimi", ["acp"]),
        ("vibe", []),
        ("droid", ["exec", "--output-format", "acp"]),
        ("auggie", ["--acp"]),
        ("kiro", ["acp"]),
        ("grok", ["agent", "stdio"]),
        ("hermes", []),
        ("openhands", ["acp"]),
        ("deepagents", ["--model=m", "--acp"]),
        ("qoder", ["--acp"]),
        ("junie", ["--acp=true"]),
        ("pi", []),
        ("claude-agent-acp", []),
        ("codex-acp", []),
    ],
)
def test_a_preset_brings_its_arguments_along(name: str, argv: list[str]) -> None:
    launch = Talk(name, args=("--mine",), model="m").adapter.launch()
    assert launch.argv == ("/opt/agent", "--mine", *argv)


def test_a_variable_of_the_operator_is_not_overridden() -> None:
    assert Talk("gemini").adapter.launch().env["GEMINI_CLI_NO_RELAUNCH"] == "true"
    mine = Talk("gemini", env={"GEMINI_CLI_NO_RELAUNCH": "false"})
    assert "GEMINI_CLI_NO_RELAUNCH" not in mine.adapter.launch().env


@each(
    ("given", "config"),
    [
        (None, {"features": {"goals": False}}),
        (
            '{"model": "m", "features": {"x": true, "goals": true}}',
            {"model": "m", "features": {"x": True, "goals": False}},
        ),
        ('{"features": 1}', {"features": {"goals": False}}),
    ],
)
def test_codex_has_no_goals_whatever_its_configuration_is(given: str | None, config: Json) -> None:
    """A goal makes it call the model after the end of the task."""
    env = {"CODEX_CONFIG": given} if given else {}
    assert json.loads(Talk("codex-acp", env=env).adapter.launch().env["CODEX_CONFIG"]) == config


def test_a_configuration_that_codex_cannot_read_stays_as_it_is() -> None:
    launch = Talk("codex-acp", env={"CODEX_CONFIG": "{"}).adapter.launch()
    assert launch.env["CODEX_CONFIG"] == "{"


@each(
    ("agent", "name", "value"),
    [
        ("claude-agent-acp", "CLAUDE_CODE_DISABLE_CRON", "1"),
        ("claude-agent-acp", "CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION", "false"),
        ("claude-agent-acp", "CLAUDE_CODE_IDLE_COMPACT_MIN_TOKENS", "1000000000"),
        ("qwen", "QWEN_CODE_DISABLE_CRON", "1"),
    ],
)
def test_an_agent_does_not_ask_its_model_between_turns(agent: str, name: str, value: str) -> None:
    assert Talk(agent).adapter.launch().env[name] == value


def test_qwen_learns_and_suggests_nothing_by_itself() -> None:
    path = Talk("qwen").adapter.launch().env["QWEN_CODE_SYSTEM_DEFAULTS_PATH"]
    assert json.loads(Path(path).read_text()) == {
        "$version": 1000,
        "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
        "ui": {"enableFollowupSuggestions": False},
    }


# --- presets -------------------------------------------------------------------------------------


def test_every_preset_can_be_loaded_by_its_name() -> None:
    assert len(PRESETS) == 23
    for name in PRESETS:
        assert registry.load(name).name == name


@each("name", PRESETS)
def test_a_preset_is_an_adapter_like_any_other(name: str) -> None:
    adapter = registry.load(name).variant_for(PLAIN)
    assert adapter.title
    assert adapter.binary or name == "acp"
    assert not {"yolo", "bypassPermissions", "dontAsk", "auto"} & set(adapter.modes)
    talk = Talk(name)
    talk.prompt()
    assert talk.asked("initialize")["params"]["protocolVersion"] == 1
    (failed,) = talk.adapter.receive_exit(ExitStatus(3, "last words"))
    assert isinstance(failed, Failed)
    assert "last words" in failed.text


def test_programs_with_ambiguous_names_are_not_found_automatically() -> None:
    found = [adapter.name for adapter in registry.with_binary()]
    assert found[0] == "claude-code"  # what has a file of its own is preferred
    assert {"gemini", "opencode", "qwen"} <= set(found)
    assert not {"acp", "cursor", "copilot", "goose"} & set(found)


# --- the handshake -------------------------------------------------------------------------------


def test_the_prompt_waits_until_the_handshake_is_done() -> None:
    talk = Talk()
    talk.prompt()
    assert talk.asked("initialize")["params"] == {
        "protocolVersion": 1,
        "clientCapabilities": {
            "fs": {"readTextFile": False, "writeTextFile": False},
            "terminal": False,
            "elicitation": {"form": {}, "url": {}},
            "session": {"notices": {}},
        },
        "clientInfo": {"name": "coding-agent-bridge", "version": "1"},
    }
    assert talk.written() == []
    assert talk.hear(id=1, result={"protocolVersion": 1}) == []
    assert talk.asked("session/new")["params"] == {"cwd": "/workspace", "mcpServers": []}
    assert talk.written() == []
    assert talk.hear(id=2, result={"sessionId": "s-9"}) == []
    prompt = talk.asked("session/prompt")["params"]
    assert prompt == {"sessionId": "s-9", "prompt": [{"type": "text", "text": "hello"}]}
    assert talk.written() == []


def test_an_agent_that_makes_titles_of_its_own_gets_one() -> None:
    """codex-acp 2.6.0 would ask its model for it after the end of the task."""
    talk = Talk().running({"sessionCapabilities": {"title": {}}})
    title = talk.asked("session/set_title")
    assert title["params"] == {"sessionId": "s-1", "title": "coding-agent-bridge"}
    talk.asked("session/prompt")
    assert talk.hear(id=title["id"], error={"code": -32601, "message": "no"}) == []
    resumed = Talk(resume=True)
    resumed.prompt()
    resumed.initialized({"sessionCapabilities": {"title": {}, "resume": {}}})
    assert resumed.reply("session/resume") == []
    resumed.asked("session/prompt")


def test_a_second_turn_needs_no_handshake() -> None:
    talk = Talk().begun()
    assert isinstance(talk.end(stopReason="end_turn")[-1], Done)
    talk.prompt(TextPart("again"))
    assert talk.asked("session/prompt")["params"]["prompt"] == [{"type": "text", "text": "again"}]
    assert talk.text("y")[0] == Started("s-1", None, "9.8", None)


def test_the_facts_of_the_session_come_with_the_first_output_of_a_turn() -> None:
    modes = {"currentModeId": "ask", "availableModes": []}
    model = {"id": "model", "category": "model", "currentValue": "m-7", "options": []}
    talk = Talk().running(modes=modes, configOptions=[model])
    assert talk.text("x") == [Started("s-1", "m-7", "9.8", "ask"), Text("x", new_block=True)]
    assert talk.text("y") == [Text("y")]


def test_files_of_messages_are_offered_where_the_agent_takes_folders() -> None:
    for capabilities, given in (
        ({"sessionCapabilities": {"additionalDirectories": {}}}, ["/files"]),
        ({}, None),
    ):
        talk = Talk(folder="/files")
        talk.prompt()
        talk.initialized(capabilities)
        assert talk.asked("session/new")["params"].get("additionalDirectories") == given


@each("version", [2, "1", 0])
def test_another_version_of_the_protocol_is_refused(version: Any) -> None:
    talk = Talk()
    talk.prompt()
    (failed,) = talk.reply("initialize", {"protocolVersion": version})
    assert isinstance(failed, Failed)
    assert failed.reason == "protocol"
    assert talk.written() == []


@each("result", [None, 5, [], {}, {"sessionId": 7}])
def test_a_session_without_an_id_is_none(result: Any) -> None:
    talk = Talk()
    talk.prompt()
    talk.initialized()
    (failed,) = talk.hear(id=talk.asked("session/new")["id"], result=result)
    assert isinstance(failed, Failed)
    assert failed.reason == "protocol"


def test_a_handshake_that_failed_is_begun_again_by_the_next_prompt() -> None:
    talk = Talk()
    talk.prompt()
    talk.initialized()
    (failed,) = talk.reply("session/new", error={"code": -32603, "message": "Internal error"})
    assert isinstance(failed, Failed)
    assert failed.reason == "agent-error"
    assert talk.written() == []
    talk.prompt()
    talk.reply("session/new", {"sessionId": "s-1"})
    talk.asked("session/prompt")


# --- logging in ----------------------------------------------------------------------------------

LOGIN = {"id": "gemini-api-key", "name": "Gemini API key", "description": "Use an API key"}
NEEDS_LOGIN = {"code": -32000, "message": "Authentication required"}


def test_an_agent_that_needs_a_login_fails_the_task_and_says_how() -> None:
    talk = Talk()
    talk.prompt()
    methods = [{"id": "x", "name": "Login", "description": "Run `x login`"}, 5, {"name": "Other"}]
    talk.initialized(authMethods=methods)
    (failed,) = talk.reply("session/new", error=NEEDS_LOGIN)
    assert isinstance(failed, Failed)
    assert failed.reason == "auth"
    assert "Login: Run `x login`; Other" in failed.text
    assert "Authentication required" in failed.text


def test_a_key_in_the_environment_is_used_to_log_in_once() -> None:
    talk = Talk("gemini", env={"GEMINI_API_KEY": "k"})
    talk.prompt()
    talk.initialized(authMethods=[LOGIN])
    assert talk.reply("session/new", error=NEEDS_LOGIN) == []
    assert talk.asked("authenticate")["params"] == {"methodId": "gemini-api-key"}
    assert talk.hear(id=3, result={}) == []
    (failed,) = talk.reply("session/new", error=NEEDS_LOGIN)
    assert isinstance(failed, Failed)
    assert failed.reason == "auth"


def test_without_a_key_the_cli_is_not_logged_in() -> None:
    talk = Talk("gemini")
    talk.prompt()
    talk.initialized(authMethods=[LOGIN])
    (failed,) = talk.reply("session/new", error=NEEDS_LOGIN)
    assert isinstance(failed, Failed)
    assert talk.written() == []


def test_cursor_is_logged_in_first() -> None:
    talk = Talk("cursor")
    talk.prompt()
    talk.initialized(authMethods=[{"id": "cursor_login", "name": "Cursor Login"}])
    (failed,) = talk.reply("authenticate", error={"code": -32603, "message": "not logged in"})
    assert isinstance(failed, Failed)
    assert failed.reason == "auth"
    talk.prompt()
    talk.asked("session/new")


@each("code", [-32000, 401, 403])
def test_a_key_that_is_not_accepted_in_a_turn_is_a_matter_of_login(code: int) -> None:
    talk = Talk().begun()
    (failed,) = talk.hear(id=3, error={"code": code, "message": "bad key"})
    assert isinstance(failed, Failed)
    assert failed.reason == "auth"
    assert "bad key" in failed.text


# --- going on with a conversation ----------------------------------------------------------------


def test_a_conversation_is_resumed_where_the_agent_can_and_else_loaded() -> None:
    for capabilities, method in ((RESUMES, "session/resume"), (LOADS, "session/load")):
        talk = Talk(resume=True)
        talk.prompt()
        talk.initialized(capabilities)
        params = talk.asked(method)["params"]
        assert params == {"cwd": "/workspace", "mcpServers": [], "sessionId": "s-1"}
        assert talk.hear(id=2, result={}) == []
        if method == "session/load":
            talk.nothing()
        assert talk.asked("session/prompt")["params"]["sessionId"] == "s-1"


def test_a_resume_that_is_offered_but_not_known_becomes_a_load() -> None:
    """As with qwen 0.15.10."""
    talk = Talk(resume=True)
    talk.prompt()
    talk.initialized(RESUMES)
    unknown = {"code": -32601, "message": '"Method not found": session/resume'}
    assert talk.reply("session/resume", error=unknown) == []
    assert talk.asked("session/load")["params"]["sessionId"] == "s-1"


def test_output_before_the_answer_to_a_load_is_history() -> None:
    talk = Talk(resume=True)
    talk.prompt()
    talk.initialized(LOADS)
    load = talk.asked("session/load")
    assert talk.text("old") == []
    assert (
        talk.update(sessionUpdate="tool_call", toolCallId="1", title="old", status="failed") == []
    )
    assert talk.hear(id=load["id"], result=None) == []
    assert talk.text("old") == []
    talk.nothing()
    assert talk.text("new")[1:] == [Text("new", new_block=True)]


def test_gemini_loads_a_conversation_by_an_id_that_names_no_file_of_it() -> None:
    """The bridge itself knows the conversation by its own id."""
    talk = Talk("gemini", resume=True)
    talk.prompt()
    talk.initialized(LOADS)
    load = talk.asked("session/load")
    talk.session = load["params"]["sessionId"]
    assert talk.session == " s-1"
    talk.hear(id=load["id"], result={})
    talk.nothing()
    assert talk.asked("session/prompt")["params"]["sessionId"] == " s-1"
    assert talk.text("new") == [Started("s-1", None, "9.8", None), Text("new", new_block=True)]
    talk.adapter.interrupt()
    assert talk.asked("session/cancel")["params"]["sessionId"] == " s-1"


def test_gemini_continues_with_the_history_after_the_answer() -> None:
    talk = Talk("gemini", resume=True)
    talk.session = " s-1"
    talk.prompt()
    talk.initialized(LOADS)
    talk.reply("session/load", {"modes": {"currentModeId": "default", "availableModes": []}})
    barrier = talk.asked("session/set_mode")
    assert barrier["params"] == {"sessionId": " s-1", "modeId": "default"}
    assert talk.written() == []
    assert talk.text("old") == []
    assert talk.hear(id=barrier["id"], result={}) == []
    talk.asked("session/prompt")
    assert talk.text("new")[1:] == [Text("new", new_block=True)]


@each(
    "error",
    [
        {"code": -32002, "message": "Resource not found: s-1"},
        {"code": -32602, "message": 'Session not found: "s-1"'},
        {"code": -32603, "message": "Internal error", "data": {"details": "Invalid session id"}},
        {"code": -32603, "message": "No previous sessions found for this project."},
        {"code": -32601, "message": "Method not found"},
    ],
)
def test_a_lost_conversation_is_reported(error: Json) -> None:
    talk = Talk(resume=True)
    talk.prompt()
    talk.initialized(LOADS)
    (failed,) = talk.reply("session/load", error=error)
    assert isinstance(failed, Failed)
    assert failed.reason == SESSION_LOST


def test_the_task_after_a_failed_load_begins_a_new_conversation() -> None:
    """The next message begins a new conversation; the failure names the lost one."""
    talk = Talk(resume=True)
    talk.prompt()
    talk.initialized(LOADS)
    (failed,) = talk.reply("session/load", error={"code": -32603, "message": "disk is full"})
    assert isinstance(failed, Failed)
    assert failed.reason == SESSION_LOST
    assert "disk is full" in failed.text and "s-1" in failed.text
    assert "new conversation" in failed.text


def test_an_agent_that_ends_while_it_loads_cannot_load() -> None:
    talk = Talk(resume=True)
    talk.prompt()
    talk.initialized(LOADS)
    (failed,) = talk.adapter.receive_exit(ExitStatus(1, "the journal is damaged"))
    assert isinstance(failed, Failed) and failed.reason == SESSION_LOST
    assert "the journal is damaged" in failed.text
    killed = Talk(resume=True)
    killed.prompt()
    killed.initialized(LOADS)
    (failed,) = killed.adapter.receive_exit(ExitStatus(-9))  # nothing is wrong with the journal
    assert isinstance(failed, Failed) and failed.reason == "exit"


def test_qwen_is_asked_whether_it_knows_the_conversation() -> None:
    for second, method in (("s-1", "session/resume"), ("other", None)):
        talk = Talk("qwen", resume=True)
        talk.prompt()
        talk.initialized(RESUMES)
        page = {"sessions": [{"sessionId": "a"}, 5], "nextCursor": "c"}
        assert talk.reply("session/list", page) == []
        request = talk.asked("session/list")
        assert request["params"] == {"cwd": "/workspace", "cursor": "c"}
        said = talk.hear(id=request["id"], result={"sessions": [{"sessionId": second}]})
        if method:
            talk.asked(method)
        else:
            assert [event.reason for event in said if isinstance(event, Failed)] == [SESSION_LOST]


# --- mode and model ------------------------------------------------------------------------------

MODES = {"modes": {"currentModeId": "a", "availableModes": []}}
MODELS = {"models": {"currentModelId": "m", "availableModels": []}}
CONFIG = {
    "configOptions": [
        {"id": "the-mode", "category": "mode", "currentValue": "a"},
        {"id": "model", "currentValue": "m"},
    ]
}


@each(
    ("session", "told"),
    [
        (
            {**MODES, **MODELS},
            [("session/set_mode", {"modeId": "plan"}), ("session/set_model", {"modelId": "big"})],
        ),
        (
            CONFIG,
            [
                ("session/set_config_option", {"configId": "the-mode", "value": "plan"}),
                ("session/set_config_option", {"configId": "model", "value": "big"}),
            ],
        ),
    ],
)
def test_mode_and_model_are_set_before_the_prompt(
    session: Json, told: list[tuple[str, Json]]
) -> None:
    talk = Talk(options=SessionOptions(model="big", mode="plan")).running(**session)
    for method, params in told:
        request = talk.asked(method)
        assert request["params"] == {"sessionId": "s-1", **params}
        assert talk.written() == []
        assert talk.hear(id=request["id"], result={}) == []
    talk.asked("session/prompt")
    assert talk.text("x")[0] == Started("s-1", "big", "9.8", "plan")


@each(
    ("agent", "current", "chosen", "told"),
    [
        ("qwen", "auto", None, "default"),
        ("qwen", "yolo", None, "default"),
        ("qwen", "plan", None, None),
        ("qwen", "default", None, None),
        ("qwen", "auto", "auto-edit", "auto-edit"),
        ("claude-agent-acp", "auto", None, "default"),
        ("claude-agent-acp", "acceptEdits", None, "default"),
        ("claude-agent-acp", "auto", "acceptEdits", "acceptEdits"),
        ("codex-acp", "agent", None, "read-only"),
        ("vibe", "accept-edits", None, "ask"),
        ("vibe", "accept-edits", "accept-edits", "accept-edits"),
        ("gemini", "yolo", None, None),  # only of those whose own default does not ask
    ],
)
def test_a_session_begins_in_the_mode_that_asks(
    agent: str, current: str, chosen: str | None, told: str | None
) -> None:
    offered = [{"id": one} for one in ("default", "ask", "plan", "auto", "read-only")]
    modes = {"currentModeId": current, "availableModes": offered}
    talk = Talk(agent, options=SessionOptions(mode=chosen)).running(modes=modes)
    if told is None:
        talk.asked("session/prompt")
    else:
        assert talk.asked("session/set_mode")["params"] == {"sessionId": "s-1", "modeId": told}


def test_a_mode_that_an_agent_does_not_offer_is_not_set() -> None:
    """qwen before 0.24 had other modes."""
    modes = {"currentModeId": "auto", "availableModes": [{"id": "auto"}]}
    Talk("qwen").running(modes=modes).asked("session/prompt")


def test_the_model_of_the_operator_is_set_and_that_of_the_client_goes_first() -> None:
    for options, model in ((SessionOptions(), "op"), (SessionOptions(model="cl"), "cl")):
        talk = Talk(model="op", options=options).running(**MODELS)
        assert talk.asked("session/set_model")["params"]["modelId"] == model


@each("refused", [True, False])
def test_an_unavailable_model_fails_the_task(refused: bool) -> None:
    talk = Talk(model="big")
    talk.prompt()
    talk.initialized()
    said = talk.reply("session/new", {"sessionId": "s-1", **(MODELS if refused else {})})
    if refused:
        error = {"code": -32603, "message": "unknown model"}
        said = talk.reply("session/set_model", error=error)
    (failed,) = said
    assert isinstance(failed, Failed)
    assert failed.reason == "configuration"
    assert "big" in failed.text
    assert talk.written() == []


# --- what a prompt carries -----------------------------------------------------------------------

PNG = b64encode(b"png").decode()
PARTS = (
    TextPart("one"),
    DataPart({"a": 1}),
    RawPart(b64encode(b"caf\xe9").decode(), "text/x-log", "my file.log"),
    RawPart(PNG, "image/png"),
    UrlPart("file:///workspace/a%20b.pdf", "application/pdf"),
    UrlPart("https://example.org/x"),
)


def blocks(capabilities: Json) -> Any:
    talk = Talk()
    talk.prompt(*PARTS)
    talk.initialized(capabilities)
    talk.reply("session/new", {"sessionId": "s-1"})
    return talk.asked("session/prompt")["params"]["prompt"]


def test_a_part_is_converted_to_a_type_that_the_agent_takes() -> None:
    link = {"type": "resource_link", "uri": "file:///workspace/a%20b.pdf", "name": "a b.pdf"}
    can = {"promptCapabilities": {"image": True, "embeddedContext": True}}
    resource = {"uri": "attachment:///my%20file.log", "mimeType": "text/x-log", "text": "caf\ufffd"}
    assert blocks(can) == [
        {"type": "text", "text": "one"},
        {"type": "text", "text": '{"a":1}'},
        {"type": "resource", "resource": resource},
        {"type": "image", "mimeType": "image/png", "data": PNG},
        {**link, "mimeType": "application/pdf"},
        {"type": "text", "text": "Attached: https://example.org/x"},
    ]
    plain = blocks({"promptCapabilities": {"image": False}})
    assert plain[2] == {"type": "text", "text": '<file name="my file.log">\ncaf\ufffd\n</file>'}
    assert plain[3]["type"] == "text"
    assert PNG not in plain[3]["text"]
    assert plain[4] == {**link, "mimeType": "application/pdf"}


# --- what is said --------------------------------------------------------------------------------


def test_text_arrives_in_blocks_without_empty_ones() -> None:
    talk = Talk().begun()
    assert talk.text("a", messageId="m1") == [Text("a", new_block=True)]
    assert talk.text("") == []
    assert talk.text("b", messageId="m1") == [Text("b")]
    assert talk.text("c", messageId="m2") == [Text("c", new_block=True)]
    talk.update(sessionUpdate="tool_call", toolCallId="1", title="t", status="in_progress")
    assert talk.text("d", messageId="m2") == [Text("d", new_block=True)]
    done = talk.end(stopReason="end_turn")[-1]
    assert done == Done(summary="d", details={"stopReason": "end_turn"})


def test_a_thought_is_a_thought() -> None:
    content = {"type": "text", "text": "hm"}
    said = Talk().begun().update(sessionUpdate="agent_thought_chunk", content=content)
    assert said == [Thought("hm")]


def test_a_plan_is_complete_in_each_update() -> None:
    entries = [
        {"content": "a", "priority": "high", "status": "completed"},
        {"content": "b", "status": "in_progress"},
        {"content": None, "status": "new"},
        5,
    ]
    assert Talk().begun().update(sessionUpdate="plan", entries=entries) == [
        Plan(
            (
                PlanEntry("a", "completed"),
                PlanEntry("b", "in_progress"),
                PlanEntry("", "pending"),
                PlanEntry("", "pending"),
            )
        )
    ]


def test_a_change_of_the_mode_is_reported_once() -> None:
    talk = Talk().begun()
    said = talk.update(sessionUpdate="current_mode_update", currentModeId="plan")
    text = Status("The mode is now plan", {"type": "mode", "mode": "plan"})
    assert said[-2:] == [Started("s-1", None, "9.8", "plan"), text]
    assert talk.update(sessionUpdate="current_mode_update", currentModeId="plan") == []


@each(
    "kind",
    [*FOR_EDITORS, "something_new", None, 5],
)
def test_other_updates_are_for_editors(kind: Any) -> None:
    content = {"type": "text", "text": "hm"}
    assert Talk().begun().update(sessionUpdate=kind, content=content) == []


def test_output_of_another_session_is_ignored() -> None:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x"}}
    talk = Talk().begun()
    assert talk.hear(method="session/update", params={"sessionId": "s-2", "update": update}) == []
    assert talk.hear(method="session/update", params={"update": update}) == [Text("x")]


def test_content_that_is_not_text_is_handed_over() -> None:
    talk = Talk().begun()
    contents: list[tuple[Json, Part]] = [
        ({"type": "image", "mimeType": "image/png", "data": PNG}, RawPart(PNG, "image/png")),
        (
            {"type": "resource_link", "uri": "file:///x", "name": "x"},
            UrlPart("file:///x", None, "x"),
        ),
        (
            {"type": "resource", "resource": {"uri": "file:///y", "text": "y"}},
            TextPart("y", None, "file:///y"),
        ),
    ]
    for number, (content, part) in enumerate(contents, 1):
        said = talk.update(sessionUpdate="agent_message_chunk", content=content)
        name = getattr(part, "filename", None)
        assert said == [ArtifactChunk(f"content-{number}", (part,), name)]
    assert talk.update(sessionUpdate="agent_message_chunk", content={"type": "new"}) == []


def test_an_update_of_unknown_shape_is_shown_unchanged() -> None:
    (status,) = Talk().begun().update(sessionUpdate="agent_message_chunk", content="words")
    assert isinstance(status, Status)
    assert status.data is not None
    assert "words" in status.data["text"]


# --- tools ---------------------------------------------------------------------------------------


def test_a_tool_call_is_announced_as_soon_as_its_input_is_known() -> None:
    """The form of opencode 1.18.33: at first there is only a folder."""
    talk = Talk().begun()
    call = {"toolCallId": "c", "title": "bash", "kind": "execute"}
    first = {**call, "status": "pending", "rawInput": {"cwd": "/w"}}
    assert talk.update(sessionUpdate="tool_call", **first) == []
    told = {"status": "in_progress", "title": "ls", "rawInput": {"command": "ls", "cwd": "/w"}}
    said = talk.update(sessionUpdate="tool_call_update", toolCallId="c", **told)
    assert said == [ToolCall("c", "ls", {"command": "ls", "cwd": "/w"})]
    assert talk.update(sessionUpdate="tool_call_update", toolCallId="c", **told) == []
    content = [{"type": "content", "content": {"type": "text", "text": "a\nb"}}]
    done = {"status": "completed", "content": content, "rawOutput": {"exit": 0}}
    said = talk.update(sessionUpdate="tool_call_update", toolCallId="c", **done)
    assert said == [ToolResult("c", "a\nb", name="ls")]
    assert talk.update(sessionUpdate="tool_call_update", toolCallId="c", **done) == []


def test_a_tool_s_own_name_and_output_go_first() -> None:
    """The form of claude-agent-acp 0.49.0."""
    talk = Talk().begun()
    meta = {"claudeCode": {"toolName": "Bash"}}
    said = talk.update(
        sessionUpdate="tool_call", toolCallId="c", title="Terminal", rawInput={}, _meta=meta
    )
    assert said == []
    said = talk.update(
        sessionUpdate="tool_call_update", toolCallId="c", title="ls", rawInput={"command": "ls"}
    )
    assert said == [ToolCall("c", "Bash", {"command": "ls"})]
    assert talk.update(sessionUpdate="tool_call_update", toolCallId="c", _meta=meta) == []
    content = [{"type": "content", "content": {"type": "text", "text": "```console\nx\n```"}}]
    said = talk.update(
        sessionUpdate="tool_call_update",
        toolCallId="c",
        status="failed",
        rawOutput="x",
        content=content,
    )
    assert said == [ToolResult("c", "x", is_error=True, name="Bash")]


def test_a_tool_may_first_be_heard_of_in_its_result() -> None:
    """The form of gemini 0.61.0 for a tool that was allowed."""
    said = (
        Talk()
        .begun()
        .update(
            sessionUpdate="tool_call_update",
            toolCallId="c",
            status="completed",
            title="ls",
            content=[],
            locations=[{"path": "/w/x"}],
            kind="execute",
        )
    )
    told = {"title": "ls", "kind": "execute", "paths": ["/w/x"]}
    assert said == [ToolCall("c", "ls", told), ToolResult("c", None, name="ls")]


def changed(old: Any, new: Any) -> Any:
    content = [
        {"type": "diff", "path": "/w/x", "oldText": old, "newText": new},
        5,
        {"type": "diff"},
    ]
    talk = Talk().begun()
    call = {"toolCallId": "c", "title": "edit", "status": "in_progress"}
    talk.update(sessionUpdate="tool_call", content=content, **call)
    # opencode: the last content is words, and the change is a change all the same
    words = [{"type": "content", "content": {"type": "text", "text": "done"}}]
    done = {"toolCallId": "c", "status": "completed", "content": words}
    (result,) = talk.update(sessionUpdate="tool_call_update", **done)
    assert isinstance(result, ToolResult)
    (change,) = result.changes
    ended = talk.end(stopReason="end_turn")[-1]
    assert isinstance(ended, Done)
    assert ended.details == {"stopReason": "end_turn", "changedFiles": ["/w/x"]}
    return change


@each(
    ("old", "new", "kind", "diff"),
    [
        (None, "a\nb\n", "create", "--- /dev/null\n+++ /w/x\n@@ -0,0 +1,2 @@\n+a\n+b\n"),
        ("a\n", None, "delete", "--- /w/x\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-a\n"),
        (
            "1\n2\n3\n4\n5\n6\n7\n8\n9\n",
            "1\n2\n3\n4\nfive\n6\n7\n8\n9\n",
            "update",
            "--- /w/x\n+++ /w/x\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n",
        ),
        (
            "a\nb",
            "a\nc",
            "update",
            "--- /w/x\n+++ /w/x\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n"
            "+c\n\\ No newline at end of file\n",
        ),
        ("a\n", "a\n", "update", ""),
    ],
)
def test_a_diff_is_a_change(old: Any, new: Any, kind: str, diff: str) -> None:
    change = changed(old, new)
    assert (change.path, change.kind, change.diff) == ("/w/x", kind, diff)


def test_a_change_that_failed_is_none() -> None:
    content = [{"type": "diff", "path": "/w/x", "oldText": None, "newText": "x"}]
    talk = Talk().begun()
    _, result = talk.update(
        sessionUpdate="tool_call", toolCallId="c", title="e", status="failed", content=content
    )
    assert isinstance(result, ToolResult)
    assert result.changes == ()


# --- permissions ---------------------------------------------------------------------------------


def test_a_permission_is_asked_for_and_its_tool_announced() -> None:
    talk = Talk().begun()
    call, question = talk.permission(rawInput={"command": "rm -r x"}, locations=[{"path": "/w"}])
    assert call == ToolCall("t1", "rm x", {"command": "rm -r x"})
    assert isinstance(question, Question)
    assert question.kind == "permission"
    assert question.text == "The agent asks for permission: rm x\ncommand: rm -r x\npath: /w"
    assert question.options == (
        Option(
            "x1", "Always", "allow_always", "The agent decides which later requests this covers"
        ),
        Option("x2", "Once", "allow_once"),
        Option("x3", "No", "reject_once"),
    )
    assert question.subject == {
        "toolCallId": "t1",
        "name": "rm x",
        "tool": "rm x",
        "title": "The agent asks for permission: rm x",
        "kind": "execute",
        "command": "rm -r x",
        "paths": ["/w"],
        "input": {"command": "rm -r x"},
    }
    assert talk.written() == []


@each(
    ("word", "chosen"),
    [("yes", "x2"), ("always", "x1"), ("no", "x3"), ("Once", "x2"), ("x1", "x1")],
)
@each("number", [0, 3, "a-uuid"])
def test_an_answer_is_the_option_of_the_kind_that_was_meant(
    number: Any, word: str, chosen: str
) -> None:
    talk = Talk().begun()
    talk.answer(talk.question(number), word)
    (line,) = talk.written()
    assert line["id"] == number
    assert line["result"] == {"outcome": {"outcome": "selected", "optionId": chosen}}


def test_the_client_sees_the_diff_of_an_edit_that_it_decides_about() -> None:
    diff = {"type": "diff", "path": "/w/x", "oldText": "a\n", "newText": "b\n"}
    question = Talk().begun().question(kind="edit", content=[diff])
    assert question.text.endswith("\n    1 -a\n    1 +b")
    assert question.subject and question.subject["changes"][0].endswith("\n-a\n+b\n")


def test_the_whole_command_is_shown_where_the_request_has_only_its_beginning() -> None:
    """As kimi 2.1.0 sends it: the input of the tool is a text, which comes before the request."""
    command = f"touch /tmp/{'x' * 200}"
    talk = Talk("kimi").begun()
    given = [
        {"type": "content", "content": {"type": "text", "text": json.dumps({"command": command})}}
    ]
    (call,) = talk.update(
        sessionUpdate="tool_call", toolCallId="t1", title="Bash", status="pending", content=given
    )
    assert call == ToolCall("t1", "Bash", {"command": command})
    short = [{"type": "content", "content": {"type": "text", "text": f"Running: {command[:20]}…"}}]
    question = talk.question(title="Bash", content=short)
    assert f"command: {command}\n" in question.text
    assert question.subject and question.subject["command"] == command


def test_a_text_that_a_tool_has_printed_is_not_its_input() -> None:
    talk = Talk().begun()
    printed = [{"type": "content", "content": {"type": "text", "text": '{"command": "x"}'}}]
    call, _ = talk.update(
        sessionUpdate="tool_call_update",
        toolCallId="t1",
        title="Bash",
        status="completed",
        content=printed,
    )
    assert call == ToolCall("t1", "Bash", {"title": "Bash"})


def test_a_request_that_names_no_tool_shows_those_that_wait() -> None:
    """As openhands 1.16.0 asks, for all of its actions."""
    talk = Talk("openhands").begun()
    confirmation: Json = {"toolCallId": "confirmation-1", "title": "Confirm", "kind": "other"}
    for number, command in enumerate(("rm -r x", "rm -r y")):
        talk.update(
            sessionUpdate="tool_call",
            toolCallId=f"t{number}",
            title="terminal",
            status="pending",
            rawInput={"command": command},
        )
        question = talk.question(number, **confirmation)
        assert command in question.text
        assert question.subject
        expected = f"t{number}" if number == 0 else "confirmation-1"
        assert question.subject["toolCallId"] == expected


def test_two_permissions_at_once_are_two_questions() -> None:
    talk = Talk().begun()
    first, second = talk.question(0), talk.question(1, toolCallId="t2")
    assert first.id != second.id
    talk.answer(second, "no")
    talk.answer(first, "yes")
    assert [line["id"] for line in talk.written()] == [1, 0]


def test_an_option_of_no_known_kind_can_still_be_named() -> None:
    talk = Talk().begun()
    question = talk.question(options=[{"optionId": "o", "name": "Perhaps", "kind": "maybe"}])
    assert question.options == (Option("o", "Perhaps", "choice"),)
    talk.answer(question, "perhaps")
    assert talk.written()[0]["result"]["outcome"]["optionId"] == "o"


def test_a_permission_without_options_is_cancelled() -> None:
    talk = Talk().begun()
    assert [type(event) for event in talk.permission(options=[])] == [ToolCall]
    assert talk.written()[0]["result"] == {"outcome": {"outcome": "cancelled"}}


@each(
    ("agent", "lasting"),
    [
        ("qwen", "proceed_always_project"),
        ("vibe", "allow_always_permanent"),
        ("vibe", "allow_permanent_exact"),
        ("vibe", "allow_permanent_directory_recursive"),
        ("grok", "always-allow"),
        ("grok", "reject-always"),
        ("openhands", "always_proceed"),
        ("openhands", "risk_based"),
        ("codex-acp", "accept_execpolicy_amendment"),
        ("codex-acp", "apply_network_policy_amendment"),
        ("codex-acp", "allow_always"),
        ("claude-agent-acp", "allow-with-updates"),
        ("claude-agent-acp", "allow-skill-exact"),
        ("claude-agent-acp", "allow-skill-prefix"),
        ("claude-agent-acp", "exit-plan-auto"),
        ("claude-agent-acp", "exit-plan-bypass"),
        ("claude-agent-acp", "exit-plan-clear-auto"),
        ("claude-agent-acp", "exit-plan-clear-bypass"),
        ("claude-agent-acp", "exit-plan-clear-accept-edits"),
    ],
)
def test_rules_for_other_sessions_and_modes_without_questions_are_not_offered(
    agent: str, lasting: str
) -> None:
    options = [
        {"optionId": lasting, "name": "P", "kind": "allow_always"},
        {"optionId": "proceed_once", "name": "O", "kind": "allow_once"},
    ]
    talk = Talk(agent).running()
    assert [option.id for option in talk.question(options=options).options] == ["proceed_once"]


def test_a_notice_is_no_part_of_the_answer() -> None:
    """As codex-acp 2.6.0 and claude-agent-acp 0.101.0 send it to clients that take notices."""
    talk = Talk().begun()
    (said,) = talk.update(sessionUpdate="notice", severity="warning", title="No metadata")
    assert said == Status("No metadata", {"type": "warning", "text": "No metadata"})
    (said,) = talk.update(sessionUpdate="notice", title="Rerouted", description="To m")
    assert isinstance(said, Status) and said.text == "Rerouted: To m"


def test_the_output_of_a_terminal_comes_in_pieces() -> None:
    """As codex-acp 2.6.0 sends it."""
    talk = Talk().begun()
    talk.update(sessionUpdate="tool_call", toolCallId="1", title="t", status="in_progress")
    for piece in ("one\n", "two\n"):
        printed = {"terminal_output_delta": {"data": piece, "terminal_id": "1"}}
        assert talk.update(sessionUpdate="tool_call_update", toolCallId="1", _meta=printed) == []
    (result,) = talk.update(
        sessionUpdate="tool_call_update", toolCallId="1", status="completed", rawOutput=None
    )
    assert isinstance(result, ToolResult) and result.output == "one\ntwo\n"


def test_the_kept_output_of_a_terminal_has_a_limit() -> None:
    talk = Talk().begun()
    talk.update(sessionUpdate="tool_call", toolCallId="1", title="t", status="in_progress")
    printed = {"terminal_output_delta": {"data": "x" * DATA_BYTES}}
    for _ in range(5):
        talk.update(sessionUpdate="tool_call_update", toolCallId="1", _meta=printed)
    (result,) = talk.update(sessionUpdate="tool_call_update", toolCallId="1", status="completed")
    assert isinstance(result, ToolResult) and len(result.output) <= 2 * DATA_BYTES


@each(("options", "chosen"), [(OPTIONS, "x2"), (OPTIONS[::2], "x1"), (OPTIONS[2:], None)])
def test_with_agent_force_each_request_is_allowed_once(
    options: Sequence[Json], chosen: str | None
) -> None:
    talk = Talk(force=True).begun()
    said = talk.permission(options=options)
    asked = [event for event in said if isinstance(event, Question)]
    lines = talk.written()
    assert bool(asked) is (chosen is None)
    assert [line["result"]["outcome"]["optionId"] for line in lines] == ([chosen] if chosen else [])


@each("force", [False, True])
def test_between_turns_no_question_is_possible(force: bool) -> None:
    """A request that no client has seen is denied, too."""
    talk = Talk(force=force).begun()
    talk.end(stopReason="end_turn")
    assert not any(isinstance(event, Question) for event in talk.permission())
    assert talk.written()[0]["result"] == {"outcome": {"outcome": "cancelled"}}


def test_a_question_that_the_agent_takes_back_is_withdrawn() -> None:
    talk = Talk().begun()
    question = talk.question("r-1")
    assert talk.hear(method="$/cancel_request", params={"requestId": "other"}) == []
    said = talk.hear(method="$/cancel_request", params={"requestId": "r-1"})
    assert said == [QuestionWithdrawn(question.id)]
    assert talk.written()[0]["error"]["code"] == -32800
    talk.adapter.answer(question, Answer(question.id, "yes", question.options[:1]))
    assert talk.written() == []


# --- cancelling ----------------------------------------------------------------------------------


def test_a_cancel_answers_open_questions_and_the_agent_ends_the_turn() -> None:
    talk = Talk().begun()
    question = talk.question(7)
    assert talk.adapter.interrupt()
    assert talk.written() == [
        {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s-1"}},
        {"jsonrpc": "2.0", "id": 7, "result": {"outcome": {"outcome": "cancelled"}}},
    ]
    talk.adapter.answer(question, Answer(question.id, "yes", question.options[:1]))
    assert talk.written() == []
    said = talk.permission(8, toolCallId="t2")  # it had asked before it heard of the cancel
    assert not any(isinstance(event, Question) for event in said)
    assert talk.written()[0]["result"] == {"outcome": {"outcome": "cancelled"}}
    (failed,) = talk.end(stopReason="cancelled")
    assert isinstance(failed, Failed)
    assert failed.reason == "interrupted"


def test_a_prompt_that_is_cancelled_in_the_handshake_is_never_sent() -> None:
    talk = Talk()
    talk.prompt()
    assert not talk.adapter.interrupt()
    talk.initialized()
    assert talk.reply("session/new", {"sessionId": "s-1"}) == []
    assert talk.written() == []


def test_the_answer_to_a_turn_that_is_over_ends_no_other_one() -> None:
    talk = Talk().begun()
    talk.end(stopReason="end_turn")
    talk.prompt()
    assert talk.end(stopReason="end_turn") == []


# --- the end of a turn ---------------------------------------------------------------------------


@each(
    ("reason", "word"),
    [
        ("refusal", "refusal"),
        ("max_tokens", "max-tokens"),
        ("max_turn_requests", "max-turn-requests"),
        ("cancelled", "cancelled"),
        ("something_new", "stopped"),
        (5, "stopped"),
    ],
)
def test_a_turn_that_did_not_end_well_has_failed(reason: Any, word: str) -> None:
    (failed,) = Talk().begun().end(stopReason=reason)
    assert isinstance(failed, Failed)
    assert failed.reason == word


@each("result", [{"stopReason": "end_turn"}, {}, None, 5])
def test_a_turn_that_ended_is_done(result: Any) -> None:
    talk = Talk().begun()
    assert talk.hear(id=3, result=result)[-1] == Done(
        summary="x", details={"stopReason": "end_turn"}
    )


def test_a_cancel_that_follows_a_no_is_the_end_that_was_wanted() -> None:
    """codex-acp has no other deny option than `abort`."""
    talk = Talk().begun()
    talk.answer(talk.question(), "no")
    assert isinstance(talk.end(stopReason="cancelled")[-1], Done)


def test_an_answer_of_gemini_that_is_empty_or_was_not_counted_is_a_failure() -> None:
    nothing = {"quota": {"token_count": {"input_tokens": 0, "output_tokens": 0}}}
    for words, meta in (("", {}), ("broken off", nothing)):
        talk = Talk("gemini").running()
        talk.asked("session/prompt")
        talk.text(words)
        failed = talk.end(stopReason="end_turn", _meta=meta)[-1]
        assert isinstance(failed, Failed)
        assert failed.reason == "model-error"


def test_an_empty_answer_of_others_is_an_answer() -> None:
    talk = Talk("opencode").running()
    talk.asked("session/prompt")
    assert isinstance(talk.end(stopReason="end_turn")[-1], Done)


def test_an_error_of_a_turn_says_all_that_is_known() -> None:
    error = {"code": -32603, "message": "Internal error", "data": {"details": "500 broken"}}
    (failed,) = Talk().begun().hear(id=3, error=error)
    assert failed == Failed("Internal error: 500 broken", "model-error", {"code": -32603})


def test_an_open_question_ends_with_the_turn() -> None:
    talk = Talk().begun()
    talk.question(4)
    talk.hear(id=3, error={"code": 1, "message": "x"})
    assert talk.written()[0] == {
        "jsonrpc": "2.0",
        "id": 4,
        "result": {"outcome": {"outcome": "cancelled"}},
    }


# --- usage ---------------------------------------------------------------------------------------


def test_usage_is_that_of_the_turn() -> None:
    talk = Talk().begun()
    cost = {"amount": 0.5, "currency": "USD"}
    assert talk.update(sessionUpdate="usage_update", used=10, size=100, cost=cost) == []
    usage = {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7, "cachedReadTokens": 1}
    used, _ = talk.end(stopReason="end_turn", usage=usage)
    extra = {"contextTokens": 10, "contextSize": 100, "cachedReadTokens": 1}
    assert used == Usage(3, 4, 7, 0.5, extra)
    talk.prompt()
    talk.asked("session/prompt")
    talk.update(sessionUpdate="usage_update", used=1, size=2, cost={**cost, "amount": 0.75})
    _, used, _ = talk.hear(id=4, result={"stopReason": "end_turn"})
    assert isinstance(used, Usage)
    assert used.cost_usd == 0.25


def test_the_usage_of_earlier_turns_is_not_counted() -> None:
    talk = Talk(resume=True)
    talk.prompt()
    talk.initialized(LOADS)
    talk.reply("session/load", {})
    talk.nothing()
    talk.asked("session/prompt")
    talk.update(sessionUpdate="usage_update", cost={"amount": 5, "currency": "USD"})
    assert not any(isinstance(event, Usage) for event in talk.end(stopReason="end_turn"))


def test_copilot_counts_all_turns_and_its_error_counts_nothing() -> None:
    talk = Talk("copilot").begun()
    usage = {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7}
    assert talk.end(stopReason="end_turn", usage=usage)[0] == Usage(3, 4, 7)
    for words, total, used, end in (
        ("fine", {"inputTokens": 5, "outputTokens": 8, "totalTokens": 13}, Usage(2, 4, 6), Done),
        (
            "Error: Authentication failed",
            {"inputTokens": 5, "outputTokens": 8},
            Usage(0, 0),
            Failed,
        ),
    ):
        talk.prompt()
        asked = talk.asked("session/prompt")
        talk.text(words)
        *_, counted, last = talk.hear(
            id=asked["id"], result={"stopReason": "end_turn", "usage": total}
        )
        assert counted == used
        assert isinstance(last, end)


def test_an_error_of_hermes_is_a_text_that_counts_nothing() -> None:
    talk = Talk("hermes").begun()
    talk.text("HTTP 401: invalid key")
    (end,) = talk.end(stopReason="end_turn")
    assert isinstance(end, Failed)
    assert end.reason == "auth"
    talk = Talk("hermes").begun()
    talk.text("HTTP 401 means that a key is missing")
    *_, end = talk.end(stopReason="end_turn", usage={"inputTokens": 1, "outputTokens": 2})
    assert isinstance(end, Done)


def test_a_process_that_remembers_a_rejected_key_ends() -> None:
    talk = Talk("vibe").begun()
    assert not talk.adapter.spent
    talk.hear(id=3, error={"code": -32000, "message": "Invalid API key"})
    assert talk.adapter.spent


def test_pi_asks_for_nothing_and_so_requires_the_operators_word() -> None:
    pi = registry.load("pi")
    assert "AGENT_FORCE" in (pi.unsupported_reason(AgentConfig("/pi")) or "")
    assert pi.unsupported_reason(AgentConfig("/pi", force=True)) is None


def test_gemini_and_qwen_have_their_own_places_for_usage() -> None:
    talk = Talk().begun()
    quota = {"quota": {"token_count": {"input_tokens": 5, "output_tokens": 6}}}
    assert talk.end(stopReason="end_turn", _meta=quota)[0] == Usage(5, 6)
    used = {"usage": {"inputTokens": 7, "outputTokens": 8, "modelUsage": {}}}  # grok
    assert Talk().begun().end(stopReason="end_turn", _meta=used)[0] == Usage(7, 8)
    talk = Talk().begun()
    usage = {"usage": {"inputTokens": 1, "outputTokens": 2, "thoughtTokens": 3}}
    assert talk.text("", _meta=usage) == []
    assert talk.text("", _meta=usage) == []
    assert talk.end(stopReason="end_turn")[0] == Usage(2, 4, extra={"thoughtTokens": 6})


# --- forms ---------------------------------------------------------------------------------------

COLOURS = [{"const": "Red", "title": "Red — r"}, {"const": "Blue", "title": "Blue — b"}]


def elicit(talk: Talk, **params: Any) -> list[Any]:
    return talk.hear(id=5, method="elicitation/create", params={"sessionId": "s-1", **params})


def form(talk: Talk, **properties: Any) -> list[Any]:
    schema = {"type": "object", "properties": properties}
    return elicit(talk, mode="form", message="Which colour?", requestedSchema=schema)


@each(
    ("said", "content"),
    [
        ("Red", {"question_0": "Red"}),
        ("Blue — b", {"question_0": "Blue"}),
        ("something else", {"question_0_custom": "something else"}),
    ],
)
def test_claude_s_question_is_a_choice_with_room_for_own_words(said: str, content: Json) -> None:
    """As claude-agent-acp 0.49.0 asks it."""
    talk = Talk().begun()
    (question,) = form(
        talk,
        question_0={"type": "string", "title": "Colour", "oneOf": COLOURS},
        question_0_custom={"type": "string", "title": "Other"},
    )
    assert (question.kind, question.text, question.free_text) == ("choice", "Which colour?", True)
    assert question.options[:2] == (Option("Red", "Red — r"), Option("Blue", "Blue — b"))
    assert [option.id for option in question.options[2:]] == ["(empty)", "(decline)"]
    talk.answer(question, said)
    assert talk.written()[0]["result"] == {"action": "accept", "content": content}


def test_a_member_is_asked_for_that_is_only_called_as_own_words_are() -> None:
    talk = Talk().begun()
    asked = form(talk, size={"type": "string"}, size_custom={"type": "string"})
    assert [question.text for question in asked] == [
        "Which colour?\nsize",
        "Which colour?\nsize_custom",
    ]
    for question, said in zip(asked, "ab", strict=True):
        talk.answer(question, said)
    content = {"size": "a", "size_custom": "b"}
    assert talk.written()[0]["result"] == {"action": "accept", "content": content}


def test_a_form_is_answered_when_all_of_its_members_are() -> None:
    talk = Talk().begun()
    asked = form(
        talk,
        name={"type": "string", "description": "Your name"},
        age={"type": "integer"},
        size={"type": "number"},
        sure={"type": "boolean", "title": "Sure?"},
        some={"type": "array", "items": {"anyOf": COLOURS}},
        one={"type": "string", "enum": ["a", "b"]},
    )
    assert [question.text for question in asked][:2] == [
        "Which colour?\nYour name",
        "Which colour?\nage\n(The answer is a whole number.)",
    ]
    for question, said in zip(asked, ["Ann", "7", "1.5", "yes", "Red, Blue", "b"], strict=True):
        assert talk.written() == []
        if question.multiple:
            chosen = question.options[:2]
            talk.adapter.answer(question, Answer(question.id, said, chosen))
        else:
            talk.answer(question, said)
    assert talk.written()[0]["result"] == {
        "action": "accept",
        "content": {
            "name": "Ann",
            "age": 7,
            "size": 1.5,
            "sure": True,
            "some": ["Red", "Blue"],
            "one": "b",
        },
    }


def members(schema: Json, talk: Talk | None = None) -> list[Question]:
    asked = elicit(talk or Talk().begun(), mode="form", message="M", requestedSchema=schema)
    assert all(isinstance(one, Question) for one in asked)
    return asked


def test_an_optional_member_may_stay_empty_and_a_default_may_be_kept() -> None:
    talk = Talk().begun()
    properties = {"a": {"type": "string"}, "b": {"type": "integer", "default": 7}, "c": {}}
    asked = members({"properties": properties, "required": ["c"]}, talk)
    names = [[option.name for option in question.options] for question in asked]
    decline = "Decline the whole form"
    assert names == [["Leave it empty", decline], ["Keep the default: 7", decline], [decline]]
    for question, said in zip(asked, ["leave it empty", "(default)", "c!"], strict=True):
        talk.answer(question, said)
    content = {"b": 7, "c": "c!"}
    assert talk.written()[0]["result"] == {"action": "accept", "content": content}


def test_one_refusal_declines_the_whole_form_at_once() -> None:
    talk = Talk().begun()
    first, second, _ = members({"properties": {"a": {}, "b": {"enum": ["no"]}, "c": {}}}, talk)
    talk.answer(first, "x")
    assert talk.written() == []
    talk.answer(second, "Decline the whole form")
    assert talk.written()[0]["result"] == {"action": "decline"}
    assert first.form == second.form != ""


@each(
    ("schema", "wrong", "right", "value"),
    [
        ({"type": "integer"}, "seven", " 7 ", 7),
        ({"type": "integer"}, "7.5", "-7", -7),
        ({"type": "number", "minimum": 1, "maximum": 2}, "2.5", "1.5", 1.5),
        ({"type": "number"}, "nan", "1e3", 1000.0),
        ({"type": ["integer", "null"]}, "x", "1", 1),
        ({"type": "string", "minLength": 3}, "ab", "abc", "abc"),
        ({"type": "string", "maxLength": 3}, "abcd", "abc", "abc"),
        ({"type": "string", "format": "email"}, "ann", "ann@x.test", "ann@x.test"),
        ({"type": "string", "format": "date"}, "today", "2026-01-31", "2026-01-31"),
        ({"type": "string", "format": "uri"}, "x", "https://x.test", "https://x.test"),
        ({"type": "array", "items": {"type": "integer"}}, "1,b", "1, 2", [1, 2]),
    ],
)
def test_own_words_must_be_a_value_of_the_member(
    schema: Json, wrong: str, right: str, value: Any
) -> None:
    talk = Talk().begun()
    (question,) = members({"properties": {"a": schema}, "required": ["a"]}, talk)
    message = Message("a", Role.USER, (TextPart(wrong),))
    assert read_answer(question, message) is None
    assert "none of the possible answers" not in hint(question, message)
    talk.answer(question, right)
    assert talk.written()[0]["result"]["content"] == {"a": value}


@each(
    ("schema", "said", "value"),
    [
        ({"type": "integer", "enum": [1, 2]}, "2", 2),
        ({"oneOf": [{"const": 1.5, "title": "One and a half"}]}, "one and a half", 1.5),
        ({"enum": ["a", "b"], "enumNames": ["First", "Second"]}, "second", "b"),
        ({"type": "boolean"}, "no", False),
        ({"type": "array", "items": {"enum": ["a, b", "c", "d"]}}, "a, b, d", ["a, b", "d"]),
        ({"type": "array", "items": {"enum": [1, 2, 3]}}, "1;3", [1, 3]),
    ],
)
def test_a_choice_keeps_the_type_of_its_value(schema: Json, said: str, value: Any) -> None:
    talk = Talk().begun()
    (question,) = members({"properties": {"a": schema}, "required": ["a"]}, talk)
    talk.answer(question, said)
    assert talk.written()[0]["result"]["content"] == {"a": value}


def test_a_type_that_may_be_null_is_no_choice() -> None:
    kinds = [{"type": "string"}, {"type": "null"}]
    (question,) = members({"properties": {"a": {"anyOf": kinds}}, "required": ["a"]})
    assert (question.kind, len(question.options)) == ("text", 1)


@each(("word", "action"), [("yes", "accept"), ("no", "decline")])
def test_a_form_without_members_asks_for_a_permission(word: str, action: str) -> None:
    talk = Talk().begun()
    (question,) = members({"type": "object", "properties": {}}, talk)
    assert (question.kind, question.text) == ("permission", "M")
    talk.answer(question, word)
    assert talk.written()[0]["result"]["action"] == action


def test_an_address_is_to_be_visited() -> None:
    for said, action in (("Done", "accept"), ("no", "decline")):
        talk = Talk().begun()
        (question,) = elicit(talk, mode="url", url="https://x.test/y", message="Log in")
        assert (question.kind, question.text) == ("auth", "Log in\nhttps://x.test/y")
        talk.answer(question, said)
        assert talk.written()[0]["result"] == {"action": action}


def test_a_form_is_cancelled_with_the_turn() -> None:
    talk = Talk().begun()
    form(talk, a={"type": "string"})
    assert talk.adapter.interrupt()
    assert talk.written()[1]["result"] == {"action": "cancel"}


# --- Cursor's own --------------------------------------------------------------------------------


def test_cursor_s_questions_are_answered_in_its_own_words() -> None:
    talk = Talk("cursor").begun()
    options = [{"id": "o1", "label": "Red"}, {"id": "o2", "label": "Blue"}]
    one = {"id": "q1", "prompt": "Which?", "options": options, "allowMultiple": False}
    params = {"toolCallId": "t", "title": "Pick", "questions": [one, {**one, "id": "q2"}]}
    first, second = talk.hear(id=1, method="cursor/ask_question", params=params)
    assert isinstance(first, Question) and isinstance(second, Question)
    talk.answer(first, "red")
    talk.answer(second, "o2")
    answers = [
        {"questionId": "q1", "selectedOptionIds": ["o1"]},
        {"questionId": "q2", "selectedOptionIds": ["o2"]},
    ]
    assert talk.written()[0]["result"] == {"outcome": {"outcome": "answered", "answers": answers}}


@each(("word", "outcome"), [("yes", "accepted"), ("no", "rejected")])
def test_cursor_s_plan_is_approved_or_sent_back(word: str, outcome: str) -> None:
    talk = Talk("cursor").begun()
    (question,) = talk.hear(id=2, method="cursor/create_plan", params={"plan": "# Plan"})
    assert isinstance(question, Question)
    assert (question.kind, "# Plan" in question.text) == ("plan", True)
    talk.answer(question, word)
    assert talk.written()[0]["result"] == {"outcome": {"outcome": outcome}}


def test_cursor_s_other_requests_do_not_block_it() -> None:
    talk = Talk("cursor").begun()
    todos = {"todos": [{"content": "a", "status": "completed"}]}
    plan = Plan((PlanEntry("a", "completed"),))
    assert talk.hear(id=1, method="cursor/update_todos", params=todos) == [plan]
    assert talk.hear(method="cursor/update_todos", params=todos) == [plan]
    assert talk.hear(id=2, method="cursor/task", params={}) == []
    assert talk.hear(id=3, method="cursor/something_new", params={}) == []
    assert [(line["id"], "result" in line) for line in talk.written()] == [
        (1, True),
        (2, True),
        (3, False),
    ]


@each("method", ["fs/read_text_file", "terminal/create", "_x/y"])
def test_an_option_that_was_not_offered_is_refused(method: str) -> None:
    talk = Talk().begun()
    assert talk.hear(id=9, method=method, params={"sessionId": "s-1", "path": "/etc/passwd"}) == []
    assert talk.written()[0]["error"]["code"] == -32601


# --- told again ----------------------------------------------------------------------------------


def test_the_same_inputs_of_an_adapter_give_the_same_bytes() -> None:
    def run() -> tuple[list[Json], list[AgentEvent]]:
        talk = Talk().begun()
        said = [*talk.permission(), *talk.permission(1, toolCallId="t2")]
        question = next(event for event in said if isinstance(event, Question))
        talk.answer(question, "yes")
        said += talk.end(stopReason="end_turn")
        return talk.written(), said

    assert run() == run()


@each("capabilities", [None, {}, LOADS, RESUMES, {"sessionCapabilities": 5}])
def test_every_member_of_the_handshake_may_be_missing_or_of_another_kind(capabilities: Any) -> None:
    whole: Json = {
        "agentCapabilities": capabilities,
        "authMethods": [{"id": "x", "name": "n"}],
        "agentInfo": {"version": "1"},
    }
    for name in whole:
        for other in (None, 5, [1], "x", {"a": 1}):
            for resume in (False, True):
                talk = Talk(resume=resume)
                talk.prompt()
                said = talk.reply("initialize", {"protocolVersion": 1, **whole, name: other})
                assert not any(isinstance(event, ENDINGS) for event in said)
                assert len(talk.written()) == 1
