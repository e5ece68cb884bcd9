"""httpx as it comes, which gives up after 5 s without a byte; see also
tests/server/runtime/test_disconnect.py."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.support.client import artifact_text
from tests.support.liveness import listening
from tests.support.programs import missing
from tests.support.served import serving

PYTHON = CHECKOUT / ".venvs/a2a-sdk-v1/bin/python"
SEND = """
import httpx, json, sys
print(httpx.post(sys.argv[1], json=json.loads(sys.argv[2]), headers={"A2A-Version": "1.0"}).text)
"""
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not PYTHON.exists(), reason=missing("httpx")),
]


@pytest.mark.parametrize("seconds", [6, pytest.param(70, marks=pytest.mark.soak)])
async def test_a_send_that_takes_longer_than_its_time_limit_is_answered(
    workspace: Path, seconds: int
) -> None:
    """httpx gives up after 5 s without a byte; no byte of the result comes before that."""
    async with serving(workspace) as server, listening() as live:
        client = server.client()
        params = {"message": client.message(f"wait {live.path} a\ntext done")}
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
        process = await asyncio.create_subprocess_exec(
            str(PYTHON),
            "-c",
            SEND,
            f"{client.url}/a2a/jsonrpc",
            json.dumps(body),
            stdout=asyncio.subprocess.PIPE,
        )
        await live.pid("a")
        await asyncio.sleep(seconds)
        await live.release("a")
        async with asyncio.timeout(10):
            output, _ = await process.communicate()
    assert artifact_text(json.loads(output)["result"]["task"]) == "done"
