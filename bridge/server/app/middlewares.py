"""The steps of every request: authentication, errors in JSON, the page for browsers."""

from __future__ import annotations

import html
import logging
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import Any, Protocol

from aiohttp import web
from aiohttp.typedefs import Handler

from bridge.auth.principal import Principal
from bridge.auth.token_bucket import RateLimitedLogs
from bridge.errors import Forbidden, TooManyRequests, Unauthenticated, Unavailable
from bridge.server.app.sites import CARD_PATHS, Sites
from bridge.telemetry.observation import REQUEST, observed
from bridge.transports.listener.connection_limits import Connection
from bridge.transports.negotiation import prefers_html, retry_after
from bridge.transports.operation import PRINCIPAL
from bridge.transports.rest import encode_error, respond_error, respond_unrouted

log = logging.getLogger(__name__)
log.addFilter(RateLimitedLogs())


class Identify(Protocol):
    """Returns the principal of a request, or raises Unauthenticated. `known` is for requests that
    need no principal."""

    async def __call__(self, request: web.Request, /) -> Principal: ...

    async def known(self, request: web.Request, /) -> Principal | None: ...


_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Vary": "Accept",
}


async def name_response(request: web.Request, response: web.StreamResponse) -> None:
    """Send the id of the request with the response, and not the versions of the libraries."""
    response.headers.pop("Server", None)
    if REQUEST.get():
        response.headers["X-Request-Id"] = observed().id


def browser_page(sites: Sites) -> Any:
    """Middleware that answers a browser at the root with a page. The page is the same for every
    client, so it needs no authentication; it has no scripts and no styles."""
    page = Template(Path(__file__).with_name("welcome.html").read_text("utf-8"))

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        is_root = request.method in ("GET", "HEAD") and request.rel_url.raw_path == "/"
        if not (is_root and prefers_html(request)):
            return await handler(request)
        text = page.substitute(base=html.escape(sites.base(request)))
        return web.Response(text=text, content_type="text/html", headers=_PAGE_HEADERS)

    return answer


def json_errors(sites: Sites) -> Any:
    """Middleware that answers unknown paths, unknown methods and server errors with JSON. The cause
    of a server error is only in the log."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
            unknown = sites.unknown(request.path)
            if unknown is None:
                return respond_unrouted(request, error)
            shown = {"text": unknown} if PRINCIPAL in request else {}  # others see no agents
            return respond_unrouted(request, web.HTTPNotFound(), **shown)
        except (web.HTTPException, ConnectionError):
            raise
        except Exception as error:
            log.exception("request failed", extra={"event": "request.failed"})
            return respond_error(request, encode_error(error))

    return answer


def authentication(identity: Identify) -> Any:
    """Middleware that requires a known principal, except for cards, /health and /ready. /health has
    more members for a known one."""

    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        # The raw path: an encoded slash is part of an id and does not make it a card path.
        if request.rel_url.raw_path.endswith(CARD_PATHS) or request.path == "/ready":
            return await handler(request)
        if request.path == "/health":
            known = await identity.known(request)
            if known:
                request[PRINCIPAL] = known
            return await handler(request)
        try:
            principal = await identity(request)
        except (Forbidden, TooManyRequests, Unauthenticated, Unavailable) as error:
            response = respond_error(request, encode_error(error))
            response.headers.update(retry_after(error))
            if isinstance(error, Unauthenticated):
                response.headers["WWW-Authenticate"] = 'Bearer realm="coding-agent-bridge"'
            return response
        request[PRINCIPAL] = principal
        if isinstance(request.protocol, Connection):
            request.protocol.known = True
        REQUEST.set(replace(observed(), principal=principal.id))
        return await handler(request)

    return authenticate
