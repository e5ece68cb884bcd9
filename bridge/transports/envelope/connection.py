"""Requests on a connection that stays open. They run side by side; the items of a stream come in
order. Each frame is one JSON object (docs/bindings.md):

    request   {"jsonrpc": "2.0", "id": …, "method": …, "params": …, "a2a-service-parameters": …}
    result    {"jsonrpc": "2.0", "id": …, "result": …}
    item      {"jsonrpc": "2.0", "id": …, "result": …, "eventId": N}
    end       {"jsonrpc": "2.0", "id": …, "streamEnd": true}
    stop      {"jsonrpc": "2.0", "id": …, "cancelStream": true}
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import orjson

from bridge import errors
from bridge.a2a.codec import STREAMING, Codec
from bridge.a2a.codecs import CODECS
from bridge.auth.token_bucket import RateLimitedLogs
from bridge.transports.envelope.request import (
    AnsweredError,
    EnvelopeRequest,
    id_of,
    read_request,
)
from bridge.transports.json_body import AT_ONCE, LARGE, decode_json, joined
from bridge.transports.stream import Batch, Write

log = logging.getLogger(__name__)
log.addFilter(RateLimitedLogs())  # a client can repeat a request that fails

MOST_REQUESTS = 32  # of one connection at a time
_NEWEST = CODECS[0]


class FrameWriter(Protocol):
    """The output of a connection."""

    async def send(self, frames: Sequence[bytes]) -> None:
        """Send the frames in order. Waits until the reader has room for more. Raises
        ConnectionError."""

    def send_now(self, frames: Sequence[bytes]) -> bool:
        """Send the frames if the reader has room. False: nothing was sent."""


class ItemStream(Protocol):
    """`stays`: its client does not leave if the stream is closed from now on."""

    stays: bool

    def items(self, write: Write) -> AsyncGenerator[Batch | None]:
        """See bridge.transports.stream.Stream."""


class Answers(Protocol):
    """Answers requests: of this server (OwnAnswers), or of another one (ForwardedAnswers)."""

    async def call(self, asked: EnvelopeRequest) -> bytes:
        """The JSON of the result. Raises RequestError, and AnsweredError of another server."""

    async def stream(self, asked: EnvelopeRequest) -> ItemStream:
        """Raises as call() does."""

    async def notify(self, asked: EnvelopeRequest) -> None:
        """Execute a request that has no answer. Raises as call() does."""


class EnvelopeConnection:
    """`defaults`: the service parameters of requests without such of their own."""

    def __init__(
        self, answers: Answers, writer: FrameWriter, *, defaults: Mapping[str, str]
    ) -> None:
        self._answers = answers
        self._writer = writer
        self._defaults = defaults
        self._requests: dict[str, asyncio.Task[None]] = {}
        self._streams: dict[str, ItemStream] = {}
        self._stopped: set[str] = set()  # streams that are canceled before they are open
        self._notified: set[asyncio.Task[None]] = set()

    async def close(self, *, left: bool) -> None:
        """End all requests, without an answer. `left`: the client has disconnected; otherwise its
        streams end because the server stops, or because that does not count as a disconnect."""
        if not left:
            for stream in self._streams.values():
                stream.stays = True
        tasks = [*self._requests.values(), *self._notified]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def finished(self) -> None:
        """Wait for the answers of all requests."""
        while tasks := [*self._requests.values(), *self._notified]:
            await asyncio.wait(tasks)

    async def receive(self, data: bytes) -> None:
        """Serve the request of a frame. Returns when it has begun."""
        try:
            if len(data) <= AT_ONCE:
                envelope = decode_json(data)
            else:
                loop = asyncio.get_running_loop()
                envelope = await loop.run_in_executor(LARGE, decode_json, data)
        except errors.RequestError as error:
            readable = error.body if isinstance(error, errors.InvalidRequest) else None
            return await self.refuse(error, id_of(readable))
        if isinstance(envelope, dict) and envelope.get("cancelStream") is True:
            return self._cancel_stream(envelope)
        key = _key(id_of(envelope))
        if not isinstance(envelope, dict) or "id" not in envelope:
            self._begin_notification(envelope)
        elif key in self._requests:
            text = "A request with this id is open on this connection."
            await self.refuse(errors.InvalidRequest(text), id_of(envelope))
        elif len(self._requests) >= MOST_REQUESTS:
            text = f"At most {MOST_REQUESTS} requests may be open on one connection."
            await self.refuse(errors.Unavailable(text), id_of(envelope))
        else:
            working = asyncio.create_task(self._serve(key, envelope))
            self._requests[key] = working
            working.add_done_callback(lambda done: self._forget(key))

    def _forget(self, key: str) -> None:
        self._requests.pop(key, None)
        self._stopped.discard(key)

    async def refuse(self, error: Exception, request_id: Any = None) -> None:
        """Answer a frame that has no valid request with an error."""
        await self._send([_error(_NEWEST, orjson.dumps(request_id), error)])

    def _cancel_stream(self, envelope: Mapping[str, Any]) -> None:
        """Stop the delivery of a stream. Its task continues, and the client did not disconnect. An
        unknown id is ignored: the stream may have ended meanwhile."""
        key = _key(id_of(envelope))
        stream = self._streams.get(key)
        if stream:
            stream.stays = True
            self._requests[key].cancel(_CANCELED)
        elif key in self._requests:
            self._stopped.add(key)

    def _begin_notification(self, envelope: Any) -> None:
        if len(self._notified) < MOST_REQUESTS:
            working = asyncio.create_task(self._notify(envelope))
            self._notified.add(working)
            working.add_done_callback(self._notified.discard)

    # --- one request ---------------------------------------------------------------------------

    async def _serve(self, key: str, envelope: Any) -> None:
        """Answer a request."""
        shown, codec, streams = orjson.dumps(id_of(envelope)), _NEWEST, False
        try:
            asked = read_request(envelope, self._defaults)
            codec, streams = asked.codec, asked.operation in STREAMING
            del envelope  # a stream may stay open for days
            if streams:
                await self._follow(key, await self._answers.stream(asked), shown)
            else:
                body = await self._answers.call(asked)
                await self._send(
                    [await joined(b'{"jsonrpc":"2.0","id":', shown, b',"result":', body, b"}")]
                )
        except asyncio.CancelledError as canceled:
            if _CANCELED not in canceled.args:
                raise
        except ConnectionError:
            return
        except Exception as error:
            if not isinstance(error, errors.RequestError | AnsweredError):
                log.exception("request failed", extra={"event": "request.failed"})
            await self._send([_error(codec, shown, error)])
        if streams:
            await self._send([b'{"jsonrpc":"2.0","id":%b,"streamEnd":true}' % shown])

    async def _follow(self, key: str, stream: ItemStream, shown: bytes) -> None:
        """Send the items of a stream. They wait in the log of the task, not here."""
        before = b'{"jsonrpc":"2.0","id":%b,"result":' % shown

        def frames(batch: Batch) -> list[bytes]:
            return [b'%b%b,"eventId":%d}' % (before, data, number) for number, data in batch]

        def write(batch: Batch) -> bool:
            return self._writer.send_now(frames(batch))

        if key in self._stopped:
            return
        self._streams[key] = stream
        try:
            async with aclosing(stream.items(write)) as batches:
                async for batch in batches:
                    if batch:
                        await self._writer.send(frames(batch))
        finally:
            del self._streams[key]

    async def _notify(self, envelope: Any) -> None:
        """Execute a request without an id. It gets no answer, not even an error (JSON-RPC 2.0
        §4.1). An invalid one gets an error with the id null."""
        try:
            asked = read_request(envelope, self._defaults)
        except errors.RequestError as error:
            return await self.refuse(error)
        try:
            await self._answers.notify(asked)
        except (errors.RequestError, AnsweredError) as error:
            log.info("a notification failed", extra={"error": str(error)})
        except Exception:
            log.exception("a notification failed", extra={"event": "request.failed"})

    async def _send(self, frames: Sequence[bytes]) -> None:
        try:
            await self._writer.send(frames)
        except ConnectionError:
            log.debug("an answer has no reader")


_CANCELED = "the client stopped the stream"


def _key(request_id: Any) -> str:
    """1 and "1" are different ids."""
    return orjson.dumps(request_id).decode()


def _error(codec: Codec, shown: bytes, error: Exception) -> bytes:
    encoded = error.encoded if isinstance(error, AnsweredError) else codec.encode_error(error)
    body = orjson.dumps(encoded)
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (shown, body)
