"""The state of a server: its store, the streams of sessions, and the files of clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import secrets
import shutil
import socket
import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bridge.errors import ConfigurationError
from bridge.files.folders import closing, open_folder, open_to_owner, replace_file
from bridge.files.own_modes import OTHERS, open_way, restore
from bridge.process import cgroup
from bridge.process.guard import MOVABLE
from bridge.process.process_tree import kill_sessions, table
from bridge.process.pump import attend
from bridge.process.spawn import LAUNCHES
from bridge.server.token_file import DESCRIPTION, OperatorToken
from bridge.store.cluster import Cluster, SharedStore
from bridge.store.memory import MemoryStore
from bridge.store.protocol import Store
from bridge.store.sqlite.database import private_directory, was_used
from bridge.store.sqlite.store import SqliteStore
from bridge.telemetry.audit import NO_AUDIT, Audit

log = logging.getLogger(__name__)

DATABASE = "tasks.db"


@dataclass(frozen=True, slots=True)
class State:
    """`folder` is None for a server without durable state. `markers`: the prefix of
    the markers of its processes, the same in every run. `operator`: the operator token, if the
    server requires tokens. `inputs`: the files of the input of running sessions, by their ids
    (process/spool.py). `database`: the place of the tasks, if it is not the folder; `shared`:
    the store, if other servers may use it, too."""

    store: Store = field(default_factory=MemoryStore)
    folder: Path | None = None
    markers: str = ""
    audit: Audit = NO_AUDIT
    operator: OperatorToken | None = None
    attended: int | None = None  # while open, this process moves session output
    inputs: dict[str, int] = field(default_factory=dict)
    database: str = ""
    shared: SharedStore | None = None

    @property
    def cluster(self) -> Cluster | None:
        """The other servers of the store."""
        return self.shared.cluster if self.shared else None

    @property
    def place(self) -> str:
        """The place of the state, for people."""
        place = str(self.folder or "memory: lost at a restart")
        return f"{self.database}, and {place}" if self.database else place

    @property
    def spools(self) -> Path | None:
        """The folder for the streams of sessions that survive the server; None on systems without
        the fork server."""
        return self.folder / "sessions" if self.folder and LAUNCHES else None

    @property
    def files(self) -> Path | None:
        return self.folder / "files" if self.folder else None

    def restore_modes(self) -> None:
        """Restore the modes of the server's own files, which an agent may have changed."""
        if self.folder:
            restore(self.folder)

    def sweep(self, kept: Iterable[str]) -> None:
        """Kill all processes and remove all streams of earlier servers, except those of the
        sessions `kept`."""
        ids = set(kept)
        killed = kill_sessions(self.markers, {self.markers + one for one in ids})
        if killed:
            facts = {"event": "processes.leftover", "count": killed}
            log.warning("killed processes of an earlier server", extra=facts)
        self.tidy(ids)

    def tidy(self, kept: Iterable[str]) -> None:
        """Remove all streams, except those of the sessions `kept`."""
        ids = set(kept)
        for name in self.inputs.keys() - ids:
            os.close(self.inputs.pop(name))
        if self.spools and self.spools.is_dir():
            for name in set(os.listdir(self.spools)) - ids:
                shutil.rmtree(self.spools / name, ignore_errors=True)

    async def close(self) -> None:
        if self.attended is not None:
            os.close(self.attended)
        self.audit.close()
        if self.operator:
            self.operator.close()
        await self.store.close()


NO_STATE = State()


