"""The gRPC port of the program: its library, its end, and a crash."""

from __future__ import annotations

import asyncio
import re
import signal
from functools import partial
from pathlib import Path

import grpc
import grpc.aio
import pytest

from bridge.a2a.card import EXTENSION
from bridge.errors.extras import install_line
from tests.support import grpc_intruder
from tests.support.bridge_process import BridgeProcess, bridge, scripted
from tests.support.client import artifact_text, state, streamed_text, task_id
from tests.support.command_line import refusal, refusal_without, run
from tests.support.grpc_client import GrpcError, connected
from tests.support.liveness import Liveness
from tests.support.rest import message
from tests.support.restart import Place, kill

WITHIN = 60.0  # seconds


def port_of(server: BridgeProcess) -> str:
    found = re.search(r"^  grpc +(\S+)$", server.log, re.MULTILINE)
    assert found, server.log
    return found[1]


def test_a_missing_library_ends_the_start(tmp_path: Path) -> None:
    """A start of an interpreter takes up to a second."""
    found = refusal_without("grpc", tmp_path, BRIDGE_GRPC_PORT="0")
    assert found == (
        f"BRIDGE_GRPC_PORT is set, but grpcio is not installed: {install_line('grpc')}"
    )


async def test_a_stream_survives_a_crash_and_resumes_over_both_bindings(
    place: Place, live: Liveness
) -> None:
    """The agent outlives the server. Two starts of a server take two seconds."""
    place.env = {"BRIDGE_GRPC_PORT": "0"}
    script = {"message": message(f"text a\nwait {live.path} x\ntext b\ndone")}
    numbered = {"a2a_extensions": EXTENSION}
    async with asyncio.timeout(WITHIN), place.server() as (server, _):
        async with connected(port_of(server)) as client:
            items = client.items("SendStreamingMessage", script, **numbered)
            async for item in items:
                if "artifactUpdate" in item:
                    break
            seen, task = item["artifactUpdate"]["metadata"]["bridge"]["eventId"], task_id(item)
            await kill(server)
            with pytest.raises(GrpcError) as caught:
                await anext(items)
            assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    async with asyncio.timeout(WITHIN), place.server() as (server, other):
        async with connected(port_of(server)) as client:
            resumed = client.items(
                "SubscribeToTask", {"id": task}, last_event_id=str(int(seen)), **numbered
            )
            other.headers.update({"Last-Event-ID": str(int(seen)), "A2A-Extensions": EXTENSION})
            async with other.subscribe(task) as over_sse:
                await live.release("x")
                first = [one async for one in resumed]
                second = [one async for one in over_sse]
        done = await other.get(task)
    assert streamed_text([item, *first]) == streamed_text([item, *second]) == artifact_text(done)
    assert artifact_text(done) == "ab"
    assert len(first) == len(second)


async def test_an_agent_is_not_the_operator(workspace: Path) -> None:
    """The same token that a process outside may use. A start of a server takes a second."""
    env = {
        **scripted(workspace),
        "BRIDGE_AUTH": "auto",
        "BRIDGE_GRPC_PORT": "0",
        "AGENT_ARGS": f"-I {grpc_intruder.PROGRAM}",
    }
    async with asyncio.timeout(WITHIN), bridge(workspace, **env) as server:
        token = server.credentials["Authorization"].removeprefix("Bearer ")
        address = port_of(server)
        async with connected(address, authorization=f"Bearer {token}") as client:
            sent = await client.call("SendMessage", {"message": message(f"{address} {token}")})
    assert artifact_text(sent["task"]) == "PERMISSION_DENIED"


async def test_a_start_that_fails_leaves_no_noise(tmp_path: Path, workspace: Path) -> None:
    """The port is bound before the state folder is opened, which another server uses. Two starts of
    a server take two seconds."""
    env = {**scripted(workspace), "BRIDGE_GRPC_PORT": "0"}
    async with bridge(workspace, **env):
        second = {**env, "AGENT_REPO_PATH": str(workspace), "PORT": "0", "BRIDGE_SANDBOX": "none"}
        assert "state" in refusal(await asyncio.to_thread(partial(run, cwd=tmp_path, **second)))


async def test_a_stopping_server_refuses_new_calls_and_ends_its_streams(
    workspace: Path, live: Liveness
) -> None:
    """While the task has time to finish. A start of a server takes a second."""
    env = {**scripted(workspace), "BRIDGE_GRPC_PORT": "0", "BRIDGE_DRAIN_MS": "20000"}
    script = {"message": message(f"text a\nwait {live.path} x\ntext b\ndone")}
    async with asyncio.timeout(WITHIN), bridge(workspace, **env) as server:
        async with connected(port_of(server)) as client, connected(port_of(server)) as late:
            await late.call("ListTasks", {})
            items = client.items("SendStreamingMessage", script)
            seen = [await anext(items), await anext(items)]
            server.process.send_signal(signal.SIGTERM)
            await server.logged("stopping")
            with pytest.raises(GrpcError) as caught:
                while True:
                    await late.call("ListTasks", {})
            assert caught.value.code is grpc.StatusCode.UNAVAILABLE
            health = late.channel.unary_unary("/grpc.health.v1.Health/Check")
            assert await health(b"") == b"\x08\x02"  # NOT_SERVING
            await live.release("x")
            seen += [item async for item in items]
        assert await server.ended() == 0
    assert streamed_text(seen) == "ab"
    assert state(seen[-1]) == "completed"
