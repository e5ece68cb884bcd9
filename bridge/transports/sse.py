"""Server-sent events: framing and heartbeats. Readers that do not read are cut off by timers.py."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing
from typing import Any

import orjson
from aiohttp import web

from bridge.store.event_log import EventLog
from bridge.transports.negotiation import activated_extensions
from bridge.transports.operation import HEARTBEAT, Batch, Stream, Write

log = logging.getLogger(__name__)

PIECE = 256 * 1024  # bytes that are handed to a connection at once; it asks for more
AT_ONCE = 16 * 1024  # bytes that are written where they come up; more waits for its turn
HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}
_PING = b": ping\n"
Items = AsyncGenerator[Batch | None]


def last_event_id(request: web.Request) -> int | None:
    """The number of the last event that the client has seen, if it says so."""
    given = request.headers.get("Last-Event-ID", "")
    return int(given) if re.fullmatch("[0-9]{1,18}", given) else None


async def respond(
    request: web.Request, stream: Stream, before: bytes = b"", after: bytes = b""
) -> web.StreamResponse:
    """Answer `request` with `stream`; `before` and `after` are put around each item's JSON.

    All that is ready goes out in one write. A client that goes away or stops reading ends only
    its own stream.
    """
    return await _respond(request, stream.items, before, after)


async def respond_feed(
    request: web.Request, feed: EventLog[dict[str, Any]], after: int
) -> web.StreamResponse:
    """Answer `request` with a log of JSON objects from number `after` on."""

    async def items(write: Write) -> Items:
        async for batch in feed.follow(after, HEARTBEAT):
            yield [(entry.number, orjson.dumps(entry.update)) for entry in batch] or None

    return await _respond(request, items)


async def _respond(
    request: web.Request,
    items: Callable[[Write], Items],
    before: bytes = b"",
    after: bytes = b"",
) -> web.StreamResponse:
    response = web.StreamResponse(headers={**HEADERS, **activated_extensions(request)})
    await response.prepare(request)
    if request.method == "HEAD":  # GET's routes answer it, too, and it has no body
        return response

    def write(batch: Batch) -> bool:
        transport = request.transport
        if transport is None or transport.get_write_buffer_size():
            return False
        size = 0
        for _, data in batch:  # a plain loop: it is asked for each update
            size += len(data)
        if size > AT_ONCE:
            return False
        return _done(response.write(b"".join([_frame(one, before, after) for one in batch])))

    try:
        async with aclosing(items(write)) as batches:
            async for batch in batches:
                for piece in _pieces(batch, before, after) if batch else (_PING,):
                    await response.write(piece)
        await response.write_eof()
    except ConnectionError:
        pass
    except Exception:
        log.exception("stream failed")
        _cut(request)
    return response


def _done(writing: Coroutine[Any, Any, None]) -> bool:
    """Begin to write. All of it is on its way then, unless the connection is gone: what might be
    waited for is that it takes more."""
    try:
        writing.send(None)
    except StopIteration:
        return True
    except ConnectionError:
        return False
    writing.close()
    return True


def _pieces(batch: Batch, before: bytes, after: bytes) -> Iterator[bytes | memoryview]:
    """The frames of a batch: many short ones in one piece, and a long one in many, uncopied. What
    waits for a reader that takes its time stays small."""
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
    """End the connection so that the client cannot take this for the end of the stream."""
    if request.transport:
        request.transport.abort()


async def respond_error(request: web.Request, data: bytes) -> web.StreamResponse:
    """A stream that has nothing but an error, for clients that read nothing else."""
    return web.Response(body=b"data: %b\n\n" % data, headers=HEADERS)
