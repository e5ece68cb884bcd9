"""The bridge for a directory: found by its description, or started."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

import aiohttp

from bridge.cli.starter import Starter
from bridge.client import config
from bridge.client.credentials import (
    Credentials,
    CredentialStore,
    is_loopback,
    origin_of,
    socket_of,
)
from bridge.client.failure import NO_SERVER, ClientError
from bridge.client.local_server import running
from bridge.errors.program import command

RETURNS_WITHIN = 60.0  # seconds that a bridge of its operator may be away; its tasks are there


@dataclass(frozen=True, slots=True)
class Address:
    """A bridge, and the token for it. `local`: it runs on this machine. `socket`: the path of its
    Unix socket, if it is reached through that."""

    url: str
    token: str | None
    local: bool
    socket: str | None = None

    @classmethod
    def of(cls, reference: str, token: str | None) -> Address:
        """`reference`: a URL, or unix:PATH."""
        if socket := socket_of(reference):
            return cls("http://localhost", token, True, socket)
        return cls(reference, token, is_loopback(reference))


class Connections:
    """Connections over TCP, and through each Unix socket: a bridge that starts again may have
    another one. They close together."""

    def __init__(self) -> None:
        self._open: dict[str | None, aiohttp.ClientSession] = {}

    async def __aenter__(self) -> Connections:
        return self

    async def __aexit__(self, *error: object) -> None:
        for session in self._open.values():
            await session.close()

    def through(self, socket: str | None) -> aiohttp.ClientSession:
        """`socket`: the path of a Unix socket; None for TCP."""
        if socket not in self._open:
            connector = (
                aiohttp.UnixConnector(socket, limit=0) if socket else aiohttp.TCPConnector(limit=0)
            )
            self._open[socket] = aiohttp.ClientSession(
                connector=connector, read_bufsize=2**18, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._open[socket]


class BridgeFinder:
    """`url`: the address of the bridge; None: the bridge of this user whose agents may work in
    `cwd`. `starts`: start one if there is none."""

    def __init__(self, cwd: str, *, url: str | None, starts: bool) -> None:
        self._cwd = os.path.realpath(cwd)
        self._url = url.rstrip("/") if url else None
        self._starts = starts
        self._starter = Starter(self._cwd)
        self._expected_until = 0.0

    async def find(self) -> Address:
        """Raises ClientError if none is found and none can be started."""
        if self._url:
            return self._given(self._url)
        server, now = self._starter.present(), asyncio.get_running_loop().time()
        if server and not server.until_idle:
            self._expected_until = now + RETURNS_WITHIN  # its operator starts it
        if server is None:
            if not self._starts or now < self._expected_until:
                text = f"no bridge serves {self._cwd}; start one: {command('--root', self._cwd)}"
                raise ClientError(NO_SERVER, text)
            server = await self._starter.start()
        return Address.of(server.url, server.token)

    def _given(self, url: str) -> Address:
        origin = origin_of(url)
        servers = running(config.description_files(url))
        token = next((one.token for one in servers if origin_of(one.url) == origin), None)
        if token is None:
            token = CredentialStore(config.credentials_file()).tokens().get(origin)
        address = Address.of(url, token)
        if token:
            Credentials(origin, "auth login", bearer=token).check(address.url)
        return address
