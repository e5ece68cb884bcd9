"""A server for the tests of MCP, and a client of the modern revision without capabilities."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.mcp import Mcp
from tests.support.served import Server, serving


@pytest.fixture
async def server(workspace: Path) -> AsyncIterator[Server]:
    async with serving(workspace) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Mcp:
    return Mcp(server.http, server.url)
