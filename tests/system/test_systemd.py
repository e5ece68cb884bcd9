"""A real server as a service: a stand-in receives its notifications, and systemd-socket-activate
gives it its sockets."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.support import programs
from tests.support.bridge_process import BridgeProcess, bridge, environment, scripted
from tests.support.client import Client, artifact_text, task_id
from tests.support.command_line import run
from tests.support.free_port import free_port
from tests.support.liveness import Liveness
from tests.support.systemd import notify_socket

WITHIN = 60.0  # seconds


async def test_the_life_of_a_service(
    workspace: Path, http: aiohttp.ClientSession, live: Liveness
) -> None:
    """Also while it drains: the turn of a task then takes longer than a wait of systemd. The
    server starts in a second, and extensions come every 5 s."""
    with notify_socket(workspace.parent) as systemd:
        env = {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "200000"}
        drain = {"BRIDGE_DRAIN_MS": "60000"}
        async with bridge(workspace, **{**scripted(workspace), **drain, **env}) as server:
            await systemd.until("READY=1")
            assert systemd.received[1] == "STATUS=0 running, 0 asking, 0 queued"
            client = Client(http, server.url)
            agent = await client.send("env")
            assert "NOTIFY_SOCKET" not in artifact_text(agent)
            assert "WATCHDOG_USEC" not in artifact_text(agent)
            for _ in range(3):
                await systemd.until("WATCHDOG=1")
            systemd.received.clear()
            server.process.send_signal(signal.SIGHUP)
            await systemd.until("READY=1")
            begin = systemd.received.index("RELOADING=1")
            assert systemd.received[begin + 1].startswith("MONOTONIC_USEC=")
            task = await client.send_now(f"wait {live.path} turn")
            await live.pid("turn")
            assert task_id(task)
            server.process.terminate()
            await systemd.until("STOPPING=1")
            assert systemd.received[-2:] == ["STOPPING=1", "STATUS=stopping"]
            await systemd.until("EXTEND_TIMEOUT_USEC=20000000")
            await systemd.until("WATCHDOG=1")  # the event loop works while it drains
            await live.release("turn")
            assert await server.ended() == 0


@asynccontextmanager
async def activated(
    workspace: Path, *listeners: str, names: str, **env: str
) -> AsyncIterator[BridgeProcess]:
    """A server that systemd-socket-activate starts at the first connection."""
    home, variables = environment(workspace, {**scripted(workspace), **env})
    given = [f"--setenv={name}={value}" for name, value in variables.items()]
    process = await asyncio.create_subprocess_exec(
        "systemd-socket-activate",
        *(f"--listen={one}" for one in listeners),
        f"--fdname={names}",
        *given,
        sys.executable,
        "-m",
        "bridge",
        cwd=home,
        env=variables,
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    server = BridgeProcess(process)
    try:
        await server.logged(f"Listening on {listeners[-1]}")
        yield server
    finally:
        await server.stop()


@programs.needed("systemd-socket-activate")
async def test_sockets_of_systemd_replace_the_own_ones(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    """HOST, PORT and BRIDGE_UNIX_SOCKET have other values, and a task runs by either socket."""
    port, path = free_port(), workspace.parent / "s"
    env = {
        "HOST": "127.0.0.2",
        "PORT": str(free_port()),
        "BRIDGE_UNIX_SOCKET": str(path) + "-other",
    }
    listeners = (f"127.0.0.1:{port}", str(path))
    async with activated(workspace, *listeners, names="http:unix", **env) as server:
        client = Client(http, f"http://127.0.0.1:{port}")
        found = artifact_text(await client.send("env"))  # the connection waited for the start
        assert "LISTEN_" not in found
        await server.listening()
        assert server.url == client.url
        connector = aiohttp.UnixConnector(str(path))
        async with aiohttp.ClientSession(connector=connector) as session:
            local = Client(session, "http://localhost")
            assert artifact_text(await local.send("text hello")) == "hello"
        assert f"  socket     {path}" in server.log
        assert sorted(one.name for one in workspace.parent.glob("s*")) == ["s", "state"]
        assert await server.stop() == 0
    assert path.is_socket()  # systemd still listens there


@pytest.mark.soak
@programs.needed("systemd-socket-activate")
async def test_a_unix_socket_of_systemd_is_the_only_listener(workspace: Path) -> None:
    path = workspace.parent / "s"
    async with activated(workspace, str(path), names="unix", PORT="41242") as server:
        connector = aiohttp.UnixConnector(str(path))
        async with aiohttp.ClientSession(connector=connector) as session:
            async with session.get("http://localhost/health") as answer:
                assert answer.status == 200
        assert "endpoint   http://localhost/" in server.log
        settings = {"PORT": "none", "BRIDGE_UNIX_SOCKET": str(path), "AGENT_ADAPTER": "replay"}
        done = await asyncio.to_thread(run, "health", "--ready", cwd=workspace, **settings)
        assert (done.returncode, done.stdout) == (0, "ready\n"), done.stderr


@pytest.mark.soak
@programs.needed("systemd-socket-activate")
async def test_an_exposed_socket_requires_a_token(workspace: Path) -> None:
    """The address of the socket counts, not HOST."""
    port = free_port()
    async with activated(workspace, f"0.0.0.0:{port}", names="http", HOST="127.0.0.1") as server:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await server.ended() == 2
        writer.close()
    assert "HOST=0.0.0.0 accepts connections from other machines" in server.log
