"""A database that is written in groups, off the event loop. A writer continues at once, and gets a
callback when its rows are durable.

If a write fails (the disk is full, the file is locked), the waiting rows are kept and the write is
retried without a time limit; `problem` has the reason. On a full disk, the ballast is deleted
first: a file that reserves space. Running tasks can then be recorded, while new work is refused.
After an error the database is opened again, since a failed write may have left wrong data in its
cache.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from bridge.errors import ConfigurationError
from bridge.store.sqlite.journal_file import JournalFile, Row
from bridge.store.sqlite.thread import DatabaseThread

log = logging.getLogger(__name__)

T = TypeVar("T")
RETRY_FIRST, RETRY_LONGEST = 0.05, 2.0  # seconds between attempts to write
COPY_PAUSE = 0.02  # seconds for commits after each piece of a copy: at most 50 MB/s
MOST_WAITING = 16 * 1024 * 1024  # bytes: the output of the fastest agents for some seconds


def _size(row: Row) -> int:
    size = 0
    for value in row[1]:  # a plain loop, because this runs for each row
        if isinstance(value, bytes):
            size += len(value)
    return size


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that are committed together, of `size` bytes. `thens`: the calls after the commit."""

    rows: list[Row]
    thens: list[Callable[[], None]]
    size: int


