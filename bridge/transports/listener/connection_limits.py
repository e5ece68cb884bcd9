"""Limits for the number, the rate and the time of connections, which aiohttp does not limit.

The time limits are: `header` for the headers of a request (also after connecting) and for each
pause in a body; `body` for a whole body, and more for a large one; `stall` for reading an answer.
One timer checks all connections about once a second, so that a request costs no timer. Time in
which this process did not run does not count.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError
from aiohttp.log import server_logger

from bridge.auth.token_bucket import RateLimitedLogs
from bridge.transports.listener.rate_limit import (
    ACCEPTED_AT_ONCE,
    AT_ONCE,
    SHARED,
    USER,
    Peers,
    RateLimitedListener,
    peer_at,
)
from bridge.transports.listener.refusals import (
    LONGEST_FIELD,
    LONGEST_TARGET,
    REQUEST_TIMEOUT,
    TOO_MANY_CONNECTIONS,
    refusal_of,
)

log = logging.getLogger(__name__)
for loud in (log, server_logger):  # clients that do not speak HTTP can flood both
    loud.addFilter(RateLimitedLogs())

KEEPALIVE = 75.0  # seconds that a connection may be idle between two requests
LOOK_EVERY = 1.0  # seconds
SLOWEST_BODY = 64 * 1024  # bytes of a body that extend its limit by one second
SLOWEST_READER = 16 * 1024  # bytes that a reader must take within `stall`, if so many wait
SEND_BUFFER = 256 * 1024  # bytes in the kernel per reader; the default is several MiB
REFUSED_AT_ONCE = 100  # ended connections that are read on; too many new ones are aborted then
REFUSED_FOR = 1.0  # seconds to read the last answer
MALFORMED = 10  # the cost of a malformed request, in connections of its peer


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`connections`: open connections in total. `per_peer`: open connections per address, per
    /64 of IPv6, or per user on a Unix socket. `per_second`: new connections per peer; 0 =
    unlimited. The others are seconds."""

    connections: int = 1000
    per_peer: int = 64
    header: float = 10.0
    body: float = 60.0
    stall: float = 30.0
    per_second: int = 0


_ANSWER_TOO_SLOW = REQUEST_TIMEOUT.raw()
_ANSWER_NO_ROOM = TOO_MANY_CONNECTIONS.raw("Retry-After: 1")


class LimitedRunner(web.AppRunner):
    """Runs `app` with limited connections. `refused` counts the refused connections and requests:
    `connections` (too many), `slow` (of a client that sends too slowly) or `malformed`. `cut`:
    clients that did not read."""

    def __init__(
        self, app: web.Application, limits: ConnectionLimits, *, shutdown_timeout: float = 60.0
    ) -> None:
        super().__init__(app, access_log=None, shutdown_timeout=shutdown_timeout)
        self._limits = limits
        burst = max(limits.per_peer, 2 * limits.per_second)
        self.refused: Counter[str] = Counter()
        self.cut = 0
        self._peers = Peers(limits.per_second, burst, max(limits.connections, 10 * burst))

    def change(self, limits: ConnectionLimits) -> None:
        """Use other limits from now on, also for open connections. None of them is closed for their
        number."""
        self._limits = limits
        burst = max(limits.per_peer, 2 * limits.per_second)
        self._peers.change(limits.per_second, burst, max(limits.connections, 10 * burst))
        if isinstance(self.server, _Server):
            self.server.limits = limits

    def site(self, listening: socket.socket) -> web.SockSite:
        """A site on a bound socket. The site owns the socket."""
        limited = RateLimitedListener(listening, self._peers.admits)
        return web.SockSite(self, limited, backlog=ACCEPTED_AT_ONCE)

    async def _make_server(self) -> web.Server:
        """Overrides AppRunner to create connections of the class Connection."""
        made = await super()._make_server()
        return _Server(made, self._limits, self._peers, self)

    def connections(self) -> Mapping[str, int]:
        """The open connections by listener: tcp or unix."""
        found = list(self.server.open) if isinstance(self.server, _Server) else []
        unix = sum(str(one.peer).startswith(USER) for one in found)
        return {"tcp": len(found) - unix, "unix": unix}

    async def cleanup(self) -> None:
        if isinstance(self.server, _Server):
            self.server.stop()
        await super().cleanup()


