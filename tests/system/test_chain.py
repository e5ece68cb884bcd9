"""The chain by which an agent would become the operator, from end to end: it ends its server, takes
its port, collects a token there, and uses it at the next server, as a process that nothing connects
with its task. Each test takes seconds: it starts two servers, and the agent tries many times."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from bridge.sandbox import mark
from bridge.sandbox.profile import best
from tests.support.bridge_process import BridgeProcess, bridge
from tests.support.chain_cli import PROGRAM
from tests.support.children import launchers
from tests.support.client import Client, state
from tests.support.free_port import free_port

pytestmark = pytest.mark.skipif(
    best() != "landlock" or mark.problem() is not None,
    reason="this machine has no Landlock, or its processes cannot have marks",
)
WITHIN = 60.0  # seconds
ROUNDS = 3  # of all attempts of the agent


class Agent:
    """The process that tests/support/chain_cli.py leaves behind, by its report."""

    def __init__(self, workspace: Path) -> None:
        self.report = workspace / "report"

    @property
    def prompt(self) -> dict[str, Any]:
        return {"report": str(self.report)}

    @property
    def told(self) -> dict[str, Any]:
        if not self.report.exists():
            return {"rounds": 0, "pid": 0, "refused": 0, "worked": []}
        found: dict[str, Any] = json.loads(self.report.read_text())
        return found

    def aim(self, server: BridgeProcess) -> None:
        """At the server, its launcher and their helpers, with the operator's token."""
        pids = [server.process.pid, *(one.pid for one in launchers(server.process.pid))]
        _, _, token = server.credentials["Authorization"].partition(" ")
        part = self.report.with_suffix(".new")
        part.write_text(json.dumps({"pids": pids, "tokens": [token]}))
        part.chmod(0o644)
        part.rename(f"{self.report}.targets")

    async def tries(self) -> None:
        """Return after further rounds of all attempts."""
        before = self.told["rounds"]
        await until(lambda: self.told["rounds"] >= before + ROUNDS)

    @property
    def ended(self) -> bool:
        try:
            return psutil.Process(self.told["pid"]).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True


async def until(condition: Callable[[], object]) -> None:
    """For a condition without an event."""
    async with asyncio.timeout(WITHIN):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(
    workspace: Path, shape: str, port: int, **env: str
) -> AsyncIterator[tuple[BridgeProcess, Client]]:
    settings: dict[str, Any] = {
        "AGENT_ADAPTER": "jsonl",
        "AGENT_BINARY": sys.executable,
        "AGENT_ARGS": f"-I -S {PROGRAM}",
        "BRIDGE_AUTH": "auto",
        "BRIDGE_SANDBOX": "auto",
        "BRIDGE_STATE_DIR": str(workspace.parent / "state"),
        "BRIDGE_DRAIN_MS": "0",
        "PORT": str(port),
        **env,
    }
    async with bridge(workspace, ordinary=shape == "user", **settings) as server:
        async with aiohttp.ClientSession(headers=server.credentials) as http:
            yield server, Client(http, server.url)


@pytest.mark.parametrize("end", ["crash", "keep", "cancel", "restart"])
@pytest.mark.parametrize("shape", ["root", "user"])
async def test_an_agent_never_becomes_the_operator(workspace: Path, shape: str, end: str) -> None:
    agent, port = Agent(workspace), free_port()
    keep = {"BRIDGE_ON_STOP": "keep"} if end == "keep" else {}
    async with serving(workspace, shape, port, **keep) as (server, client):
        agent.aim(server)
        asked = await client.send(json.dumps({**agent.prompt, "port": port}))
        assert state(asked) == "input-required"
        await agent.tries()
        if end == "cancel":
            assert state(await client.cancel(asked["id"])) == "canceled"
            await until(lambda: agent.ended)
        assert server.process.returncode is None
        await server.stop(signal.SIGKILL if end == "crash" else signal.SIGTERM)
    outlives = end in ("crash", "keep")
    if outlives:
        waiting = asyncio.create_task(_use_the_token(workspace, port))  # while no server is there
        await agent.tries()
    else:
        await until(lambda: agent.ended)
    async with serving(workspace, shape, port) as (server, client):
        if outlives:
            assert await waiting == 200
            agent.aim(server)
            await agent.tries()
            assert state(await client.send("yes", taskId=asked["id"])) == "completed"
            await until(lambda: agent.ended)
        assert await _use_the_token(workspace, port) == 200
    assert agent.told["refused"] > 0
    assert agent.told["worked"] == []


async def _use_the_token(workspace: Path, port: int) -> int:
    """The status that a client of the operator gets with the token at the fixed address."""
    token = (workspace.parent / "state/token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "A2A-Version": "1.0"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.get(f"http://127.0.0.1:{port}/tasks") as response,
    ):
        return response.status
