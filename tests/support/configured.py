"""The real server with a CONFIG_FILE that a test changes, and its commands for operators."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from bridge.auth.credentials import new_token
from tests import CHECKOUT
from tests.support.bridge_process import BridgeProcess, bridge, scripted
from tests.support.client import Client
from tests.support.forked_command import run_forked


class Configured:
    """A server, its CONFIG_FILE, and a client of it."""

    def __init__(self, server: BridgeProcess, file: Path, http: aiohttp.ClientSession) -> None:
        self.server = server
        self.file = file
        self.http = http

    def client(self, secret: str) -> Client:
        return Client(self.http, self.server.url, headers={"Authorization": f"Bearer {secret}"})

    async def reload(self) -> tuple[int, Any]:
        url = f"{self.server.url}/admin/reload"
        async with self.http.post(url, headers=self.server.credentials) as answer:
            return answer.status, await answer.json()

    async def command(self, *arguments: str) -> tuple[int, str, str]:
        state_folder = self.server.token_file.parent
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.file.parent),
            "PYTHONPATH": str(CHECKOUT),
            "BRIDGE_STATE_DIR": str(state_folder),
        }
        done = await asyncio.to_thread(run_forked, arguments, cwd=self.file.parent, env=env)
        return done.returncode, done.stdout, done.stderr


def made(name: str, more: str = "") -> tuple[str, str]:
    """A new secret, and its table."""
    secret, _, table = new_token(name).partition("\n\n")
    return secret, f"{table}{more}\n"


@asynccontextmanager
async def configured(workspace: Path, text: str, **env: str) -> AsyncIterator[Configured]:
    """A server with this CONFIG_FILE."""
    file = workspace.parent / "config.toml"
    file.write_text(text)
    settings: Any = {**scripted(workspace), "CONFIG_FILE": str(file), "BRIDGE_AUTH": "auto", **env}
    timeout = aiohttp.ClientTimeout(total=60)
    async with (
        bridge(workspace, **settings) as server,
        aiohttp.ClientSession(timeout=timeout) as http,
    ):
        yield Configured(server, file, http)
