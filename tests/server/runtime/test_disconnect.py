"""BRIDGE_ON_DISCONNECT: the task of a client that has disconnected. Each test waits GRACE seconds
or more for a client that does not come back."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientTimeout

from bridge.transports.stream import KeepAlive
from tests.support.client import Client, Json, said, state, task_id
from tests.support.liveness import Liveness, listening
from tests.support.served import Server, serving

GRACE = 0.3
CANCELS: Json = {"bridge_on_disconnect": "cancel", "bridge_disconnect_grace_ms": GRACE * 1000}
WITHIN = 60.0
VERSIONS = ["1.0", "0.3"]


def quick(workspace: Path, **settings: Any) -> AbstractAsyncContextManager[Server]:
    """A server that soon notices a closed connection: it notices it when it writes."""
    return serving(workspace, keep_alive=KeepAlive(0.05, 0.05, 0.05), **settings)


async def ended(client: Client, task: str) -> Json:
    """The task at its end. It asks seldom enough not to be a client that has come back."""
    headers = {"A2A-Version": client.version, **client.headers}
    body = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
    async with asyncio.timeout(WITHIN):
        while True:
            body["params"] = {"pageSize": 50}
            headers["A2A-Version"] = "1.0"
            url = f"{client.url}/a2a/jsonrpc"
            async with client.session.post(url, json=body, headers=headers) as response:
                listed = (await response.json())["result"]["tasks"]
            (found,) = [one for one in listed if one["id"] == task]
            if state(found) not in ("submitted", "working"):
                return dict(found)
            await asyncio.sleep(0.02)


async def stay_away() -> None:
    await asyncio.sleep(3 * GRACE)


async def cut_stream(client: Client, live: Liveness, **members: Any) -> str:
    """Begin a task and cut its stream; its id."""
    async with client.stream(f"status begun\nwait {live.path} a\ntext done", **members) as items:
        first = await anext(items)
        await live.pid("a")
    return task_id(first)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_task_whose_stream_was_cut_is_canceled(workspace: Path, version: str) -> None:
    async with quick(workspace, **CANCELS) as server, listening() as live:
        client = server.client(version)
        task = await ended(client, await cut_stream(client, live))
        assert state(task) == "canceled"
        assert "BRIDGE_ON_DISCONNECT" in said(task)
        await live.gone("a")


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_task_whose_blocking_request_was_cut_is_canceled(
    workspace: Path, version: str
) -> None:
    async with quick(workspace, **CANCELS) as server, listening() as live:
        client = server.client(version)
        sending = asyncio.create_task(client.send(f"wait {live.path} a", contextId="c"))
        await live.pid("a")
        listed = await server.client("1.0").call("ListTasks", {"contextId": "c"})
        sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending
        assert state(await ended(client, listed["tasks"][0]["id"])) == "canceled"
        await live.gone("a")


async def test_a_client_that_comes_back_in_time_finds_its_task(workspace: Path) -> None:
    async with quick(workspace, **CANCELS) as server, listening() as live:
        client = server.client()
        task = await cut_stream(client, live)
        async with client.subscribe(task) as items:
            await anext(items)
            await stay_away()
            await live.release("a")
            assert [state(item) async for item in items][-1] == "completed"


async def test_a_client_that_asks_for_its_task_now_and_then_has_not_gone(workspace: Path) -> None:
    async with quick(workspace, **CANCELS) as server, listening() as live:
        client = server.client()
        task = await cut_stream(client, live)
        for _ in range(10):
            await asyncio.sleep(GRACE / 3)
            assert state(await client.get(task)) == "working"
        assert state(await ended(client, task)) == "canceled"
        await live.gone("a")


async def test_a_task_with_another_subscriber_continues_until_that_one_leaves(
    workspace: Path,
) -> None:
    async with quick(workspace, **CANCELS) as server, listening() as live:
        client = server.client()
        async with client.stream(f"status begun\nwait {live.path} a") as items:
            task = task_id(await anext(items))
            await live.pid("a")
            other = client.subscribe(task)
            others = await other.__aenter__()
            await anext(others)
        await stay_away()
        assert state(await client.get(task)) == "working"
        await other.__aexit__(None, None, None)
        assert state(await ended(client, task)) == "canceled"
        await live.gone("a")


@pytest.mark.parametrize(
    ("settings", "wish", "outcome"),
    [
        ({}, None, "working"),
        ({}, "cancel", "canceled"),
        ({"bridge_on_disconnect": "cancel"}, None, "canceled"),
        ({"bridge_on_disconnect": "cancel"}, "continue", "working"),
    ],
)
async def test_the_client_chooses_for_its_task(
    workspace: Path, settings: Json, wish: str | None, outcome: str
) -> None:
    grace: Json = {"bridge_disconnect_grace_ms": GRACE * 1000}
    async with quick(workspace, **settings, **grace) as server, listening() as live:
        client = server.client()
        task = await cut_stream(client, live, metadata={"bridge": {"onDisconnect": wish}})
        await stay_away()
        assert state(await client.get(task)) == outcome
        if outcome == "working":
            await live.release("a")


async def test_an_answer_that_the_server_ended_is_not_a_disconnect(workspace: Path) -> None:
    """A question, an answer that does not wait, and a notification."""
    async with quick(workspace, **CANCELS) as server, listening() as live:
        client = server.client()
        streamed = task_id((await client.collect("ask q What?"))[0])
        blocked = task_id(await client.send("ask q What?"))
        at_once = task_id(await client.send_now(f"wait {live.path} a"))
        message = client.message(f"wait {live.path} b", contextId="noted")
        params: Json = {"message": message}
        body = {"jsonrpc": "2.0", "method": "SendMessage", "params": params}
        assert (await client.post(body)).status == 204
        await live.pid("a")
        await live.pid("b")
        (noted,) = (await client.call("ListTasks", {"contextId": "noted"}))["tasks"]
        await stay_away()
        for task, wanted in (
            (streamed, "input-required"),
            (blocked, "input-required"),
            (at_once, "working"),
            (noted["id"], "working"),
        ):
            assert state(await client.get(task)) == wanted
        for name in "ab":
            await live.release(name)


async def test_a_slow_send_is_not_silent(workspace: Path) -> None:
    """Clients give up after so many seconds without a byte."""
    async with quick(workspace) as server, listening() as live:
        client = server.client()
        impatient = ClientTimeout(sock_read=0.5)
        params = {"message": client.message(f"wait {live.path} a\ntext done")}
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
        headers = {"A2A-Version": "1.0", **client.headers}
        url = f"{client.url}/a2a/jsonrpc"
        async with client.session.post(
            url, json=body, headers=headers, timeout=impatient
        ) as response:
            await live.pid("a")
            await asyncio.sleep(1)
            await live.release("a")
            whole = await response.read()
        assert response.status == 200 and response.content_type == "application/json"
        assert whole.startswith(b"  ") and b'"TASK_STATE_COMPLETED"' in whole
