"""Fuzz targets with frames: the framing of stdio, and a WebSocket connection to a real server."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bridge import errors
from bridge.auth.principal import Token, digest
from bridge.transports.envelope.stdio import Frame, Framing
from tests.support.served import Server, serving

LONGEST = 90  # bytes of a frame of stdio
KEY = "fuzz" * 4
HANDSHAKE = (
    "GET /a2a/ws?A2A-Version=1.0 HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer {KEY}\r\n\r\n"
)
CLOSES = (1000, 1002, 1003, 1007, 1009)
"""The codes of closes that a client causes by frames: no other one, and no cut connection."""
OPCODES = {b"t": 0x81, b"f": 0x01, b"c": 0x80, b"b": 0x82, b"p": 0x89, b"o": 0x8A, b"x": 0x88}
"""Of a text, its first fragment, the last one, a binary frame, ping, pong and close."""


def framing(data: bytes) -> None:
    """However the bytes are cut, the frames are the same. Those of lines are what an independent
    reader finds; those of headers are what a correct client has sent."""
    size, rest = data[:1], data[1:2000]
    step = (size[0] if size else 0) % 50 + 1
    pieces = [rest[start : start + step] for start in range(0, len(rest), step)]
    found = _shown(_frames([rest]))
    assert _shown(_frames(pieces)) == found
    first = rest.lstrip()
    if first[:1] not in (b"C", b"c"):
        lines = [line.rstrip(b"\r") for line in first.split(b"\n")]
        kept = [line if len(line) <= LONGEST else None for line in lines]
        assert found == [line for line in kept if line is None or line.strip()]
    whole = [piece for piece in pieces if piece]
    client = Framing(LONGEST)
    list(client.feed(b"Content-"))
    sent = b"".join(map(client.wrap, whole))
    cuts = [sent[start : start + step] for start in range(0, len(sent), step)]
    assert _frames(cuts) == whole


def _frames(pieces: Sequence[bytes]) -> list[Frame]:
    reader = Framing(LONGEST)
    return [*(frame for piece in pieces for frame in reader.feed(piece)), *reader.end()]


def _shown(frames: Sequence[Frame]) -> list[bytes | None]:
    """An error as None, which is a RequestError for the client."""
    assert all(isinstance(one, bytes | errors.RequestError) for one in frames)
    return [one if isinstance(one, bytes) else None for one in frames]


# --- WebSocket -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Running:
    runner: asyncio.Runner
    server: Server
    stack: AsyncExitStack  # without a reference, the server would end


@cache
def _served() -> _Running:
    """A server whose client may only read, so that no agent starts. It runs while a target runs."""
    runner, stack = asyncio.Runner(), AsyncExitStack()
    workspace = Path(tempfile.mkdtemp(prefix="fuzz-"))
    reader = Token(hash=f"sha256:{digest(KEY).hex()}", scopes=("read",))
    server = serving(
        workspace, bridge_websocket=True, bridge_max_body_bytes=4096, tokens={"reader": reader}
    )
    return _Running(runner, runner.run(stack.enter_async_context(server)), stack)


def websocket(data: bytes) -> None:
    """Any frames of a client have answers, or a close with a code that the page documents."""
    running = _served()
    running.runner.run(_talk(running.server, b"".join(_as_frames(data))))


def _as_frames(data: bytes) -> Iterator[bytes]:
    """`data` as frames: each line is one. Its first byte is a kind of OPCODES, or the line is sent
    as it is."""
    for line in data.split(b"\n"):
        opcode, text = OPCODES.get(line[:1]), line[1:]
        if opcode is None:
            yield line
        else:
            size = len(text)
            length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
            yield bytes([opcode]) + length + bytes(4) + text  # masked with zeros


async def _talk(server: Server, sent: bytes) -> None:
    async with asyncio.timeout(20):
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(HANDSHAKE.encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            writer.write(sent)
            writer.write_eof()
            _check(await reader.read())
        finally:
            writer.transport.abort()


def _check(received: bytes) -> None:
    """The frames of the server are whole. A close is the last one, and has a code of CLOSES."""
    while received:
        opcode, size = received[0], received[1]
        assert size < 128, "the server masks no frames"
        start = 2
        if size >= 126:
            start = 4 if size == 126 else 10
            size = int.from_bytes(received[2:start], "big")
        payload, received = received[start : start + size], received[start + size :]
        assert len(payload) == size
        if opcode == 0x81:
            _check_answer(json.loads(payload))
        elif opcode == 0x88:
            assert int.from_bytes(payload[:2], "big") in CLOSES, payload
            assert not received
        else:
            assert opcode == 0x8A, opcode  # pong


def _check_answer(answer: dict[str, object]) -> None:
    assert answer["jsonrpc"] == "2.0" and "id" in answer
    assert len({"result", "error", "streamEnd"} & set(answer)) == 1
    text = json.dumps(answer)
    assert "INTERNAL_ERROR" not in text and "Traceback" not in text, text
    assert os.getcwd() not in text
