"""Rules of Landlock: which files, TCP ports and processes a confined process can reach.

Nothing but the standard library: the programs that use this module run without anything else.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from bridge.sandbox.kernel import LIBC, ConfineError, done

LEAST_ABI = 3  # before it, truncate() reaches every file
DEVICES = tuple(f"/dev/{name}" for name in "null zero full random urandom tty ptmx".split())

DOTS = ".*"  # as the last name of a hidden path: all entries of its folder that begin with a dot

# Rights by bit. Those from 13 on came with ABI 2, 3, 5 and 9.
_EXECUTE, _WRITE, _READ, _LIST = 1, 2, 4, 8
_TRUNCATE, _IOCTL, _CONNECT_UNIX = 1 << 14, 1 << 15, 1 << 16
_MAKE_DEVICES = 1 << 6 | 1 << 11
_SINCE = ((1, 13), (2, 14), (3, 15), (5, 16), (9, 17))  # ABI: number of rights
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL | _CONNECT_UNIX
_LOOK = _EXECUTE | _READ | _LIST
_USE = _READ | _WRITE | _TRUNCATE | _IOCTL
_BIND, _CONNECT = 1, 2
_SCOPES = 1 | 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on all machines


@cache
def abi() -> int:
    """The ABI version of the running kernel; 0 if Landlock is missing or switched off."""
    if sys.platform != "linux":
        return 0
    size, version = ctypes.c_size_t(0), 1
    found = LIBC.syscall(ctypes.c_long(_CREATE_RULESET), None, size, version)
    return max(0, int(found))


class Ruleset:
    """Rules until they are enforced."""

    def __init__(self, *, files: bool, net: int, scopes: int, exempt: int) -> None:
        """`files`: whether the rules limit files; `exempt`: rights to files that stay unlimited."""
        rights = max(count for since, count in _SINCE if since <= abi())
        self._handled = ((1 << rights) - 1) & ~exempt if files else 0
        self._fd = -1
        if self._handled or net or scopes:
            attributes = struct.pack("QQQ", self._handled, net, scopes)
            size = ctypes.c_size_t(len(attributes))
            made = LIBC.syscall(ctypes.c_long(_CREATE_RULESET), attributes, size, 0)
            self._fd = done("no rules of Landlock", made)

    def allow_path(self, path: str, rights: int, same: Mapping[str, Any] = {}) -> None:
        """Allow the rights for this path and for all paths below. A missing path is ignored."""
        try:
            fd = open_path(path, same)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError:
            if rights & _WRITE:
                raise
            return  # a user that cannot reach the path now cannot read it later
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _OF_FILES
        self.add(1, struct.pack("=Qi", rights & self._handled, fd), path)
        os.close(fd)

    def add(self, kind: int, rule: bytes, what: str) -> None:
        added = LIBC.syscall(ctypes.c_long(_ADD_RULE), self._fd, kind, rule, 0)
        done(f"no rule for {what}", added)

    def enforce(self) -> None:
        """Confine this process. Raises ConfineError."""
        if self._fd >= 0:
            done("Landlock", LIBC.syscall(ctypes.c_long(_RESTRICT_SELF), self._fd, 0))
            os.close(self._fd)


def ruleset(rules: Mapping[str, Any]) -> Ruleset:
    """Landlock's part of the checked rules of sandbox/confine.py. Raises ConfineError, OSError."""
    files = rules["profile"] == "landlock"
    connect, bind = rules["connect"], rules["bind"]
    made = Ruleset(
        files=files,
        net=(_CONNECT if connect is not None else 0) | (_BIND if bind is not None else 0),
        scopes=_SCOPES if rules["scope"] else 0,
        exempt=_CONNECT_UNIX if rules["unix"] else 0,
    )
    for ports, right in ((connect, _CONNECT), (bind, _BIND)):
        for port in ports or ():
            made.add(2, struct.pack("QQ", right, port), f"port {port}")
    if files:
        for path in DEVICES:
            made.allow_path(path, _USE)
        for path in rules["write"]:
            terminals = 0 if is_inside(path, "/dev") else _IOCTL
            made.allow_path(path, ~(_MAKE_DEVICES | terminals), rules["same"])
        for path, rights in _readable(rules):
            made.allow_path(path, rights, rules["same"])
    return made


def _readable(rules: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The paths that can be read, with their rights."""
    hidden = rules["hide"]  # real paths
    for path in rules["show"]:
        yield from visible(path if path in rules["same"] else os.path.realpath(path), hidden)
    for path in ["/"] if rules["read"] is None else map(os.path.realpath, rules["read"]):
        if not any(covers(one, path) for one in hidden):
            yield from visible(path, hidden)


def visible(path: str, hidden: Sequence[str]) -> Iterator[tuple[str, int]]:
    """The parts of `path` that can be read, with their rights. If no hidden path is below `path`,
    that is the whole; else its entries one by one, without those that appear later. A folder on the
    way to a hidden path can be listed, so the names of hidden files are visible."""
    below = [one for one in hidden if one != path and is_inside(one, path)]
    if not below:
        yield path, _LOOK
        return
    yield path, _LIST
    leads = {one[len(path.rstrip("/")) + 1 :].partition("/")[0] for one in below}
    for entry in _entries(path):
        if DOTS in leads and entry.name.startswith("."):
            continue
        if entry.is_symlink():  # the target of the link has its own rules
            continue
        if entry.name not in leads:
            yield entry.path, _LOOK
        elif entry.path not in below:
            yield from visible(entry.path, below)


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:
        return []


# --- paths ---------------------------------------------------------------------------------------


def is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def covers(hidden: str, path: str) -> bool:
    """Whether a path of `hide` hides `path`."""
    return path.startswith(hidden[:-1]) if hidden.endswith(f"/{DOTS}") else is_inside(path, hidden)


def open_path(path: str, same: Mapping[str, Any]) -> int:
    """A descriptor of the path. Raises OSError, and ConfineError if the path has another device or
    inode than `same` says, or leads through a link."""
    flags = os.O_PATH | os.O_CLOEXEC
    plain = path.rstrip("/")
    if plain not in same:
        return os.open(path, flags)
    fd = os.open(plain, flags | os.O_NOFOLLOW)
    found, known = os.fstat(fd), same[plain]
    moved = os.readlink(f"/proc/self/fd/{fd}") != plain
    if moved or stat.S_ISLNK(found.st_mode) or (known and [found.st_dev, found.st_ino] != [*known]):
        os.close(fd)
        raise ConfineError(
            f"{plain} was replaced by another folder or a link since the server started. "
            "If you have replaced it, restart the server"
        )
    return fd


def make_folder(path: str, same: Mapping[str, Any]) -> None:
    """Make a folder whose path ends in /, and the folders above it. Raises OSError where a link is
    on the way."""
    if path.rstrip("/") not in same:
        os.makedirs(path, mode=0o700, exist_ok=True)
        return
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open("/", flags)
    for name in path.strip("/").split("/"):
        try:
            below = os.open(name, flags, dir_fd=fd)
        except FileNotFoundError:
            os.mkdir(name, 0o700, dir_fd=fd)
            below = os.open(name, flags, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
