"""The Codex adapter, line by line and in both directions (`codex app-server`)."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

from bridge.adapter import AgentConfig, ExitStatus, Prompt, SessionOptions, SessionStart, unasked
from bridge.server import registry
from bridge.task.answers import read_answer
from bridge.task.events import (
    SESSION_LOST,
    AgentEvent,
    Answer,
    ArtifactChunk,
    Done,
    Failed,
    FileChange,
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

Json = dict[str, Any]
Codex = registry.load("codex")
NO_OPTIONS = SessionOptions()
INTERRUPTED = Failed("The turn was interrupted.", "interrupted")
COMMAND: Json = {"type": "commandExecution", "id": "c1", "command": "ls", "cwd": "/workspace"}
CHANGES = [
    {"path": "/workspace/new", "kind": {"type": "add"}, "diff": "born\n"},
    {"path": "/workspace/gone", "kind": {"type": "delete"}, "diff": "dead\n"},
    {
        "path": "/workspace/a",
        "kind": {"type": "update", "move_path": "/workspace/b"},
        "diff": "@@ -1 +1 @@\n-x\n+y\n\n\nMoved to: /workspace/b",
    },
]
CHANGE: Json = {"type": "fileChange", "id": "f1", "changes": CHANGES}


class Talk:
    """A conversation with the adapter; the test plays the agent."""

    def __init__(
        self, *, resume: bool = False, options: SessionOptions = NO_OPTIONS, **config: Any
    ) -> None:
        start = SessionStart("/workspace", "th", resume, options)
        self.adapter = Codex(AgentConfig("/opt/codex", **config), start)
        self.owed: list[Json] = []

    def prompt(self, *parts: Part) -> None:
        self.adapter.prompt(as_prompt(*parts))

    def steer(self, text: str) -> None:
        self.adapter.steer(as_prompt(TextPart(text)))

    def hear(self, **message: Any) -> list[AgentEvent]:
        return list(self.adapter.receive_line(json.dumps(message).encode()))

    def told(
        self, method: str, thread: str = "th", of: str = "tu", **params: Any
    ) -> list[AgentEvent]:
        """A notification, `of` a turn."""
        return self.hear(method=method, params={"threadId": thread, "turnId": of, **params})

    def written(self) -> list[Json]:
        """All messages to Codex that the test has not read yet."""
        self.owed += map(json.loads, self.adapter.data_to_send().splitlines())
        owed, self.owed = self.owed, []
        return owed

    def asked(self, method: str) -> Json:
        """The next message to Codex, which must be this request."""
        first, *self.owed = self.written()
        assert first.get("method") == method, first
        return first

    def reply(self, method: str, result: Any = None, **members: Any) -> list[AgentEvent]:
        """Answer the request that comes next, which must be this one."""
        return self.hear(id=self.asked(method)["id"], **(members or {"result": result or {}}))

    def ready(self) -> Talk:
        """Up to the prompt, which Codex has been sent."""
        self.prompt(TextPart("hello"))
        assert self.reply("initialize", {"userAgent": "x"}) == []
        assert self.written()[0]["method"] == "initialized"
        return self

    def opened(self, method: str = "thread/start", **members: Any) -> list[AgentEvent]:
        thread = {"id": "th", "cliVersion": "9.8"}
        return self.reply(method, {"thread": thread, "model": "m-7", **members})

    def running(self) -> Talk:
        """A turn that has begun."""
        self.prompt(TextPart("hello"))
        self.reply("initialize")
        self.asked("initialized")
        assert self.opened() == []
        return self.begun()

    def begun(self, turn: str = "tu") -> Talk:
        (started,) = self.reply("turn/start", {"turn": {"id": turn}})
        assert isinstance(started, Started)
        return self.started(turn)

    def started(self, turn: str = "tu") -> Talk:
        assert self.told("turn/started", turn={"id": turn}) == []
        return self

    def text(self, text: str, item: str = "m1", **ids: Any) -> list[AgentEvent]:
        return self.told("item/agentMessage/delta", itemId=item, delta=text, **ids)

    def whole(self, text: str, item: str = "m1", **ids: Any) -> list[AgentEvent]:
        return self.completed({"type": "agentMessage", "id": item, "text": text}, **ids)

    def item(self, item: Json, **ids: Any) -> list[AgentEvent]:
        return self.told("item/started", item=item, **ids)

    def completed(self, item: Json, **ids: Any) -> list[AgentEvent]:
        return self.told("item/completed", item=item, **ids)

    def end(self, status: str = "completed", turn: str = "tu", **members: Any) -> list[AgentEvent]:
        done = {"id": turn, "status": status, "error": None, **members}
        return self.told("turn/completed", turn=done)

    def request(self, method: str, number: Any = 0, **params: Any) -> list[AgentEvent]:
        params = {"threadId": "th", "turnId": "tu", "itemId": "c1", **params}
        return self.hear(id=number, method=method, params=params)

    def question(self, method: str, number: Any = 0, **params: Any) -> Question:
        (question,) = self.request(method, number, **params)
        assert isinstance(question, Question)
        return question

    def command(self, number: Any = 0, **params: Any) -> Question:
        params = {"command": "rm x", "cwd": "/workspace", "reason": None, **params}
        return self.question("item/commandExecution/requestApproval", number, **params)

    def answer(self, question: Question, text: str) -> None:
        """The client's words, read as those of a client are."""
        answer = read_answer(question, Message("a", Role.USER, (TextPart(text),)))
        assert answer, text
        self.adapter.answer(question, answer)

    def result(self, number: Any = 0) -> Any:
        """The result in the next message to Codex."""
        first, *self.owed = self.written()
        assert first["id"] == number
        return first["result"]


def as_prompt(*parts: Part) -> Prompt:
    return Prompt("t", "c", Message("m", Role.USER, parts or (TextPart("hello"),)))


# --- the handshake -------------------------------------------------------------------------------


def test_the_arguments_of_the_operator_come_before_the_command() -> None:
    launch = Talk(args=("-c", "x=1"), project_config=True).adapter.launch()
    goals = ("--config=features.goals=false",)
    assert launch.argv == ("/opt/codex", "-c", "x=1", *goals, "app-server")


