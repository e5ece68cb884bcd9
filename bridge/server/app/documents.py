"""JSON documents with caching headers: a client may keep its copy (§8.6)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate, parsedate_to_datetime
from typing import Any

import orjson
from aiohttp import web

MAX_AGE = 60  # seconds; a card changes only with a restart of the server


@dataclass(frozen=True, slots=True)
class Document:
    """JSON that does not change while the server runs. `tag` identifies it; `headers` are the
    caching headers (§8.6); `changed` is in seconds since 1970."""

    data: bytes
    tag: str
    changed: float
    headers: Mapping[str, str]

    @classmethod
    def of(cls, body: Mapping[str, Any], changed: float, scope: str = "public") -> Document:
        """`scope`: the caches that may store it, public or private."""
        data = orjson.dumps(body)
        tag = hashlib.sha256(data).hexdigest()[:32]
        headers = {
            "ETag": f'"{tag}"',
            "Last-Modified": formatdate(changed, usegmt=True),
            "Cache-Control": f"{scope}, max-age={MAX_AGE}",
            "Vary": "Host",
        }
        return cls(data, tag, changed, headers)


def cached(request: web.Request, document: Document) -> web.Response:
    """`document`, or 304 if the copy of the client is valid."""
    if _is_fresh(request, document):
        return web.Response(status=304, headers=document.headers)
    return web.Response(
        body=document.data, headers=document.headers, content_type="application/json"
    )


def _is_fresh(request: web.Request, document: Document) -> bool:
    if request.if_none_match is not None:  # it has precedence (RFC 9110 §13.2.2)
        return any(given.value in (document.tag, "*") for given in request.if_none_match)
    since = request.headers.get("If-Modified-Since")
    try:
        changed = int(document.changed)
        return since is not None and parsedate_to_datetime(since).timestamp() >= changed
    except (ValueError, OverflowError):  # not a date
        return False
