"""A server for the tests of MCP, and a client of the modern revision without capabilities."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bridge.transports.mcp.endpoint import McpLimits
from tests.support.mcp import Mcp
from tests.support.served import Server, serving


@pytest.fixture
def limits() -> McpLimits:
    """The limits of the server; a test replaces them by a parameter."""
    return McpLimits()


@pytest.fixture
async def server(workspace: Path, limits: McpLimits) -> AsyncIterator[Server]:
    async with serving(workspace, mcp=limits) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Mcp:
    return Mcp(server.http, server.url)
