"""Clients that follow the tasks of several principals on all bindings of a real server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import grpc

from tests.support.client import Client, Json, RpcError, state, texts
from tests.support.configured import Configured
from tests.support.grpc_client import GrpcClient, GrpcError
from tests.support.mcp import Mcp, McpError

REVOKED = "not valid any more"


class Follower:
    """A client of one principal on one binding. `items`: of its stream; `ended`: why and when it
    has ended, "" for a regular end."""

    def __init__(self, name: str, binding: str, follow: Callable[[Follower], Awaitable[str]]):
        self.name = name
        self.binding = binding
        self.items: list[Json] = []
        self.opened = asyncio.Event()
        self.ended: str | None = None
        self.at = 0.0
        self.task = asyncio.create_task(self._run(follow))

    def got(self, item: Json) -> None:
        self.items.append(item)
        self.opened.set()

    async def _run(self, follow: Callable[[Follower], Awaitable[str]]) -> None:
        self.ended = await follow(self)
        self.at = time.monotonic()
        self.opened.set()


def shape(item: Json) -> Any:
    """An item, as all bindings have it."""
    update = item.get("artifactUpdate")
    if update:
        return texts(update["artifact"]["parts"]), bool(update.get("append"))
    return state(item)


class Streams:
    """The streams of one task of each principal; `secrets` are their tokens by name."""

    def __init__(self, server: Configured, secrets: dict[str, str]) -> None:
        self.server = server
        self.secrets = secrets
        self.tasks: dict[str, Json] = {}

    async def begin(self, name: str, script: str) -> None:
        self.tasks[name] = await self.server.client(self.secrets[name]).send_now(script)

    def header(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secrets[name]}"}

    def sse(self, http: aiohttp.ClientSession, url: str) -> Callable[[Follower], Awaitable[str]]:
        async def follow(one: Follower) -> str:
            client = Client(http, url, headers=self.header(one.name))
            try:
                async with client.subscribe(self.tasks[one.name]["id"]) as items:
                    async for item in items:
                        one.got(item)
            except RpcError as error:
                return str(error)
            return ""

        return follow

    def grpc(self, client: GrpcClient) -> Callable[[Follower], Awaitable[str]]:
        async def follow(one: Follower) -> str:
            bearer = {"authorization": f"Bearer {self.secrets[one.name]}"}
            named = {"id": self.tasks[one.name]["id"]}
            try:
                async for item in client.items("SubscribeToTask", named, **bearer):
                    one.got(item)
            except GrpcError as error:
                assert error.code is grpc.StatusCode.UNAUTHENTICATED
                return str(error)
            return ""

        return follow

    def websocket(self, *, idle: bool = False) -> Callable[[Follower], Awaitable[str]]:
        async def follow(one: Follower) -> str:
            url = f"ws{self.server.server.url.removeprefix('http')}/a2a/ws"
            asked = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask"}
            asked["params"] = {"id": self.tasks[one.name]["id"]}
            version = {"A2A-Version": "1.0"}
            error = ""
            async with self.server.http.ws_connect(
                url, headers={**self.header(one.name), **version}, max_msg_size=0
            ) as socket:
                if idle:
                    one.opened.set()
                else:
                    await socket.send_json(asked)
                async for frame in socket:
                    answer = json.loads(frame.data)
                    if "result" in answer:
                        one.got(answer["result"])
                    error = answer.get("error", {}).get("message", error)
                    if answer.get("streamEnd") and not error:
                        return ""
            return f"{socket.close_code} {error}"

        return follow

    def mcp(self) -> Callable[[Follower], Awaitable[str]]:
        async def follow(one: Follower) -> str:
            client = Mcp(self.server.http, self.server.server.url, headers=self.header(one.name))
            named = {"task_id": self.tasks[one.name]["id"]}
            await client.tool("wait", {**named, "wait_seconds": 0})
            one.opened.set()
            waiting = {**named, "wait_seconds": 50, "after": 10**9}
            try:
                one.got(await client.tool("wait", waiting))
            except (McpError, aiohttp.ClientError, IndexError) as error:
                return f"{REVOKED}: {error!r}"
            return ""

        return follow

    def feed(self) -> Callable[[Follower], Awaitable[str]]:
        async def follow(one: Follower) -> str:
            url = f"{self.server.server.url}/monitor/events"
            async with self.server.http.get(url, headers=self.header(one.name)) as answer:
                one.opened.set()
                async for line in answer.content:
                    if line.startswith(b"data: "):
                        item = json.loads(line[6:])
                        if "error" in item:
                            return str(item["error"])
                        one.got(item)
                        if item["state"] == "completed":
                            return ""
            return "cut"

        return follow

    async def logged(self, name: str) -> list[Any]:
        """The shapes of all updates in the log of the task."""
        header = {**self.header(name), "Last-Event-ID": "0"}
        client = Client(self.server.http, self.server.server.url, headers=header)
        async with client.subscribe(self.tasks[name]["id"]) as items:
            return [shape(item) async for item in items]
