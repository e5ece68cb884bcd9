"""The contexts of lost servers: this server takes those whose directory it shares, and ends the
tasks of the other ones after the grace.

A context changes its node in one statement. It locks the row of the lost node, so that the node
cannot return meanwhile; and the fence of that node has waited for its last commit.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from functools import partial

from bridge.errors import Unavailable
from bridge.store.changes import ContextKey, Fence
from bridge.store.postgres.claims import Claims
from bridge.store.postgres.liveness import Beat, clock
from bridge.store.postgres.membership import Host, Membership
from bridge.store.postgres.queries import OPEN, key_of
from bridge.store.postgres.reader import PostgresReader
from bridge.store.postgres.statements import columns_of

log = logging.getLogger(__name__)

FOREVER = 1e9  # seconds of a claim; another node decides by the beat


class Takeover:
    """Runs from start() on: the server must be able to continue contexts then."""

    def __init__(
        self, reader: PostgresReader, claims: Claims, membership: Membership, host: Host
    ) -> None:
        self._reader = reader
        self._claims = claims
        self._membership = membership
        self._host = host
        self._task: asyncio.Task[None] | None = None
        self._seen: dict[tuple[str, int], float] = {}  # when a fenced node was first seen

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        member = self._membership
        while True:
            await member.beaten.wait()
            member.beaten.clear()
            now = clock()
            self._seen = {
                (one.node, one.epoch): self._seen.get((one.node, one.epoch), now)
                for one in member.lost
            }
            for lost in member.lost:
                try:
                    await self._of(lost, now)
                except Unavailable:
                    continue  # the next beat tries again
                except Exception:
                    text = "the contexts of a lost server cannot be taken"
                    log.exception(text, extra={"node": lost.node})

    async def _of(self, lost: Beat, now: float) -> None:
        terms = self._membership.terms
        shared = ([*terms.agents], lost.node, [*terms.shares])
        for key in await self._contexts(_MOVABLE, *shared) if terms.slots else ():
            await self._host.adopt(key, partial(self._take, key, lost))
        if now - self._seen[lost.node, lost.epoch] >= terms.grace:
            for key in await self._contexts(_OVERDUE, [*terms.agents], lost.node):
                fence = await self._host.finish(key, partial(self._take, key, lost))
                if fence:
                    await self._claims.release(fence, to=lost.node)

    async def _contexts(self, query: str, *values: object) -> Sequence[ContextKey]:
        """In a random order: other servers take some, too. Those with open tasks come first."""
        rows = await self._reader.rows(query, *values)
        random.shuffle(rows)
        rows.sort(key=lambda row: not row[3])
        return [key_of(agent, owner, name) for agent, owner, name, _ in rows]

    async def _take(self, key: ContextKey, lost: Beat) -> Fence | None:
        node, epoch = self._membership.node, self._membership.epoch
        values = (node, epoch, lost.node, node, *columns_of(key), epoch)
        taken = await self._claims.fenced(_TAKE, *values)
        if taken:
            log.warning("a context of a lost server is taken", extra={"context": key.id})
        return await self._claims.claim(key, node, FOREVER)


_WORKS = f"""EXISTS (SELECT 1 FROM task WHERE task.agent = context.agent
    AND task.owner = context.owner AND task.context = context.id AND {OPEN})"""  # noqa: S608
_MOVABLE = f"""
    SELECT agent, owner, id, {_WORKS} FROM context
    WHERE agent = ANY(%s) AND node = %s AND share = ANY(%s) AND start IS NOT NULL LIMIT 200"""  # noqa: S608
_OVERDUE = f"""
    SELECT agent, owner, id, true FROM context
    WHERE agent = ANY(%s) AND node = %s AND {_WORKS} LIMIT 200"""  # noqa: S608
_TAKE = f"""
    WITH mine AS MATERIALIZED (SELECT fence(%s, %s)), old AS MATERIALIZED (
        SELECT id FROM node WHERE id = %s AND state = 'fenced' FOR SHARE
    ), moved AS (
        UPDATE context SET node = %s, token = nextval('tokens') FROM mine, old
        WHERE context.node = old.id AND context.agent = %s AND context.owner = %b
            AND context.id = %b
        RETURNING context.agent, context.owner, context.id
    ), noted AS (
        INSERT INTO takeover (task, epoch, after)
        SELECT place, %s, batch FROM task JOIN moved
            ON (task.agent, task.owner, task.context) = (moved.agent, moved.owner, moved.id)
        WHERE {OPEN} ON CONFLICT DO NOTHING
    ), closed AS (
        DELETE FROM session USING moved, old WHERE session.node = old.id
            AND (session.agent, session.owner, session.context)
                = (moved.agent, moved.owner, moved.id)
    ) SELECT 1 FROM moved"""  # noqa: S608
