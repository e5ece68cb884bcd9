"""No process of an agent outlives its task, however it hides: not the end of its task, a cancel, a
crash of its server and the next start; and while it lives, it is not the operator for any server.

In two shapes: as the user of the tests, and as an ordinary user without control groups. Each test
takes over a second, since it starts servers."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.sandbox import mark
from bridge.sandbox.profile import best
from tests.support import stray
from tests.support.bridge_process import BridgeProcess, bridge
from tests.support.client import Client, artifact_text, state
from tests.support.restart import finished

WITHIN = 60.0  # seconds
pytestmark = pytest.mark.skipif(
    best() != "landlock" or mark.problem() is not None,
    reason="this machine has no Landlock, or its processes cannot have marks",
)
shapes = pytest.mark.parametrize("ordinary", [False, True], ids=["tests-user", "ordinary-user"])
profiles = pytest.mark.parametrize("profile", ["landlock", "bwrap"])


@pytest.fixture
def workspace() -> Iterator[Path]:
    """Where an ordinary user can reach it."""
    with tempfile.TemporaryDirectory(prefix="strays-", dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        path = Path(folder, "workspace")
        path.mkdir()
        yield path


class Stray:
    """The process that the agent has left, found by its command line."""

    def __init__(self, workspace: Path) -> None:
        self.name = uuid.uuid4().hex
        self._workspace = workspace
        self._pidfd = -1

    async def begin(self, client: Client) -> str:
        """The id of a working task whose agent has left the process."""
        sent = await client.send_now(json.dumps({"stray": self.name, "until": "end"}))
        async with asyncio.timeout(WITHIN), client.subscribe(sent["id"]) as items:
            async for _ in items:
                if artifact_text(await client.get(sent["id"])):
                    break
        (pid,) = [int(one) for one in os.listdir("/proc") if one.isdigit() and self._is(one)]
        self._pidfd = os.pidfd_open(pid)
        return str(sent["id"])

    def _is(self, pid: str) -> bool:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return self.name.encode() in words

    async def complete(self, client: Client, task: str) -> str:
        """Let its task end. Returns the context."""
        (self._workspace / "end").touch()
        ended = await finished(client, task)
        assert state(ended) == "completed"
        return str(ended["contextId"])

    @property
    def lives(self) -> bool:
        return not select.select([self._pidfd], [], [], 0)[0]

    async def gone(self) -> None:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        loop.add_reader(self._pidfd, ended.set_result, None)
        try:
            async with asyncio.timeout(WITHIN):
                await ended
        finally:
            loop.remove_reader(self._pidfd)

    async def asks(self, server: BridgeProcess) -> int:
        """The status that it gets from the server with the operator's token."""
        _, _, token = server.credentials["Authorization"].partition(" ")
        made = self._workspace / "new"
        made.write_text(json.dumps([int(server.url.rpartition(":")[2]), token]))
        made.chmod(0o666)
        made.rename(self._workspace / "a.ask")
        told = self._workspace / "a.told"
        async with asyncio.timeout(WITHIN):
            while not told.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        status = int(told.read_text())
        told.unlink()
        return status

    def close(self) -> None:
        if self._pidfd >= 0:
            if self.lives:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.close(self._pidfd)


@pytest.fixture
def left(workspace: Path) -> Iterator[Stray]:
    one = Stray(workspace)
    yield one
    one.close()


@asynccontextmanager
async def serving(
    workspace: Path, ordinary: bool, state_folder: str = "state", **env: str
) -> AsyncIterator[tuple[BridgeProcess, Client]]:
    settings: dict[str, Any] = {
        "AGENT_ADAPTER": "jsonl",
        "AGENT_BINARY": sys.executable,
        "AGENT_ARGS": f"-I -S {stray.PROGRAM}",
        "BRIDGE_AUTH": "auto",
        "BRIDGE_SANDBOX": "landlock",
        "BRIDGE_STATE_DIR": str(workspace.parent / state_folder),
        "BRIDGE_DRAIN_MS": "0",
        "BRIDGE_STOP_GRACE_MS": "1000",
        **env,
    }
    async with bridge(workspace, ordinary=ordinary, **settings) as server:
        async with aiohttp.ClientSession(headers=server.credentials) as http:
            yield server, Client(http, server.url)


async def operator_status(server: BridgeProcess) -> int:
    """That of this process, which is no agent's."""
    async with aiohttp.ClientSession(headers=server.credentials) as http:
        async with http.get(f"{server.url}/tasks", headers={"A2A-Version": "1.0"}) as response:
            return response.status


@shapes
@profiles
async def test_it_ends_with_a_completed_task(
    workspace: Path, left: Stray, ordinary: bool, profile: str
) -> None:
    """The CLI goes on with the next message."""
    async with serving(workspace, ordinary, BRIDGE_SANDBOX=profile) as (server, client):
        context = await left.complete(client, await left.begin(client))
        await left.gone()
        assert "ended processes in the background" in server.log
        assert artifact_text(await client.send("{}", contextId=context)) == "2."


@shapes
async def test_it_lives_as_long_as_its_cli_if_the_operator_allows_it(
    workspace: Path, left: Stray, ordinary: bool
) -> None:
    async with serving(workspace, ordinary, BRIDGE_BACKGROUND_PROCESSES="keep") as (server, client):
        await left.complete(client, await left.begin(client))
        assert await left.asks(server) == 403
        assert await server.stop() == 0
        await left.gone()


@shapes
async def test_it_ends_with_a_canceled_task(workspace: Path, left: Stray, ordinary: bool) -> None:
    async with serving(workspace, ordinary) as (server, client):
        task = await left.begin(client)
        assert await left.asks(server) == 403
        assert state(await client.cancel(task)) == "canceled"
        await left.gone()


@shapes
@pytest.mark.parametrize("on_restart", ["fail", "reattach"])
async def test_it_ends_after_a_crash_of_its_server(
    workspace: Path, left: Stray, ordinary: bool, on_restart: str
) -> None:
    """Its task is completed by the next server, which is not its new parent; or it fails."""
    async with serving(workspace, ordinary) as (server, client):
        task = await left.begin(client)
        assert await server.stop(signal.SIGKILL) == -signal.SIGKILL
    async with serving(workspace, ordinary, "another") as (other, _):
        assert await left.asks(other) == 403
        assert await status(other) == 200
    assert left.lives  # it is not that server's
    async with serving(workspace, ordinary, BRIDGE_ON_RESTART=on_restart) as (server, client):
        if on_restart == "reattach":
            assert await left.asks(server) == 403
            await left.complete(client, task)
        await left.gone()
        assert await status(server) == 200


async def status(server: BridgeProcess) -> int:
    """That of this process with the operator's token."""
    headers = {"A2A-Version": "1.0", **server.credentials}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.get(f"{server.url}/tasks") as response,
    ):
        return response.status
