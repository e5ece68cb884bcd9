"""The body of a request as JSON, within limits that all parsers agree on, and large results.

To encode a large task takes a second. A thread does it in pieces, between which the event loop can
run.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import orjson
from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from bridge import errors
from bridge.task.state import Task
from bridge.transports.negotiation import declares_json

T = TypeVar("T")

MAX_DEPTH = 64  # levels of nested JSON in a request
MAX_TOKENS = 250_000  # strings, brackets and commas; a string of any length counts as one
AT_ONCE = 64 * 1024  # bytes of JSON that are decoded on the event loop
LARGE = ThreadPoolExecutor(1, "json")  # for larger bodies; one at a time, to leave a core free
ENCODED_AT_ONCE = 1024 * 1024  # bytes of a task that is encoded on the event loop
_MESSAGE = 1024  # bytes of text that take as long as a short message
_ENCODER = ThreadPoolExecutor(1, "large-json")  # one at a time, too: the JSON takes memory
_PIECE_OF_TEXT = 256 * 1024  # characters of a text that are encoded at once
_FEW = 64  # members of a list that are encoded at once
_DEEPEST = 8  # levels in which large texts are looked for: those of a page with artifacts
_FORMS = frozenset({"text/plain", "multipart/form-data", "application/x-www-form-urlencoded"})
"""The media types that a web page may send to any site without a preflight request."""
_TOO_LARGE = "The body exceeds BRIDGE_MAX_BODY_BYTES."
# An unterminated string extends to the end of the text, so that the search is linear.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_PIECE = 64 * 1024
_BRACKETS = b"[]{}"
_OTHERS = bytes(set(range(256)) - set(_BRACKETS))
_DEEPER = bytes.maketrans(_BRACKETS, b"\1\0\1\0")


async def read_json(request: web.Request, empty: Any = None) -> Any:
    """The body as JSON, or `empty` for a request without a body if `empty` is given. Raises
    ContentTypeNotSupported before it reads the body unless the headers declare JSON: a page of
    another site could send other types without a preflight request. Raises BodyTooLarge, and the
    errors of decode_json()."""
    if empty is not None and not request.body_exists and request.content_type not in _FORMS:
        return empty
    if not declares_json(request):
        text = "Send Content-Type: application/json, and no Content-Encoding."
        raise errors.ContentTypeNotSupported(text)
    if (request.content_length or 0) > request.client_max_size:
        raise errors.BodyTooLarge(_TOO_LARGE)
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise errors.BodyTooLarge(_TOO_LARGE) from error
    except (RequestPayloadError, ConnectionError, RuntimeError) as error:
        # A bad encoding, or an early end: aiohttp raises RuntimeError if it came before the read.
        raise errors.ParseError("The body is incomplete.") from error
    if empty is not None and not body.strip():
        return empty
    if len(body) <= AT_ONCE:
        return decode_json(body)
    return await asyncio.get_running_loop().run_in_executor(LARGE, decode_json, body)


def decode_json(body: bytes) -> Any:
    """`body` as JSON. Raises ParseError for other text, and InvalidRequest for JSON beyond the
    limits. Parsers differ in how they read two members of one name and integers above 64 bits, so
    that a filter in front of the server could see another request; both are rejected."""
    _check_shape(body)
    try:
        decoded = orjson.loads(body)  # it accepts both
        _CHECK.decode(body.decode())
    except _Ambiguous as problem:
        readable = _LENIENT.decode(body.decode()) if _has_one_id(body) else None
        raise errors.InvalidRequest(str(problem), readable) from None
    except ValueError as error:
        raise _rejection(body, str(error)) from None
    return decoded


def _rejection(body: bytes, problem: str) -> errors.RequestError:
    """The error for a body that orjson rejects. It may be correct JSON with a number or a text
    that orjson cannot represent."""
    try:
        decoded = _LENIENT.decode(body.decode())
    except ValueError:
        return errors.ParseError(f"The body is not JSON: {problem}")
    return errors.InvalidRequest(f"The server cannot represent the body: {problem}", decoded)


class _Ambiguous(Exception):
    """Parsers differ in how they read the body. `str(error)` says where."""


def _is_large(digits: str) -> bool:
    return len(digits) > 18 and (len(digits) > 20 or not -(2**63) <= int(digits) < 2**64)


def _check_size(digits: str) -> None:
    if _is_large(digits):
        raise _Ambiguous("The body has an integer of more than 64 bits.")


def _check_members(members: list[tuple[str, Any]]) -> None:
    if len(dict(members)) < len(members):
        (twice, _), *_ = Counter(name for name, _ in members).most_common(1)
        raise _Ambiguous(f"The body has an object with two members {twice[:100]!r}.")


def _small(digits: str) -> int | None:
    return None if _is_large(digits) else int(digits)


def _reject(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _has_one_id(body: bytes) -> bool:
    top = _NAMES.decode(body.decode())
    return isinstance(top, list) and top.count("id") == 1


_CHECK = json.JSONDecoder(object_pairs_hook=_check_members, parse_int=_check_size)
_LENIENT = json.JSONDecoder(parse_int=_small, parse_constant=_reject)
_NAMES = json.JSONDecoder(
    object_pairs_hook=lambda members: [name for name, _ in members], parse_int=_small
)


def _check_shape(body: bytes) -> None:
    """Raise InvalidRequest for too many levels or members, before any object is created. The time
    depends on the number of members, not on their size."""
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


# --- results -----------------------------------------------------------------------------------


async def in_thread(call: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(_ENCODER, call, *arguments)


def is_large(size: int, *tasks: Task) -> bool:
    """Whether the tasks, which take `size` bytes in the store, are too large to be encoded on the
    event loop."""
    return size + _MESSAGE * sum(len(task.history) for task in tasks) > ENCODED_AT_ONCE


async def encoded(encode: Callable[..., Any], *tasks: Task, size: int) -> Any:
    """The JSON of the tasks, which take `size` bytes in the store, in their present state. If they
    are large, it is an orjson.Fragment."""
    if not is_large(size, *tasks):
        return encode(*tasks)
    snapshots = [task.snapshot() for task in tasks]
    del tasks
    return await in_thread(_fragment, encode, snapshots)


def _fragment(encode: Callable[..., Any], tasks: list[Task]) -> orjson.Fragment:
    """Also frees the tasks: to free a hundred thousand updates takes a turn of its own."""
    found = orjson.Fragment(b"".join(pieces(encode(*tasks, seal=_sealed))))
    tasks.clear()
    return found


def _sealed(encoded: dict[str, Any]) -> orjson.Fragment:
    long = any(len(part.get("text", "")) > _PIECE_OF_TEXT for part in encoded["parts"])
    return orjson.Fragment(b"".join(pieces(encoded)) if long else orjson.dumps(encoded))


async def dumped(result: Any) -> bytes:
    """The JSON of a result. To copy a large one takes a turn of its own."""
    if isinstance(result, orjson.Fragment):
        return await in_thread(orjson.dumps, result)
    return orjson.dumps(result)


async def joined(*parts: bytes) -> bytes:
    """The parts as one text. The interpreter is free while a thread joins large ones."""
    if sum(map(len, parts)) > ENCODED_AT_ONCE:
        return await in_thread(b"".join, parts)
    return b"".join(parts)


def pieces(value: Any, depth: int = 0) -> Iterator[bytes]:
    """The JSON of `value`. A call of orjson keeps the interpreter to itself until it returns."""
    match value:
        case str() if len(value) > _PIECE_OF_TEXT:
            yield b'"'
            for start in range(0, len(value), _PIECE_OF_TEXT):
                yield orjson.dumps(value[start : start + _PIECE_OF_TEXT])[1:-1]
            yield b'"'
        case dict() if depth < _DEEPEST and value:
            for number, (name, one) in enumerate(value.items()):
                yield b"%b%b:" % (b"," if number else b"{", orjson.dumps(name))
                yield from pieces(one, depth + 1)
            yield b"}"
        case list() if len(value) > _FEW:
            for start in range(0, len(value), _FEW):
                some = orjson.dumps(value[start : start + _FEW])
                yield (b"," if start else b"[") + some[1:-1]
            yield b"]"
        case list() if depth < _DEEPEST and value:
            for number, one in enumerate(value):
                yield b"," if number else b"["
                yield from pieces(one, depth + 1)
            yield b"]"
        case _:
            yield orjson.dumps(value)
