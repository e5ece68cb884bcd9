"""The folder of a backup: written as a draft, completed by one rename, and checked when it is read.

    tasks.db            the tasks; missing with PostgreSQL
    id                  the id of the server
    audit.jsonl         the audit log, up to its length at that time
    files/…             attached files
    push/…              the database of push notifications of a version before 0.1, if it exists
    manifest.json       the description of all this (Manifest), written last

Files have mode 0600, folders 0700. No link in the state folder is followed: agents may have written
below `files`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath

from bridge.errors import ConfigurationError
from bridge.files.folders import FOLDER, NEW_FILE, closing, open_folder, replace_file, sync
from bridge.store.sqlite.upgrade import SPARE, check_room

log = logging.getLogger(__name__)

FORMAT = 1
LAST = "last-backup"  # in the state folder
MANIFEST = "manifest.json"
DATABASE = "tasks.db"
AUDIT = "audit.jsonl"
FILES = "files"
DEPTH = 3  # folders below FILES: agent, context, task
PUSH = ("push/push.db", "push/push.db-wal", "push/push.key")
_NAMES = {MANIFEST, DATABASE, AUDIT, FILES, "id", "push"}
_SCRATCH = {f"{DATABASE}-journal", f"{DATABASE}-wal", f"{DATABASE}-shm"}
_OLD_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PIECE = 1024 * 1024  # bytes
_LARGEST = 256 * 1024 * 1024  # bytes of a manifest

LEFT_OUT = {
    "sessions": "the live output of CLIs: their tasks fail with reason restart",
    "tmp": "temporary files",
    "scratch": "temporary files of agents",
    "attended": "a mark of the running server",
    "launchers": "sockets of running launchers",
    "server.json": "the address of the running server",
    "ballast": "reserved space",
    "token": "the operator's token: the next server makes a new one",
    "mcp-key": "the key of open MCP forms: the next server makes a new one",
    LAST: "the time of the last backup",
}
OUTSIDE = ("CONFIG_FILE and the files that settings name", "card keys", "workspaces", "CLI logins")
"""The parts of a server outside of its state folder, which no backup has."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file of a backup: its path in it, its size in bytes, and its SHA-256 in hexadecimal."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`store`: `sqlite` or `postgresql`. `schema`: of tasks.db; None without one. `time`: RFC 3339.
    `left_out`: entries of the state folder that the backup does not have, with the reason."""

    version: str
    time: str
    id: str
    store: str
    schema: int | None
    files: Sequence[FileRecord] = field(default_factory=list)
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(one.bytes for one in self.files)

    def write(self, folder: Path) -> None:
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1)
        with open(os.open(folder / MANIFEST, NEW_FILE, 0o600), "w") as file:
            file.write(text)


def read_manifest(folder: Path) -> Manifest:
    """The description of a backup. Raises ConfigurationError if the folder is none."""
    path = folder / MANIFEST
    try:
        with open(os.open(path, _OLD_FILE), "rb") as file:
            found = json.loads(file.read(_LARGEST))
    except OSError as error:
        text = f"{folder} is not a backup: cannot read {MANIFEST}: {error.strerror}"
        raise ConfigurationError(text) from error
    except ValueError as error:
        raise ConfigurationError(f"{path} is damaged: {error}") from error
    try:
        if found.pop("format") != FORMAT:
            raise ConfigurationError(f"{path} has another format: use a newer version")
        files = [FileRecord(**one) for one in found.pop("files")]
        manifest = Manifest(files=files, **found)
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path} is damaged: {error}") from error
    for one in manifest.files:
        parts = PurePosixPath(one.path).parts
        inside = parts and parts[0] in _NAMES and ".." not in parts and "\0" not in one.path
        if not inside or one.path == MANIFEST:
            raise ConfigurationError(f"{path} names a file outside of a backup: {one.path}")
    return manifest


# --- the time of the last backup ------------------------------------------------------------------


def note_backup(folder: Path) -> None:
    """Store the present time as that of the last backup of this state folder, as well as
    possible: the backup is complete."""
    try:
        with closing(open_folder(folder)) as fd:
            replace_file(LAST, fd, str(time.time()))
    except OSError as error:
        reason = {"folder": folder, "reason": error.strerror}
        log.warning("the time of the backup was not stored", extra=reason)


def place_of(backup: Path) -> Path:
    """The path that hides the backup from agents: the folder around it if it has only backups,
    such as one for each day."""
    around = backup.parent
    try:
        alone = all((one / MANIFEST).is_file() for one in around.iterdir())
    except OSError:
        alone = False
    return around if alone else backup


def last_backup(folder: Path) -> float:
    """The time of the last backup of this state folder, in seconds since 1970; 0 if none is known.
    A time in the future counts as none: the alert would be silent until then."""
    try:
        with closing(os.open(folder / LAST, _OLD_FILE)) as fd:
            when = float(os.read(fd, 64))
    except (OSError, ValueError):
        return 0.0
    return when if 0 < when <= time.time() else 0.0  # not a number: 0


# --- a folder that appears at once ----------------------------------------------------------------


class Draft:
    """A folder that is written beside its place, `target`, and appears there at once. A lock keeps
    a second writer out; the draft of a writer that was killed is removed by the next one."""

    def __init__(self, target: Path, needed: int, purpose: str) -> None:
        """`needed`: bytes. Raises ConfigurationError, for example if the target exists."""
        self.target = target
        self.path = target.with_name(f"{target.name}.tmp")
        self._lock: int | None = None
        try:
            if not target.parent.is_dir():
                raise ConfigurationError(f"{target.parent} is not a folder")
            if os.path.lexists(target) and not _is_empty(target):
                raise ConfigurationError(f"{target} exists already and is not an empty folder")
            check_room(target.parent, needed + SPARE, purpose)
            self._remove_old()
            self.path.mkdir(mode=0o700)
            self._lock = open_folder(self.path)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.discard()
            raise ConfigurationError(f"cannot write {self.path}: {error.strerror}") from error

    def _remove_old(self) -> None:
        try:
            fd = open_folder(self.path)
        except FileNotFoundError:
            return
        with closing(fd):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(f"another process writes {self.path} now") from None
            foreign = set(os.listdir(fd)) - _NAMES - _SCRATCH
            if foreign:
                text = f"{self.path} is in the way and has other files: {min(foreign)}. Remove it"
                raise ConfigurationError(text)
            shutil.rmtree(self.path)

    def complete(self) -> None:
        """Make the folder durable, and move it to its place. Raises ConfigurationError."""
        try:
            for root, _, names in os.walk(self.path):
                for name in names:
                    sync(Path(root, name))
                sync(Path(root))
            self.path.rename(self.target)  # refused unless the target is missing or empty
            sync(self.target.parent)
        except OSError as error:
            raise ConfigurationError(f"cannot write {self.target}: {error.strerror}") from error
        self._unlock()

    def discard(self) -> None:
        """Remove the draft, unless it is complete or of another writer."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        fd, self._lock = self._lock, None
        if fd is not None:
            os.close(fd)


