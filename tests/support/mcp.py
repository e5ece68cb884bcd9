"""An MCP client for tests: JSON over HTTP, with aiohttp and without a library."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientResponse, ClientSession

from tests.support.client import Client

Json = dict[str, Any]
MODERN = "2026-07-28"
TASKS = "io.modelcontextprotocol/tasks"
NAMED = {"tools/call": "name", "resources/read": "uri"}
WITHIN = 60.0


class McpError(Exception):
    """The server answered with a JSON-RPC error."""

    def __init__(self, status: int, error: Json) -> None:
        super().__init__(f"{status} {error['code']} {error['message']}")
        self.status, self.code, self.error = status, error["code"], error


class Mcp:
    """A client of the modern revision. `tasks`, `forms`: the capabilities that it declares."""

    def __init__(
        self,
        http: ClientSession,
        url: str,
        *,
        tasks: bool = False,
        forms: bool = False,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.http = http
        self.url = f"{url}/mcp"
        self.headers = headers or {}
        self.capabilities: Json = {}
        if tasks:
            self.capabilities["extensions"] = {TASKS: {}}
        if forms:
            self.capabilities["elicitation"] = {}
        self._ids = 0

    def body(self, method: str, params: Json, **meta: Any) -> Json:
        self._ids += 1
        known = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": self.capabilities,
            "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
            **meta,
        }
        params = {**params, "_meta": {name: value for name, value in known.items() if value != ""}}
        return {"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params}

    def routing(self, method: str, params: Json) -> dict[str, str]:
        name = params.get(NAMED.get(method, "taskId"))
        return {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": MODERN,
            "Mcp-Method": method,
            **({"Mcp-Name": name} if name else {}),
            **self.headers,
        }

    async def post(self, method: str, params: Json, **headers: str) -> tuple[int, Json]:
        """The status and the last message of the response."""
        body = self.body(method, params)
        sent = {**self.routing(method, params), **headers}
        sent = {name: value for name, value in sent.items() if value != ""}
        async with self.http.post(self.url, data=json.dumps(body), headers=sent) as response:
            return response.status, (await messages(response))[-1]

    async def call(self, method: str, params: Json, **headers: str) -> Json:
        """The result. Raises McpError."""
        status, answer = await self.post(method, params, **headers)
        if "error" in answer:
            raise McpError(status, answer["error"])
        found: Json = answer["result"]
        return found

    async def tool(self, name: str, arguments: Json | None = None, **more: Any) -> Json:
        """The result of a tool."""
        return await self.call("tools/call", {"name": name, "arguments": arguments or {}, **more})

    async def task(self, method: str, task_id: str, **more: Any) -> Json:
        return await self.call(f"tasks/{method}", {"taskId": task_id, **more})

    async def polled(self, task_id: str, *statuses: str) -> Json:
        """The task, as soon as it has one of the statuses."""
        async with asyncio.timeout(WITHIN):
            while True:
                found = await self.task("get", task_id)
                if found["status"] in statuses:
                    return found
                await self.tool("wait", {"task_id": task_id, "wait_seconds": 1, "after": 10**9})


class Legacy:
    """A client of a revision with sessions, after its handshake."""

    def __init__(self, http: ClientSession, url: str, revision: str) -> None:
        self.http = http
        self.url = f"{url}/mcp"
        self.headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": revision,
        }
        self._ids = 0

    async def begin(self, revision: str, capabilities: Json) -> Json:
        params = {
            "protocolVersion": revision,
            "capabilities": capabilities,
            "clientInfo": {"name": "tests", "version": "1"},
        }
        async with self.send("initialize", params) as response:
            self.headers["Mcp-Session-Id"] = response.headers["Mcp-Session-Id"]
            answer = (await messages(response))[-1]
        body = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        await self.notify(body)
        found: Json = answer["result"]
        return found

    @asynccontextmanager
    async def send(
        self, method: str, params: Json, **headers: str
    ) -> AsyncIterator[ClientResponse]:
        self._ids += 1
        body = {"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params}
        sent = {**self.headers, **headers}
        async with self.http.post(self.url, data=json.dumps(body), headers=sent) as response:
            yield response

    async def notify(self, body: Json) -> None:
        """Send a notification, or the response to a request of the server."""
        data = json.dumps(body)
        async with self.http.post(self.url, data=data, headers=self.headers) as response:
            assert response.status == 202

    async def call(self, method: str, params: Json, **headers: str) -> Json:
        async with self.send(method, params, **headers) as response:
            answer = (await messages(response))[-1]
        if "error" in answer:
            raise McpError(response.status, answer["error"])
        found: Json = answer["result"]
        return found

    async def tool(self, name: str, arguments: Json | None = None) -> Json:
        return await self.call("tools/call", {"name": name, "arguments": arguments or {}})


@asynccontextmanager
async def session(
    http: ClientSession, url: str, revision: str = "2025-11-25", **capabilities: Any
) -> AsyncIterator[Legacy]:
    client = Legacy(http, url, revision)
    await client.begin(revision, capabilities)
    yield client


async def messages(response: ClientResponse) -> list[Json]:
    """The messages of a response, as JSON or as an event stream."""
    if response.content_type != "text/event-stream":
        return [await response.json()]
    return [message async for message in events(response)]


async def events(response: ClientResponse) -> AsyncIterator[Json]:
    """The messages of an event stream, as they arrive."""
    async for line in response.content:
        if line.startswith(b"data:") and (data := line[5:].strip()):
            yield json.loads(data)


def form_key(created: Json, number: int = 1, *, question: int = 1) -> str:
    """The key of a form: the number of a form of the question with that number."""
    return f"{created['taskId'][:8]}-{question}.{number}"


def accept(decision: str) -> Json:
    """The response to a form with the option `decision`."""
    return {"action": "accept", "content": {"decision": decision}}


async def answer_over_a2a(client: Client, task_id: str, text: str) -> None:
    """Answer the open question of a task as an A2A client does."""
    task = await client.get(task_id)
    parts = client.answer_parts(task, text)
    message = client.message(parts, taskId=task_id, messageId="answer-over-a2a-1")
    configuration = {"returnImmediately": True}
    await client.call("SendMessage", {"message": message, "configuration": configuration})


def text_of(result: Json) -> str:
    """The text of a result for a model."""
    text: str = result["content"][0]["text"]
    return text


def shown(result: Json) -> Json:
    """The structured content of a result that is not an error."""
    assert not result.get("isError"), text_of(result)
    found: Json = result["structuredContent"]
    return found
