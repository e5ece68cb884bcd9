"""Requests to the server of this user on this machine."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import aiohttp

from bridge.client import config
from bridge.client.credentials import origin_of, socket_of
from bridge.client.failure import NO_SERVER, ClientError
from bridge.client.local_server import LocalServer, choose, running

WITHIN = 60.0  # seconds for an answer


def find_server(url: str | None) -> LocalServer:
    """The server with this address; without one, that of BRIDGE_STATE_DIR, or the one for the
    current directory. Raises ClientError."""
    servers = running(config.description_files(url))
    if url:
        wanted = url if socket_of(url) else origin_of(url)
        named = (one for one in servers if wanted in (one.url, origin_of(one.url)))
        found = next(named, None)
        if found is None:
            raise ClientError(NO_SERVER, f"no server of this user runs at {url}")
        return found
    folder = config.chosen_state_folder()
    chosen = running([Path(folder) / "server.json"]) if folder else []
    return chosen[0] if chosen else choose(servers, os.getcwd())


def ask(method: str, path: str, url: str | None = None) -> tuple[int, Any]:
    """The status and the JSON of the answer. Raises ClientError."""
    return asyncio.run(_ask(find_server(url), method, path))


async def _ask(server: LocalServer, method: str, path: str) -> tuple[int, Any]:
    socket = socket_of(server.url)
    base = "http://localhost" if socket else server.url
    connector = aiohttp.UnixConnector(socket) if socket else None
    token = server.token
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(total=WITHIN)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as http,
            http.request(method, base + path, allow_redirects=False) as response,
        ):
            return response.status, await response.json(content_type=None)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        text = f"the server at {server.url} does not answer: {error or type(error).__name__}"
        raise ClientError(NO_SERVER, text) from None


def problem_of(status: int, answer: Any) -> str:
    """The words of the server for a request that it refused."""
    error = answer.get("error") if isinstance(answer, dict) else None
    text = error.get("message") if isinstance(error, dict) else error
    return str(text or f"the server answered with status {status}")