@contextlib.contextmanager
def drafted(target: Path, needed: int, purpose: str) -> Iterator[Draft]:
    """A draft that is removed unless the block completes it."""
    draft = Draft(target, needed, purpose)
    try:
        yield draft
    except OSError as error:  # such as a full disk
        text = f"cannot write {draft.target}: {error.strerror}"
        raise ConfigurationError(text) from error
    finally:
        draft.discard()


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not os.listdir(path)


# --- files ----------------------------------------------------------------------------------------


def size_of(folder: Path, audit: Path) -> int:
    """About the bytes of a backup of this state folder."""
    size = 0
    for path in (audit, *(folder / name for name in (DATABASE, f"{DATABASE}-wal", *PUSH))):
        with contextlib.suppress(OSError):
            size += path.stat().st_size
    for _, file in _regular_files(folder / FILES):
        with closing(file):
            size += os.fstat(file).st_size
    return size


def copy_state(folder: Path, audit: Path, draft: Path) -> list[FileRecord]:
    """Copy all but the database. `audit`: the path of the audit log. Raises OSError."""
    single = [("id", folder / "id"), (AUDIT, audit), *((name, folder / name) for name in PUSH)]
    found = []
    for name, path in single:
        with contextlib.suppress(FileNotFoundError), closing(os.open(path, _OLD_FILE)) as fd:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                found.append(copy_file(fd, draft, name))
    for name, fd in _regular_files(folder / FILES):
        with closing(fd):
            found.append(copy_file(fd, draft, f"{FILES}/{name}"))
    return found


