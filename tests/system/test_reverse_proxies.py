"""A real server behind a real nginx and a real Caddy, with the configurations of deploy/."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp
import grpc
import pytest
from yarl import URL

from tests.support.bridge_process import bridge, scripted
from tests.support.client import Client, Json, artifact_text, state, streamed_text, task_id
from tests.support.free_port import free_port
from tests.support.grpc_client import connected
from tests.support.ledger import View, check_reference, check_view
from tests.support.liveness import Liveness
from tests.support.numbered_streams import (
    Numbered,
    Reach,
    over_sse,
    over_websocket,
    through_grpc,
)
from tests.support.reverse_proxies import PROXIES, ReverseProxy, running
from tests.support.sandboxed import needs_root

TOKEN = "a-token-for-the-tests-of-proxies"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
OPERATORS = ("/metrics", "/nodes", "/admin/reload", "/monitor/tasks", "//metrics", "/%6detrics")


@pytest.fixture
async def proxies(workspace: Path) -> AsyncIterator[list[ReverseProxy]]:
    """All proxies in front of one server that requires a token."""
    port = free_port()
    env = {
        **scripted(workspace),
        "BRIDGE_AUTH": "token",
        "BRIDGE_TOKEN": TOKEN,
        "PORT": str(free_port()),
        "PUBLIC_URL": "https://localhost",
        "BRIDGE_GRPC_PORT": str(port),
        "BRIDGE_WEBSOCKET": "true",
    }
    async with bridge(workspace, **env):
        with contextlib.ExitStack() as running_ones:
            yield [
                running_ones.enter_context(running(make(folder, f"127.0.0.1:{env['PORT']}", port)))
                for name, make in PROXIES.items()
                if (folder := made_folder(workspace.parent / name))
            ]


def made_folder(path: Path) -> Path:
    path.mkdir()
    return path


@asynccontextmanager
async def client_of(proxy: ReverseProxy, **headers: str) -> AsyncIterator[Client]:
    """`headers`: of all requests of its session; the client adds a token to its own."""
    connector = aiohttp.TCPConnector(ssl=proxy.tls)
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=headers
    ) as session:
        yield Client(session, proxy.url, headers=BEARER)


@pytest.mark.parametrize("name", PROXIES)
def test_the_proxy_accepts_its_configuration(name: str, tmp_path: Path) -> None:
    made = PROXIES[name](tmp_path, "127.0.0.1:41242", 41243)
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
    first, second = f"first-{proxy.port}", f"second-{proxy.port}"
    script = (
        f"text one \nwait {live.path} {first}\ntext two \nwait {live.path} {second}\ntext three"
    )
    async with through.stream(script) as items:
        seen = [await anext(items)]
        task = task_id(seen[0])
        while "one" not in streamed_text(seen):
            seen.append(await anext(items))
        await live.release(first)
        while "two" not in streamed_text(seen):
            seen.append(await anext(items))
        await asyncio.to_thread(proxy.stop)
        with contextlib.suppress(aiohttp.ClientError):
            seen += [item async for item in items]
    assert "three" not in streamed_text(seen)
    await asyncio.to_thread(proxy.start)
    async with through.subscribe(task) as items:
        rest = [await anext(items)]
        await live.release(second)
        rest += [item async for item in items]
    assert state(rest[-1]) == "completed"
    assert artifact_text(await through.get(task)) == "one two three"
    assert "three" in str(rest)


class Follower:
    """A client that follows a task with `open_`, and resumes a stream that is cut."""

    def __init__(self, name: str, task: str, open_: Callable[[Json, int | None], Numbered]) -> None:
        self.view = View(name)
        self.opened = asyncio.Event()
        self.done = asyncio.create_task(self._follow({"id": task}, open_))

    async def _follow(self, params: Json, open_: Callable[[Json, int | None], Numbered]) -> None:
        while not self.view.ended:
            self.view.connections += 1
            with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                async with aclosing(open_(params, self.view.last)) as items:
                    async for number, item in items:
                        part = self.view.snapshots if "task" in item else self.view.updates
                        part.append((number, item))
                        self.opened.set()


async def _streams_outlive_reloads(proxy: ReverseProxy, live: Liveness) -> None:
    """A client of each binding gets each update once. Only Caddy cuts streams at a reload, and only
    those through a WebSocket: their clients resume."""
    async with client_of(proxy, **BEARER) as through:
        followers = await _followed_across_reloads(proxy, through, live)
    again = [one.name for one in followers if one.connections > 1]
    assert again == ([] if "nginx" in proxy.check[0] else ["websocket"])


async def _followed_across_reloads(
    proxy: ReverseProxy, through: Client, live: Liveness
) -> list[View]:
    """The views of clients that follow one task while the proxy reloads twice."""
    first, second = f"before-{proxy.port}", f"after-{proxy.port}"
    script = f"text 1 \nwait {live.path} {first}\ntext 2 \nwait {live.path} {second}\ntext 3"
    task = task_id(await through.send_now(script))
    await live.pid(first)
    credentials = grpc.ssl_channel_credentials(proxy.root)
    address, bearer = f"localhost:{proxy.port}", BEARER["Authorization"]
    asked = Reach(through.session, proxy.url), "SubscribeToTask"
    async with connected(address, credentials, authorization=bearer) as client:
        followers = [
            Follower("sse", task, partial(over_sse, *asked)),
            Follower("websocket", task, partial(over_websocket, *asked)),
            Follower("grpc", task, partial(through_grpc, client, "SubscribeToTask")),
        ]
        async with asyncio.timeout(60):
            await asyncio.gather(*(one.opened.wait() for one in followers))
            await asyncio.to_thread(proxy.reload)
            await live.release(first)
            await live.pid(second)
            await asyncio.to_thread(proxy.reload)
            assert (await through.post({})).status in (200, 400)
            await live.release(second)
            await asyncio.gather(*(one.done for one in followers))
    async with aclosing(over_sse(*asked, {"id": task}, 0)) as items:
        updates = [one async for one in items]
    for one in followers:
        assert check_view(one.view, updates) == []
    assert check_reference(updates, await through.get(task)) == []
    return [one.view for one in followers]


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


async def _over_grpc(proxy: ReverseProxy, method: str, params: Json) -> list[Json]:
    credentials = grpc.ssl_channel_credentials(proxy.root)
    address = f"localhost:{proxy.port}"
    async with connected(address, credentials, authorization=f"Bearer {TOKEN}") as client:
        return [one async for one in client.items(method, params)]


async def _over_websocket(through: Client, method: str, params: Json) -> list[Json]:
    url = f"ws{through.url.removeprefix('http')}/a2a/ws"
    headers = {**BEARER, "A2A-Version": "1.0"}
    items: list[Json] = []
    async with through.session.ws_connect(url, headers=headers) as socket:
        await socket.send_json({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        async for frame in socket:
            answer = frame.json()
            if "streamEnd" in answer:
                return items
            items.append(answer["result"])
    raise AssertionError(f"the connection ended before the stream, with {socket.close_code}")


async def _grpc_and_websocket_pass(proxy: ReverseProxy, through: Client) -> None:
    message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "text hello"}]}
    async with asyncio.timeout(60):
        calls = ("SendStreamingMessage", {"message": message})
        for items in (await _over_grpc(proxy, *calls), await _over_websocket(through, *calls)):
            assert streamed_text(items) == "hello"
            assert state(items[-1]) == "completed"


async def test_a_server_behind_a_proxy(proxies: list[ReverseProxy], live: Liveness) -> None:
    """All of it with one server, because a start takes a second."""
    for proxy in proxies:
        async with client_of(proxy) as through:
            await _the_gates_of_the_server_hold(proxy, through)
            await _the_sizes_of_bodies_agree(proxy)
            await _grpc_and_websocket_pass(proxy, through)
            await _streams_outlive_reloads(proxy, live)
            await _items_pass_at_once_and_a_stream_resumes(proxy, through, live)


@pytest.mark.soak
@pytest.mark.parametrize("name", PROXIES)
async def test_silent_streams_outlive_the_timeouts_of_a_proxy(
    name: str, workspace: Path, live: Liveness
) -> None:
    """Ten minutes of silence at a seventh of the timeouts and of the pings; those of gRPC are a
    constant of 30 s, so that it takes 45 s."""
    port, web, folder = free_port(), free_port(), workspace.parent / "proxy"
    folder.mkdir()
    changes = {"read_timeout 60s": "read_timeout 8s", "read_timeout 300s": "read_timeout 40s"}
    http = f"127.0.0.1:{web}"
    made = PROXIES[name](folder, http, port, changes if name == "nginx" else {})
    env = {
        **scripted(workspace),
        **{"BRIDGE_AUTH": "token", "BRIDGE_TOKEN": TOKEN, "PORT": str(web)},
        **{"PUBLIC_URL": "https://localhost", "BRIDGE_GRPC_PORT": str(port)},
        **{"BRIDGE_WEBSOCKET": "true", "BRIDGE_WEBSOCKET_PING_MS": "2700"},
    }
    async with bridge(workspace, **env):
        with running(made):
            async with client_of(made) as through, asyncio.timeout(120):
                sent = await through.send_now(f"wait {live.path} name\ntext end")
                await live.pid("name")
                follow = ("SubscribeToTask", {"id": task_id(sent)})
                others = [
                    asyncio.create_task(_over_grpc(made, *follow)),
                    asyncio.create_task(_over_websocket(through, *follow)),
                ]
                async with through.subscribe(task_id(sent)) as items:
                    first = await anext(items)
                    await asyncio.wait(others, timeout=45)  # the silence
                    assert not any(one.done() for one in others)
                    await live.release("name")
                    found = [[first, *[one async for one in items]]]
                found += await asyncio.gather(*others)
    for items_of_one in found:
        assert streamed_text(items_of_one) == "end"
        assert state(items_of_one[-1]) == "completed"


@pytest.mark.soak
@needs_root
@pytest.mark.parametrize(("name", "user"), [("nginx", "daemon root"), ("caddy", "root")])
async def test_a_proxy_reaches_a_server_without_a_port(
    name: str, user: str, workspace: Path, reachable: Path
) -> None:
    """nginx is a member of the group of the socket. Caddy has the user of the server, which needs
    no token itself. Clients of both do. A start of a server takes a second."""
    folder, place = workspace.parent / "proxy", reachable / "run"
    folder.mkdir()
    place.mkdir(mode=0o750)
    path = place / "socket"
    prefix = "unix:" if name == "nginx" else "unix/"
    made = PROXIES[name](folder, f"{prefix}{path}", 1, user=user)
    env = {
        **scripted(workspace),
        **{"BRIDGE_AUTH": "token", "BRIDGE_TOKEN": TOKEN, "PORT": "none"},
        **{"BRIDGE_UNIX_SOCKET": str(path), "BRIDGE_UNIX_GROUP": "root"},
        "PUBLIC_URL": "https://localhost",
    }
    async with bridge(workspace, **env):
        assert path.stat().st_mode & 0o777 == 0o660
        with running(made):
            async with client_of(made) as through:
                assert artifact_text(await through.send("text hello")) == "hello"
                async with through.session.get(f"{made.url}/tasks") as answer:
                    assert answer.status == 401
