"""The proxy of MCP clients finds a bridge, starts one, and outlives its restart: real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from bridge.process.procfs import MARKER
from bridge.transports.mcp.announced import SESSIONS
from tests.support.bridge_process import bridge, scripted
from tests.support.cab import Cab
from tests.support.command_line import run
from tests.support.liveness import Liveness
from tests.support.mcp import MODERN, McpError, shown
from tests.support.mcp_stdio import WITHIN, StdioMcp, proxy, result
from tests.support.restart import Place, kill


class Home(Cab):
    """A home with bridges that proxies have started."""

    def descriptions(self) -> list[dict[str, Any]]:
        files = (self.home / ".local/state/coding-agent-bridge").glob("*/server.json")
        return [json.loads(path.read_text()) for path in files]

    @property
    def bridge(self) -> psutil.Process:
        (found,) = self.descriptions()
        return psutil.Process(found["pid"])


@pytest.fixture
async def home(workspace: Path) -> AsyncIterator[Home]:
    path = workspace.parent / "own"
    path.mkdir()
    settings = scripted(workspace)
    del settings["BRIDGE_STATE_DIR"]
    home = Home(workspace, path, **settings, BRIDGE_SANDBOX="none")
    yield home
    for found in home.descriptions():
        process = psutil.Process(found["pid"])
        process.terminate()
        await asyncio.to_thread(process.wait, 30)


async def test_windows_of_a_client_share_a_bridge_that_outlives_them(home: Home) -> None:
    async def agents() -> list[str]:
        async with proxy(home) as client:
            found = shown(await client.tool("list_agents"))["agents"]
            await client.leave()
            return [root for one in found for root in one["roots"]]

    assert await asyncio.gather(*(agents() for _ in range(3))) == [[str(home.cwd)]] * 3
    running = home.bridge
    assert os.getsid(running.pid) != os.getsid(0)
    assert await agents() == [str(home.cwd)]
    assert home.bridge == running
    (folder,) = (home.home / ".local/state/coding-agent-bridge").glob("ws-*/")
    assert folder.stat().st_mode & 0o777 == 0o700


LETTER = {"name": "a", "value": "a", "version": "1"}
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ping", {}),
    ("server/discover", {}),
    ("tools/list", {}),
    ("resources/list", {}),
    ("resources/templates/list", {}),
    ("prompts/list", {}),
    ("logging/setLevel", {"level": "info"}),
    ("resources/subscribe", {"uri": "bridge://tasks/1/text"}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "x"}, "argument": LETTER}),
    ("nope", {}),
    ("tools/lst", {}),
)


async def answers(client: StdioMcp, revision: str) -> list[Any]:
    """The answers to a client that lists a server in a revision; in the modern one to ask it."""
    begun = {"protocolVersion": revision, "capabilities": {}, "clientInfo": LETTER}
    sent = [client.begin("tools/list", {}, modern=False)]
    if revision != MODERN:
        sent.append(client.begin("initialize", begun, modern=False))
        client.notify("notifications/initialized")
    sent += [client.begin(*one, modern=revision == MODERN) for one in REQUESTS]
    sent.append(client.begin("initialize", begun))
    async with asyncio.timeout(WITHIN):
        return [await one for one in sent]


async def test_a_listed_program_answers_like_a_bridge_and_starts_none(home: Home) -> None:
    """Takes two seconds: a server, and two programs for each revision."""
    revisions = (*SESSIONS, "1999-01-01", MODERN)

    async def listed(*words: str) -> dict[str, list[Any]]:
        async def one(revision: str) -> list[Any]:
            async with proxy(home, *words) as client:
                return await answers(client, revision)

        return {each: await one(each) for each in revisions}

    alone = await listed()
    assert home.descriptions() == []
    async with bridge(home.cwd, **scripted(home.cwd)) as server:
        with_a_bridge = await listed("--url", server.url)
    for revision in revisions:
        assert alone[revision] == with_a_bridge[revision], revision


async def test_a_program_without_a_bridge_loads_no_library_for_http(workspace: Path) -> None:
    done = await asyncio.to_thread(run, "mcp", cwd=workspace, without="aiohttp")
    assert (done.returncode, done.stderr) == (0, "")


async def test_malformed_requests_start_no_bridge(home: Home) -> None:
    async with proxy(home) as client:
        for line in (
            {"method": 5},
            {"method": "initialize", "params": [1]},
            {"method": "x" * 9999},
        ):
            client.line({"jsonrpc": "2.0", "id": None, **line})
            assert {"error", "result"} & set(await client.message())
        client.notify("notifications/cancelled", {"requestId": 1})
        client.line({"jsonrpc": "2.0", "id": "unknown", "result": {}})
        assert "capabilities" in await client.initialize()
    assert home.descriptions() == []


async def test_a_session_that_no_bridge_knew_asks_and_reads(home: Home) -> None:
    """All its requests come at once, and the first one that needs a bridge starts it. The bridge
    gets the settings of the client's configuration."""
    async with proxy(home, BRIDGE_MCP_FORMS="quick") as client:
        begun = asyncio.ensure_future(client.initialize(elicitation={}))
        arguments = {"prompt": "permit q May I?\ntext  ended"}
        await asyncio.sleep(0)
        calling = client.tool_call("delegate", arguments, modern=False)
        form = await client.message()
        assert list(form["params"]["requestedSchema"]["properties"]) == ["answer"]
        client.line({"jsonrpc": "2.0", "id": form["id"], "result": {"action": "decline"}})
        assert "ended" in shown(await result(calling))["text"]
        assert (await begun)["protocolVersion"] == SESSIONS[-1]
        (listed,) = (await client.call("resources/list", {}, modern=False))["resources"]
        read = await client.call("resources/read", {"uri": listed["uri"]}, modern=False)
        assert "ended" in read["contents"][0]["text"]


