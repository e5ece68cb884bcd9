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

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
EXCHANGE = "bridge.exchange"
"""The key of the Exchange in the ASGI scope."""
LOOK_EVERY = 0.25  # seconds between two looks at a connection; aiohttp reports no disconnection
_HOP = frozenset({"connection", "content-length", "transfer-encoding", "keep-alive"})
"""Headers that aiohttp writes itself."""


class Exchange:
    """One request and its response. `principal`: the sender. `on_end` is called once with True
    after the whole response was written to the connection, otherwise with False."""

    def __init__(self, request: web.Request, principal: Principal, body: bytes) -> None:
        self.principal = principal
        self.headers = request.headers
        self.on_end: Callable[[bool], None] | None = None
        self.response: web.StreamResponse | None = None
        self._request = request
        self._body: bytes | None = body
        self._begun: Message = {}
        self._prepared = False

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
        transport = self._request.transport
        return transport is not None and not transport.is_closing()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begun = message
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        try:
            response = self.response
            if response is None:
                response = self.response = self._response(None if more else len(body))
            if not self._prepared:
                self._prepared = True
                await response.prepare(self._request)
            if body:
                await response.write(body)
            if not more:
                await response.write_eof()
        except ConnectionError:
            return
        if not more and self.connected:
            self.end(True)

    def end(self, written: bool) -> None:
        callback, self.on_end = self.on_end, None
        if callback:
            callback(written)

    def _response(self, length: int | None) -> web.StreamResponse:
        response = web.StreamResponse(status=self._begun["status"])
        for name, value in self._begun.get("headers", ()):
            if name.decode("latin-1").lower() not in _HOP:
                response.headers.add(name.decode("latin-1"), value.decode("latin-1"))
        response.content_length = length
        return response


async def respond(
    request: web.Request, app: App, principal: Principal, **scope: Any
) -> web.StreamResponse:
    """The response of `app` to `request`. `scope`: further members of the ASGI scope. Raises
    HTTPRequestEntityTooLarge for a large body."""
    exchange = Exchange(request, principal, await request.read())
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
    if exchange.response is None:
        log.error("no response to an MCP request", extra={"method": request.method})
        raise web.HTTPInternalServerError
    return exchange.response
