"""Sends that wait for the end of a task. Clients give up on a connection that is silent, many of
them after 5 s: what takes longer than PATIENCE begins with its status and headers, and with blanks,
which JSON allows before a value (RFC 8259 §2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from bridge.transports.operation import Pending

PATIENCE = 3.0  # seconds in which a refusal still has its own status
BLANK_EVERY = 4.0  # seconds
Encode = Callable[[Any], bytes]
EncodeError = Callable[[Exception], bytes | None]


async def respond(
    request: web.Request,
    pending: Pending,
    headers: Mapping[str, str],
    encode: Encode,
    encode_error: EncodeError,
) -> web.StreamResponse:
    """Answer `request` with `pending`. `encode_error`: what the body is if that fails when the
    status has been sent; None cuts the connection, so that the client repeats the request. Raises
    RequestError where the status has not been sent."""
    answer = asyncio.ensure_future(pending.answer())
    try:
        await asyncio.wait([answer], timeout=PATIENCE)
        if answer.done():
            return web.Response(body=encode(answer.result()), headers=headers)
        return await _respond_slowly(request, answer, headers, encode, encode_error)
    finally:
        answer.cancel()  # the client has left, unless it is done


async def _respond_slowly(
    request: web.Request,
    answer: asyncio.Future[Any],
    headers: Mapping[str, str],
    encode: Encode,
    encode_error: EncodeError,
) -> web.StreamResponse:
    response = web.StreamResponse(headers=headers)
    try:
        await response.prepare(request)
        while not answer.done():
            await response.write(b" ")
            await asyncio.wait([answer], timeout=BLANK_EVERY)
        error = answer.exception()
        body = encode_error(error) if isinstance(error, Exception) else encode(answer.result())
        if body is not None:
            await response.write(body)
            await response.write_eof()
        elif request.transport:
            request.transport.abort()
    except ConnectionError:
        pass
    return response
