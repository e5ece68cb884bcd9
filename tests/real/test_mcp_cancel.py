"""A canceled call of MCP leaves no process of the real CLI, and none of its command.

Each case is a start of a CLI: 5 to 25 seconds. `tests/server/mcp` has a scripted agent.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.cli_row import Cli
from tests.support.mcp import Mcp, shown
from tests.support.mcp_clients import MCP_CLIENTS
from tests.support.real_claude_code import command_line, script
from tests.support.real_clis import Real, each, serving

pytestmark = [pytest.mark.real, pytest.mark.soak, pytest.mark.timeout(120)]
CLIS = [one.cli for one in MCP_CLIENTS]
SECONDS = "731"
WITHIN = 60.0


async def runs_the_command(real: Real) -> None:
    """Return when the command of the CLI runs."""
    async with asyncio.timeout(WITHIN):
        while not any(command_line(one)[-2:] == ["sleep", SECONDS] for one in real.processes()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@each(CLIS)
async def test_a_canceled_task_leaves_no_process(cli: Cli, tmp_path: Path) -> None:
    env = {"AGENT_FORCE": "true", "BRIDGE_SESSION_IDLE_MS": "1", **cli.force}
    async with serving(cli, tmp_path, **env) as real:
        client = Mcp(real.http, real.server.url, tasks=True)
        prompt = script("run", real.run(f"sleep {SECONDS}"), "ended")
        created = await client.tool("delegate", {"prompt": prompt})
        await runs_the_command(real)
        assert (await client.task("cancel", created["taskId"]))["resultType"] == "complete"
        await real.nothing_left()
        found = shown(await client.tool("wait", {"task_id": created["taskId"]}))
        assert found["state"] == "canceled"
