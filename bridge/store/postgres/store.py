"""The durable store on PostgreSQL.

The database is the truth: heads, lists, messages and push configs are read from it, because other
servers may write them, too. Only the work that is under way is in memory: appends before their
commit, claims, and waiting readers.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import psycopg

from bridge.errors import ConfigurationError, Unavailable
from bridge.store.changes import (
    Change,
    CommandDone,
    ContextKey,
    ContextRemoved,
    EventBatch,
    Fence,
    MessageAccepted,
    TaskRemoved,
)
from bridge.store.postgres.bus import Bus, MakeBus
from bridge.store.postgres.claims import Claims
from bridge.store.postgres.cluster import PostgresCluster
from bridge.store.postgres.connect import Connection, DatabaseAddress, explain, show_presence
from bridge.store.postgres.hints import Hints
from bridge.store.postgres.liveness import clock
from bridge.store.postgres.membership import TERMS, Host, Membership, NoHost, Terms
from bridge.store.postgres.notify_bus import NotifyBus
from bridge.store.postgres.pooler import refuse_pooler
from bridge.store.postgres.reader import PostgresReader
from bridge.store.postgres.reads import PostgresReads
from bridge.store.postgres.schema import MIGRATIONS, migrate
from bridge.store.postgres.sealing import Seal
from bridge.store.postgres.takeover import Takeover
from bridge.store.postgres.writer import ANSWER_WITHIN, PostgresWriter
from bridge.store.protocol import FenceLost, OnCommit, StoreError

log = logging.getLogger(__name__)

CLOSE_WITHIN = 5.0  # seconds
POLL = 1.0  # seconds after which a follower looks for batches that another server has written
_MARKED = {MessageAccepted, ContextRemoved, TaskRemoved}  # known before their commit


class PostgresStore(PostgresReads):
    """`node`: the id of this server, which survives its restarts. Several nodes may use the
    database. `terms`: the facts that the node tells the others. A later store with the same id is
    its next incarnation: the appends of this one are rejected then, and `host` is told. `seal` is
    None for a server without push notifications. `answer_within`: seconds for the answer to a
    commit; then it is sent again."""

    durable = True
    schema = len(MIGRATIONS)

    def __init__(
        self,
        address: DatabaseAddress,
        node: str,
        *,
        seal: Seal | None = None,
        terms: Terms = TERMS,
        host: Host | None = None,
        answer_within: float = ANSWER_WITHIN,
    ) -> None:
        super().__init__(PostgresReader(address), node, seal)
        self._address = address
        self._terms = terms
        self._writer = PostgresWriter(
            address, node, seal, self._fenced, answer_within=answer_within, lease=terms.lease
        )
        self._host = host or NoHost()
        self.membership = Membership(address, node, terms, self._writer.fence, self._host)
        self._reader.is_away = lambda: self.problem is not None
        self._claims = Claims(self._reader, self._writer, node)
        self.takeover = Takeover(self._reader, self._claims, self.membership, self._host)
        self.bus: Bus = NotifyBus(address, heard=self._heard, restored=self._catch_up)
        self.hints = Hints(node, b"", self.bus.send)
        self._cluster = PostgresCluster(
            self._reader,
            self._writer,
            node,
            self._say,
            (self.membership, self.takeover, self._claims),
        )

    def use_bus(self, make: MakeBus) -> None:
        """Carry hints by another bus than LISTEN and NOTIFY, from open() on."""
        self.bus = make(heard=self._heard, restored=self._catch_up, alive=self._show_life)

    # --- life ----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Fences the earlier incarnation of this node."""
        try:
            connection = await self._address.connect()
        except (psycopg.Error, OSError) as error:
            raise explain(self._address, error) from error
        try:
            await migrate(connection)
            entered = clock()
            epoch = await self._enter(connection)
            await self._reader.open()
            await refuse_pooler(connection, self._reader.rows)
        except BaseException as error:
            await connection.close()
            if isinstance(error, psycopg.Error | OSError):
                raise explain(self._address, error) from error
            if isinstance(error, ConfigurationError):
                text = f"cannot use {self._address.shown}: {error}"
                raise ConfigurationError(text) from error
            raise
        self._writer.start(connection, epoch)
        self.membership.start(epoch, entered)
        self.bus.start(self.hints.channel, self.hints.cluster, self.node, epoch)

    async def _enter(self, connection: Connection) -> int:
        """Begin an incarnation of this node. Waits for the commits of the earlier one. Returns its
        epoch."""
        await show_presence(connection, self.node, self._terms.lease)
        async with connection.transaction():
            entered = await connection.execute(
                _ENTER, (self.node, self._terms.version, self._terms.name)
            )
            ((epoch,),) = await entered.fetchall()
            await connection.execute(_PROGRESS, (self.node,))
            await connection.execute(_NOT_BEGUN, (self.node,))
            await connection.execute(_SHOW, (self.node,))
            await connection.execute(_NOT_DECIDED, (self.node,))
            await connection.execute(_GONE)
            ((key,),) = await (await connection.execute(_KEY)).fetchall()
        self.hints = Hints(self.node, key, self.bus.send)
        return int(epoch)

    async def flush(self) -> None:
        await self._writer.flushed()

    async def close(self) -> None:
        await self.takeover.close()
        await self._writer.close(CLOSE_WITHIN)
        await self.membership.close()
        await self.bus.close()
        await self._reader.close()

    async def abandon(self) -> None:
        """Close without another commit."""
        await self.takeover.close()
        await self.membership.close()
        await self._writer.abandon()
        await self.bus.close()
        await self._reader.close()

    @property
    def cluster(self) -> PostgresCluster:
        return self._cluster

    @property
    def cluster_id(self) -> str:
        return self.hints.cluster

    @property
    def congested(self) -> bool:
        return self._writer.congested

    @property
    def problem(self) -> str | None:
        return self._writer.problem or self.membership.problem

    @property
    def backlog(self) -> int:
        return self._writer.waiting

    @property
    def stored(self) -> int:
        return 0  # the database has also the tasks of other servers

    def time_commits(self, timed: Callable[[float], None]) -> None:
        self._writer.timed = timed

    def on_relief(self, call: Callable[[], None]) -> None:
        self._writer.relief.append(call)

    def _fenced(self, copied: bool) -> None:
        self._claims.lose_all()
        self._host.fenced(copied)

    # --- writing -------------------------------------------------------------------------------

    def append(
        self, changes: Sequence[Change], *, fence: Fence | None, then: OnCommit | None = None
    ) -> None:
        error = None
        if fence and not self._claims.is_held(fence):
            error = FenceLost(f"another claim has taken the context {fence.context.id}")
        marked = () if error else [one for one in changes if type(one) in _MARKED]
        for change in marked:
            self._mark(change)
        done = partial(self._done, () if error else changes, marked, then)
        self._writer.write(() if error else changes, fence, error, done)

    def _mark(self, change: Change) -> None:
        match change:
            case MessageAccepted(key, task_id):
                self._accepted[key] = task_id
            case ContextRemoved(context):
                self._claims.remove(context)
            case TaskRemoved(task_id):
                self._removed[task_id] += 1

    def _done(
        self,
        changes: Sequence[Change],
        marked: Sequence[Change],
        then: OnCommit | None,
        error: StoreError | None,
    ) -> None:
        """The append is committed, or rejected with `error`."""
        for change in marked:
            match change:
                case MessageAccepted(key, task_id) if self._accepted.get(key) == task_id:
                    del self._accepted[key]
                case ContextRemoved(context):
                    self._claims.removed(context)
                case TaskRemoved(task_id):
                    self._removed[task_id] -= 1
                    self._removed += Counter()  # without zeros
        if not error:
            self._tell(changes)
        if then:
            then(error)

    def _tell(self, changes: Sequence[Change]) -> None:
        """Tell other servers about committed changes."""
        follows = self.hints.active
        for change in changes:
            if isinstance(change, EventBatch):
                if follows:
                    self.hints.committed(change)
            elif isinstance(change, TaskRemoved):
                self.hints.removed(change.task_id)
            elif isinstance(change, CommandDone):
                self.hints.say(change.sender, ["answered", change.id])

    # --- hints ---------------------------------------------------------------------------------

    def _say(self, node: str, said: Sequence[str]) -> None:
        self.hints.say(node, said)

    def _heard(self, payload: str) -> None:
        said = self.hints.heard(payload)
        if said:
            self._cluster.heard(said)

    def _catch_up(self) -> None:
        self.hints.catch_up()
        self._cluster.catch_up()

    async def _show_life(self) -> None:
        with contextlib.suppress(Unavailable):
            await self._reader.rows(_SEEN, self.node, self._writer.epoch)

    # --- fences --------------------------------------------------------------------------------

    async def claim(self, key: ContextKey, node: str, ttl: float) -> Fence | None:
        """The end of the lease of another server is not known here: its context is not taken."""
        return await self._claims.claim(key, node, ttl)

    async def renew(self, node: str, ttl: float) -> Sequence[Fence]:
        return await self._claims.renew(node, ttl)

    async def release(self, fence: Fence) -> None:
        await self._claims.release(fence)

    # --- reading -------------------------------------------------------------------------------

    async def follow(self, task_id: str, after: int) -> AsyncIterator[Sequence[EventBatch]]:
        with self.hints.feed(task_id) as feed:
            while head := await self.head(task_id):
                self.hints.ask(task_id, feed, head.node)
                if head.batches > after:
                    if not feed.hinted:  # the owner does not know, for example after its restart
                        feed.due = 0.0
                    try:
                        batches = await self.read(task_id, after)
                    except LookupError:  # removed meanwhile
                        return
                    after = batches[-1].number
                    yield batches
                elif head.state.terminal:
                    return
                else:
                    feed.hinted = False
                    while told := await feed.next(after, POLL):
                        batches, ended = told
                        if batches:
                            after = batches[-1].number
                            yield batches
                        if ended:
                            return
                        self.hints.ask(task_id, feed, head.node)


