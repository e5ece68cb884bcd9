"""The conformance suite of MCP, the inspector, and the client of FastMCP. Their installation takes
20 s, and the suite runs for 15 s."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.support.mcp import MODERN
from tests.support.mcp_clients import Machine
from tests.support.mcp_conformance import NOT_PASSED, PASSED, failed_checks, run, run_program
from tests.support.mcp_fixtures import fixtures_before
from tests.support.served import Server, serving

pytestmark = [pytest.mark.real, pytest.mark.soak, pytest.mark.timeout(300)]


@pytest.fixture
async def server(workspace: Path) -> AsyncIterator[Server]:
    async with serving(workspace) as server:
        yield server


async def test_the_conformance_suite(server: Server, tmp_path: Path) -> None:
    """Where it needs tools of its own, it gets tools of the bridge with scripts."""
    async with fixtures_before(server.url) as url:
        failed = await failed_checks(url, tmp_path)
    assert {name for name, checks in failed.items() if not checks} == set(PASSED)
    assert {name for name, checks in failed.items() if checks} == set(NOT_PASSED)
    most = dict.fromkeys(("caching", "tasks-lifecycle", "tasks-mrtr-input"), 1)
    most |= {"server-stateless": 4, "tasks-request-headers": 1}
    assert {name: len(failed[name]) for name in most} == most


async def test_the_inspector(server: Server, workspace: Path, tmp_path: Path) -> None:
    """`--strict` reports schemas that some clients cannot use."""
    words = ("--method", "tools/list", "--strict", "--format", "json")
    program = Machine(tmp_path, workspace).program
    for target in (f"{server.url}/mcp",), (str(program), "mcp", "--url", server.url):
        status, output, problems = await run("mcp-inspector", "--cli", *target, *words)
        assert status == 0, problems
        assert len(json.loads(output)["result"]["tools"]) == 7
    call = ("--method", "tools/call", "--tool-name", "delegate", "--format", "json")
    called = (f"{server.url}/mcp", *call, "--tool-arg", "prompt=text hello")
    status, output, problems = await run("mcp-inspector", "--cli", *called)
    assert status == 0, problems
    assert json.loads(output)["result"]["structuredContent"]["text"] == "hello"


@pytest.mark.parametrize("mode", [MODERN, "legacy"])
async def test_the_client_of_fastmcp(server: Server, mode: str) -> None:
    python, program = CHECKOUT / ".venvs/fastmcp/bin/python", "tests/clients/fastmcp_client.py"
    assert python.exists(), "the client is missing: run scripts/install --soak"
    line = (str(python), str(CHECKOUT / program), f"{server.url}/mcp", mode)
    status, output, problems = await run_program(*line)
    assert status == 0, problems
    seen = json.loads(output)
    assert (len(seen["listed"]), seen["agents"], seen["forms"]) == (7, ["jsonl"], 1)
    assert seen["text"] == seen["resource"] == 'answered ["q", "", "yes"] ended'
