"""Checks of Host and Origin before routing.

A page of any site can make the operator's browser send requests to this server, and a host name
that points at 127.0.0.1 makes the page same-origin with the server (DNS rebinding). A page can
forge neither the host name nor the origin of a request, so these decide. Programs other than
browsers send no origin and pass.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from ipaddress import ip_address
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from bridge.transports.listener.refusals import (
    HEADERS_TOO_LARGE,
    HOST_NOT_ALLOWED,
    INVALID_HOST,
    ORIGIN_NOT_ALLOWED,
    SAFE,
    HttpRefusal,
)
from bridge.transports.negotiation import JSON, media_type

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
"""The host names of every server."""
MAX_HEADERS = (
    32 * 1024
)  # bytes of all headers; aiohttp limits the size of each header and the count
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
_METHODS = "GET, POST, DELETE"
_REQUEST_HEADERS = (
    "Content-Type, Authorization, A2A-Version, A2A-Extensions, X-A2A-Extensions, Last-Event-ID, "
    "Idempotency-Key, MCP-Protocol-Version, Mcp-Method, Mcp-Name, Mcp-Session-Id"
)
_RESPONSE_HEADERS = (
    "A2A-Extensions, X-A2A-Extensions, ETag, Retry-After, WWW-Authenticate, Mcp-Session-Id"
)
_MAX_AGE = "600"  # seconds that a browser caches the answer to a preflight request


class OriginCheck:
    """Rejects requests with a foreign host name or origin. `hosts`: allowed names and addresses
    besides HOSTS and the name of `public_url`. `origins`: allowed origins of web pages, in the form
    of the header Origin; none by default."""

    def __init__(
        self,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        public_url: str | None = None,
    ) -> None:
        self.change(hosts, origins, public_url)

    def change(self, hosts: Iterable[str], origins: Iterable[str], public_url: str | None) -> None:
        """Use other names and origins from the next request on."""
        public = urlsplit(public_url).hostname if public_url else None
        named = {host.lower().strip("[]").removesuffix(".") for host in hosts}
        self._hosts = HOSTS | named | ({public} if public else set())
        self._origins = frozenset(origins)

    def attach(self, app: web.Application) -> None:
        """Add the check to `app`, before its other middlewares."""
        app.middlewares.insert(0, self._middleware())
        app.on_response_prepare.append(self._prepare)

    def _middleware(self) -> Any:
        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            refused = self._refused(request)
            if refused:
                return refused.response(media_type(request, JSON))
            if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
                return _preflight(request)
            return await handler(request)

        return check

    def _refused(self, request: web.Request) -> HttpRefusal | None:
        headers = request.headers
        host = _host(request)
        if host is None:
            return INVALID_HOST
        if host not in self._hosts and not _is_own_address(host, request):
            return HOST_NOT_ALLOWED
        origins = headers.getall("Origin", None)
        if origins is not None:
            if len(origins) > 1 or origins[0] not in self._origins:
                return ORIGIN_NOT_ALLOWED
        elif headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return ORIGIN_NOT_ALLOWED  # the only hint if a page loads an image, for example
        if sum(map(len, chain.from_iterable(request.raw_headers))) > MAX_HEADERS:
            return HEADERS_TOO_LARGE
        return None

    async def _prepare(self, request: web.Request, response: web.StreamResponse) -> None:
        headers = response.headers
        for name, value in SAFE.items():
            headers.setdefault(name, value)
        if "Upgrade" in request.headers and response.status != 101:
            # This request is not upgraded. The HTTP parser drops bytes after such a request;
            # closing the connection tells the client that they were not read.
            response.force_close()
            headers["Connection"] = "close"
        if not self._origins:
            return
        vary = headers.get("Vary")
        headers["Vary"] = f"{vary}, Origin" if vary else "Origin"
        origin = request.headers.get("Origin")
        if origin in self._origins:
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = _RESPONSE_HEADERS


def _host(request: web.Request) -> str | None:
    """The requested host in lower case; None if it is missing, ambiguous or malformed."""
    given = request.headers.getall("Host", ())
    # An absolute URL as the target would take precedence over Host (RFC 9112 §3.2.2).
    if len(given) != 1 or not request.raw_path.startswith(("/", "*")):
        return None
    return _name_in(given[0])


@lru_cache(16)  # a server has few names
def _name_in(host: str) -> str | None:
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).lower().removesuffix(".") if found else None


def _is_own_address(host: str, request: web.Request) -> bool:
    """Whether `host` is the address that the client is connected to. A name does not count, since
    it could point elsewhere later. A server on all addresses learns its addresses only here."""
    try:
        own = request.get_extra_info("sockname")[0]
        return ip_address(host) == ip_address(own.partition("%")[0])
    except (ValueError, TypeError, IndexError, AttributeError):  # a name, or no TCP
        return False


def _preflight(request: web.Request) -> web.Response:
    """The answer to a preflight request of a browser."""
    headers = {
        "Access-Control-Allow-Methods": _METHODS,
        "Access-Control-Allow-Headers": _REQUEST_HEADERS,
        "Access-Control-Max-Age": _MAX_AGE,
    }
    return web.Response(status=204, headers=headers if "Origin" in request.headers else None)
