"""The operator's choice of the clients that get the thoughts of the model (BRIDGE_THOUGHTS), over
every surface and in every file of the server. How a client asks for them is in test_options.py."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from bridge.transports.mcp.endpoint import McpLimits
from tests.support.bindings import Binding, GrpcBinding, RestBinding, over_websocket
from tests.support.bridge_process import bridge, scripted
from tests.support.cases import each
from tests.support.client import Client, Json, state, task_id
from tests.support.grpc_client import connected
from tests.support.mcp import Mcp
from tests.support.receivers import Receiver, receiving
from tests.support.rest import message
from tests.support.served import Server, serving

MODES = ("off", "request", "always")
THOUGHT = "eyes only"
PROGRAM = """
import json, sys
def say(kind, **members):
    print(json.dumps({"type": kind, **members}), flush=True)
for line in sys.stdin:
    if json.loads(line)["type"] == "prompt":
        say("thought", text="ylno seye"[::-1])
        say("text", text="one")
        say("status", text="step")
        say("thought", text="ylno seye"[::-1])
        say("done")
"""
WANTED: Json = {"metadata": {"bridge": {"thoughts": True}}}


@pytest.fixture
def program(tmp_path: Path) -> str:
    """A program that thinks what its prompt does not say."""
    path = tmp_path / "thinks.py"
    path.write_text(PROGRAM)
    return str(path)


@asynccontextmanager
async def surfaces(server: Server) -> AsyncIterator[list[Binding]]:
    async with over_websocket(server) as websocket, connected(server.grpc) as grpc:
        yield [RestBinding(server), websocket, GrpcBinding(server, grpc)]


@each("mode", MODES)
@each("wish", [{}, WANTED], ids=["silent", "asking"])
async def test_every_binding_shows_them_where_the_operator_allows_it(
    workspace: Path, program: str, mode: str, wish: Json
) -> None:
    chosen: dict[str, Any] = {"bridge_websocket": True, "bridge_grpc_port": 0}
    shown = mode == "always" or (mode == "request" and bool(wish))
    async with (
        serving(workspace, program, bridge_thoughts=mode, **chosen) as server,
        surfaces(server) as bindings,
    ):
        for client in (server.client("1.0"), server.client("0.3")):
            items = await client.collect("think", **wish)
            assert (THOUGHT in json.dumps(items)) is shown
            found = await client.get(task_id(items[0]))
            assert (THOUGHT in json.dumps(found)) is shown
        for binding in bindings:
            params = {"message": message("think", **wish)}
            items = await binding.stream("SendStreamingMessage", params)
            assert (THOUGHT in json.dumps(items)) is shown, type(binding)
            found = await binding.ask("GetTask", {"id": items[0]["task"]["id"]})
            assert (THOUGHT in json.dumps(found)) is shown, type(binding)


@each("mode", MODES)
async def test_mcp_and_push_notifications_have_them_only_with_always(
    workspace: Path, program: str, mode: str
) -> None:
    receiver = Receiver()
    async with (
        serving(workspace, program, mcp=McpLimits(), bridge_thoughts=mode) as server,
        receiving(receiver),
    ):
        client = Mcp(server.http, server.url)
        told = await client.tool("delegate", {"prompt": "think"})
        logged = {"task_id": told["structuredContent"]["task_id"], "part": "log"}
        told = await client.tool("result", logged)
        assert (THOUGHT in json.dumps(told)) is (mode == "always")
        push = {"taskPushNotificationConfig": {"url": receiver.url}}
        task = await server.client().send("think", configuration=push)
        assert state(task) == "completed"
        bodies = await receiver.got(1)
        while b"COMPLETED" not in bodies[-1]:
            bodies = await receiver.got(len(bodies) + 1)
        assert any(THOUGHT.encode() in body for body in bodies) is (mode == "always")


@each("mode", ["off", "request"])
async def test_the_server_stores_no_thoughts_with_off(
    workspace: Path, program: str, mode: str
) -> None:
    """Not even for a client that requests them, and also behind a restart."""
    env = {**scripted(workspace), "AGENT_ARGS": f"-I -S {program}", "BRIDGE_THOUGHTS": mode}
    env["BRIDGE_SESSION_IDLE_MS"] = "0"  # the output of the CLI goes with its session
    async with bridge(workspace, **env) as server, ClientSession() as http:
        task = await Client(http, server.url).send("think", **WANTED)
    async with bridge(workspace, **env) as server, ClientSession() as http:
        found = json.dumps(await Client(http, server.url).get(task["id"]))
    kept = mode == "request"
    assert (THOUGHT in found) is kept
    assert any(THOUGHT.encode() in text for text in _files(Path(env["BRIDGE_STATE_DIR"]))) is kept


def _files(folder: Path) -> Iterator[bytes]:
    return (path.read_bytes() for path in folder.rglob("*") if path.is_file())
