"""The WebSocket binding (docs/bindings.md): one JSON-RPC object in each text frame. The handshake
is a request like any other: it passes the check of Host and Origin, and needs credentials."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from aiohttp import WSCloseCode, WSMsgType, web

from bridge.auth.principal import Principal
from bridge.auth.revocations import CUT_AFTER
from bridge.auth.token_bucket import RateLimitedLogs, TokenBucket
from bridge.errors import Unauthenticated
from bridge.transports.envelope.answers import EnvelopeAgent, OwnAnswers
from bridge.transports.envelope.connection import EnvelopeConnection
from bridge.transports.listener.connection_limits import Connection
from bridge.transports.negotiation import activated_extensions
from bridge.transports.operation import PRINCIPAL
from bridge.transports.sse import AT_ONCE

logging.getLogger("aiohttp.websocket").addFilter(RateLimitedLogs())  # clients cause its lines

SUBPROTOCOL = "a2a.v1"
FRAMES_A_SECOND, FRAMES_AT_ONCE = 50.0, 500
CLOSES_WITHIN = 2.0  # seconds for the client's part of the close
SLOW_READER, CREDENTIALS_WITHDRAWN = 4408, 4401  # codes of this binding (RFC 6455 §7.4.2)
UPGRADE = "This address is for WebSocket: send the handshake of RFC 6455."
Identify = Callable[[web.Request], Awaitable[Principal]]


class _Writer:
    """The frames of one connection, in the order of their sends."""

    def __init__(
        self, socket: web.WebSocketResponse, connection: Connection, transport: asyncio.Transport
    ) -> None:
        self._socket = socket
        self._connection = connection
        self._transport = transport

    async def send(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            self._connection.wrote(len(frame))
            await self._socket.send_frame(frame, WSMsgType.TEXT)

    def send_now(self, frames: Sequence[bytes]) -> bool:
        size = sum(map(len, frames))
        if size > AT_ONCE or self._socket.closed or not self._connection.has_space:
            return False
        self._connection.wrote(size)
        # One write for all: send_frame costs a coroutine and a write for each.
        self._transport.write(b"".join([part for one in frames for part in (_head(one), one)]))
        return True


def _head(frame: bytes) -> bytes:
    """The header of a text frame of at most AT_ONCE bytes (RFC 6455 §5.2)."""
    size = len(frame)
    return b"\x81%c" % size if size < 126 else b"\x81\x7e" + size.to_bytes(2, "big")


@dataclass(frozen=True, slots=True)
class _Open:
    socket: web.WebSocketResponse
    requests: EnvelopeConnection


class WebSockets:
    """The WebSocket connections of a server. `ping`: seconds between two pings; a client that does
    not answer for half of it is disconnected. `max_frame`: bytes."""

    def __init__(self, identify: Identify, *, ping: float, max_frame: int) -> None:
        self._identify = identify
        self._ping = ping
        self._max_frame = max_frame
        self._open: set[_Open] = set()

    async def close(self, app: web.Application) -> None:
        """The server stops: close all connections. Their clients did not leave."""
        closing = [self._close(one, WSCloseCode.GOING_AWAY) for one in self._open]
        await asyncio.gather(*closing)

    async def _close(self, one: _Open, code: int) -> None:
        await one.requests.close(left=False)
        await one.socket.close(code=code)

    async def handle(self, request: web.Request, agent: EnvelopeAgent) -> web.StreamResponse:
        """Serve a connection to this agent until it ends, or until the credential of its handshake
        becomes invalid."""
        socket = web.WebSocketResponse(
            timeout=CLOSES_WITHIN,
            heartbeat=self._ping,
            protocols=(SUBPROTOCOL,),
            compress=False,
            max_msg_size=self._max_frame + 1,
            decode_text=False,
        )
        if not socket.can_prepare(request):
            headers = {"Upgrade": "websocket", "Connection": "Upgrade"}
            return web.json_response({"error": UPGRADE}, status=426, headers=headers)
        socket.headers.update(activated_extensions(request))
        await socket.prepare(request)
        connection = request.protocol
        assert isinstance(connection, Connection)
        transport = request.transport
        if transport is None:  # the client has left
            return socket
        assert isinstance(transport, asyncio.Transport)
        identify = partial(self._identify, request)
        answers = OwnAnswers(agent, identify, "websocket", request.remote)
        writer = _Writer(socket, connection, transport)
        requests = EnvelopeConnection(answers, writer, defaults=_defaults(request))
        one = _Open(socket, requests)
        self._open.add(one)
        watching = asyncio.create_task(self._watch(one, connection.watch_stall()))
        try:
            with agent.operations.held(request[PRINCIPAL]):
                await self._read(one)
        except Unauthenticated:
            with suppress(TimeoutError):  # of its requests, each of which has an error of its own
                await asyncio.wait_for(requests.finished(), CUT_AFTER)
            await socket.close(code=CREDENTIALS_WITHDRAWN, message=b"credentials withdrawn")
        finally:
            self._open.discard(one)
            watching.cancel()
            await requests.close(left=True)
        return socket

    async def _read(self, one: _Open) -> None:
        """Serve the frames of the client until the connection ends."""
        bucket = TokenBucket(FRAMES_A_SECOND, FRAMES_AT_ONCE)
        async for message in one.socket:
            if message.type is WSMsgType.ERROR:  # aiohttp has closed the connection
                break
            if message.type is not WSMsgType.TEXT:
                await one.socket.close(code=WSCloseCode.UNSUPPORTED_DATA)
            elif not bucket.take():
                await one.socket.close(code=WSCloseCode.POLICY_VIOLATION, message=b"too many")
            else:
                await one.requests.receive(message.data)

    async def _watch(self, one: _Open, stalled: asyncio.Event) -> None:
        """Close the connection of a client that reads too slowly. It is aborted if the client does
        not read that, either."""
        await stalled.wait()
        await one.socket.close(code=SLOW_READER, message=b"slow reader", drain=False)


def _defaults(request: web.Request) -> dict[str, str]:
    """The service parameters of the handshake, in its headers or its query."""
    found = {}
    for name in ("A2A-Version", "A2A-Extensions"):
        given = ",".join(request.headers.getall(name, ())) or request.query.get(name)
        if given:
            found[name] = given
    return found
