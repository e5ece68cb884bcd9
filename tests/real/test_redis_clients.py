"""A Redis client of another language: docs/examples/redis.mjs with ioredis."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.support.free_port import free_port
from tests.support.redis_broker import RedisBroker, token
from tests.support.served import serving

PAGE = (CHECKOUT / "docs/bindings.md").read_text("utf-8")
FOLDER = CHECKOUT / "tests/clients/js-v1"
WITHIN = 60.0  # seconds


@pytest.mark.real
async def test_ioredis_gets_a_stream(broker: RedisBroker, workspace: Path) -> None:
    """With the rights of the page. ioredis has no URL for a socket with a user, so Redis also has a
    port."""
    port = free_port()
    broker.kill()
    broker.start("--port", str(port), "--bind", "127.0.0.1")
    assert (FOLDER / "node_modules/ioredis").exists(), "run scripts/install"
    program = (CHECKOUT / "docs/examples/redis.mjs").read_text("utf-8")
    alice = PAGE.partition("<!-- acl -->\n```text\n")[2].splitlines()[0]
    async with broker.client() as admin:
        await admin.execute_command(*alice.replace("PASSWORD", "word").split())
    tokens = {"alice": token()}
    async with serving(workspace, tokens=tokens, bridge_redis_url=broker.url):
        process = await asyncio.create_subprocess_exec(
            *("node", "--input-type=module", "-", f"redis://alice:word@127.0.0.1:{port}", "alice"),
            "text hello\ndone",
            cwd=FOLDER,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(WITHIN):
            out, _ = await process.communicate(program.encode())
    assert process.returncode == 0
    first, *items, last = [json.loads(line)["result"] for line in out.decode().splitlines()]
    assert first["task"]["status"]["state"] == "TASK_STATE_SUBMITTED"
    assert "hello" in json.dumps(items)
    assert last["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
