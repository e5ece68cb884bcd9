"""The protocol version, extensions and media type that the headers of a request select."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from aiohttp import web
from multidict import MultiMapping

from bridge import errors
from bridge.a2a.card import EXTENSION
from bridge.a2a.codec import Codec
from bridge.a2a.codecs import CODECS, EXTENDED

JSON = "application/json"
A2A_JSON = "application/a2a+json"
_TYPES = (A2A_JSON, JSON)  # the first one wins at equal quality
_QUALITY = re.compile(r"q=([01](?:\.[0-9]{0,3})?)")
_VERSION = re.compile(r"(\d+\.\d+)(?:\.\d+)*")


class ServiceParameters(Protocol):
    """The service parameters of a request of any binding: a request of aiohttp, or metadata. The
    names of `headers` ignore case."""

    @property
    def headers(self) -> MultiMapping[str]: ...

    @property
    def query(self) -> Mapping[str, Any]: ...


def codec_of(version: str, extended: bool) -> Codec:
    """The codec of a supported version; `extended`: of a client that activates EXTENSION."""
    return next(one for one in (EXTENDED if extended else CODECS) if one.version == version)


def codec_for(request: ServiceParameters, name: str, codecs: tuple[Codec, ...]) -> Codec:
    """The codec of the version in the header or the query (§3.6). Without a version it is the
    oldest; the patch number is ignored. The codec is extended if the client activates EXTENSION.
    `codecs`: the versions that have the method or path `name`. Raises VersionNotSupported."""
    oldest = CODECS[-1].version
    wanted = request.headers.get("A2A-Version") or request.query.get("A2A-Version") or oldest
    match = _VERSION.fullmatch(wanted.strip())
    for codec in codecs:
        if match and codec.version == match[1]:
            extended = bool(activated_extensions(request))
            return codec_of(codec.version, extended) if extended else codec
    versions = " or ".join(codec.version for codec in codecs)
    if match and any(codec.version == match[1] for codec in CODECS):
        text = f"{name} is part of A2A {versions}, not {wanted[:20]}."
    else:
        text = f"A2A {wanted[:20]!r} is not supported."
    text = f"{text} Send A2A-Version: {versions}; without it the request is read as {oldest}."
    supported = ", ".join(codec.version for codec in CODECS)
    raise errors.VersionNotSupported(text, supportedVersions=supported)


def retry_after(error: Exception) -> dict[str, str]:
    """The response header Retry-After for errors that have a delay."""
    if isinstance(error, errors.TooManyRequests | errors.Unavailable):
        return {"Retry-After": str(error.seconds)}
    return {}


def activated_extensions(request: ServiceParameters) -> dict[str, str]:
    """The response headers for the extensions that the client activates."""
    headers: dict[str, str] = {}
    for name in ("A2A-Extensions", "X-A2A-Extensions"):
        if name in request.headers:
            asked = ",".join(request.headers.getall(name))
            if EXTENSION in [uri.strip() for uri in asked.split(",")]:
                headers[name] = EXTENSION
    return headers


def media_type(request: web.Request, default: str) -> str:
    """The media type of the answer: the preferred one of Accept, else the one of the request body,
    else `default`."""
    accepted = _accepted(request)
    best = max(accepted.get(name, 0.0) for name in _TYPES)
    if best:
        return next(name for name in _TYPES if accepted.get(name) == best)
    return request.content_type if request.content_type in _TYPES else default


def prefers_html(request: web.Request) -> bool:
    """Whether the client is a browser: its Accept prefers HTML to JSON."""
    accepted = _accepted(request)
    wanted = accepted.get("text/html", 0.0)
    return wanted > 0 and all(accepted.get(name, 0.0) < wanted for name in _TYPES)


def _accepted(request: web.Request) -> dict[str, float]:
    """The quality of each media type in Accept."""
    accepted: dict[str, float] = {}
    for one in ",".join(request.headers.getall("Accept", ())).split(","):
        name, *parameters = (piece.strip().lower() for piece in one.split(";"))
        accepted[name] = max(accepted.get(name, 0.0), _quality(parameters))
    return accepted


def _quality(parameters: Iterable[str]) -> float:
    """The quality of a media type (RFC 9110 §12.4.2)."""
    for one in parameters:
        found = _QUALITY.fullmatch(one)
        if found:
            return float(found[1])
    return 1.0


def shows_retry(request: ServiceParameters) -> bool:
    """Whether the client retries with the same messageId: it resumes a stream, or sends an
    Idempotency-Key of any value. A client that activates EXTENSION also does. Others, such as the
    official test suites, use one id for several messages."""
    return "Last-Event-ID" in request.headers or "Idempotency-Key" in request.headers


def declares_json(request: web.Request) -> bool:
    """Whether the headers declare a body of JSON without compression."""
    compressed = request.headers.get("Content-Encoding", "identity").strip().lower() != "identity"
    return request.content_type in (JSON, A2A_JSON) and not compressed
