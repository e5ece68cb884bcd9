"""A Redis server for the tests: the one of BRIDGE_TEST_REDIS (a URL), or one that a test starts,
with a folder and a port of its own, and without files: a restart is empty."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis

from tests.support import programs
from tests.support.free_port import free_port

WITHIN = 20.0  # seconds for a start
PASSWORD = "pass-word-of-redis"


class RedisServer:
    """`url`: of its first database. `own`: whether a test may stop or empty it."""

    def __init__(self, url: str, port: int = 0, folder: str = "") -> None:
        self.url = url
        self.port = port
        self.own = port > 0
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1"]
        options = ["--save", "", "--appendonly", "no", "--dir", self._folder]
        self._process = subprocess.Popen(
            [*command, *options, "--requirepass", PASSWORD], stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + WITHIN
        while True:
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.ConnectionError:
                assert time.monotonic() < deadline and self._process.poll() is None
                time.sleep(0.01)

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextmanager
    def client(self) -> Iterator[redis.Redis]:
        client = redis.Redis.from_url(self.url, protocol=2)
        try:
            yield client
        finally:
            client.close()


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    given = os.environ.get("BRIDGE_TEST_REDIS")
    if given:
        yield RedisServer(given)
        return
    if shutil.which("redis-server") is None:
        pytest.skip(programs.missing("redis-server"))
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        server = RedisServer(f"redis://:{PASSWORD}@127.0.0.1:{port}/0", port, folder)
        server.start()
        try:
            yield server
        finally:
            server.kill()
