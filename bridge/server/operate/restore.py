"""A state folder from a backup."""

from __future__ import annotations

import os
import secrets
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from bridge.errors import ConfigurationError
from bridge.files.folders import NEW_FILE
from bridge.server.operate.backup_folder import (
    DATABASE,
    checked_files,
    copy_file,
    drafted,
    read_manifest,
)
from bridge.store.sqlite.backup import check_copy, count_tasks, prepare_copy
from bridge.store.sqlite.schema import MIGRATIONS
from bridge.store.sqlite.upgrade import kept_files

PURPOSE = "the restored state"


@dataclass(frozen=True, slots=True)
class Restored:
    """A new state folder. `tasks`: their number. `schema`: of the database; `newest`: the one that
    the next start gives it. `same_id`: it has the id of the server of the backup. `push`: the
    number of push configs that were removed."""

    folder: Path
    tasks: int
    schema: int
    newest: int
    same_id: bool
    push: int


def restore(backup: Path, target: Path, *, same_id: bool = False) -> Restored:
    """Make the state folder `target` from a backup. Its open tasks end at the next start. It gets a
    new id: two servers with one id would end each other's processes. With `same_id`, it takes the
    place of a folder that was lost. Raises ConfigurationError."""
    manifest = read_manifest(backup)
    if manifest.store != "sqlite" or manifest.schema is None:
        raise ConfigurationError(
            f"{backup} has no tasks, which are in PostgreSQL: restore the database by its own "
            "tools, and copy the other files of the backup into the state folder"
        )
    if manifest.schema > len(MIGRATIONS):
        raise ConfigurationError(
            f"{backup} was written by the newer version {manifest.version}: it has schema "
            f"{manifest.schema}, and this version reads up to {len(MIGRATIONS)}. Install the newer "
            "version"
        )
    with drafted(target, manifest.size, PURPOSE) as draft:
        checked_files(backup, manifest, lambda fd, one: copy_file(fd, draft.path, one.path))
        database = draft.path / DATABASE
        schema = check_copy(database)
        if schema != manifest.schema:
            raise ConfigurationError(f"the backup is damaged: its tasks have schema {schema}")
        try:
            tasks = count_tasks(database)
            push = prepare_copy(database, notify=same_id)
        except sqlite3.Error as error:
            text = f"{backup / DATABASE} is not a database of tasks: {error}"
            raise ConfigurationError(text) from error
        if not same_id:
            _new_id(draft.path / "id")
        draft.complete()
    return Restored(target, tasks, schema, newest=len(MIGRATIONS), same_id=same_id, push=push)


def _new_id(path: Path) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, NEW_FILE, 0o600), "w") as file:
        file.write(secrets.token_hex(8))


def kept_in(folder: Path | None) -> dict[str, list[str]]:
    """The member `keptFiles` of /health: the names of the databases that earlier servers have put
    aside in the state folder; empty without any."""
    names = kept_files(folder / DATABASE) if folder else []
    return {"keptFiles": names} if names else {}
