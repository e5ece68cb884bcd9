"""Requests on a connection that stays open. They run side by side; the items of a stream come in
order. Each frame is one JSON object (docs/transports.md):

    request   {"jsonrpc": "2.0", "id": …, "method": …, "params": …, "a2a-service-parameters": …}
    result    {"jsonrpc": "2.0", "id": …, "result": …}
    item      {"jsonrpc": "2.0", "id": …, "result": …, "eventId": N}
    end       {"jsonrpc": "2.0", "id": …, "streamEnd": true}
    stop      {"jsonrpc": "2.0", "id": …, "cancelStream": true}
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Protocol

import orjson

from bridge import errors
from bridge.a2a.codec import Codec, Operation
from bridge.a2a.codecs import CODECS
from bridge.auth.principal import Principal
from bridge.auth.token_bucket import RateLimitedLogs
from bridge.telemetry.observation import REQUEST, RequestInfo
from bridge.transports.envelope.request import EnvelopeRequest, id_of, read_request
from bridge.transports.json_body import AT_ONCE, LARGE, decode_json
from bridge.transports.negotiation import check_extension, shows_retry
from bridge.transports.operation import STREAMING, Caller, Operations, Pending
from bridge.transports.stream import Batch, Stream

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


@dataclass(frozen=True, slots=True)
class EnvelopeAgent:
    """The agent of a connection. `address`: its URL as the client knows it, without /a2a.
    `extension_required`: clients must activate EXTENSION."""

    operations: Operations
    address: str
    extension_required: bool = False


class EnvelopeConnection:
    """`defaults`: the service parameters of requests without such of their own. `identify` returns
    the sender of a request; its Unauthenticated ends the connection. `binding` and `peer` are for
    observers."""

    def __init__(
        self,
        agent: EnvelopeAgent,
        writer: FrameWriter,
        *,
        identify: Callable[[], Awaitable[Principal]],
        defaults: Mapping[str, str],
        binding: str,
        peer: str | None = None,
    ) -> None:
        self._agent = agent
        self._writer = writer
        self._identify = identify
        self._defaults = defaults
        self._binding = binding
        self._peer = peer
        self._requests: dict[str, asyncio.Task[None]] = {}
        self._streams: dict[str, Stream] = {}
        self._notified: set[asyncio.Task[None]] = set()
        self.refused: asyncio.Event = asyncio.Event()
        """Set if the credentials of the connection are not valid any more."""

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

    @property
    def idle(self) -> bool:
        """Whether no request waits for its answer, and no stream is open."""
        return not self._requests and not self._notified

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
            working.add_done_callback(lambda done: self._requests.pop(key, None))

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
            caller = await self._caller(asked)
            del envelope  # a stream may stay open for days
            await self._answer(key, shown, asked, caller)
        except asyncio.CancelledError as canceled:
            if _CANCELED not in canceled.args:
                raise
        except ConnectionError:
            return
        except Exception as error:
            if not isinstance(error, errors.RequestError):
                log.exception("request failed", extra={"event": "request.failed"})
            await self._send([_error(codec, shown, error)])
            if isinstance(error, errors.Unauthenticated):
                self.refused.set()
        if streams:
            await self._send([b'{"jsonrpc":"2.0","id":%b,"streamEnd":true}' % shown])

    async def _answer(self, key: str, shown: bytes, asked: EnvelopeRequest, caller: Caller) -> None:
        operations = self._agent.operations
        if asked.operation in STREAMING:
            stream = await operations.stream(
                asked.codec, asked.operation, asked.params, caller, asked.seen
            )
            self._streams[key] = stream
            try:
                return await self._follow(stream, shown)
            finally:
                del self._streams[key]
        result = await operations.call(asked.codec, asked.operation, asked.params, caller)
        if isinstance(result, Pending):
            result = await result.answer()
        body = orjson.dumps(result)
        await self._send([b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (shown, body)])

    async def _follow(self, stream: Stream, shown: bytes) -> None:
        """Send the items of a stream. They wait in the log of the task, not here."""
        before = b'{"jsonrpc":"2.0","id":%b,"result":' % shown

        def frames(batch: Batch) -> list[bytes]:
            return [b'%b%b,"eventId":%d}' % (before, data, number) for number, data in batch]

        def write(batch: Batch) -> bool:
            return self._writer.send_now(frames(batch))

        async with aclosing(stream.items(write)) as batches:
            async for batch in batches:
                if batch:
                    await self._writer.send(frames(batch))

    async def _notify(self, envelope: Any) -> None:
        """Execute a request without an id. It gets no answer, not even an error (JSON-RPC 2.0
        §4.1). An invalid one gets an error with the id null."""
        try:
            asked = read_request(envelope, self._defaults)
        except errors.RequestError as error:
            return await self.refuse(error)
        try:
            caller = replace(await self._caller(asked), stays=False)
            operations, codec = self._agent.operations, asked.codec
            if asked.operation in (Operation.SEND, Operation.STREAM):  # a stream does not block
                await operations.stream(codec, Operation.STREAM, asked.params, caller)
            elif asked.operation not in STREAMING:
                await operations.call(codec, asked.operation, asked.params, caller)
        except errors.Unauthenticated:
            self.refused.set()
        except errors.RequestError as error:
            log.info("a notification failed", extra={"error": str(error)})
        except Exception:
            log.exception("a notification failed", extra={"event": "request.failed"})

    async def _caller(self, asked: EnvelopeRequest) -> Caller:
        """The sender. Each request identifies it again. Raises RequestError."""
        check_extension(asked.parameters, self._agent.extension_required)
        headers = asked.parameters.headers
        info = RequestInfo.named(
            self._binding, headers.get("X-Request-Id"), self._peer, headers.get("traceparent")
        )
        REQUEST.set(info)
        principal = await self._identify()
        REQUEST.set(replace(info, principal=principal.id))
        return Caller(self._agent.address, principal, shows_retry(asked.parameters), info=info)

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
    body = orjson.dumps(codec.encode_error(error))
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (shown, body)
