"""The upgrade of a database and the way back.

A start that migrates keeps the database of before in `tasks.db.schema-N`, where N is its schema.
roll_back() puts that file back. The database that it replaces is kept, too, in
`tasks.db.rolled-back-TIME`. Files that are no longer needed are removed by the operator.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bridge.errors import ConfigurationError
from bridge.files.folders import NEW_FILE, sync
from bridge.store.sqlite.backup import check_copy, copy_database, prepare_copy

SPARE = 16 * 1024 * 1024  # bytes that a migration leaves free
LOCK_WAIT = 0.2  # seconds
_KEPT = re.compile(r"\.(schema-\d+|damaged-[\d-]+|rolled-back-[\d-]+)")


@dataclass(frozen=True, slots=True)
class RolledBack:
    """`schema`: of the database that is in place now. `aside`: the path of the other one. `lost`:
    the tasks that only the other one has; `changed`: those with later events there. Both are None
    if its schema is unknown."""

    schema: int
    aside: Path
    lost: int | None
    changed: int | None


def kept_schemas(path: Path) -> dict[int, Path]:
    """The files `tasks.db.schema-N` of the database, by N."""
    found = ((one, re.fullmatch(r".*\.schema-(\d+)", one.name)) for one in _beside(path))
    return {int(name[1]): one for one, name in found if name}


def kept_files(path: Path) -> list[str]:
    """The names of the files that were kept beside the database, for the operator to remove:
    `schema-N`, `damaged-TIME`, `rolled-back-TIME`."""
    return sorted(
        one.name
        for one in _beside(path)
        if _KEPT.fullmatch(one.name.removeprefix(path.name)) and not _is_alias(one, path)
    )


def _beside(path: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from (one for one in path.parent.iterdir() if one.name.startswith(f"{path.name}."))


def check_room(folder: Path, needed: int, purpose: str) -> None:
    """Raise ConfigurationError if the disk of the folder has less than `needed` bytes."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        sizes = f"{_megabytes(needed)} needed, {_megabytes(free)} free"
        raise ConfigurationError(f"no room in {folder} for {purpose}: {sizes}. Free some space")


def _megabytes(size: int) -> str:
    return f"{-(-size // 1024**2)} MB"


def keep_schema(database: sqlite3.Connection, path: Path, schema: int) -> None:
    """Copy the database, which has this schema, to `tasks.db.schema-N`. The copies of earlier
    schemas are removed after that. Raises ConfigurationError without room for the copy and the
    migration; sqlite3.Error; OSError."""
    ((pages,),) = database.execute("PRAGMA page_count")
    ((size,),) = database.execute("PRAGMA page_size")
    check_room(path.parent, 2 * pages * size + SPARE, "a copy of the tasks before their migration")
    kept = path.with_name(f"{path.name}.schema-{schema}")
    draft = path.with_name(f"{kept.name}.tmp")
    draft.unlink(missing_ok=True)
    try:
        copy_database(database, draft)
        sync(draft)
        draft.replace(kept)
    finally:
        draft.unlink(missing_ok=True)
    sync(path.parent)
    for number, older in kept_schemas(path).items():
        if number < schema:
            older.unlink()


def roll_back(path: Path, known: int) -> RolledBack:
    """Put the newest file `tasks.db.schema-N` with N <= `known` in the place of the database. The
    database must have a newer schema than that file. A crash leaves one of the two in place. Raises
    ConfigurationError, also if a server uses the database."""
    try:
        with contextlib.closing(_locked(path)) as database:
            return _exchange(database, path, known)
    except sqlite3.Error as error:
        raise ConfigurationError(f"cannot roll back {path}: {error}") from error
    except OSError as error:
        text = f"cannot roll back {path}: {error.filename or ''}: {error.strerror}"
        raise ConfigurationError(text) from error


def _locked(path: Path) -> sqlite3.Connection:
    """The database without a file `-wal`, locked until the connection closes."""
    uri = f"{path.absolute().as_uri()}?mode=rw"  # do not create it
    database = sqlite3.connect(uri, timeout=LOCK_WAIT, isolation_level=None, uri=True)
    try:
        database.executescript("PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = DELETE;")
        database.execute("BEGIN EXCLUSIVE")
    except BaseException:
        database.close()
        raise
    return database


def _exchange(database: sqlite3.Connection, path: Path, known: int) -> RolledBack:
    ((present,),) = database.execute("PRAGMA user_version")
    kept = kept_schemas(path)
    schema = max((one for one in kept if one <= known and one < present), default=None)
    if schema is None:
        names = ", ".join(one.name for one in kept.values()) or "none"
        raise ConfigurationError(
            f"no file to roll back to: {path} has schema {present}, this version reads up to "
            f"{known}, and the kept files are: {names}"
        )
    check_copy(kept[schema])
    lost, changed = _difference(database, kept[schema])
    for alias in [one for one in _beside(path) if _is_alias(one, path)]:
        alias.unlink()  # left by a roll_back() that was killed
    check_room(path.parent, kept[schema].stat().st_size + SPARE, kept[schema].name)
    draft = path.with_name(f"{path.name}.rollback.tmp")
    draft.unlink(missing_ok=True)
    try:
        _duplicate(kept[schema], draft)
        # Its open tasks have been continued by the newer version.
        prepare_copy(draft, notify=True)
        sync(draft)
        aside = path.with_name(f"{path.name}.rolled-back-{time.strftime('%Y%m%d-%H%M%S')}")
        os.link(path, aside)  # so that the path always leads to one of the two
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    sync(path.parent)
    return RolledBack(schema, aside, lost, changed)


def _duplicate(source: Path, target: Path) -> None:
    with source.open("rb") as old, open(os.open(target, NEW_FILE, 0o600), "wb") as new:
        shutil.copyfileobj(old, new)


def _difference(database: sqlite3.Connection, kept: Path) -> tuple[int | None, int | None]:
    """The number of tasks that only the database has, and of those with later events there."""
    query = "SELECT id, (SELECT max(batch) FROM event WHERE task = place) FROM task"
    try:
        with contextlib.closing(sqlite3.connect(f"{kept.as_uri()}?mode=ro", uri=True)) as other:
            before = dict(other.execute(query))
        now = dict(database.execute(query))
    except sqlite3.Error:  # a later schema may have other tables
        return None, None
    shared = now.keys() & before.keys()
    return len(now.keys() - before.keys()), sum(now[one] != before[one] for one in shared)


def _is_alias(one: Path, path: Path) -> bool:
    """Whether it is another name of the database itself."""
    with contextlib.suppress(OSError):
        return one != path and one.samefile(path)
    return False
