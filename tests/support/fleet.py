"""Several servers that answer as one: each request goes to a random one of them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.bridge_process import bridge, scripted
from tests.support.served import Server
from tests.support.servers import Postgres, on_postgres

SLOTS = {"BRIDGE_MAX_SESSIONS": "32"}


class Fleet(Server):
    """Each use of the address is another one."""

    def __init__(self, http: aiohttp.ClientSession, urls: Sequence[str]) -> None:
        self._urls = urls
        super().__init__(http, "", [])

    @property
    def url(self) -> str:
        return random.choice(self._urls)

    @url.setter
    def url(self, value: str) -> None: ...


@asynccontextmanager
async def servers_of(workspace: Path, database: Postgres) -> AsyncIterator[Sequence[Server]]:
    """A server on SQLite, one on PostgreSQL, and three servers on PostgreSQL."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession(read_bufsize=2**25))
        one, several = [on_postgres(stack.enter_context(database.schema())) for _ in range(2)]

        async def start(name: str, **env: Any) -> str:
            env = {**scripted(workspace), **SLOTS, "BRIDGE_STATE_DIR": f"{workspace}-{name}", **env}
            server = await stack.enter_async_context(bridge(workspace, **env))
            return server.url

        alone = [Server(http, await start("a"), []), Server(http, await start("b", **one), [])]
        yield [*alone, Fleet(http, [await start(name, **several) for name in "cde"])]
