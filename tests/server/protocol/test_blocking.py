"""Responses to sends that wait for their task (bridge/transports/blocking.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bridge.errors import Unavailable
from bridge.transports import blocking
from bridge.transports.operation import Pending
from bridge.transports.stream import KeepAlive

WITHIN = 60.0
KEEP_ALIVE = KeepAlive(patience=0.02, blank=0.02)
LATE = 2  # spaces that arrive before a late answer


async def answered(
    answer: Callable[[asyncio.Event], Any],
    encode_error: Callable[[Exception], bytes | None] = lambda error: None,
) -> tuple[int, bytes]:
    """Status and body of the response to a send with this answer. `answer` gets an event that is
    set after the client has received LATE bytes."""
    received = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        headers = {"Content-Type": "application/json"}
        try:
            pending = Pending(lambda: answer(received), KEEP_ALIVE)
            return await blocking.respond(request, pending, headers, orjson.dumps, encode_error)
        except Unavailable:
            return web.Response(status=503)

    app = web.Application()
    app.router.add_get("/", handle)
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        async with asyncio.timeout(WITHIN), http.get(server.make_url("/")) as response:
            start = b""
            while len(start) < LATE and (more := await response.content.read(LATE)):
                start += more
            received.set()
            return response.status, start + await response.read()


async def succeed_late(received: asyncio.Event) -> dict[str, int]:
    await received.wait()
    return {"a": 1}


async def fail_late(received: asyncio.Event) -> None:
    await received.wait()
    raise Unavailable("no")


async def fail_early(received: asyncio.Event) -> None:
    raise Unavailable("no")


async def test_spaces_come_before_the_json() -> None:
    status, body = await answered(succeed_late)
    assert status == 200 and body.startswith(b"  ") and orjson.loads(body) == {"a": 1}


async def test_an_early_error_has_its_own_status() -> None:
    assert await answered(fail_early) == (503, b"")


async def test_a_late_error_is_the_body_of_the_response() -> None:
    status, body = await answered(fail_late, lambda error: b'{"error":1}')
    assert status == 200 and orjson.loads(body) == {"error": 1}


async def test_a_late_error_without_a_body_aborts_the_connection() -> None:
    with pytest.raises(aiohttp.ClientPayloadError):
        await answered(fail_late)
