"""The values of .env files.

--env-file names a file that the operator chose. The file .env of the start directory is read
without a choice, and others may have written it: the author of a repository, or an agent of an
earlier server. So it is read only where only the operator can have written it, and it sets only
numbers and SAFE.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dotenv import dotenv_values

from bridge.errors import ConfigurationError
from bridge.files.own_modes import open_to_reader
from bridge.sandbox.own_files import reachable
from bridge.server.settings import former
from bridge.server.settings.places import Places
from bridge.server.settings.root import SECTIONS, VARIABLES, Settings

NAME = ".env"
SAFE = frozenset(
    (
        *("host", "log_level", "log_format", "log_requests", "bridge_websocket"),
        *("bridge_node", "bridge_when_busy"),
        *("bridge_on_disconnect", "bridge_thoughts"),
        *("agent_name", "agent_description", "agent_model", "agent_models", "bridge_card"),
        *("agent_text_field", "agent_trace"),
    )
)
"""Further settings, which choose neither program, boundary, credential nor path."""
_NUMBERS = frozenset(
    one.alias or name
    for kind in SECTIONS.values()
    for name, one in kind.model_fields.items()
    if isinstance(one.default, int | float) and not isinstance(one.default, bool)
)
_REPOSITORIES = (".git", ".hg", ".jj", ".svn")
_BARE = ("HEAD", "objects", "refs")  # a repository of git without a working directory
STEP = f"Pass --env-file {NAME} to use all of it"


@dataclass(frozen=True, slots=True)
class EnvFile:
    """`values`: of the file that was read; `path`: its path, or None; `warnings`: for the
    operator."""

    values: Mapping[str, str] = field(default_factory=dict)
    path: str | None = None
    warnings: tuple[str, ...] = ()


def read(path: str) -> EnvFile:
    """The file that the operator named. Raises ConfigurationError."""
    open_to_reader(path)
    try:
        return EnvFile(_values(Path(path).read_text("utf-8")), path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from None


def read_implicit(settings: Settings) -> EnvFile:
    """The file of the start directory. `settings`: those of the other sources. Raises
    ConfigurationError for a file that would be used and is invalid."""
    try:
        fd = os.open(NAME, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return EnvFile()
    except OSError as error:
        return _unread(f"it cannot be opened ({error.strerror})")
    with open(fd, "rb") as file:
        why = _objection(os.fstat(fd)) or _objection_to_place(settings)
        if why:
            return _unread(why)
        try:
            found = _values(file.read().decode())
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"cannot read {NAME}: {error}") from None
    refused = sorted(name for name in found if not may_set(name))
    kept = {name: value for name, value in found.items() if name not in refused}
    return EnvFile(kept, NAME, tuple(_ignored(refused)))


def _ignored(names: Iterable[str]) -> Iterator[str]:
    if listed := ", ".join(names):
        yield (
            f"{os.path.abspath(NAME)}: {listed} ignored: a file without --env-file sets no "
            f"programs, sandbox, credentials or paths. {STEP}."
        )


def _unread(why: str) -> EnvFile:
    return EnvFile(warnings=(f"{os.path.abspath(NAME)} was not read: {why}. {STEP}.",))


def may_set(name: str) -> bool:
    """Whether the file may set a variable. Other variables than settings reach a CLI only if
    AGENT_ENV names them."""
    setting = former.current(name.lower())
    return setting not in VARIABLES or setting in SAFE or setting in _NUMBERS


def _objection(found: os.stat_result) -> str | None:
    if not stat.S_ISREG(found.st_mode):
        return "it is not a file"
    if found.st_uid not in (0, os.geteuid()):
        return "it belongs to another user"
    if found.st_mode & 0o022:  # with an ACL, the bits of the group are its mask
        return f"other users may write it (chmod go-w {NAME})"
    return None


def _objection_to_place(settings: Settings) -> str | None:
    """Why others may have written the file: the place of its name, and that of its target."""
    if any(reachable(NAME, one.writable) for one in settings.each):
        return (
            "it lies inside the workspace, and a repository must not configure the server that "
            "runs agents in it"
        )
    places = Places(settings.state_home)
    for folder in {os.getcwd(), os.path.dirname(os.path.realpath(NAME))}:
        try:
            workspace = places.workspace_of(folder)
        except OSError:
            return "the workspaces of this user's servers are not known"
        if workspace:
            return f"it lies in {workspace}, which is a workspace of a server"
        repository = next(filter(_is_repository, (Path(folder), *Path(folder).parents)), None)
        if repository:
            return f"it lies in the repository {repository}"
    return None


def _is_repository(folder: Path) -> bool:
    bare = all((folder / one).exists() for one in _BARE)
    return bare or any(os.path.lexists(folder / one) for one in _REPOSITORIES)


def _values(text: str) -> dict[str, str]:
    values = dotenv_values(stream=io.StringIO(text), interpolate=False)
    return {name: value for name, value in values.items() if value is not None}
