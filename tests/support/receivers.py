"""Receivers of push notifications."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer

WITHIN = 60.0


Behaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def accept(request: web.Request) -> web.StreamResponse:
    return web.Response(status=202)


class Receiver:
    """Keeps the requests. Each request is answered by the next behaviour, then by the last."""

    url: str

    def __init__(self, *behaviours: Behaviour) -> None:
        self.behaviours = list(behaviours) or [accept]
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.open = self.most_open = 0
        self.over = asyncio.Event()
        self._arrived = asyncio.Condition()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            body = await request.read()
            async with self._arrived:
                self.requests.append((dict(request.headers), body))
                self._arrived.notify_all()
            one_left = len(self.behaviours) == 1
            return await (self.behaviours[0] if one_left else self.behaviours.pop(0))(request)
        finally:
            self.open -= 1

    async def stall(self, request: web.Request) -> web.StreamResponse:
        if not request.path.endswith("/witness"):
            await self.over.wait()
        return web.Response()

    async def got(self, count: int) -> list[bytes]:
        """The bodies, after there are `count` of them."""
        async with asyncio.timeout(WITHIN), self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= count)
        return self.bodies

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.requests]

    @property
    def ids(self) -> list[str]:
        return [headers["A2A-Notification-Id"] for headers, _ in self.requests]


@asynccontextmanager
async def receiving(*receivers: Receiver) -> AsyncIterator[None]:
    servers = []
    for receiver in receivers:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", receiver.handle)
        servers.append(TestServer(app))
        await servers[-1].start_server()
        receiver.url = f"http://127.0.0.1:{servers[-1].port}/hook"
    try:
        yield
    finally:
        for receiver, server in zip(receivers, servers, strict=True):
            receiver.over.set()
            await server.close()
