"""Answers with a large task. To encode one takes a second, and each copy of its JSON keeps the
event loop, too. So a thread encodes it in pieces, between which the event loop can run, and the
event loop writes it in pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import orjson
from aiohttp import web

from bridge.task.state import Task

T = TypeVar("T")

LARGE = 1024 * 1024  # bytes of a task or an answer that is too large for one turn of the loop
PIECE = 256 * 1024  # bytes of one write, and characters of a text that are encoded at once
FEW = 64  # members of a list that are encoded at once
DEEPEST = 8  # levels of JSON in which large texts are looked for: those of a page with artifacts
_ENCODER = ThreadPoolExecutor(1, "large-json")  # one at a time, to leave a core and memory free


async def in_thread(call: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(_ENCODER, call, *arguments)


async def encoded(encode: Callable[..., Any], *tasks: Task, size: int) -> Any:
    """The JSON of the tasks, which take `size` bytes in the store, in their present state. If they
    are large, it is an orjson.Fragment."""
    if size < LARGE:
        return encode(*tasks)
    return await in_thread(_fragment, encode, [task.snapshot() for task in tasks])


def _fragment(encode: Callable[..., Any], tasks: Sequence[Task]) -> orjson.Fragment:
    return orjson.Fragment(b"".join(pieces(encode(*tasks))))


def pieces(value: Any, depth: int = 0) -> Iterator[bytes]:
    """The JSON of `value`. A call of orjson keeps the interpreter to itself until it returns."""
    match value:
        case str() if len(value) > PIECE:
            yield b'"'
            for start in range(0, len(value), PIECE):
                yield orjson.dumps(value[start : start + PIECE])[1:-1]
            yield b'"'
        case dict() if depth < DEEPEST and value:
            for number, (name, one) in enumerate(value.items()):
                yield b"%b%b:" % (b"," if number else b"{", orjson.dumps(name))
                yield from pieces(one, depth + 1)
            yield b"}"
        case list() if len(value) > FEW:
            for start in range(0, len(value), FEW):
                some = orjson.dumps(value[start : start + FEW])
                yield (b"," if start else b"[") + some[1:-1]
            yield b"]"
        case list() if depth < DEEPEST and value:
            for number, one in enumerate(value):
                yield b"," if number else b"["
                yield from pieces(one, depth + 1)
            yield b"]"
        case _:
            yield orjson.dumps(value)


async def respond(
    request: web.Request, body: bytes, headers: Mapping[str, str], status: int = 200
) -> web.StreamResponse:
    """Answer `request`. A client that leaves meanwhile gets no error."""
    if len(body) <= LARGE:
        return web.Response(body=body, headers=headers, status=status)
    response = web.StreamResponse(headers=headers, status=status)
    response.content_length = len(body)
    try:
        await response.prepare(request)
        await write(response, body)
        await response.write_eof()
    except ConnectionError:
        pass
    return response


async def write(response: web.StreamResponse, body: bytes) -> None:
    view = memoryview(body)
    for start in range(0, len(body), PIECE):
        await response.write(view[start : start + PIECE])
