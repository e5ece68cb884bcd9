"""The claims of contexts that this process has made. The database has the holder and the token of
each context; the end of a lease is known to the process that has granted it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from bridge.errors import Unavailable
from bridge.store.changes import ContextKey, Fence
from bridge.store.postgres.reader import PostgresReader
from bridge.store.postgres.schema import FENCED
from bridge.store.postgres.statements import columns_of
from bridge.store.postgres.writer import PostgresWriter
from bridge.store.protocol import CANNOT_WRITE, WRITE_WITHIN

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Lease:
    fence: Fence
    node: str
    until: float


class Claims:
    """`writer` commits the removals of contexts."""

    def __init__(self, reader: PostgresReader, writer: PostgresWriter, node: str) -> None:
        self._reader = reader
        self._writer = writer
        self._node = node
        self._leases: dict[ContextKey, _Lease] = {}
        self._lost: dict[str, list[Fence]] = {}  # by node
        self._removed: Counter[ContextKey] = Counter()  # before the commit

    def is_held(self, fence: Fence) -> bool:
        lease = self._leases.get(fence.context)  # the comparison takes longer than an identity
        return lease is not None and (lease.fence is fence or lease.fence == fence)

    def remove(self, key: ContextKey) -> None:
        """The removal of the context is appended."""
        self._leases.pop(key, None)
        self._removed[key] += 1

    def removed(self, key: ContextKey) -> None:
        """The removal is committed, or rejected."""
        self._removed[key] -= 1
        if self._removed[key] <= 0:
            del self._removed[key]

    def lose_all(self) -> None:
        """Another incarnation has taken the node."""
        for lease in self._leases.values():
            self._lost.setdefault(lease.node, []).append(lease.fence)
        self._leases.clear()

    async def claim(self, key: ContextKey, node: str, ttl: float) -> Fence | None:
        now, lease = time.monotonic(), self._leases.get(key)
        if lease and lease.node == node:
            lease.until = now + ttl
            return lease.fence
        if lease and lease.until > now:
            return None
        if self._removed[key]:  # else the commit would remove the new claim
            await _bounded(self._writer.flushed())
        ended = (lease.node, lease.fence.token) if lease else (None, 0)
        identity = (self._node, self._writer.epoch)
        found = await self.fenced(_CLAIM, *identity, *columns_of(key), node, *ended)
        if not found:
            return None
        if lease and self._leases.get(key) is lease:
            self._lost.setdefault(lease.node, []).append(lease.fence)
        fence = Fence(key, *found[0])
        self._leases[key] = _Lease(fence, node, time.monotonic() + ttl)
        return fence

    async def renew(self, node: str, ttl: float) -> Sequence[Fence]:
        until = time.monotonic() + ttl
        for lease in self._leases.values():
            if lease.node == node:
                lease.until = until
        return self._lost.pop(node, [])

    async def release(self, fence: Fence, to: str | None = None) -> None:
        """`to`: the node that has the context from now on; None: any node may claim it."""
        if not self.is_held(fence):
            return
        del self._leases[fence.context]
        key = columns_of(fence.context)
        try:
            await self.fenced(_RELEASE, self._node, self._writer.epoch, *key, fence.token, to)
        except Unavailable:
            log.warning("a context is not released", extra={"context": fence.context.id})

    async def fenced(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Make the statement, unless the node is fenced. Raises Unavailable."""
        try:
            return await self._reader.rows(statement, *values)
        except Unavailable as error:
            cause = error.__cause__
            if isinstance(cause, psycopg.Error) and cause.sqlstate == FENCED:
                self._writer.fence()
            raise


async def _bounded(work: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(WRITE_WITHIN):
            await work
    except TimeoutError:
        raise Unavailable(CANNOT_WRITE) from None


_CLAIM = """
    WITH mine AS MATERIALIZED (SELECT fence(%s, %s))
    INSERT INTO context AS known (agent, owner, id, node, token)
    SELECT %s, %b, %b, %s, nextval('tokens') FROM mine
    ON CONFLICT (agent, owner, id) DO UPDATE SET node = excluded.node,
        token = CASE WHEN known.node = excluded.node THEN known.token ELSE excluded.token END
    WHERE known.node IS NULL OR known.node = excluded.node
        OR (known.node = %s AND known.token = %s::bigint)
    RETURNING token, start IS NOT NULL"""
# A context without a start was not begun.
_RELEASE = """
    WITH mine AS MATERIALIZED (SELECT fence(%s, %s)), released AS (
        SELECT agent, owner, id, start FROM context, mine
        WHERE agent = %s AND owner = %b AND id = %b AND token = %s::bigint FOR UPDATE OF context
    ), gone AS (
        DELETE FROM context USING released
        WHERE (context.agent, context.owner, context.id)
            = (released.agent, released.owner, released.id) AND released.start IS NULL
    )
    UPDATE context SET node = %s FROM released
    WHERE (context.agent, context.owner, context.id)
        = (released.agent, released.owner, released.id) AND released.start IS NOT NULL"""
