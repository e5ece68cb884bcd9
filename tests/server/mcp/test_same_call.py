"""Repeated and canceled calls: one task for one call, and no task without a client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientResponse, ClientSession, TCPConnector

from bridge.transports.mcp.endpoint import McpLimits
from tests.support.liveness import Liveness, listening
from tests.support.mcp import Json, Mcp, session, shown
from tests.support.served import Server

SCRIPT = {"prompt": "text hello\ndone"}


@pytest.fixture
async def live() -> AsyncIterator[Liveness]:
    async with listening() as live:
        yield live


async def ids(client: Mcp) -> list[str]:
    return [one["task_id"] for one in shown(await client.tool("list_tasks"))["tasks"]]


async def with_key(client: Mcp, arguments: Json, key: str) -> Json:
    """Delegate with the id of a tool use of Claude Code."""
    body = client.body(
        "tools/call", {"name": "delegate", "arguments": arguments}, **{"claudecode/toolUseId": key}
    )
    headers = client.routing("tools/call", {"name": "delegate"})
    async with client.http.post(client.url, json=body, headers=headers) as response:
        return shown((await response.json())["result"])


async def test_a_call_with_the_same_key_is_the_same_task(server: Server, client: Mcp) -> None:
    first = await with_key(client, SCRIPT, "toolu_1")
    assert (await with_key(client, SCRIPT, "toolu_1"))["task_id"] == first["task_id"]
    assert (await with_key(client, SCRIPT, "toolu_2"))["task_id"] != first["task_id"]
    assert len(await ids(client)) == 2


async def test_the_header_of_the_proxy_is_a_key(server: Server, client: Mcp) -> None:
    proxy = Mcp(server.http, server.url, headers={"Bridge-Call": "random:1"})
    found = await asyncio.gather(*(proxy.tool("delegate", SCRIPT) for _ in range(5)))
    assert len({shown(one)["task_id"] for one in found}) == 1
    assert len(await ids(client)) == 1


async def test_without_a_key_an_equal_call_is_a_new_task(client: Mcp) -> None:
    first = shown(await client.tool("delegate", SCRIPT))
    second = shown(await client.tool("delegate", SCRIPT))
    assert first["task_id"] != second["task_id"]


@asynccontextmanager
async def broken(server: Server, client: Mcp, arguments: Json) -> AsyncIterator[None]:
    """A call of `delegate`. Afterwards its connection is closed, before it was answered."""
    async with ClientSession(connector=TCPConnector(force_close=True)) as http:
        other = Mcp(http, server.url)
        calling = asyncio.ensure_future(other.tool("delegate", arguments))
        try:
            yield
        finally:
            calling.cancel()
            await asyncio.wait([calling])


async def test_an_equal_call_joins_a_task_whose_handle_was_never_written(
    server: Server, client: Mcp, live: Liveness
) -> None:
    waiting = {"prompt": f"wait {live.path} agent\ntext hello\ndone"}
    async with broken(server, client, waiting):
        await live.pid("agent")
    joined = asyncio.ensure_future(client.tool("delegate", waiting))
    await live.release("agent")
    assert shown(await joined)["text"] == "hello"
    assert len(await ids(client)) == 1
    again = asyncio.ensure_future(client.tool("delegate", waiting))  # its handle was written
    await live.pid("agent")
    live.open = True
    await asyncio.wait([again], timeout=0.1)
    assert len(await ids(client)) == 2
    again.cancel()


@pytest.mark.parametrize("limits", [McpLimits(cancel_after=0.1)])
async def test_a_canceled_call_cancels_its_task(
    server: Server, client: Mcp, live: Liveness
) -> None:
    async with broken(server, client, {"prompt": f"wait {live.path} agent\ndone"}):
        await live.pid("agent")
    await live.gone("agent")
    (task_id,) = await ids(client)
    ended = await client.tool("wait", {"task_id": task_id, "wait_seconds": 5})
    assert shown(ended)["state"] == "canceled"


@pytest.mark.parametrize("limits", [McpLimits(cancel_after=1.0)])
async def test_a_call_that_returns_keeps_its_task(
    server: Server, client: Mcp, live: Liveness
) -> None:
    waiting = {"prompt": f"wait {live.path} agent\ntext hello\ndone"}
    async with broken(server, client, waiting):
        await live.pid("agent")
    joined = asyncio.ensure_future(client.tool("delegate", waiting))
    await asyncio.wait([joined], timeout=2.0)  # longer than the limit
    assert not joined.done()
    await live.release("agent")
    assert shown(await joined)["state"] == "completed"


@pytest.mark.parametrize("limits", [McpLimits(cancel_after=0.0)])
async def test_a_canceled_call_that_has_asked_keeps_its_task(server: Server, client: Mcp) -> None:
    forms = Mcp(server.http, server.url, forms=True)
    await forms.tool("delegate", {"prompt": "permit q May I?\ndone"})
    (task_id,) = await ids(client)
    found = await client.tool("wait", {"task_id": task_id, "wait_seconds": 1, "after": 10})
    assert shown(found)["state"] == "input_required"


@pytest.mark.parametrize("limits", [McpLimits(cancel_after=0.0)])
async def test_a_closed_stream_of_an_older_client_cancels_nothing(
    server: Server, client: Mcp, live: Liveness
) -> None:
    async with ClientSession(connector=TCPConnector(force_close=True)) as http:
        async with session(http, server.url) as older:
            arguments = {"prompt": f"wait {live.path} agent\ntext hello\ndone"}
            params = {"name": "delegate", "arguments": arguments}
            async with older.send("tools/call", params) as response:
                await live.pid("agent")
                response.close()
    await live.release("agent")
    (task_id,) = await ids(client)
    ended = await client.tool("wait", {"task_id": task_id, "after": 10**6, "wait_seconds": 5})
    assert shown(ended)["state"] == "completed"


@pytest.mark.parametrize("limits", [McpLimits(cancel_after=0.0)])
async def test_the_notification_of_an_older_client_cancels(
    server: Server, client: Mcp, live: Liveness
) -> None:
    async with session(server.http, server.url) as older:
        arguments = {"prompt": f"wait {live.path} agent\ntext hello\ndone"}
        params = {"name": "delegate", "arguments": arguments}
        async with older.send("tools/call", params) as response:
            await live.pid("agent")
            assert isinstance(response, ClientResponse)
            canceled = {"requestId": 2, "reason": "the user"}
            body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": canceled}
            await older.notify(body)
            await live.gone("agent")
    (task_id,) = await ids(client)
    ended = await client.tool("wait", {"task_id": task_id, "wait_seconds": 5})
    assert shown(ended)["state"] == "canceled"


async def test_agents_may_not_delegate_without_end(server: Server) -> None:
    for depth, refused in ((0, False), (1, False), (2, True), (9, True)):
        headers = {"baggage": f"userId=1, bridge.depth={depth};ttl=1"}
        client = Mcp(server.http, server.url, headers=headers)
        result = await client.tool("delegate", {**SCRIPT, "wait_seconds": 5})
        assert result["isError"] == refused
        assert refused == ("which is the limit" in json.dumps(result))


async def test_waiting_calls_count_as_streams(workspace: Path, server: Server) -> None:
    manager = server.managers[0]
    client = Mcp(server.http, server.url)
    asked = shown(await client.tool("delegate", {"prompt": "ask q Which?"}))
    waiting = {"task_id": asked["task_id"], "after": asked["next_after"], "wait_seconds": 50}
    calling = asyncio.ensure_future(client.tool("wait", waiting))
    while manager.quotas._streams["local"] < 1:
        await asyncio.wait([calling], timeout=0.05)
    given = {
        "task_id": asked["task_id"],
        "question_id": asked["question"]["question_id"],
        "text": "this",
    }
    await client.tool("answer", given)
    assert shown(await calling)["state"] in ("working", "completed")
    assert manager.quotas._streams["local"] == 0
