"""The beginning of a turn: the limit of a handshake, and when a task is working."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.acp_agent import PROGRAM
from tests.support.client import Client, Json, RpcError, state, states
from tests.support.liveness import Liveness
from tests.support.restart import Place, kill
from tests.support.served import serving

WITHIN = 60.0
# Reads what it is told, and answers nothing.
MUTE = ("-c", "while read -r line; do :; done")
# The same, and tells the test that it was told something.
TOLD = """
import os, socket, sys
sys.stdin.readline()
test = socket.socket(socket.AF_UNIX)
test.connect(sys.argv[1])
test.sendall(b"agent %d\\n" % os.getpid())
for line in sys.stdin: pass
"""


async def started(client: Client, text: str) -> list[Json]:
    """Send, and follow the task until it is working."""
    items = []
    async with asyncio.timeout(WITHIN), client.stream(text) as stream:
        async for item in stream:
            items.append(item)
            if state(item) not in ("", "submitted"):
                break
    return items


@pytest.mark.parametrize("adapter", ["acp", "codex"])
async def test_a_handshake_that_is_never_answered_ends_the_task(
    workspace: Path, adapter: str
) -> None:
    """And gives its slot to the next one."""
    settings: Json = {
        "agent_adapter": adapter,
        "agent_binary": "/bin/sh",
        "agent_args": MUTE,
        "bridge_start_timeout_ms": 400,
        "bridge_max_sessions": 1,
    }
    async with serving(workspace, **settings) as server:
        client = server.client()
        for _ in range(2):
            async with asyncio.timeout(WITHIN):
                task = await client.send("text a")
            assert state(task) == "failed"
            assert task["metadata"]["bridge"]["reason"] == "start"
            text = task["status"]["message"]["parts"][0]["text"]
            assert "0.4 s" in text and "BRIDGE_START_TIMEOUT_MS" in text


async def test_a_turn_that_is_silent_after_its_handshake_is_not_ended(
    workspace: Path, live: Liveness
) -> None:
    """The limit is that of the handshake alone: this turn takes three times as long."""
    settings: Json = {"agent_adapter": "acp", "agent_args": (PROGRAM, "{}")}
    async with serving(workspace, bridge_start_timeout_ms=2000, **settings) as server:
        client = server.client()
        items = await started(client, f"wait {live.path} turn")
        assert states(items) == ["submitted", "working"]  # nothing was said yet
        await live.pid("turn")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.5), client.subscribe(items[0]["task"]["id"]) as stream:
                async for item in stream:
                    assert state(item) in ("", "working")
        await live.release("turn")


async def test_a_prompt_that_was_handed_over_is_work(workspace: Path) -> None:
    """To a CLI without a handshake, before its first output."""
    settings: Json = {
        "agent_adapter": "claude-code",
        "agent_binary": "/bin/sh",
        "agent_args": MUTE,
    }
    for version in ("1.0", "0.3"):
        async with serving(workspace, **settings) as server:
            client = server.client(version)
            items = await started(client, "text a")
            assert states(items) == ["submitted", "working"]


async def test_an_agent_that_may_reply_works_from_its_prompt_on_where_the_task_is_known(
    workspace: Path, live: Liveness
) -> None:
    async with serving(workspace) as server:
        client = server.client()
        task = await client.send_now(f"wait {live.path} turn\nreply so")
        await live.pid("turn")
        assert state(await client.get(task["id"])) == "working"
        await live.release("turn")
        async with client.stream(f"wait {live.path} second\nreply so") as items:
            await live.pid("second")
            await live.release("second")
            (reply,) = [item async for item in items]
        assert reply["message"]["parts"] == [{"text": "so"}]  # no task was shown before


async def test_a_restart_keeps_the_updates_and_their_numbers(
    place: Place,
    live: Liveness,
) -> None:
    """Two servers are started: 3 s."""
    agent: dict[str, Any] = {
        "AGENT_ADAPTER": "acp",
        "AGENT_BINARY": sys.executable,
        "AGENT_ARGS": f"{shlex.quote(PROGRAM)} {shlex.quote(json.dumps({}))}",
    }
    async with place.server(**agent) as (server, client):
        items = await started(client, f"wait {live.path} turn\ntext a")
        assert states(items) == ["submitted", "working"]
        task_id = items[0]["task"]["id"]
        before = await client.get(task_id)
        await live.pid("turn")
        await kill(server)
    async with place.server(**agent) as (_, client):
        assert await client.get(task_id) == before
        await live.release("turn")
        with contextlib.suppress(RpcError):
            async with asyncio.timeout(WITHIN), client.subscribe(task_id) as stream:
                async for _ in stream:
                    pass
        assert state(await client.get(task_id)) == "completed"


async def test_the_limit_of_a_handshake_holds_for_the_next_server(
    place: Place,
    live: Liveness,
) -> None:
    """Two servers are started: 3 s."""
    agent: dict[str, Any] = {
        "AGENT_ADAPTER": "acp",
        "AGENT_BINARY": sys.executable,
        "AGENT_ARGS": shlex.join(("-I", "-S", "-c", TOLD, live.path)),
    }
    async with place.server(**agent) as (server, client):
        task = await client.send_now("text a")
        await live.pid("agent")
        await kill(server)
    async with place.server(BRIDGE_START_TIMEOUT_MS="300", **agent) as (_, client):
        with contextlib.suppress(RpcError):
            async with asyncio.timeout(WITHIN), client.subscribe(task["id"]) as stream:
                async for _ in stream:
                    pass
        after = await client.get(task["id"])
        assert after["metadata"]["bridge"]["reason"] == "start"
