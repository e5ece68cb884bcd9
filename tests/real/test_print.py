"""Real CLIs in their print modes, on scripted models, through the real server.

Each turn is a process of the CLI, which takes seconds. So each CLI has one conversation, and each
turn shows several things. The soak tier has the CLIs that take longest."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_row import Cli
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
    GONE_WITHIN,
    all_facts,
    reason,
    running_command,
    script,
    session_id,
    tool,
)
from tests.support.real_clis import PRINTING, Real, each, gone, serving

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

FORCE = {"AGENT_FORCE": "true"}
each_cli = each(PRINTING, "codex-exec")  # the quickest one


def facts_of(task: Json, kind: str) -> list[Json]:
    return [fact for fact in told(task) if fact["type"] == kind]


@each_cli
async def test_turns_are_one_conversation_even_after_a_cancel_and_a_restart(
    cli: Cli, tmp_path: Path
) -> None:
    """Six processes of the CLI, one after the other."""
    env = {"BRIDGE_STATE_DIR": str(tmp_path / "state")}
    async with serving(cli, tmp_path, **env, **FORCE) as real:
        first = await answered(real)
        context: Json = {"contextId": context_id(first)}
        await command_runs(real, context)
        await error_fails_the_turn(real, context)
        await cancel_ends_the_command(real, context)
        await real.server.stop()
        await real.restart(AGENT_FORCE="")
        items = await real.client().collect(script("go on", "the new answer"), **context)
        assert states(items)[-1] == "completed", items[-1]
        assert streamed_text(items) == "the new answer"
        assert session_id(await real.client().get(task_id(items[0]))) == session_id(first)
        seen = json.dumps(real.requests("go on")[-1])
        words = ("to be remembered", "Hello from the model.", "written.txt")
        assert [one for one in words if one not in seen] == []
        await command_is_denied(real)


async def answered(real: Real) -> Json:
    items = await real.client().collect(script("to be remembered", "Hello from the model."))
    assert states(items)[-1] == "completed", items[-1]
    assert streamed_text(items) == "Hello from the model."
    task = await real.client().get(task_id(items[0]))
    assert session_id(task)
    assert said(task) == "Hello from the model."
    if real.cli.name != "copilot-print":  # it reports requests only
        used = {"inputTokens": 100, "outputTokens": 20}
        assert used.items() <= task["metadata"]["usage"].items()
    return task


async def command_runs(real: Real, context: Json) -> None:
    """Without a question."""
    path = real.workspace / "written.txt"
    command = real.run(f"echo hello | tee {path}")
    items = await real.client().collect(script("run", command, "the end"), **context)
    assert states(items)[-1] == "completed", items[-1]
    assert path.read_text() == "hello\n"
    assert streamed_text(items).endswith("the end")
    (call,) = all_facts(items, "tool_call")
    (result,) = all_facts(items, "tool_result")
    assert call["name"] == result["name"]
    assert result["status"] == "completed"
    assert "hello" in json.dumps(result["output"])


async def error_fails_the_turn(real: Real, context: Json) -> None:
    """An error of the model; the next turn works."""
    task = await real.client().send(script("fail", {"error": 401}), **context)
    assert (state(task), reason(task)) == ("failed", "auth"), said(task)


async def cancel_ends_the_command(real: Real, context: Json) -> None:
    others = set(real.processes())
    async with running_command() as command:
        sent = script("run", real.run(command.line), "never")
        task = await real.client().send_now(sent, **context)
        await command.begun()
        own = set(real.processes()) - others
        assert own
        assert state(await real.client().cancel(task_id(task))) == "canceled"
        async with asyncio.timeout(GONE_WITHIN):
            await command.ended.wait()
    await gone(own)


async def command_is_denied(real: Real) -> None:
    """Without AGENT_FORCE, because no client can be asked."""
    path = real.workspace / "never.txt"
    task = await real.client().send(script("run", real.run(f"touch {path}"), "the end"))
    assert not path.exists()
    if real.cli.name == "opencode-run":
        assert (state(task), reason(task)) == ("failed", "denied")
        return
    assert state(task) == "completed", said(task)
    assert artifact_text(task).endswith("the end")
    results = facts_of(task, "tool_result")
    assert [one["status"] for one in results] == ["failed"] or real.cli.name == "codex-exec"


PROMPTS = ("/help", "!echo hi", "--help", "-", 'say "it\'s" $(so)')


@pytest.mark.parametrize(
    "prompts",
    [pytest.param(PROMPTS[:1], id="one"), pytest.param(PROMPTS[1:], marks=pytest.mark.soak)],
)
@each_cli
async def test_a_prompt_reaches_the_model_as_it_is(
    cli: Cli, tmp_path: Path, prompts: tuple[str, ...]
) -> None:
    """A process for each prompt: the first one in each run, the others in the soak tier."""
    async with serving(cli, tmp_path, **FORCE) as real:
        for text in prompts:
            task = await real.client().send(script(text, {"echo": True}))
            assert state(task) == "completed", (text, said(task))
            echoed = [part["text"] for part in json.loads(artifact_text(task))]
            guarded = cli.name in ("gemini-print", "copilot-print") and text.startswith("/")
            wanted = f"\u200b{text} @@" if guarded else f"{text} @@"
            assert any(one.rpartition("\n\n")[2].startswith(wanted) for one in echoed), echoed


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["plan", "autoEdit"])
async def test_a_mode_is_what_the_client_chose(tmp_path: Path, mode: str) -> None:
    """A process of gemini, whose own default is another mode than `plan`."""
    cli = next(one for one in PRINTING if one.name == "gemini-print")
    async with serving(cli, tmp_path, **FORCE) as real:
        path = real.workspace / "written.txt"
        write = tool("write_file", file_path=str(path), content="x")
        metadata: dict[str, Any] = {"bridge": {"mode": mode}}
        task = await real.client().send(script(mode, write, "the end"), metadata=metadata)
        assert state(task) == "completed", said(task)
        assert path.exists() is (mode == "autoEdit")
