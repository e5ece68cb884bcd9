"""An ASGI application behind aiohttp: when its result counts as written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, web

from bridge.auth.principal import OPERATOR
from bridge.transports.mcp import asgi

WITHIN = 60.0
EVENT, COMMENT = b"event: message\r\ndata: {}\r\n\r\n", b": ping\r\n\r\n"
Ends = asyncio.Queue[bool]


async def no_session() -> None:
    return None


@asynccontextmanager
async def served(chunk: bytes, ends: Ends) -> AsyncIterator[str]:
    """The address of an application that begins an event stream, and ends when the client has
    disconnected."""

    async def app(scope: asgi.Message, receive: asgi.Receive, send: asgi.Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200})
        exchange: asgi.Exchange = scope[asgi.EXCHANGE]
        exchange.on_end = ends.put_nowait
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
        assert (await receive())["type"] == "http.disconnect"

    async def handle(request: web.Request) -> web.StreamResponse:
        exchange = asgi.Exchange(request, OPERATOR, await request.read(), no_session)
        return await asgi.respond(exchange, app)

    application = web.Application()
    application.router.add_post("/", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}/"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(("chunk", "written"), [(EVENT, True), (COMMENT, False)])
async def test_a_client_may_close_the_stream_when_it_has_the_result(
    chunk: bytes, written: bool
) -> None:
    ends: Ends = asyncio.Queue()
    async with served(chunk, ends) as url, ClientSession() as http:
        async with http.post(url, data=b"{}") as response:
            assert await response.content.readany() == chunk
            response.close()
        async with asyncio.timeout(WITHIN):
            assert await ends.get() is written
