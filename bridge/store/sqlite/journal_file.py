"""The database of the journal and its ballast. A journal calls it in one thread."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bridge.errors import ConfigurationError
from bridge.files.own_modes import open_way
from bridge.store.sqlite.backup import copy_database
from bridge.store.sqlite.database import open_database, transaction

log = logging.getLogger(__name__)

Row = tuple[str, tuple[Any, ...]]
"""A statement and its values."""
ROW = 100  # least bytes of a row
BALLAST = 8 * 1024 * 1024  # bytes of disk that are reserved for a full disk


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _is_bug(error: Exception) -> bool:
    """Whether the statement or its values are wrong, so that a retry cannot succeed."""
    if isinstance(error, sqlite3.OperationalError):
        return error.sqlite_errorcode == sqlite3.SQLITE_ERROR
    wrong = (sqlite3.ProgrammingError, sqlite3.IntegrityError, sqlite3.InterfaceError)
    return isinstance(error, wrong) or not isinstance(error, sqlite3.Error | ConfigurationError)


class JournalFile:
    """`size`: the bytes of the database; up to `measure_every` bytes that were written last may be
    missing in it."""

    def __init__(
        self, path: Path, migrations: Sequence[str], *, lock_wait: float, measure_every: int
    ) -> None:
        self.size = 0
        self._path = path
        self._ballast = path.with_name("ballast")
        self._migrations = migrations
        self._lock_wait = lock_wait
        self._measure_every = measure_every
        self._unmeasured = 0  # bytes that were written since the last measurement
        self._database: sqlite3.Connection | None = None
        self._file: os.stat_result | None = None  # of the database that is open

    def open(self) -> None:
        """Raises ConfigurationError if the database cannot be opened."""
        self._file = None
        self._connect()
        self._measure()
        self.take_ballast()

    def is_gone(self) -> bool:
        """Whether the database that is open was removed or replaced."""
        return self._file is not None and not self._in_place()

    def _in_place(self) -> bool:
        """Whether the path still leads to the database that is open."""
        try:
            try:
                found = os.stat(self._path)
            except PermissionError:  # an agent has closed a folder above
                open_way(self._path)
                found = os.stat(self._path)
        except OSError:
            return False
        return self._file is not None and os.path.samestat(found, self._file)

    def take_ballast(self) -> bool:
        """Reserve space for running tasks on a full disk. False: the disk has too little."""
        try:
            with open(self._ballast, "ab", opener=_private) as file:
                os.posix_fallocate(file.fileno(), 0, BALLAST)
        except OSError:
            self._ballast.unlink(missing_ok=True)
            return False
        return True

    def throw_ballast(self) -> bool:
        """Free the reserved space; False if that was done before."""
        try:
            self._ballast.unlink()
        except OSError:
            return False
        return True

    def write(self, rows: list[Row], size: int) -> None:
        """Commit rows of `size` bytes. A row that cannot be written because of a bug must not block
        the others."""
        try:
            self._commit(rows)
        except Exception as error:
            if not _is_bug(error):
                raise
            for row in rows:
                self._commit_one(row)
        self._unmeasured += size + ROW * len(rows)
        if self._unmeasured > self._measure_every:
            self._measure()

    def _commit_one(self, row: Row) -> None:
        try:
            self._commit([row])
        except Exception as error:
            if not _is_bug(error):
                raise
            log.exception("a row cannot be written", extra={"statement": row[0]})

    def _commit(self, rows: list[Row]) -> None:
        database = self.connected()
        try:
            with transaction(database):
                for statement, values in rows:
                    database.execute(statement, values)
        except sqlite3.Error as error:
            if not _is_bug(error):
                self.close()
            raise

    def first(self, size: int, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        with contextlib.closing(self.connected().execute(query, values)) as cursor:
            for row in cursor:
                rows.append(row)
                size -= sum(len(value) for value in row if isinstance(value, bytes))
                if size <= 0:
                    break
        return rows

    def copy(self, target: Path, between: Callable[[], None]) -> None:
        """See copy_database(). `between` makes the commits that wait; one that fails ends the copy,
        because it closes the database."""
        source = self.connected()

        def step() -> None:
            between()
            if self._database is not source:
                raise ConfigurationError("the database was closed while it was copied")

        copy_database(source, target, step)

    def _measure(self) -> None:
        self._unmeasured = 0
        with contextlib.suppress(sqlite3.Error):
            ((pages,), (free,), (size,)) = (
                self.connected().execute(f"PRAGMA {name}").fetchone()
                for name in ("page_count", "freelist_count", "page_size")
            )
            self.size = (pages - free) * size

    def connected(self) -> sqlite3.Connection:
        if self._database is None:
            self._connect()
        assert self._database
        return self._database

    def _connect(self) -> None:
        if self._file and not self._in_place():  # a new file must not pass for the old one
            raise ConfigurationError(f"{self._path} is not the database any more that it was")
        self._database = open_database(self._path, self._migrations, self._lock_wait)
        self._file = os.stat(self._path)

    def close(self) -> None:
        database, self._database = self._database, None
        if database:
            database.close()
