"""The address /mcp. The library is imported at the first request, in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import orjson
from aiohttp import web

from bridge.auth.principal import Principal
from bridge.auth.revocations import Revocations
from bridge.errors import Unauthenticated
from bridge.telemetry.observation import REQUEST, observed
from bridge.transports.mcp import asgi
from bridge.transports.mcp.announced import INVALID_REQUEST, MODERN
from bridge.transports.mcp.sessions import SessionCount
from bridge.transports.negotiation import JSON, declares_json
from bridge.transports.operation import PRINCIPAL

PATH = "/mcp"
SESSION, REVISION = "Mcp-Session-Id", "MCP-Protocol-Version"


class Service(Protocol):
    """A running MCP server; `app` is an ASGI application, and `user` its form of a principal."""

    @property
    def app(self) -> asgi.App: ...

    def user(self, principal: Principal) -> Any: ...

    async def close(self) -> None: ...


Load = Callable[[], Awaitable[Service]]
"""Makes and starts the service. Raises Missing."""


Caller = Callable[[web.Request], Awaitable[str | None]]
"""The marker of the session that sends a request: see Identity.session()."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpLimits:
    """`cancel_after`: seconds in which a canceled call may return. `sessions`: open sessions of one
    principal, in revisions that have sessions."""

    cancel_after: float = 10.0
    sessions: int = 100


class Missing(Exception):
    """The server has no MCP. `str(error)` is the reason."""


class Endpoint:
    """`caller` finds the session of an agent that sends a request. `load` is called at the first
    request, or with `at_once` when the server starts; then the server does not start without the
    service. `sessions`: open sessions of one principal. `revocations` ends requests of invalid
    credentials."""

    def __init__(
        self,
        load: Load,
        caller: Caller,
        *,
        sessions: int,
        at_once: bool = False,
        revocations: Revocations | None = None,
    ) -> None:
        self._revocations = revocations or Revocations()
        self._load = load
        self._caller = caller
        self._at_once = at_once
        self._sessions = SessionCount(sessions)
        self._loading: asyncio.Task[Service] | None = None
        self._past: list[asyncio.Task[Service]] = []

    def renew(self, load: Load) -> None:
        """Serve later requests with another service. Running calls keep the present one;
        sessions of clients begin again."""
        self._load = load
        if self._loading is not None:
            self._past.append(self._loading)
            self._loading = None

    def attach(self, app: web.Application) -> None:
        app.router.add_post(PATH, self._handle)
        app.router.add_delete(PATH, self._handle)
        app.on_shutdown.append(self._close)
        if self._at_once:
            app.on_startup.append(self._start)

    async def _start(self, app: web.Application) -> None:
        await self._service()

    async def _close(self, app: web.Application) -> None:
        for one in (*self._past, self._loading):
            with suppress(Exception):  # it was logged, or is the answer to each request
                if one is not None:
                    await (await one).close()

    async def _service(self) -> Service:
        if self._loading is None:
            self._loading = asyncio.ensure_future(self._load())
        return await asyncio.shield(self._loading)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST" and not declares_json(request):
            return _error(415, "Send Content-Type: application/json.")
        if (request.content_length or 0) > request.client_max_size:
            return _error(413, "The body exceeds BRIDGE_MAX_BODY_BYTES.")
        try:
            service = await self._service()
            principal = request[PRINCIPAL]
            user = service.user(principal)
            session = request.headers.get(SESSION)
            begins = session is None and request.headers.get(REVISION, "") < MODERN
            if begins and self._sessions.is_full(principal.id):
                return _error(503, "Too many open sessions; end one, or retry later.")
            REQUEST.set(replace(observed(), binding="mcp"))
            caller = partial(self._caller, request)
            exchange = asgi.Exchange(request, principal, await request.read(), caller)
            try:
                with self._revocations.hold(principal):
                    response = await asgi.respond(exchange, service.app, user=user)
            except Unauthenticated as error:
                if exchange.response and request.transport:
                    request.transport.abort()  # the client must not see a regular end
                return exchange.response or _error(401, str(error))
            self._count(request, principal, response)
            return response
        except Missing as reason:
            return _error(404, str(reason))
        except web.HTTPRequestEntityTooLarge:
            return _error(413, "The body exceeds BRIDGE_MAX_BODY_BYTES.")

    def _count(
        self, request: web.Request, principal: Principal, response: web.StreamResponse
    ) -> None:
        """Count the session of a request, or the one that it has begun."""
        session = request.headers.get(SESSION) or response.headers.get(SESSION)
        if session is None:
            return
        if request.method == "DELETE" or response.status == 404:
            self._sessions.end(principal.id, session)
        elif response.status < 400:
            self._sessions.use(principal.id, session)


def _error(status: int, text: str) -> web.Response:
    error = {"code": INVALID_REQUEST, "message": text}
    body = orjson.dumps({"jsonrpc": "2.0", "id": None, "error": error})
    return web.Response(status=status, body=body, content_type=JSON)
