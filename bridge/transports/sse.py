"""Server-sent events: frames and heartbeats. connection_limits.py closes stalled connections."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing, suppress
from typing import Any

import orjson
from aiohttp import web

from bridge.auth.revocations import Hold
from bridge.errors import Unauthenticated
from bridge.store.event_log import EventLog
from bridge.transports.negotiation import ServiceParameters, activated_extensions
from bridge.transports.stream import HEARTBEAT, Batch, Stream, Write

log = logging.getLogger(__name__)

PIECE = 256 * 1024  # bytes of one write to a connection
AT_ONCE = 16 * 1024  # bytes that are written synchronously; larger batches wait for their turn
HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}
_PING = b": ping\n"
EncodeError = Callable[[Exception], bytes]
"""The JSON of the last item of a stream that ends with an error."""
Items = AsyncGenerator[Batch | None]


def last_event_id(request: ServiceParameters) -> int | None:
    """The number in Last-Event-ID, if it is valid."""
    given = request.headers.get("Last-Event-ID", "")
    return int(given) if re.fullmatch("[0-9]{1,18}", given) else None


async def respond(
    request: web.Request,
    stream: Stream,
    encode_error: EncodeError,
    before: bytes = b"",
    after: bytes = b"",
) -> web.StreamResponse:
    """Answer `request` with `stream`. `before` and `after` enclose the JSON of each item. If the
    credential of the client becomes invalid, the last item is that error.

    All ready items share one write. A client that disconnects or stops reading ends only its own
    stream.
    """
    return await _respond(request, stream.items, encode_error, before, after)


async def respond_feed(
    request: web.Request,
    feed: EventLog[dict[str, Any]],
    after: int,
    visible: Callable[[dict[str, Any]], bool],
    *,
    held: Callable[[], Hold],
    encode_error: EncodeError,
) -> web.StreamResponse:
    """Answer `request` with the visible objects of a log from number `after` on. `held`: the
    context of the client's credential."""

    async def items(write: Write) -> Items:
        with held() as hold:
            async for batch in feed.follow(after, HEARTBEAT):
                shown = [entry for entry in batch if visible(entry.update)]
                if shown or not batch:
                    hold.leave()
                    yield [(entry.number, orjson.dumps(entry.update)) for entry in shown] or None
                    hold.enter()

    return await _respond(request, items, encode_error)


async def _respond(
    request: web.Request,
    items: Callable[[Write], Items],
    encode_error: EncodeError,
    before: bytes = b"",
    after: bytes = b"",
) -> web.StreamResponse:
    response = web.StreamResponse(headers={**HEADERS, **activated_extensions(request)})

    def write(batch: Batch) -> bool:
        transport = request.transport
        if transport is None or transport.get_write_buffer_size():
            return False
        data = b"".join([_frame(one, before, after) for one in batch])
        return len(data) <= AT_ONCE and write_now(response.write(data))

    try:
        await response.prepare(request)
        if request.method == "HEAD":  # the routes of GET also answer HEAD
            return response
        async with aclosing(items(write)) as batches:
            async for batch in batches:
                for piece in pieces(batch, before, after) if batch else (_PING,):
                    await response.write(piece)
                    if len(piece) == PIECE:  # of a long frame: a quick reader never lets this wait
                        await asyncio.sleep(0)
        await response.write_eof()
    except ConnectionError:
        pass
    except Unauthenticated as error:
        await _end(response, encode_error(error))
    except Exception:
        log.exception("stream failed", extra={"event": "request.failed"})
        _cut(request)
    return response


async def _end(response: web.StreamResponse, data: bytes) -> None:
    """The last item is an error, without a number."""
    with suppress(ConnectionError):
        await response.write(b"data: %b\n\n" % data)
        await response.write_eof()


def write_now(writing: Coroutine[Any, Any, None]) -> bool:
    """Start a write. The transport then has all bytes, unless the connection is closed; the rest of
    the coroutine only waits until the buffer has space again."""
    try:
        writing.send(None)
    except StopIteration:
        return True
    except ConnectionError:
        return False
    writing.close()
    return True


def pieces(batch: Batch, before: bytes, after: bytes) -> Iterator[bytes | memoryview]:
    """The frames of a batch: many short frames in one piece, and a long frame in many pieces
    without a copy. The buffer of a slow reader stays small."""
    joined: list[bytes] = []
    size = 0
    for number, data in batch:
        if joined and size + len(data) > PIECE:
            yield b"".join(joined)
            joined, size = [], 0
        if len(data) > PIECE:
            yield b"id: %d\ndata: %b" % (number, before)
            view = memoryview(data)
            yield from (view[start : start + PIECE] for start in range(0, len(data), PIECE))
            yield after + b"\n\n"
        else:
            joined.append(_frame((number, data), before, after))
            size += len(data)
    if joined:
        yield b"".join(joined)


def _frame(item: tuple[int, bytes], before: bytes, after: bytes) -> bytes:
    number, data = item
    return b"id: %d\ndata: %b%b%b\n\n" % (number, before, data, after)


def _cut(request: web.Request) -> None:
    """Abort the connection, so that the client does not see a regular end of the stream."""
    if request.transport:
        request.transport.abort()


async def respond_error(request: web.Request, data: bytes) -> web.StreamResponse:
    """A stream with one error, for clients that read errors only from streams."""
    return web.Response(body=b"data: %b\n\n" % data, headers=HEADERS)
