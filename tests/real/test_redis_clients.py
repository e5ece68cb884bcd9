"""A Redis client of another language: ioredis, with the rights of docs/transports.md."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.support.redis_broker import RedisBroker, token
from tests.support.served import serving

PAGE = (CHECKOUT / "docs/transports.md").read_text("utf-8")
FOLDER = CHECKOUT / "tests/clients/js-v1"
WITHIN = 45.0  # seconds


@pytest.mark.real
async def test_ioredis_gets_a_stream_and_answers_a_question(
    broker: RedisBroker, workspace: Path
) -> None:
    assert (FOLDER / "node_modules/ioredis").exists(), "run scripts/install"
    alice = PAGE.partition("<!-- acl -->\n```text\n")[2].splitlines()[0]
    async with broker.client() as admin:
        await admin.execute_command(*alice.replace("PASSWORD", "word").split())
    tokens = {"alice": token()}
    async with serving(workspace, tokens=tokens, bridge_redis_url=broker.url):
        process = await asyncio.create_subprocess_exec(
            *("node", FOLDER / "redis.mjs", str(broker.socket), "alice", "word", "alice"),
            "text hello\npermit q May I?\ndone",
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(WITHIN):
            out, _ = await process.communicate()
    assert process.returncode == 0
    first, *items, last = [json.loads(line)["result"] for line in out.decode().splitlines()]
    assert first["task"]["status"]["state"] == "TASK_STATE_SUBMITTED"
    assert "hello" in json.dumps(items)
    assert items[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert last["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
