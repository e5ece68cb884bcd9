"""Servers, workers and Redis as programs: kills at random points, rights, and the command line."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import redis
from aiohttp import web
from cryptography.fernet import Fernet

from bridge.auth.principal import digest
from bridge.cli.doctor.database import broker as check_broker
from bridge.errors import ConfigurationError
from bridge.server.extras import push_worker
from bridge.server.settings.root import Settings
from tests import CHECKOUT
from tests.support.bridge_process import BridgeProcess, environment, scripted
from tests.support.client import Client, Json, streamed_text
from tests.support.forked_command import run_forked
from tests.support.ledger import View, check_reference, check_view
from tests.support.liveness import Liveness
from tests.support.receivers import Receiver, accept, receiving
from tests.support.redis_broker import WITHIN, RedisBroker, RedisCaller, message, token
from tests.support.restart import Place, kill
from tests.support.servers import on_postgres
from tests.support.stdio_server import child, request

PAGE = (CHECKOUT / "docs/bindings.md").read_text("utf-8")
TOKEN = "x" * 20


def with_redis(place: Place, broker: RedisBroker, streams: int = 0, **more: str) -> None:
    """Let the servers of the place read the requests of alice. `streams`: her quota."""
    file = place.workspace.parent / "bridge.toml"
    file.write_text(
        f'[tokens.alice]\nhash = "sha256:{digest(TOKEN).hex()}"\nredis = true\nrunning = 0\n'
        f"tasks = 0\nstarts_per_minute = 0\nstreams = {streams}\n"
    )
    place.env = {
        "CONFIG_FILE": str(file),
        "BRIDGE_REDIS_URL": broker.url,
        "BRIDGE_REDIS_CLAIM_MS": "1000",
        "BRIDGE_SANDBOX": "none",
        **more,
    }


async def sent(caller: RedisCaller, text: str) -> str:
    """Send a message, again after each loss of the connection. Returns the id of the request."""
    params, correlation = {"message": message(text)}, os.urandom(8).hex()
    async with asyncio.timeout(WITHIN):
        while True:
            try:
                return await caller.send("SendStreamingMessage", params, correlation)
            except (redis.RedisError, OSError):
                await asyncio.sleep(0.01)


async def answer(caller: RedisCaller, correlation: str) -> View:
    """The view of a client of the answer; its ids must be those of the page."""
    view = View(correlation)
    entries = [one async for one in caller.items(correlation)]
    numbers = [tuple(map(int, entry.split("-"))) for entry, _ in entries]
    for (number, kind), (_, payload) in zip(numbers[:-1], entries, strict=False):
        (view.snapshots if kind == 1 else view.updates).append((number, payload["result"]))
    assert numbers[0][1] == 1 and numbers[-1] == (numbers[-2][0], 3), numbers
    return view


async def reference(server: BridgeProcess, http: Any, task_id: str) -> list[tuple[int, Json]]:
    """All updates of a task over HTTP, by their numbers."""
    headers = {"A2A-Version": "1.0", "Last-Event-ID": "0", "Authorization": f"Bearer {TOKEN}"}
    url = f"{server.url}/a2a/rest/tasks/{task_id}:subscribe"
    found, number = list[tuple[int, Json]](), 0
    async with http.get(url, headers=headers) as response:
        async for line in response.content:
            if line.startswith(b"id:"):
                number = int(line[3:])
            elif line.startswith(b"data:"):
                found.append((number, json.loads(line[5:])))
    return found


MANY = [pytest.mark.soak, pytest.mark.timeout(1800)]  # each kill is followed by a start


@pytest.mark.parametrize("kills", [2, pytest.param(200, marks=MANY)])
async def test_no_request_is_lost_or_served_twice(
    broker: RedisBroker, place: Place, http: aiohttp.ClientSession, kills: int
) -> None:
    """A kill -9 of the server, of Redis or of both, at random points of streams and between them.
    Each client sees each update once, and each message has one task. Takes seconds: each kill is
    followed by a start of a server."""
    with_redis(place, broker)
    chance, correlations = random.Random(kills), list[str]()
    lines = [f"text {number} " for number in range(20)]
    text = "\n".join([*lines[:10], "pause 0.1", *lines[10:], "pause 0.1", "done"])
    async with broker.client() as client:
        caller = RedisCaller(client)
        for number in range(kills):
            async with place.server(ready=number % 2 == 0) as (server, _):
                correlations += [await sent(caller, text) for _ in range(2)]
                if number % 2 == 0:
                    await anext(caller.items(correlations[-1]))
                await asyncio.sleep(chance.random() / 3)
                victims = ("server", "redis", "both")[number % 3]
                if victims != "server":
                    broker.kill()
                    broker.start()
                if victims != "redis":
                    await kill(server)
        async with place.server() as (server, _):
            await server.listening()
            views = [await answer(caller, one) for one in correlations]
            listed = f"{server.url}/a2a/rest/tasks?pageSize=100"
            headers = {"A2A-Version": "1.0", "Authorization": f"Bearer {TOKEN}"}
            async with http.get(listed, headers=headers) as response:
                assert (await response.json())["totalSize"] == len(correlations)
            wrong = []
            for view in views:
                task = view.snapshots[0][1]["task"]["id"]
                updates = await reference(server, http, task)
                async with http.get(f"{server.url}/a2a/rest/tasks/{task}", headers=headers) as got:
                    wrong += check_reference(updates, await got.json())
                wrong += check_view(view, updates)
                if view.state == "completed":
                    assert streamed_text([one for _, one in updates]) == "".join(
                        f"{number} " for number in range(20)
                    )
            assert wrong == []
            assert all(view.ended for view in views)
            assert await client.xlen("cab:requests:alice") == 0
            assert not await client.exists("cab:dead")


@pytest.mark.soak
async def test_servers_of_one_database_share_the_requests(
    broker: RedisBroker, place: Place, postgres_url: str, http: aiohttp.ClientSession
) -> None:
    """Three subscriptions, of which each server takes two at most. One server is killed: the other
    one continues its answers. Takes seconds: starts of servers."""
    with_redis(place, broker, streams=2)
    place.env |= on_postgres(postgres_url)
    second = {"BRIDGE_STATE_DIR": f"{place.state}-b", "BRIDGE_NODE": "test:b"}
    async with broker.client() as client, place.server(BRIDGE_NODE="test:a") as (a, _):
        async with place.server(True, **second) as (b, _):
            caller = RedisCaller(client)
            alice = Client(http, b.url, "1.0", {"Authorization": f"Bearer {TOKEN}"})
            asked = await alice.call("SendMessage", {"message": message("ask q What?")})
            named = {"id": asked["task"]["id"]}
            correlations = [await caller.send("SubscribeToTask", named) for _ in range(3)]
            for one in correlations:
                await anext(caller.items(one))
            takers = await client.xpending("cab:requests:alice", "cab")
            assert len(takers["consumers"]) == 2, takers
            await kill(a)
            await alice.call("CancelTask", named)
            for view in [await answer(caller, one) for one in correlations]:
                assert check_view(view, await reference(b, http, named["id"])) == []
                assert view.ended and view.state == "canceled"


@asynccontextmanager
async def worker(workspace: Path, **env: str) -> AsyncIterator[tuple[Any, str]]:
    """The process of a worker, and the line that it prints."""
    home, variables = environment(workspace, env)
    command = [sys.executable, "-m", "bridge", "push-worker", "--metrics", "127.0.0.1:0"]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=home, env=variables, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr
    try:
        line = ""
        async with asyncio.timeout(WITHIN):
            while not line.startswith("push worker"):
                line = (await process.stderr.readline()).decode()
                assert line, "the worker has ended"
        yield process, line
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def with_worker(place: Place, broker: RedisBroker) -> dict[str, str]:
    """Let the servers of the place relay notifications. Returns the environment of a worker."""
    key = {"BRIDGE_PUSH_KEY": Fernet.generate_key().decode(), "BRIDGE_PUSH_ALLOW_PRIVATE": "true"}
    with_redis(place, broker, 0, BRIDGE_PUSH_RELAY="redis", **key)
    secret = place.workspace.parent / "word"
    secret.write_text("word\n")
    secret.chmod(0o600)
    more = {"BRIDGE_REDIS_PASSWORD_FILE": str(secret)}
    return {"BRIDGE_REDIS_URL": f"unix://worker@{broker.socket}", **more, **key}


@pytest.mark.parametrize("waits", [False, pytest.param(True, marks=pytest.mark.soak)])
async def test_a_killed_worker_loses_its_job_to_the_next_one(
    broker: RedisBroker, place: Place, http: aiohttp.ClientSession, waits: bool
) -> None:
    """With the rights of the page. The first worker is killed with a job in hand, the second one is
    stopped with one. Takes seconds: starts of programs; in the soak tier also the lease, which has
    an end in Redis before."""
    line = PAGE.partition("<!-- acl-worker -->\n```text\n")[2].partition("```")[0]
    env = with_worker(place, broker)
    receiver, inside = Receiver(), asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        inside.set()
        await receiver.over.wait()
        return web.Response()

    receiver.behaviours = [receiver.stall, *[accept] * 3, slow]
    async with broker.client() as admin, receiving(receiver), place.server() as (server, _):
        await admin.execute_command(*line.replace("PASSWORD", "word").split())
        alice = Client(http, server.url, "1.0", {"Authorization": f"Bearer {TOKEN}"})
        assert "redis" in server.log and "push notifications" in server.log
        config = {"taskPushNotificationConfig": {"url": receiver.url, "token": "t"}}
        async with worker(place.workspace, **env) as (killed, _):
            params = {"message": message("text hello\nask q What?"), "configuration": config}
            task = (await alice.call("SendMessage", params))["task"]
            await receiver.got(1)
            killed.kill()
            await killed.wait()
        if not waits:
            (row,) = await admin.xpending_range("cab:push", "cab-push", "-", "+", 10)
            taken = [row["message_id"]]
            options = {"idle": 3_600_000, "retrycount": 1, "justid": True}
            await admin.xclaim("cab:push", "cab-push", row["consumer"], 0, taken, **options)
        async with worker(place.workspace, **env) as (process, printed):
            async with asyncio.timeout(2 * WITHIN):
                while len(receiver.requests) < 4:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            bodies = [json.loads(one) for one in receiver.bodies]
            assert task["id"] in json.dumps(bodies[0]) and bodies[0] == bodies[1]
            numbers = [int(one.rpartition(":")[2]) for one in receiver.ids]
            assert numbers == [1, 1, 2, 3] and receiver.ids[0] == receiver.ids[1]
            metrics = printed.rpartition(" ")[2].strip()

            async def counted() -> str:
                async with http.get(metrics) as response:
                    return await response.text()

            async with asyncio.timeout(WITHIN):
                while '"delivered"} 3\n' not in await counted():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await alice.call("SendMessage", {"message": message("this", taskId=task["id"])})
            async with asyncio.timeout(WITHIN):
                await inside.wait()
                assert "bridge_push_queue 1\n" in await counted()
                process.send_signal(signal.SIGTERM)
                receiver.over.set()
                assert await process.wait() == 0
        assert (await admin.xpending("cab:push", "cab-push"))["pending"] == 0


async def test_a_server_for_its_parent_leaves_the_prefix_alone(
    broker: RedisBroker, place: Place
) -> None:
    """Another server with this CONFIG_FILE may need it. A start of a server takes a second."""
    with_redis(place, broker)
    env: dict[str, Any] = place.env
    async with child(place.workspace, stderr=asyncio.subprocess.PIPE, **env) as server:
        server.send(request(1, "ListTasks"))
        assert (await server.next())["result"]["tasks"] == []
        async with broker.client() as client:
            assert await client.keys("*") == []
        assert await server.leave() == 0
        assert server.process.stderr
        log = (await server.process.stderr.read()).decode()
    assert "[tokens.alice] redis = true has no effect" in log


def set_redis(place: Place, on: bool) -> None:
    """Change the table of alice."""
    file, was = Path(place.env["CONFIG_FILE"]), str(not on).lower()
    changed = f"redis = {str(on).lower()}"
    file.write_text(file.read_text().replace(f"redis = {was}", changed))


async def test_the_client_of_the_page_works(
    broker: RedisBroker, place: Place, http: aiohttp.ClientSession, live: Liveness
) -> None:
    """Takes seconds: it starts a server and an interpreter. With the rights of the page. A server
    with another store is refused, and a reload ends the rights of the client."""
    program = PAGE.partition("<!-- redis-python -->\n```python\n")[2].partition("```")[0]
    with_redis(place, broker)
    alice = PAGE.partition("<!-- acl -->\n```text\n")[2].splitlines()[0]
    async with broker.client() as admin, place.server() as (server, _):
        await admin.execute_command(*alice.replace("PASSWORD", "word").split())
        command = [sys.executable, "-c", program, broker.url_of("alice", "word"), "alice"]
        process = await asyncio.create_subprocess_exec(
            *command, "text hi", stdout=asyncio.subprocess.PIPE
        )
        other = {**scripted(place.workspace), **place.env, "PORT": "0"}
        other["BRIDGE_STATE_DIR"] = str(place.workspace.parent / "other")
        home, variables = environment(place.workspace, other)
        refused = await asyncio.to_thread(run_forked, cwd=home, env=variables)
        async with asyncio.timeout(WITHIN):
            out, _ = await process.communicate()
        assert process.returncode == 0
        assert "hi" in out.decode() and "TASK_STATE_COMPLETED" in out.decode()
        assert refused.returncode == 2
        assert "BRIDGE_REDIS_PREFIX=cab: a server with another store" in refused.stderr
        caller = RedisCaller(admin)
        params = {"message": message(f"text a\nwait {live.path} a")}
        stream = caller.items(await caller.send("SendStreamingMessage", params))
        await anext(stream)
        await live.pid("a")
        set_redis(place, False)
        url = f"{server.url}/admin/reload"
        async with http.post(url, headers=server.credentials) as answer:
            assert (await answer.json())["changed"] == ["tokens.alice"]
        *_, (_, last) = [one async for one in stream]
        assert last["error"]["data"][0]["reason"] == "UNAUTHENTICATED"
        set_redis(place, True)
        async with http.post(url, headers=server.credentials) as answer:
            assert answer.status == 200
        assert (await caller.call("ListTasks", {}))["result"]["totalSize"] == 2


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"bridge_redis_url": "redis://localhost"}, "requires BRIDGE_PUSH_KEY"),
        ({"bridge_redis_url": "redis://:pass-word@h:x", "bridge_push_key": "k"}, "a URL such as"),
        ({"bridge_redis_url": "redis://localhost", "bridge_push_key": "k"}, "keys of 32 bytes"),
    ],
)
async def test_a_worker_without_its_settings_names_them(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as refused:
        push_worker(Settings().updated(given))
    assert "pass-word" not in str(refused.value)


def test_a_worker_without_redis_has_an_exit_status(workspace: Path) -> None:
    home, variables = environment(workspace, {})
    done = run_forked(["push-worker"], cwd=home, env=variables)
    assert done.returncode == 2
    assert done.stderr == "coding-agent-bridge: push-worker requires BRIDGE_REDIS_URL.\n"


async def test_the_doctor_knows_the_rights_and_the_durability(broker: RedisBroker) -> None:
    line = PAGE.partition("<!-- acl -->\n```text\n")[2].splitlines()[1]
    async with broker.client() as admin:
        await admin.execute_command(*line.replace("PASSWORD", "word").split())
        given: dict[str, Any] = {
            "bridge_redis_url": broker.url_of("bridge", "word"),
            "tokens": {"alice": token()},
        }
        settings = Settings().updated(given)
        (fine,) = await check_broker(settings)
        assert fine.status == "ok" and "Redis 7" in fine.text
        await admin.config_set("maxmemory-policy", "allkeys-lru")
        await admin.config_set("appendonly", "no")
        await admin.acl_setuser("bridge", enabled=True, commands=["-xclaim"])
        found = [(one.status, one.text) for one in await check_broker(settings)]
    assert [status for status, _ in found] == ["ok", "note", "note", "failed"]
    assert "append-only" in found[1][1] and "allkeys-lru" in found[2][1] and "xclaim" in found[3][1]
    broker.kill()
    (away,) = await check_broker(settings)
    assert away.status == "failed" and "word" not in repr(away)
    assert await check_broker(Settings()) == []