def test_the_prompt_waits_until_the_handshake_is_done() -> None:
    talk = Talk()
    talk.prompt(TextPart("hello"))
    first = talk.asked("initialize")
    assert first["params"]["clientInfo"]["name"] == "coding-agent-bridge"
    assert first["params"]["capabilities"] == {"experimentalApi": True}
    assert "jsonrpc" not in first
    assert talk.written() == []
    talk.hear(id=1, result={})
    assert talk.asked("initialized") == {"method": "initialized", "params": {}}
    assert talk.opened() == []
    params = talk.asked("turn/start")["params"]
    assert params == {"threadId": "th", "input": [{"type": "text", "text": "hello"}]}
    assert talk.hear(id=3, result={"turn": {"id": "tu"}}) == [Started("th", "m-7", "9.8", None)]
    assert talk.written() == []


def test_a_second_turn_needs_no_handshake() -> None:
    talk = Talk().running()
    assert isinstance(talk.end()[-1], Done)
    talk.prompt(TextPart("again"))
    assert talk.asked("turn/start")["params"]["input"][0]["text"] == "again"


@each(
    ("mode", "settings", "policy", "sandbox"),
    [
        (None, {}, "untrusted", "workspace-write"),
        (None, {"confined": True}, "untrusted", "danger-full-access"),
        (None, {"force": True}, "never", "danger-full-access"),
        ("read-only", {}, "on-request", "read-only"),
        ("read-only", {"confined": True}, "on-request", "read-only"),
        ("read-only", {"force": True}, "never", "read-only"),
        ("workspace-write", {}, "on-request", "workspace-write"),
        ("workspace-write", {"force": True}, "never", "workspace-write"),
        ("plan", {}, "on-request", "read-only"),
    ],
)
def test_a_mode_is_a_policy_and_a_sandbox(
    mode: str | None, settings: dict[str, bool], policy: str, sandbox: str
) -> None:
    talk = Talk(options=SessionOptions(mode=mode), **settings)
    talk.prompt()
    talk.reply("initialize")
    talk.asked("initialized")
    params = talk.asked("thread/start")["params"]
    assert params == {"cwd": "/workspace", "approvalPolicy": policy, "sandbox": sandbox}


def test_no_mode_of_a_client_switches_anything_off() -> None:
    assert Codex.modes == ("read-only", "workspace-write", "plan")


@each(("chosen", "model"), [(None, "operator's"), ("client's", "client's")])
def test_the_model_of_the_client_goes_before_that_of_the_operator(
    chosen: str | None, model: str
) -> None:
    talk = Talk(options=SessionOptions(model=chosen), model="operator's")
    talk.prompt()
    talk.reply("initialize")
    talk.asked("initialized")
    assert talk.asked("thread/start")["params"]["model"] == model


def test_plan_mode_is_said_with_each_turn() -> None:
    talk = Talk(options=SessionOptions(mode="plan"))
    talk.prompt()
    talk.reply("initialize")
    talk.asked("initialized")
    talk.opened(reasoningEffort="high")
    mode = talk.asked("turn/start")["params"]["collaborationMode"]
    assert mode == {"mode": "plan", "settings": {"model": "m-7", "reasoning_effort": "high"}}
    assert talk.hear(id=3, result={"turn": {"id": "tu"}}) == [Started("th", "m-7", "9.8", "plan")]


def test_a_conversation_is_resumed_without_its_history() -> None:
    talk = Talk(resume=True)
    talk.prompt()
    talk.reply("initialize")
    talk.asked("initialized")
    params = talk.asked("thread/resume")["params"]
    assert (params["threadId"], params["excludeTurns"]) == ("th", True)
    assert params["approvalPolicy"] == "untrusted"


@each(
    "message",
    [
        "no rollout found for thread id x",
        "invalid session id: invalid character",
        "failed to read the rollout: unexpected end of file",
    ],
)
def test_a_conversation_that_is_gone_is_lost(message: str) -> None:
    talk = Talk(resume=True)
    talk.prompt()
    talk.reply("initialize")
    talk.asked("initialized")
    (failed,) = talk.reply("thread/resume", error={"code": -32600, "message": message})
    assert isinstance(failed, Failed)
    assert failed.reason == SESSION_LOST


def test_a_handshake_that_fails_is_begun_again_where_it_ended() -> None:
    talk = Talk()
    talk.prompt()
    talk.reply("initialize")
    talk.asked("initialized")
    (failed,) = talk.reply("thread/start", error={"code": -1, "message": "no such model"})
    assert isinstance(failed, Failed)
    assert (failed.reason, "no such model" in failed.text) == ("agent-error", True)
    talk.prompt(TextPart("again"))
    assert talk.opened() == []
    assert talk.asked("turn/start")["params"]["input"][0]["text"] == "again"


@each("result", [{}, {"thread": None}, {"thread": {"id": 7}}])
def test_a_thread_without_a_name_is_none(result: Json) -> None:
    talk = Talk()
    talk.prompt()
    talk.reply("initialize")
    talk.asked("initialized")
    (failed,) = talk.reply("thread/start", result)
    assert isinstance(failed, Failed)


def test_a_handshake_can_be_made_ahead() -> None:
    talk = Talk()
    assert talk.adapter.greet()
    talk.reply("initialize")
    talk.asked("initialized")
    assert talk.opened() == [Started("th", "m-7", "9.8", None)]
    assert talk.written() == []
    talk.prompt()
    talk.asked("turn/start")


def test_a_handshake_that_was_made_ahead_says_that_it_failed() -> None:
    talk = Talk()
    talk.adapter.greet()
    talk.adapter.greet()
    (failed,) = talk.reply("initialize", error={"code": 1, "message": "too old"})
    assert isinstance(failed, Failed)
    assert "too old" in failed.text
    assert talk.written() == []


def test_an_exit_in_the_handshake_says_the_last_words() -> None:
    talk = Talk()
    talk.prompt()
    (failed,) = talk.adapter.receive_exit(ExitStatus(1, "Error loading config.toml"))
    assert isinstance(failed, Failed)
    assert "Error loading config.toml" in failed.text


# --- input ---------------------------------------------------------------------------------------


