"""Servers that use one state folder one after the other: real processes with the scripted program
as their agent, and queries for their tasks."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil

from bridge.process.procfs import MARKER
from tests.support.bridge_process import BridgeProcess, bridge, scripted
from tests.support.client import Client, Json, RpcError, artifact_text, state

WITHIN = 60.0  # seconds


class Place:
    """A workspace, and the state folder of its servers. `env`: settings of all of them."""

    def __init__(self, workspace: Path, http: aiohttp.ClientSession) -> None:
        self.workspace = workspace
        self.env: dict[str, str] = {}
        self.state = workspace.parent / "state"
        self._http = http

    @asynccontextmanager
    async def server(
        self, ready: bool = True, **env: str
    ) -> AsyncIterator[tuple[BridgeProcess, Client]]:
        settings = {
            **scripted(self.workspace),
            "BRIDGE_STOP_GRACE_MS": "1000",
            "BRIDGE_PUSH_ALLOW_PRIVATE": "true",
            "BRIDGE_SANDBOX": "auto",  # the processes that outlive the server are in it, too
            "BRIDGE_SANDBOX_UNIX_SOCKETS": "allow",  # for tests/support/liveness.py
        }
        settings |= self.env
        async with bridge(self.workspace, ready=ready, **{**settings, **env}) as server:
            yield server, Client(self._http, server.url)

    def processes(self) -> list[psutil.Process]:
        """The processes that servers of this folder have started, and that still run."""
        try:
            wanted = f"{(self.state / 'id').read_text().strip()}."
        except FileNotFoundError:
            return []
        return [one for one in psutil.process_iter() if _marker(one).startswith(wanted)]

    @property
    def sessions(self) -> list[str]:
        folder = self.state / "sessions"
        return os.listdir(folder) if folder.is_dir() else []


def _marker(process: psutil.Process) -> str:
    try:
        return process.environ().get(MARKER, "")
    except psutil.Error:
        return ""


async def kill(server: BridgeProcess) -> None:
    assert await server.stop(signal.SIGKILL) == -signal.SIGKILL


async def finished(client: Client, task_id: str) -> Json:
    """The task, once it has ended; also if its database is away at first."""
    async with asyncio.timeout(WITHIN):
        while True:
            try:
                async with client.subscribe(task_id) as items:
                    async for _ in items:
                        pass
            except RpcError as error:  # it has ended already, or cannot be read now
                if error.error["data"][0]["reason"] == "UNAVAILABLE":
                    await asyncio.sleep(0.05)
                    continue
            return await client.get(task_id)


async def asking(client: Client, task_id: str) -> Json:
    """The task, once it waits for its client."""
    async with asyncio.timeout(WITHIN), client.subscribe(task_id) as items:
        async for item in items:
            if state(item) == "input-required":
                break
    return await client.get(task_id)


async def heard(client: Client, task_id: str, text: str) -> None:
    """Return when the artifact of the task has this text."""
    async with asyncio.timeout(WITHIN), client.subscribe(task_id) as items:
        async for _ in items:
            if artifact_text(await client.get(task_id)) == text:
                return
