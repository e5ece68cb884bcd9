"""The real Claude Code, on a scripted model, through the real server: turns and what is said."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.client import (
    Client,
    Json,
    RpcError,
    artifact_text,
    context_id,
    facts,
    said,
    state,
    states,
    streamed_text,
    task_id,
)
from tests.support.real_claude_code import (
    STREAMS,
    VERSIONS,
    Command,
    RealClaudeCode,
    all_facts,
    ask,
    bash,
    claude_code,
    file_part,
    running_command,
    script,
    streams,
    tool,
    tool_results,
    user_texts,
    write,
)
from tests.support.real_clis import CLAUDE_CODE

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

TRICKY = (
    "quotes \" and ' and \\ and `\n\n\ttab, not a NUL \\u0000, é, \ufb01, e\u0301, "
    "\u2028 \u2029 \x85 \x1e, \U0001f9d1\u200d\U0001f4bb \r\n end "
)
HOSTNAME = Path("/etc/hostname").read_text().strip()
PNG = b"\x89PNG\r\n\x1a\n" + bytes.fromhex(
    "0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc0000003010100"
    "c9fe92ef0000000049454e44ae426082"
)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=STREAMS)
async def real(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RealClaudeCode]:
    folder = tmp_path_factory.mktemp("claude")
    env = streams(request.param, folder)
    async with claude_code(folder, BRIDGE_THOUGHTS="true", **env) as server:
        yield server


# --- turns -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_message_is_answered(real: RealClaudeCode, version: str) -> None:
    task = await real.shared(version).send(script("Say it.", "Hello from the model."))
    assert state(task) == "completed"
    assert artifact_text(task) == "Hello from the model."
    used = {"inputTokens": 100, "outputTokens": 20}
    assert used.items() <= task["metadata"]["usage"].items()
    assert said(task) == "Hello from the model."
    assert task["metadata"]["bridge"]["cliVersion"] == CLAUDE_CODE.version


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
async def test_three_turns_of_a_context_are_one_process(real: RealClaudeCode, version: str) -> None:
    client = real.client(version)
    first = await client.send(script(f"one of {version}", "answer one"))
    context = context_id(first)
    second = await client.send(script("two", "answer two"), contextId=context)
    third = await client.send(script("three", "answer three"), contextId=context)
    assert len({real.agent(task).pid for task in (first, second, third)}) == 1
    assert [artifact_text(t) for t in (first, second, third)] == [
        "answer one",
        "answer two",
        "answer three",
    ]
    seen = real.requests(f"one of {version}")[-1]
    assert [m["content"][-1]["text"] for m in seen if m["role"] == "assistant"] == [
        "answer one",
        "answer two",
    ]
    prompts = [text for text in user_texts(seen) if "@@" in text]
    assert [text.split(" @@")[0] for text in prompts] == [f"one of {version}", "two", "three"]


async def test_a_message_sent_during_a_turn_is_the_next_turn(real: RealClaudeCode) -> None:
    client = real.client()
    first = await client.send_now(script("slow", {"text": "slowly", "ttfb": 0.5}))
    second = await client.send(script("next", "afterwards"), contextId=context_id(first))
    assert artifact_text(second) == "afterwards"
    first = await client.get(task_id(first))
    assert (state(first), artifact_text(first)) == ("completed", "slowly")


@pytest.mark.soak
async def test_two_contexts_work_at_the_same_time(real: RealClaudeCode) -> None:
    client = real.client()
    async with AsyncExitStack() as stack:
        streams = []
        for _ in range(2):
            command = await stack.enter_async_context(running_command())
            streams.append((command, await _allow(client, command, stack)))
        tasks = [await client.get(name) for _, (name, _) in streams]
        assert [state(task) for task in tasks] == ["working", "working"]
        assert real.agent(tasks[0]).pid != real.agent(tasks[1]).pid
        for command, (_, items) in streams:
            assert not command.ended.is_set()
            command.release()
            assert state([item async for item in items][-1]) == "completed"


async def _allow(
    client: Client, command: Command, stack: AsyncExitStack
) -> tuple[str, AsyncIterator[Json]]:
    """Have a command run; its task, and the stream that tells what becomes of it."""
    task = await ask(client, script("run it", bash(command.line), "it ran"))
    ids = {"taskId": task_id(task), "contextId": context_id(task)}
    items = await stack.enter_async_context(client.stream("allow", **ids))
    await command.begun()
    return task_id(task), items


async def test_the_model_that_the_operator_chose_is_asked(tmp_path: Path) -> None:
    async with claude_code(tmp_path, AGENT_MODEL="claude-haiku-4-5") as real:
        task = await real.client("0.3").send(script("hi", "hello"))
        assert task["metadata"]["bridge"]["model"] == "claude-haiku-4-5"
        assert {body["model"] for body in real.model.requests} == {"claude-haiku-4-5"}


# --- what is said ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_streamed_text_is_byte_for_byte_the_final_one(
    real: RealClaudeCode, version: str
) -> None:
    text = TRICKY * 3
    client = real.shared(version)
    items = await client.collect(script("Talk.", {"text": text, "chunks": 60, "delay": 0.02}))
    assert states(items) == ["submitted", "working", "completed"]
    assert streamed_text(items) == text
    assert artifact_text(await client.get(task_id(items[0]))) == text
    pieces = [item for item in items if "append" in str(item) and "assistant-response" in str(item)]
    assert len(pieces) > 5, "it came in pieces"


async def test_a_burst_of_5000_deltas_arrives_complete_and_in_order(real: RealClaudeCode) -> None:
    text = " ".join(map(str, range(5000)))
    client = real.shared("0.3")
    items = await client.collect(script("Count.", {"text": text, "chunks": 5000}))
    assert streamed_text(items) == text
    assert artifact_text(await client.get(task_id(items[0]))) == text


async def test_text_before_and_after_a_tool_call_is_one_answer(real: RealClaudeCode) -> None:
    items = await real.shared().collect(
        script("Go.", tool("Bash", "Before. ", command="echo hi", description="x"), "After.")
    )
    assert streamed_text(items) == "Before. \n\nAfter."


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_tool_call_and_its_result_are_told(real: RealClaudeCode, version: str) -> None:
    items = await real.shared(version).collect(script("Go.", bash("echo hi"), "Done."))
    call, result = [item for item in items if facts(item)]
    assert said(call) == "Using tool: Bash"
    assert said(result) == "Tool Bash finished: hi"
    called, returned = facts(call), facts(result)
    assert called["id"] == returned["id"]
    assert called["input"] == {"command": "echo hi", "description": "Run it"}
    assert (called["type"], called["status"]) == ("tool_call", "running")
    assert returned | {"id": "-"} == {
        "type": "tool_result",
        "id": "-",
        "name": "Bash",
        "status": "completed",
        "output": "hi",
    }


async def test_a_tool_that_fails_is_told_and_the_turn_goes_on(real: RealClaudeCode) -> None:
    path = real.workspace / "missing"
    items = await real.shared("0.3").collect(
        script("Go.", tool("Read", file_path=str(path)), "It is not there.")
    )
    (result,) = all_facts(items, "tool_result")
    assert (result["name"], result["status"]) == ("Read", "failed")
    assert states(items)[-1] == "completed"


async def test_thoughts_are_told_apart_from_the_answer(real: RealClaudeCode) -> None:
    step = {"thinking": "Hm.\nLet me see.", "text": "Yes."}
    items = await real.shared().collect(script("Think.", step))
    assert all_facts(items, "thought") == [{"type": "thought", "text": "Hm.\nLet me see."}]
    assert streamed_text(items) == "Yes."


async def test_the_to_do_list_is_told_as_a_plan(tmp_path: Path) -> None:
    enabled = {"CLAUDE_CODE_ENABLE_TODO_TOOLS": "1", "CLAUDE_CODE_ENABLE_TASKS": "0"}
    done = {"content": "Measure", "status": "completed", "activeForm": "Measuring"}
    doing = {"content": "Cut", "status": "in_progress", "activeForm": "Cutting"}
    load = tool("ToolSearch", query="select:TodoWrite", max_results=1)
    async with claude_code(tmp_path, **enabled) as real:
        steps = (load, tool("TodoWrite", todos=[done, doing]), "Done.")
        items = await real.client("0.3").collect(script("Go.", *steps))
        (plan,) = all_facts(items, "plan")
        assert plan["entries"] == [
            {"text": "Measure", "status": "completed"},
            {"text": "Cut", "status": "in_progress"},
        ]
        assert "Plan: 1 of 2 done" in [said(item) for item in items]
        results = {fact["name"]: fact["status"] for fact in all_facts(items, "tool_result")}
        assert results["TodoWrite"] == "completed", "the CLI has this tool"


async def test_the_words_of_a_sub_agent_are_not_the_answer(real: RealClaudeCode) -> None:
    inner = script(
        "inner", tool("Bash", "I look. ", command="echo inner", description="x"), "inner answer"
    )
    agent = tool("Agent", description="d", prompt=inner, subagent_type="general-purpose")
    client = real.shared()
    items = await client.collect(script("outer", agent, "outer answer"))
    assert streamed_text(items) == "outer answer"
    (called,) = [fact for fact in all_facts(items, "tool_call") if fact["name"] == "Agent"]
    (shell,) = [fact for fact in all_facts(items, "tool_call") if fact["name"] == "Bash"]
    assert shell["parentId"] == called["id"]
    results = {fact["name"]: fact for fact in all_facts(items, "tool_result")}
    assert results["Bash"]["parentId"] == called["id"]
    assert "inner answer" in results["Agent"]["output"]
    assert artifact_text(await client.get(task_id(items[0]))) == "outer answer"


# --- what is sent ------------------------------------------------------------------------------


BEGINNINGS = (
    *("/cost", "/nosuch thing", "-p", "--help", "!touch pwned", "#remember"),
    "@/etc/hostname what?",
)


async def test_a_prompt_reaches_the_model_verbatim(real: RealClaudeCode) -> None:
    """Turns of one conversation, in which no tool is used."""
    client = real.client("0.3")
    context: Json = {}
    for beginning in BEGINNINGS:
        text = script(beginning, {"echo": True})
        task = await client.send(text, **context)
        context = {"contextId": context_id(task)}
        received = json.loads(artifact_text(task))
        own = [part for part in received if "<system-reminder>" not in part.get("text", "")]
        assert own == [{"type": "text", "text": text}], beginning
        assert HOSTNAME not in json.dumps(received), beginning
        assert tool_results(real.requests(json.dumps(text)[1:-1])[-1]) == [], beginning
        assert not (real.workspace / "pwned").exists(), beginning


async def echo(client: Client, part: Json) -> list[Json]:
    """What the model receives of a message with `part`, without its text."""
    text = client.text_part(script("Look.", {"echo": True}))
    received = json.loads(artifact_text(await client.send([part, text])))
    return [p for p in received if "<system-reminder>" not in str(p) and "@@" not in str(p)]


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_image_reaches_the_model(real: RealClaudeCode, version: str) -> None:
    client = real.shared(version)
    seen, *_ = await echo(client, file_part(client, "image/png", PNG, "dot.png"))
    assert seen == {"type": "image", "media_type": "image/png", "bytes": len(PNG)}


async def test_a_text_file_reaches_the_model_with_its_name(real: RealClaudeCode) -> None:
    client = real.shared()
    part = file_part(client, "text/x-python", "print('é')\n".encode(), "a.py")
    (seen,) = await echo(client, part)
    assert "a.py" in seen["text"]
    assert "print('é')\n" in seen["text"]


async def test_a_pdf_reaches_the_model_as_a_document(real: RealClaudeCode) -> None:
    client = real.shared("0.3")
    pdf = b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"
    (seen,) = await echo(client, file_part(client, "application/pdf", pdf, "a.pdf"))
    assert seen == {"type": "document", "media_type": "application/pdf", "bytes": len(pdf)}


@pytest.mark.parametrize("version", VERSIONS)
async def test_data_reaches_the_model_as_json(real: RealClaudeCode, version: str) -> None:
    client = real.shared(version)
    kind = {"kind": "data"} if version == "0.3" else {}
    (seen,) = await echo(client, {**kind, "data": {"a": [1, "é"]}})
    assert json.loads(seen["text"]) == {"a": [1, "é"]}


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_file_elsewhere_is_refused_before_a_process_is_started(
    real: RealClaudeCode, version: str
) -> None:
    client = real.client(version)
    before = set(real.processes()), len(real.model.requests)
    url = "https://example.org/a.wav"
    part = {"url": url} if version == "1.0" else {"kind": "file", "file": {"uri": url}}
    with pytest.raises(RpcError) as refused:
        await client.send([part])
    assert refused.value.code == -32005
    assert (set(real.processes()), len(real.model.requests)) == before


async def test_a_file_that_the_agent_writes_is_told_with_its_diff(tmp_path: Path) -> None:
    async with claude_code(tmp_path, AGENT_ARGS="--permission-mode acceptEdits") as real:
        path = real.workspace / "a.txt"
        edit = tool("Edit", file_path=str(path), old_string="one", new_string="two")
        items = await real.client().collect(script("Go.", write(path, "one\n"), edit, "Done."))
        assert path.read_text() == "two\n"
        changes = [fact["changes"][0] for fact in all_facts(items, "tool_result")]
        assert [(c["path"], c["kind"]) for c in changes] == [
            (str(path), "create"),
            (str(path), "update"),
        ]
        assert "\n-one\n+two\n" in changes[1]["diff"]
