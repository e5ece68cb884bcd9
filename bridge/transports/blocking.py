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

from bridge.transports import large
from bridge.transports.operation import Pending

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
    answer = asyncio.ensure_future(pending.answer())
    try:
        await asyncio.wait([answer], timeout=pending.keep_alive.patience)
        if answer.done():
            return await large.respond(request, encode(answer.result()), headers)
        pause = pending.keep_alive.blank
        return await _respond_slowly(request, answer, headers, encode, encode_error, pause=pause)
    finally:
        answer.cancel()  # if the client has disconnected


async def _respond_slowly(
    request: web.Request,
    answer: asyncio.Future[Any],
    headers: Mapping[str, str],
    encode: Encode,
    encode_error: EncodeError,
    *,
    pause: float,
) -> web.StreamResponse:
    response = web.StreamResponse(headers=headers)
    try:
        await response.prepare(request)
        while not answer.done():
            await response.write(b" ")
            await asyncio.wait([answer], timeout=pause)
        error = answer.exception()
        body = encode_error(error) if isinstance(error, Exception) else encode(answer.result())
        if body is not None:
            await large.write(response, body)
            await response.write_eof()
        elif request.transport:
            request.transport.abort()
    except ConnectionError:
        pass
    return response
