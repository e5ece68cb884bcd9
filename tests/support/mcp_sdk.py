"""The official TypeScript client of MCP: each scenario is a run of tests/clients/js-mcp."""

from __future__ import annotations

import json

from tests import CHECKOUT
from tests.support.mcp import MODERN, Json
from tests.support.mcp_conformance import run_program

DRIVER = CHECKOUT / "tests/clients/js-mcp/driver.mjs"


async def play(url: str, scenario: str, word: str = "", revision: str = MODERN) -> Json:
    """The JSON that the program printed; it gives up after 30 s."""
    assert (DRIVER.parent / "node_modules").exists(), "the client is missing: run scripts/install"
    line = ("node", str(DRIVER), f"{url}/mcp", revision, scenario, word)
    status, output, problems = await run_program(*line)
    assert status == 0, problems
    found: Json = json.loads(output)
    return found