def test_images_are_given_as_they_are_and_everything_else_as_text() -> None:
    talk = Talk()
    talk.prompt(
        TextPart("look"),
        RawPart("aGk=", "image/png", "a.png"),
        RawPart(b64encode(b"text").decode(), "text/plain", "f"),
        RawPart("aGk=", "image/x-odd"),
        DataPart({"a": 1}),
        UrlPart("file:///workspace/a%20b.bin"),
    )
    talk.reply("initialize")
    talk.asked("initialized")
    talk.opened()
    given = talk.asked("turn/start")["params"]["input"]
    assert given[1] == {"type": "image", "url": "data:image/png;base64,aGk="}
    assert {one["type"] for one in given if one != given[1]} == {"text"}
    texts = [one.get("text") for one in given]
    assert texts[2] == '<file name="f">\ntext\n</file>'
    assert texts[4:] == ['{"a":1}', "Attached file: /workspace/a b.bin"]


# --- text ----------------------------------------------------------------------------------------


def test_each_message_is_a_block_of_its_own() -> None:
    talk = Talk().running()
    assert talk.text("one ") == [Text("one ", new_block=True)]
    assert talk.text("two") == [Text("two")]
    assert talk.whole("one two") == []
    assert talk.text("three", "m2") == [Text("three", new_block=True)]
    assert talk.whole("three", "m2") == []
    assert talk.end() == [Done(summary="three")]


def test_text_that_was_not_streamed_comes_with_the_complete_item() -> None:
    talk = Talk().running()
    talk.text("one")
    assert talk.whole("one two") == [Text(" two")]
    assert talk.whole("unheard", "m2") == [Text("unheard", new_block=True)]
    assert talk.whole("", "m3") == []
    assert talk.end() == [Done(summary="unheard")]


def test_the_complete_item_replaces_its_deltas() -> None:
    talk = Talk().running()
    talk.text("rong")
    assert talk.whole("right") == [Retracted(4), Text("right", new_block=True)]


def test_a_plan_in_the_midst_of_a_message_is_part_of_the_answer() -> None:
    talk = Talk().running()
    talk.text("Before.")
    delta = talk.told("item/plan/delta", itemId="p1", delta="# Plan\n")
    assert delta == [Text("# Plan\n", new_block=True)]
    assert talk.text("After.") == [Text("After.", new_block=True)]
    assert talk.completed({"type": "plan", "id": "p1", "text": "# Plan\n"}) == []
    assert talk.whole("Before.After.") == []


def test_a_retry_retracts_incomplete_items() -> None:
    talk = Talk().running()
    talk.whole("kept")
    talk.text("ha", "m2")
    talk.text("lf", "m2")
    problem = {"message": "Reconnecting", "codexErrorInfo": None, "additionalDetails": "closed"}
    retracted, status = talk.told("error", error=problem, willRetry=True)
    assert retracted == Retracted(4)
    assert isinstance(status, Status)
    assert status.text == "The model did not answer: Reconnecting (closed)"
    assert talk.text("half and whole", "m3") == [Text("half and whole", new_block=True)]


def test_retracted_text_can_be_repeated() -> None:
    talk = Talk().running()
    talk.text("half")
    talk.told("error", error={"message": "x"}, willRetry=True)
    (status,) = talk.told("error", error={"message": "x"}, willRetry=True)
    assert isinstance(status, Status)
    assert talk.whole("half") == [Text("half", new_block=True)]


def test_a_steer_message_retracts_the_text_that_it_interrupted() -> None:
    talk = Talk().running()
    talk.text("half")
    assert talk.item({"type": "userMessage", "id": "u2"}) == [Retracted(4)]
    assert talk.item({"type": "userMessage", "id": "u3"}) == []


def test_a_final_error_is_left_to_the_end_of_the_turn() -> None:
    talk = Talk().running()
    talk.text("half")
    assert talk.told("error", error={"message": "x"}, willRetry=False) == []


def test_reasoning_appears_once() -> None:
    talk = Talk().running()
    delta = "item/reasoning/summaryTextDelta"
    assert talk.told(delta, itemId="r", delta="a", summaryIndex=0) == [Thought("a")]
    assert talk.told(delta, itemId="r", delta="b", summaryIndex=0) == [Thought("b")]
    assert talk.told(delta, itemId="r", delta="c", summaryIndex=1) == [Thought("\n\nc")]
    assert talk.completed({"type": "reasoning", "id": "r", "summary": ["ab", "c"]}) == []
    whole = {"type": "reasoning", "id": "r2", "summary": ["d", "e"], "content": []}
    assert talk.completed(whole) == [Thought("d\n\ne")]
    assert talk.told("item/reasoning/textDelta", itemId="r3", delta="f") == [Thought("f")]


@each("method", ["thread/started", "account/rateLimits/updated", "new/thing"])
def test_notifications_for_other_clients_are_ignored(method: str) -> None:
    assert Talk().running().told(method, anything=1) == []


def test_output_of_another_thread_or_turn_is_ignored() -> None:
    talk = Talk().running()
    assert talk.text("x", thread="other") == []
    assert talk.text("x", of="before") == []
    assert talk.item(COMMAND, thread="other") == []
    assert talk.completed(COMMAND, thread="other") == []
    assert talk.completed({**COMMAND, "id": "c0"}, of="before") == []
    assert talk.end(turn="before") == []
    assert talk.told("turn/completed", thread="other", turn={"id": "tu"}) == []
    assert talk.end() == [Done(summary="")]


def test_between_turns_nothing_is_said() -> None:
    talk = Talk().running()
    talk.end()
    delta, started = "item/agentMessage/delta", "item/started"
    assert talk.text("x") == [unasked("output", delta)]
    assert talk.item(COMMAND) == [unasked("output", started)]
    assert talk.told("error", error={}, willRetry=True) == [unasked("output", "error")]
    assert talk.completed(COMMAND) == [], "it may belong to the last turn"


def test_a_turn_that_codex_begins_by_itself_is_reported_and_interrupted() -> None:
    talk = Talk().running()
    talk.end()
    talk.written()
    (began,) = talk.told("turn/started", turn={"id": "own"})
    assert began == unasked("turn", "turn/started")
    assert talk.adapter.stop_unasked()
    (sent,) = talk.written()
    assert sent["method"] == "turn/interrupt"
    assert sent["params"] == {"threadId": "th", "turnId": "own"}


