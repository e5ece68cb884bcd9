"""The real Codex, on a scripted model, through the real server: what the adapter says and hears
is what the CLI does."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import pytest_asyncio

from tests import CHECKOUT
from tests.support.bridge_process import BridgeProcess, bridge
from tests.support.client import (
    Client,
    Json,
    artifact_text,
    context_id,
    facts,
    said,
    state,
    states,
    streamed_text,
    task_id,
    texts,
)
from tests.support.client import told as all_told
from tests.support.real_claude_code import (
    GONE_WITHIN,
    RealClaudeCode,
    all_facts,
    answer,
    ask,
    of_type,
    read_until,
    reason,
    running_command,
    script,
    session_id,
    tool,
    written,
)
from tests.support.real_clis import CODEX as PINNED
from tests.support.responses_server import ResponsesServer

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(120),
]

CODEX = CHECKOUT / "tests/clis/node_modules/.bin/codex"
OUTSIDE = Path("/var/tmp")
# two pixels wide, two high
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEUlEQVR4nGP4z8AARGDiPwMAHfAD/aAzCYkAAAAASUVORK5CYII="  # noqa: E501
SLOW = {"text": "word " * 2000, "chunks": 2000, "delay": 0.05}
FORCE = {"AGENT_FORCE": "true"}  # nothing is asked

# An MCP server with a tool that greets, and one that asks with a form.
MCP_SERVER = """
import json, sys

def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def text(text):
    return {"content": [{"type": "text", "text": text}]}

schema = {"type": "object", "properties": {"who": {"type": "string"}}}
form = {"type": "object", "properties": {"size": {"type": "string", "enum": ["S", "L"]}}}
for line in sys.stdin:
    asked = json.loads(line)
    number, params = asked.get("id"), asked.get("params", {})
    match asked.get("method"):
        case "initialize":
            info = {"name": "demo", "version": "1"}
            version = params["protocolVersion"]
            say(id=number, result={
                "protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info,
            })
        case "tools/list":
            tools = [{"name": name, "inputSchema": schema} for name in ("greet", "fit")]
            say(id=number, result={"tools": tools})
        case "tools/call" if params["name"] == "greet":
            say(id=number, result=text("Hello " + params["arguments"]["who"]))
        case "tools/call":
            say(id=9, method="elicitation/create", params={
                "message": "Which size?", "requestedSchema": form,
            })
            say(id=number, result=text(json.dumps(json.loads(sys.stdin.readline())["result"])))
        case str() if number is not None:
            say(id=number, result={})
"""


def configuration(url: str, home: Path) -> str:
    """Only the key of a variable that the adapter passes on is seen by the CLI."""
    server = home / "mcp_server.py"
    server.write_text(MCP_SERVER)
    return f"""
model = "scripted"
model_provider = "scripted"

[model_providers.scripted]
name = "scripted"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
request_max_retries = 0
stream_max_retries = 1

