"""The writer of the PostgreSQL store: all waiting appends are one transaction in one round trip.

An append that cannot be committed (a lost fence, a conflict, a defect) makes its group fail. Then
each append gets a transaction of its own, so that only this one is rejected. If the database does
not answer, the group is kept and written again, without a limit of time. The transaction counts the
groups of this incarnation (`progress`): a group whose commit was not acknowledged is written once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psycopg

from bridge.store.changes import Change, EventBatch, Fence, OutputRead
from bridge.store.journal import MOST_WAITING, RETRY_FIRST, RETRY_LONGEST
from bridge.store.postgres.connect import (
    Connection,
    DatabaseAddress,
    cut,
    is_defect,
    show_presence,
)
from bridge.store.postgres.schema import CONFLICT, FENCE_LOST, FENCED, WRITTEN
from bridge.store.postgres.sealing import Seal
from bridge.store.postgres.statements import ChangeGroup, Statement
from bridge.store.protocol import Conflict, FenceLost, OnCommit, StoreError

log = logging.getLogger(__name__)

ANSWER_WITHIN = 30.0  # seconds for the answer to a group; then its connection is cut
END_WITHIN = 10.0  # seconds for the end of a wait that is canceled
REASON_WITHIN = 3.0  # seconds for the question why this incarnation has ended
SLOW = 3.0  # seconds after which a missing answer is a problem
ROW = 100  # least bytes of a change


@dataclass(slots=True, eq=False)
class _Append:
    changes: Sequence[Change]
    fence: Fence | None
    then: Callable[[StoreError | None], None]
    error: StoreError | None
    size: int


class _Rejected(Exception):
    """A group that cannot be committed."""


class PostgresWriter:
    """`node`: the id of this server. `epoch`: its present incarnation. `waiting`: the bytes that
    are not committed. `on_fenced` is called once, when this incarnation has ended: with True if
    another server uses the identity, with False if another node has fenced this one.
    `answer_within`: seconds for the answer to a group; `lease`: of the node, in seconds.
    `timed` gets the seconds of each commit."""

    def __init__(
        self,
        address: DatabaseAddress,
        node: str,
        seal: Seal | None,
        on_fenced: Callable[[bool], None],
        *,
        answer_within: float = ANSWER_WITHIN,
        lease: float = 15.0,
    ) -> None:
        self._answer_within = answer_within
        self._lease = lease
        self.epoch = 0
        self.waiting = 0
        self.timed: Callable[[float], None] | None = None
        self.relief: list[Callable[[], None]] = []
        self.fenced = False
        self._address = address
        self._node = node
        self._seal = seal
        self._on_fenced = on_fenced
        self._connection: Connection | None = None
        self._queue: list[_Append] = []
        self._written = 0  # groups of this incarnation that are committed
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._problem: str | None = None
        self._lost = False  # the database has lost commits
        self._timeline = ""
        self._since: float | None = None  # the time when the present group was sent

    def start(self, connection: Connection, epoch: int) -> None:
        """Write on `connection`, as the incarnation `epoch`."""
        self._connection, self.epoch, self._written = connection, epoch, 0
        self._task = asyncio.create_task(self._run())

    async def close(self, within: float) -> None:
        """Commit the waiting appends, for `within` seconds."""
        if self._task is None:
            return
        try:
            async with asyncio.timeout(within):
                await self.flushed()
        except TimeoutError:
            log.error("not all was written down", extra={"bytes": self.waiting})
        await self.abandon()

    async def abandon(self) -> None:
        """Stop without another commit."""
        if self._task:
            if self._connection:
                cut(self._connection)
            self._task.cancel()
            await asyncio.wait([self._task], timeout=END_WITHIN)
            self._task = None
        await self._drop()

    @property
    def problem(self) -> str | None:
        if self._lost:
            return f"{self._address.shown} has lost acknowledged commits: see the log"
        if self.fenced:
            return f"the incarnation of this server has ended ({self._node}): it restarts"
        if self._problem is None and self._since is not None:
            if asyncio.get_running_loop().time() - self._since > SLOW:
                return f"{self._address.shown} does not answer"
        return self._problem

    @property
    def congested(self) -> bool:
        return self.waiting > MOST_WAITING

    def write(
        self,
        changes: Sequence[Change],
        fence: Fence | None,
        error: StoreError | None,
        then: OnCommit,
    ) -> None:
        """Commit the changes after all earlier ones; `then` gets the result. With `error`, they are
        rejected already, and `then` keeps its place in the order."""
        size = sum(map(_size, changes))
        self.waiting += size
        self._queue.append(_Append(changes, fence, then, error, size))
        self._wake.set()

    async def flushed(self) -> None:
        """Wait until all appends so far are committed or rejected."""
        done = asyncio.Event()
        self.write((), None, None, lambda error: done.set())
        await done.wait()

    # --- the loop ------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._queue:
                    appends, self._queue = self._queue, []
                    await self._commit([one for one in appends if not one.error])
                    self._answer(appends)
        finally:
            await self._drop()

    def _answer(self, appends: Sequence[_Append]) -> None:
        self.waiting -= sum(one.size for one in appends)
        for one in appends:
            _call(lambda one=one: one.then(one.error))  # type: ignore[misc]
        if not self.congested:
            calls, self.relief = self.relief, []
            for call in calls:
                _call(call)

    async def _commit(self, appends: Sequence[_Append]) -> None:
        """Commit the appends together; if one of them is wrong, one by one."""
        wrote = [one for one in appends if one.changes or one.fence]
        if not wrote:
            return
        try:
            await self._write(wrote)
        except _Rejected as rejected:
            if len(wrote) == 1 or self.fenced:
                for one in wrote:
                    one.error = self._reason(rejected.__cause__)
                return
            for one in wrote:
                await self._commit([one])

    def _reason(self, cause: BaseException | None) -> StoreError:
        state = getattr(cause, "sqlstate", None)
        if self._lost:
            return FenceLost("the database has lost earlier commits")
        if self.fenced:
            return FenceLost("the incarnation of this server has ended")
        if state == FENCE_LOST:
            return FenceLost("another claim has taken the context")
        if state == CONFLICT:
            return Conflict("the message belongs to another task")
        log.error("an append cannot be written", exc_info=cause)
        return StoreError("the store cannot write this")

    async def _write(self, appends: Sequence[_Append]) -> None:
        """Commit the appends in one transaction, with retries until the database answers. Raises
        _Rejected."""
        pause, loop = RETRY_FIRST, asyncio.get_running_loop()
        while True:
            if self.fenced:
                raise _Rejected
            begun = loop.time()
            try:
                await self._attempt(appends)
                if self.timed:
                    self.timed(loop.time() - begun)
                break
            except Exception as error:
                if getattr(error, "sqlstate", None) == WRITTEN:
                    await self._roll_back()
                    if await self._has_written():  # an earlier attempt has committed it
                        break
                    continue
                await self._failed(error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_LONGEST)
        self._written += 1
        if self._problem:
            log.info("writes to the database succeed again", extra={"event": "store.recovered"})
            self._problem = None

    async def _has_written(self) -> bool:
        """Whether the database has the present group. False: it has lost earlier ones, and this
        incarnation is fenced; or it does not answer now."""
        try:
            connection = self._connection or await self._connect()
            await self._verify(connection)
        except Exception as error:
            await self._failed(error)
            return False
        if self._ending:
            await self._ending
        return not self.fenced

    async def _failed(self, error: Exception) -> None:
        """Prepare another attempt. Raises _Rejected if it would have the same result."""
        state = getattr(error, "sqlstate", None)
        if state == FENCED:
            self.fence()
            assert self._ending
            await self._ending
        if state in (FENCED, FENCE_LOST, CONFLICT) or is_defect(error):
            await self._roll_back()
            raise _Rejected from error
        await self._drop()
        cause = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        if self._problem is None:
            facts = {"event": "store.degraded", "problem": cause}
            log.error("nothing new is taken on", extra=facts)
        self._problem = f"{self._address.shown} cannot be written: {cause}"

    def fence(self) -> None:
        """This incarnation has ended: reject all appends as soon as the reason is known."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        copied = False
        try:
            async with asyncio.timeout(REASON_WITHIN), await self._address.connect() as connection:
                found = await connection.execute(_STATE, (self._node,))
                copied = await found.fetchone() == ("up",) and not self._lost
        except (psycopg.Error, OSError, TimeoutError) as error:
            log.warning("the reason of the fence is unknown", extra={"error": str(error).strip()})
        self.fenced = True
        reason = (
            "another server uses the identity of this one" if copied else "it was taken for lost"
        )
        if self._lost:
            reason = "the database has lost acknowledged commits"
        log.error("this incarnation has ended: %s", reason, extra={"node": self._node})
        self._on_fenced(copied)
        if self._connection:
            cut(self._connection)  # no answer matters any more

    async def _attempt(self, appends: Sequence[_Append]) -> None:
        loop = asyncio.get_running_loop()
        self._since = loop.time()
        try:
            connection = self._connection or await self._connect()
            limit = loop.call_later(self._answer_within, cut, connection)
            try:
                await self._send(connection, appends)
            finally:
                limit.cancel()
        finally:
            self._since = None

    async def _send(self, connection: Connection, appends: Sequence[_Append]) -> None:
        group = ChangeGroup(self._node, self.epoch, self._seal)
        for one in appends:
            group.add(one.changes)
        fences = (one.fence for one in appends if one.fence)
        first, *others = group.statements(self._written + 1, fences)
        if not others:  # a transaction of its own
            await _execute(connection, first)
            return
        async with connection.pipeline():
            await connection.execute(b"BEGIN")
            for statement in (first, *others):
                await _execute(connection, statement)
            ended = await connection.execute(b"COMMIT")
        if ended.statusmessage != "COMMIT":
            raise psycopg.OperationalError(f"the answer to COMMIT is {ended.statusmessage}")

    # --- the connection ------------------------------------------------------------------------

    async def _connect(self) -> Connection:
        async with asyncio.timeout(ANSWER_WITHIN):
            connection = self._connection = await self._address.connect()
            await show_presence(connection, self._node, self._lease)
            await self._verify(connection)
        return connection

    async def _verify(self, connection: Connection) -> None:
        """Check that the database still has all groups that it has acknowledged: a failover to an
        asynchronous standby, or a backup, may lack some. Then this incarnation ends, because its
        memory is ahead of the tables; the next one begins with the tables."""
        found = await (await connection.execute(_PROGRESS, (self._node,))).fetchall()
        epoch, written, timeline = found[0] if found else (self.epoch, 0, self._timeline)
        if self._timeline and timeline != self._timeline:
            log.warning("the database has failed over", extra={"timeline": timeline})
        self._timeline = timeline
        if epoch != self.epoch:
            self.fence()
        elif written < self._written:
            facts = {"acknowledged": self._written, "stored": written}
            log.error("the database has lost acknowledged commits", extra=facts)
            self._lost = True
            self.fence()

    async def _roll_back(self) -> None:
        try:
            if self._connection:
                await self._connection.rollback()
        except (psycopg.Error, OSError):
            await self._drop()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            with contextlib.suppress(psycopg.Error, OSError):
                await connection.close()


_PROGRESS = b"""
    SELECT epoch, written, left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
    FROM node JOIN progress ON progress.node = id WHERE id = %s"""


_STATE = "SELECT state FROM node WHERE id = %s"


async def _execute(connection: Connection, statement: Statement) -> None:
    await connection.execute(statement[0].encode(), statement[1], prepare=True)


def _call(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        log.exception("a callback after a commit failed")


def _size(change: Change) -> int:
    match change:
        case EventBatch():
            return ROW + len(change.events)
        case OutputRead():
            return ROW
    values = (getattr(change, name, b"") for name in ("prompt", "start", "given"))
    return ROW + sum(map(len, values))
