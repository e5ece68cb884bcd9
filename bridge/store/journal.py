"""A database that is written in groups, off the event loop. Whoever writes goes on at once, and is
told when what was written is durable.

When it cannot be written (the disk is full, the file is locked), what waits is kept and attempted
again for as long as it takes; `problem` says why. A full disk takes ballast first: a file that is
thrown away then, so that what runs can be written down while nothing new is taken on. After an
error the database is opened anew: what a failed write has left in a cache is not to be believed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from bridge.errors import ConfigurationError
from bridge.store.database import open_database, transaction

log = logging.getLogger(__name__)

T = TypeVar("T")
Row = tuple[str, tuple[Any, ...]]
"""A statement and its values."""
RETRY_FIRST, RETRY_LONGEST = 0.05, 2.0  # seconds between attempts to write
MOST_WAITING = 16 * 1024 * 1024  # bytes: seconds of the fastest agents
BALLAST = 8 * 1024 * 1024  # bytes of disk that are kept free for the time when nothing else is
CLOSE_WITHIN = 5.0  # seconds to write what waits when the server stops


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _is_bug(error: Exception) -> bool:
    """Whether it is the statement or its values that are wrong, which no time mends."""
    if isinstance(error, sqlite3.OperationalError):
        return error.sqlite_errorcode == sqlite3.SQLITE_ERROR
    wrong = (sqlite3.ProgrammingError, sqlite3.IntegrityError, sqlite3.InterfaceError)
    return isinstance(error, wrong) or not isinstance(error, sqlite3.Error | ConfigurationError)


class Journal:
    """`problem` is None while all is well. `waiting` counts the bytes that are not durable yet,
    `size` those of the database."""

    def __init__(self, path: Path, migrations: Sequence[str], lock_wait: float = 1.0) -> None:
        self.problem: str | None = None
        self.waiting = 0
        self.size = 0
        self.newest = 0
        self.relief: list[Callable[[], None]] = []  # what to call once it is not congested
        self._path = path
        self._ballast = path.with_name("ballast")
        self._migrations = migrations
        self._lock_wait = lock_wait
        self._rows: list[Row] = []
        self._thens: list[Callable[[], None]] = []
        self._wanted = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._database: sqlite3.Connection | None = None
        self._writer: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Raises ConfigurationError if the database cannot be had."""
        await self._run(self._connect)
        await self._run(self._take_ballast)
        self._writer = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Write what waits, if that can be done within CLOSE_WITHIN."""
        try:
            async with asyncio.timeout(CLOSE_WITHIN):
                await self.flushed()
        except TimeoutError:
            log.error("not all was written down", extra={"bytes": self.waiting})
        if self._writer:
            self._writer.cancel()
            await asyncio.wait([self._writer])
        await self._run(self._disconnect)
        self._thread.shutdown()

    async def abandon(self) -> None:
        """Close the file without writing anything more, so that another can take its place."""
        if self._writer:
            self._writer.cancel()
            await asyncio.wait([self._writer])
        await self._run(self._disconnect)

    @property
    def congested(self) -> bool:
        """So much waits to be written that nothing should be added."""
        return self.waiting > MOST_WAITING

    def write(self, *rows: Row, then: Callable[[], None] | None = None) -> None:
        """Have `rows` written in one transaction, after all that was to be written before. `then`
        is called once they are durable."""
        self._rows += rows
        self.waiting += sum(len(v) for _, vs in rows for v in vs if isinstance(v, bytes))
        if then:
            self._thens.append(then)
        self._wanted.set()

    async def flushed(self) -> None:
        """Until all that has been written is durable."""
        durable = asyncio.Event()
        self.write(then=durable.set)
        await durable.wait()

    def number(self) -> int:
        """A number that nobody else gets."""
        self.newest += 1
        return self.newest

    async def read(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        return await self._run(lambda: self._connected().execute(query, values).fetchall())

    async def read_some(self, size: int, query: str, *values: object) -> list[tuple[Any, ...]]:
        """The first rows, as many as have `size` bytes, and at least one if there is any."""
        return await self._run(lambda: self._first(size, query, values))

    # --- writing -------------------------------------------------------------------------------

    async def _write(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), RETRY_LONGEST if self.problem else None)
            self._wanted.clear()
            rows, thens, size = self._rows, self._thens, self.waiting
            self._rows, self._thens = [], []
            if rows or self.problem:
                await self._insist(rows)
            self.waiting -= size
            if not self.congested:
                thens, self.relief = thens + self.relief, []
            for then in thens:
                try:
                    then()
                except Exception:
                    log.exception("what follows from a commit failed")
            rows, thens = [], []  # which may be much, until there is something to write again

    async def _insist(self, rows: list[Row]) -> None:
        """Commit `rows`, as often as it takes."""
        pause = RETRY_FIRST
        while True:
            try:
                await self._run(lambda: self._commit_what_can_be(rows))
                break
            except (sqlite3.Error, ConfigurationError) as error:
                if self.problem is None:
                    log.error("nothing new is taken on", extra={"error": error})
                self.problem = str(error)
                if not await self._run(self._throw_ballast):
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, RETRY_LONGEST)
        if self.problem:
            well = await self._run(self._take_ballast)
            if well:
                log.warning("what happens can be written down again")
                self.problem = None

    # --- in the database's thread --------------------------------------------------------------

    def _take_ballast(self) -> bool:
        """Set room aside for what runs already when the disk is full. False: there is none."""
        try:
            with open(self._ballast, "ab", opener=_private) as file:
                os.posix_fallocate(file.fileno(), 0, BALLAST)
        except OSError:
            self._ballast.unlink(missing_ok=True)
            return False
        return True

    def _throw_ballast(self) -> bool:
        """Make room; False if that was done before."""
        try:
            self._ballast.unlink()
        except OSError:
            return False
        return True

    def _commit_what_can_be(self, rows: list[Row]) -> None:
        """A row that a bug makes impossible to write must not stop the rest."""
        try:
            self._commit(rows)
        except Exception as error:
            if not _is_bug(error):
                raise
            for row in rows:
                self._commit_one(row)
        self._measure()

    def _commit_one(self, row: Row) -> None:
        try:
            self._commit([row])
        except Exception as error:
            if not _is_bug(error):
                raise
            log.exception("a row cannot be written", extra={"statement": row[0]})

    def _commit(self, rows: list[Row]) -> None:
        database = self._connected()
        try:
            with transaction(database):
                for statement, values in rows:
                    database.execute(statement, values)
        except sqlite3.Error as error:
            if not _is_bug(error):
                self._disconnect()
            raise

    def _first(self, size: int, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        with contextlib.closing(self._connected().execute(query, values)) as cursor:
            for row in cursor:
                rows.append(row)
                size -= sum(len(value) for value in row if isinstance(value, bytes))
                if size <= 0:
                    break
        return rows

    def _measure(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            ((pages,), (free,), (size,)) = (
                self._connected().execute(f"PRAGMA {name}").fetchone()
                for name in ("page_count", "freelist_count", "page_size")
            )
            self.size = (pages - free) * size

    def _connected(self) -> sqlite3.Connection:
        if self._database is None:
            self._connect()
        assert self._database
        return self._database

    def _connect(self) -> None:
        self._database = open_database(self._path, self._migrations, self._lock_wait)

    def _disconnect(self) -> None:
        database, self._database = self._database, None
        if database:
            database.close()

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
