"""The upgrade of the tasks of a server: a dry run on a copy, and the way back."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from bridge.errors import ConfigurationError
from bridge.server.state_dir import DATABASE, in_use, was_locked
from bridge.store.sqlite.backup import check_copy, count_tasks
from bridge.store.sqlite.schema import MIGRATIONS
from bridge.store.sqlite.store import SqliteStore
from bridge.store.sqlite.upgrade import RolledBack, roll_back


@dataclass(frozen=True, slots=True)
class DryRun:
    """A migration of a copy. `before`, `after`: the schemas. `tasks`: their number. `seconds`: the
    time until the store was open. `needed`: bytes of disk that the real one needs."""

    before: int
    after: int
    tasks: int
    seconds: float
    needed: int


async def try_migration(copy: Path) -> DryRun:
    """Open the copy of a database as a start of the server does, which changes the copy. Raises
    ConfigurationError if the migration fails or loses a task."""
    before, tasks, size = _facts(copy)
    if before > len(MIGRATIONS):
        raise ConfigurationError(
            f"it has schema {before}, and this version reads up to {len(MIGRATIONS)}"
        )
    began = time.monotonic()
    store = SqliteStore(copy)
    try:
        await store.open()
    except sqlite3.DatabaseError as error:
        raise ConfigurationError(f"the migration failed: {error}") from error
    seconds = time.monotonic() - began
    await store.close()
    after, left, _ = _facts(copy)
    if left != tasks:
        raise ConfigurationError(f"the migration would leave {left} of {tasks} tasks")
    return DryRun(before, after, tasks, seconds, 2 * size)


def _facts(copy: Path) -> tuple[int, int, int]:
    """The schema, the number of tasks, and the bytes of an intact copy."""
    return check_copy(copy), count_tasks(copy), copy.stat().st_size


def return_to_kept(folder: Path) -> RolledBack:
    """Put the tasks of before the last upgrade back into a state folder whose server is stopped.
    Raises ConfigurationError."""
    path = folder / DATABASE
    if not path.is_file():
        raise ConfigurationError(f"{folder} is not the state folder of a server")
    try:
        return roll_back(path, len(MIGRATIONS))
    except ConfigurationError as error:
        if was_locked(error.__cause__):
            raise ConfigurationError(in_use(folder)) from error
        raise