@each(
    ("method", "params", "text"),
    [
        ("warning", {"message": "Beware"}, "Beware"),
        ("guardianWarning", {"message": "Beware"}, "Beware"),
        ("configWarning", {"summary": "Odd", "details": "line 3"}, "Odd (line 3)"),
        ("configWarning", {"summary": "Odd", "details": None}, "Odd"),
    ],
)
def test_warnings_are_statuses(method: str, params: Json, text: str) -> None:
    (status,) = Talk().running().told(method, **params)
    assert isinstance(status, Status)
    assert status.text == text


def test_a_line_that_is_not_json_is_shown_unchanged() -> None:
    (status,) = Talk().running().adapter.receive_line(b"thread panicked")
    assert isinstance(status, Status)
    assert status.text == "thread panicked"


# --- tools ---------------------------------------------------------------------------------------


def test_a_command_is_a_tool_call() -> None:
    talk = Talk().running()
    call = ToolCall("c1", "exec_command", {"command": "ls", "cwd": "/workspace"})
    assert talk.item(COMMAND) == [call]
    assert talk.told("item/commandExecution/outputDelta", itemId="c1", delta="a") == []
    done = {**COMMAND, "status": "completed", "aggregatedOutput": "a\n", "exitCode": 0}
    assert talk.completed(done) == [ToolResult("c1", "a\n", name="exec_command")]


@each(
    ("members", "output"),
    [
        ({"status": "failed", "aggregatedOutput": "a\n", "exitCode": 3}, "a\n(exit code 3)"),
        ({"status": "declined", "aggregatedOutput": None, "exitCode": None}, ""),
    ],
)
def test_a_command_that_failed_or_was_declined(members: Json, output: str) -> None:
    talk = Talk().running()
    talk.item(COMMAND)
    (result,) = talk.completed({**COMMAND, **members})
    assert result == ToolResult("c1", output, is_error=True, name="exec_command")


def test_a_tool_that_was_not_announced_is_announced_with_its_result() -> None:
    call, result = Talk().running().completed({**COMMAND, "status": "completed"})
    assert isinstance(call, ToolCall)
    assert isinstance(result, ToolResult)


def test_changes_of_files_have_complete_diffs() -> None:
    talk = Talk().running()
    assert talk.item(CHANGE) == [ToolCall("f1", "apply_patch", {"changes": CHANGES})]
    (result,) = talk.completed({**CHANGE, "status": "completed"})
    assert isinstance(result, ToolResult)
    assert result.changes == (
        FileChange(
            "/workspace/new",
            "create",
            "--- /dev/null\n+++ /workspace/new\n@@ -0,0 +1,1 @@\n+born\n",
        ),
        FileChange(
            "/workspace/gone",
            "delete",
            "--- /workspace/gone\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-dead\n",
        ),
        FileChange(
            "/workspace/a", "update", "--- /workspace/a\n+++ /workspace/b\n@@ -1 +1 @@\n-x\n+y\n"
        ),
    )
    done = talk.end()[-1]
    assert isinstance(done, Done)
    assert done.details == {"changedFiles": ["/workspace/new", "/workspace/gone", "/workspace/a"]}


def test_changes_that_were_declined_are_none() -> None:
    talk = Talk().running()
    talk.item(CHANGE)
    (result,) = talk.completed({**CHANGE, "status": "declined"})
    assert result == ToolResult("f1", "", is_error=True, name="apply_patch")


@each(
    ("item", "name", "arguments", "output", "failed"),
    [
        (
            {"type": "mcpToolCall", "server": "s", "tool": "t", "arguments": {"a": 1}}
            | {"status": "completed", "result": {"content": [{"type": "text", "text": "hi"}]}},
            *("s.t", {"a": 1}, "hi", False),
        ),
        (
            {"type": "mcpToolCall", "server": "s", "tool": "t", "arguments": None}
            | {"status": "failed", "error": {"message": "no"}},
            *("s.t", None, "no", True),
        ),
        (
            {"type": "dynamicToolCall", "tool": "t", "arguments": {}, "success": False}
            | {"contentItems": [{"type": "inputText", "text": "a"}, {"type": "inputImage"}]},
            *("t", {}, "a\n[inputImage]", True),
        ),
        (
            {"type": "webSearch", "query": "q", "action": None, "results": None},
            *("web_search", {"query": "q", "action": None}, None, False),
        ),
        (
            {"type": "imageView", "path": "/a.png"},
            *("view_image", {"path": "/a.png"}, "", False),
        ),
        (
            {"type": "newThing", "what": 1, "status": "completed", "durationMs": 2},
            *("newThing", {"what": 1}, "", False),
        ),
    ],
)
def test_other_items_are_tool_calls_too(
    item: Json, name: str, arguments: Any, output: Any, failed: bool
) -> None:
    call, result = Talk().running().completed({"id": "i", **item})
    assert call == ToolCall("i", name, arguments)
    assert result == ToolResult("i", output, failed, name)


@each("kind", ["hookPrompt", "enteredReviewMode", "subAgentActivity"])
def test_items_that_are_not_tools_are_not_shown(kind: str) -> None:
    talk = Talk().running()
    assert talk.item({"type": kind, "id": "i"}) == []
    assert talk.completed({"type": kind, "id": "i"}) == []


def test_compacting_is_a_status() -> None:
    (status,) = Talk().running().item({"type": "contextCompaction", "id": "i"})
    assert status == Status("Compacting the conversation", {"type": "compacting"})


def test_a_sub_agent_is_a_thread_of_its_own() -> None:
    talk = Talk().running()
    spawn = {"type": "collabAgentToolCall", "id": "s1", "tool": "spawnAgent", "prompt": "do"}
    assert talk.item(spawn) == [ToolCall("s1", "spawnAgent", {"prompt": "do"})]
    talk.completed({**spawn, "status": "completed", "receiverThreadIds": ["sub"]})
    sub: Any = {"thread": "sub", "of": "tu2"}
    assert talk.text("par", "m9", **sub) == []
    assert talk.whole("part", "m9", **sub) == [Text("part", new_block=True, parent="s1")]
    (call,) = talk.item(COMMAND, **sub)
    assert isinstance(call, ToolCall)
    assert call.parent == "s1"
    (result,) = talk.completed({**COMMAND, "status": "completed"}, **sub)
    assert isinstance(result, ToolResult)
    assert result.parent == "s1"
    usage = {"total": {"totalTokens": 9}, "last": {"totalTokens": 9}}
    talk.told("thread/tokenUsage/updated", tokenUsage=usage, **sub)
    assert talk.told("turn/completed", thread="sub", turn={"id": "tu2"}) == []
    assert talk.end() == [Done(summary="")]


