"""The scenarios of the bindings, with a server on SQLite, one on PostgreSQL, and three servers on
PostgreSQL, of which a random one gets each request: all answers are the same."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.server.protocol import test_equivalence as scenarios
from tests.support.bindings import RestBinding
from tests.support.bridge_process import bridge, scripted
from tests.support.served import Server
from tests.support.servers import Postgres, on_postgres

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.soak]
globals().update({name: one for name, one in vars(scenarios).items() if name.startswith("test_")})
SLOTS = {"BRIDGE_MAX_SESSIONS": "32"}


class Fleet(Server):
    """Several servers; each use of the address is another one."""

    def __init__(self, http: aiohttp.ClientSession, urls: Sequence[str]) -> None:
        self._urls = urls
        super().__init__(http, "", [])

    @property
    def url(self) -> str:
        return random.choice(self._urls)

    @url.setter
    def url(self, value: str) -> None: ...


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bindings(
    tmp_path_factory: pytest.TempPathFactory, database: Postgres
) -> AsyncIterator[scenarios.Bindings]:
    workspace = tmp_path_factory.mktemp("workspace")
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession(read_bufsize=2**25))
        one, several = [on_postgres(stack.enter_context(database.schema())) for _ in range(2)]

        async def start(name: str, **env: Any) -> str:
            env = {**scripted(workspace), **SLOTS, "BRIDGE_STATE_DIR": f"{workspace}-{name}", **env}
            server = await stack.enter_async_context(bridge(workspace, **env))
            return server.url

        alone = [Server(http, await start("a"), []), Server(http, await start("b", **one), [])]
        fleet = Fleet(http, [await start(name, **several) for name in "cde"])
        yield (
            *map(scenarios.JsonRpcBinding, alone),
            scenarios.JsonRpcBinding(fleet),
            RestBinding(fleet),
        )
