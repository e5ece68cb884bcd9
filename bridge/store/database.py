"""SQLite files of the server's own: private, brought up to date, and durable.

WAL with `synchronous=FULL`: what was committed is there after the process was killed and after
the power failed; with NORMAL, a power cut takes acknowledged commits away (measured). The exclusive
lock keeps a second server from the same file.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bridge.errors import ConfigurationError
from bridge.files.folders import open_to_owner

log = logging.getLogger(__name__)

OTHERS = 0o067  # what others than the owner may not do in a private folder; a group may pass
USED = ("id", "tasks.db")  # files that a folder of a server's state has


def open_database(
    path: Path | None, migrations: Sequence[str], lock_wait: float = 5.0
) -> sqlite3.Connection:
    """The database in `path`, or one in memory, after all of `migrations`: each brings it from
    the version that is its index to the next. Raises ConfigurationError."""
    try:
        if path:
            private_directory(path.parent)
            _private_file(path)
    except OSError as error:
        raise ConfigurationError(f"cannot use {error.filename}: {error.strerror}") from error
    name = str(path) if path else ":memory:"
    database = sqlite3.connect(
        name, timeout=lock_wait, isolation_level=None, check_same_thread=False
    )
    try:
        _prepare(database, name, migrations)
    except sqlite3.Error as error:  # such as locked by another server, or no database
        database.close()
        raise ConfigurationError(f"cannot open {name}: {error}") from error
    except BaseException:
        database.close()
        raise
    return database


def _prepare(database: sqlite3.Connection, name: str, migrations: Sequence[str]) -> None:
    database.executescript(
        """
        PRAGMA locking_mode = EXCLUSIVE;
        PRAGMA journal_mode = WAL;
        PRAGMA synchronous = FULL;
        PRAGMA foreign_keys = ON;
        """
    )
    ((version,),) = database.execute("PRAGMA user_version")
    if version > len(migrations):
        raise ConfigurationError(f"{name} was written by a newer version of the bridge")
    for number, script in enumerate(migrations[version:], version + 1):
        database.executescript(
            f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {number}; COMMIT;"
        )


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def private_directory(path: Path) -> None:
    """Make it, or see that it is ours alone. Raises ConfigurationError if others can look into it,
    OSError if it cannot be had. One that a server has used before is closed to them again: an agent
    may have opened it. Any other is not changed, since it may serve another purpose. A group may
    pass through, as the user of BRIDGE_SANDBOX_USER does to what is his."""
    new = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for one in new:
        sync_directory(one.parent)  # else its name, and with it all in there, can be lost
    open_to_owner(path)  # or an agent could keep the next start out
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not found.st_mode & OTHERS:
            return
        if found.st_uid != os.geteuid() or not was_used(path):
            text = f"others can look into {path}, which will hold secrets: chmod 700"
            raise ConfigurationError(text)
        os.fchmod(fd, stat.S_IMODE(found.st_mode) & ~OTHERS)
        log.warning("others could look into a folder of the server", extra={"folder": path})
    finally:
        os.close(fd)


def was_used(path: Path) -> bool:
    """Whether a server has kept its state in the folder before."""
    return any((path / name).is_file() for name in USED)


def sync_directory(path: Path) -> None:
    """Have the names in it survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _private_file(path: Path) -> None:
    """Make it before SQLite does, whose other files get the same mode."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
    finally:
        os.close(fd)
