"""The operator token and the description of the running server: files that programs of the server's
user can read and its agents cannot.

The files are in the state folder. A server without one creates a temporary folder `pid-PID` beside
the state folders. A lock on that folder (flock) shows later servers whether the server still runs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bridge.errors import ConfigurationError
from bridge.files.folders import closing, open_folder, replace_file
from bridge.files.own_modes import restore
from bridge.store.sqlite.database import private_directory

log = logging.getLogger(__name__)

NAME = "token"
DESCRIPTION = "server.json"
FILES = (NAME, DESCRIPTION)
"""The files of a folder `pid-PID`."""
PREFIX = "pid-"
_OLD_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TOKEN = re.compile(rb"[A-Za-z0-9_-]{43}\n")


class TokenWatch:
    """Notices that others may know the token: each change of a mode, an owner or an ACL changes the
    time of the last change, which no program of this user can set back. `value`: the token."""

    def __init__(self) -> None:
        self.value = ""
        self._fd = -1
        self._changed = 0

    def follow(self, fd: int, value: str) -> None:
        """Watch the file of this descriptor from now on."""
        self.close()
        self.value, self._fd, self._changed = value, fd, os.fstat(fd).st_ctime_ns

    @property
    def is_exposed(self) -> bool:
        found = os.fstat(self._fd)
        private = found.st_uid == os.geteuid() and not found.st_mode & 0o077
        removed = found.st_nlink == 0  # by the operator; the next reload makes another one
        return not private or not (removed or found.st_ctime_ns == self._changed)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass(frozen=True, slots=True)
class OperatorToken:
    """`value` is the content of the file `path`, which `watch` watches. `lock`: the descriptor of
    the temporary folder, which close() removes."""

    value: str
    path: Path
    watch: TokenWatch
    lock: int | None = None

    @property
    def is_exposed(self) -> bool:
        """Whether others may know the token."""
        return self.watch.is_exposed

    def renew(self) -> str:
        """The token in the file, if the operator has written another one; otherwise a new one in
        place of a token that others may know. Raises OSError."""
        folder = self.path.parent
        restore(folder)
        with _folder_of(folder, self.lock) as fd:
            if _written(fd) in (None, self.watch.value):
                facts = {"event": "auth.token_exposed", "file": self.path}
                log.error("others had access to the operator token: it was replaced", extra=facts)
                replace_file(NAME, fd, f"{secrets.token_urlsafe(32)}\n")
            return _watched(fd, folder, self.watch)

    def close(self) -> None:
        self.watch.close()
        if self.lock is not None:
            _remove(self.path.parent, self.lock)


def open_token(folder: Path | None, beside: Path) -> OperatorToken:
    """The token in `folder`, created if it is missing. Without a folder: in a new temporary folder
    in `beside`, where the folders of ended servers are removed. Raises ConfigurationError."""
    watch, lock = TokenWatch(), None
    try:
        if folder is None:
            beside.mkdir(mode=0o700, parents=True, exist_ok=True)
            remove_stale(beside)
            folder, lock = _own_folder(beside)
        with _folder_of(folder, lock) as fd:
            return OperatorToken(_watched(fd, folder, watch), folder / NAME, watch, lock)
    except OSError as error:
        where = error.filename or folder or beside
        text = f"cannot store the operator token in {where}: {error.strerror}"
        raise ConfigurationError(f"{text}; set BRIDGE_STATE_DIR to a writable folder") from error


def read_again(token: OperatorToken) -> OperatorToken:
    """The token that is in its file now; a new one if the file was removed. Raises
    ConfigurationError."""
    folder = token.path.parent
    try:
        if token.is_exposed:
            return replace(token, value=token.renew())
        with _folder_of(folder, token.lock) as fd:
            return replace(token, value=_watched(fd, folder, token.watch))
    except OSError as error:
        text = f"cannot read the operator token in {folder}: {error.strerror}"
        raise ConfigurationError(text) from error


@contextlib.contextmanager
def _folder_of(folder: Path, lock: int | None) -> Iterator[int]:
    """A descriptor of the folder with the token."""
    if lock is not None:
        yield lock
        return
    with closing(open_folder(folder)) as fd:
        yield fd


def _watched(folder: int, path: Path, watch: TokenWatch) -> str:
    """The token in the folder. Its file is watched from now on."""
    value = _token(folder, path)
    watch.follow(os.open(NAME, _OLD_FILE, dir_fd=folder), value)
    return value


@dataclass(frozen=True, slots=True)
class Description:
    """The file server.json of a running server. `fd` holds its lock (flock): a file without a lock
    is of an ended server. `folder`: the descriptor of a temporary folder, which close() removes."""

    path: Path
    fd: int
    folder: int | None = None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(self.path, follow_symlinks=False), os.fstat(self.fd)):
                self.path.unlink()
        os.close(self.fd)
        if self.folder is not None:
            _remove(self.path.parent, self.folder)


def describe(folder: Path | None, beside: Path, facts: Mapping[str, Any]) -> Description:
    """Write `facts` to server.json in `folder`, or in a new temporary folder in `beside`. Raises
    OSError."""
    lock = None
    if folder is None:
        beside.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_stale(beside)
        folder, lock = _own_folder(beside)
    draft = folder / f"{DESCRIPTION}.{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(draft, flags, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)  # before clients see the name
    os.write(fd, json.dumps({"version": 1, "pid": os.getpid(), **facts}).encode() + b"\n")
    draft.rename(folder / DESCRIPTION)
    return Description(folder / DESCRIPTION, fd, lock)


def is_described(folder: Path) -> bool:
    """Whether a running server has described itself in the folder."""
    try:
        fd = os.open(folder / DESCRIPTION, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def open_secret(folder: Path, name: str) -> str:
    """The secret of 43 characters in the file `name` of the folder, created if it is missing.
    Raises OSError."""
    with closing(open_folder(folder)) as fd:
        return _token(fd, folder, name)


def _token(folder: int, path: Path, name: str = NAME) -> str:
    """The token in the file `name`. A new one if it is missing or other users could know it."""
    try:
        return _read(folder, name)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        facts = {"file": path / name, "reason": str(error)}
        log.warning("the operator token was replaced; the old token is invalid", extra=facts)
    made = secrets.token_urlsafe(32)
    replace_file(name, folder, f"{made}\n")
    return made


def _written(folder: int) -> str | None:
    """The token in its file; None if others could know it."""
    with contextlib.suppress(OSError, ValueError):
        return _read(folder, NAME)
    return None


def _read(folder: int, name: str) -> str:
    """Raises ValueError for a file that other users could have read or written."""
    with closing(os.open(name, _OLD_FILE, dir_fd=folder)) as fd:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise ValueError("it is not a regular file with one link")
        if found.st_uid != os.geteuid():
            raise ValueError(f"it belongs to the user {found.st_uid}")
        if found.st_mode & 0o077:
            raise ValueError(
                f"other users have access: its mode is {stat.S_IMODE(found.st_mode):o}"
            )
        content = os.read(fd, 4096)
    if not _TOKEN.fullmatch(content):
        raise ValueError("it does not contain a token")
    return content.decode().strip()


# --- folders of servers without state -------------------------------------------------------------


def _own_folder(beside: Path) -> tuple[Path, int]:
    """A new temporary folder, and the descriptor that holds its lock."""
    while True:
        path = beside / f"{PREFIX}{os.getpid()}"
        if path.exists():  # of a server in another PID namespace
            path = path.with_name(f"{path.name}-{secrets.token_hex(4)}")
        path.mkdir(mode=0o700)
        private_directory(path)
        fd = open_folder(path)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if _is_at(path, fd):  # no other server removed it before the lock
            return path, fd
        os.close(fd)


def remove_stale(beside: Path) -> None:
    """Remove the folders of ended servers, as far as possible."""
    for path in beside.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            fd = open_folder(path)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(fd)
            else:
                _remove(path, fd)


def _remove(path: Path, fd: int) -> None:
    """Remove a folder that this process has locked, and release the lock."""
    try:
        for name in FILES:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=fd)
        if _is_at(path, fd):
            path.rmdir()
    except OSError as error:
        if error.errno != errno.ENOENT:
            log.warning("cannot remove a folder", extra={"folder": path, "reason": error.strerror})
    finally:
        os.close(fd)


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False
