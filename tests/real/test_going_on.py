"""The real CLIs, on scripted models that want to go on by themselves: after the end of a task, no
model is asked any more, and the next message of the conversation has an answer of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.cli_row import Cli
from tests.support.client import Json, artifact_text, context_id, state
from tests.support.real_claude_code import answer, claude_code, script, tool
from tests.support.real_clis import CODEX, OVER_ACP, Real, each, serving

pytestmark = pytest.mark.real

AFTER = 3.0  # seconds in which a goal would have called the model several times
WAKE = 65.0  # seconds: a wake-up comes after a minute at the earliest
WAKE_UP = tool("ScheduleWakeup", delaySeconds=60, prompt="again", reason="so")
BACKGROUND = {"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "0"}


async def quiet(model_requests: list[Json], seconds: float = AFTER) -> None:
    """No model is asked meanwhile. There is nothing else to wait for."""
    before = len(model_requests)
    await asyncio.sleep(seconds)
    assert len(model_requests) == before


@each([CODEX, *(cli for cli in OVER_ACP if cli.name == "codex-acp")], "codex")
async def test_codex_has_no_goals(cli: Cli, tmp_path: Path) -> None:
    """A goal made it call the model at once, and again when its thread was resumed."""
    async with serving(cli, tmp_path, BRIDGE_SESSION_IDLE_MS="1") as real:
        client = real.client()
        goal = tool("create_goal", objective="count to a million")
        task = await client.send(script("begin", goal, "Begun."))
        assert (state(task), artifact_text(task)) == ("completed", "Begun.")
        assert "create_goal" not in str([body.get("tools") for body in real.model.requests])
        await quiet(real.model.requests)
        await real.nothing_left()
        task = await client.send(script("next", "mine"), contextId=context_id(task))
        assert artifact_text(task) == "mine"
        await quiet(real.model.requests)


async def test_claude_code_offers_no_tools_that_begin_turns(tmp_path: Path) -> None:
    async with claude_code(tmp_path) as real:
        client = real.client()
        task = await client.send(script("begin", WAKE_UP, "Over."))
        assert (state(task), artifact_text(task)) == ("completed", "Over.")
        offered = str([body.get("tools") for body in real.model.requests])
        for name in ("ScheduleWakeup", "Monitor", "CronCreate"):
            assert f"'name': '{name}'" not in offered
        await quiet(real.model.requests)


@pytest.mark.soak
async def test_claude_code_does_not_wake_up(tmp_path: Path) -> None:
    """It waits for a wake-up of a minute."""
    async with claude_code(tmp_path) as real:
        assert state(await real.client().send(script("begin", WAKE_UP, "Over."))) == "completed"
        await quiet(real.model.requests, WAKE)


@pytest.mark.parametrize("again", [False, True])
async def test_work_in_the_background_of_claude_code_is_stopped(
    tmp_path: Path, again: bool
) -> None:
    """Background tasks are switched on: the end of one begins a turn of the CLI."""
    force = {"AGENT_FORCE": "true", "IS_SANDBOX": "1"}
    async with claude_code(tmp_path, **BACKGROUND, **force) as real:
        client = real.client()
        step = tool("Bash", command="sleep 1", description="x", run_in_background=True)
        task = await client.send(script("begin", step, "Begun.", *["FOREIGN"] * 3))
        assert (state(task), artifact_text(task)) == ("completed", "Begun.")
        if again:  # a message that comes meanwhile
            async with asyncio.timeout(60):
                while "session.unasked" not in real.server.log:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        else:
            await asyncio.sleep(AFTER)
        assert "session.unasked" in real.server.log
        task = await client.send(script("next", "mine"), contextId=context_id(task))
        assert (state(task), artifact_text(task)) == ("completed", "mine")
        await quiet(real.model.requests)


async def allowed(real: Real, prompt: str, task: Json | None = None) -> Json:
    """Send the prompt, and allow everything."""
    context: Json = {"contextId": context_id(task)} if task else {}
    task = await real.client().send(prompt, **context)
    while state(task) == "input-required":
        task = await answer(real.client(), task, "yes")
    return task


@each([cli for cli in OVER_ACP if cli.name not in ("cline", "droid")])
async def test_an_agent_of_acp_is_quiet_after_its_task(tmp_path: Path, cli: Cli) -> None:
    """Its model starts a command in the background, as far as the agent can."""
    async with serving(cli, tmp_path) as real:
        step = cli.run("(sleep 1; echo late) &")
        assert isinstance(step, dict)
        step["input"] |= {"run_in_background": True, "is_background": True}
        task = await allowed(real, script("begin", step, "Begun.", *["FOREIGN"] * 3))
        assert state(task) == "completed"
        await quiet(real.model.requests)
        task = await allowed(real, script("next", "mine"), task)
        assert (state(task), artifact_text(task)) == ("completed", "mine")
