"""The connections to bridges."""

from __future__ import annotations

import aiohttp


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