class Journal:
    """`waiting`: the bytes that are not durable yet. `timed` gets the seconds of each commit.
    `close_within`: seconds to write the waiting
    rows when the server stops. `lock_wait` and `measure_every`: see JournalFile."""

    def __init__(
        self,
        path: Path,
        migrations: Sequence[str],
        *,
        lock_wait: float = 1.0,
        measure_every: int = 64 * 1024,
        close_within: float = 5.0,
    ) -> None:
        self._problem: str | None = None
        self._gone = False
        self.waiting = 0
        self.timed: Callable[[float], None] | None = None
        self.newest = 0
        self.relief: list[Callable[[], None]] = []  # calls for the end of a congestion
        self._path = path
        self._file = JournalFile(path, migrations, lock_wait=lock_wait, measure_every=measure_every)
        self._close_within = close_within
        self._rows: list[Row] = []
        self._thens: list[Callable[[], None]] = []
        self._thread = DatabaseThread("journal")
        self._loop = asyncio.get_running_loop()
        self._busy = False  # a commit is running or scheduled
        self._recovery: asyncio.Task[None] | None = None
        self._again: asyncio.TimerHandle | None = None
        self._closed = False

    async def open(self) -> None:
        """Raises ConfigurationError if the database cannot be opened."""
        self._closed = self._busy = False  # an abandoned journal can be opened again
        await self._run(self._file.open)

    async def close(self) -> None:
        """Write the waiting rows, for a limited time."""
        try:
            async with asyncio.timeout(self._close_within):
                await self.flushed()
        except TimeoutError:
            log.error("not all was written down", extra={"bytes": self.waiting})
        await self.abandon()
        self._thread.shutdown()

    async def abandon(self) -> None:
        """Close the file without another write, so that another file can take its place."""
        self._closed = True
        if self._recovery:
            self._recovery.cancel()
            await asyncio.wait([self._recovery])
        await self._run(self._file.close)

    @property
    def problem(self) -> str | None:
        """Why new changes cannot be made durable; None while they can. If the database was removed
        or replaced, running tasks continue, but their changes are lost at the end."""
        gone = self._file.is_gone()
        if gone and not self._gone:
            log.error("the state folder was removed or replaced", extra={"file": self._path})
        self._gone = gone
        text = f"{self._path} was removed or replaced while the server runs; restart the server"
        return text if gone else self._problem

    @property
    def size(self) -> int:
        """The bytes of the database, nearly."""
        return self._file.size

    @property
    def congested(self) -> bool:
        """Whether so many bytes wait that callers should add none."""
        return self.waiting > MOST_WAITING

    def write(self, *rows: Row, then: Callable[[], None] | None = None) -> None:
        """Write `rows` in one transaction, after all earlier rows. `then` is called once they are
        durable."""
        self._rows += rows
        self.waiting += sum(map(_size, rows))
        if then:
            self._thens.append(then)
        if not self._busy:
            self._soon()

    async def flushed(self) -> None:
        """Wait until all rows so far are durable."""
        durable = asyncio.Event()
        self.write(then=durable.set)
        await durable.wait()

    def number(self) -> int:
        """A new number, unique in this database."""
        self.newest += 1
        return self.newest

    async def read(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        return await self._run(lambda: self._file.connected().execute(query, values).fetchall())

    async def read_some(self, size: int, query: str, *values: object) -> list[tuple[Any, ...]]:
        """The first rows, until they have `size` bytes together; at least one if there is any."""
        return await self._run(lambda: self._file.first(size, query, values))

    async def copy(self, target: Path) -> None:
        """Copy the database to the new file `target`. Commits continue meanwhile and are in the
        copy. Raises sqlite3.Error, OSError and ConfigurationError; the file is incomplete then."""
        between = partial(self._thread.run_waiting, COPY_PAUSE)
        await self._run(lambda: self._file.copy(target, between))

    # --- writing -------------------------------------------------------------------------------

    def _soon(self) -> None:
        """Commit the waiting rows, after the callbacks of this moment have added theirs."""
        self._busy = True
        self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        if self._closed:
            return
        group = _Group(self._rows, self._thens, self.waiting)
        self._rows, self._thens = [], []
        if self._problem:
            self._recover(group)
        elif group.rows:
            attempt = self._thread.submit(self._file.write, group.rows, group.size)
            begun = time.monotonic()
            attempt.add_done_callback(
                lambda done: self._loop.call_soon_threadsafe(self._committed, group, done, begun)
            )
        else:
            self._durable(group)

    def _committed(self, group: _Group, attempt: Future[None], begun: float) -> None:
        if self._closed:
            return
        error = attempt.exception()
        if error:
            self._recover(group, error)
        else:
            if self.timed:
                self.timed(time.monotonic() - begun)
            self._durable(group)

    def _durable(self, group: _Group) -> None:
        """Make the calls that wait for the commit of the group."""
        self.waiting -= group.size
        thens = group.thens
        if not self.congested:
            thens, self.relief = thens + self.relief, []
        for then in thens:
            try:
                then()
            except Exception:
                log.exception("a callback after a commit failed")
        self._busy = False
        if self._rows or self._thens:
            self._soon()

    # --- when it cannot be written -------------------------------------------------------------

    def _recover(self, group: _Group, error: BaseException | None = None) -> None:
        self._recovery = asyncio.create_task(self._retry(group, error))

    async def _retry(self, group: _Group, error: BaseException | None) -> None:
        """Commit `group`, with retries until it succeeds. `error`: of the last attempt."""
        pause = RETRY_FIRST
        while True:
            try:
                if error:
                    raise error
                await self._run(lambda: self._file.write(group.rows, group.size))
                break
            except (sqlite3.Error, ConfigurationError) as failed:
                error = None
                if self._problem is None:
                    facts = {"event": "store.degraded", "problem": str(failed)}
                    log.error("nothing new is taken on", extra=facts)
                self._problem = str(failed)
                if not await self._run(self._file.throw_ballast):
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, RETRY_LONGEST)
        if await self._run(self._file.take_ballast):
            facts = {"event": "store.recovered"}
            log.info("writes to the database succeed again", extra=facts)
            self._problem = None
        else:  # earlier rows are committed, but new work is still refused
            if self._again:
                self._again.cancel()
            self._again = self._loop.call_later(RETRY_LONGEST, self._look)
        self._durable(group)

    def _look(self) -> None:
        if not self._busy:
            self._soon()

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
