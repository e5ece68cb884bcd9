"""A real server behind a real nginx and a real Caddy, with the configurations of deploy/. Each
test starts a server and a proxy, which takes a second."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import grpc
import pytest
from yarl import URL

from tests.support.bridge_process import bridge, scripted
from tests.support.client import Client, artifact_text, state, streamed_text, task_id
from tests.support.grpc_client import connected
from tests.support.liveness import Liveness
from tests.support.reverse_proxies import PROXIES, ReverseProxy, free_port, running

TOKEN = "a-token-for-the-tests-of-proxies"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
OPERATORS = ("/metrics", "/nodes", "/admin/reload", "/monitor/tasks", "//metrics", "/%6detrics")


@pytest.fixture(params=PROXIES)
async def proxy(request: pytest.FixtureRequest, workspace: Path) -> AsyncIterator[ReverseProxy]:
    """A proxy in front of a server that requires a token."""
    port, folder = free_port(), workspace.parent / "proxy"
    folder.mkdir()
    env = {
        **scripted(workspace),
        "BRIDGE_AUTH": "token",
        "BRIDGE_TOKEN": TOKEN,
        "PORT": str(free_port()),
        "PUBLIC_URL": "https://localhost",
        "BRIDGE_GRPC_PORT": str(port),
    }
    made = PROXIES[request.param](folder, int(env["PORT"]), port)
    async with bridge(workspace, **env):
        with running(made):
            yield made


@asynccontextmanager
async def client_of(proxy: ReverseProxy) -> AsyncIterator[Client]:
    connector = aiohttp.TCPConnector(ssl=proxy.tls)
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield Client(session, proxy.url, headers=BEARER)


@pytest.mark.parametrize("name", PROXIES)
def test_the_proxy_accepts_its_configuration(name: str, tmp_path: Path) -> None:
    made = PROXIES[name](tmp_path, 41242, 41243)
    done = subprocess.run(
        made.check,
        cwd=tmp_path,
        env={"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


async def _items_pass_at_once_and_a_stream_resumes(
    proxy: ReverseProxy, through: Client, live: Liveness
) -> None:
    """The agent waits until the client has its text: a proxy that collects items would hang. Then
    the proxy is restarted, and the client gets the rest."""
    script = f"text one \nwait {live.path} first\ntext two \nwait {live.path} second\ntext three"
    async with through.stream(script) as items:
        seen = [await anext(items)]
        task = task_id(seen[0])
        while "one" not in streamed_text(seen):
            seen.append(await anext(items))
        await live.release("first")
        while "two" not in streamed_text(seen):
            seen.append(await anext(items))
        await asyncio.to_thread(proxy.stop)
        with contextlib.suppress(aiohttp.ClientError):
            seen += [item async for item in items]
    assert "three" not in streamed_text(seen)
    await asyncio.to_thread(proxy.start)
    async with through.subscribe(task) as items:
        rest = [await anext(items)]
        await live.release("second")
        rest += [item async for item in items]
    assert state(rest[-1]) == "completed"
    assert artifact_text(await through.get(task)) == "one two three"
    assert "three" in str(rest)


async def _a_stream_outlives_a_reload(proxy: ReverseProxy, through: Client, live: Liveness) -> None:
    async with through.stream(f"text one \nwait {live.path} name\ntext two") as items:
        seen = [await anext(items)]
        await live.pid("name")
        os.kill(proxy.pid, signal.SIGHUP)
        assert (await through.post({})).status in (200, 400)  # by the new worker
        await live.release("name")
        seen += [item async for item in items]
    assert streamed_text(seen) == "one two"


async def _the_gates_of_the_server_hold(proxy: ReverseProxy, through: Client) -> None:
    """Without a token a client is nobody, although the proxy is a local program."""
    session = through.session
    async with session.get(f"{proxy.url}/tasks") as answer:
        assert answer.status == 401
    for path in OPERATORS:
        url = URL(proxy.url + path, encoded=True)
        async with session.get(url, headers=BEARER) as answer:
            assert answer.status == 404, path
            assert "bridge" not in (await answer.text()).lower(), path  # by the proxy itself
    async with session.get(f"{proxy.url}/monitor/events", headers=BEARER) as answer:
        assert answer.status == 200
    async with session.get(f"{proxy.url}/health", headers={"Host": "other.example"}) as answer:
        assert answer.status == 421 if "nginx" in proxy.check[0] else await answer.read() == b""


async def _the_sizes_of_bodies_agree(proxy: ReverseProxy) -> None:
    """A body that the server accepts passes; a larger one is 413."""

    def ask(size: int) -> int:
        connection = http.client.HTTPSConnection(
            "localhost", proxy.port, timeout=60, context=proxy.tls
        )
        with contextlib.closing(connection):
            given = {**BEARER, "Content-Type": "application/json", "A2A-Version": "1.0"}
            connection.putrequest("POST", "/a2a/jsonrpc")
            for name, value in {**given, "Content-Length": str(size)}.items():
                connection.putheader(name, value)
            connection.endheaders()
            with contextlib.suppress(OSError):
                for _ in range(size // 2**20):
                    connection.send(b" " * 2**20)
            return connection.getresponse().status

    assert await asyncio.to_thread(ask, 2 * 2**20) == 200  # more than the default of nginx
    assert await asyncio.to_thread(ask, 40 * 2**20) == 413


async def _grpc_passes(proxy: ReverseProxy) -> None:
    credentials = grpc.ssl_channel_credentials(proxy.root)
    address = f"localhost:{proxy.port}"
    message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "text hello"}]}
    async with connected(address, credentials, authorization=f"Bearer {TOKEN}") as client:
        async with asyncio.timeout(60):
            items = [
                one async for one in client.items("SendStreamingMessage", {"message": message})
            ]
    assert streamed_text(items) == "hello"
    assert state(items[-1]) == "completed"


async def test_a_server_behind_a_proxy(proxy: ReverseProxy, live: Liveness) -> None:
    """All of it with one server, because a start takes a second."""
    async with client_of(proxy) as through:
        await _the_gates_of_the_server_hold(proxy, through)
        await _the_sizes_of_bodies_agree(proxy)
        await _grpc_passes(proxy)
        if "nginx" in proxy.check[0]:  # the admin interface of Caddy is off in tests
            await _a_stream_outlives_a_reload(proxy, through, live)
        await _items_pass_at_once_and_a_stream_resumes(proxy, through, live)