[mcp_servers.demo]
command = "{sys.executable}"
args = ["{server}"]
"""


@dataclass(slots=True)
class Real(RealClaudeCode):
    """A server whose agent is the real Codex."""

    def in_mode(self, mode: str) -> Client:
        """As shared(), with a conversation for each mode."""
        return Client(self.http, self.server.url, "1.0", context_id=f"in-{mode}")

    def outputs(self, word: str) -> list[str]:
        """What the model was told of its tools, in the last request in which `word` occurs."""
        items = self.requests(word)[-1]
        return [json.dumps(i["output"]) for i in items if i["type"] == "function_call_output"]


def run(command: str) -> Json:
    return tool("exec_command", cmd=command)


def run_outside(command: str) -> Json:
    """Outside of the sandbox, in which nothing can be connected to. It takes a permission."""
    more = {"sandbox_permissions": "require_escalated", "justification": "It must be."}
    return tool("exec_command", cmd=command, **more)


def patch(*lines: str) -> Json:
    text = "\n".join(("*** Begin Patch", *lines, "*** End Patch"))
    return run(f"apply_patch <<'EOF'\n{text}\nEOF\n")


@asynccontextmanager
async def codex(folder: Path, **env: str) -> AsyncIterator[Real]:
    assert CODEX.exists(), f"{CODEX} is missing: run scripts/install"
    workspace, home = folder / "workspace", folder / "home"
    # Codex wants no home below TMPDIR.
    for path in (workspace, home / ".codex", folder / "tmp"):
        path.mkdir(parents=True)
    async with (
        ResponsesServer() as model,
        AsyncExitStack() as servers,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(100), read_bufsize=2**25) as http,
    ):
        (home / ".codex/config.toml").write_text(configuration(model.url, home))
        every: dict[str, Any] = {
            "AGENT_ADAPTER": "codex",
            "AGENT_BINARY": str(CODEX),
            "OPENAI_API_KEY": "a-key",
            "TMPDIR": str(folder / "tmp"),
            "BRIDGE_THOUGHTS": "true",
            **env,
        }

        async def start(**more: str) -> BridgeProcess:
            return await servers.enter_async_context(bridge(workspace, **{**every, **more}))

        real = Real(await start(), model, http, workspace, home, start)  # type: ignore[arg-type]
        try:
            yield real
        finally:
            await http.close()
            await real.server.stop()
            for process in real.processes():  # of a test that failed while no server ran
                process.kill()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Real]:
    async with codex(tmp_path_factory.mktemp("codex"), BRIDGE_MAX_SESSIONS="2") as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleeting(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Real]:
    """A session is given up when it is idle: after each test nothing may be left."""
    async with codex(tmp_path_factory.mktemp("fleeting"), BRIDGE_SESSION_IDLE_MS="1") as server:
        yield server


def told(task: Json, kind: str) -> list[Json]:
    """What the messages of a finished task say of this kind."""
    return [fact for fact in all_told(task) if fact.get("type") == kind]


# --- turns ---------------------------------------------------------------------------------------


async def test_a_message_is_answered_as_it_is_said(real: Real) -> None:
    items = await real.shared().collect(script("Say it.", {"text": "Hello.", "chunks": 6}))
    assert states(items) == ["submitted", "working", "completed"]
    assert streamed_text(items) == "Hello."
    task = await real.shared().get(task_id(items[0]))
    known = task["metadata"]["bridge"]
    assert (known["cliVersion"], known["model"]) == (PINNED.version, "scripted")
    assert said(task) == "Hello."
    used = {"inputTokens": 100, "outputTokens": 20, "totalTokens": 120, "cachedInputTokens": 10}
    assert used.items() <= task["metadata"]["usage"].items()


@pytest.mark.soak
async def test_turns_of_a_context_are_one_process_and_one_conversation(real: Real) -> None:
    client = real.client()
    first = await client.send(script("the first turn", "answer one"))
    own = set(real.processes())
    second = await client.send(script("another", "answer two"), contextId=context_id(first))
    assert [artifact_text(task) for task in (first, second)] == ["answer one", "answer two"]
    assert (after := set(real.processes())) and after <= own  # one that helped may have ended
    assert session_id(first) == session_id(second)
    seen = json.dumps(real.requests("the first turn")[-1])
    assert "answer one" in seen
    assert "another" in seen
    assert second["metadata"]["usage"]["inputTokens"] == 100, "of this turn alone"


async def test_a_burst_arrives_complete_and_in_order(real: Real) -> None:
    text = " ".join(map(str, range(5000)))
    items = await real.shared().collect(script("count", {"text": text, "chunks": 5000}))
    assert streamed_text(items) == text
    assert artifact_text(await real.shared().get(task_id(items[0]))) == text


async def test_the_arguments_of_the_operator_are_heard(tmp_path: Path) -> None:
    async with codex(tmp_path, AGENT_ARGS="-c model_reasoning_effort=high -c model=other") as real:
        task = await real.client().send(script("x", "y"))
        assert task["metadata"]["bridge"]["model"] == "other"
        assert {body["model"] for body in real.model.requests} == {"other"}


@pytest.mark.soak
async def test_the_model_that_the_operator_chose_is_asked(tmp_path: Path) -> None:
    async with codex(tmp_path, AGENT_MODEL="chosen") as real:
        await real.client().send(script("x", "y"))
        assert {body["model"] for body in real.model.requests} == {"chosen"}


async def test_thoughts_are_told(real: Real) -> None:
    items = await real.shared().collect(script("think", {"thinking": "let me see", "text": "seen"}))
    assert "".join(fact["text"] for fact in all_facts(items, "thought")) == "let me see"
    assert streamed_text(items) == "seen"


async def test_an_image_reaches_the_model(real: Real) -> None:
    parts = [
        {"text": script("look", {"echo": True})},
        {"raw": PNG, "mediaType": "image/png", "filename": "dot.png"},
    ]
    seen = json.loads(artifact_text(await real.shared().send(parts)))
    assert {"type": "image", "media_type": "image/png"} in seen


async def test_a_file_of_another_kind_is_named(real: Real) -> None:
    parts = [
        {"text": script("read", {"echo": True})},
        {"raw": "AAEC", "mediaType": "application/x-unknown", "filename": "a.bin"},
    ]
    seen = json.loads(artifact_text(await real.shared().send(parts)))
    assert "Attached file: /" in seen[-1]["text"]


# --- permissions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["yes", "no"])
async def test_a_command_is_run_only_if_the_client_allows_it(real: Real, word: str) -> None:
    path = real.workspace / f"{word}.txt"
    task = await ask(
        real.shared(), script(f"run it {word}", run(f"echo said; touch {path}"), "the end")
    )
    assert f"touch {path}" in said(task)
    kinds = [one["kind"] for one in facts(task)["options"]]
    assert kinds == ["allow_once", "allow_always", "reject_once"]
    assert not path.exists()
    task = await answer(real.shared(), task, word)
    assert (state(task), artifact_text(task)) == ("completed", "the end")
    assert path.exists() is (word == "yes")
    (call,) = told(task, "tool_call")
    assert call["name"] == "exec_command"
    (result,) = told(task, "tool_result")
    assert result["status"] == ("completed" if word == "yes" else "failed")
    assert result["output"] == ("said\n" if word == "yes" else "")


async def test_always_holds_for_the_session(real: Real) -> None:
    path = real.workspace / "always.txt"
    task = await ask(real.client(), script("one", run(f"touch {path}"), "first"))
    task = await answer(real.client(), task, "always")
    assert artifact_text(task) == "first"
    path.unlink()
    again = script("two", run(f"touch {path}"), "second")
    task = await real.client().send(again, contextId=context_id(task))
    assert (state(task), artifact_text(task), path.exists()) == ("completed", "second", True)
    assert not list((real.home / ".codex").glob("rules/*")), "nothing is written down for others"


async def test_the_words_of_a_refusal_reach_the_model(real: Real) -> None:
    path = real.workspace / "never.txt"
    task = await ask(real.shared(), script("run it", run(f"touch {path}"), "the end"))
    task = await answer(real.shared(), task, "no, use a table instead")
    assert (state(task), path.exists()) == ("completed", False)
    assert "The user said no. use a table instead" in json.dumps(real.requests("a table")[-1])


async def test_a_failed_command_says_so(real: Real) -> None:
    task = await ask(real.shared(), script("run it", run("echo bad; exit 3"), "the end"))
    task = await answer(real.shared(), task, "yes")
    (result,) = told(task, "tool_result")
    assert (result["status"], result["output"]) == ("failed", "bad\n(exit code 3)")


async def test_a_change_of_files_is_shown_and_handed_over(real: Real) -> None:
    (real.workspace / "old.txt").write_text("one\ntwo\n")
    change = patch(
        *("*** Add File: new.txt", "+born", "*** Update File: old.txt", "@@", " one", "-two"),
        "+TWO",
    )
    task = await ask(real.shared(), script("change", change, "changed"))
    assert "+born" in said(task)
    assert re.search(r"-.*two\n.*\+.*TWO", said(task)), said(task)
    task = await answer(real.shared(), task, "yes")
    assert written(real.workspace / "old.txt") == "one\nTWO\n"
    (result,) = told(task, "tool_result")
    changes = {Path(one["path"]).name: one for one in result["changes"]}
    assert changes["new.txt"]["kind"] == "create"
    assert changes["new.txt"]["diff"].endswith("@@ -0,0 +1,1 @@\n+born\n")
    assert changes["old.txt"]["diff"].endswith("@@ -1,2 +1,2 @@\n one\n-two\n+TWO\n")
    (diff,) = [one for one in task["artifacts"] if one["artifactId"] == "diff"]
    assert diff["parts"][0]["mediaType"] == "text/x-diff"
    assert texts(diff["parts"]).count("diff --git") == 2
    assert len(task["metadata"]["bridge"]["result"]["changedFiles"]) == 2


@pytest.mark.parametrize("mode", ["read-only", "workspace-write", "plan"])
async def test_a_mode_is_a_sandbox_in_which_nothing_is_asked(real: Real, mode: str) -> None:
    # Its sandbox has /tmp and TMPDIR in it.
    inside, outside = real.workspace / f"{mode}.txt", OUTSIDE / f"never-written-{mode}.txt"
    steps = (run(f"touch {inside}"), run(f"touch {outside}"), "the end")
    chosen: Json = {"metadata": {"bridge": {"mode": mode}}}
    task = await real.in_mode(mode).send(script(f"try {mode}", *steps), **chosen)
    assert (state(task), artifact_text(task)) == ("completed", "the end")
    assert inside.exists() is (mode == "workspace-write")
    assert not outside.exists()
    # Of commands that the sandbox has stopped the CLI tells only if they took a while.
    ran = [fact for fact in told(task, "tool_result") if fact["status"] == "completed"]
    assert len(ran) == (mode == "workspace-write")
    assert "Read-only file system" in real.outputs(f"try {mode}")[-1]


async def test_a_later_message_changes_the_mode_and_the_model(tmp_path: Path) -> None:
    """Over a second: it starts the CLI, for five turns."""
    async with codex(tmp_path, AGENT_MODELS="other-model") as real:
        context = ""
        for number, (mode, can_write) in enumerate(
            (("plan", False), ("workspace-write", True), (None, True), ("read-only", False))
        ):
            path = real.workspace / f"{number}.txt"
            wishes: Json = {"mode": mode} if mode else {"model": "other-model"}
            members: Json = {"metadata": {"bridge": wishes}}
            members |= {"contextId": context} if context else {}
            steps = (run(f"touch {path}"), "the end")
            task = await real.client().send(script(f"try {number}", *steps), **members)
            assert (state(task), path.exists()) == ("completed", can_write), said(task)
            assert task["metadata"]["bridge"]["mode"] == (mode or "workspace-write")
            context = context_id(task)
        assert task["metadata"]["bridge"]["model"] == "other-model"
        assert real.model.requests[-1]["model"] == "other-model"


@pytest.mark.parametrize("word", ["yes", "no"])
async def test_to_leave_the_sandbox_takes_a_permission(real: Real, word: str) -> None:
    path = real.workspace / f"escalated-{word}.txt"
    wish = run_outside(f"touch {path}")
    chosen: Json = {"metadata": {"bridge": {"mode": "read-only"}}}
    task = await ask(
        real.in_mode("read-only"), script(f"escalate {word}", wish, "the end"), **chosen
    )
    assert "It must be." in said(task)
    task = await answer(real.in_mode("read-only"), task, word)
    assert (state(task), path.exists()) == ("completed", word == "yes")


async def test_with_force_nothing_is_asked(tmp_path: Path) -> None:
    async with codex(tmp_path, **FORCE) as real:
        path = real.home / "outside.txt"
        steps = (run(f"touch {path}"), patch("*** Add File: a.txt", "+a"), "done")
        task = await real.client().send(script("go", *steps))
        assert (state(task), artifact_text(task)) == ("completed", "done")
        assert path.exists()
        assert written(real.workspace / "a.txt") == "a\n"


async def test_a_tool_of_an_mcp_server_is_asked_for_and_may_ask_itself(real: Real) -> None:
    greet = {**tool("greet", who="you"), "namespace": "mcp__demo"}
    fit = {**tool("fit"), "namespace": "mcp__demo"}
    task = await ask(real.shared(), script("use it", greet, greet, fit, "the end"))
    assert 'run tool "greet"' in said(task)
    assert facts(task)["subject"]["input"] == {"who": "you"}
    task = await answer(real.shared(), task, "always")
    assert 'run tool "fit"' in said(task)
    task = await answer(real.shared(), task, "yes")
    assert (facts(task)["kind"], said(task).splitlines()[0]) == ("choice", "Which size?")
    task = await answer(real.shared(), task, "L")
    assert (state(task), artifact_text(task)) == ("completed", "the end")
    results = [fact["output"] for fact in told(task, "tool_result")]
    assert results[:2] == ["Hello you", "Hello you"]
    assert json.loads(results[2]) == {"action": "accept", "content": {"size": "L"}}


async def test_a_sub_agent_asks_too_and_its_words_are_its_own(real: Real) -> None:
    path = real.workspace / "sub.txt"
    sub = script("the part", run(f"touch {path}"), "from the sub-agent")
    spawn = {**tool("spawn_agent", message=sub), "namespace": "multi_agent_v1"}
    async with running_command() as command:
        # Both want to run something, in whatever order.
        task = await ask(
            real.client(), script("split", spawn, run_outside(command.line), "the whole")
        )
        asked = [said(task)]
        await real.client().send_now(real.client().answer_parts(task, "yes"), taskId=task_id(task))
        task = await once(real, task, lambda task: state(task) == "input-required")
        asked.append(said(task))
        await real.client().send_now(real.client().answer_parts(task, "yes"), taskId=task_id(task))
        task = await once(real, task, lambda task: "from the sub-agent" in str(task["artifacts"]))
        await command.begun()
        command.release()
        task = await once(real, task, lambda task: state(task) == "completed")
    assert path.exists()
    assert sum(str(path) in text for text in asked) == 1
    assert artifact_text(task).startswith("the whole")  # and what it says to the sub-agent's end
    (call,) = [fact for fact in told(task, "tool_call") if fact["name"] == "spawnAgent"]
    assert artifact_text(task, f"subagent-{call['id']}") == "from the sub-agent"
    (result,) = [fact for fact in told(task, "tool_result") if fact.get("parentId") == call["id"]]
    assert result["status"] == "completed"


async def once(real: Real, task: Json, wanted: Callable[[Json], bool]) -> Json:
    """The task as soon as it is as wanted."""
    async with asyncio.timeout(GONE_WITHIN):
        while True:
            found = await real.client().get(task_id(task))
            if wanted({"artifacts": [], **found}):
                return found
            await asyncio.sleep(0.02)


# --- plan mode -----------------------------------------------------------------------------------

PLAN: Json = {"metadata": {"bridge": {"mode": "plan"}}}


@pytest.mark.parametrize("word", ["Postgres", "a file will do"])
async def test_a_question_of_the_agent_is_answered(real: Real, word: str) -> None:
    options = [{"label": name, "description": "d"} for name in ("SQLite (Recommended)", "Postgres")]
    asked = {"header": "DB", "id": "db", "question": "Which database?", "options": options}
    steps = (tool("request_user_input", questions=[asked]), "thanks")
    task = await ask(real.in_mode("plan"), script(f"plan for {word}", *steps), **PLAN)
    assert (facts(task)["kind"], facts(task)["freeText"]) == ("choice", True)
    assert said(task).startswith("Which database?")
    task = await answer(real.in_mode("plan"), task, word)
    assert artifact_text(task) == "thanks"
    assert word in real.outputs(f"plan for {word}")[-1]


async def test_a_plan_is_part_of_the_answer(real: Real) -> None:
    plan = "Before.\n<proposed_plan>\n# Plan\n- a\n</proposed_plan>\nAfter."
    items = await real.in_mode("plan").collect(
        script("plan it", {"text": plan, "chunks": 9}), **PLAN
    )
    assert streamed_text(items) == "Before.\n# Plan\n- a\nAfter."
    task = await real.in_mode("plan").get(task_id(items[0]))
    assert task["metadata"]["bridge"]["mode"] == "plan"


# --- steering ------------------------------------------------------------------------------------


async def test_a_message_joins_the_turn_and_what_it_cut_does_not_count(tmp_path: Path) -> None:
    async with codex(tmp_path, BRIDGE_WHEN_BUSY="steer") as real:
        client = real.client()
        async with client.stream(script("Talk.", SLOW)) as items:
            item = await read_until(items, lambda item: streamed_text([item]) != "")
            context: Json = {"contextId": context_id(item)}
            steered = await client.send_now(script("Rather that.", "That."), **context)
            last = [item async for item in items][-1]
        assert task_id(steered) == task_id(item)
        assert state(last) == "completed"
        task = await client.get(task_id(item))
        assert artifact_text(task) == "That."
        assert len(real.requests("Talk.")) == 2


@pytest.mark.soak
async def test_messages_at_the_end_of_a_turn_are_all_heard(tmp_path: Path) -> None:
    """Each one comes in time for the turn, or too late, or in between: that is luck."""
    async with codex(tmp_path, BRIDGE_WHEN_BUSY="steer") as real:
        client = real.client()
        first = await client.send(script("begin", "begun"))
        context: Json = {"contextId": context_id(first)}
        for number in range(20):
            running = await client.send_now(script(f"turn {number}.", "one"), **context)
            begun = len(real.model.requests)
            async with asyncio.timeout(10):
                while len(real.model.requests) == begun and not number % 3:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            joined = script(f"joined {number}.", "two")
            task = await client.send(joined, **context)
            assert state(task) == "completed"
            assert artifact_text(task).endswith("two")
            if task_id(running) != task_id(task):
                assert state(await client.get(task_id(running))) == "completed"
            seen = json.dumps(real.requests(f"joined {number}.")[-1])
            assert seen.count(f"joined {number}. @@") == 1


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (401, "auth"),
        pytest.param(400, "agent-error", marks=pytest.mark.soak),
        pytest.param(429, "rate-limit", marks=pytest.mark.soak),
        pytest.param(500, "model-error", marks=pytest.mark.soak),
    ],
)
async def test_an_error_of_the_model_fails_the_task_and_the_next_one_is_well(
    real: Real, status: int, word: str
) -> None:
    client = real.client()
    items = await client.collect(script(f"fail with {status}", {"error": status}))
    assert (state(items[-1]), reason(items[-1])) == ("failed", word)
    if status == 401:
        assert "codex login" in said(items[-1])
    if status == 400:
        assert "the scripted error" in said(items[-1])
    task = await client.send(script("again", "well"), contextId=context_id(items[0]))
    assert (state(task), artifact_text(task)) == ("completed", "well")


async def test_a_stream_that_breaks_is_said_again_once(real: Real) -> None:
    step = {"text": "All of it.", "chunks": 5, "drop": True, "times": 1}
    items = await real.shared().collect(script("break once", step))
    assert states(items)[-1] == "completed"
    assert len(all_facts(items, "retry")) == 1
    task = await real.shared().get(task_id(items[0]))
    assert artifact_text(task) == streamed_text(items) == "All of it."


async def test_without_a_key_it_says_how_to_log_in(tmp_path: Path) -> None:
    async with codex(tmp_path, OPENAI_API_KEY="") as real:
        items = await real.client().collect(script("x", "y"))
        assert (state(items[-1]), reason(items[-1])) == ("failed", "auth")
        assert "OPENAI_API_KEY" in said(items[-1])


async def test_a_configuration_that_cannot_be_read_fails_the_task(tmp_path: Path) -> None:
    async with codex(tmp_path) as real:
        (real.home / ".codex/config.toml").write_text("model = [")
        items = await real.client().collect(script("x", "y"))
        assert state(items[-1]) == "failed"
        assert "config.toml" in said(items[-1])


# --- cancel --------------------------------------------------------------------------------------


async def cancelled_command(real: Real, **members: Any) -> Json:
    """A task that is cancelled while its command runs, which ends by that."""
    async with running_command() as command:
        steps = (run_outside(command.line), "never")
        task = await ask(real.client(), script("run", *steps), **members)
        async with real.client().stream("yes", taskId=task_id(task)) as items:
            await command.begun()
            assert state(await real.client().cancel(task_id(task))) == "canceled"
            assert state([item async for item in items][-1]) == "canceled"
        async with asyncio.timeout(GONE_WITHIN):
            await command.ended.wait()
    await real.nothing_left()
    return task


@pytest.mark.soak
async def test_a_cancel_ends_the_command_and_the_conversation_goes_on(fleeting: Real) -> None:
    client = fleeting.client()
    first = await client.send(script("to be remembered", "the old answer"))
    await cancelled_command(fleeting, contextId=context_id(first))
    task = await client.send(script("go on", "the new answer"), contextId=context_id(first))
    assert (state(task), artifact_text(task)) == ("completed", "the new answer")
    assert session_id(task) == session_id(first)
    seen = json.dumps(fleeting.requests("go on")[-1])
    assert "to be remembered" in seen
    assert "the old answer" in seen
    assert task["metadata"]["usage"]["inputTokens"] == 100, "of this turn alone"
    await fleeting.nothing_left()


async def test_a_command_in_the_background_ends_with_its_task(tmp_path: Path) -> None:
    async with codex(tmp_path, **FORCE) as real, running_command() as command:
        left = tool("exec_command", cmd=command.line, yield_time_ms=300)
        task = await real.client().send(script("run", left, "the end"))
        assert state(task) == "completed"
        async with asyncio.timeout(GONE_WITHIN):
            await command.ended.wait()


async def test_a_cancel_while_the_answer_streams_keeps_what_was_said(fleeting: Real) -> None:
    client = fleeting.client()
    async with client.stream(script("Talk.", SLOW)) as items:
        seen = [await read_until(items, lambda item: streamed_text([item]) != "")]
        assert state(await client.cancel(task_id(seen[0]))) == "canceled"
        seen += [item async for item in items]
    assert state(seen[-1]) == "canceled"
    assert artifact_text(await client.get(task_id(seen[0]))).startswith("word ")
    await fleeting.nothing_left()


@pytest.mark.soak
async def test_a_cancel_while_a_permission_is_open_leaves_nothing(fleeting: Real) -> None:
    path = fleeting.workspace / "never.txt"
    task = await ask(fleeting.client(), script("run", run(f"touch {path}"), "never"))
    assert state(await fleeting.client().cancel(task_id(task))) == "canceled"
    await fleeting.nothing_left()
    assert not path.exists()


async def test_a_cancel_while_the_model_is_silent(fleeting: Real) -> None:
    async with fleeting.client().stream(script("Hang.", {"hang": True})) as items:
        item = await read_until(items, lambda item: state(item) == "working")
        assert state(await fleeting.client().cancel(task_id(item))) == "canceled"
    await fleeting.nothing_left()


@pytest.mark.soak
async def test_a_cancel_while_the_cli_starts(fleeting: Real) -> None:
    task = await fleeting.client().send_now(script("never sent", "Done."))
    async with asyncio.timeout(10):
        while not fleeting.processes():  # noqa: ASYNC110 - nothing tells that it has been spawned
            await asyncio.sleep(0)
    assert state(await fleeting.client().cancel(task_id(task))) == "canceled"
    await fleeting.nothing_left()


@pytest.mark.soak
async def test_a_cancel_while_the_cli_waits_for_a_retry(fleeting: Real) -> None:
    broken = {"text": "half", "drop": True, "times": 1}
    async with fleeting.client().stream(script("Retry.", broken)) as items:
        item = await read_until(items, of_type("retry"))
        assert state(await fleeting.client().cancel(task_id(item))) == "canceled"
    await fleeting.nothing_left()


# --- resumed -------------------------------------------------------------------------------------


@pytest.mark.soak
async def test_a_conversation_goes_on_in_a_new_process(fleeting: Real) -> None:
    client = fleeting.client()
    first = await client.send(script("beginning", "Begun."))
    await fleeting.nothing_left()
    task = await client.send(script("and then", "More."), contextId=context_id(first))
    assert (state(task), artifact_text(task)) == ("completed", "More.")
    assert session_id(task) == session_id(first)
    assert "Begun." in json.dumps(fleeting.requests("and then")[-1])
    assert task["metadata"]["usage"]["inputTokens"] == 100, "of this turn alone"
    await fleeting.nothing_left()


async def test_a_conversation_that_is_gone_is_said_to_be(fleeting: Real) -> None:
    client = fleeting.client()
    first = await client.send(script("beginning", "Begun."))
    await fleeting.nothing_left()
    for path in (fleeting.home / ".codex").iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "config.toml":
            path.unlink()
    items = await client.collect(script("and then", "More."), contextId=context_id(first))
    assert (state(items[-1]), reason(items[-1])) == ("failed", "session-lost")
    task = await client.send(script("anew", "Anew."), contextId=context_id(first))
    assert (state(task), artifact_text(task)) == ("completed", "Anew.")
    await fleeting.nothing_left()


# --- a server that ends --------------------------------------------------------------------------


@pytest.mark.soak
async def test_a_question_outlives_the_server(tmp_path: Path) -> None:
    async with codex(tmp_path, BRIDGE_STATE_DIR=str(tmp_path / "state")) as real:
        path = real.workspace / "after.txt"
        task = await ask(real.client(), script("run", run(f"touch {path}"), "the end"))
        own = agents(real)
        await real.kill()
        await real.restart()
        assert state(await real.client().get(task_id(task))) == "input-required"
        task = await answer(real.client(), task, "yes")
        assert (state(task), path.exists()) == ("completed", True)
        assert artifact_text(task) == "the end"
        assert agents(real) == own, "the same process"
        assert len(real.requests("run")) == 2


async def test_a_command_outlives_the_server(tmp_path: Path) -> None:
    state_folder = {"BRIDGE_STATE_DIR": str(tmp_path / "state")}
    async with codex(tmp_path, **FORCE, **state_folder) as real, running_command() as command:
        task = await real.client().send_now(script("run", run(command.line), "the end"))
        await command.begun()
        await real.kill()
        await real.restart()
        assert not command.ended.is_set()
        async with real.client().subscribe(task_id(task)) as items:
            command.release()
            assert state([item async for item in items][-1]) == "completed"
        task = await real.client().get(task_id(task))
        assert artifact_text(task) == "the end"
        assert len(real.requests("run")) == 2
        task = await real.client().send(script("more", "More."), contextId=context_id(task))
        assert (state(task), artifact_text(task)) == ("completed", "More.")
        async with running_command() as other:
            again = script("again", run(other.line), "never")
            task = await real.client().send_now(again, contextId=context_id(task))
            await other.begun()
            await real.kill()
            await real.restart()
            assert state(await real.client().cancel(task_id(task))) == "canceled"
            async with asyncio.timeout(GONE_WITHIN):
                await other.ended.wait()
        await real.nothing_left()


def agents(real: Real) -> set[psutil.Process]:
    """The CLI's own processes."""
    return {one for one in real.processes() if one.name() == "codex"}
