"""Connections that are bounded in number and in time: aiohttp waits for slow clients for ever.

A client gets so long to send the headers of a request (`header`, also from the moment that it
connects), for each pause in a body (the same), for a whole body (`body`, and more for a large one),
and for taking what it was sent (`stall`). All connections are looked at about once a second, so
that a request costs no timer.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import Counter
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import orjson
from aiohttp import web
from aiohttp.http import HttpProcessingError

from bridge.gate import SAFE

log = logging.getLogger(__name__)

KEEPALIVE = 75.0  # seconds that a connection may rest between two requests
LOOK_EVERY = 1.0  # seconds
SLOWEST_BODY = 64 * 1024  # bytes that one more second is given for
SLOWEST_READER = 16 * 1024  # bytes that a reader must take within `stall`, if there are so many
SEND_BUFFER = 256 * 1024  # bytes that the kernel keeps for a reader; it would take megabytes
_AT_ONCE = struct.pack("ii", 1, 0)  # of SO_LINGER: on, no seconds
REFUSED_AT_ONCE = 100  # connections that are told why they are refused; others are just cut
REFUSED_FOR = 1.0  # seconds that they get to read it
LINES_A_BURST, SECONDS_A_LINE = 10, 1.0  # of the log, for clients that speak no HTTP
SHARED = frozenset({"127.0.0.1", "::1"})
"""Addresses that all programs of this machine have, a reverse proxy among them: those are many
clients, and a limit for each address would let one of them lock out the others."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`connections` in all and `per_peer` address (of IPv6, per /64); the others are seconds."""

    connections: int = 1000
    per_peer: int = 64
    header: float = 10.0
    body: float = 60.0
    stall: float = 30.0


