"""The errors that the listener itself answers, for requests that reach no binding."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

import orjson
from aiohttp import web
from aiohttp.http import HttpProcessingError
from aiohttp.http_exceptions import LineTooLong

from bridge.a2a.codec import ERROR_DOMAIN
from bridge.transports.negotiation import JSON

LONGEST_TARGET = 8192  # bytes of the request line
LONGEST_FIELD = 8190  # bytes of one header; a different number, because errors show only the limit
SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
"""Headers of every answer: a browser must neither guess its type nor show it in a frame."""


@dataclass(frozen=True, slots=True)
class HttpRefusal:
    """An error in the format of the HTTP+JSON binding, for a request that reaches no binding. It
    repeats no part of the request. `name` is the code of google.rpc."""

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

    def raw(self, *headers: str) -> bytes:
        """The bytes of an answer outside of aiohttp's request handling."""
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            "Content-Type: application/json",
            f"Content-Length: {len(self.body)}",
            "Connection: close",
            *headers,
            *(f"{name}: {value}" for name, value in SAFE.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


INVALID_HOST = HttpRefusal(
    400,
    "INVALID_ARGUMENT",
    "INVALID_HOST",
    "Send one Host header, and a path as the request target.",
)
HOST_NOT_ALLOWED = HttpRefusal(
    421,
    "FAILED_PRECONDITION",
    "HOST_NOT_ALLOWED",
    "This host name is not allowed. The operator can add it to BRIDGE_ALLOWED_HOSTS.",
)
ORIGIN_NOT_ALLOWED = HttpRefusal(
    403,
    "PERMISSION_DENIED",
    "ORIGIN_NOT_ALLOWED",
    "This origin is not allowed. The operator can add it to BRIDGE_ALLOWED_ORIGINS.",
)
HEADERS_TOO_LARGE = HttpRefusal(
    431, "INVALID_ARGUMENT", "HEADERS_TOO_LARGE", "The headers are too large."
)
REQUEST_TIMEOUT = HttpRefusal(
    408, "DEADLINE_EXCEEDED", "REQUEST_TIMEOUT", "The request was not complete in time."
)
TOO_MANY_CONNECTIONS = HttpRefusal(
    503, "UNAVAILABLE", "TOO_MANY_CONNECTIONS", "Too many connections. Retry later."
)
MALFORMED_REQUEST = HttpRefusal(
    400, "INVALID_ARGUMENT", "MALFORMED_REQUEST", "The request is not valid HTTP."
)
URI_TOO_LONG = HttpRefusal(414, "INVALID_ARGUMENT", "URI_TOO_LONG", "The URL is too long.")
REFUSALS = (
    INVALID_HOST,
    HOST_NOT_ALLOWED,
    ORIGIN_NOT_ALLOWED,
    HEADERS_TOO_LARGE,
    REQUEST_TIMEOUT,
    TOO_MANY_CONNECTIONS,
    MALFORMED_REQUEST,
    URI_TOO_LONG,
)
"""The errors that any request may get."""


def refusal_of(error: HttpProcessingError) -> HttpRefusal:
    """The answer to a request that the parser rejects (RFC 9110 §15.5.15, RFC 6585 §5)."""
    if isinstance(error, LineTooLong):
        return URI_TOO_LONG if LONGEST_TARGET in error.args else HEADERS_TOO_LARGE
    return HEADERS_TOO_LARGE if "Too many headers" in error.message else MALFORMED_REQUEST
