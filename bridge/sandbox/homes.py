"""The private folders of CLIs inside a sandbox (files.home.Home), instead of the operator's.

Landlock only adds rights: an agent that may write a folder may write every file in it. So an agent
writes in none of the operator's folders. It has a folder of its own. It can write only some parts
of it; all other entries are links to the operator's files. The top of that folder belongs to the
server, so an agent cannot put a settings file there. Some CLIs must write at the top: there, each
session has a top of its own, made at its start (files.home.Home.kept).
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bridge.files.folders import FOLDER, NEW_FILE, closing, open_folder, open_to_owner, remove
from bridge.files.home import Home, Index

OLD_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
KEPT = "kept/"  # the folder of the files in Home.kept
_VARIABLE = re.compile(r"\$\{(\w++):-([^${}]*+)\}")

NOTHING: Mapping[str, str] = {}
Owner = tuple[int, int] | None  # the user and group that CLIs run as, if not the server's


def resolve(written: str, environment: Mapping[str, str]) -> str:
    """A path in which `~` and `${NAME:-default}` are those of `environment`."""
    path = written
    if "$" in path:  # each session resolves many paths
        path = _VARIABLE.sub(lambda found: environment.get(found[1]) or found[2], path)
    return environment.get("HOME", "") + path[1:] if path.startswith("~") else path


@dataclass(frozen=True, slots=True)
class PrivateHome:
    """`home` as an agent has it, in `folder`; `source` is the operator's, `links` are to further
    files of the operator's, by name. `session`: the id of the session with a top of its own."""

    home: Home
    source: str
    folder: str
    links: Mapping[str, str]
    owner: Owner = None
    session: str = ""

    @property
    def named(self) -> str:
        """The folder that the variable names: `folder`, the one around it, or the session's own."""
        if self.session:
            return f"{self.folder}.{self.session}"
        return self.folder.removesuffix(f"/{self.home.inner}") if self.home.inner else self.folder

    @property
    def folders(self) -> set[str]:
        """The folders that the agent reads."""
        return {self.named, self.folder} if self.session else {self.named}

    @property
    def variables(self) -> dict[str, str]:
        inner = {name: os.path.join(self.folder, path) for name, path in self.home.variables}
        return {self.home.variable: self.named, **inner}

    @property
    def writes(self) -> list[str]:
        logins = (os.path.realpath(os.path.join(self.source, one)) for one in self.home.logins)
        own = [os.path.join(self.folder, one) for one in self._state]
        top = [f"{self.named}/"] if self.session else []
        return [*own, *top, *filter(os.path.isfile, logins)]

    @property
    def _state(self) -> tuple[str, ...]:
        return self.home.state if self.home.kept is None else (*self.home.state, KEPT)

    def of(self, session: str) -> PrivateHome:
        """The same for one session, by its id: with a top of its own if the CLI needs that."""
        return self if self.home.kept is None else replace(self, session=session)

    def remove(self) -> None:
        """Remove the session's own top. Raises OSError."""
        if self.session:
            with closing(open_folder(os.path.dirname(self.named))) as parent:
                remove(os.path.basename(self.named), parent)

    def refresh(self, cwd: str) -> None:
        """Make it as the operator's folder is now, for a session in `cwd`. Raises OSError."""
        home, source, folder = self.home, Path(self.source), Path(self.folder)
        links = {name: path for name, path in self.links.items() if os.path.lexists(path)}
        if home.index:
            links[home.index.name] = f"{home.index.folder}{home.index.name}"
        _mirror(source, folder, self._state, self.owner, links)
        for name, content in home.seeds:
            with contextlib.suppress(FileExistsError):
                _write(folder / name, content.encode(), self.owner)
        if home.index:
            self._enter(home.index, cwd)
        if self.session:
            self._make_top()

    def _make_top(self) -> None:
        """Links to the entries of the common folder, unless an earlier server has made them: the
        content of the top then belongs to the agent."""
        top = Path(self.named)
        try:
            top.mkdir(mode=0o700)
        except FileExistsError:
            return
        kept = self.home.kept or ()
        for name in {*os.listdir(self.folder), *kept}:
            folder = os.path.join(self.folder, KEPT) if name in kept else self.folder
            (top / name).symlink_to(os.path.join(folder, name))
        if self.owner:
            os.chown(top, *self.owner)

    def _enter(self, index: Index, cwd: str) -> None:
        """The old content comes from the server's own copy: the agent may have changed the file
        that it can write."""
        folder = Path(self.folder)
        own = folder / f".{index.name}"
        found = (one for one in (own, Path(self.source, index.name)) if one.is_file())
        known = next(found, None)
        content = index.enter(cwd, known.read_bytes() if known else b"")
        new = folder / f".{index.name}.new"
        new.unlink(missing_ok=True)
        _write(new, content, self.owner)
        new.replace(own)
        with _opened(folder, [index.folder.rstrip("/")]) as fd:
            draft = f"{index.name}.{secrets.token_hex(8)}"
            _write(draft, content, self.owner, fd)
            try:
                os.replace(draft, index.name, src_dir_fd=fd, dst_dir_fd=fd)
            except IsADirectoryError:  # made by an agent, which may still fill it: not removed
                os.rename(index.name, f"{draft}.aside", src_dir_fd=fd, dst_dir_fd=fd)
                os.replace(draft, index.name, src_dir_fd=fd, dst_dir_fd=fd)

    def adopt(self, session_id: str) -> None:
        """Copy the conversation from the operator's folder, unless it is here. Agents may write
        where it goes, so each folder on the way is opened and not followed. The agent has chosen
        the id: one that could be a path or a pattern names no conversation. Raises OSError."""
        if not _SESSION_ID.fullmatch(session_id):
            return
        source = Path(self.source)
        for pattern in self.home.sessions:
            named = pattern.replace("{id}", session_id).replace("{short}", session_id[:8])
            for found in filter(Path.is_file, source.glob(named)):
                with contextlib.suppress(FileExistsError):
                    _copy(source, Path(self.folder), found.relative_to(source).parts, self.owner)


