"""A listening Unix socket at a path.

The folder of the path belongs to this user, and other users cannot write to it; so they can
replace neither the socket nor a name on the way. A socket that a killed server has left is
removed. A lock on the folder (flock) lasts from that check to listen(2): until then, connections to
a new socket fail as those to an abandoned one do.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import os
import socket
import stat
import time
from collections.abc import Iterator

from bridge.errors import ConfigurationError

SETTING, GROUP_SETTING = "BRIDGE_UNIX_SOCKET", "BRIDGE_UNIX_GROUP"
LONGEST = 107  # bytes of a path in sockaddr_un (unix(7))
BACKLOG = 128
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_ENTRY = getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCKED_WITHIN, _PAUSE = 5.0, 0.01  # seconds


class UnixSocket:
    """A socket that listens at `path`."""

    def __init__(
        self, path: str, listening: socket.socket, made: os.stat_result | None = None
    ) -> None:
        """`made`: the file at the path; None: close() does not remove it, because another program
        has made the socket."""
        self.path = path
        self.listening = listening
        self._made = made
        # While this descriptor is open, the file system gives the inode to no other file.
        self._entry = os.open(path, _ENTRY) if made and hasattr(os, "O_PATH") else None

    def close(self) -> None:
        """Remove the file if it is still the one of this socket. The connections stay."""
        if self._made is None:
            return
        name = os.path.basename(self.path)
        with contextlib.suppress(OSError, ConfigurationError), _locked_folder(self.path) as folder:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if os.path.samestat(found, self._made):
                os.unlink(name, dir_fd=folder)
        if self._entry is not None:
            os.close(self._entry)
            self._entry = None


def check_place(path: str, group: str | None = None) -> None:
    """Raises ConfigurationError if no socket can be created at `path` for `group`, and OSError
    (EADDRINUSE) if a process listens there. Changes nothing."""
    _check_path(path)
    if group is not None:
        group_id(group)
    folder = _open_folder(path)
    try:
        _is_abandoned(path, folder)
    finally:
        os.close(folder)


def listen(path: str, group: str | None = None) -> UnixSocket:
    """A new socket that listens at `path`, with mode 0600, or 0660 for `group`. Removes an
    abandoned socket. Raises ConfigurationError, and OSError (EADDRINUSE) if a process listens
    there."""
    _check_path(path)
    gid = None if group is None else group_id(group)
    name = os.path.basename(path)
    with _locked_folder(path) as folder:
        if _is_abandoned(path, folder):
            os.unlink(name, dir_fd=folder)
        with contextlib.ExitStack() as unused:
            listening = unused.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            try:
                _bind(listening, path)
                unused.callback(_unlink, name, folder)
                made = _check_made(path, folder)
                _open_to_group(name, folder, gid)
                listening.listen(BACKLOG)
                found = UnixSocket(path, listening, made)
            except OSError as error:
                raise _refused(path, f"cannot listen there: {error.strerror}") from error
            unused.pop_all()
            return found


def group_id(group: str) -> int:
    """The id of a group by its name or number. Raises ConfigurationError."""
    try:
        return grp.getgrgid(int(group)).gr_gid if group.isdigit() else grp.getgrnam(group).gr_gid
    except (KeyError, OverflowError):
        raise ConfigurationError(f"{GROUP_SETTING}: unknown group {group}.") from None


def _check_path(path: str) -> None:
    size = len(os.fsencode(path))
    if size > LONGEST:
        text = (
            f"the path has {size} bytes, and a Unix socket allows {LONGEST}; choose a shorter one"
        )
        raise _refused(path, text)
    if "\0" in path or not os.path.basename(path):
        raise _refused(path, "a path of a file is expected")


def _bind(listening: socket.socket, path: str) -> None:
    """Create the file with mode 0600."""
    before = os.umask(0o177)
    try:
        listening.bind(path)
    finally:
        os.umask(before)


def _unlink(name: str, folder: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


def _check_made(path: str, folder: int) -> os.stat_result:
    """The new file. bind(2) has looked up the path again, so the folder is compared."""
    made = os.stat(os.path.basename(path), dir_fd=folder, follow_symlinks=False)
    if not os.path.samestat(made, os.stat(path, follow_symlinks=False)):
        raise _refused(path, "another process has replaced its folder")
    return made


def _open_to_group(name: str, folder: int, gid: int | None) -> None:
    if gid is None:
        return
    try:
        os.chown(name, -1, gid, dir_fd=folder, follow_symlinks=False)
    except PermissionError:
        text = "the user of the server is not a member of this group"
        raise ConfigurationError(f"{GROUP_SETTING}: {text}.") from None
    os.chmod(name, 0o660, dir_fd=folder)


def _open_folder(path: str) -> int:
    """A descriptor of the folder. Raises ConfigurationError if other users can write to it."""
    place = os.path.dirname(path) or "."
    try:
        folder = os.open(place, _FOLDER)
    except OSError as error:
        raise _refused(path, f"cannot use the folder {place}: {error.strerror}") from None
    found = os.fstat(folder)
    problem = None
    if found.st_uid != os.geteuid():
        problem = "belongs to another user; choose a folder of the user of the server"
    elif found.st_mode & 0o022:
        problem = "is writable for other users, which could replace the socket: chmod go-w"
    if problem:
        os.close(folder)
        raise _refused(path, f"the folder {place} {problem}")
    return folder


@contextlib.contextmanager
def _locked_folder(path: str) -> Iterator[int]:
    """A descriptor of the folder, which holds its lock. Raises ConfigurationError."""
    folder = _open_folder(path)
    deadline = time.monotonic() + _LOCKED_WITHIN
    try:
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise _refused(path, "another process keeps the folder locked") from None
                time.sleep(_PAUSE)
        yield folder
    finally:
        os.close(folder)


def _is_abandoned(path: str, folder: int) -> bool:
    """Whether a socket is at the path, of a process that has ended; False if the path is free."""
    try:
        found = os.stat(os.path.basename(path), dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(found.st_mode):
        raise _refused(path, "another file has this path; remove it, or choose another path")
    if found.st_uid != os.geteuid():
        raise _refused(path, "a socket of another user has this path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        problem = probe.connect_ex(path)
    if problem == errno.ECONNREFUSED:
        return True
    if problem in (0, errno.EAGAIN):  # EAGAIN: too many connections wait there
        raise OSError(errno.EADDRINUSE, "another server listens there", path)
    raise _refused(path, f"another process uses this socket: {os.strerror(problem)}")


def _refused(path: str, problem: str) -> ConfigurationError:
    return ConfigurationError(f"{SETTING}={path}: {problem}.")
