"""Runs an ASGI application for one aiohttp request, without a library.

The MCP library is an ASGI application. It imports much memory, so that this module, which the
server always imports, does not depend on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from aiohttp import web

from bridge.auth.principal import Principal
from bridge.telemetry.observation import observed

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
EXCHANGE = "bridge.exchange"
"""The key of the Exchange in the ASGI scope."""
LOOK_EVERY = 0.25  # seconds between two looks at a connection; aiohttp reports no disconnection
_HOP = frozenset({"connection", "transfer-encoding", "keep-alive"})
"""Headers that aiohttp writes itself."""
_COMMENT = b":"  # the first byte of a comment in an event stream


class Exchange:
    """One request and its response. `principal`: the sender. `caller` finds the session of an agent
    that sends it. `info`: the facts of
    the request. `on_end` is set when the result is known. It is called once: with True after the
    result was written to the connection, otherwise with False."""

    def __init__(
        self,
        request: web.Request,
        principal: Principal,
        body: bytes,
        caller: Callable[[], Awaitable[str | None]],
    ) -> None:
        self.principal = principal
        self.caller = caller
        self.request = request
        self.headers = request.headers
        self.info = observed()
        self.on_end: Callable[[bool], None] | None = None
        self.response: web.StreamResponse | None = None
        self._body: bytes | None = body

    async def receive(self) -> Message:
        """The body at the first call. A later call returns when the client has disconnected."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        while self.connected:  # noqa: ASYNC110 - aiohttp has no event for it
            await asyncio.sleep(LOOK_EVERY)
        return {"type": "http.disconnect"}

    @property
    def connected(self) -> bool:
        transport = self.request.transport
        return transport is not None and not transport.is_closing()

    async def send(self, message: Message) -> None:
        try:
            if message["type"] == "http.response.start":
                self.response = _response(message)
                await self.response.prepare(self.request)
                return
            assert self.response
            body = message.get("body", b"")
            if body:
                await self.response.write(body)
            # A client may close an event stream as soon as it has the result.
            if body and not body.startswith(_COMMENT) and self.connected:
                self.end(True)
            if not message.get("more_body", False):
                await self.response.write_eof()
        except ConnectionError:
            return

    def end(self, written: bool) -> None:
        callback, self.on_end = self.on_end, None
        if callback:
            callback(written)


def _response(begun: Message) -> web.StreamResponse:
    response = web.StreamResponse(status=begun["status"])
    for raw_name, raw_value in begun.get("headers", ()):
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        if name == "content-length":
            response.content_length = int(value)
        elif name not in _HOP:
            response.headers.add(name, value)
    return response


async def respond(exchange: Exchange, app: App, **scope: Any) -> web.StreamResponse:
    """The response of `app`. `scope`: further members of the ASGI scope."""
    request = exchange.request
    path = request.rel_url.raw_path
    members = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": f"{request.version.major}.{request.version.minor}",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": path.encode("ascii", "replace"),
        "root_path": "",
        "query_string": request.rel_url.raw_query_string.encode("ascii", "replace"),
        "headers": [(name.lower(), value) for name, value in request.raw_headers],
        "client": None,
        "server": None,
        EXCHANGE: exchange,
        **scope,
    }
    try:
        await app(members, exchange.receive, exchange.send)
    finally:
        exchange.end(False)
    if exchange.response:
        return exchange.response
    if exchange.connected:
        log.error("no response to an MCP request", extra={"method": request.method})
    return web.Response(status=500)  # not sent if the client has disconnected
