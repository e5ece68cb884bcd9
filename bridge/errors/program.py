"""How a person calls this program: the command lines that it prints."""

from __future__ import annotations

import functools
import os
import shlex
import sys

TYPE_CHECKING = False  # a name that type checkers know: the module typing takes long to import
if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "coding-agent-bridge"
NAMES = (NAME, "cab")  # of the console scripts


def command(*words: str) -> str:
    """A command line of this program that a person can paste into a shell of any directory."""
    return shlex.join([*_called(), *words])


@functools.cache
def absolute() -> tuple[str, ...]:
    """The words of the program for another program's configuration."""
    return absolute_of(sys.argv[0], sys.executable)


def absolute_of(called: str, python: str) -> tuple[str, ...]:
    """The same for a program that was `called` so and is run by this `python`."""
    if os.path.basename(called) in NAMES:
        return (os.path.abspath(called),)
    beside = os.path.join(os.path.dirname(python), NAME)
    found = beside if os.path.exists(beside) else _on_path(NAME)
    return (found,) if found else (python, "-P", "-m", "bridge")


@functools.cache
def _called() -> tuple[str, ...]:
    return shortest(absolute())


def shortest(words: Sequence[str]) -> tuple[str, ...]:
    """The name alone if PATH leads to the same file."""
    name = os.path.basename(words[0])
    found = _on_path(name) if name in NAMES else None
    if found and os.path.realpath(found) == os.path.realpath(words[0]):
        return (name, *words[1:])
    return tuple(words)


def _on_path(name: str) -> str | None:
    paths = (os.path.join(folder, name) for folder in os.get_exec_path())
    return next((one for one in paths if os.access(one, os.X_OK)), None)