async def open_state(
    folder: Path | None,
    audit: Path | None = None,
    clean: Callable[[str], str] = str,
    make_store: Callable[[str], SharedStore] | None = None,
) -> State:
    """Open the state in `folder`. Renames a damaged database and creates a new one. `audit`: the
    path of the audit log, if it is not in the folder; `clean` redacts its lines. `make_store`: the
    store for the server with this id, if it is not in the folder. Raises ConfigurationError, for
    example if another server uses the folder."""
    if folder is None:
        return State(markers=f"{secrets.token_hex(8)}.", audit=Audit(audit, clean))
    try:
        private_directory(folder)
        restore(folder, deep=True)
        identity = _identity(folder)
    except OSError as error:
        place = folder / (error.filename or "")
        raise ConfigurationError(f"cannot use {place}: {error.strerror}") from error
    async with contextlib.AsyncExitStack() as unused:
        store: Store | None = None
        shared: SharedStore | None = None
        if make_store is None:
            store = await _open_store(folder)
            unused.push_async_callback(store.close)
        try:
            _retire_push(folder / "push" / "push.db")
            attended = await asyncio.to_thread(attend, str(folder)) if LAUNCHES else None
        except OSError as error:
            raise ConfigurationError(f"cannot use {error.filename}: {error.strerror}") from error
        if attended is not None:
            unused.callback(os.close, attended)
        if store is None:
            # The sessions that another server may continue stay frozen until this one may.
            cgroup.freeze_all(f"{identity}.", MOVABLE)
            # Now, because it ends the writes of another server with this id:
            assert make_store
            store = shared = make_store(identity)
            await store.open()
            unused.push_async_callback(store.close)
        if audit:
            open_way(audit)
            with contextlib.suppress(OSError):
                open_to_owner(audit)
        written = Audit(audit or folder / "audit.jsonl", clean)
        unused.pop_all()
    return State(store, folder, f"{identity}.", written, attended=attended, shared=shared)


async def _open_store(folder: Path) -> SqliteStore:
    store = SqliteStore(folder / DATABASE)
    try:
        await store.open()
    except (ConfigurationError, sqlite3.DatabaseError) as error:
        cause = error.__cause__ or error
        code = cause.sqlite_errorcode if isinstance(cause, sqlite3.DatabaseError) else 0
        code &= 0xFF  # the primary code; SQLite adds details above it
        if was_locked(cause):
            raise ConfigurationError(in_use(folder)) from cause
        if code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise
        await store.abandon()
        new = _rename(folder / DATABASE, f"damaged-{time.strftime('%Y%m%d-%H%M%S')}")
        text = "the task database is damaged and was renamed"
        log.error(text, extra={"file": new, "error": cause})
        await store.open()
    return store


def was_locked(error: BaseException | None) -> bool:
    """Whether another process uses the database."""
    code = error.sqlite_errorcode & 0xFF if isinstance(error, sqlite3.DatabaseError) else 0
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def in_use(folder: Path) -> str:
    """The error for a folder whose database is locked, with the address of the server if known."""
    who = "another process"
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        known = json.loads((folder / DESCRIPTION).read_text())
        if table.start_time(known["pid"]):
            who = f"the server at {known['url']} (pid {known['pid']})"
    step = "Stop it, or set BRIDGE_STATE_DIR to another folder."
    return f"{who} uses the state folder {folder}: its database is locked. {step}"


def _identity(folder: Path) -> str:
    """The id that identifies the processes of servers with this state folder."""
    path = folder / "id"
    if path.exists() and (known := re.fullmatch("[0-9a-f]{16}", path.read_text(errors="replace"))):
        return known[0]
    made = secrets.token_hex(8)
    with closing(open_folder(folder)) as fd:
        replace_file(path.name, fd, made)
    return made


def default_name(agent: str, identity: str) -> str:
    """The name of a server without BRIDGE_NODE. `identity`: its id."""
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:50]
    return f"{agent}:{host}-{identity[:6]}"


def _retire_push(path: Path) -> None:
    """Rename the database of push notifications of earlier versions."""
    if path.is_file():
        log.warning(
            "push configs of an earlier version are not used: clients must set them again, and "
            "notifications that were not delivered are lost. You can delete this folder",
            extra={"folder": path.parent, "renamed": _rename(path, "old")},
        )


def _rename(path: Path, suffix: str) -> Path:
    """Add the suffix to the names of the files of a database. Returns its new path."""
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        one = path.with_name(name)
        if one.exists():
            one.replace(path.with_name(f"{name}.{suffix}"))
    return path.with_name(f"{path.name}.{suffix}")


def is_exposed(folder: Path) -> bool:
    """Whether other users can read a folder that was never used for state. The server refuses such
    a folder, because it stores secrets there."""
    return bool(folder.stat().st_mode & OTHERS) and not was_used(folder)


def is_made(folder: Path | None) -> bool:
    """Whether the folder exists, or could: a server does not go on without the tasks and the audit
    log of an earlier one."""
    try:
        return folder is not None and bool(os.stat(folder))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
