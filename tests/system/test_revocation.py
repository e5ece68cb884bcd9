"""A reload of the real server takes the credential of one principal away: its streams and
connections end on every binding, and the others lose no item."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from tests.support.configured import Configured, configured, made
from tests.support.followers import REVOKED, Follower, Streams, shape
from tests.support.grpc_client import connected
from tests.support.liveness import Liveness

WITHIN = 20.0  # seconds until the streams of a revoked principal have ended; mostly one
PIECES = 20
NAMES = [f"user-{number}" for number in range(10)]
WITH_ITEMS = ("sse", "unix", "grpc", "websocket")
ANY_BINDING = (*WITH_ITEMS, "mcp")


@asynccontextmanager
async def following(
    server: Configured, streams: Streams, unix: Path
) -> AsyncIterator[list[Follower]]:
    """Five streams of each principal, and two monitor feeds and two idle connections; all of them
    are open."""
    await server.server.logged("server.ready")
    found = re.search(r"grpc='([^']+)'", server.server.log)
    assert found
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(unix), limit=0)) as local,
        connected(found[1]) as client,
    ):
        follow = {
            "sse": streams.sse(server.http, server.server.url),
            "unix": streams.sse(local, "http://localhost"),
            "grpc": streams.grpc(client),
            "websocket": streams.websocket(),
            "mcp": streams.mcp(),
        }
        made = [Follower(name, one, follow[one]) for name in NAMES for one in ANY_BINDING]
        for name in NAMES[:2]:
            made.append(Follower(name, "feed", streams.feed()))
            made.append(Follower(name, "idle", streams.websocket(idle=True)))
        async with asyncio.timeout(30):
            for one in made:
                await one.opened.wait()
        assert not [one.binding for one in made if one.ended is not None]
        yield made


async def test_a_reload_ends_the_streams_of_one_principal_and_no_other(
    workspace: Path, live: Liveness
) -> None:
    """50 streams of ten principals; takes seconds for ten CLIs and the library of MCP."""
    known = {name: made(name) for name in NAMES}
    tables = {name: table for name, (_, table) in known.items()}
    unix = workspace.parent / "socket"
    env = {"BRIDGE_GRPC_PORT": "0", "BRIDGE_WEBSOCKET": "true", "BRIDGE_MAX_SESSIONS": "10"}
    env |= {"BRIDGE_UNIX_SOCKET": str(unix)}
    script = "\n".join(f"status {number}" for number in range(PIECES))
    gone, *rest = NAMES
    async with configured(workspace, "".join(tables.values()), **env) as server:
        streams = Streams(server, {name: secret for name, (secret, _) in known.items()})
        for name in NAMES:
            await streams.begin(name, f"text begin\nwait {live.path} {name}\n{script}")
        for name in NAMES:
            await live.pid(name)
        async with following(server, streams, unix) as followers:
            server.file.write_text("".join(tables[name] for name in rest))
            status, changes = await server.reload()
            at = time.monotonic()
            assert (status, changes["removed"]) == (200, [f"tokens.{gone}"])
            lost = [one for one in followers if one.name == gone]
            others = [one for one in followers if one.name != gone]
            async with asyncio.timeout(20):
                await asyncio.gather(*(one.task for one in lost))
            ends = {one.binding: one.ended or "" for one in lost}
            assert all(one.at - at < WITHIN for one in lost), ends
            assert all(REVOKED in ends[name] for name in (*ANY_BINDING, "feed")), ends
            assert ends["websocket"].startswith("4401 ") and ends["idle"] == "4401 "
            assert (await server.client(known[gone][0]).post({})).status == 401
            assert not [one for one in others if one.ended is not None]
            for name in NAMES:
                await live.release(name)
            await whole(streams, rest, others)


async def whole(streams: Streams, names: list[str], followers: list[Follower]) -> None:
    """Wait for the ends of the streams, and compare their items with the logs of the tasks."""
    *following, idle = sorted(followers, key=lambda one: one.binding == "idle")
    async with asyncio.timeout(30):
        await asyncio.gather(*(one.task for one in following))
    assert {one.ended for one in following} == {""}
    assert (idle.binding, idle.ended) == ("idle", None)
    idle.task.cancel()
    logs = {name: await streams.logged(name) for name in names}
    for one in following:
        log = logs[one.name]
        if one.binding in WITH_ITEMS:
            updates = [shape(item) for item in one.items[1:]]
            assert len(updates) > PIECES and updates == log[-len(updates) :], one.binding
        elif one.binding == "mcp":
            assert one.items[-1]["structuredContent"]["state"] == "completed"
        else:
            assert [item["state"] for item in one.items][-1] == "completed"
    assert len(logs) == 9 and {log[-1] for log in logs.values()} == {"completed"}