def test_a_plan_is_complete_in_each_update() -> None:
    steps = [
        {"step": "a", "status": "completed"},
        {"step": "b", "status": "inProgress"},
        {"step": "c", "status": "new"},
    ]
    (plan,) = Talk().running().told("turn/plan/updated", plan=steps, explanation=None)
    entries = (("a", "completed"), ("b", "in_progress"), ("c", "pending"))
    assert plan == Plan(tuple(PlanEntry(text, status) for text, status in entries))  # type: ignore[arg-type]


def test_the_last_diff_is_handed_over_at_the_end() -> None:
    talk = Talk().running()
    for diff in ("first", "second", "second"):
        assert talk.told("turn/diff/updated", diff=diff) == []
    artifact, done = talk.end()
    part = TextPart("second", "text/x-diff", "changes.diff")
    assert artifact == ArtifactChunk("diff", (part,), "Changes")
    assert isinstance(done, Done)


# --- usage ---------------------------------------------------------------------------------------


def usage(total: int, last: int, window: Any = None) -> Json:
    names = ("inputTokens", "outputTokens", "totalTokens", "cachedInputTokens")
    both = {"total": dict.fromkeys(names, total), "last": dict.fromkeys(names, last)}
    return {"tokenUsage": {**both, "modelContextWindow": window}}


def test_usage_is_that_of_the_turn() -> None:
    talk = Talk().running()
    talk.told("thread/tokenUsage/updated", **usage(100, 100))
    talk.told("thread/tokenUsage/updated", **usage(150, 50, 1000))
    extra = {"cachedInputTokens": 150, "contextSize": 1000}
    assert talk.end() == [Usage(150, 150, 150, None, extra), Done(summary="")]
    talk.prompt()
    talk.begun("tu2")
    talk.told("thread/tokenUsage/updated", of="tu2", **usage(170, 20))
    (used, _) = talk.end(turn="tu2")
    assert isinstance(used, Usage)
    assert used.total_tokens == 20


@each("told_before", [True, False])
def test_usage_of_a_resumed_conversation_leaves_out_the_earlier_turns(told_before: bool) -> None:
    talk = Talk(resume=True)
    talk.prompt()
    talk.reply("initialize")
    talk.asked("initialized")
    talk.opened("thread/resume")
    if told_before:
        talk.told("thread/tokenUsage/updated", of="old", **usage(500, 70))
    talk.begun()
    # An answer that was cut counts in the total alone.
    talk.told("thread/tokenUsage/updated", **usage(520, 0 if told_before else 20))
    talk.told("thread/tokenUsage/updated", **usage(530, 10))
    (used, _) = talk.end()
    assert isinstance(used, Usage)
    assert used.total_tokens == 30


# --- the end -------------------------------------------------------------------------------------


@each(
    ("info", "reason"),
    [
        ("unauthorized", "auth"),
        ({"httpConnectionFailed": {"httpStatusCode": 401}}, "auth"),
        ({"responseStreamConnectionFailed": {"httpStatusCode": 403}}, "auth"),
        ({"responseTooManyFailedAttempts": {"httpStatusCode": 429}}, "rate-limit"),
        ("rateLimitExceeded", "rate-limit"),
        ("usageLimitExceeded", "quota"),
        ("contextWindowExceeded", "context-window"),
        ("serverOverloaded", "overloaded"),
        ("internalServerError", "model-error"),
        ({"responseStreamDisconnected": {"httpStatusCode": None}}, "model-error"),
        ({"httpConnectionFailed": {"httpStatusCode": 502}}, "model-error"),
        ({"activeTurnNotSteerable": {"turnKind": "review"}}, "model-error"),
        ("other", "agent-error"),
        (None, "agent-error"),
        (7, "agent-error"),
    ],
)
def test_a_failure_has_its_reason(info: Any, reason: str) -> None:
    error = {"message": "it broke", "codexErrorInfo": info, "additionalDetails": "badly"}
    (failed,) = Talk().running().end("failed", error=error)
    assert isinstance(failed, Failed)
    assert failed.reason == reason
    assert failed.text.endswith("it broke (badly)")
    if reason == "auth":
        assert "`codex login`" in failed.text
        assert "OPENAI_API_KEY" in failed.text


def test_a_key_that_is_missing_is_a_login_that_is_missing() -> None:
    error = {"message": "Missing environment variable: `X_KEY`.", "codexErrorInfo": "other"}
    (failed,) = Talk().running().end("failed", error=error)
    assert isinstance(failed, Failed)
    assert failed.reason == "auth"


def test_the_error_text_is_extracted_from_the_json_of_the_model() -> None:
    message = json.dumps({"error": {"message": "bad request", "type": "x"}})
    (failed,) = Talk().running().end("failed", error={"message": message})
    assert failed == Failed("bad request", "agent-error")


@each("error", [None, 7, {}, {"message": None}])
def test_a_failure_without_words_is_one(error: Any) -> None:
    (failed,) = Talk().running().end("failed", error=error)
    assert isinstance(failed, Failed)
    assert failed.text


def test_a_turn_that_is_refused_fails() -> None:
    talk = Talk().running()
    talk.end()
    talk.prompt()
    (failed,) = talk.reply("turn/start", error={"code": -32600, "message": "thread not found"})
    assert isinstance(failed, Failed)
    assert failed.text == "thread not found"


def test_a_turn_without_a_name_fails() -> None:
    talk = Talk().running()
    talk.end()
    talk.prompt()
    (failed,) = talk.reply("turn/start", {"turn": {}})
    assert isinstance(failed, Failed)


@each("status", ["interrupted", "new", None])
def test_an_end_that_we_did_not_ask_for_is_a_failure(status: Any) -> None:
    (failed,) = Talk().running().end(status)
    assert isinstance(failed, Failed)
    assert failed.reason in ("cancelled", "stopped")


# --- interrupt -----------------------------------------------------------------------------------


