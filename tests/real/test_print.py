"""Real CLIs in their print modes, on scripted models, through the real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.client import (
    Json,
    artifact_text,
    context_id,
    said,
    state,
    states,
    streamed_text,
    task_id,
    told,
)
from tests.support.real_claude_code import (
    all_facts,
    reason,
    running_command,
    script,
    session_id,
    tool,
)
from tests.support.real_clis import CLIS as EVERY
from tests.support.real_clis import Cli, Real, gone, serving

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(180),
]

NAMES = {
    "gemini": "gemini-print",
    "copilot": "copilot-print",
    "opencode": "opencode-run",
    "codex": "codex-exec",
}
CLIS = tuple(replace(cli, name=NAMES[cli.name]) for cli in EVERY if cli.name in NAMES)
FORCE = {"AGENT_FORCE": "true"}
each = pytest.mark.parametrize("cli", CLIS, ids=lambda cli: cli.name)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=CLIS, ids=lambda cli: cli.name)
async def real(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Real]:
    """Everything is allowed."""
    async with serving(request.param, tmp_path_factory.mktemp("print"), **FORCE) as server:
        yield server


def facts_of(task: Json, kind: str) -> list[Json]:
    return [fact for fact in told(task) if fact["type"] == kind]


# --- turns ---------------------------------------------------------------------------------------


async def test_a_message_is_answered(real: Real) -> None:
    items = await real.client().collect(script("Say it.", "Hello from the model."))
    assert states(items)[-1] == "completed", items[-1]
    assert streamed_text(items) == "Hello from the model."
    task = await real.client().get(task_id(items[0]))
    assert session_id(task)
    assert said(task) == "Hello from the model."
    if real.cli.name != "copilot-print":  # which tells of requests only
        used = {"inputTokens": 100, "outputTokens": 20}
        assert used.items() <= task["metadata"]["usage"].items()


async def test_turns_of_a_context_are_one_conversation(real: Real) -> None:
    client = real.client()
    first = await client.send(script("the first turn", "answer one"))
    second = await client.send(script("another", "answer two"), contextId=context_id(first))
    third = await client.send(script("the last", "answer three"), contextId=context_id(first))
    told = [artifact_text(task) for task in (first, second, third)]
    assert told == ["answer one", "answer two", "answer three"]
    assert session_id(first) == session_id(second) == session_id(third)
    seen = json.dumps(real.requests("the last")[-1])
    assert [one for one in ("answer one", "another", "answer two") if one not in seen] == []


@pytest.mark.parametrize("text", ["/help", "!echo hi", "--help", "-", 'say "it\'s" $(so)'])
async def test_a_prompt_reaches_the_model_as_it_is(real: Real, text: str) -> None:
    task = await real.client().send(script(text, {"echo": True}))
    assert state(task) == "completed", said(task)
    echoed = [part["text"] for part in json.loads(artifact_text(task))]
    guarded = real.cli.name in ("gemini-print", "copilot-print") and text.startswith("/")
    before = "\u200b" if guarded else ""
    wanted = f"{before}{text} @@"
    assert any(one.rpartition("\n\n")[2].startswith(wanted) for one in echoed), echoed


async def test_a_tool_runs_without_being_asked_for(real: Real) -> None:
    path = real.workspace / "written.txt"
    items = await real.client().collect(
        script("run", real.run(f"echo hello | tee {path}"), "the end")
    )
    assert states(items)[-1] == "completed", items[-1]
    assert path.read_text() == "hello\n"
    assert streamed_text(items).endswith("the end")
    (call,) = all_facts(items, "tool_call")
    (result,) = all_facts(items, "tool_result")
    assert call["name"] == result["name"]
    assert result["status"] == "completed"
    assert "hello" in json.dumps(result["output"])


async def test_a_cancel_ends_the_command_and_the_next_message_goes_on(real: Real) -> None:
    client = real.client()
    others = set(real.processes())
    first = await client.send(script("to be remembered", "the old answer"))
    async with running_command() as command:
        sent = script("run", real.run(command.line), "never")
        task = await client.send_now(sent, contextId=context_id(first))
        await command.begun()
        own = set(real.processes()) - others
        assert own
        assert state(await client.cancel(task_id(task))) == "canceled"
        async with asyncio.timeout(15):
            await command.ended.wait()
    await gone(own)
    items = await client.collect(script("go on", "the new answer"), contextId=context_id(first))
    assert states(items)[-1] == "completed", items[-1]
    assert streamed_text(items) == "the new answer"
    seen = json.dumps(real.requests("go on")[-1])
    assert "to be remembered" in seen
    assert "the old answer" in seen


async def test_what_the_model_answers_with_an_error_fails_the_turn_and_not_the_next(
    real: Real,
) -> None:
    client = real.client()
    task = await client.send(script("fail", {"error": 401}))
    assert (state(task), reason(task)) == ("failed", "auth"), said(task)
    task = await client.send(script("again", "well"), contextId=context_id(task))
    assert artifact_text(task) == "well", said(task)


# --- without AGENT_FORCE -------------------------------------------------------------------------


@each
async def test_a_command_is_refused_where_nobody_can_be_asked(cli: Cli, tmp_path: Path) -> None:
    async with serving(cli, tmp_path) as real:
        path = real.workspace / "never.txt"
        task = await real.client().send(script("run", real.run(f"touch {path}"), "the end"))
        assert not path.exists()
        if cli.name == "opencode-run":
            assert (state(task), reason(task)) == ("failed", "denied")
            return
        assert state(task) == "completed", said(task)
        assert artifact_text(task).endswith("the end")
        results = facts_of(task, "tool_result")
        assert [one["status"] for one in results] == ["failed"] or cli.name == "codex-exec"


@pytest.mark.parametrize("mode", ["plan", "autoEdit"])
async def test_a_mode_is_what_the_client_chose(tmp_path: Path, mode: str) -> None:
    cli = next(one for one in CLIS if one.name == "gemini-print")
    async with serving(cli, tmp_path, **FORCE) as real:
        path = real.workspace / "new.txt"
        write = tool("write_file", file_path=str(path), content="x")
        metadata: dict[str, Any] = {"bridge": {"mode": mode}}
        task = await real.client().send(script("write", write, "the end"), metadata=metadata)
        assert state(task) == "completed", said(task)
        assert path.exists() is (mode == "autoEdit")


# --- a server that ends --------------------------------------------------------------------------


@each
async def test_a_conversation_goes_on_after_a_restart(cli: Cli, tmp_path: Path) -> None:
    async with serving(cli, tmp_path, BRIDGE_STATE_DIR=str(tmp_path / "state"), **FORCE) as real:
        first = await real.client().send(script("to be remembered", "the old answer"))
        await real.server.stop()
        await real.restart()
        sent = script("go on", "the new answer")
        second = await real.client().send(sent, contextId=context_id(first))
        assert artifact_text(second) == "the new answer", said(second)
        assert session_id(first) == session_id(second)
        seen = json.dumps(real.requests("go on")[-1])
        assert "to be remembered" in seen
        assert "the old answer" in seen
