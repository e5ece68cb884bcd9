"""What a server keeps on disk: its journal, the streams of its sessions, files of its clients."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bridge.errors import ConfigurationError
from bridge.process import procfs
from bridge.process.agent_process import kill_marked
from bridge.process.pump import attend
from bridge.process.spawn import LAUNCHES
from bridge.server.token_file import OperatorToken
from bridge.store.database import OTHERS, private_directory, sync_directory, was_used
from bridge.store.journal import Journal
from bridge.store.tasks import MIGRATIONS
from bridge.telemetry.audit import NO_AUDIT, Audit

log = logging.getLogger(__name__)

DATABASE = "tasks.db"
SERVER = "server"  # pid and address of the server that uses the folder


@dataclass(frozen=True, slots=True)
class State:
    """`journal` and `folder` are None for a server that forgets everything at its end. `markers`
    is what the markers of all of its processes begin with, in every run. `operator`: the token of
    who runs the server; None where none is needed."""

    journal: Journal | None = None
    folder: Path | None = None
    markers: str = ""
    audit: Audit = NO_AUDIT
    operator: OperatorToken | None = None
    attended: int | None = None  # while it is open, this process moves what the sessions write

    @property
    def spools(self) -> Path | None:
        """Where sessions have their streams in files, so that they outlive the server; None where
        the system cannot (it takes a launcher)."""
        return self.folder / "sessions" if self.folder and LAUNCHES else None

    @property
    def files(self) -> Path | None:
        return self.folder / "files" if self.folder else None

    def sweep(self, kept: Iterable[str]) -> None:
        """End all processes and remove all streams that earlier servers have left, but for those
        of the sessions `kept`."""
        ids = set(kept)
        killed = kill_marked(self.markers, {self.markers + one for one in ids})
        if killed:
            log.warning("ended what an earlier server had left", extra={"processes": killed})
        self.tidy(ids)

    def tidy(self, kept: Iterable[str]) -> None:
        """Remove all streams but those of the sessions `kept`."""
        if self.spools and self.spools.is_dir():
            for name in set(os.listdir(self.spools)) - set(kept):
                shutil.rmtree(self.spools / name, ignore_errors=True)

    async def renew(self, error: sqlite3.DatabaseError) -> bool:
        """Put a database aside that turned out to be damaged, and begin a new one. False if that
        is not what `error` says."""
        if not (self.journal and self.folder and _damaged(error)):
            return False
        await self.journal.abandon()
        _put_aside(self.folder / DATABASE, error)
        await self.journal.open()
        return True

    def announce(self, address: str) -> str:
        """Have a second server on the same folder know where this one is. Returns the address."""
        if self.folder:
            with contextlib.suppress(OSError):
                (self.folder / SERVER).touch(mode=0o600)
                (self.folder / SERVER).write_text(f"{os.getpid()} {address}\n")
        return address

    async def close(self) -> None:
        if self.folder:
            (self.folder / SERVER).unlink(missing_ok=True)
        if self.attended is not None:
            os.close(self.attended)
        self.audit.close()
        if self.operator:
            self.operator.close()
        if self.journal:
            await self.journal.close()


NO_STATE = State()


async def open_state(
    folder: Path | None, audit: Path | None = None, clean: Callable[[str], str] = str
) -> State:
    """The state in `folder`. Raises ConfigurationError if it cannot be used, such as because
    another server uses it. A database that is damaged is put aside. `audit`: where the audit log
    is, if not in the folder; `clean` is what its lines go through."""
    if folder is None:
        return State(markers=f"{secrets.token_hex(8)}.", audit=Audit(audit, clean))
    try:
        private_directory(folder)
        identity = _identity(folder / "id")
    except OSError as error:
        raise ConfigurationError(f"cannot use {error.filename}: {error.strerror}") from error
    journal = Journal(folder / DATABASE, MIGRATIONS)
    try:
        await journal.open()
    except ConfigurationError as error:
        cause = error.__cause__
        if isinstance(cause, sqlite3.DatabaseError) and _locked(cause):
            raise ConfigurationError(_in_use(folder)) from cause
        if not isinstance(cause, sqlite3.DatabaseError) or not _damaged(cause):
            raise
        _put_aside(folder / DATABASE, cause)
        await journal.open()
    try:
        attended = await asyncio.to_thread(_attend, folder)
        try:
            written = Audit(audit or folder / "audit.jsonl", clean)
        except ConfigurationError:
            if attended is not None:
                os.close(attended)
            raise
    except ConfigurationError:
        await journal.close()
        raise
    return State(journal, folder, f"{identity}.", written, attended=attended)


def _attend(folder: Path) -> int | None:
    try:
        return attend(str(folder)) if LAUNCHES else None
    except OSError as error:
        raise ConfigurationError(f"cannot use {error.filename}: {error.strerror}") from error


def _in_use(folder: Path) -> str:
    """Why the folder cannot be used, with the server that uses it, if that has told."""
    who = "another server"
    with contextlib.suppress(OSError, ValueError):
        pid, address = (folder / SERVER).read_text().split()
        if procfs.living(int(pid)):
            who = f"the server at {address} (pid {pid})"
    step = "Stop that server, or set BRIDGE_STATE_DIR to another folder."
    return f"{who} uses the state folder {folder}. {step}"


def _identity(path: Path) -> str:
    """What tells the processes of this state's servers from those of all others."""
    if path.exists() and (known := re.fullmatch("[0-9a-f]{16}", path.read_text(errors="replace"))):
        return known[0]
    made = secrets.token_hex(8)
    draft = path.with_name("id.new")
    with open(draft, "w") as file:
        file.write(made)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_directory(path.parent)
    return made


def _locked(error: sqlite3.DatabaseError) -> bool:
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _damaged(error: sqlite3.DatabaseError) -> bool:
    return error.sqlite_errorcode in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _put_aside(path: Path, error: Exception) -> None:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    log.error("the tasks cannot be read; they are put aside", extra={"file": path, "error": error})
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        one = path.with_name(name)
        if one.exists():
            one.replace(path.with_name(f"{name}.damaged-{stamp}"))


def is_exposed(folder: Path) -> bool:
    """Whether other users can look into a folder that was never used for state: a start refuses
    it, since secrets would be kept there."""
    return bool(folder.stat().st_mode & OTHERS) and not was_used(folder)
