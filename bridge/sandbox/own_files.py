"""Files that only the server and its operator may change: settings, secrets, state, the audit log.

An agent that could replace one of them would configure the server or read its data. None of them
may lie where an agent may write. Each folder in which a name of the path is looked up counts,
symbolic links included: write access to one of them decides the target of the path.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from bridge.errors import ConfigurationError
from bridge.files.own_modes import open_to_reader
from bridge.sandbox.landlock import is_inside

MOST_LINKS = 40  # in one path, as in the kernel
WIDER_THAN_0640 = 0o037  # bits of a mode, besides those of the owner
LARGEST_SECRET = 64 * 1024  # bytes of a file


@dataclass(frozen=True, slots=True)
class OwnFile:
    """`setting`: the name of the setting or variable. `folder`: the path is a folder, with its
    whole content. `public`: it has no secrets, and agents may read it."""

    setting: str
    path: str
    folder: bool = False
    public: bool = False


def reachable(path: str, writable: Iterable[str]) -> str | None:
    """The first of the paths `writable` by which an agent that may write there could change what
    `path` leads to; None if there is none."""
    real = [os.path.realpath(one) for one in writable]
    places = (folder for folder, _ in walk(os.path.expanduser(path)))
    return next((one for place in places for one in real if is_inside(place, one)), None)


def walk(path: str) -> Iterator[tuple[str, str]]:
    """The real folders in which a name of `path` is looked up, each with the symbolic link that is
    followed there, or ""; at last its target."""
    left, at, links = os.path.abspath(path).split("/")[::-1], "/", 0
    while left and links <= MOST_LINKS:
        name = left.pop()
        if name == "..":
            at = os.path.dirname(at)
        elif name not in ("", "."):
            step = os.path.join(at, name)
            try:
                target = os.readlink(step)
            except OSError:  # no link, or nothing yet
                yield at, ""
                at = step
                continue
            yield at, step
            links += 1
            at = "/" if target.startswith("/") else at
            left += target.split("/")[::-1]
    if not left:
        yield at, ""


def refuse_reachable(files: Iterable[OwnFile], writable: Mapping[str, str]) -> None:
    """Raise ConfigurationError for a file that an agent could change. `writable`: the paths that
    agents may write, with what names each."""
    for file in files:
        place = reachable(file.path, writable)
        if place is None:
            continue
        names = {os.path.realpath(path): why for path, why in writable.items()}
        raise ConfigurationError(
            f"{file.setting}: {file.path} can be changed by agents, which may write in {place} "
            f"({names[place]}). Move it out of there, or choose another directory for the agents."
        )


def has_only_sockets(folder: str) -> bool:
    """Whether a folder has no entries besides Unix sockets, so that agents need none of them."""
    try:
        with os.scandir(folder) as entries:
            return all(stat.S_ISSOCK(one.stat(follow_symlinks=False).st_mode) for one in entries)
    except OSError:
        return False


def read_secret(setting: str, path: str) -> str:
    """The one line that a file has. Raises ConfigurationError for a file that cannot be read, or
    that others than its owner may write, or than its group may read."""
    open_to_reader(path)
    try:
        with open(os.path.expanduser(path), "rb", opener=_without_waiting) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ConfigurationError(f"{setting}: {path} is not a file.")
            text = file.read(LARGEST_SECRET).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{setting}: cannot read {path}: {error}") from None
    check_owner(setting, path, found)
    if found.st_mode & WIDER_THAN_0640:
        text = f"the mode of {path} is {stat.S_IMODE(found.st_mode):04o}, wider than 0640"
        raise ConfigurationError(f"{setting}: {text}. It has a secret: chmod 600.")
    if not text or "\n" in text:
        raise ConfigurationError(f"{setting}: {path} does not have exactly one line.")
    return text


def check_owner(setting: str, path: str, found: os.stat_result) -> None:
    """Raise ConfigurationError for a file that another user than root and this one can change."""
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigurationError(f"{setting}: {path} belongs to another user: chown it.")
    if found.st_mode & 0o002:
        raise ConfigurationError(f"{setting}: every user may write {path}: chmod o-w.")


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
