"""A send that waits, after its status was sent (bridge/transports/blocking.py)."""

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


async def answered(
    answer: Callable[[], Any], encode_error: Callable[[Exception], bytes | None]
) -> tuple[int, bytes]:
    """Status and body of the response of a server that answers so."""

    async def handle(request: web.Request) -> web.StreamResponse:
        headers = {"Content-Type": "application/json"}
        try:
            pending = Pending(answer, KeepAlive(patience=0.02, blank=0.02))
            return await blocking.respond(request, pending, headers, orjson.dumps, encode_error)
        except Unavailable:
            return web.Response(status=503)

    app = web.Application()
    app.router.add_get("/", handle)
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        async with http.get(server.make_url("/")) as response:
            return response.status, await response.read()


async def late(error: Exception | None = None) -> dict[str, int]:
    await asyncio.sleep(0.1)
    if error:
        raise error
    return {"a": 1}


async def test_blanks_come_before_the_json() -> None:
    status, body = await answered(late, lambda _: None)
    assert status == 200 and body.startswith(b"  ") and orjson.loads(body) == {"a": 1}


async def test_a_failure_in_time_has_its_own_status() -> None:
    async def refuse() -> None:
        raise Unavailable("no")

    assert await answered(refuse, lambda _: None) == (503, b"")


async def test_a_late_failure_is_a_body_where_there_is_one() -> None:
    status, body = await answered(lambda: late(Unavailable("no")), lambda error: b'{"error":1}')
    assert status == 200 and orjson.loads(body) == {"error": 1}


async def test_a_late_failure_without_a_body_cuts_the_connection() -> None:
    with pytest.raises(aiohttp.ClientPayloadError):
        await answered(lambda: late(Unavailable("no")), lambda _: None)
