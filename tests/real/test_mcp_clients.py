"""Real MCP clients delegate to another real CLI behind the real server; both have a scripted model.
A run prints the table of its results; docs/mcp.md has the expected one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.client import Json, state, task_id
from tests.support.mcp_clients import MCP_CLIENTS, SCENARIOS, Machine, McpClient
from tests.support.real_claude_code import answer, script
from tests.support.real_clis import Real, serving

pytestmark = [pytest.mark.real, pytest.mark.timeout(200)]
LINK = "coding-agent-bridge answer"
WITHIN = 60.0  # seconds that each wait may take
EACH_CLIENT = pytest.mark.parametrize(
    "client",
    [
        pytest.param(one, id=one.name, marks=[pytest.mark.soak] * (one.name != "claude-code"))
        for one in MCP_CLIENTS
    ],
)


@asynccontextmanager
async def bridge_for(
    client: McpClient, folder: Path, **env: str
) -> AsyncIterator[tuple[Real, Machine]]:
    """A bridge and a machine with a home, on which it is found without configuration."""
    async with serving(client.agent, folder, **env) as real:
        yield real, Machine(real.home, real.workspace)


async def asking(real: Real) -> Json:
    """The task that waits for a person."""
    client = real.client()
    async with asyncio.timeout(WITHIN):
        while True:
            listed = await client.call("ListTasks", {"status": "TASK_STATE_INPUT_REQUIRED"})
            if listed["tasks"]:
                return await client.get(task_id(listed["tasks"][0]))
            await asyncio.sleep(0.1)


def told(model: Any) -> str:
    """What the client showed its model of the tools' results. Scripts are no part of it."""
    longest: list[Json] = max((body["messages"] for body in model.requests), key=len, default=[])
    messages = [json.dumps(message) for message in longest]
    return "\n".join(one.replace("\\", "") for one in messages if "@@" not in one)


async def answered(real: Real, model: Any) -> None:
    """Allow the command over A2A, after the client has shown the question to its model."""
    async with asyncio.timeout(WITHIN):
        while LINK not in told(model):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    task = await answer(real.client(), await asking(real), "yes")
    assert state(task) == "completed"


@EACH_CLIENT
async def test_a_client_delegates_waits_and_cancels(client: McpClient, tmp_path: Path) -> None:
    """One conversation of the client with a step for each column of the table."""
    async with bridge_for(client, tmp_path) as (real, machine), client.cli.model() as model:
        client.cli.configure(model.url, real.home)
        env = client.cli.environment(model.url)
        added = client.add(machine, await machine.printed(client.name))
        if added:
            assert (await machine.run(added, env))[0] == 0
        last = {"task_id": "$TASK", "after": 10**6, "wait_seconds": 50}
        prompt = script(
            "please",
            client.tool("list_agents"),
            client.tool("delegate", prompt=script("one", "the first answer")),
            client.tool("delegate", prompt=script("two", "the second answer"), wait_seconds=0),
            client.tool("wait", **last),
            client.tool(
                "delegate", prompt=script("ask", real.run_outside("touch made"), "allowed")
            ),
            client.tool("wait", **last),
            client.tool("delegate", prompt=script("run", {"hang": True}), wait_seconds=3),
            client.tool("cancel", task_id="$TASK"),
            "all done",
        )
        stdin = prompt if client.on_stdin else ""
        line = [client.cli.path(), *client.run(prompt)]
        run = asyncio.create_task(machine.run(line, env, stdin))
        if "question" not in client.no:
            await answered(real, model)
        status, output = await run
        assert status == 0
        assert "all done" in output
        found = told(model)
        results = {
            "discover": client.agent.name in found,
            "delegate": "the first answer" in found,
            "wait": "Call wait with" in found and "the second answer" in found,
            "question": LINK in found and "allowed" in found,
            "cancel": '"state":"canceled"' in found or ") is canceled" in found,
        }
        print(f"{client}: {results}")
        assert list(results) == list(SCENARIOS)
        assert {name for name, ok in results.items() if not ok} == set(client.no), found


def started(machine: Machine) -> list[Json]:
    """The descriptions of the bridges that the clients have started."""
    state_home = machine.home / ".local/state/coding-agent-bridge"
    return [json.loads(path.read_text()) for path in state_home.glob("*/server.json")]


@EACH_CLIENT
async def test_a_client_that_only_lists_starts_no_bridge(client: McpClient, tmp_path: Path) -> None:
    """The client runs twice: it lists the tools, and it calls one."""
    home, workspace = tmp_path / "home", tmp_path / "workspace"
    home.mkdir()
    workspace.mkdir()
    machine = Machine(home, workspace)
    async with client.cli.model() as model:
        client.cli.configure(model.url, home)
        env = {**client.cli.environment(model.url), "AGENT_MODEL": ""}
        added = client.add(machine, await machine.printed(client.name))
        if added:
            assert (await machine.run(added, env))[0] == 0
        for steps, bridges in (((), 0), ((client.tool("list_agents"),), 1)):
            prompt = script("please", *steps, "all done")
            line = [client.cli.path(), *client.run(prompt)]
            status, output = await machine.run(line, env, prompt if client.on_stdin else "")
            found = started(machine)
            for one in found:
                os.kill(one["pid"], signal.SIGTERM)
            assert (status, len(found)) == (0, bridges), output
            assert "all done" in output
        assert str(workspace) in told(model)


@pytest.mark.soak
@pytest.mark.parametrize("client", MCP_CLIENTS, ids=str)
async def test_the_printed_configuration_for_http(client: McpClient, tmp_path: Path) -> None:
    """The client takes the token from a variable, to which the configuration refers."""
    async with (
        bridge_for(client, tmp_path, BRIDGE_AUTH="auto") as (real, machine),
        client.cli.model() as model,
    ):
        client.cli.configure(model.url, real.home)
        real.http.headers.update(real.server.credentials)
        token = real.server.credentials["Authorization"].removeprefix("Bearer ")
        env = {**client.cli.environment(model.url), "BRIDGE_TOKEN": token}
        text = await machine.printed(client.name, "--http", "--url", real.server.url)
        assert token not in text
        added = client.add(machine, text)
        if added:
            assert (await machine.run(added, env))[0] == 0
        delegated = client.tool("delegate", prompt=script("one", "the first answer"))
        prompt = script("please", client.tool("list_agents"), delegated, "all done")
        stdin = prompt if client.on_stdin else ""
        line = [client.cli.path(), *client.run(prompt)]
        status, output = await machine.run(line, env, stdin)
        assert status == 0
        assert "all done" in output
        found = told(model)
        assert client.agent.name in found
        assert "the first answer" in found
