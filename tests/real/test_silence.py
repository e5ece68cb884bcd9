"""Streams that are silent for a long time: heartbeats keep the connections of the official clients,
and a status tells which tool of a real CLI is silent."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from bridge.transports.stream import HEARTBEAT
from tests.support.client import facts, state
from tests.support.liveness import Liveness, listening
from tests.support.official_sdks import SDKS, play
from tests.support.real_claude_code import running_command, script
from tests.support.real_clis import CLAUDE_CODE
from tests.support.real_clis import serving as serving_cli
from tests.support.served import Server, serving

TWO_MINUTES = 120.0  # seconds without output until a status says so
SILENCE = 10.0  # seconds; the default limit of the Python clients is 5

pytestmark = [pytest.mark.real, pytest.mark.soak]


async def silent(server: Server, live: Liveness) -> None:
    """Until a stream that is opened now has had nothing but heartbeats for SILENCE seconds."""
    text = f"text a\nwait {live.path} observed"
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "SendStreamingMessage",
        "params": {"message": server.client().message(text)},
    }
    headers = {"A2A-Version": "1.0"}
    url, heartbeats = f"{server.url}/a2a/jsonrpc", 0
    async with server.http.post(url, json=body, headers=headers) as response:
        async with asyncio.timeout(2 * SILENCE):
            await live.pid("observed")
            while heartbeats * HEARTBEAT <= SILENCE:
                heartbeats += (await response.content.readline()).startswith(b":")
        await live.release("observed")
        await response.read()


@pytest.mark.parametrize("sdk", SDKS)
async def test_a_silent_stream_is_read_to_its_end(workspace: Path, sdk: str) -> None:
    """It takes as long as the silence. Each run has 6 s of it (test_official_sdks.py), also with
    the strictest client: httpx-sse of python-v03 takes a blank line after an `id:` line for an
    event, whatever is between."""
    told = f"text one\nwait {{}} {sdk}-{{}}\ntext two"
    async with listening() as live, serving(workspace) as server:
        plays = {
            "before the first event": ("stream", f"wait {live.path} {sdk}-0\ntext onetwo"),
            "send": ("stream", told.format(live.path, 1)),
            "subscribe": ("resubscribe", told.format(live.path, 2)),
        }
        async with asyncio.TaskGroup() as group:
            seen = [
                group.create_task(play(server.url, sdk, scenario, prompt))
                for scenario, prompt in plays.values()
            ]
            for number in range(len(plays)):
                await live.pid(f"{sdk}-{number}")
            await silent(server, live)
            for number in range(len(plays)):
                await live.release(f"{sdk}-{number}")
        for name, one in zip(plays, seen, strict=True):
            assert (one.result()["state"], one.result()["text"]) == ("completed", "onetwo"), name


async def test_a_silent_tool_is_reported_after_two_minutes(tmp_path: Path) -> None:
    force = {"AGENT_FORCE": "true", **CLAUDE_CODE.force}
    async with serving_cli(CLAUDE_CODE, tmp_path, **force) as real, running_command() as command:
        prompt = script("run", real.run(command.line), "Done.")
        async with real.client().stream(prompt) as items:
            began = time.monotonic()
            async for item in items:
                fact = facts(item.get("statusUpdate", item))
                if fact.get("type") == "silent" and fact["seconds"]:
                    assert time.monotonic() - began >= TWO_MINUTES
                    assert (fact["tool"]["name"], fact["tool"]["running"]) == ("Bash", True)
                    command.release()
        assert command.ended.is_set()
        assert state(item) == "completed"
