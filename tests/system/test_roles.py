"""Several servers on one database with different roles: a client chooses the role of the server
that begins its conversation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.bridge_process import BridgeProcess
from tests.support.cab import Cab
from tests.support.client import Client, Json, RpcError, artifact_text, streamed_text
from tests.support.liveness import Liveness
from tests.support.mcp import Mcp
from tests.support.mcp import shown as shown_by
from tests.support.numbered_streams import BINDINGS, Reach
from tests.support.offered_bindings import LISTENING, TOKEN, offered
from tests.support.rest import Rest
from tests.support.restart import Place, finished
from tests.support.servers import on_postgres

WITHIN = 60.0  # seconds
GPU: Json = {"bridge": {"role": "gpu"}}


@pytest.fixture
def roles(place: Place, postgres_url: str) -> Place:
    place.env = on_postgres(postgres_url)
    return place


@asynccontextmanager
async def gpu(
    place: Place, instance: str = "b", **env: str
) -> AsyncIterator[tuple[BridgeProcess, Client]]:
    """A server with the role `gpu`, a state folder and a workspace of its own."""
    workspace = place.workspace.with_name(f"gpu-{instance}")
    workspace.mkdir(exist_ok=True)
    own = {
        "BRIDGE_STATE_DIR": str(place.state.with_name(f"state-{instance}")),
        "BRIDGE_NODE": f"gpu:{instance}",
        "AGENT_REPO_PATH": str(workspace),
    }
    async with place.server(True, **own, **env) as both:
        yield both


@asynccontextmanager
async def build(place: Place, **env: str) -> AsyncIterator[tuple[BridgeProcess, Client]]:
    """A server with the role `build`."""
    async with place.server(True, BRIDGE_NODE="build:a", **env) as both:
        yield both


@asynccontextmanager
async def two(place: Place, **env: str) -> AsyncIterator[tuple[Client, Client]]:
    """A server with the role `build`, and one with the role `gpu`."""
    async with gpu(place, **env) as (_, b), build(place, **env) as (_, a):
        yield a, b


def folder(task: Json) -> str:
    """The name of the folder that the agent of the task works in."""
    return Path(artifact_text(task)).name


async def servers_of(client: Client) -> dict[str, str]:
    """The name of the server of each task."""
    async with client.session.get(f"{client.url}/monitor/tasks") as response:
        return {one["id"]: one["node"] for one in (await response.json())["tasks"]}


async def refused(client: Client, **members: Any) -> str:
    with pytest.raises(RpcError) as error:
        await client.send("cwd", **members)
    assert error.value.code == -32602
    return str(error.value)


async def test_a_role_chooses_the_server_of_a_new_conversation(roles: Place) -> None:
    """Takes seconds, because two servers start."""
    async with two(roles) as (a, b):
        assert folder(await a.send("cwd", metadata=GPU)) == "gpu-b"
        assert folder(await b.send("cwd", metadata=GPU)) == "gpu-b"
        here = await b.send("cwd", metadata={"bridge": {"role": "build"}}, contextId="here")
        assert folder(here) == roles.workspace.name
        assert folder(await a.send("cwd")) == roles.workspace.name

        # The directory is one of the other server.
        (roles.workspace.with_name("gpu-b") / "model").mkdir()
        wanted = {"bridge": {"role": "gpu", "cwd": "model"}}
        assert folder(await a.send("cwd", metadata=wanted)) == "model"
        absent = {"bridge": {"role": "build", "cwd": "model"}}
        assert "cwd" in await refused(a, metadata=absent)

        # A conversation stays where it is.
        later = await b.send("cwd", contextId="here")
        assert folder(later) == roles.workspace.name
        for client in (a, b):
            text = await refused(client, metadata=GPU, contextId="here")
            assert "this context is at a server with the role build" in text
            again = await client.send("cwd", metadata={"bridge": {"role": "build"}}, **_in("here"))
            assert folder(again) == roles.workspace.name


def _in(context: str) -> Json:
    return {"contextId": context}


async def test_an_unknown_role_names_the_known_ones(roles: Place) -> None:
    """Takes seconds, because three servers start. A server that runs no CLI has no role."""
    front = {"BRIDGE_MAX_SESSIONS": "0", "BRIDGE_STATE_DIR": str(roles.state.with_name("front"))}
    front["BRIDGE_NODE"] = "front:f"
    async with two(roles) as (a, b), roles.server(True, **front) as (_, f):
        for client in (a, b, f):
            text = await refused(client, metadata={"bridge": {"role": "gpus"}})
            assert "No role gpus. Roles: build, gpu. Did you mean gpu?" in text
            assert "build, gpu" in await refused(client, metadata={"bridge": {"role": "front"}})
        assert folder(await f.send("cwd", metadata=GPU)) == "gpu-b"
        async with f.session.get(f"{f.url}/agents") as response:
            found = await response.json()
        (agent,) = found["agents"]
        can = {"skills": ["code"], "models": [], "modes": []}
        assert [(one["role"], one["capabilities"]) for one in agent["nodes"]] == [
            ("build", {"slots": 8, **can}),
            ("front", {"slots": 0, **can}),
            ("gpu", {"slots": 8, **can}),
        ]
        assert "metadata.bridge.role" in found["note"]


async def test_a_role_works_over_every_binding(roles: Place, tmp_path: Path) -> None:
    """Takes seconds, because two servers and a proxy start."""
    reach = Reach(roles._http)
    async with offered(tmp_path, LISTENING, reach) as env:
        own = {"BRIDGE_UNIX_SOCKET": env.pop("BRIDGE_UNIX_SOCKET")}
        async with gpu(roles, **env), build(roles, **env, **own) as (_, a):
            reach.url = a.url
            found: dict[str, Any] = {}
            for name in LISTENING:
                message = a.message("cwd", messageId=f"a-message-over-{name}", metadata=GPU)
                opened = BINDINGS[name](reach, "SendStreamingMessage", {"message": message}, None)
                async with asyncio.timeout(WITHIN), aclosing(opened) as items:
                    found[name] = streamed_text([item async for _, item in items])
            for version in ("1.0", "0.3"):
                client = Client(a.session, a.url, version, reach.headers)
                found[version] = artifact_text(await client.send("cwd", metadata=GPU))
                rest = Rest(a.session, a.url, **{**reach.headers, "A2A-Version": version})
                answer = await rest.post(
                    "/message:send", {"message": client.message("cwd"), "metadata": GPU}
                )
                found[f"rest {version}"] = artifact_text(answer.body.get("task") or answer.body)
            mcp = Mcp(a.session, a.url, headers=reach.headers)
            result = await mcp.tool("delegate", {"prompt": "cwd", "role": "gpu"})
            found["mcp"] = shown_by(result)["text"]
            cab = Cab(roles.workspace, tmp_path / "home", A2ACLI_BEARER=TOKEN)
            done = await cab.run("send", "-q", "-a", a.url, "--role", "gpu", "cwd")
            found["client"] = done.text
            listed = await cab.run("agents", "-a", a.url)
            assert listed.fields("Server") == ["build:a, 8 slots", "gpu:b, 8 slots"]
            assert {name: Path(text.strip()).name for name, text in found.items()} == dict.fromkeys(
                found, "gpu-b"
            )


async def test_the_server_with_the_most_free_slots_begins(roles: Place) -> None:
    """Takes seconds, because three servers start."""
    small = {"BRIDGE_MAX_SESSIONS": "1"}
    async with two(roles) as (a, _), gpu(roles, "c", **small):
        tasks = [await a.send_now("ask q-1 Which?", metadata=GPU) for _ in range(4)]
        listed = await servers_of(a)
        assert {listed[task["id"]] for task in tasks} == {"gpu:b"}


async def test_a_task_that_waits_stays_at_the_servers_of_its_role(
    roles: Place, live: Liveness
) -> None:
    """Takes seconds, because three servers start. A server that stops leaves its other waiting
    tasks to any server."""
    one = {"BRIDGE_MAX_SESSIONS": "1", "BRIDGE_ON_STOP": "keep"}
    async with build(roles) as (_, a):
        async with gpu(roles, **one) as (server, _):
            await a.send_now(f"wait {live.path} agent", metadata=GPU)
            await live.pid("agent")
            task = await a.send_now("cwd", metadata=GPU)
            assert await server.stop() == 0
        assert (await a.get(task["id"]))["status"]["state"] == "TASK_STATE_SUBMITTED"
        async with gpu(roles, **one):
            await live.release("agent")
            assert folder(await finished(a, task["id"])) == "gpu-b"
            assert (await servers_of(a))[task["id"]] == "gpu:b"


async def test_a_server_alone_has_one_role(place: Place) -> None:
    """Takes a second, because a server starts."""
    async with place.server(BRIDGE_NODE="build:a") as (_, a):
        assert folder(await a.send("cwd", metadata={"bridge": {"role": "build"}})) == (
            place.workspace.name
        )
        text = "No role gpu. Roles: build."
        assert text in await refused(a, metadata=GPU)
        assert text in await refused(Client(a.session, a.url, "0.3"), metadata=GPU)
        wrong = await refused(a, metadata={"bridge": {"role": 7}})
        assert "metadata.bridge.role" in wrong
