"""What the headers of a request ask for: the protocol version, extensions, the media type; and its
body as JSON."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import orjson
from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from bridge import errors
from bridge.a2a import CODECS, Codec
from bridge.a2a.card import EXTENSION

JSON = "application/json"
A2A_JSON = "application/a2a+json"
_VERSION = re.compile(r"(\d+\.\d+)(?:\.\d+)*")


def codec_for(request: web.Request, name: str, codecs: tuple[Codec, ...]) -> Codec:
    """The version that the client asked for, by header or query (§3.6): absent means 0.3, the
    patch is ignored. `codecs` are those that have what it asks for, which is called `name`."""
    wanted = request.headers.get("A2A-Version") or request.query.get("A2A-Version") or "0.3"
    match = _VERSION.fullmatch(wanted.strip())
    for codec in codecs:
        if match and codec.version == match[1]:
            return codec
    if match and any(codec.version == match[1] for codec in CODECS):
        text = f"{name} is not of A2A {wanted[:20]}; send the header A2A-Version."
    else:
        text = f"A2A {wanted[:20]!r} is not supported."
    supported = ", ".join(codec.version for codec in CODECS)
    raise errors.VersionNotSupported(text, supportedVersions=supported)


def activated_extensions(request: web.Request) -> dict[str, str]:
    """The response header that says which of the extensions that were asked for are on."""
    headers: dict[str, str] = {}
    for name in ("A2A-Extensions", "X-A2A-Extensions"):
        asked = ",".join(request.headers.getall(name, ()))
        if EXTENSION in [uri.strip() for uri in asked.split(",")]:
            headers[name] = EXTENSION
    return headers


def check_extension(request: web.Request, required: bool) -> None:
    """Raises ExtensionSupportRequired where the agent requires our extension and the request does
    not ask for it (§3.3.4)."""
    if required and not activated_extensions(request):
        text = f"This agent requires the extension {EXTENSION}; name it in A2A-Extensions."
        raise errors.ExtensionSupportRequired(text, extension=EXTENSION)


async def read_json_body(request: web.Request) -> bytes:
    """The body. Raises ContentTypeNotSupported before reading what is not declared as JSON."""
    if request.content_type not in (JSON, A2A_JSON):
        text = "Send the request with Content-Type: application/json."
        raise errors.ContentTypeNotSupported(text)
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        text = "The body is larger than this server takes (BRIDGE_MAX_BODY_BYTES)."
        raise errors.BodyTooLarge(text) from error
    except (RequestPayloadError, ConnectionError) as error:  # badly packed, or cut short
        raise errors.ParseError("The body could not be read to its end.") from error


def decode_json(body: bytes) -> Any:
    """`body` as JSON. Raises ParseError, also where an object has a member twice: who looked at the
    request before us, such as a filter, may have gone by the one that we would not see."""
    try:
        decoded = orjson.loads(body)
        json.loads(body.decode(), object_pairs_hook=_check_members)  # of which orjson says nothing
    except RecursionError:
        raise errors.ParseError("The body is nested too deeply.") from None
    except ValueError as error:
        raise errors.ParseError(f"The body is not JSON: {error}") from None
    return decoded


def _check_members(members: list[tuple[str, Any]]) -> None:
    if len(dict(members)) < len(members):
        (twice, _), *_ = Counter(name for name, _ in members).most_common(1)
        raise errors.ParseError(f"The body has an object with two members {twice[:100]!r}.")
