"""The wire of each revision: versions, headers, errors and sessions. Each line of the requirements
is a test."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from bridge.auth.principal import digest
from bridge.transports.mcp.endpoint import McpLimits
from tests.support.mcp import MODERN, TASKS, Json, Mcp, McpError, session, shown
from tests.support.served import Server, serving

VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"


async def send(client: Mcp, body: Any, headers: dict[str, str]) -> tuple[int, Json]:
    data = body if isinstance(body, bytes) else json.dumps(body)
    async with client.http.post(client.url, data=data, headers=headers) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("missing", [VERSION, CAPABILITIES])
async def test_the_envelope_is_required(client: Mcp, missing: str) -> None:
    body = client.body("tools/list", {}, **{missing: ""})
    status, answer = await send(client, body, client.routing("tools/list", {}))
    assert (status, answer["error"]["code"]) == (400, -32602)


@pytest.mark.parametrize(
    ("method", "params", "header", "value"),
    [
        ("tools/list", {}, "Mcp-Method", "tools/call"),
        ("tools/list", {}, "Mcp-Method", ""),
        ("tools/call", {"name": "list_agents"}, "Mcp-Name", "delegate"),
        ("tools/call", {"name": "list_agents"}, "Mcp-Name", ""),
        ("tasks/get", {"taskId": "one"}, "Mcp-Name", "other"),
        ("tasks/get", {"taskId": "one"}, "Mcp-Name", ""),
        ("tasks/cancel", {"taskId": "one"}, "Mcp-Name", "other"),
        ("tasks/update", {"taskId": "one", "inputResponses": {}}, "Mcp-Name", "other"),
    ],
)
async def test_headers_repeat_the_body(
    server: Server, method: str, params: Json, header: str, value: str
) -> None:
    client = Mcp(server.http, server.url, tasks=True)
    status, answer = await client.post(method, params, **{header: value})
    assert (status, answer["error"]["code"]) == (400, -32020)


async def test_an_unknown_revision_is_refused(client: Mcp) -> None:
    body = client.body("tools/list", {}, **{VERSION: "2099-01-01"})
    headers = client.routing("tools/list", {}) | {"MCP-Protocol-Version": "2099-01-01"}
    status, answer = await send(client, body, headers)
    assert (status, answer["error"]["code"]) == (400, -32022)


@pytest.mark.parametrize("method", ["nope", "tasks/list", "tasks/result", "ping"])
async def test_an_unknown_method_is_404(server: Server, method: str) -> None:
    client = Mcp(server.http, server.url, tasks=True)
    with pytest.raises(McpError) as caught:
        await client.call(method, {})
    assert (caught.value.status, caught.value.code) == (404, -32601)


async def test_an_unknown_name_is_answered_with_a_similar_one(server: Server) -> None:
    text = r"-32601 Method not found. Did you mean resources/read\?"
    with pytest.raises(McpError, match=text):
        await Mcp(server.http, server.url).call("resource/read", {})
    async with session(server.http, server.url) as older:
        with pytest.raises(McpError, match=text):
            await older.call("resource/read", {})
        with pytest.raises(McpError, match=r"No tool delgate. Tools: .* Did you mean delegate\?"):
            await older.tool("delgate")


async def test_discovery_names_the_extension(client: Mcp) -> None:
    found = await client.call("server/discover", {})
    assert found["resultType"] == "complete"
    assert found["supportedVersions"] == [MODERN]
    assert found["capabilities"]["extensions"] == {TASKS: {}}
    assert "tasks" not in found["capabilities"]


@pytest.mark.parametrize("revision", ["2025-11-25", "2025-06-18"])
async def test_older_revisions_have_neither_tasks(server: Server, revision: str) -> None:
    async with session(server.http, server.url, revision) as client:
        begun = await client.begin(revision, {})
        assert begun["protocolVersion"] == revision
        assert "tasks" not in begun["capabilities"]
        assert TASKS not in (begun["capabilities"].get("extensions") or {})
        done = shown(await client.tool("delegate", {"prompt": "text hello\ndone"}))
        for method in ("get", "update", "cancel", "list", "result"):
            params = {"taskId": done["task_id"], "inputResponses": {}}
            with pytest.raises(McpError) as caught:
                await client.call(f"tasks/{method}", params)
            assert caught.value.code == -32601


async def test_an_unknown_resource_has_the_code_of_its_revision(server: Server) -> None:
    params = {"uri": "bridge://tasks/nope/text"}
    async with session(server.http, server.url) as client:
        with pytest.raises(McpError) as caught:
            await client.call("resources/read", params)
    assert (caught.value.code, caught.value.error["data"]) == (-32002, params)


async def test_a_lost_session_is_404(server: Server) -> None:
    async with session(server.http, server.url) as client:
        client.headers["Mcp-Session-Id"] = "0" * 32
        async with client.send("tools/list", {}) as response:
            assert response.status == 404


async def test_a_deleted_session_is_404(server: Server) -> None:
    async with session(server.http, server.url) as client:
        async with server.http.delete(client.url, headers=client.headers) as response:
            assert response.status == 200
        async with client.send("tools/list", {}) as response:
            assert response.status == 404


async def test_a_session_belongs_to_its_principal(workspace: Path) -> None:
    """A caller that knows the id of a session needs its credentials, too."""
    hashes = {name: {"hash": f"sha256:{digest(name * 8).hex()}"} for name in ("alice", "bobby")}
    async with serving(workspace, tokens=hashes) as server:
        async with session_of(server, "alice") as client:
            await client.call("tools/list", {})
            stolen = {**client.headers, "Authorization": f"Bearer {'bobby' * 8}"}
            async with client.send("tools/list", {}, **stolen) as response:
                assert response.status == 404


def session_of(server: Server, name: str) -> Any:
    """A session with the token of the principal."""
    headers = {"Authorization": f"Bearer {name * 8}"}
    server.http.headers.update(headers)
    return session(server.http, server.url)


async def test_other_media_types_are_refused(client: Mcp) -> None:
    body = json.dumps(client.body("tools/list", {})).encode()
    headers = client.routing("tools/list", {}) | {"Content-Type": "text/plain"}
    assert (await send(client, body, headers))[0] == 415


async def test_a_body_that_is_not_json_is_refused(client: Mcp) -> None:
    status, answer = await send(client, b"{", client.routing("tools/list", {}))
    assert (status, answer["error"]["code"]) == (400, -32700)


async def test_a_large_body_is_refused(workspace: Path) -> None:
    async with serving(workspace, bridge_max_body_bytes=10_000) as server:
        client = Mcp(server.http, server.url)
        status, _ = await send(client, b"[" + b" " * 20_000, client.routing("tools/list", {}))
        assert status == 413


async def test_a_foreign_origin_is_refused(client: Mcp) -> None:
    headers = {**client.routing("tools/list", {}), "Origin": "https://evil.example"}
    body = client.body("tools/list", {})
    async with client.http.post(client.url, json=body, headers=headers) as response:
        assert response.status == 403


async def test_a_web_page_that_is_allowed_may_send_the_headers(workspace: Path) -> None:
    origin = "https://app.example"
    async with serving(workspace, bridge_allowed_origins=(origin,)) as server:
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        async with server.http.options(f"{server.url}/mcp", headers=asked) as response:
            allowed = response.headers["Access-Control-Allow-Headers"]
    assert {"MCP-Protocol-Version", "Mcp-Method", "Mcp-Name"} <= set(allowed.split(", "))


async def test_other_methods_are_refused(server: Server) -> None:
    async with server.http.get(f"{server.url}/mcp") as response:
        assert response.status == 405


async def test_mcp_can_be_switched_off(workspace: Path) -> None:
    async with serving(workspace, bridge_mcp="false") as server:
        client = Mcp(server.http, server.url)
        with pytest.raises(McpError, match="BRIDGE_MCP=false") as caught:
            await client.call("tools/list", {})
    assert caught.value.status == 404


async def test_calls_at_once_load_the_library_once(server: Server) -> None:
    clients = [Mcp(server.http, server.url) for _ in range(8)]
    found = await asyncio.gather(*(one.call("tools/list", {}) for one in clients))
    assert {len(one["tools"]) for one in found} == {7}


@pytest.mark.parametrize("limits", [McpLimits(sessions=2)])
async def test_a_principal_has_a_limit_of_sessions(server: Server) -> None:
    async with session(server.http, server.url), session(server.http, server.url) as second:
        with pytest.raises(KeyError):
            async with session(server.http, server.url):
                pass
        async with server.http.delete(second.url, headers=second.headers) as response:
            assert response.status < 400
        async with session(server.http, server.url) as third:
            assert len((await third.call("tools/list", {}))["tools"]) == 7
        await Mcp(server.http, server.url).call("tools/list", {})  # has no session
