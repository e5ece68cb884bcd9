"""The mode and the model of a conversation: later choices of its clients, and reports of its CLI.
The agent is tests/support/acp_agent.py."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.server import registry
from tests.support.acp_served import again, agent, closed
from tests.support.client import Json, RpcError, artifact_text, context_id, said, state, task_id
from tests.support.liveness import listening
from tests.support.served import Server

MODES = ("plan", "default", "acceptEdits", "bypassPermissions")
MODELS = ("small", "big")


def mode(name: str) -> Json:
    return {"bridge": {"mode": name}}


def reports(name: str) -> str:
    """The line of a prompt with which the agent reports that its mode is another one now."""
    return "update " + json.dumps({"sessionUpdate": "current_mode_update", "currentModeId": name})


def told(task: Json) -> Any:
    """The params of the last request that the agent was told, or None."""
    return json.loads(artifact_text(task).rpartition("\n")[2])


def facts(task: Json) -> Json:
    found: Json = task["metadata"]["bridge"]
    return found


@asynccontextmanager
async def claude(
    workspace: Path, tmp_path: Path, options: Json | None = None, **settings: Any
) -> AsyncIterator[Server]:
    """An agent with these modes and models, whose process ends after each turn with `closed()`."""
    offered: Json = {
        "modes": {"currentModeId": "default", "availableModes": [{"id": one} for one in MODES]},
        "models": {"currentModelId": "small", "availableModels": [{"modelId": m} for m in MODELS]},
        "sessions": str(tmp_path / "sessions"),
        "capabilities": {"sessionCapabilities": {"resume": {}}},
    }
    settings = {"agent_models": MODELS, **settings}
    offered |= options or {}
    async with agent(workspace, offered, "claude-agent-acp", **settings) as server:
        yield server


async def next_mode(server: Server, task: Json) -> str | None:
    """The mode that the next process of the conversation is told; None: it is not told any."""
    await closed(server)
    after = await server.client().send("told session/set_mode", contextId=context_id(task))
    assert state(after) == "completed", said(after)
    params = told(after)
    assert params is None or facts(after)["mode"] == params["modeId"]
    return params["modeId"] if params else None


# --- what the CLI reports ------------------------------------------------------------------------


async def test_after_an_approved_plan_the_next_process_begins_without_it(
    workspace: Path, tmp_path: Path
) -> None:
    async with claude(workspace, tmp_path, bridge_session_idle_ms=1) as server:
        script = f"permit exit\n{reports('default')}"
        task = await server.client().send(script, metadata=mode("plan"))
        task = await again(server, task, "yes")
        assert (state(task), facts(task)["mode"]) == ("completed", "default")
        assert await next_mode(server, task) == "default"


async def test_a_plan_that_the_agent_began_is_kept_until_it_is_approved(
    workspace: Path, tmp_path: Path
) -> None:
    async with claude(workspace, tmp_path, bridge_session_idle_ms=1) as server:
        task = await server.client().send(f"text a\n{reports('plan')}")
        assert facts(task)["mode"] == "plan"
        assert await next_mode(server, task) == "plan"
        await closed(server)
        script = f"permit exit\n{reports('default')}"
        asked = await server.client().send(script, contextId=context_id(task))
        assert facts(asked)["mode"] == "plan"
        assert state(await again(server, asked, "yes")) == "completed"
        assert await next_mode(server, task) == "default"


@pytest.mark.parametrize(
    ("asks", "words", "kept"),
    [("", "", "plan"), ("permit x\n", "no", "plan"), ("permit x\n", "yes", "default")],
)
async def test_a_process_never_begins_in_a_wider_mode_than_was_allowed(
    workspace: Path, tmp_path: Path, asks: str, words: str, kept: str
) -> None:
    async with claude(workspace, tmp_path, bridge_session_idle_ms=1) as server:
        script = f"text a\n{asks}{reports('bypassPermissions')}"
        task = await server.client().send(script, metadata=mode("plan"))
        if words:
            task = await again(server, task, words)
        assert state(task) == "completed", said(task)
        assert await next_mode(server, task) == kept


async def test_an_agent_without_a_list_of_modes_keeps_its_plan(
    workspace: Path, tmp_path: Path
) -> None:
    options = {
        "modes": {"currentModeId": "code", "availableModes": [{"id": "code"}, {"id": "plan"}]},
        "sessions": str(tmp_path / "sessions"),
        "capabilities": {"sessionCapabilities": {"resume": {}}},
    }
    async with agent(workspace, options, bridge_session_idle_ms=1) as server:
        task = await server.client().send(f"text a\n{reports('plan')}")
        assert await next_mode(server, task) == "plan"


# --- what later messages choose ------------------------------------------------------------------


async def test_a_later_message_changes_the_mode_and_the_model_of_the_running_cli(
    workspace: Path, tmp_path: Path
) -> None:
    async with claude(workspace, tmp_path) as server:
        client = server.client()
        first = await client.send("pid")
        wishes = {"bridge": {"mode": "plan", "model": "big"}}
        script = "pid\ntext |\ntold session/set_mode"
        task = await client.send(script, contextId=context_id(first), metadata=wishes)
        pid, _, params = artifact_text(task).partition("|")
        assert pid == artifact_text(first)
        assert json.loads(params)["modeId"] == "plan"
        assert (facts(task)["mode"], facts(task)["model"]) == ("plan", "big")
        task = await client.send("told session/set_model", contextId=context_id(first))
        assert told(task)["modelId"] == "big"
        assert (facts(task)["mode"], facts(task)["model"]) == ("plan", "big")


async def test_a_later_choice_outlives_the_process(workspace: Path, tmp_path: Path) -> None:
    async with claude(workspace, tmp_path, bridge_session_idle_ms=1) as server:
        client = server.client()
        task = await client.send("text a", metadata=mode("plan"))
        same: Json = {"contextId": context_id(task)}
        task = await client.send("text b", metadata=mode("acceptEdits"), **same)
        assert await next_mode(server, task) == "acceptEdits"
        task = await client.send("text b", metadata=mode("plan"), **same)
        assert await next_mode(server, task) == "plan"


@pytest.mark.parametrize("when_busy", ["queue", "steer"])
async def test_a_choice_counts_for_its_message_and_those_behind_it(
    workspace: Path, tmp_path: Path, when_busy: str
) -> None:
    async with (
        claude(workspace, tmp_path, bridge_when_busy=when_busy) as server,
        listening() as live,
    ):
        client = server.client()
        script = f"wait {live.path} cli\ntold session/set_mode"
        first = await client.send_now(script, metadata=mode("plan"))
        await live.pid("cli")
        same: Json = {"contextId": context_id(first)}
        second = await client.send_now("told session/set_mode", metadata=mode("default"), **same)
        assert second["id"] != first["id"]
        await live.release("cli")
        last = await client.send("told session/set_mode", **same)
        first, second = [await client.get(task_id(one)) for one in (first, second)]
    assert [told(one)["modeId"] for one in (first, second, last)] == ["plan", "default", "default"]
    assert [facts(one)["mode"] for one in (first, second)] == ["plan", "default"]


async def test_what_the_cli_does_not_take_fails_the_task_and_changes_nothing(
    workspace: Path, tmp_path: Path
) -> None:
    offered = {"currentModeId": "default", "availableModes": [{"id": "default"}, {"id": "plan"}]}
    async with claude(workspace, tmp_path, {"modes": offered}) as server:
        client = server.client()
        task = await client.send("pid")
        same: Json = {"contextId": context_id(task)}
        failed = await client.send("pid", metadata=mode("acceptEdits"), **same)
        assert (state(failed), facts(failed)["reason"]) == ("failed", "configuration")
        assert "it offers: default, plan" in said(failed)
        after = await client.send("pid", **same)
        assert artifact_text(after) == artifact_text(task)
        assert facts(after)["mode"] == "default"


async def test_another_budget_or_directory_needs_another_context(
    workspace: Path, tmp_path: Path
) -> None:
    async with claude(workspace, tmp_path) as server:
        task = await server.client().send("text a")
        (workspace / "below").mkdir()
        with pytest.raises(RpcError, match="begin a new context"):
            bridge = {"bridge": {"cwd": "below"}}
            await server.client().send("text b", contextId=context_id(task), metadata=bridge)


async def test_an_answer_changes_no_mode(workspace: Path, tmp_path: Path) -> None:
    async with claude(workspace, tmp_path) as server:
        client = server.client()
        task = await client.send("permit x", metadata=mode("plan"))
        answer: Json = {"contextId": context_id(task), "taskId": task["id"]}
        with pytest.raises(RpcError, match="with the next message"):
            await client.send("yes", metadata=mode("default"), **answer)
        assert state(await client.send("yes", metadata=mode("plan"), **answer)) == "completed"


async def test_a_cli_that_takes_a_model_at_its_start_gets_a_new_process(
    workspace: Path, tmp_path: Path
) -> None:
    options = {
        "sessions": str(tmp_path / "sessions"),
        "capabilities": {"sessionCapabilities": {"resume": {}}},
    }
    assert registry.load("copilot").changes == ("mode",)
    async with agent(workspace, options, "copilot", agent_models=MODELS) as server:
        client = server.client()
        first = await client.send("pid")
        bridge = {"bridge": {"model": "big"}}
        after = await client.send("pid", contextId=context_id(first), metadata=bridge)
        assert state(after) == "completed", said(after)
        assert artifact_text(after) != artifact_text(first)
        assert facts(after)["sessionId"] == facts(first)["sessionId"]