def test_an_interrupt_cleans_up_before_the_turn_is_over() -> None:
    talk = Talk().running()
    talk.item(COMMAND)
    assert talk.adapter.interrupt()
    assert talk.asked("turn/interrupt")["params"] == {"threadId": "th", "turnId": "tu"}
    assert talk.hear(id=4, result={}) == []
    assert talk.end("interrupted") == []
    clean = talk.asked("thread/backgroundTerminals/clean")
    assert clean["params"] == {"threadId": "th"}
    assert talk.hear(id=clean["id"], result={}) == [INTERRUPTED]


def test_an_interrupt_ends_even_if_nothing_can_be_cleaned() -> None:
    talk = Talk().running()
    talk.adapter.interrupt()
    talk.asked("turn/interrupt")
    talk.end("interrupted")
    error = {"code": -32600, "message": "experimental"}
    assert talk.reply("thread/backgroundTerminals/clean", error=error) == [INTERRUPTED]


def test_an_interrupt_waits_until_the_turn_has_begun() -> None:
    """Before, Codex would reject it and continue."""
    talk = Talk().running()
    talk.end()
    talk.prompt()
    asked = talk.asked("turn/start")
    assert talk.adapter.interrupt()
    assert talk.written() == []
    talk.hear(id=asked["id"], result={"turn": {"id": "tu"}})
    assert talk.written() == []
    talk.told("turn/started", turn={"id": "tu"})
    assert talk.asked("turn/interrupt")["params"]["turnId"] == "tu"


def test_an_interrupt_in_the_handshake_leaves_the_prompt_unsent() -> None:
    talk = Talk()
    talk.prompt()
    assert not talk.adapter.interrupt()
    talk.reply("initialize")
    talk.asked("initialized")
    assert talk.opened() == [Started("th", "m-7", "9.8", None)]
    assert talk.written() == []


def test_a_turn_that_ended_before_the_interrupt_has_ended_well() -> None:
    talk = Talk().running()
    talk.whole("said")
    talk.adapter.interrupt()
    talk.asked("turn/interrupt")
    talk.end("completed")
    assert talk.reply("thread/backgroundTerminals/clean") == [Done(summary="said")]


def test_an_interrupt_drops_the_open_questions() -> None:
    talk = Talk().running()
    question = talk.command()
    talk.adapter.interrupt()
    talk.asked("turn/interrupt")
    assert talk.told("serverRequest/resolved", requestId=0) == []
    talk.adapter.answer(question, Answer(question.id, "yes", (question.options[0],)))
    assert talk.written() == []
    assert talk.request("item/commandExecution/requestApproval", 1, command="x") == []
    assert talk.result(1) == {"decision": "decline"}


def test_an_exit_after_an_interrupt_is_its_end() -> None:
    talk = Talk().running()
    talk.adapter.interrupt()
    assert list(talk.adapter.receive_exit(ExitStatus(0))) == [INTERRUPTED]


# --- steering ------------------------------------------------------------------------------------


def test_a_message_joins_the_turn() -> None:
    talk = Talk().running()
    talk.steer("more")
    params = talk.asked("turn/steer")["params"]
    said = [{"type": "text", "text": "more"}]
    assert params == {"threadId": "th", "expectedTurnId": "tu", "input": said}
    assert talk.hear(id=4, result={"turnId": "tu"}) == []
    assert talk.end() == [Done(summary="")]


def test_a_message_that_came_too_late_is_another_turn_of_the_same_task() -> None:
    talk = Talk().running()
    talk.whole("first")
    talk.steer("more")
    steer = talk.asked("turn/steer")
    talk.told("turn/diff/updated", diff="a\n")
    assert talk.end() == [], "the message has not been heard"
    error = {"code": -32600, "message": "no active turn to steer"}
    assert talk.hear(id=steer["id"], error=error) == []
    start = talk.asked("turn/start")
    assert start["params"]["input"] == [{"type": "text", "text": "more"}]
    assert talk.hear(id=start["id"], result={"turn": {"id": "tu2"}}) == []
    talk.started("tu2")
    talk.whole("second", "m2", of="tu2")
    talk.told("turn/diff/updated", of="tu2", diff="b\n")
    artifact, done = talk.end(turn="tu2")
    assert done == Done(summary="second")
    assert isinstance(artifact, ArtifactChunk)
    assert artifact.parts == (TextPart("a\nb\n", "text/x-diff", "changes.diff"),)


def test_a_message_that_the_turn_does_not_take_follows_it() -> None:
    talk = Talk().running()
    talk.steer("more")
    talk.reply("turn/steer", error={"code": -32600, "message": "not steerable"})
    talk.steer("and more")
    assert talk.written() == []
    assert talk.end() == []
    given = talk.asked("turn/start")["params"]["input"]
    assert [one["text"] for one in given] == ["more", "and more"]
    talk.hear(id=5, result={"turn": {"id": "tu2"}})
    talk.steer("still more")
    assert talk.asked("turn/steer")["params"]["expectedTurnId"] == "tu2"


def test_a_message_waits_until_the_turn_has_a_name() -> None:
    talk = Talk().running()
    talk.end()
    talk.prompt()
    start = talk.asked("turn/start")
    talk.steer("more")
    assert talk.written() == []
    talk.hear(id=start["id"], result={"turn": {"id": "tu"}})
    assert talk.asked("turn/steer")["params"]["expectedTurnId"] == "tu"


def test_messages_in_the_handshake_are_said_together() -> None:
    talk = Talk()
    talk.prompt(TextPart("one"))
    talk.steer("two")
    talk.reply("initialize")
    talk.asked("initialized")
    talk.opened()
    given = talk.asked("turn/start")["params"]["input"]
    assert [one["text"] for one in given] == ["one", "two"]


def test_a_message_is_not_said_after_an_interrupt() -> None:
    talk = Talk().running()
    talk.end()
    talk.prompt()
    start = talk.asked("turn/start")
    talk.steer("more")
    talk.adapter.interrupt()
    talk.hear(id=start["id"], result={"turn": {"id": "tu"}})
    assert talk.written() == []


def test_a_message_that_was_refused_is_not_said_after_an_interrupt() -> None:
    talk = Talk().running()
    talk.steer("more")
    steer = talk.asked("turn/steer")
    talk.adapter.interrupt()
    talk.end("interrupted")
    talk.written()
    talk.hear(id=steer["id"], error={"code": 1, "message": "no active turn to steer"})
    assert talk.written() == []


