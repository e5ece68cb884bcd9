"""What the headers of a request ask for: the protocol version, extensions, the media type; and its
body as JSON."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from bridge import errors
from bridge.a2a import CODECS, Codec, codec_of
from bridge.a2a.card import EXTENSION

JSON = "application/json"
A2A_JSON = "application/a2a+json"
_TYPES = (A2A_JSON, JSON)  # the first wins where the client wants both alike
_QUALITY = re.compile(r"q=([01](?:\.[0-9]{0,3})?)")
MAX_DEPTH = 64  # levels of nested JSON in a request
MAX_TOKENS = 250_000  # strings, brackets and commas in it; text of any length is one
AT_ONCE = 64 * 1024  # bytes of JSON that are decoded while everybody else waits
_LARGE = ThreadPoolExecutor(1, "json")  # for more; one at a time, so that the others get their turn
_FORMS = frozenset({"text/plain", "multipart/form-data", "application/x-www-form-urlencoded"})
"""What a web page may send anywhere without asking."""
_TOO_LARGE = "The body is larger than this server takes (BRIDGE_MAX_BODY_BYTES)."
_VERSION = re.compile(r"(\d+\.\d+)(?:\.\d+)*")
# One that never ends goes to the end of the text, so that nobody looks there again and again.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_PIECE = 64 * 1024
_BRACKETS = b"[]{}"
_OTHERS = bytes(set(range(256)) - set(_BRACKETS))
_DEEPER = bytes.maketrans(_BRACKETS, b"\1\0\1\0")


def codec_for(request: web.Request, name: str, codecs: tuple[Codec, ...]) -> Codec:
    """The version that the client asked for, by header or query (§3.6): absent means 0.3, the
    patch is ignored; extended, if it asks for our extension. `codecs` are those that have what it
    asks for, which is called `name`."""
    wanted = request.headers.get("A2A-Version") or request.query.get("A2A-Version") or "0.3"
    match = _VERSION.fullmatch(wanted.strip())
    for codec in codecs:
        if match and codec.version == match[1]:
            return codec_of(codec.version, bool(activated_extensions(request)))
    versions = " or ".join(codec.version for codec in codecs)
    if match and any(codec.version == match[1] for codec in CODECS):
        text = f"{name} is not of A2A {wanted[:20]}; send the header A2A-Version: {versions}."
    else:
        text = f"A2A {wanted[:20]!r} is not supported; send the header A2A-Version: {versions}."
    supported = ", ".join(codec.version for codec in CODECS)
    raise errors.VersionNotSupported(text, supportedVersions=supported)


def retry_after(error: Exception) -> dict[str, str]:
    """The response header that says when to try again, where the error knows."""
    if isinstance(error, errors.TooManyRequests | errors.Unavailable):
        return {"Retry-After": str(error.seconds)}
    return {}


def activated_extensions(request: web.Request) -> dict[str, str]:
    """The response header that says which of the extensions that were asked for are on."""
    headers: dict[str, str] = {}
    for name in ("A2A-Extensions", "X-A2A-Extensions"):
        asked = ",".join(request.headers.getall(name, ()))
        if EXTENSION in [uri.strip() for uri in asked.split(",")]:
            headers[name] = EXTENSION
    return headers


def media_type(request: web.Request, default: str) -> str:
    """The type of the answer's JSON: what the client prefers by Accept, else what it sends itself,
    else `default`."""
    accepted = _accepted(request)
    best = max(accepted.get(name, 0.0) for name in _TYPES)
    if best:
        return next(name for name in _TYPES if accepted.get(name) == best)
    return request.content_type if request.content_type in _TYPES else default


def prefers_html(request: web.Request) -> bool:
    """Whether the client is a browser, which names HTML and no JSON that it would rather have."""
    accepted = _accepted(request)
    wanted = accepted.get("text/html", 0.0)
    return wanted > 0 and all(accepted.get(name, 0.0) < wanted for name in _TYPES)


def _accepted(request: web.Request) -> dict[str, float]:
    """How much the client wants each type that its Accept names."""
    accepted: dict[str, float] = {}
    for one in ",".join(request.headers.getall("Accept", ())).split(","):
        name, *parameters = (piece.strip().lower() for piece in one.split(";"))
        accepted[name] = max(accepted.get(name, 0.0), _quality(parameters))
    return accepted


def _quality(parameters: Iterable[str]) -> float:
    """How much the client wants a type of Accept (RFC 9110 §12.4.2)."""
    for one in parameters:
        found = _QUALITY.fullmatch(one)
        if found:
            return float(found[1])
    return 1.0


def shows_retry(request: web.Request) -> bool:
    """Whether the client is one that retries with the same messageId: it activates our extension,
    resumes a stream, or sends an Idempotency-Key, whose value does not matter. Other clients send
    one id for several messages, the official test suites for example."""
    resumes = any(name in request.headers for name in ("Last-Event-ID", "Idempotency-Key"))
    return resumes or bool(activated_extensions(request))


def check_extension(request: web.Request, required: bool) -> None:
    """Raises ExtensionSupportRequired where the agent requires our extension and the request does
    not ask for it (§3.3.4)."""
    if required and not activated_extensions(request):
        text = f"This agent requires the extension {EXTENSION}; name it in A2A-Extensions."
        raise errors.ExtensionSupportRequired(text, extension=EXTENSION)


def declares_json(request: web.Request) -> bool:
    """Whether the body is JSON by its headers, and not packed."""
    packed = request.headers.get("Content-Encoding", "identity").strip().lower() != "identity"
    return request.content_type in (JSON, A2A_JSON) and not packed


async def read_json(request: web.Request, empty: Any = None) -> Any:
    """The body as JSON; `empty` where there is none, if that is given. Raises, before it reads
    anything, ContentTypeNotSupported for what is not declared as JSON: of all that may start an
    agent, a page of another site could send it without asking. Raises BodyTooLarge, and what
    decode_json() does."""
    if empty is not None and not request.body_exists and request.content_type not in _FORMS:
        return empty
    if not declares_json(request):
        text = "Send the request with Content-Type: application/json, and no Content-Encoding."
        raise errors.ContentTypeNotSupported(text)
    if (request.content_length or 0) > request.client_max_size:
        raise errors.BodyTooLarge(_TOO_LARGE)
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise errors.BodyTooLarge(_TOO_LARGE) from error
    except (RequestPayloadError, ConnectionError) as error:  # badly packed, or cut short
        raise errors.ParseError("The body could not be read to its end.") from error
    if empty is not None and not body.strip():
        return empty
    if len(body) <= AT_ONCE:
        return decode_json(body)
    return await asyncio.get_running_loop().run_in_executor(_LARGE, decode_json, body)


def decode_json(body: bytes) -> Any:
    """`body` as JSON. Raises ParseError for what is none, and InvalidRequest for JSON that is
    correct and beyond our limits. An object may not have a member twice: a filter in front of the
    server may decide by the one that the server does not see. Nor may an integer have more than 64
    bits, since parsers differ in how they read it; an `id` at the top may, and keeps its digits."""
    _check_shape(body)
    try:
        decoded = orjson.loads(body)  # it does not tell of members twice, nor of long integers
        text = body.decode()
        try:
            _CHECK.decode(text)
        except _Large:
            large = _large_id(text)  # raises _Twice where both are the case
            if large is None:
                raise
            decoded["id"] = orjson.Fragment(large)
    except _Large:
        text = "The body has an integer of more than 64 bits."
        raise errors.InvalidRequest(text, decoded) from None
    except _Twice as twice:
        text = f"The body has an object with two members {str(twice)[:100]!r}."
        raise errors.InvalidRequest(text, decoded if _has_one_id(body) else None) from None
    except ValueError as error:
        raise _refusal(body, str(error)) from None
    return decoded


def _refusal(body: bytes, problem: str) -> errors.RequestError:
    """Why a body is refused that orjson does not read: it may be correct JSON with a number or a
    text that cannot be represented."""
    try:
        decoded = _LENIENT.decode(body.decode())
    except ValueError:
        return errors.ParseError(f"The body is not JSON: {problem}")
    return errors.InvalidRequest(f"The body cannot be represented here: {problem}", decoded)


def _small(digits: str) -> int | None:
    return None if _is_large(digits) else int(digits)


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class _Large(Exception):
    """There is an integer of more than 64 bits."""


def _is_large(digits: str) -> bool:
    return len(digits) > 18 and (len(digits) > 20 or not -(2**63) <= int(digits) < 2**64)


def _check_size(digits: str) -> None:
    if _is_large(digits):
        raise _Large


def _has_one_id(body: bytes) -> bool:
    top = json.loads(body, object_pairs_hook=lambda members: [name for name, _ in members])
    return isinstance(top, list) and top.count("id") == 1


class _Twice(Exception):
    """There is an object with two members of this name."""


def _large_id(body: str) -> str | None:
    """The digits of the `id` at the top; None if there is another large integer."""
    large: list[str] = []

    def note(digits: str) -> _Digits:
        if _is_large(digits):
            large.append(digits)
        return _Digits(digits)

    json.loads(body, object_pairs_hook=_check_members, parse_int=note)
    exact = json.loads(body, parse_int=_Digits)
    named = exact.get("id") if isinstance(exact, dict) else None
    return str(named) if large == [named] and isinstance(named, _Digits) else None


class _Digits(str):
    """An integer as it is written."""


def _check_members(members: list[tuple[str, Any]]) -> None:
    if len(dict(members)) < len(members):
        (twice, _), *_ = Counter(name for name, _ in members).most_common(1)
        raise _Twice(twice)


_CHECK = json.JSONDecoder(object_pairs_hook=_check_members, parse_int=_check_size)
_LENIENT = json.JSONDecoder(parse_int=_small, parse_constant=_no_number)


def _check_shape(body: bytes) -> None:
    """Raises InvalidRequest for what is nested too deeply or has too many members, before anything
    is built of it. The time that it takes depends on their number, not on their size."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH and len(body) <= MAX_TOKENS:
        return
    depth = tokens = 0
    for piece in _outside_of_strings(body):
        brackets = piece.translate(_DEEPER, _OTHERS)
        tokens += 1 + len(brackets) + piece.count(b",")
        if tokens > MAX_TOKENS:
            raise errors.InvalidRequest(f"The body has more than {MAX_TOKENS} members.")
        for deeper in brackets:
            depth += 1 if deeper else -1
            if depth > MAX_DEPTH:
                text = f"The body is nested more than {MAX_DEPTH} levels deep."
                raise errors.InvalidRequest(text)


def _outside_of_strings(body: bytes) -> Iterator[bytes]:
    end = 0
    for string in _STRING.finditer(body):
        for start in range(end, string.start(), _PIECE):
            yield body[start : min(start + _PIECE, string.start())]
        end = string.end()
    for start in range(end, len(body), _PIECE):
        yield body[start : start + _PIECE]
