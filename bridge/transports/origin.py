"""Who may speak to the server at all, before anything is routed: the names that it answers to, and
which web pages.

A page of any site can make the browser of whoever runs this server send requests to it, and a name
that its owner points at 127.0.0.1 makes that page the server's own in the browser's eyes (DNS
rebinding). Neither the name nor the origin of a request can be forged by a page, so they decide.
Programs that are not browsers send no origin and pass.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

import orjson
from aiohttp import web

from bridge.a2a.codec import ERROR_DOMAIN
from bridge.transports.negotiation import JSON, media_type

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
"""The names that a server has wherever it runs."""
MAX_HEADERS = 32 * 1024  # bytes of all headers together; aiohttp bounds each one and their number
SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
"""On every answer: a browser must neither guess what it is nor show it inside of another page."""
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
_METHODS = "GET, POST, DELETE"
_SENT = (
    "Content-Type, Authorization, A2A-Version, A2A-Extensions, X-A2A-Extensions, Last-Event-ID, "
    "Idempotency-Key"
)
_SEEN = "A2A-Extensions, X-A2A-Extensions, ETag, Retry-After, WWW-Authenticate"
_REMEMBERED = "600"  # seconds that a browser need not ask again


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer in the shape of the HTTP+JSON binding, to what has not come as far as a binding.
    It says nothing of what was sent. `name` is the code of google.rpc."""

    status: int
    name: str
    reason: str
    text: str

    @property
    def body(self) -> bytes:
        info = {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": self.reason,
            "domain": ERROR_DOMAIN,
            "metadata": {},
        }
        error = {"code": self.status, "status": self.name, "message": self.text}
        return orjson.dumps({"error": {**error, "details": [info]}})

    def response(self, content_type: str = JSON) -> web.Response:
        return web.Response(
            status=self.status, body=self.body, content_type=content_type, headers=SAFE
        )


_MALFORMED = Refusal(
    400, "INVALID_ARGUMENT", "INVALID_HOST", "Send one Host header, and a path as the target."
)
_MISDIRECTED = Refusal(
    421,
    "FAILED_PRECONDITION",
    "HOST_NOT_ALLOWED",
    "This server does not answer to that host name; its operator can add it to "
    "BRIDGE_ALLOWED_HOSTS.",
)
_FOREIGN = Refusal(
    403,
    "PERMISSION_DENIED",
    "ORIGIN_NOT_ALLOWED",
    "Web pages of that origin may not use this server; its operator can add it to "
    "BRIDGE_ALLOWED_ORIGINS.",
)
TOO_LONG = Refusal(431, "INVALID_ARGUMENT", "HEADERS_TOO_LARGE", "The headers are too large.")
REFUSALS = (_MALFORMED, _MISDIRECTED, _FOREIGN, TOO_LONG)
"""What any request may be answered here."""


class Gate:
    """`hosts`: names and addresses that clients may use beside HOSTS; `public_url` has another.
    `origins`: the web pages that may use the server, as browsers write them; none by default."""

    def __init__(
        self,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        public_url: str | None = None,
    ) -> None:
        public = urlsplit(public_url).hostname if public_url else None
        named = {host.lower().strip("[]").removesuffix(".") for host in hosts}
        self._hosts = HOSTS | named | ({public} if public else set())
        self._origins = frozenset(origins)

    def attach(self, app: web.Application) -> None:
        """Put the gate before everything else of `app`."""
        app.middlewares.insert(0, self._middleware())
        app.on_response_prepare.append(self._prepare)

    def _middleware(self) -> Any:
        @web.middleware
        async def gate(request: web.Request, handler: Handler) -> web.StreamResponse:
            refused = self._refused(request)
            if refused:
                return refused.response(media_type(request, JSON))
            if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
                return _preflight(request)
            return await handler(request)

        return gate

    def _refused(self, request: web.Request) -> Refusal | None:
        headers = request.headers
        host = _host(request)
        if host is None:
            return _MALFORMED
        if host not in self._hosts and not _is_own_address(host, request):
            return _MISDIRECTED
        origins = headers.getall("Origin", None)
        if origins is not None:
            if len(origins) > 1 or origins[0] not in self._origins:
                return _FOREIGN
        elif headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return _FOREIGN  # a browser says no more than this where a page loads, say, an image
        if sum(map(len, chain.from_iterable(request.raw_headers))) > MAX_HEADERS:
            return TOO_LONG
        return None

    async def _prepare(self, request: web.Request, response: web.StreamResponse) -> None:
        headers = response.headers
        for name, value in SAFE.items():
            headers.setdefault(name, value)
        if "Upgrade" in request.headers:
            # No protocol is upgraded to. The HTTP parser drops bytes that follow such a request, so
            # a client that has sent more must learn that it was not read.
            response.force_close()
            headers["Connection"] = "close"
        if not self._origins:
            return
        vary = headers.get("Vary")
        headers["Vary"] = f"{vary}, Origin" if vary else "Origin"
        origin = request.headers.get("Origin")
        if origin in self._origins:
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = _SEEN


def _host(request: web.Request) -> str | None:
    """The host that the client means, in lower case; None where it says that in no proper way."""
    given = request.headers.getall("Host", ())
    # A whole URL as the target would count instead of Host, if anybody looked at it.
    if len(given) != 1 or not request.raw_path.startswith(("/", "*")):
        return None
    return _name_in(given[0])


@lru_cache(16)  # clients know a server by few names
def _name_in(host: str) -> str | None:
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).lower().removesuffix(".") if found else None


def _is_own_address(host: str, request: web.Request) -> bool:
    """Whether `host` is the very address that the client is connected to: no name, which could
    lead elsewhere tomorrow. A server that listens on all addresses does not know them before."""
    try:
        own = request.get_extra_info("sockname")[0]
        return ip_address(host) == ip_address(own.partition("%")[0])
    except (ValueError, TypeError, IndexError, AttributeError):  # a name, or no TCP
        return False


def _preflight(request: web.Request) -> web.Response:
    """What a browser asks on behalf of a page before it sends what is not a plain form."""
    headers = {
        "Access-Control-Allow-Methods": _METHODS,
        "Access-Control-Allow-Headers": _SENT,
        "Access-Control-Max-Age": _REMEMBERED,
    }
    return web.Response(status=204, headers=headers if "Origin" in request.headers else None)