def private_homes(
    homes: Iterable[Home], environment: Mapping[str, str], folder: Path, owner: Owner = None
) -> tuple[PrivateHome, ...]:
    """Those of one agent, in `folder`."""
    found = []
    for one in homes:
        links = {name: resolve(path, environment) for name, path in one.links}
        source = resolve(one.folder, environment)
        found.append(PrivateHome(one, source, str(folder / one.variable / one.inner), links, owner))
    return tuple(found)


def _mirror(
    source: Path,
    target: Path,
    state: Sequence[str],
    owner: Owner,
    links: Mapping[str, str] = NOTHING,
) -> None:
    """Links in `target` to all entries of `source`, except the paths of `state`, which belong to
    the agent. No agent can write in `target`: only the server makes entries there."""
    _make_folder(target, owner, passage=True)
    theirs = {}
    with contextlib.suppress(OSError):  # there is none, or none that this user may read
        theirs = {name: f"{source}/{name}" for name in os.listdir(source)}
    theirs |= links
    heads = {one.partition("/")[0] for one in state}
    for name in os.listdir(target):
        path = target / name
        if not path.is_symlink():
            open_to_owner(path)
        elif name in heads or name not in theirs:
            path.unlink()
    for name in theirs.keys() - heads:
        _link(theirs[name], target / name)
    for name in heads:
        below = [one.partition("/")[2] for one in state if one.partition("/")[0] == name]
        if f"{name}/" in state:
            _make_folder(target / name, owner)
        elif name in state:
            with contextlib.suppress(FileExistsError):
                _copy(source, target, (name,), owner)
        else:
            _mirror(source / name, target / name, below, owner)


def _link(source: str, target: Path) -> None:
    try:
        if os.readlink(target) == source:
            return
        target.unlink()
    except FileNotFoundError:
        pass
    except OSError:  # it was the agent's in an earlier version
        return
    target.symlink_to(source)


def _make_folder(path: Path, owner: Owner, passage: bool = False) -> None:
    """`passage`: the agent may look into it and no more."""
    if passage:
        path.parent.mkdir(mode=0o700, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    open_to_owner(path)
    if owner and passage:
        os.chown(path, -1, owner[1])
        path.chmod(0o750)
    elif owner:
        os.chown(path, *owner)


def _write(
    path: str | Path, content: bytes, owner: Owner = None, folder: int | None = None
) -> None:
    """A new file, which agents read. Raises OSError."""
    fd = os.open(path, NEW_FILE, 0o600, dir_fd=folder)
    with open(fd, "wb") as file:
        if owner:
            os.fchown(fd, -1, owner[1])
            os.fchmod(fd, 0o640)
        file.write(content)


def _copy(source: Path, target: Path, parts: Sequence[str], owner: Owner) -> None:
    """Copy a regular file. A missing one becomes an empty file. Raises OSError."""
    *folders, name = parts
    with _opened(target, folders, make=True, owner=owner) as into:
        new = os.open(name, NEW_FILE, 0o600, dir_fd=into)
    with open(new, "wb") as file:
        if owner:
            os.fchown(new, *owner)
        with contextlib.suppress(FileNotFoundError), _opened(source, folders) as out:
            old = os.open(name, OLD_FILE, dir_fd=out)
            with open(old, "rb") as content:
                if stat.S_ISREG(os.fstat(old).st_mode):
                    shutil.copyfileobj(content, file)


@contextlib.contextmanager
def _opened(
    root: Path, folders: Sequence[str], make: bool = False, owner: Owner = None
) -> Iterator[int]:
    """A descriptor of the folder, in which no link was followed below `root`. Raises OSError."""
    fd = os.open(root, FOLDER & ~os.O_NOFOLLOW)
    try:
        for name in folders:
            made = False
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=fd)
                    made = True
            inner = os.open(name, FOLDER, dir_fd=fd)
            os.close(fd)
            fd = inner
            if made and owner:
                os.fchown(fd, *owner)
        yield fd
    finally:
        os.close(fd)
