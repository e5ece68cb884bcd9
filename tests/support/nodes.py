"""Several servers on one database: hosts of stores without agents, and readers that move on."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

from bridge.store.changes import ContextKey, Fence
from bridge.store.cluster import Take
from tests.support.client import Client


class RecordingHost:
    """Records the calls of the store, and takes each context that the store offers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.taken: dict[ContextKey, Fence] = {}
        self.changed = asyncio.Event()

    def fenced(self, copied: bool) -> None:
        self._note("fenced", copied)

    def renewed(self, until: float) -> None:
        self._note("renewed", until)

    def doubt(self, doubtful: bool) -> None:
        self._note("doubt", doubtful)

    async def adopt(self, key: ContextKey, take: Take) -> None:
        fence = await take()
        if fence:
            self.taken[key] = fence
            self._note("adopt", key)

    async def finish(self, key: ContextKey, take: Take) -> Fence | None:
        fence = await take()
        if fence:
            self._note("finish", key)
        return fence

    def _note(self, name: str, value: Any) -> None:
        self.calls.append((name, value))
        self.changed.set()

    def had(self, name: str) -> list[Any]:
        """The values of the calls with this name."""
        return [value for one, value in self.calls if one == name]

    async def called(self, name: str, within: float = 30.0) -> Any:
        """The value of the first call with this name, once there is one."""
        async with asyncio.timeout(within):
            while not self.had(name):
                self.changed.clear()
                await self.changed.wait()
        return self.had(name)[0]


class Follower:
    """One reader of a task over all its connections. `events` are the lines of data, which the
    servers have numbered from 1 without a gap."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self.events: list[bytes] = []
        self._news = asyncio.Event()

    async def follow(self, client: Client) -> None:
        """Read on at this server, up to the end of the stream, or of the server."""
        params = {"id": self.task_id}
        body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": params}
        headers = {"A2A-Version": "1.0", "Last-Event-ID": str(len(self.events))}
        url, line = f"{client.url}/a2a/jsonrpc", b""
        try:
            async with client.session.post(url, json=body, headers=headers) as response:
                assert response.content_type == "text/event-stream", await response.text()
                async for line in response.content:
                    if line.startswith(b"id:"):
                        assert int(line[3:]) == len(self.events) + 1
                    elif line.startswith(b"data:"):
                        self.events.append(line)
                        self._news.set()
        except aiohttp.ClientError:
            pass

    async def reached(self, number: int) -> None:
        async with asyncio.timeout(45):
            while len(self.events) < number:
                self._news.clear()
                await self._news.wait()
