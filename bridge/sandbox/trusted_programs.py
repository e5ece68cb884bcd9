"""Programs and libraries that run outside an agent's sandbox: no agent may write there.

A change of the bridge's code, its interpreter's libraries or the CLI's program would run at the
next start. Landlock cannot exclude a folder from a writable one, so a server does not start if its
workspace contains one of these.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from bridge.errors import ConfigurationError
from bridge.sandbox.landlock import is_inside
from bridge.sandbox.own_files import walk

SHEBANG = 256  # bytes, as the kernel reads
PACKAGES = ("site-packages", "dist-packages")
_HERE = Path(__file__).resolve().parent.parent


def default_workspace() -> str:
    """The current directory; or its folder `workspace`, if the directory is the checkout of this
    program: agents must not change its code."""
    current = Path.cwd()
    return str(current / "workspace" if _HERE.parent == current.resolve() else current)


def check(
    writable: Mapping[str, str],
    binary: str,
    environment: Mapping[str, str],
    libraries: str = "",
    helpers: Sequence[str] = (),
) -> None:
    """Raise ConfigurationError if an agent could change a program that runs outside of its sandbox.

    `writable`: real paths that it may write, each with its setting. `binary`,
    `environment`: the CLI's. `libraries`: LD_LIBRARY_PATH of the server. `helpers`: programs that
    the server finds on its own PATH.
    """
    own = os.get_exec_path()
    for what, path, whole in (
        *_of_the_bridge(libraries),
        *_of_the_cli(binary, environment),
        *(one for name in helpers for one in _searched(name, own)),
    ):
        for folder, setting in writable.items():
            if is_inside(path, folder) or (whole and is_inside(folder, path)):
                raise ConfigurationError(
                    f"{setting} lets agents write in {folder}, and {what} is there: {path}. An "
                    "agent could change a program outside of its sandbox. Choose another "
                    "directory for the agent (AGENT_REPO_PATH), or install that elsewhere."
                )


def check_links(named: Mapping[str, str], writable: Iterable[str]) -> None:
    """Raise ConfigurationError if an agent may have changed the target of a writable path.

    `named`: paths as the operator wrote them, each with its setting. An agent can change a symbolic
    link in one of the `writable` folders, and so the target at the next start.
    """
    for path, setting in named.items():
        real = os.path.realpath(path)
        for link in filter(None, (link for _, link in walk(path))):
            for folder in writable:
                if link != folder and is_inside(link, folder) and not is_inside(real, folder):
                    raise ConfigurationError(
                        f"{setting}: {path} leads through the symbolic link {link}, which agents "
                        f"that work in {folder} can change, to {real}. Name that instead, or "
                        "remove the link."
                    )


def places(binary: str, environment: Mapping[str, str]) -> list[str]:
    """The real paths with programs of an agent and of the bridge that its sandbox runs: a program
    of a CLI with the folder around it, and the folders of PATH."""
    found = [sys.prefix, sys.base_prefix, os.path.dirname(sys.executable), str(_HERE.parent)]
    found += environment.get("PATH", "").split(os.pathsep)
    for _, path, _ in _of_the_cli(binary, environment):
        found += [path] if os.path.isdir(path) else [path, os.path.dirname(path)]
    return list(dict.fromkeys(map(os.path.realpath, filter(os.path.isabs, found))))


Place = tuple[str, str, bool]
"""A description, a real path, and whether a writable folder inside of it matters as well."""


def _of_the_bridge(libraries: str) -> Iterator[Place]:
    for folder in (_HERE, _HERE.parent / "adapters"):
        if folder.is_dir():
            yield "the bridge's own code", str(folder), True
    virtual = sys.prefix != sys.base_prefix
    yield from _real("its Python environment", [sys.prefix], virtual)
    yield from _real("its Python", [sys.base_prefix, sys.exec_prefix, *_links(sys.executable)])
    for entry in sys.path:
        whole = os.path.basename(entry) in PACKAGES
        yield from _real("a folder that its Python imports from", [entry or os.curdir], whole)
    loaded = filter(None, libraries.split(":"))
    yield from _real("a folder of libraries (LD_LIBRARY_PATH)", loaded)


def _of_the_cli(binary: str, environment: Mapping[str, str]) -> Iterator[Place]:
    search = environment.get("PATH", os.defpath).split(os.pathsep)
    yield from _program(binary)
    if os.path.dirname(binary) in map(os.path.abspath, search):
        yield from _searched(os.path.basename(binary), search)
        yield from _searched(os.path.basename(binary), os.get_exec_path())
    interpreter, *arguments = _shebang(binary) or [""]
    if os.path.basename(interpreter) == "env":
        named = next((one for one in arguments if not one.startswith("-") and "=" not in one), "")
        yield from _searched(named, search)
    elif interpreter:
        yield from _program(interpreter)


def _program(path: str) -> Iterator[Place]:
    """It, what its links lead to, and the package or virtual environment that it belongs to."""
    for one in _links(path):
        yield "the agent's program", one, False
    real = Path(os.path.realpath(path))
    package = next((one for one in real.parents if one.parent.name == "node_modules"), None)
    if package:
        top = next(one for one in reversed(real.parents) if one.name == "node_modules")
        yield "the package of the agent's program", str(top), False
        yield "the package of the agent's program", str(package), True
    for folder in {real.parent.parent, Path(os.path.abspath(path)).parent.parent}:
        if (folder / "pyvenv.cfg").is_file():
            yield from _real("the environment of the agent's program", [str(folder)], True)


def _searched(name: str, search: Iterable[str]) -> Iterator[Place]:
    """The folders in which a program is looked for until it is found, and the program."""
    if not name:
        return
    for folder in search:
        yield from _real(f"a folder on PATH, where {name} is looked for,", [folder or os.curdir])
        found = os.path.abspath(os.path.join(folder, name))
        if os.access(found, os.X_OK) and os.path.isfile(found):
            yield from _program(found)
            return


def _real(what: str, paths: Iterable[str], whole: bool = False) -> Iterator[Place]:
    """Where a path leads to, and where it lies itself."""
    for path in paths:
        place = os.path.abspath(path)
        own = os.path.join(os.path.realpath(os.path.dirname(place)), os.path.basename(place))
        for one in {own, os.path.realpath(place)}:
            yield what, one, whole


def _links(path: str) -> Iterator[str]:
    """The real places of a file and of each link on the way to it."""
    place = os.path.abspath(path)
    for _ in range(40):  # as many as the kernel follows
        place = os.path.join(os.path.realpath(os.path.dirname(place)), os.path.basename(place))
        yield place
        if not os.path.islink(place):
            return
        place = os.path.join(os.path.dirname(place), os.readlink(place))


def _shebang(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            first = file.read(SHEBANG).partition(b"\n")[0]
    except OSError:
        return []
    return os.fsdecode(first[2:]).split() if first.startswith(b"#!") else []