def copy_file(source: int, folder: Path, name: str) -> FileRecord:
    """Copy an open file, up to its present length, to a new file in `folder`. Raises OSError."""
    target = folder / name
    for parent in reversed(PurePosixPath(name).parents):
        (folder / parent).mkdir(mode=0o700, exist_ok=True)
    left = size = os.fstat(source).st_size
    digest = hashlib.sha256()
    with open(os.open(target, NEW_FILE, 0o600), "wb") as file:
        while left and (piece := os.read(source, min(left, _PIECE))):
            file.write(piece)
            digest.update(piece)
            left -= len(piece)
    return FileRecord(name, size - left, digest.hexdigest())


def record_of(folder: Path, name: str) -> FileRecord:
    """The record of a file that is in the draft. Raises OSError."""
    with (folder / name).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileRecord(name, os.fstat(file.fileno()).st_size, digest)


def left_out(folder: Path, copied: Sequence[FileRecord]) -> dict[str, str]:
    """The entries of the state folder that are not in a backup, with the reason."""
    have = {one.path.partition("/")[0] for one in copied} | {f"{DATABASE}-wal", f"{DATABASE}-shm"}
    names = sorted(set(os.listdir(folder)) - have)
    found = {one: LEFT_OUT.get(one, "not a part of a backup") for one in names}
    return {**found, **dict.fromkeys(OUTSIDE, "outside of the state folder")}


def _regular_files(folder: Path) -> Iterator[tuple[str, int]]:
    """The attached files: the path of each below `folder`, and a descriptor that the caller closes.
    Files that disappear meanwhile, links and all other kinds are skipped, and so are files with
    several names: one of them may be a file that the agent may not read."""
    try:
        top = open_folder(folder)
    except OSError:
        return
    with closing(top):
        yield from _below(top, "", DEPTH)


def _below(folder: int, prefix: str, depth: int) -> Iterator[tuple[str, int]]:
    for name in sorted(os.listdir(folder)):
        with contextlib.suppress(OSError):
            kind = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISDIR(kind) and depth:
                with closing(os.open(name, FOLDER, dir_fd=folder)) as inner:
                    yield from _below(inner, f"{prefix}{name}/", depth - 1)
            elif stat.S_ISREG(kind):
                fd = os.open(name, _OLD_FILE, dir_fd=folder)
                found = os.fstat(fd)
                if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                    yield f"{prefix}{name}", fd
                else:
                    os.close(fd)


def checked_files(
    folder: Path, manifest: Manifest, copy: Callable[[int, FileRecord], FileRecord]
) -> None:
    """Copy each file of the backup with `copy`, and compare the bytes that were copied with the
    manifest. Raises ConfigurationError for a file that is missing or was changed."""
    for one in manifest.files:
        path = folder / one.path
        try:
            with closing(os.open(path, _OLD_FILE)) as fd:
                made = copy(fd, one)
        except FileNotFoundError:
            raise ConfigurationError(f"the backup is incomplete: {path} is missing") from None
        if (made.bytes, made.sha256) != (one.bytes, one.sha256):
            raise ConfigurationError(f"the backup is damaged: {path} is not as it was written")
