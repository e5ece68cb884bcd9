"""`coding-agent-bridge stdio --url U | --local`: a running server answers the parent process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from bridge.client.credentials import CredentialStore
from tests.support.bridge_process import bridge, scripted
from tests.support.cases import each
from tests.support.client import Client, state
from tests.support.liveness import Liveness
from tests.support.restart import Place, finished, kill
from tests.support.stdio_server import (
    WITHIN,
    Child,
    Json,
    artifact,
    child,
    refused,
    request,
    streamed,
)

GRACE = {"BRIDGE_ON_DISCONNECT": "cancel", "BRIDGE_DISCONNECT_GRACE_MS": "100"}


async def item_with(proxy: Child, text: str, frames: list[Json]) -> None:
    """Add the frames up to the one with this text to `frames`."""
    while not frames or text not in str(frames[-1]):
        frames.append(await proxy.next())


async def canceled(client: Client, task_id: str) -> None:
    """Return when the task is canceled. A list does not count as a client's return."""
    async with asyncio.timeout(WITHIN):
        while True:
            found = await client.call("ListTasks", {"status": "TASK_STATE_CANCELED"})
            if task_id in [one["id"] for one in found["tasks"]]:
                return


async def test_a_stream_continues_after_a_crash_of_the_server(place: Place, live: Liveness) -> None:
    """Without a gap and without a repetition, at the new address and with the token of the local
    server. A letter at the end of a text can be the beginning of the token, which waits for the
    following text: so there is a full stop. Two starts of a server."""
    place.env = {"BRIDGE_AUTH": "auto"}
    folder = str(place.state)
    script = f"text a.\nwait {live.path} agent\ntext b\npermit q May I?\ntext c"
    async with place.server() as (server, _):
        async with child(
            place.workspace, "--local", cwd=place.workspace, BRIDGE_STATE_DIR=folder
        ) as proxy:
            proxy.send(streamed(1, script))
            frames: list[Json] = []
            await item_with(proxy, "artifactUpdate", frames)
            await live.pid("agent")
            await kill(server)
            async with place.server():
                await live.release("agent")
                frames += await proxy.stream()
                task = frames[0]["result"]["task"]["id"]
                proxy.send(request(2, "GetTask", {"id": task}))
                asked = (await proxy.next())["result"]
                assert await proxy.leave() == 0
    numbers = [one["eventId"] for one in frames[:-1]]
    assert numbers == list(range(len(numbers)))
    assert artifact(frames) == "a.b"
    assert state(frames[-2]["result"]) == state(asked) == "input-required"


async def test_a_task_continues_after_the_end_of_its_parent(
    workspace: Path, live: Liveness, http: aiohttp.ClientSession
) -> None:
    """Also if the server cancels the tasks of clients that leave. A start of a server and of two
    proxies, one of them through a Unix socket."""
    path = workspace.parent / "run/socket"
    path.parent.mkdir(mode=0o700)
    env = {**scripted(workspace), **GRACE, "BRIDGE_UNIX_SOCKET": str(path)}
    async with bridge(workspace, **env) as server:
        client = Client(http, server.url)
        async with child(workspace, "--url", f"unix:{path}", "--agent", "jsonl") as proxy:
            proxy.send(streamed(1, f"text a\nwait {live.path} kept"))
            kept = (await proxy.next())["result"]["task"]["id"]
            await live.pid("kept")
            proxy.process.kill()
        async with child(workspace, "--url", server.url) as proxy:
            choice = {"bridge": {"onDisconnect": "cancel"}}
            asked = streamed(1, f"text a\nwait {live.path} lost")
            asked["params"]["metadata"] = choice
            proxy.send(asked)
            lost = (await proxy.next())["result"]["task"]["id"]
            await live.pid("lost")
            proxy.send({"jsonrpc": "2.0", "id": 1, "cancelStream": True})
            await proxy.stream()
            await canceled(client, lost)
            unknown = request(2, "GetTask", {"id": "none"})
            broken = {**unknown, "a2a-service-parameters": {"traceparent": "a\nb"}}
            proxy.send({**unknown, "method": "None"}, unknown, {**broken, "id": 3})
            found = {one["id"]: one["error"]["code"] for one in [await proxy.next() for _ in "abc"]}
            assert sorted(found) == [2, 3] and found[3] == -32602
            assert await proxy.leave() == 0
        assert state(await client.get(kept)) == "working"
        await live.release("kept")
        assert state(await finished(client, kept)) == "completed"


@each(
    ("flags", "status", "said"),
    [
        (["--local"], 3, b"NO_SERVER"),
        (["--local", "--url", "http://127.0.0.1:9"], 2, b"not both"),
        (["--local", "--as", "alice"], 2, b"--as is for a server of its own"),
        (["--url", "nonsense"], 2, b"not an http"),
    ],
)
@pytest.mark.soak
def test_a_proxy_without_a_server_ends_before_the_first_frame(
    workspace: Path, flags: list[str], status: int, said: bytes
) -> None:
    """A start of the program takes half a second."""
    done = refused(workspace, *flags)
    assert done.returncode == status and said in done.stderr


async def test_a_server_that_does_not_answer_is_an_error_of_the_request(workspace: Path) -> None:
    """The stream has its end, and the proxy lives on, also with a token of `auth login` for a Unix
    socket. A start of the program."""
    address = f"unix:{workspace.parent}/none"
    stored = workspace.parent / "home/.config/coding-agent-bridge/credentials.json"
    CredentialStore(stored).save({address: "x" * 20})
    async with child(workspace, "--url", address) as proxy:
        proxy.send(request(1, "ListTasks"), streamed(2, "text a"))
        frames = [await proxy.next() for _ in range(3)]
        reasons = {f["id"]: f["error"]["data"][0]["reason"] for f in frames if "error" in f}
        assert reasons == {1: "UNAVAILABLE", 2: "UNAVAILABLE"}
        assert [one["id"] for one in frames if "streamEnd" in one] == [2]
        assert await proxy.leave() == 0
