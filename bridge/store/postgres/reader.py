"""Reads of the PostgreSQL store, on a small pool of connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from bridge.errors import Unavailable
from bridge.store.postgres.connect import Connection, DatabaseAddress, is_lost, prepare
from bridge.store.protocol import CANNOT_READ

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 4
CONNECT_WITHIN = 2.0  # seconds that a read waits for a connection
HOPELESS_WITHIN = 0.1  # the same, while the writer has no connection either
RECONNECT_WITHIN = 0.3  # seconds; later attempts begin with a read, without a growing pause
READ_WITHIN = 10.0  # seconds


class PostgresReader:
    """Reads raise Unavailable while the database does not answer. `is_away`: whether it is known
    not to answer."""

    def __init__(self, address: DatabaseAddress) -> None:
        self.is_away: Callable[[], bool] = lambda: False
        self._address = address
        self._pool: AsyncConnectionPool[Connection] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._failing = False

    async def open(self) -> None:
        logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # it repeats each failure
        self._pool = AsyncConnectionPool(
            self._address.conninfo,
            kwargs={"autocommit": True},
            min_size=1,
            max_size=MOST_CONNECTIONS,
            configure=prepare,
            open=False,
            timeout=CONNECT_WITHIN,
            reconnect_timeout=RECONNECT_WITHIN,
            name="reader",
        )
        await self._pool.open()
        self._keeper = asyncio.create_task(_keep(self._pool))

    async def close(self) -> None:
        keeper, self._keeper, self._pool = self._keeper, None, None
        if keeper:
            keeper.cancel()
            await asyncio.wait([keeper])

    async def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of the statement, which has one effect however often it is made."""
        try:
            return await self._attempt(query, values)
        except (psycopg.Error, OSError, TimeoutError) as error:
            if not is_lost(error) or isinstance(error, PoolTimeout):
                raise self._unavailable(error) from error
        # The server may have restarted: all open connections are dead then.
        try:
            assert self._pool
            await self._pool.check()
            return await self._attempt(query, values)
        except (psycopg.Error, OSError, TimeoutError) as error:
            raise self._unavailable(error) from error

    async def _attempt(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        if self._pool is None:
            raise psycopg.OperationalError("the store is closed")
        wait = HOPELESS_WITHIN if self.is_away() else CONNECT_WITHIN
        async with asyncio.timeout(READ_WITHIN), self._pool.connection(wait) as connection:
            cursor = await connection.execute(query.encode(), values, binary=True)
            found = await cursor.fetchall() if cursor.description else []
        self._failing = False
        return found

    def _unavailable(self, error: Exception) -> Unavailable:
        if not self._failing:  # once, and not for each request
            log.error("the database cannot be read", extra={"error": str(error).strip()})
        self._failing = True
        return Unavailable(CANNOT_READ)


async def _keep(pool: AsyncConnectionPool[Connection]) -> None:
    """Close the pool when this task is canceled: by close(), or at the end of an event loop. The
    tasks of the pool ignore such a cancellation: the end of a failed start would take minutes."""
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await pool.close()
