"""The official clients of Python and JavaScript over gRPC, with a scripted agent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.bridge_process import bridge, scripted
from tests.support.liveness import Liveness
from tests.support.official_sdks import play

pytestmark = pytest.mark.real
TOKEN = "x" * 16


SCRIPTS = {
    "send": "text hi\ndone",
    "stream": "status a\ntext hi\ndone",
    "get": "status x\ntext hi",
    "resubscribe": "text a\nwait {path} agent\ntext b",
    "question": "permit q May I?\ntext !",
    "cancel": "text a\npause 20",
    "errors": "done",
    "others": "done",
}
OTHERS = {
    "listed": True,
    "url": "https://example.org/hook",
    "configs": [1, 0],
    "bindings": ["JSONRPC", "HTTP+JSON", "GRPC"],
}


@pytest.mark.parametrize("sdk", ["python-v1-grpc", "js-v1-grpc"])
async def test_all_scenarios(workspace: Path, live: Liveness, sdk: str) -> None:
    """A start of the client takes a second, and all scenarios run at once. One task continues when
    its client has subscribed again."""
    scripts = {
        name: one.format(path=live.path)
        for name, one in SCRIPTS.items()
        if sdk.startswith("py") or name != "others"
    }
    # In a process of its own: a server in this one might reap the clients.
    env = {**scripted(workspace), "BRIDGE_GRPC_PORT": "0", "BRIDGE_TOKEN": TOKEN}
    env["LOG_REQUESTS"] = "true"
    async with bridge(workspace, **env, BRIDGE_MAX_TEXT_BYTES="100000") as server:
        plays = [play(server.url, sdk, name, one, "yes", TOKEN) for name, one in scripts.items()]
        playing = asyncio.gather(*plays)
        subscribed = asyncio.create_task(server.logged("subscribe was answered"))
        waits: list[asyncio.Future[Any]] = [subscribed, playing]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if playing.done():  # a client has failed: say how
            subscribed.cancel()
            await playing
        await subscribed
        await live.release("agent")
        seen = dict(zip(scripts, await playing, strict=True))
    assert (seen["send"]["state"], seen["send"]["text"]) == ("completed", "hi")
    assert (seen["stream"]["kinds"][0], seen["stream"]["text"]) == ("task", "hi")
    assert seen["stream"]["kinds"][-1] == "status:completed"
    assert seen["get"]["historyRoles"][0] == "user"
    assert seen["get"]["historyLength0"] == 0
    assert (seen["resubscribe"]["firstKind"], seen["resubscribe"]["text"]) == ("task", "ab")
    assert seen["question"]["options"] == ["Go on", "Do not"]
    assert seen["question"]["state"] == "completed"
    assert seen["cancel"]["state"] == seen["cancel"]["streamState"] == "canceled"
    assert seen["cancel"]["secondCancel"] == "TaskNotCancelableError"
    assert seen["errors"] == {
        "unknownTask": "TaskNotFoundError",
        "finishedTask": "UnsupportedOperationError",
    }
    assert seen.get("others", OTHERS) == OTHERS
