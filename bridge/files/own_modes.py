"""The modes of the server's own files, which agents of the same user can change.

No rule of Landlock and no filter of system calls concerns chmod(2) of a path that a process can
name, hidden or not. So the server restores the modes at its start, before each session and when a
file cannot be opened.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

log = logging.getLogger(__name__)

OTHERS = 0o067  # rights of the owner alone in a private folder; a group may pass through
SHARED = ("homes", "scratch", "sessions")
"""Folders of a state folder whose folders belong to the server and are of one agent or session."""


def restore(folder: Path, *, deep: bool = False) -> None:
    """Let this user, and no other one, use the state folder and its files. `deep`: also the files
    of sessions, which the next server opens. No agent may write in one of these folders. What
    cannot be restored is skipped."""
    open_way(folder)
    _restore(str(folder), OTHERS)
    for path in _entries(str(folder)):
        _restore(path)
    for shared in SHARED:
        for path in _entries(f"{folder}/{shared}"):
            _restore(path)
            if deep and shared == "sessions":
                for file in _entries(path):
                    _restore(file)


def open_way(path: Path) -> None:
    """Let this user pass through its own folders above the path, as far as possible."""
    for folder in reversed(path.parents):
        with contextlib.suppress(OSError):
            found = os.stat(folder)
            if found.st_uid == os.geteuid() and not found.st_mode & 0o100:
                os.chmod(folder, stat.S_IMODE(found.st_mode) | 0o100)


def open_to_reader(path: str | Path) -> None:
    """Let this user read its own file, as far as possible."""
    place = Path(os.path.expanduser(path))
    open_way(place)
    with contextlib.suppress(OSError):
        found = os.stat(place)
        if found.st_uid == os.geteuid() and not found.st_mode & 0o400:
            os.chmod(place, stat.S_IMODE(found.st_mode) | 0o400)


def _restore(path: str, closed: int = 0o007) -> None:
    """`closed`: rights that a folder must not give."""
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        if found.st_uid != os.geteuid() or stat.S_ISLNK(found.st_mode):
            return
        is_folder, mode = stat.S_ISDIR(found.st_mode), stat.S_IMODE(found.st_mode)
        wanted = (mode | 0o700) & ~closed if is_folder else mode | 0o600
        if wanted == mode:
            return
        os.chmod(path, wanted)
        if is_folder and mode & closed:
            log.warning("others could look into a folder of the server", extra={"folder": path})


def _entries(folder: str) -> Iterator[str]:
    names: Iterable[str] = ()
    with contextlib.suppress(OSError):
        names = os.listdir(folder)
    return (f"{folder}/{name}" for name in names)
