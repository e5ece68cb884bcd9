"""The official clients at streams that are silent for longer than they would wait: heartbeats keep
the connection, and no client takes one for an event."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bridge.transports.stream import HEARTBEAT
from tests.support.liveness import Liveness, listening
from tests.support.official_sdks import SDKS, play
from tests.support.served import Server, serving

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
