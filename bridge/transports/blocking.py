"""Sends that wait for the end of a task.

Many clients close a silent connection after 5 s. An answer that takes longer than
KeepAlive.patience begins with its status and headers, and with spaces, which JSON allows before a
value (RFC 8259 §2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from bridge.transports.operation import Pending

PIECE = 256 * 1024  # bytes of one write; a copy of a large answer would keep the event loop
Encode = Callable[[Any], bytes]
EncodeError = Callable[[Exception], bytes | None]


async def respond(
    request: web.Request,
    pending: Pending,
    headers: Mapping[str, str],
    encode: Encode,
    encode_error: EncodeError,
) -> web.StreamResponse:
    """Answer `request` with the result of `pending`. `encode_error`: the body for an error after
    the status was sent; None aborts the connection, so that the client retries. Raises
    RequestError before the status was sent."""
    result = asyncio.ensure_future(pending.answer())
    try:
        await asyncio.wait([result], timeout=pending.keep_alive.patience)
        if result.done():
            return await answer(request, encode(result.result()), headers)
        pause = pending.keep_alive.blank
        return await _respond_slowly(request, result, headers, encode, encode_error, pause=pause)
    finally:
        result.cancel()  # if the client has disconnected


async def _respond_slowly(
    request: web.Request,
    result: asyncio.Future[Any],
    headers: Mapping[str, str],
    encode: Encode,
    encode_error: EncodeError,
    *,
    pause: float,
) -> web.StreamResponse:
    response = web.StreamResponse(headers=headers)
    try:
        await response.prepare(request)
        while not result.done():
            await response.write(b" ")
            await asyncio.wait([result], timeout=pause)
        error = result.exception()
        body = encode_error(error) if isinstance(error, Exception) else encode(result.result())
        if body is not None:
            await write(response, body)
            await response.write_eof()
        elif request.transport:
            request.transport.abort()
    except ConnectionError:
        pass
    return response


async def answer(
    request: web.Request, body: bytes, headers: Mapping[str, str], status: int = 200
) -> web.StreamResponse:
    """Answer `request`. A client that leaves meanwhile gets no error."""
    if len(body) <= PIECE:
        return web.Response(body=body, headers=headers, status=status)
    response = web.StreamResponse(headers=headers, status=status)
    response.content_length = len(body)
    try:
        await response.prepare(request)
        await write(response, body)
        await response.write_eof()
    except ConnectionError:
        pass
    return response


async def write(response: web.StreamResponse, body: bytes) -> None:
    view = memoryview(body)
    for start in range(0, len(body), PIECE):
        await response.write(view[start : start + PIECE])
        await asyncio.sleep(0)  # a quick reader leaves no reason to wait