def _raw(status: str, code: int, text: str, *headers: str) -> bytes:
    """An answer for a connection that has no request to be answered."""
    error = {"code": code, "status": "UNAVAILABLE", "message": text, "details": []}
    body = orjson.dumps({"error": error})
    lines = [
        f"HTTP/1.1 {status}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
        *(f"{name}: {value}" for name, value in SAFE.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


_TOO_SLOW = _raw("408 Request Timeout", 408, "The request did not come in time.")
_NO_ROOM = _raw("503 Service Unavailable", 503, "Too many connections.", "Retry-After: 1")


class Runner(web.AppRunner):
    """Runs `app` on connections that keep to `limits`."""

    def __init__(
        self, app: web.Application, limits: Limits, *, shutdown_timeout: float = 60.0
    ) -> None:
        super().__init__(app, access_log=None, shutdown_timeout=shutdown_timeout)
        self._limits = limits

    async def _make_server(self) -> web.Server:
        """Of AppRunner, for the one purpose of making connections of our own class."""
        made = await super()._make_server()
        return _Server(made, self._limits)

    async def cleanup(self) -> None:
        if isinstance(self.server, _Server):
            self.server.stop()
        await super().cleanup()


class _Server(web.Server):
    """Makes the connections of `made`, knows them all, and ends those that are overdue."""

    def __init__(self, made: web.Server, limits: Limits) -> None:
        self.loop = asyncio.get_running_loop()
        super().__init__(made.request_handler, request_factory=self._begin, loop=self.loop)
        self.limits = limits
        self.malformed = _Malformed()
        self.open: dict[Connection, None] = {}
        self.waiting: dict[Connection, None] = {}  # those without a request, the longest first
        self.refused: dict[Connection, float] = {}
        self.peers: Counter[str | int] = Counter()
        self._make_request_of_app = made.request_factory
        shortest = min(limits.header, limits.body, limits.stall)
        self._every = min(LOOK_EVERY, shortest / 4)
        self._timer = self.loop.call_later(self._every, self._look)

    def __call__(self) -> Connection:
        return Connection(self)

    def stop(self) -> None:
        self._timer.cancel()
        for connection in list(self.refused):
            connection.abort()

    def _begin(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> Any:
        """The headers of a request are complete."""
        protocol.begun(payload, writer)
        return self._make_request_of_app(message, payload, protocol, writer, task)

    def _look(self) -> None:
        now = self.loop.time()
        for connection in list(self.open):
            connection.look(now)
        for connection, since in list(self.refused.items()):
            if now - since > REFUSED_FOR:
                connection.abort()
        self._timer = self.loop.call_later(self._every, self._look)

    def has_room(self, peer: str | int) -> bool:
        """Whether there is room for one more from `peer`, if need be in place of the connection
        that has had no request for the longest time."""
        if peer not in SHARED and self.peers[peer] >= self.limits.per_peer:
            return False
        if len(self.open) < self.limits.connections:
            return True
        idle = next(iter(self.waiting), None)
        if idle is None:
            return False
        idle.abort()
        self.forget(idle)
        return True

    def forget(self, connection: Connection) -> None:
        self.waiting.pop(connection, None)
        self.refused.pop(connection, None)
        if connection in self.open:
            del self.open[connection]
            self.peers[connection.peer] -= 1
            if not self.peers[connection.peer]:
                del self.peers[connection.peer]


class Connection(web.RequestHandler):
    """A connection of aiohttp that knows since when its client owes it something."""

    __slots__ = (
        "_body_from",
        "_body_since",
        "_header_since",
        "_heard",
        "_payload",
        "_received",
        "_sent_before",
        "_server",
        "_taken",
        "_tcp",
        "_writer",
        "peer",
    )

    def __init__(self, server: _Server) -> None:
        options: dict[str, Any] = {
            "keepalive_timeout": KEEPALIVE,
            "access_log": None,
            "auto_decompress": False,  # compressed bodies are refused, so nobody need unpack them
        }
        super().__init__(server, loop=server.loop, **options)
        self._server = server
        self._tcp: asyncio.Transport | None = None  # also while it is being closed
        self.peer: str | int = ""
        self._header_since: float | None = None  # None: no byte of another request has come
        self._payload: Any = None  # the body of the request that is being served
        self._body_since = self._heard = 0.0
        self._body_from = self._received = 0
        self._writer: Any = None
        self._sent_before = 0  # bytes, by earlier writers
        self._taken: tuple[float, int] | None = None  # when the client had taken how many bytes

    # --- what asyncio and aiohttp tell ---------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._tcp = transport
        server, now = self._server, self._server.loop.time()
        self.peer = _peer(transport)
        if not server.has_room(self.peer):
            self._refuse(transport, now)
            return
        server.open[self] = server.waiting[self] = None
        server.peers[self.peer] += 1
        self._header_since = now
        own = transport.get_extra_info("socket")
        if own is not None:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self in self._server.refused:
            return
        if data:  # aiohttp itself calls this with nothing
            self._heard = self._server.loop.time()
            self._received += len(data)
            if self._header_since is None and (self._payload is None or self._payload.is_eof()):
                self._header_since = self._heard
        super().data_received(data)

    def begun(self, payload: Any, writer: Any) -> None:
        """A request is complete but for its body, which is `payload`; `writer` will answer it."""
        self._server.waiting.pop(self, None)
        self._header_since = None
        self._payload = payload
        self._body_since = self._heard
        self._body_from = self._received
        if self._writer is not None:
            self._sent_before += self._writer.output_size
        self._writer = writer

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._payload = None
            if self._header_since is not None:  # the next request waited for this one
                self._header_since = self._server.loop.time()
            if self in self._server.open:
                self._server.waiting[self] = None

    def connection_lost(self, exc: BaseException | None) -> None:
        self._tcp = None
        self._server.forget(self)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is no HTTP gets an answer that repeats none of it, and no traceback in the log."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        self._server.malformed.note(self.peer, exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun already")
        text = "The request is not proper HTTP, or its headers are too large."
        error = {"code": 400, "status": "INVALID_ARGUMENT", "message": text, "details": []}
        body = orjson.dumps({"error": error})
        response = web.Response(
            status=400, body=body, content_type="application/json", headers=SAFE
        )
        response.force_close()
        return response

    # --- what follows --------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """End the connection if its client is overdue with anything."""
        tcp, limits = self._tcp, self._server.limits
        if tcp is None:
            return
        if self._reads_too_slowly(tcp, now):
            self._log("reads too slowly")
            self.abort()
        elif tcp.is_closing():
            pass
        elif self._payload is None:
            if self._header_since is not None and now - self._header_since > limits.header:
                self._time_out(tcp, "sends no request")
        elif not self._payload.is_eof():
            size = self._received - self._body_from
            took = now - self._body_since
            if now - self._heard > limits.header or took > limits.body + size / SLOWEST_BODY:
                self._time_out(tcp, "sends its body too slowly")

    def abort(self) -> None:
        """End it now. What the kernel still has for the client is thrown away: else it would keep
        that for as long as the client does not take it."""
        if self._tcp is not None:
            own = self._tcp.get_extra_info("socket")
            if own is not None:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            self._tcp.abort()

    def _reads_too_slowly(self, tcp: asyncio.Transport, now: float) -> bool:
        left = tcp.get_write_buffer_size()
        if not left:
            self._taken = None
            return False
        written = self._sent_before + (self._writer.output_size if self._writer else 0)
        taken = written - left
        if self._taken is None or taken - self._taken[1] >= SLOWEST_READER:
            self._taken = (now, taken)
        return now - self._taken[0] > self._server.limits.stall

    def _time_out(self, tcp: asyncio.Transport, why: str) -> None:
        self._log(why)
        answering = self._payload is not None and self._writer.output_size
        if answering or tcp.get_write_buffer_size():
            self.abort()
        else:
            tcp.write(_TOO_SLOW)
            tcp.close()

    def _refuse(self, tcp: asyncio.Transport, now: float) -> None:
        """Say that there is no room. What the client sends meanwhile is read, since a socket that
        is closed over unread bytes throws away the answer, too."""
        if len(self._server.refused) >= REFUSED_AT_ONCE:
            self.abort()
            return
        self._server.refused[self] = now
        tcp.write(_NO_ROOM)
        tcp.write_eof()

    def _log(self, why: str) -> None:
        log.debug("connection cut", extra={"peer": self.peer, "why": why})


def _peer(transport: asyncio.Transport) -> str | int:
    """What connections are counted by. Whoever has an IPv6 address has 2**64 of them."""
    name = transport.get_extra_info("peername")
    if not name or isinstance(name, str | bytes):
        return ""
    address = str(name[0]).partition("%")[0]
    if ":" not in address or address in SHARED:
        return address
    return int(ip_address(address)) >> 64


class _Malformed:
    """The log of clients that speak no HTTP: anybody could fill the disk with it."""

    def __init__(self) -> None:
        self._left = float(LINES_A_BURST)
        self._at = 0.0
        self._untold = 0

    def note(self, peer: str | int, problem: BaseException) -> None:
        now = asyncio.get_running_loop().time()
        self._left = min(LINES_A_BURST, self._left + (now - self._at) / SECONDS_A_LINE)
        self._at = now
        if self._left < 1:
            self._untold += 1
            return
        self._left -= 1
        facts = {"peer": peer, "problem": type(problem).__name__, "more": self._untold}
        self._untold = 0
        log.warning("malformed request", extra=facts)
