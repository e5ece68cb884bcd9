"""Servers with several agents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from bridge.server.settings.load import load
from tests.support.client import Client, Json
from tests.support.served import Server, serving_loaded

CARD = "/.well-known/agent-card.json"


Write = Callable[[str], Path]


TWO = """
[agents.first]
description = "The first"

[agents.Second-2_x]
name = "Number two"
workspace = "FOLDER/two"
skills = [{id = "s", name = "S", description = "Does it", tags = ["t"]}]
"""


@asynccontextmanager
async def agents(path: Path) -> AsyncIterator[Server]:
    async with serving_loaded(load({"config_file": str(path)})) as server:
        yield server


def of(server: Server, agent: str, version: str = "1.0") -> Client:
    """A client of one agent."""
    return Client(server.http, f"{server.url}/agents/{agent}", version)


async def get(server: Server, path: str) -> Json:
    async with server.http.get(server.url + path) as response:
        assert response.status == 200, path
        found: Json = await response.json()
        return found
