"""The server of a command: found by the description in its state folder, and asked over its own
address with the operator's token."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bridge.client import config
from bridge.client.credentials import socket_of
from bridge.client.local_server import LocalServer, choose, running
from bridge.errors import ConfigurationError
from bridge.server.settings.load import Loaded
from bridge.server.settings.root import Settings
from bridge.server.token_file import DESCRIPTION

CONNECT_WITHIN = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """`server`: None if it does not run. `folder`: its state folder; None if only the server knows
    it. `settings`: None if they cannot be read and are not necessary."""

    server: LocalServer | None
    folder: Path | None
    settings: Settings | None


def find_server(state: str | None, load: Callable[[], Loaded]) -> ServerPlace:
    """The server with the state folder `state`; otherwise that of the settings, otherwise the one
    that runs. Raises ConfigurationError, and ClientError if several run."""
    try:
        settings = load().settings
    except ConfigurationError:
        if state is None:
            raise
        settings = None
    folder = Path(state).expanduser().resolve() if state else None
    if folder is None and settings and settings.store.state_dir:
        folder = settings.store_folder
    files = [folder / DESCRIPTION] if folder else config.description_files()
    servers = running(files)
    if servers:
        return ServerPlace(choose(servers, os.getcwd()), folder, settings)
    return ServerPlace(None, folder or (settings.store_folder if settings else None), settings)


async def post(server: LocalServer, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
    """The status and the JSON of the answer; None for another body. The answer may take any time.
    Raises ConfigurationError if the server cannot be reached."""
    socket = socket_of(server.url)
    connector = aiohttp.UnixConnector(socket) if socket else aiohttp.TCPConnector()
    base = "http://localhost" if socket else server.url
    headers = {"Authorization": f"Bearer {server.token}"} if server.token else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_WITHIN)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.post(f"{base}{path}", json=body, headers=headers) as response,
        ):
            try:
                return response.status, await response.json()
            except (aiohttp.ContentTypeError, ValueError):
                return response.status, None
    except (aiohttp.ClientError, OSError) as error:
        raise ConfigurationError(f"the server at {server.url} does not answer: {error}") from error


def refusal(answer: Any, status: int) -> str:
    """The text of a refused request."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, dict):
        error = error.get("message")
    return str(error or f"HTTP status {status}")