class _Server(web.Server):
    """Creates the connections of `made`, registers them, and closes overdue ones."""

    def __init__(
        self, made: web.Server, limits: ConnectionLimits, rates: Peers, tally: LimitedRunner
    ) -> None:
        self.loop = asyncio.get_running_loop()
        super().__init__(made.request_handler, request_factory=self._begin, loop=self.loop)
        self.limits = limits
        self.rates = rates
        self.tally = tally
        self.open: dict[Connection, None] = {}
        self.waiting: dict[Connection, None] = {}  # without a request, the longest idle first
        self.refused: dict[Connection, float] = {}
        self.peers: Counter[str | int] = Counter()
        self._make_request_of_app = made.request_factory
        shortest = min(limits.header, limits.body, limits.stall)
        self._every = min(LOOK_EVERY, shortest / 4)
        self._timer = self.loop.call_later(self._every, self._check_deadlines)
        self._paused = 0.0  # seconds in total

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

    def now(self) -> float:
        """The time in seconds without the pauses of the event loop, such as a stopped process:
        the server could not read data that arrived in them."""
        return self.loop.time() - self._paused

    def _check_deadlines(self) -> None:
        late = self.loop.time() - self._timer.when()
        if late > self._every:
            self._paused += late
        now = self.now()
        for connection in list(self.open):
            connection.look(now)
        for connection, since in list(self.refused.items()):
            if now - since > REFUSED_FOR:
                connection.abort()
        self._timer = self.loop.call_later(self._every, self._check_deadlines)

    def has_room(self, peer: str | int) -> bool:
        """Whether `peer` may open one more connection. It may replace an older one: first one that
        has not shown credentials, even if it is not idle. All programs of this machine have one
        address, and an agent among them could use up the connections of the others."""
        if peer not in SHARED and self.peers[peer] >= self.limits.per_peer:
            return False
        if len(self.open) < self.limits.connections:
            return True
        unknown = (one for some in (self.waiting, self.open) for one in some if not one.known)
        oldest = next(unknown, None) or next(iter(self.waiting), None)
        if oldest is None:
            return False
        oldest.abort()
        self.forget(oldest)
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
    """A connection of aiohttp that records since when it waits for its client."""

    __slots__ = (
        "_body_from",
        "_body_since",
        "_header_since",
        "_heard",
        "_payload",
        "_received",
        "_refusal",
        "_sent_before",
        "_server",
        "_stalled",
        "_taken",
        "_tcp",
        "_writer",
        "known",
        "peer",
    )

    def __init__(self, server: _Server) -> None:
        options: dict[str, Any] = {
            "keepalive_timeout": KEEPALIVE,
            "access_log": None,
            "auto_decompress": False,  # the server rejects compressed bodies
            "max_line_size": LONGEST_TARGET,
            "max_field_size": LONGEST_FIELD,
        }
        super().__init__(server, loop=server.loop, **options)
        self._server = server
        self._tcp: asyncio.Transport | None = None  # also while it closes
        self.peer: str | int = ""
        self.known = False  # a request on it had valid credentials
        self._header_since: float | None = None  # None: no byte of the next request yet
        self._payload: Any = None  # the body of the current request
        self._body_since = self._heard = 0.0
        self._body_from = self._received = 0
        self._refusal: web.Response | None = None  # the answer to invalid HTTP
        self._writer: Any = None
        self._sent_before = 0  # bytes of earlier writers
        self._taken: tuple[float, int] | None = None  # time, bytes read by the client
        self._stalled: asyncio.Event | None = None

    # --- callbacks of asyncio and aiohttp --------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._tcp = transport
        server = self._server
        own = transport.get_extra_info("socket")
        self.peer = peer_at(own, transport.get_extra_info("peername"))
        if not server.has_room(self.peer):
            self._refuse(transport)
            return
        server.open[self] = server.waiting[self] = None
        server.peers[self.peer] += 1
        self._header_since = server.now()
        if own is not None:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self in self._server.refused:
            return
        if data:  # aiohttp also calls this with b""
            self._heard = self._server.now()
            self._received += len(data)
            if self._header_since is None and (self._payload is None or self._payload.is_eof()):
                self._header_since = self._heard
        super().data_received(data)

    def begun(self, payload: Any, writer: Any) -> None:
        """The headers of a request are complete. `payload`: its body; `writer`: of its answer."""
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
            finished = await super().finish_response(request, resp, start_time)
            if self._tcp and (resp is self._refusal or request.content.exception()):
                self._end(self._tcp)
            return finished
        finally:
            self._payload = None
            if self._header_since is not None:  # the next request waited for this answer
                self._header_since = self._server.now()
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
        """Answer invalid HTTP without repeating any of it, and without a traceback in the log."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        self._server.tally.refused["malformed"] += 1
        self._server.rates.charge(self.peer, MALFORMED)
        log.warning("malformed request", extra={"peer": self.peer, "problem": type(exc).__name__})
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun")
        self._refusal = refusal_of(exc).response()
        self._refusal.force_close()
        return self._refusal

    # --- limits ----------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Close the connection if its client exceeds a time limit."""
        tcp, limits = self._tcp, self._server.limits
        if tcp is None:
            return
        if self._reads_too_slowly(tcp, now):
            if self._stalled and self._stalled.is_set():  # it does not read the reason, either
                return self.abort()
            self._server.tally.cut += 1
            facts = {"event": "stream.cut", "peer": self.peer, "cause": "slow"}
            log.info("a client does not read its answer", extra=facts)
            if self._stalled:
                self._stalled.set()
            else:
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
        """Close it now. The kernel discards its send buffer; otherwise it would keep the buffer
        until the client reads it."""
        if self._tcp is not None:
            own = self._tcp.get_extra_info("socket")
            if own is not None:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            self._tcp.abort()

    # --- connections that aiohttp does not write by a response ------------------------------------

    def wrote(self, size: int) -> None:
        """So many bytes were written, which the writer of the response does not count."""
        self._sent_before += size

    @property
    def has_space(self) -> bool:
        """Whether the client has read all that was written."""
        return self._tcp is not None and not self._tcp.get_write_buffer_size()

    def watch_stall(self) -> asyncio.Event:
        """Set when the client reads too slowly. Its owner closes the connection with a reason; it
        is aborted if it still stalls at the next check."""
        self._stalled = asyncio.Event()
        return self._stalled

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
        self._server.tally.refused["slow"] += 1
        self._log(why)
        answering = self._payload is not None and self._writer.output_size
        if answering or tcp.get_write_buffer_size():
            self.abort()
        else:
            tcp.write(_ANSWER_TOO_SLOW)
            self._end(tcp)

    def _refuse(self, tcp: asyncio.Transport) -> None:
        """Refuse the connection above the limit: with 503, or without an answer if many wait."""
        self._server.tally.refused["connections"] += 1
        if len(self._server.refused) >= REFUSED_AT_ONCE:
            self.abort()
            return
        tcp.write(_ANSWER_NO_ROOM)
        self._end(tcp)

    def _end(self, tcp: asyncio.Transport) -> None:
        """Close the connection after its last answer. The server keeps reading until the client
        closes it, too: a socket that is closed with unread bytes would discard the answer."""
        if len(self._server.refused) >= REFUSED_AT_ONCE or tcp.is_closing():
            tcp.close()
            return
        self._server.forget(self)
        self._server.refused[self] = self._server.now()
        self.transport = None  # aiohttp would close it
        tcp.resume_reading()
        try:
            tcp.write_eof()
        except OSError:  # the client has reset the connection
            self.abort()

    def _log(self, why: str) -> None:
        log.debug("connection cut", extra={"peer": self.peer, "why": why})
