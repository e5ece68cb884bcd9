"""The SQLite files of the server: private, migrated when they are opened, and durable.

WAL with `synchronous=FULL`: committed data survives a killed process and a power failure. With
NORMAL, a power cut loses acknowledged commits (measured). The exclusive lock keeps a second server
from the same file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bridge.errors import ConfigurationError
from bridge.errors.program import command
from bridge.files.folders import open_to_owner, sync
from bridge.files.own_modes import OTHERS, open_way
from bridge.store.sqlite.upgrade import keep_schema, kept_schemas

log = logging.getLogger(__name__)

USED = ("id", "tasks.db")  # each of these files marks a state folder


def open_database(
    path: Path, migrations: Sequence[str], lock_wait: float = 5.0
) -> sqlite3.Connection:
    """The database in `path` after all `migrations`. Each script brings it from the version that is
    its index to the next one. A database of an earlier version is copied first: see keep_schema().
    `lock_wait`: seconds to wait for a lock. Raises ConfigurationError."""
    try:
        private_directory(path.parent)
        _private_file(path)
    except OSError as error:
        raise ConfigurationError(f"cannot use {error.filename}: {error.strerror}") from error
    database = sqlite3.connect(
        path, timeout=lock_wait, isolation_level=None, check_same_thread=False
    )
    try:
        _prepare(database, path, migrations)
    except OSError as error:  # of the copy
        database.close()
        raise ConfigurationError(f"cannot use {error.filename}: {error.strerror}") from error
    except sqlite3.Error as error:  # such as a lock, or a file of another kind
        database.close()
        raise ConfigurationError(f"cannot open {path}: {error}") from error
    except BaseException:
        database.close()
        raise
    return database


def _prepare(database: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
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
        raise ConfigurationError(_too_new(path, version, len(migrations)))
    if version == len(migrations):
        return
    if version:
        keep_schema(database, path, version)
    # All in one transaction: a crash leaves the version that was kept, or the newest one.
    scripts = ";".join(migrations[version:])
    database.executescript(
        f"BEGIN IMMEDIATE; {scripts}; PRAGMA user_version = {len(migrations)}; COMMIT;"
    )


def _too_new(path: Path, version: int, known: int) -> str:
    text = (
        f"{path} was written by a newer version of the bridge: it has schema {version}, and this "
        f"version reads up to {known}. Use the newer version"
    )
    if any(schema <= known for schema in kept_schemas(path)):
        return f"{text}, or return to the tasks before its upgrade: {command('rollback')}"
    return f"{text}, or begin with a backup of this version: {command('restore')}"


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Commit all statements of the block, or none of them."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def private_directory(path: Path) -> None:
    """Create the folder, or check that only the server's user can access it. Raises
    ConfigurationError if other users can access it, OSError if it cannot be created or opened. A
    folder that a server has used before is closed to them again, since an agent may have opened
    it. Any other folder is not changed, since it may serve another purpose. A group may pass
    through: the user of BRIDGE_SANDBOX_USER reaches its own files that way."""
    open_way(path)  # else an agent could block the next start
    new = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for one in new:
        sync(one.parent)  # else a power cut can lose it with its content
    open_to_owner(path)
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


def _private_file(path: Path) -> None:
    """Create the file before SQLite does. SQLite gives its other files the same mode."""
    for one in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        with contextlib.suppress(FileNotFoundError):
            open_to_owner(one)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
    finally:
        os.close(fd)
