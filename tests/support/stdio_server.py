"""`coding-agent-bridge stdio` as a child process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.bridge_process import environment, scripted

WITHIN = 60.0  # seconds
SERVE = (sys.executable, "-m", "bridge", "stdio", "--a2a-version", "1.0")
Json = dict[str, Any]


class Child:
    """A server on pipes. `headers`: each frame has the header Content-Length."""

    def __init__(self, process: asyncio.subprocess.Process, *, headers: bool = False) -> None:
        assert process.stdin and process.stdout
        self.process, self.stdin, self.stdout = process, process.stdin, process.stdout
        self._headers = headers

    def send(self, *frames: Json | bytes) -> None:
        for frame in frames:
            data = frame if isinstance(frame, bytes) else json.dumps(frame).encode()
            length = b"Content-Length: %d\r\n\r\n" % len(data)
            self.stdin.write(length + data if self._headers else data + b"\n")

    async def frame(self) -> bytes:
        """The next frame. Raises IncompleteReadError at the end."""
        if not self._headers:
            return await self.stdout.readuntil(b"\n")
        header = await self.stdout.readuntil(b"\r\n\r\n")
        name, _, length = header.strip().partition(b": ")
        assert name == b"Content-Length"
        return await self.stdout.readexactly(int(length))

    async def frames(self) -> AsyncIterator[bytes]:
        """All further frames."""
        try:
            while True:
                yield await self.frame()
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the process has ended

    async def next(self) -> Json:
        async with asyncio.timeout(WITHIN):
            answer: Json = json.loads(await self.frame())
        return answer

    async def stream(self) -> list[Json]:
        """The frames to the end of a stream."""
        frames = [await self.next()]
        while "streamEnd" not in frames[-1]:
            frames.append(await self.next())
        return frames

    async def leave(self) -> int:
        """Close stdin. Returns the exit status."""
        self.stdin.close()
        async with asyncio.timeout(WITHIN):
            return await self.process.wait()


@asynccontextmanager
async def child(
    workspace: Path,
    *arguments: str,
    headers: bool = False,
    stderr: int | None = None,
    cwd: Path | None = None,
    **env: str,
) -> AsyncIterator[Child]:
    """A server, or a proxy; `env` as for bridge_process.bridge."""
    home, variables = settings(workspace, **env)
    process = await asyncio.create_subprocess_exec(
        *SERVE,
        *arguments,
        cwd=cwd or home,
        env=variables,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        limit=2**26,
    )
    try:
        yield Child(process, headers=headers)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def refused(workspace: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """The end of a program that writes no frame."""
    home, variables = settings(workspace)
    done = subprocess.run(
        [*SERVE, *arguments],
        cwd=home,
        env=variables,
        input=b"{}\n",
        capture_output=True,
        timeout=WITHIN,
        check=False,
    )
    assert done.stdout == b""
    return done


@asynccontextmanager
async def unread(workspace: Path, *arguments: str, **env: str) -> AsyncIterator[Unread]:
    """A server or a proxy. Its answers wait in the pipe until a test calls `frames`."""
    home, variables = settings(workspace, **env)
    reading, writing = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *SERVE,
        *arguments,
        cwd=home,
        env=variables,
        stdin=asyncio.subprocess.PIPE,
        stdout=writing,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(writing)
    one = Unread(process, reading)
    try:
        yield one
    finally:
        one.answers.close()
        if process.returncode is None:
            process.kill()
        await process.communicate()


class Unread:
    """See unread()."""

    def __init__(self, process: asyncio.subprocess.Process, reading: int) -> None:
        self.process = process
        self.answers = open(reading, "rb")

    def send(self, *frames: Json) -> None:
        assert self.process.stdin
        self.process.stdin.write(b"".join(json.dumps(one).encode() + b"\n" for one in frames))

    async def logged(self, text: bytes) -> None:
        """Return when the log has this text. Raises AssertionError if the process ends first."""
        assert self.process.stderr
        async with asyncio.timeout(WITHIN):
            while text not in (line := await self.process.stderr.readline()):
                assert line, f"no line of the log has {text!r}"

    async def frames(self, streams: int) -> list[Json]:
        """Read until so many streams have ended."""
        return await asyncio.wait_for(asyncio.to_thread(self._read, streams), 2 * WITHIN)

    def _read(self, streams: int) -> list[Json]:
        frames: list[Json] = []
        while streams:
            frames.append(json.loads(self.answers.readline()))
            streams -= "streamEnd" in frames[-1]
        return frames

    async def leave(self) -> int:
        """Close stdin. Returns the exit status."""
        assert self.process.stdin
        self.process.stdin.close()
        async with asyncio.timeout(WITHIN):
            return await self.process.wait()


def settings(workspace: Path, **env: str) -> tuple[Path, dict[str, str]]:
    chosen = {**scripted(workspace), "PYTHONUNBUFFERED": "1"}
    del chosen["BRIDGE_STATE_DIR"]
    return environment(workspace, {**chosen, **env})


def request(number: int, method: str, params: Json | None = None) -> Json:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}


def streamed(number: int, text: str) -> Json:
    message = {"messageId": str(number), "role": "ROLE_USER", "parts": [{"text": text}]}
    return request(number, "SendStreamingMessage", {"message": message})


def artifact(frames: list[Json]) -> str:
    updates = [one["result"].get("artifactUpdate") for one in frames if "result" in one]
    return "".join(part["text"] for one in updates if one for part in one["artifact"]["parts"])
