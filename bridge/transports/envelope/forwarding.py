"""The answers of another server to the requests of a connection, over its JSON-RPC binding."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

import orjson

from bridge import errors
from bridge.a2a.codec import Operation
from bridge.transports.envelope.request import PARAMETERS, AnsweredError, EnvelopeRequest
from bridge.transports.stream import Batch, Write

log = logging.getLogger(__name__)

RESUMES_WITHIN = 60.0  # seconds that the server may be away while a stream is open
PAUSES = 0.2, 5.0  # seconds between two attempts: at first, and at most
_ENDS = frozenset({"completed", "failed", "canceled", "rejected"})
_SENDS = frozenset({Operation.SEND, Operation.STREAM})

Json = Mapping[str, Any]
Answer = AsyncGenerator[tuple[str | None, Any]]
"""The ids and the JSON of the events of a response; a response without events is one without an
id."""
Post = Callable[[Json, Mapping[str, str]], Answer]
"""Posts a JSON-RPC request with these headers. The answer raises Unavailable if the server cannot
be reached or the response ended early, and other RequestErrors if the server refuses it."""


class ForwardedAnswers:
    """`post` sends a request to the server. A stream that breaks is resumed. Tasks continue after
    the connection has ended, also with BRIDGE_ON_DISCONNECT=cancel."""

    def __init__(self, post: Post) -> None:
        self._post = post

    async def call(self, asked: EnvelopeRequest) -> bytes:
        async with aclosing(self._post(_body(asked), _headers(asked))) as answer:
            async for _, body in answer:
                return orjson.dumps(_result(body))
        raise errors.Unavailable("The server gave no answer.")

    async def stream(self, asked: EnvelopeRequest) -> ForwardedStream:
        stream = ForwardedStream(self._post, asked)
        await stream.open()
        return stream

    async def notify(self, asked: EnvelopeRequest) -> None:
        body = _body(asked)
        del body["id"]
        async with aclosing(self._post(body, _headers(asked))) as answer:
            async for _ in answer:
                pass


class ForwardedStream:
    """The items of a stream of the server. If the connection breaks, they continue on a new one
    after the last item."""

    def __init__(self, post: Post, asked: EnvelopeRequest) -> None:
        self.stays = False  # without effect: see _body
        self._post = post
        self._asked = asked
        self._sends = asked.operation in _SENDS
        self._answer: Answer | None = None
        self._first: Batch | None = None
        self._task_id: str | None = None
        self._last: int | None = None
        self._over = False
        self._subscribed = False

    async def open(self) -> None:
        """Wait for the first item. Raises RequestError and AnsweredError."""
        self._answer = self._post(_body(self._asked), _headers(self._asked))
        self._first = await self._next()

    async def items(self, write: Write) -> AsyncGenerator[Batch | None]:
        """One item in each batch. Raises as open() does."""
        batch = self._first
        try:
            while batch:
                yield batch
                # Unlike the stream of a send, a subscription continues after a question.
                ended = self._over and self._subscribed
                batch = None if ended else await self._following()
        finally:
            await self._close()

    async def _following(self) -> Batch | None:
        """The next item, if necessary on a new connection; None after the last one."""
        try:
            batch = await self._next()
        except errors.Unavailable as error:
            batch, lost = None, error
        else:
            lost = errors.Unavailable("The server ended the stream early.")
        return batch if batch or self._over else await self._resumed(lost)

    async def _next(self) -> Batch | None:
        """The next item of the response; None at its end. Raises as open() does."""
        assert self._answer
        try:
            async for number, body in self._answer:
                result = _result(body)
                self._note(result, number)
                return [(self._last or 0, orjson.dumps(result))]
        except BaseException:
            await self._close()
            raise
        return None

    def _note(self, result: Any, number: str | None) -> None:
        """Note the position in the stream, and whether it ends here."""
        if number and number.isdecimal():
            self._last = int(number)
        item = result if isinstance(result, dict) else {}
        for name in ("task", "statusUpdate", "artifactUpdate", "message"):
            item = item.get(name, item)  # 0.3 has no such members
        status = item.get("status")
        if not isinstance(status, dict):  # an artifact, or a message, which ends the stream
            self._over = "artifact" not in item
            return
        self._task_id = item.get("taskId") or item.get("id")
        state = str(status.get("state")).removeprefix("TASK_STATE_").lower().replace("_", "-")
        self._over = state in _ENDS or (self._sends and state == "input-required")

    async def _resumed(self, lost: errors.Unavailable) -> Batch | None:
        """The next item on a new connection. Raises as open() does."""
        if self._task_id is None or self._last is None:
            raise lost
        codec = self._asked.codec
        method = next(n for n, one in codec.methods.items() if one is Operation.SUBSCRIBE)
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"id": self._task_id}}
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + RESUMES_WITHIN, PAUSES[0]
        log.warning("a stream waits for its server: %s", lost)
        while loop.time() < until:
            await self._close()
            headers = {**_headers(self._asked), "Last-Event-ID": str(self._last)}
            self._answer, self._subscribed = self._post(body, headers), True
            try:
                batch = await self._next()
                if batch or self._over:
                    return batch
            except errors.Unavailable as error:
                lost = error
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSES[1])
        raise lost

    async def _close(self) -> None:
        if self._answer:
            await self._answer.aclose()


def _body(asked: EnvelopeRequest) -> dict[str, Any]:
    """The request for the server. It says that a disconnect does not cancel the task, unless it
    says anything about that."""
    params = dict(asked.params)
    metadata = params.get("metadata", {})
    bridge = metadata.get("bridge", {}) if isinstance(metadata, dict) else None
    if asked.operation in _SENDS and isinstance(bridge, dict):
        params["metadata"] = {**metadata, "bridge": {"onDisconnect": "continue", **bridge}}
    return {"jsonrpc": "2.0", "id": 1, "method": asked.name, "params": params}


def _headers(asked: EnvelopeRequest) -> dict[str, str]:
    """Raises InvalidParams for a service parameter that a header cannot have."""
    headers = dict(asked.parameters.headers)
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            problem = f"{name} has characters that a header cannot have"
            raise errors.InvalidParams(f"{PARAMETERS}: {problem}.", [(PARAMETERS, problem)])
    return headers


def _result(body: Any) -> Any:
    """The result in a JSON-RPC response. Raises AnsweredError, or Unavailable for another body."""
    if not isinstance(body, dict) or not ("result" in body or "error" in body):
        raise errors.Unavailable("The server gave no JSON-RPC answer.")
    error = body.get("error")
    if error is None:
        return body.get("result")
    if isinstance(error, dict) and isinstance(error.get("code"), int):
        raise AnsweredError(error)
    raise errors.Unavailable(f"The server refused the request: {error}"[:500])
