"""A program as an ordinary user without control groups, as in an ssh session or a container:

    python -I ordinary_user.py FOLDER PROGRAM ARGUMENT…

The tests run as root on many machines, and most servers do not. If this process is not root, the
program runs as it is. If it is root, the program gets another user, which owns FOLDER, and a mount
namespace in which that user can pass the folders that lead to the interpreter, the checkout and
FOLDER: those of root, such as /root, have a mode that excludes others. The mounts of control groups
are hidden there.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

PROGRAM = str(Path(__file__).resolve())
CHECKOUT = Path(__file__).resolve().parents[2]
CONTROL_GROUPS = "/sys/fs/cgroup"
_NEW_MOUNTS = 0x20000  # CLONE_NEWNS
_PRIVATE, _BIND, _MOVE = 0x40000 | 0x4000, 0x1000 | 0x4000, 0x2000
_LIBC = ctypes.CDLL(None, use_errno=True)


def ids() -> tuple[int, int]:
    """The user and group of the program. Other tests count processes of nobody and postgres."""
    if os.geteuid():
        return os.geteuid(), os.getegid()
    found = pwd.getpwnam("games")
    return found.pw_uid, found.pw_gid


def command(folder: Path, *program: str) -> tuple[str, ...]:
    return (sys.executable, "-I", PROGRAM, str(folder), *program)


def _become(folder: Path) -> None:
    if os.geteuid():
        return
    for path in (folder, *folder.rglob("*")):
        os.chown(path, *ids(), follow_symlinks=False)
    _checked(_LIBC.unshare(_NEW_MOUNTS))
    _mount("none", "/", _PRIVATE)
    if os.path.isdir(CONTROL_GROUPS):
        _mount("tmpfs", CONTROL_GROUPS, 0, "tmpfs")
    _open_ways((Path(sys.base_prefix), Path(sys.prefix), CHECKOUT, folder))
    user, group = ids()
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


def _open_ways(ends: Iterable[Path]) -> None:
    """Replace each folder that others cannot pass by one that has only the ways to `ends`."""
    closed: dict[Path, list[Path]] = {}
    for end in ends:
        for folder in reversed(end.parents):
            if not folder.stat().st_mode & stat.S_IXOTH:
                closed.setdefault(folder, []).append(end)
                break
    for folder, behind in closed.items():
        _open_way(folder, behind)


def _open_way(folder: Path, ends: Iterable[Path]) -> None:
    # The mounts need a place that `folder` does not cover.
    kept = Path(CONTROL_GROUPS if folder != Path(CONTROL_GROUPS) else "/mnt", f"way-{os.getpid()}")
    places = [kept / str(number) for number, _ in enumerate(ends)]
    for place, end in zip(places, ends, strict=True):
        place.mkdir(parents=True)
        _mount(str(end), str(place), _BIND)
    _mount("tmpfs", str(folder), 0, "tmpfs")
    os.chmod(folder, 0o755)
    for place, end in zip(places, ends, strict=True):
        end.mkdir(parents=True, exist_ok=True)
        _mount(str(place), str(end), _MOVE)
    shutil.rmtree(kept)


def _mount(source: str, target: str, flags: int, kind: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), None)
    _checked(_LIBC.mount(*words))


def _checked(result: int) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


if __name__ == "__main__":
    _become(Path(sys.argv[1]).resolve())
    os.execvp(sys.argv[2], sys.argv[2:])
