"""A real Redis server on a Unix socket, with users, and a client of the Redis binding."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from bridge.auth.principal import Token, digest
from tests.support import programs
from tests.support.client import Json, RpcError

WITHIN = 60.0  # seconds for a start, and for an answer


def token(**more: Any) -> Token:
    """A token whose principal may use Redis. Its quotas are unlimited."""
    free = {"running": 0, "tasks": 0, "starts_per_minute": 0, "streams": 0}
    return Token(hash=f"sha256:{digest('x' * 20).hex()}", redis=True, **{**free, **more})


class RedisBroker:
    """`socket`: of the server. `options`: of its command line; the append-only file survives a
    restart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "socket"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def url_of(self, user: str, password: str) -> str:
        return f"unix://{user}:{password}@{self.socket}"

    def start(self, *options: str, durable: bool = True) -> None:
        """Start it, and wait until it answers."""
        files = ["--appendonly", "yes" if durable else "no", "--appendfsync", "no", "--save", ""]
        place = ["--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder)]
        self._process = subprocess.Popen(
            ["redis-server", *place, *files, *options], stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + WITHIN
        while True:
            try:
                with redis.Redis(unix_socket_path=str(self.socket)) as client:
                    client.ping()
                return
            except redis.ConnectionError:
                assert time.monotonic() < deadline and self._process.poll() is None
                time.sleep(0.005)

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[Any]:
        made: Any = redis.asyncio.Redis(unix_socket_path=str(self.socket), protocol=2, **options)
        try:
            yield made
        finally:
            await made.aclose()


@contextmanager
def broker_server() -> Iterator[RedisBroker]:
    """A server in a folder of its own."""
    if shutil.which("redis-server") is None:
        pytest.skip(programs.missing("redis-server"))
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        made = RedisBroker(Path(folder))
        made.start()
        try:
            yield made
        finally:
            made.kill()


@pytest.fixture
def broker() -> Iterator[RedisBroker]:
    with broker_server() as made:
        yield made


Item = tuple[str, Json]
"""The id and the payload of an entry; {} for an end without one."""


class RedisCaller:
    """A client of the principal `name`. `redis`: of redis-py."""

    def __init__(self, client: Any, name: str = "alice", prefix: str = "cab") -> None:
        self.redis = client
        self.name = name
        self.prefix = prefix

    def requests(self) -> str:
        return f"{self.prefix}:requests:{self.name}"

    def reply(self, correlation: str) -> str:
        return f"{self.prefix}:reply:{self.name}:{correlation}"

    async def send(
        self, method: str, params: Json, correlation: str = "", **parameters: str
    ) -> str:
        """Add a request. Returns its id."""
        correlation = correlation or uuid.uuid4().hex
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        given = {"A2A-Version": "1.0", **parameters}
        fields = {"id": correlation, "payload": json.dumps(body), "parameters": json.dumps(given)}
        await self.redis.xadd(self.requests(), fields)
        return correlation

    async def items(self, correlation: str, after: str = "0") -> AsyncGenerator[Item]:
        """The entries of an answer up to its end, also across a loss of the connection. Raises
        TimeoutError if no entry comes in time."""
        until = time.monotonic() + WITHIN
        while time.monotonic() < until:
            try:
                found = await self.redis.xread({self.reply(correlation): after}, block=200)
            except (redis.RedisError, OSError):
                await asyncio.sleep(0.01)
                continue
            for entry, fields in (one for _, entries in found for one in entries):
                after = entry.decode()
                yield after, json.loads(fields.get(b"payload", b"{}"))
                if b"end" in fields:
                    return
                until = time.monotonic() + WITHIN
        raise TimeoutError(f"no entry after {after}")

    async def numbered(self, correlation: str) -> AsyncGenerator[tuple[int, Json]]:
        """The items of a stream with their numbers, to its end. Raises RpcError."""
        async with aclosing(self.items(correlation)) as entries:
            async for entry, payload in entries:
                if "error" in payload:
                    raise RpcError(payload["error"])
                if payload:
                    yield int(entry.partition("-")[0]), payload["result"]

    async def call(self, method: str, params: Json, **parameters: str) -> Json:
        """The answer to a request without a stream."""
        correlation = await self.send(method, params, **parameters)
        ((_, payload),) = [item async for item in self.items(correlation)]
        return payload


def message(text: str, **members: Any) -> Json:
    """A message with an id that no other one has."""
    return {
        "messageId": uuid.uuid4().hex,
        "role": "ROLE_USER",
        "parts": [{"text": text}],
        **members,
    }
