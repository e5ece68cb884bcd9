"""Folders of the server with an agent's access: opened, made and removed through descriptors.

Each use of a path looks it up again, and a process that can write in one of its folders can put a
symbolic link there in between. A descriptor always refers to the same folder. Each entry below it
is opened by a single name, and links are never followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from itertools import count
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PASSAGE = 0o710  # the group can open entries by name, and cannot list them
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
PATH_MAX = 4096  # bytes of a path that Linux takes, with the zero byte at its end
NAME_MAX = 255  # bytes of a name in it
MOST_NAMES = 512  # in a path; the time to resolve it grows with their square


def is_possible(path: str) -> bool:
    """Whether a path from outside can be one of the system. Do not resolve it before this check."""
    if len(path) >= PATH_MAX or len(data := os.fsencode(path)) >= PATH_MAX:
        return False
    names = data.split(b"/")
    return len(names) <= MOST_NAMES and max(map(len, names)) <= NAME_MAX


def open_folder(name: str | Path, parent: int | None = None) -> int:
    """A descriptor of the folder `name`, in the folder `parent`. Raises OSError; ENOTDIR or ELOOP
    for any other file, links included."""
    return os.open(name, FOLDER, dir_fd=parent)


def own_folder(
    name: str | Path, parent: int | None = None, group: int | None = None, mode: int = 0o750
) -> int:
    """A descriptor of the folder `name`, which is made if it is missing: private to this user, or
    with `mode` for `group`. One that exists and belongs to another user is taken back, if this
    user may do that. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    open_to_owner(name, parent)
    fd = open_folder(name, parent)
    try:
        keep_own(fd, group, mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_to_owner(name: str | Path, parent: int | None = None) -> None:
    """Let this user into its own folder or file `name`, which must be in a folder that no agent may
    write: Landlock lets every program change the modes of its user's files. Raises OSError."""
    found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    least = 0o700 if stat.S_ISDIR(found.st_mode) else 0o600
    ours = found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode)
    if ours and found.st_mode & least != least:
        os.chmod(name, stat.S_IMODE(found.st_mode) | least, dir_fd=parent)


def keep_own(fd: int, group: int | None, mode: int = 0o750) -> None:
    """Make what `fd` refers to this user's, with `mode` for the group, or private to this user.
    Raises OSError."""
    found = os.fstat(fd)
    wanted = stat.S_IMODE(mode) if group is not None else stat.S_IMODE(mode) & 0o700
    if found.st_uid != os.geteuid() or (group is not None and found.st_gid != group):
        os.fchown(fd, os.geteuid(), -1 if group is None else group)
    if stat.S_IMODE(found.st_mode) != wanted:
        os.fchmod(fd, wanted)


def give_folder(name: str, parent: int, uid: int, gid: int) -> int:
    """A descriptor of the folder `name` in `parent`, made if it is missing, which belongs to the
    user `uid` alone. `parent` must not be writable for that user. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    fd = open_folder(name, parent)
    if os.fstat(fd).st_uid != uid:
        os.fchown(fd, uid, gid)
    return fd


def replace_file(name: str, folder: int, text: str) -> None:
    """Write the file `name` in `folder`, private to this user, and make it durable. A crash leaves
    the old content or the new one. Raises OSError."""
    draft = f"{name}.{secrets.token_hex(8)}"
    with open(os.open(draft, NEW_FILE, 0o600, dir_fd=folder), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)


def remove_drafts(name: str, folder: int) -> None:
    """Remove what crashes in replace_file() have left. Only for the one writer of the file. Raises
    OSError."""
    for found in os.listdir(folder):
        if found.startswith(f"{name}."):
            os.unlink(found, dir_fd=folder)


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut. Raises OSError."""
    with closing(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as fd:
        os.fsync(fd)


def remove(name: str, parent: int) -> None:
    """Remove the folder `name` in `parent` with its content, as far as possible. No link is
    followed, even if it appears meanwhile; a link in the folder's place stays. An agent may have
    nested folders to any depth, so the content of an inner folder is moved up first. Only for
    folders in which no agent works any more."""
    with contextlib.suppress(OSError):
        with closing(open_folder(name, parent)) as top:
            _empty(top)
        os.rmdir(name, dir_fd=parent)


def _empty(top: int) -> None:
    """Raises OSError for a folder that cannot be emptied."""
    numbers = count()
    while names := os.listdir(top):
        for name in names:
            try:
                below = open_folder(name, top)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                os.unlink(name, dir_fd=top)
                continue
            with closing(below):
                for one in os.listdir(below):
                    # With a name that is new in `top`, or it would replace an entry.
                    fresh = f"{next(numbers)}-{secrets.token_hex(8)}"
                    os.rename(one, fresh, src_dir_fd=below, dst_dir_fd=top)
            os.rmdir(name, dir_fd=top)


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)