async def test_a_bridge_outlives_a_client_that_ends_the_processes_below_it(home: Home) -> None:
    async with proxy(home) as client:
        await client.tool("list_agents")
        for one in psutil.Process(client.process.pid).children(recursive=True):
            one.kill()
        client.process.kill()
        await client.process.wait()
    assert home.bridge.is_running() and home.bridge.status() != psutil.STATUS_ZOMBIE


async def test_a_started_bridge_requires_the_token(home: Home, http: aiohttp.ClientSession) -> None:
    async with proxy(home) as client:
        await client.tool("list_agents")
        (found,) = home.descriptions()
        async with http.post(f"{found['url']}/mcp", json={}) as response:
            assert response.status == 401


async def test_another_directory_has_a_bridge_of_its_own(home: Home, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    async with proxy(home) as client:
        await client.tool("list_agents")
    home.cwd = other
    async with proxy(home) as client:
        (agent,) = shown(await client.tool("list_agents"))["agents"]
        assert agent["roots"] == [str(other)]
    assert len(home.descriptions()) == 2


async def test_open_calls_continue_after_a_crash(home: Home, live: Liveness) -> None:
    """The proxy starts the next bridge. The agent has survived, and its task is the same one."""
    async with proxy(home) as client, proxy(home) as older:
        await older.initialize()
        waiting = {"prompt": f"wait {live.path} agent\ntext hello\ndone"}
        calling = client.tool_call("delegate", waiting)
        await live.pid("agent")
        (task,) = await older.tasks(modern=False)
        following = older.tool_call("wait", {"task_id": task["task_id"], "after": 5}, modern=False)
        crashed = home.bridge
        crashed.kill()
        await live.release("agent")
        assert shown(await result(calling))["text"] == "hello"
        assert shown(await result(following))["state"] == "completed"
        assert home.bridge != crashed
        assert [one["task_id"] for one in await older.tasks(modern=False)] == [task["task_id"]]


async def test_a_form_is_withdrawn_and_comes_again_after_a_restart(
    place: Place, home: Home
) -> None:
    """The next bridge comes from its operator, on another port."""
    home.env["BRIDGE_STATE_DIR"] = str(place.state)
    async with place.server() as (server, _), proxy(home, "--no-start") as client:
        await client.initialize(elicitation={})
        arguments = {"prompt": "permit q May I?\ntext  ended"}
        calling = client.tool_call("delegate", arguments, modern=False)
        first = await client.message()
        await kill(server)
        withdrawn = await client.message()
        assert withdrawn["method"] == "notifications/cancelled"
        assert withdrawn["params"]["requestId"] == first["id"]
        async with place.server():
            second = await client.message()
            assert second["id"] != first["id"]
            answer = {"action": "accept", "content": {"decision": "Go on"}}
            client.line({"jsonrpc": "2.0", "id": second["id"], "result": answer})
            assert "ended" in shown(await result(calling))["text"]
            assert len(await client.tasks(modern=False)) == 1


@pytest.mark.soak
async def test_an_orderly_restart_ends_a_call_with_the_handle(
    place: Place, home: Home, live: Liveness
) -> None:
    home.env["BRIDGE_STATE_DIR"] = str(place.state)
    async with (
        place.server(BRIDGE_ON_STOP="keep") as (server, _),
        proxy(home, "--no-start") as client,
    ):
        waiting = {"prompt": f"wait {live.path} agent\ntext hello\ndone"}
        calling = client.tool_call("delegate", waiting)
        await live.pid("agent")
        stopping = asyncio.create_task(server.stop(signal.SIGTERM))
        handle = shown(await result(calling))
        assert handle["state"] == "working"
        following = client.tool_call("wait", {"task_id": handle["task_id"], "after": 5})
        await stopping
        async with place.server():
            await live.release("agent")
            ended = shown(await result(following))
            if ended["state"] == "working":  # the first server has answered it at its end
                ended = shown(
                    await result(client.tool_call("wait", {"task_id": handle["task_id"]}))
                )
            assert ended["state"] == "completed"


async def test_a_bridge_that_cannot_start(home: Home) -> None:
    home.env["AGENT_BINARY"] = "/nowhere"
    async with proxy(home) as client:
        for _ in range(2):
            with pytest.raises(McpError, match=r"-32603.*did not start.*/nowhere was not found"):
                await client.tool("list_agents")


async def test_no_bridge_is_started_where_that_is_not_wanted(home: Home) -> None:
    async with proxy(home, "--no-start") as client:
        with pytest.raises(McpError, match=r"-32603.*no bridge serves"):
            await client.tool("list_agents")
    home.env[MARKER] = "an-agent"
    async with proxy(home) as client:
        with pytest.raises(McpError, match=r"-32603.*by an agent of a bridge"):
            await client.tool("list_agents")
    assert home.descriptions() == []


async def test_a_module_of_the_repository_is_not_imported(home: Home, workspace: Path) -> None:
    (workspace / "bridge").mkdir()
    (workspace / "bridge/__init__.py").write_text("raise SystemExit('of the repository')")
    async with proxy(home) as client:
        (agent,) = shown(await client.tool("list_agents"))["agents"]
        assert agent["roots"] == [str(workspace)]


async def test_a_stored_token_goes_to_its_origin_only(workspace: Path, home: Home) -> None:
    token = "a" * 43
    async with bridge(workspace, **scripted(workspace), BRIDGE_TOKEN=token) as server:
        home.env["BRIDGE_URL"] = server.url
        async with proxy(home) as client:
            with pytest.raises(McpError, match=r"-32603.*HTTP 401"):
                await client.call("tools/list", {})
        done = await home.run("auth", "login", server.url, "--token-stdin", stdin=token.encode())
        assert done.status == 0
        async with proxy(home) as client:
            assert len((await client.call("tools/list", {}))["tools"]) == 7


async def test_a_bridge_on_a_unix_socket(workspace: Path, home: Home, tmp_path: Path) -> None:
    """It is named, or found by its description; and it restarts. Takes a second: two servers."""
    (folder := tmp_path / "run").mkdir(mode=0o700)
    socket = str(folder / "socket")
    env = {**home.env, **scripted(workspace), "BRIDGE_UNIX_SOCKET": socket, "PORT": "none"}
    del env["BRIDGE_STATE_DIR"]
    delegated = {"prompt": "text hi\ndone", "wait_seconds": 20}
    async with proxy(home, "--url", f"unix:{socket}", "--no-start") as named:
        async with bridge(workspace, **env):
            assert shown(await named.tool("delegate", delegated))["text"] == "hi"
            async with proxy(home, "--no-start") as found:
                assert shown(await found.tool("delegate", delegated))["text"] == "hi"
        async with bridge(workspace, **env):
            assert len((await named.call("tools/list", {}))["tools"]) == 7
