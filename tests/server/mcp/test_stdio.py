"""The proxy for clients on stdin and stdout, with a server in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bridge.transports.mcp.endpoint import McpLimits
from tests.support.cab import Cab
from tests.support.liveness import Liveness, listening
from tests.support.mcp import Mcp, McpError, shown
from tests.support.mcp_stdio import proxy, result
from tests.support.served import Server

CLIENT = {"name": "tests", "version": "1"}
PERMIT = {"prompt": "permit q May I?\ntext  ended"}


@pytest.fixture
async def live() -> AsyncIterator[Liveness]:
    async with listening() as live:
        yield live


@pytest.fixture
def cab(workspace: Path, tmp_path: Path, server: Server) -> Cab:
    home = tmp_path / "home"
    home.mkdir()
    return Cab(workspace, home, BRIDGE_URL=server.url)


async def test_a_client_of_the_modern_revision(cab: Cab) -> None:
    async with proxy(cab, forms=True) as client:
        found = await client.call("server/discover", {})
        assert found["supportedVersions"] == ["2026-07-28"]
        asked = await client.tool("delegate", PERMIT)
        ((key, form),) = asked["inputRequests"].items()
        assert "May I?" in form["params"]["message"]
        params = {
            "name": "delegate",
            "arguments": PERMIT,
            "requestState": asked["requestState"],
            "inputResponses": {key: {"action": "accept", "content": {"decision": "Go on"}}},
        }
        assert "ended" in shown(await client.call("tools/call", params))["text"]


async def test_polls_of_a_task(cab: Cab) -> None:
    async with proxy(cab, tasks=True) as client:
        created = await client.tool("delegate", {"prompt": "text hello\ndone"})
        named = {"taskId": created["taskId"]}
        await client.tool("wait", {"task_id": created["taskId"], "after": 100})
        polled = await client.call("tasks/get", named)
        assert shown(polled["result"])["text"] == "hello"
        with pytest.raises(McpError, match=r"-32602"):
            await client.call("tasks/get", {"taskId": "ünknown"})


async def test_a_client_of_an_older_revision(cab: Cab) -> None:
    async with proxy(cab) as client:
        assert (await client.initialize(elicitation={}))["protocolVersion"] == "2025-11-25"
        calling = client.tool_call("delegate", PERMIT, modern=False)
        form = await client.message()
        assert form["method"] == "elicitation/create"
        answer = {"action": "accept", "content": {"decision": "Go on"}}
        client.line({"jsonrpc": "2.0", "id": form["id"], "result": answer})
        assert "ended" in shown(await result(calling))["text"]


async def test_a_client_that_does_not_wait_for_the_session(cab: Cab) -> None:
    async with proxy(cab) as client:
        begun = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}
        sent = [client.begin("initialize", begun, modern=False)]
        client.notify("notifications/initialized")
        sent += [client.begin("tools/list", {}, modern=False)]
        sent += [client.tool_call("delegate", {"prompt": "text hello\ndone"}, modern=False)]
        initialized, listed, delegated = [await result(one) for one in sent]
        assert initialized["protocolVersion"] == "2025-11-25"
        assert len(listed["tools"]) == 7
        assert shown(delegated)["text"] == "hello"


async def test_calls_run_at_the_same_time(cab: Cab, live: Liveness) -> None:
    async with proxy(cab) as client:
        waiting = {"prompt": f"wait {live.path} agent\ntext hello\ndone"}
        calling = client.tool_call("delegate", waiting)
        await live.pid("agent")
        assert [one["state"] for one in await client.tasks()] == ["working"]
        await live.release("agent")
        assert shown(await result(calling))["text"] == "hello"


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize("limits", [McpLimits(cancel_after=0.1)])
async def test_a_canceled_call_is_closed(cab: Cab, live: Liveness, modern: bool) -> None:
    async with proxy(cab) as client:
        if not modern:
            await client.initialize()
        waiting = {"prompt": f"wait {live.path} agent\ndone"}
        calling = client.tool_call("delegate", waiting, modern=modern)
        await live.pid("agent")
        client.cancel_last()
        await live.gone("agent")
        (task,) = await client.tasks(modern=modern)
        ended = await client.tool("wait", {"task_id": task["task_id"]}, modern=modern)
        assert shown(ended)["state"] == "canceled"
        assert not calling.done()  # a canceled request has no answer


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize("limits", [McpLimits(cancel_after=0.0)])
async def test_tasks_continue_when_the_client_leaves(
    cab: Cab, server: Server, live: Liveness, modern: bool
) -> None:
    async with proxy(cab) as client:
        if not modern:
            await client.initialize()
        waiting = {"prompt": f"wait {live.path} agent\ntext hello\ndone"}
        client.tool_call("delegate", waiting, modern=modern)
        await live.pid("agent")
        await client.leave()
    await live.release("agent")
    other = Mcp(server.http, server.url)
    (task,) = shown(await other.tool("list_tasks"))["tasks"]
    ended = await other.tool("wait", {"task_id": task["task_id"], "after": 10**6})
    assert shown(ended)["state"] == "completed"


async def test_answers_arrive_though_stdin_has_ended(cab: Cab) -> None:
    async with proxy(cab) as client:
        calling = client.call("tools/list", {})
        listing = asyncio.ensure_future(calling)
        await asyncio.sleep(0)
        await client.leave()
        assert len((await listing)["tools"]) == 7


async def test_lines_that_are_not_requests(cab: Cab) -> None:
    async with proxy(cab) as client:
        for line, code in ((b"{", -32700), (b"[]", -32600), (b"3", -32600)):
            client.line(line)
            assert (await client.message())["error"]["code"] == code
        client.line({"jsonrpc": "2.0", "id": "unknown", "result": {}})
        client.line(b"")
        assert await client.tasks() == []


async def test_the_directory_of_the_client_is_the_default(
    cab: Cab, workspace: Path, server: Server
) -> None:
    below = workspace / "below"
    below.mkdir()
    cab.cwd = below
    async with proxy(cab) as client:
        found = await client.tool("delegate", {"prompt": "cwd", "wait_seconds": 20})
        assert shown(found)["text"] == str(below)


async def test_a_large_answer_is_one_line(cab: Cab) -> None:
    async with proxy(cab) as client:
        text = "äöü " * 50_000
        done = await client.tool("delegate", {"prompt": f"text {text}\ndone"})
        named = {"task_id": shown(done)["task_id"], "part": "text"}
        assert shown(await client.tool("result", named))["total"] == len(text)


async def test_the_errors_of_the_server_are_answers(cab: Cab) -> None:
    async with proxy(cab) as client:
        with pytest.raises(McpError, match=r"-32601"):
            await client.call("unknown", {})
        with pytest.raises(McpError, match=r"-32602"):
            await client.tool("unknown")
        with pytest.raises(McpError, match=r"-32603.*HTTP 413"):
            await client.tool("delegate", {"prompt": "x" * 2**24})


async def test_no_bridge_at_the_address(cab: Cab) -> None:
    async with proxy(cab, "--url", "http://127.0.0.1:1") as client:
        with pytest.raises(McpError, match=r"-32603.*127.0.0.1:1"):
            await client.call("tools/list", {})


async def test_two_proxies_with_equal_ids_are_two_calls(cab: Cab) -> None:
    async def delegated() -> str:
        async with proxy(cab) as client:
            found = shown(await client.tool("delegate", {"prompt": "text hello\ndone"}))
            return str(found["task_id"])

    assert await delegated() != await delegated()


async def test_reports_of_progress_are_lines(cab: Cab) -> None:
    async with proxy(cab) as client:
        await client.initialize()
        arguments = {"prompt": "status Reading the files\nask q Which?", "wait_seconds": 5}
        params = {"name": "delegate", "arguments": arguments, "_meta": {"progressToken": "p"}}
        await client.call("tools/call", params, modern=False)
        report = await client.message()
        assert report["method"] == "notifications/progress"
        assert report["params"]["progressToken"] == "p"
