"""Copies of a database: made while it is written, checked, and prepared for another server."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

from bridge.errors import ConfigurationError
from bridge.files.folders import NEW_FILE

STEP = 256  # pages that are copied between two commits


def copy_database(
    source: sqlite3.Connection, target: Path, between: Callable[[], None] = lambda: None
) -> None:
    """Copy the database to the new private file `target`, in steps of STEP pages. `between` is
    called after each step; commits that it makes by the same connection are in the copy. The copy
    is one file, which is not synced. A failure leaves an incomplete file. Raises sqlite3.Error,
    OSError, and the errors of `between`."""
    fd = os.open(target, NEW_FILE & ~os.O_WRONLY | os.O_RDWR, 0o600)
    try:

        def step(status: int, left: int, pages: int) -> None:
            # Begin to write it to the disk now: a large file that is written at once at the end
            # would delay the commits.
            if sys.platform == "linux":
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            between()

        with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy:
            # It is new: after a crash, nothing in it has to be restored.
            copy.executescript("PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = OFF;")
            copy.execute("PRAGMA synchronous = OFF")
            source.backup(copy, pages=STEP, progress=step)
        os.pwrite(fd, b"\1\1", 18)  # from WAL to one file: bytes 18 and 19 of the format
    finally:
        os.close(fd)


def check_copy(path: Path) -> int:
    """The schema of an intact copy. Changes nothing. Raises ConfigurationError."""
    try:
        with contextlib.closing(_read_only(path)) as database:
            found = database.execute("PRAGMA integrity_check(1)").fetchall()
            ((schema,),) = database.execute("PRAGMA user_version")
    except sqlite3.Error as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    if found != [("ok",)]:
        raise ConfigurationError(f"{path} is damaged: {found[0][0]}")
    return int(schema)


def count_tasks(path: Path) -> int:
    """The number of tasks in a copy. Raises sqlite3.Error for an unknown schema."""
    with contextlib.closing(_read_only(path)) as database:
        ((count,),) = database.execute("SELECT count(*) FROM task")
        return int(count)


def prepare_copy(path: Path, *, notify: bool) -> int:
    """Let the next server end the open tasks of a copy. Its sessions are removed, and every open
    task counts as begun, because the other server may have begun it since: its prompt is never sent
    again. Without `notify`, the push configs are removed, too: the receivers would get
    notifications of both servers. Returns the number of removed push configs. Raises
    sqlite3.Error."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.executescript("PRAGMA foreign_keys = ON; PRAGMA journal_mode = DELETE")
        database.execute("BEGIN IMMEDIATE")
        database.execute("DELETE FROM session")
        database.execute("UPDATE task SET begun = 1")
        known = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'push'").fetchall()
        removed = database.execute("DELETE FROM push").rowcount if known and not notify else 0
        database.execute("COMMIT")
    return removed


def _read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
