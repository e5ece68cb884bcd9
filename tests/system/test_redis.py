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
from cryptography.fernet import Fernet

from bridge.auth.principal import digest
from bridge.cli.doctor.database import broker as check_broker
from bridge.errors import ConfigurationError
from bridge.server.extras import push_worker
from bridge.server.settings.root import Settings
from tests import CHECKOUT
from tests.support.bridge_process import BridgeProcess, environment
from tests.support.client import Client, Json, streamed_text
from tests.support.ledger import View, check_reference, check_view
from tests.support.receivers import Receiver, receiving
from tests.support.redis_broker import WITHIN, RedisBroker, RedisCaller, message, token
from tests.support.restart import Place, kill

PAGE = (CHECKOUT / "docs/transports.md").read_text("utf-8")
TOKEN = "x" * 20


def with_redis(place: Place, broker: RedisBroker, **more: str) -> None:
    """Let the servers of the place read the requests of alice."""
    file = place.workspace.parent / "bridge.toml"
    file.write_text(
        f'[tokens.alice]\nhash = "sha256:{digest(TOKEN).hex()}"\nredis = true\nrunning = 0\n'
        "tasks = 0\nstarts_per_minute = 0\nstreams = 0\n"
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


@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=pytest.mark.soak)])
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


async def test_a_worker_sends_the_notifications_of_a_server(
    broker: RedisBroker, place: Place, http: aiohttp.ClientSession
) -> None:
    """With the rights of the page. Takes seconds: starts of programs."""
    line = PAGE.partition("<!-- acl-worker -->\n```text\n")[2].partition("```")[0]
    async with broker.client() as admin:
        await admin.execute_command(*line.replace("PASSWORD", "word").split())
    key = {"BRIDGE_PUSH_KEY": Fernet.generate_key().decode(), "BRIDGE_PUSH_ALLOW_PRIVATE": "true"}
    with_redis(place, broker, BRIDGE_PUSH_RELAY="redis", **key)
    secret = place.workspace.parent / "word"
    secret.write_text("word\n")
    secret.chmod(0o600)
    url = f"unix://worker@{broker.socket}"
    env = {"BRIDGE_REDIS_URL": url, "BRIDGE_REDIS_PASSWORD_FILE": str(secret), **key}
    receiver = Receiver()
    async with receiving(receiver), place.server() as (server, _):
        alice = Client(http, server.url, "1.0", {"Authorization": f"Bearer {TOKEN}"})
        assert "redis" in server.log and "push notifications" in server.log
        async with worker(place.workspace, **env) as (process, printed):
            config = {"taskPushNotificationConfig": {"url": receiver.url, "token": "t"}}
            params = {"message": message("text hello\ndone"), "configuration": config}
            task = (await alice.call("SendMessage", params))["task"]
            bodies = [json.loads(one) for one in await receiver.got(3)]
            assert task["id"] in json.dumps(bodies[0])
            metrics = printed.rpartition(" ")[2].strip()

            async def counted() -> str:
                async with http.get(metrics) as response:
                    return await response.text()

            async with asyncio.timeout(WITHIN):
                while f'"delivered"}} {len(receiver.requests)}\n' not in await counted():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(WITHIN):
                assert await process.wait() == 0


async def test_the_client_of_the_page_works(broker: RedisBroker, place: Place) -> None:
    """Over a second: it starts a server and an interpreter. With the rights of the page."""
    program = PAGE.partition("<!-- redis-python -->\n```python\n")[2].partition("```")[0]
    with_redis(place, broker)
    alice = PAGE.partition("<!-- acl -->\n```text\n")[2].splitlines()[0]
    async with broker.client() as admin:
        await admin.execute_command(*alice.replace("PASSWORD", "word").split())
    async with place.server():
        command = [sys.executable, "-c", program, broker.url_of("alice", "word"), "alice"]
        process = await asyncio.create_subprocess_exec(
            *command, "text hi", stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(WITHIN):
            out, _ = await process.communicate()
    assert process.returncode == 0
    assert "hi" in out.decode() and "TASK_STATE_COMPLETED" in out.decode()


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


async def test_a_worker_without_redis_has_an_exit_status(workspace: Path) -> None:
    """Over a second: a start of the program."""
    home, variables = environment(workspace, {})
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bridge", "push-worker"),
        cwd=home,
        env=variables,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(WITHIN):
        _, err = await process.communicate()
    assert process.returncode == 2
    assert err.decode() == "coding-agent-bridge: push-worker requires BRIDGE_REDIS_URL.\n"


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
