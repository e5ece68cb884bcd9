"""MCP with the real server as a process: before and after a crash, and at rest."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from tests.support.bridge_process import bridge
from tests.support.client import task_id
from tests.support.liveness import Liveness
from tests.support.mcp import Json, Mcp, McpError, accept, form_key, shown
from tests.support.restart import Place, kill

PERMIT = {"prompt": "permit q May I?\ntext  ended"}


async def test_the_default_server_delegates_to_a_recording(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    """The commands of the specification: a created task, and its result after a poll."""
    async with bridge(workspace, "--adapter", "replay", BRIDGE_REPLAY_SPEED="0") as server:
        client = Mcp(http, server.url, tasks=True, forms=True)
        created = await client.tool("delegate", {"prompt": "hello"})
        assert created["resultType"] == "task"
        forms = 0
        while (polled := await client.polled(created["taskId"], "input_required", "completed"))[
            "status"
        ] != "completed":
            ((key, form),) = polled["inputRequests"].items()
            names = form["params"]["requestedSchema"]["properties"]["decision"]["enum"]
            assert names == ["Deny", "Allow", "Always allow in this session"]
            answers = {key: accept("Allow")}
            await client.task("update", created["taskId"], inputResponses=answers)
            forms += 1
        assert forms == 2
        assert shown(polled["result"])["text"].startswith("Done:")


@pytest.mark.soak
async def test_a_task_survives_a_crash_between_two_polls(
    place: Place,
    live: Liveness,
    http: aiohttp.ClientSession,
) -> None:
    async with place.server() as (server, _):
        client = Mcp(http, server.url, tasks=True)
        script = {"prompt": f"text so far\nwait {live.path} agent\ntext  and more\ndone"}
        created = await client.tool("delegate", script)
        await live.pid("agent")
        before = await client.task("get", created["taskId"])
        await kill(server)
    async with place.server() as (server, _):
        client = Mcp(http, server.url, tasks=True)
        after = await client.task("get", created["taskId"])
        assert after["status"] == before["status"] == "working"
        assert after["createdAt"] == before["createdAt"]
        await live.release("agent")
        ended = await client.polled(created["taskId"], "completed")
        assert shown(ended["result"])["text"] == "so far and more"
        await kill(server)
    async with place.server() as (server, _):
        client = Mcp(http, server.url, tasks=True)
        again = await client.task("get", created["taskId"])
        assert again["result"]["structuredContent"] == ended["result"]["structuredContent"]


async def test_a_form_survives_a_crash(
    place: Place,
    http: aiohttp.ClientSession,
) -> None:
    async with place.server() as (server, _):
        client = Mcp(http, server.url, tasks=True, forms=True)
        created = await client.tool("delegate", PERMIT)
        polled = await client.polled(created["taskId"], "input_required")
        assert list(polled["inputRequests"]) == [form_key(created)]
        wrong = {form_key(created): accept("Perhaps")}
        await client.task("update", created["taskId"], inputResponses=wrong)
        async with asyncio.timeout(10):
            while list(polled["inputRequests"]) != [form_key(created, 2)]:  # the agent asks again
                await asyncio.sleep(0)
                polled = await client.polled(created["taskId"], "input_required")
        await kill(server)
    async with place.server() as (server, _):
        client = Mcp(http, server.url, tasks=True, forms=True)
        polled = await client.polled(created["taskId"], "input_required")
        assert list(polled["inputRequests"]) == [
            form_key(created, 2)
        ]  # the first key does not return
        answers = {form_key(created): accept("Do not"), form_key(created, 2): accept("Go on")}
        await client.task("update", created["taskId"], inputResponses=answers)
        ended = await client.polled(created["taskId"], "completed")
        assert '"yes"' in shown(ended["result"])["text"]


@pytest.mark.soak
async def test_a_repeated_call_continues_after_a_crash(
    place: Place,
    http: aiohttp.ClientSession,
) -> None:
    async with place.server() as (server, _):
        asked = await Mcp(http, server.url, forms=True).tool("delegate", PERMIT)
        await kill(server)
    async with place.server() as (server, _):
        client = Mcp(http, server.url, forms=True)
        more: Json = {
            "inputResponses": {next(iter(asked["inputRequests"])): accept("Go on")},
            "requestState": asked["requestState"],
        }
        ended = shown(await client.tool("delegate", PERMIT, **more))
        assert ended["state"] == "completed"
        assert len(shown(await client.tool("list_tasks"))["tasks"]) == 1
    (line,) = [one for one in audit(place) if one["what"] == "answered"]
    assert line["principal"] == "local"
    assert (line["via"], line["client"]) == ("mcp-form", "tests 1")


async def test_a_client_of_a2a_cannot_write_the_way_of_its_answer(place: Place) -> None:
    async with place.server() as (_, client):
        task = await client.send(PERMIT["prompt"])
        forged = {"mcp": {"via": "mcp-form", "client": "Claude Code"}}
        parts = client.answer_parts(task, "Go on")
        await client.send(parts, taskId=task_id(task), metadata=forged)
    (line,) = [one for one in audit(place) if one["what"] == "answered"]
    assert line["via"] == "jsonrpc"
    assert "client" not in line


def audit(place: Place) -> list[Json]:
    lines = (place.state / "audit.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="arguments", marks=pytest.mark.soak),
        pytest.param({"Bridge-Call": "random:7"}, id="key"),
    ],
)
async def test_a_call_without_its_handle_is_repeated_after_a_crash(
    place: Place,
    live: Liveness,
    http: aiohttp.ClientSession,
    headers: dict[str, str],
) -> None:
    script = {"prompt": f"wait {live.path} agent\ntext hello\ndone"}
    async with place.server() as (server, other):
        client = Mcp(http, server.url, headers=headers)
        calling = asyncio.ensure_future(client.tool("delegate", script))
        await live.pid("agent")
        # Before the commit, the next server would end this agent and begin the task again.
        async with asyncio.timeout(30):
            while not (await other.call("ListTasks", {"status": "TASK_STATE_WORKING"}))["tasks"]:
                pass
        await kill(server)
        with pytest.raises(aiohttp.ClientError):
            await calling
    async with place.server() as (server, _):
        client = Mcp(http, server.url, headers=headers)
        calling = asyncio.ensure_future(client.tool("delegate", script))
        await live.release("agent")
        assert shown(await calling)["text"] == "hello"
        assert len(shown(await client.tool("list_tasks"))["tasks"]) == 1


@pytest.mark.soak
async def test_a_secret_of_another_server_opens_no_state(
    place: Place,
    http: aiohttp.ClientSession,
) -> None:
    async with place.server() as (server, _):
        asked = await Mcp(http, server.url, forms=True).tool("delegate", PERMIT)
    key = place.state / "mcp-key"
    assert key.stat().st_mode & 0o777 == 0o600
    key.unlink()
    async with place.server() as (server, _):
        with pytest.raises(McpError) as caught:
            await Mcp(http, server.url, forms=True).tool(
                "delegate", PERMIT, requestState=asked["requestState"]
            )
        assert caught.value.code == -32602


async def test_other_clients_are_served_while_the_library_is_imported(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    async with bridge(workspace, "--adapter", "replay") as server:
        client = Mcp(http, server.url)
        first = asyncio.ensure_future(client.call("tools/list", {}))
        answers = 0
        while not first.done():
            async with http.get(f"{server.url}/health") as response:
                answers += response.status == 200
        assert len((await first)["tools"]) == 7
    assert answers >= 3
