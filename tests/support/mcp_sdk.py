"""The official TypeScript client of MCP: each scenario is a run of tests/clients/js-mcp."""

from __future__ import annotations

import asyncio
import json
import os

from tests import CHECKOUT
from tests.support.mcp import MODERN, Json

DRIVER = CHECKOUT / "tests/clients/js-mcp/driver.mjs"
RUNS_WITHIN = 45.0  # seconds; the program gives up after 30


async def play(url: str, scenario: str, word: str = "", revision: str = MODERN) -> Json:
    """The JSON that the program printed. Its environment has no proxies."""
    assert (DRIVER.parent / "node_modules").exists(), "the client is missing: run scripts/install"
    process = await asyncio.create_subprocess_exec(
        "node",
        DRIVER,
        f"{url}/mcp",
        revision,
        scenario,
        word,
        env={"PATH": os.environ["PATH"]},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(RUNS_WITHIN):
            output, problems = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, problems.decode()
    found: Json = json.loads(output)
    return found