_ENTER = """
    INSERT INTO node (id, epoch, version, name) VALUES (%s, nextval('epochs'), %s, %s)
    ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch, state = 'up', seen = now(),
        version = excluded.version, name = excluded.name
    RETURNING epoch"""
_KEY = "SELECT hint_key FROM bus"
_SEEN = "UPDATE node SET seen = now() WHERE id = %s AND epoch = %s"
_PROGRESS = """
    INSERT INTO progress (node, written) VALUES (%s, 0)
    ON CONFLICT (node) DO UPDATE SET written = 0"""
# The tasks of an earlier incarnation stay tasks.
_SHOW = """
    UPDATE task SET hidden = false FROM context WHERE hidden AND context.node = %s
        AND context.agent = task.agent AND context.owner = task.owner
        AND context.id = task.context"""
# Servers that do not return: nothing waits for them.
_GONE = """
    DELETE FROM node WHERE state = 'fenced' AND seen < now() - interval '1 day'
        AND NOT EXISTS (SELECT 1 FROM context WHERE context.node = node.id)"""
_NOT_DECIDED = "DELETE FROM taken WHERE node = %s AND task IS NULL"
# Claims of an earlier incarnation for messages that it has not accepted.
_NOT_BEGUN = """
    DELETE FROM context WHERE node = %s AND start IS NULL AND NOT EXISTS (
        SELECT 1 FROM task WHERE task.agent = context.agent AND task.owner = context.owner
            AND task.context = context.id
            AND state NOT IN ('completed', 'canceled', 'failed', 'rejected'))"""