def test_a_failed_turn_does_not_wait_for_messages() -> None:
    talk = Talk().running()
    talk.steer("more")
    talk.asked("turn/steer")
    (failed,) = talk.end("failed", error={"message": "x"})
    assert isinstance(failed, Failed)
    assert talk.hear(id=4, error={"code": 1, "message": "no active turn"}) == []
    assert talk.written() == []


# --- permissions ---------------------------------------------------------------------------------


@each(
    ("word", "decision"),
    [("yes", "accept"), ("always", "acceptForSession"), ("no", "decline")],
)
def test_a_command_is_allowed_or_not(word: str, decision: str) -> None:
    talk = Talk().running()
    talk.item(COMMAND)
    rule: Any = {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": ["rm"]}}
    question = talk.command(availableDecisions=["accept", rule, "cancel"])
    assert (question.kind, question.text) == (
        "permission",
        "Codex asks to run: rm x\ncwd: /workspace",
    )
    kinds = [option.kind for option in question.options]
    assert kinds == ["allow_once", "allow_always", "reject_once"]
    assert question.subject == {
        "toolCallId": "c1",
        "name": "exec_command",
        "tool": "exec_command",
        "title": "Codex asks to run: rm x",
        "command": "rm x",
        "input": {"command": "rm x", "cwd": "/workspace"},
    }
    talk.answer(question, word)
    assert talk.result() == {"decision": decision}
    assert talk.told("serverRequest/resolved", requestId=0) == []
    assert talk.written() == []


@each(
    ("params", "text"),
    [
        ({"reason": "to clean up"}, "run: rm x\ncwd: /workspace\n(to clean up)"),
        ({"cwd": "/elsewhere"}, "run: rm x\ncwd: /elsewhere"),
        ({"cwd": None, "command": None}, "run a command"),
        (
            {"networkApprovalContext": {"host": "a.org", "protocol": "https"}},
            "reach https://a.org, in order to run: rm x\ncwd: /workspace\n"
            "networkApprovalContext.host: a.org\nnetworkApprovalContext.protocol: https",
        ),
        (
            {"kind": "writeStdin"},
            "write to the input of a command that it was allowed to run: rm x\ncwd: /workspace",
        ),
        (
            {"additionalPermissions": {"a": 1}},
            "run: rm x\nadditionalPermissions.a: 1\ncwd: /workspace",
        ),
        ({"brandNew": "hidden"}, "run: rm x\nbrandNew: hidden\ncwd: /workspace"),
    ],
)
def test_a_question_has_its_text_and_its_options(params: Json, text: str) -> None:
    assert Talk().running().command(**params).text == f"Codex asks to {text}"


def test_an_approval_of_changes_shows_them() -> None:
    talk = Talk().running()
    talk.item(CHANGE)
    question = talk.question("item/fileChange/requestApproval", itemId="f1", reason=None)
    assert question.text.startswith("Codex asks to change files\nchanges[0].kind.type: add\n")
    assert "\n/workspace/new" in question.text
    assert question.text.endswith("\n    1 -x\n    1 +y")
    talk.answer(question, "yes")
    assert talk.result() == {"decision": "accept"}


def test_an_approval_of_changes_may_be_for_a_whole_folder() -> None:
    talk = Talk().running()
    question = talk.question("item/fileChange/requestApproval", itemId="?", grantRoot="/data")
    assert question.text == (
        "Codex asks to write to /data from now on\nchanges: (empty)\ngrantRoot: /data"
    )


def test_changes_of_an_unknown_thread_are_shown_too() -> None:
    talk = Talk().running()
    assert talk.item(CHANGE, thread="other") == []
    question = talk.question("item/fileChange/requestApproval", itemId="f1", threadId="other")
    assert "+born" in question.text


@each(
    ("word", "result"),
    [
        ("yes", {"permissions": {"network": {"enabled": True}}, "scope": "turn"}),
        ("always", {"permissions": {"network": {"enabled": True}}, "scope": "session"}),
        ("no", {"permissions": {}, "scope": "turn"}),
    ],
)
def test_additional_permissions_are_granted_as_requested(word: str, result: Json) -> None:
    talk = Talk().running()
    wanted = {"network": {"enabled": True}, "fileSystem": None}
    question = talk.question(
        "item/permissions/requestApproval", permissions=wanted, reason="to fetch"
    )
    assert "network.enabled: true" in question.text
    talk.answer(question, word)
    assert talk.result() == result


def test_the_words_of_a_refusal_are_a_message_of_their_own() -> None:
    talk = Talk().running()
    talk.answer(talk.command(), "no, use a table")
    assert talk.result() == {"decision": "decline"}
    said = talk.asked("turn/steer")["params"]["input"]
    assert said == [{"type": "text", "text": "The user said no. use a table"}]


def test_with_force_nothing_is_asked() -> None:
    talk = Talk(force=True).running()
    assert talk.request("item/commandExecution/requestApproval", 5, command="x") == []
    assert talk.result(5) == {"decision": "accept"}


def test_a_request_that_is_settled_is_withdrawn() -> None:
    talk = Talk().running()
    question = talk.command("seven")
    assert talk.told("serverRequest/resolved", requestId=7) == []
    assert talk.told("serverRequest/resolved", requestId="seven") == [
        QuestionWithdrawn(question.id)
    ]
    talk.adapter.answer(question, Answer(question.id, "yes", (question.options[0],)))
    assert talk.written() == []


def test_of_several_questions_only_those_that_are_open_are_withdrawn() -> None:
    talk = Talk().running()
    names = ({"id": "a", "question": "A?"}, {"id": "b", "question": "B?"})
    first, second = talk.request("item/tool/requestUserInput", questions=names)
    assert isinstance(first, Question)
    assert isinstance(second, Question)
    talk.answer(first, "yes")
    assert talk.told("serverRequest/resolved", requestId=0) == [QuestionWithdrawn(second.id)]


def test_open_questions_are_denied_at_the_end() -> None:
    talk = Talk().running()
    talk.command()
    talk.end()
    assert talk.result() == {"decision": "decline"}


def facts_of(said: list[AgentEvent]) -> Json:
    (status,) = said
    assert isinstance(status, Status) and status.data
    return dict(status.data)


def test_no_question_is_asked_between_turns() -> None:
    talk = Talk().running()
    talk.end()
    method = "item/commandExecution/requestApproval"
    said = talk.request(method, command="x")
    assert said == [unasked("request", method, facts_of(said)["input"])]
    assert facts_of(said)["input"]["command"] == "x"
    assert talk.result() == {"decision": "decline"}


@each(
    "method",
    [
        *("item/commandExecution/requestApproval", "item/tool/requestUserInput"),
        *("mcpServer/elicitation/request", "brand/new"),
    ],
)
def test_every_request_between_turns_is_answered_and_reported(method: str) -> None:
    """Also if the operator allows everything."""
    talk = Talk(force=True).running()
    talk.end()
    talk.written()
    params = {"questions": [{"id": "q", "question": "?"}], "mode": "form", "message": "m"}
    said = talk.request(method, 5, **params, requestedSchema={"properties": {"a": {}}})
    assert (facts_of(said)["kind"], facts_of(said)["name"]) == ("request", method)
    (answer,) = talk.written()
    assert answer["id"] == 5
    refusals: tuple[Json, ...] = ({"decision": "decline"}, {"answers": {}}, {"action": "cancel"})
    assert "error" in answer or answer["result"] in refusals


def test_an_unknown_request_is_an_error() -> None:
    talk = Talk().running()
    assert talk.request("account/chatgptAuthTokens/refresh", 3) == []
    (answer,) = talk.written()
    assert (answer["id"], answer["error"]["code"]) == (3, -32601)


def test_a_request_in_an_unknown_shape_is_an_error() -> None:
    talk = Talk().running()
    (status,) = talk.request("item/tool/requestUserInput", 3, questions=7)
    assert isinstance(status, Status)
    (answer,) = talk.written()
    assert (answer["id"], answer["error"]["code"]) == (3, -32602)


# --- questions -----------------------------------------------------------------------------------


def asking(*questions: Json) -> Json:
    return {"questions": list(questions), "isBlocking": True}


def test_questions_are_answered_when_all_of_them_are() -> None:
    talk = Talk().running()
    options = [{"label": "SQLite", "description": "s"}, {"label": "Postgres", "description": "p"}]
    first, second, third = talk.request(
        "item/tool/requestUserInput",
        **asking(
            {"id": "db", "question": "Which?", "options": options, "isOther": False},
            {"id": "name", "question": "Name?", "options": None},
            {"id": "other", "question": "What?", "options": options, "isOther": True},
        ),
    )
    assert isinstance(first, Question)
    assert isinstance(second, Question)
    assert isinstance(third, Question)
    assert (first.kind, first.free_text, first.text) == ("choice", False, "Which?")
    assert (second.kind, second.free_text) == ("text", True)
    assert (third.kind, third.free_text) == ("choice", True)
    talk.answer(first, "Postgres")
    talk.answer(second, "Ada")
    assert talk.written() == []
    talk.answer(third, "something else")
    assert talk.result() == {
        "answers": {
            "db": {"answers": ["Postgres"]},
            "name": {"answers": ["Ada"]},
            "other": {"answers": ["something else"]},
        }
    }


def test_a_secret_is_said_to_be_one() -> None:
    talk = Talk().running()
    question = talk.question(
        "item/tool/requestUserInput", **asking({"id": "a", "question": "Key?", "isSecret": True})
    )
    assert question.text == "Key?\n(Codex treats the answer as a secret.)"
    assert question.subject
    assert question.subject["isSecret"] is True


def elicitation(**params: Any) -> Json:
    return {"serverName": "demo", "itemId": None, "message": "Sure?", "mode": "form", **params}


@each(
    ("word", "result"),
    [
        ("yes", {"action": "accept", "content": {}}),
        ("always", {"action": "accept", "content": {}, "_meta": {"persist": "session"}}),
        ("no", {"action": "decline"}),
    ],
)
def test_a_tool_of_an_mcp_server_is_allowed_or_not(word: str, result: Json) -> None:
    talk = Talk().running()
    meta: Json = {"codex_approval_kind": "mcp_tool_call", "persist": ["session", "always"]}
    meta |= {"tool_name": "greet", "tool_params": {"who": "x"}}
    question = talk.question(
        "mcpServer/elicitation/request", **elicitation(_meta=meta, requestedSchema={})
    )
    assert (question.kind, question.text) == ("permission", "Sure?\n  Tool: demo.greet\nwho: x")
    assert question.subject
    assert question.subject["name"] == "demo.greet"
    talk.answer(question, word)
    assert talk.result() == result


def test_an_elicitation_without_persistence_is_answered_once() -> None:
    talk = Talk().running()
    question = talk.question(
        "mcpServer/elicitation/request", **elicitation(requestedSchema={"properties": {}})
    )
    assert [option.kind for option in question.options] == ["allow_once", "reject_once"]


def test_a_form_of_an_mcp_server_is_a_question_per_member() -> None:
    talk = Talk().running()
    members: Json = {"size": {"enum": ["S", "L"]}, "name": {"type": "string"}}
    schema = {"properties": members}
    size, name = talk.request(
        "mcpServer/elicitation/request", **elicitation(requestedSchema=schema)
    )
    assert isinstance(size, Question)
    assert isinstance(name, Question)
    talk.answer(size, "L")
    talk.answer(name, "Ada")
    assert talk.result() == {"action": "accept", "content": {"size": "L", "name": "Ada"}}


def test_an_address_of_an_mcp_server_is_to_be_visited() -> None:
    talk = Talk().running()
    question = talk.question(
        "mcpServer/elicitation/request", **elicitation(mode="url", url="https://a.org")
    )
    assert (question.kind, question.text) == ("auth", "Sure?\nhttps://a.org")
    talk.answer(question, "yes")
    assert talk.result() == {"action": "accept"}


def test_a_form_that_cannot_be_shown_is_declined_and_said_to_be() -> None:
    talk = Talk().running()
    (status,) = talk.request("mcpServer/elicitation/request", **elicitation(mode="openai/form"))
    assert isinstance(status, Status)
    assert "demo" in status.text
    assert talk.result() == {"action": "decline"}
