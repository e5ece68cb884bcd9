"""Configuration files of a repository that a program executes because it was started there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# git runs it for a mere `git status`, as several CLIs do when they start. Nothing is lost without
# it but time. Hooks and filters stay: commits may rely on them.
_GIT = {"core.fsmonitor": "false", "safe.bareRepository": "explicit"}


@dataclass(frozen=True, slots=True)
class ProjectConfigPolicy:
    """Whether a CLI may load the configuration of a repository. `files`: patterns of the files that
    it would execute; `always_loaded`: of those that it has no switch for; `texts`: of those that it
    does not read either unless it may load the others."""

    policy: Literal["deny", "ask", "allow"] = "allow"
    files: tuple[str, ...] = ()
    always_loaded: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    def doubts(self, cwd: str) -> list[str]:
        """The files that need a decision of a client before a CLI starts in `cwd`."""
        return found(cwd, self.files) if self.policy == "ask" else []

    def unused(self, cwd: str) -> tuple[list[str], list[str]]:
        """The files in `cwd` of a CLI that must not use any of them: why it cannot start there, and
        all that it does not use."""
        if self.policy == "allow":
            return [], []
        return found(cwd, self.always_loaded), found(cwd, (*self.files, *self.texts))


TRUSTING = ProjectConfigPolicy()


def found(cwd: str, patterns: Iterable[str]) -> list[str]:
    """The files that match `patterns` (of pathlib's glob) in `cwd`, and in the folders above it up
    to the root of its git repository: paths from `cwd`, in order."""
    wanted = tuple(patterns)
    paths = {path for folder in _folders(Path(cwd)) for path in _matches(folder, wanted)}
    return sorted(os.path.relpath(path, cwd) for path in paths)


def state(cwd: str, patterns: Iterable[str]) -> object:
    """A fingerprint of the directory `cwd` and of the files in it that match `patterns`. Raises
    OSError if `cwd` is not a directory."""
    files = [os.path.join(cwd, path) for path in found(cwd, patterns)]
    stats = {path: os.lstat(path) for path in files}
    known = {path: (one.st_mtime_ns, one.st_size, one.st_ino) for path, one in stats.items()}
    directory = os.stat(cwd)
    return os.path.realpath(cwd), directory.st_dev, directory.st_ino, known


def guards(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that keep git from running programs of a repository's own configuration, besides
    the variables for git in `environment`."""
    count = environment.get("GIT_CONFIG_COUNT", "")
    first = int(count) if count.isdecimal() else 0
    variables = {"GIT_CONFIG_COUNT": str(first + len(_GIT))}
    for number, (name, value) in enumerate(_GIT.items(), first):
        variables |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


def _folders(cwd: Path) -> list[Path]:
    above = [cwd, *cwd.parents]
    root = next((number for number, one in enumerate(above) if os.path.exists(one / ".git")), 0)
    return above[: root + 1]


def _matches(folder: Path, patterns: Iterable[str]) -> Iterator[Path]:
    for pattern in patterns:
        if "*" in pattern:
            yield from folder.glob(pattern)
        elif os.path.lexists(folder / pattern):  # a link that leads nowhere may do so tomorrow
            yield folder / pattern
