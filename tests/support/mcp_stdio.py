"""The command `mcp` as a process, and an MCP client on its stdin and stdout."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.cab import Cab
from tests.support.mcp import MODERN, TASKS, Json, McpError, shown

WITHIN = 60.0  # seconds that any one answer may take


class StdioMcp:
    """`tasks`, `forms`: the capabilities that each request of the modern revision declares.
    `asked`: the messages of the server that are not answers."""

    def __init__(
        self, process: asyncio.subprocess.Process, *, tasks: bool = False, forms: bool = False
    ) -> None:
        self.process = process
        self.asked: asyncio.Queue[Json] = asyncio.Queue()
        self.capabilities: Json = {}
        if tasks:
            self.capabilities["extensions"] = {TASKS: {}}
        if forms:
            self.capabilities["elicitation"] = {}
        self._answers: dict[int, asyncio.Future[Json]] = {}
        self._ids = 0
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout
        async for line in self.process.stdout:
            message = json.loads(line)
            if "method" in message or message["id"] is None:
                self.asked.put_nowait(message)
            else:
                self._answers.pop(message["id"]).set_result(message)

    def line(self, message: Json | bytes) -> None:
        assert self.process.stdin
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.process.stdin.write(data + b"\n")

    def begin(self, method: str, params: Json, *, modern: bool = True) -> asyncio.Future[Json]:
        """Send a request. The future gets the response; it has the id of the request as `id`."""
        self._ids += 1
        if modern:
            known = {
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": self.capabilities,
                "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
            }
            params = {**params, "_meta": known}
        self.line({"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params})
        found = self._answers[self._ids] = asyncio.get_running_loop().create_future()
        return found

    def notify(self, method: str, params: Json | None = None) -> None:
        self.line({"jsonrpc": "2.0", "method": method, "params": params or {}})

    def cancel_last(self) -> None:
        self.notify("notifications/cancelled", {"requestId": self._ids})

    async def call(self, method: str, params: Json, *, modern: bool = True) -> Json:
        """The result. Raises McpError."""
        return await result(self.begin(method, params, modern=modern))

    def tool_call(
        self, name: str, arguments: Json | None = None, *, modern: bool = True
    ) -> asyncio.Future[Json]:
        params = {"name": name, "arguments": arguments or {}}
        return self.begin("tools/call", params, modern=modern)

    async def tool(self, name: str, arguments: Json | None = None, *, modern: bool = True) -> Json:
        return await result(self.tool_call(name, arguments, modern=modern))

    async def initialize(self, revision: str = "2025-11-25", **capabilities: Any) -> Json:
        params = {
            "protocolVersion": revision,
            "capabilities": capabilities,
            "clientInfo": {"name": "tests", "version": "1"},
        }
        found = await self.call("initialize", params, modern=False)
        self.notify("notifications/initialized")
        return found

    async def tasks(self, *, modern: bool = True) -> list[Json]:
        found: list[Json] = shown(await self.tool("list_tasks", modern=modern))["tasks"]
        return found

    async def message(self) -> Json:
        """The next message that is not an answer."""
        async with asyncio.timeout(WITHIN):
            return await self.asked.get()

    async def leave(self) -> None:
        """Close stdin, and wait for the end of the process."""
        assert self.process.stdin
        self.process.stdin.close()
        async with asyncio.timeout(WITHIN):
            assert await self.process.wait() == 0

    async def close(self) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()
        await self._reader


async def result(answer: asyncio.Future[Json]) -> Json:
    async with asyncio.timeout(WITHIN):
        found = await answer
    if "error" in found:
        raise McpError(0, found["error"])
    answered: Json = found["result"]
    return answered


@asynccontextmanager
async def proxy(
    cab: Cab, *words: str, tasks: bool = False, forms: bool = False, **env: str
) -> AsyncIterator[StdioMcp]:
    """A client of `coding-agent-bridge mcp WORDS`."""
    process = await cab.start("mcp", *words, env=env, stdin=asyncio.subprocess.PIPE)
    client = StdioMcp(process, tasks=tasks, forms=forms)
    try:
        yield client
    finally:
        await client.close()
