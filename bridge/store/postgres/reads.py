"""The reads of the PostgreSQL store: one query each, on a connection of the pool."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bridge.store.changes import (
    ContextKey,
    ContextSaved,
    EventBatch,
    MessageKey,
    PushConfig,
    PushFailed,
)
from bridge.store.postgres import queries
from bridge.store.postgres.queries import config_of, head_of, key_of
from bridge.store.postgres.reader import PostgresReader
from bridge.store.postgres.sealing import Seal
from bridge.store.postgres.statements import columns_of, decode_id, encode_id
from bridge.store.protocol import (
    REPORTS,
    KnownMessage,
    OpenSession,
    Retention,
    TaskHead,
    TaskPage,
    TaskQuery,
    UnfinishedTask,
)
from bridge.store.replay import PIECE
from bridge.store.retention import DAY, expired

log = logging.getLogger(__name__)


class PostgresReads:
    """`node`: the id of this server; only its contexts and sessions are read. Two kinds of changes
    count before their commit: the messages in `_accepted`, and the removals of tasks (`_removed`).
    """

    def __init__(self, reader: PostgresReader, node: str, seal: Seal | None) -> None:
        self.node = node
        self._reader = reader
        self._seal = seal
        self._accepted: dict[MessageKey, str] = {}
        self._removed: Counter[str] = Counter()

    async def head(self, task_id: str) -> TaskHead | None:
        found = await self._reader.rows(queries.ONE_HEAD, encode_id(task_id), self.node)
        return head_of(found[0]) if found and task_id not in self._removed else None

    async def prompt(self, task_id: str) -> bytes:
        found = await self._reader.rows(queries.PROMPT, encode_id(task_id))
        if not found or task_id in self._removed:
            raise LookupError(task_id)
        prompt: bytes = found[0][0]
        return prompt

    async def read(self, task_id: str, after: int = 0) -> Sequence[EventBatch]:
        found = await self._reader.rows(queries.READ, after, PIECE, encode_id(task_id))
        if not found or task_id in self._removed:
            raise LookupError(task_id)
        return [EventBatch(task_id, *values) for values in found if values[0] is not None]

    async def list(self, query: TaskQuery) -> TaskPage:
        (count, counted), (page, values) = queries.listed(query, list(self._removed), self.node)
        ((total,),) = await self._reader.rows(count, *counted)
        heads = [head_of(row) for row in await self._reader.rows(page, *values)]
        shown = heads[: query.limit or None]
        more = len(shown) < len(heads)
        return TaskPage(shown, (shown[-1].changed, shown[-1].task_id) if more else None, total)

    async def message(self, key: MessageKey) -> KnownMessage | None:
        task_id = self._accepted.get(key)
        if task_id is None:
            found = await self._reader.rows(queries.MESSAGE, *columns_of(key), key.digest)
            task_id = decode_id(found[0][0]) if found else None
        return KnownMessage(task_id) if task_id and task_id not in self._removed else None

    async def unfinished(
        self, agent: str, context: ContextKey | None = None
    ) -> Sequence[UnfinishedTask]:
        if context:
            found = await self._reader.rows(queries.UNFINISHED_OF, *columns_of(context))
        else:
            found = await self._reader.rows(queries.UNFINISHED, agent, self.node)
        return [UnfinishedTask(head_of(row), row[-1]) for row in found]

    async def contexts(
        self, agent: str, context: ContextKey | None = None
    ) -> Sequence[ContextSaved]:
        if context:
            found = await self._reader.rows(queries.ONE_CONTEXT, *columns_of(context))
        else:
            found = await self._reader.rows(queries.CONTEXTS, agent, self.node)
        return [ContextSaved(key_of(*key), start, share) for *key, start, share in found]

    async def sessions(self, agent: str) -> Sequence[OpenSession]:
        return [
            OpenSession(decode_id(name), key_of(*key), start, position, given)
            for name, *key, start, position, given in await self._reader.rows(
                queries.SESSIONS, agent, self.node
            )
        ]

    async def reports(self, task_ids: Sequence[str]) -> Sequence[tuple[str, bytes]]:
        ids = [encode_id(one) for one in task_ids if one not in self._removed]
        found = await self._reader.rows(queries.REPORTED, ids, *REPORTS)
        return [(decode_id(name), events) for name, events in found]

    async def expired(self, retention: Retention, now: int) -> Sequence[str]:
        stored = 0
        if retention.bytes:
            ((stored,),) = await self._reader.rows(queries.STORED)
        kept = await self._reader.rows(queries.KEPT, retention.agent)
        if not _is_above(retention, now, stored, kept):
            return []
        finished: dict[str, list[TaskHead]] = {}
        undelivered = set[str]()
        for row in await self._reader.rows(queries.FINISHED, retention.agent):
            head = head_of(row)
            if head.task_id not in self._removed:
                finished.setdefault(head.context.owner, []).append(head)
                undelivered |= {head.task_id} if row[-1] else set()
        return expired(finished, retention, now=now, stored=stored, undelivered=undelivered)

    async def push_configs(self, task_id: str | None = None) -> Sequence[PushConfig]:
        if self._seal is None:
            return []
        if task_id is None:
            rows = await self._reader.rows(queries.OWN_CONFIGS, self.node)
        else:
            rows = await self._reader.rows(queries.CONFIGS_OF_TASK, encode_id(task_id))
        found = []
        for row in rows:
            try:
                config = config_of(row, self._seal)
            except ValueError as error:
                log.error("a push config cannot be read", extra={"error": error})
                continue
            if config.task_id not in self._removed:
                found.append(config)
        return found

    async def push_failures(self, task_id: str) -> Sequence[PushFailed]:
        found = await self._reader.rows(queries.FAILURES, encode_id(task_id))
        return [PushFailed(task_id, decode_id(config), *facts) for config, *facts in found]


def _is_above(retention: Retention, now: int, stored: int, kept: Sequence[Sequence[Any]]) -> bool:
    """Whether a limit may be exceeded. `kept`: owner, number, bytes and oldest time of the finished
    tasks of each owner, and the most of one context."""
    if 0 < retention.bytes < stored or sum(one[1] for one in kept) > retention.tasks:
        return True
    oldest = now - retention.days * DAY
    return any(
        0 < retention.of_owner(decode_id(owner)) < size
        or (retention.days and changed < oldest)
        or 0 < retention.of_context < most
        for owner, _, size, changed, most in kept
    )
