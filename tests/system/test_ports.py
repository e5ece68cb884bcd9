"""The ports of a server, while it runs and while it is away: real processes, and an agent that
tries to get them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.support.agent import PROGRAM as SCRIPTED
from tests.support.bridge_process import BridgeProcess, bridge
from tests.support.children import launchers
from tests.support.client import Client, state
from tests.support.free_port import free_port
from tests.support.port_thief import PROGRAM as THIEF

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no launcher")
WITHIN = 60.0  # seconds
ROUNDS = 20  # of attempts of the agent
SHAPES = ["root", "user"]


async def until(condition: Callable[[], object]) -> None:
    """For a condition without an event."""
    async with asyncio.timeout(WITHIN):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Place:
    """Servers with one state folder and one pair of ports, one after the other."""

    def __init__(self, workspace: Path, http: aiohttp.ClientSession, shape: str) -> None:
        self.workspace = workspace
        self.port = self.grpc = "0"
        self._http = http
        self._ordinary = shape == "user"

    @asynccontextmanager
    async def server(
        self, program: str = THIEF, ready: bool = True, **env: str
    ) -> AsyncIterator[tuple[BridgeProcess, Client]]:
        settings: dict[str, Any] = {
            "AGENT_ADAPTER": "jsonl",
            "AGENT_BINARY": sys.executable,
            "AGENT_ARGS": f"-I -S {program}",
            "BRIDGE_STATE_DIR": str(self.workspace.parent / "state"),
            "BRIDGE_DRAIN_MS": "0",
            "BRIDGE_AUTH": "auto",
            "BRIDGE_SANDBOX": "auto",
            "PORT": self.port,
            "BRIDGE_GRPC_PORT": self.grpc,
            **env,
        }
        async with bridge(
            self.workspace, ready=ready, ordinary=self._ordinary, **settings
        ) as server:
            client = Client(self._http, server.url)
            if ready:
                client.headers |= server.credentials
                self.port = server.url.rpartition(":")[2]
                self.grpc = server.log.partition("  grpc ")[2].split()[0].rpartition(":")[2]
            yield server, client


@pytest.fixture(params=SHAPES)
def place(workspace: Path, http: aiohttp.ClientSession, request: pytest.FixtureRequest) -> Place:
    return Place(workspace, http, request.param)


class Thief:
    """The file of tests/support/port_thief.py."""

    def __init__(self, place: Place) -> None:
        self.file = place.workspace / "got"

    @property
    def attempts(self) -> int:
        written = self.file.read_text() if self.file.exists() else ""
        return int(written.split()[0]) if written else 0

    @property
    def pid(self) -> int:
        return int(self.file.read_text().split()[1])

    @property
    def ended(self) -> bool:
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    @property
    def got(self) -> list[str]:
        return self.file.read_text().splitlines()[1:]

    async def tries(self) -> None:
        """Return after further attempts on all addresses."""
        before = self.attempts
        await until(lambda: self.attempts >= before + ROUNDS)


@pytest.mark.parametrize("end", ["crash", "keep"])
async def test_an_agent_gets_no_port_of_its_server_on_any_address(
    place: Place, end: str, http: aiohttp.ClientSession
) -> None:
    """Takes seconds: two starts of a server with gRPC, and many attempts meanwhile."""
    thief = Thief(place)
    async with place.server(BRIDGE_ON_STOP="keep") as (server, client):
        asked = await client.send(f"{thief.file} {place.port} {place.grpc}")
        assert state(asked) == "input-required"
        await thief.tries()
        await server.stop(signal.SIGKILL if end == "crash" else signal.SIGTERM)
    await thief.tries()
    waiting = asyncio.create_task(_health(http, place.port))  # without a server
    refused = asyncio.create_task(_unavailable(place.grpc))
    await refused
    async with place.server() as (server, client):
        assert await waiting == 200
        await thief.tries()
        assert state(await client.send("yes", taskId=asked["id"])) == "completed"
        for host in ("127.0.0.1", "[::1]") if socket.has_ipv6 else ("127.0.0.1",):
            assert await _health(http, place.port, host) == 200
    assert thief.got == []


async def _health(http: aiohttp.ClientSession, port: str, host: str = "127.0.0.1") -> int:
    async with http.get(f"http://{host}:{port}/health") as response:
        return response.status


async def _unavailable(port: str) -> None:
    """The port of gRPC refuses connections."""
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", int(port))


async def test_a_process_of_an_agent_that_has_the_port_is_ended(place: Place) -> None:
    """No launcher holds the port here, because it was killed, too."""
    thief = Thief(place)
    async with place.server() as (server, client):
        await client.send(f"{thief.file} {place.port} {place.grpc}")
        await thief.tries()
        (launcher,) = launchers(server.process.pid)
        server.process.send_signal(signal.SIGSTOP)  # it would start another one
        launcher.kill()
        server.process.kill()
    await until(lambda: len({line.split()[1] for line in thief.got}) == 2)
    async with place.server() as (server, client):
        assert server.url.endswith(f":{place.port}")
        await until(lambda: thief.ended)


@pytest.mark.parametrize(
    ("what", "host"), [("port", "127.0.0.1"), ("port", "::1"), ("grpc", "127.0.0.1")]
)
async def test_another_program_on_the_port_is_named(
    workspace: Path, http: aiohttp.ClientSession, host: str, what: str
) -> None:
    place = Place(workspace, http, "root")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as other:
        setattr(place, what, str(other.getsockname()[1]))
        async with place.server(ready=False) as (server, _):
            assert await server.ended() == {"port": 1, "grpc": 2}[what]
        named = f"used by pid {os.getpid()} ({psutil.Process().name()})"
        assert "cannot listen on 127.0.0.1:" in server.log and named in server.log


async def test_a_second_server_changes_nothing(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    """On the same ports, and on others."""
    place = Place(workspace, http, "root")
    async with place.server(SCRIPTED) as (_, client):
        asked = await client.send("permit q May I?")
        for port in (place.port, "0"):
            async with place.server(SCRIPTED, ready=False, PORT=port) as (second, _):
                assert await second.ended() in (1, 2)
        assert "used by pid" in second.log or "uses the state folder" in second.log
        assert state(await client.send("yes", taskId=asked["id"])) == "completed"
        assert await _health(http, place.port) == 200


async def test_a_port_that_the_next_server_does_not_use_refuses_connections(place: Place) -> None:
    """Its agents live on, and do not get it."""
    thief = Thief(place)
    async with place.server() as (server, client):
        asked = await client.send(f"{thief.file} {place.port} {place.grpc}")
        await thief.tries()
        await server.stop(signal.SIGKILL)
    old = place.port
    async with place.server(PORT="0") as (_, client):
        assert place.port != old
        await _unavailable(old)
        await thief.tries()
        assert state(await client.send("yes", taskId=asked["id"])) == "completed"
    assert thief.got == []


def is_free(port: str) -> bool:
    try:
        socket.create_server(("", int(port))).close()
    except OSError:
        return False
    return True


async def test_the_agents_of_a_server_without_a_state_folder_end_with_it(place: Place) -> None:
    thief = Thief(place)
    async with place.server(BRIDGE_STORE="memory", PORT=str(free_port())) as (server, client):
        await client.send(f"{thief.file} {place.port} {place.grpc}")
        await thief.tries()
        await server.stop(signal.SIGKILL)
    await until(lambda: thief.ended)
    assert thief.got == []
    await until(lambda: is_free(place.port))  # the launcher ends after its last agent
    async with place.server(BRIDGE_STORE="memory") as (server, _):
        assert server.url.endswith(f":{place.port}")


async def test_a_planned_stop_releases_the_ports(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    place = Place(workspace, http, "root")
    async with place.server(SCRIPTED) as (server, client):
        await client.send("turn")
        assert await server.stop() == 0
    for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        for port in (place.port, place.grpc):
            socket.create_server((host, int(port)), family=family).close()
