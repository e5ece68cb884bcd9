"""Backups: of the server that runs, and of a state folder without a server.

`POST /admin/backup` with `{"folder": PATH}`, an absolute path on the server's machine, requires the
scope `admin`. The response has the members of BackupDone. Errors are `{"error": TEXT}`: 400 for a
folder that cannot be used, 409 while another backup runs, 503 if the store cannot be read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from bridge import __version__
from bridge.errors import ConfigurationError, Unavailable
from bridge.sandbox.own_files import OwnFile, refuse_reachable
from bridge.server.operate.backup_folder import (
    AUDIT,
    DATABASE,
    Draft,
    Manifest,
    copy_state,
    drafted,
    left_out,
    note_backup,
    place_of,
    record_of,
    size_of,
)
from bridge.server.settings.places import Places
from bridge.server.settings.root import Settings
from bridge.server.state_dir import State, in_use, was_locked
from bridge.store.protocol import CANNOT_READ
from bridge.store.sqlite.backup import check_copy, copy_database
from bridge.store.sqlite.store import SqliteStore
from bridge.store.sqlite.upgrade import LOCK_WAIT
from bridge.transports.operation import PRINCIPAL

log = logging.getLogger(__name__)

PURPOSE = "a backup"
LOWEST = 19  # priority of a thread
BY_ITS_OWN_TOOLS = "the tasks are in PostgreSQL: back up the database by its own tools (pg_dump)"


@dataclass(frozen=True, slots=True)
class BackupDone:
    """A complete backup. `bytes`, `files`: without its manifest. `schema`: of the tasks; None if
    they are in another database. `left_out`: see Manifest. `note`: a part that the operator must
    back up; or ""."""

    folder: str
    bytes: int
    files: int
    seconds: float
    store: str
    schema: int | None
    left_out: Mapping[str, str]
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "folder": self.folder,
            "bytes": self.bytes,
            "files": self.files,
            "seconds": round(self.seconds, 3),
            "store": self.store,
            "schema": self.schema,
            "leftOut": dict(self.left_out),
            "note": self.note,
        }


@dataclass(slots=True)
class Backups:
    """The backups of a running server. `audit`: the path of its audit log. `writable`: the paths
    that agents may write, each with the setting that names it; no backup goes there. `done` gets
    the time of each complete backup, in seconds since 1970."""

    state: State
    audit: Path | None
    writable: Callable[[], Mapping[str, str]] = dict
    done: Callable[[float], None] = lambda when: None
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def handle(self, request: web.Request) -> web.Response:
        try:
            given = await request.json()
            folder = given["folder"]
        except (ValueError, LookupError, TypeError):
            folder = None
        if not isinstance(folder, str) or not folder.startswith("/") or "\0" in folder:
            return _refusal(400, 'send {"folder": PATH}, where PATH is absolute')
        if self._busy.locked():
            return _refusal(409, "another backup runs; try again after its end")
        principal = request[PRINCIPAL].id
        try:
            async with self._busy:
                done = await self.make(Path(folder))
        except ConfigurationError as error:
            log.error("a backup failed", extra={"folder": folder, "reason": str(error)})
            return _refusal(400, str(error))
        self.state.audit.action("backup", principal, folder=done.folder, bytes=done.bytes)
        return web.json_response(done.as_json())

    async def make(self, target: Path) -> BackupDone:
        """Write a backup into the new folder `target`. Raises ConfigurationError and
        Unavailable."""
        folder = self.state.folder
        if folder is None:
            raise ConfigurationError("this server keeps no state: set BRIDGE_STATE_DIR")
        check_place(target, folder, self.writable())
        began, audit = time.monotonic(), self.audit or folder / AUDIT
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "backup", initializer=_yield_to_others) as thread:
            needed = await loop.run_in_executor(thread, size_of, folder, audit)
            draft = await loop.run_in_executor(thread, Draft, target, needed, PURPOSE)
            try:
                if isinstance(self.state.store, SqliteStore):
                    await self._copy_store(self.state.store, draft)
                work = partial(_complete, draft, folder, audit, began)
                done = await loop.run_in_executor(thread, work)
            finally:
                await loop.run_in_executor(thread, draft.discard)
        self.done(time.time())
        facts = {"folder": done.folder, "bytes": done.bytes, "seconds": round(done.seconds, 3)}
        log.info("backup done", extra={"event": "backup.done", **facts})
        return done

    async def _copy_store(self, store: SqliteStore, draft: Draft) -> None:
        if store.problem:  # such as a state folder that is gone
            raise Unavailable(store.problem)
        try:
            await store.copy(draft.path / DATABASE)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise ConfigurationError(f"cannot write {draft.path}: {error}") from error
            raise Unavailable(CANNOT_READ) from error
        except sqlite3.DatabaseError as error:
            raise ConfigurationError(f"the tasks cannot be copied: {error}") from error
        except OSError as error:
            raise ConfigurationError(f"cannot write {draft.path}: {error.strerror}") from error


def back_up_stopped(
    folder: Path, target: Path, audit: Path | None = None, *, database: bool = True
) -> BackupDone:
    """Back up the state folder of a server that does not run. `database`: its tasks are in the
    folder. Raises ConfigurationError, also if a server uses the folder."""
    began, audit = time.monotonic(), audit or folder / AUDIT
    check_place(target, folder, {})
    path = folder / DATABASE
    if not (folder / "id").is_file() or (database and not path.is_file()):
        raise ConfigurationError(f"{folder} is not the state folder of a server")
    with drafted(target, size_of(folder, audit), PURPOSE) as draft:
        if database:
            _copy_stopped(path, draft.path / DATABASE)
        return _complete(draft, folder, audit, began)


def _copy_stopped(path: Path, target: Path) -> None:
    uri = f"{path.absolute().as_uri()}?mode=rw"  # do not create it
    try:
        with contextlib.closing(sqlite3.connect(uri, timeout=LOCK_WAIT, uri=True)) as database:
            database.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
            database.execute("BEGIN IMMEDIATE")  # no server runs, and none starts meanwhile
            database.execute("ROLLBACK")
            copy_database(database, target)
    except sqlite3.Error as error:
        if was_locked(error):
            raise ConfigurationError(in_use(path.parent)) from error
        raise ConfigurationError(f"cannot copy {path}: {error}") from error


def check_place(target: Path, folder: Path, writable: Mapping[str, str]) -> None:
    """Raise ConfigurationError for a backup inside of the state folder, or in a place that agents
    may write."""
    if Path(os.path.realpath(target)).is_relative_to(os.path.realpath(folder)):
        raise ConfigurationError(f"{target} is inside of the state folder {folder}")
    refuse_reachable([OwnFile("the backup", str(target), folder=True)], writable)


def _complete(draft: Draft, folder: Path, audit: Path, began: float) -> BackupDone:
    """Copy all but the database, check the database, move the backup to its place, and note its
    time in the state folder."""
    try:
        files = copy_state(folder, audit, draft.path)
        database, schema = draft.path / DATABASE, None
        if database.exists():
            schema = check_copy(database)
            files.append(record_of(draft.path, DATABASE))
        manifest = Manifest(
            version=__version__,
            time=datetime.now(UTC).isoformat(),
            id=(draft.path / "id").read_text().strip(),
            store="sqlite" if database.exists() else "postgresql",
            schema=schema,
            files=files,
            left_out=left_out(folder, files),
        )
        manifest.write(draft.path)
    except OSError as error:
        text = f"cannot write {draft.path}: {error.filename or ''} {error.strerror}"
        raise ConfigurationError(text) from error
    draft.complete()
    note_backup(folder)
    Places(Settings().state_home).record([place_of(draft.target)])
    return BackupDone(
        folder=str(draft.target),
        bytes=manifest.size,
        files=len(files),
        seconds=time.monotonic() - began,
        store=manifest.store,
        schema=schema,
        left_out=manifest.left_out,
        note=BY_ITS_OWN_TOOLS if schema is None else "",
    )


def _yield_to_others() -> None:
    """Give this thread the lowest priority: checksums and checks take a core for a while."""
    with contextlib.suppress(AttributeError, OSError):  # other systems than Linux
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST)


def _refusal(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
