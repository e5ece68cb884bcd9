"""Adapters by name: built in, from an installed distribution, as pkg.mod:Class, or as acp:ID.

The only module that loads adapters. The folder `adapters` is beside this package in a checkout and
inside it in an installation; in both cases its modules are bridge.adapters.*.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import cast

from bridge.adapter import Adapter
from bridge.errors import ConfigurationError
from bridge.server import acp_registry
from bridge.server.agents.adapter_class import checked, imported
from bridge.task.nearest import nearest

PACKAGE = "bridge.adapters"
GROUP = "coding_agent_bridge.adapters"
PREFERRED = ("claude-code", "codex")
COMMON_NAMES = ("agent", "copilot", "dcode", "goose", "grok")
"""Names that other programs also have: the server runs these only if they are configured."""
WITHDRAWN: Mapping[str, tuple[str, str]] = {
    "codex-exec": ("codex", "AGENT_ARGS='exec --ephemeral --skip-git-repo-check'"),
    "copilot-print": ("copilot", "AGENT_ARGS='--silent --no-ask-user'"),
    "gemini-print": ("gemini", "AGENT_ARGS='--output-format=text'"),
    "opencode-run": (
        "opencode",
        "AGENT_ARGS='run --format=json' AGENT_TEXT_FIELD=part.text",
    ),
}
"""Adapters of earlier versions for print modes: the adapter for the same program, which has the
program's name, and the settings of `generic` for the print mode (docs/agents.md)."""


def names() -> list[str]:
    """All names for load(), the built-in ones first."""
    built_in = [*_files(), *(adapter.name for adapter in _further())]
    return [*sorted(built_in), *sorted(entry.name for entry in entry_points(group=GROUP))]


def load(name: str) -> type[Adapter]:
    """The adapter class. Raises ConfigurationError with the known names and a suggestion."""
    if name.startswith(acp_registry.PREFIX):
        return _from_acp_registry(name)
    if ":" in name:
        return _from_path(name)
    if name in _files():
        return checked(getattr(_module(name), "ADAPTER", None), name)
    for adapter in _further():
        if adapter.name == name:
            return adapter
    for entry in entry_points(group=GROUP, name=name):
        return checked(imported(name, entry.load), name)
    refuse_withdrawn(name)
    known = names()
    hint = nearest(name, known)
    raise ConfigurationError(f"unknown adapter {name!r}; known are {', '.join(known)}.{hint}")


def refuse_withdrawn(name: str) -> None:
    """Raise ConfigurationError with the replacement for an adapter that was withdrawn."""
    if name not in WITHDRAWN:
        return
    other, recipe = WITHDRAWN[name]
    raise ConfigurationError(
        f"The adapter {name} was withdrawn. Use {other}, which can ask the client, or for the "
        f"print mode AGENT_ADAPTER=generic AGENT_BINARY={other} {recipe}: see `Print modes` in "
        "docs/agents.md."
    )


def with_binary() -> Iterable[type[Adapter]]:
    """Built-in adapters whose CLI can be found on PATH, in order of preference: PREFERRED, adapters
    that can ask the client, other adapters; within these, those with a file of their own first."""
    every = (*map(load, _files()), *_further())

    def rank(adapter: type[Adapter]) -> tuple[bool, bool]:
        return adapter.name not in PREFERRED, "questions" in adapter.limitations

    for adapter in sorted(every, key=rank):
        if adapter.binary and adapter.binary not in COMMON_NAMES:
            yield adapter


def _files() -> list[str]:
    """The names of the adapters with a file of their own."""
    paths = sorted(Path(_package_path()).glob("*.py"))
    return [path.stem.replace("_", "-") for path in paths if not path.stem.startswith("_")]


def _further() -> Iterable[type[Adapter]]:
    """Further adapters in ADAPTERS of the files."""
    for name in _files():
        yield from getattr(_module(name), "ADAPTERS", ())


def _module(name: str) -> ModuleType:
    _package_path()
    module = f"{PACKAGE}.{name.replace('-', '_')}"
    return cast(ModuleType, imported(name, lambda: importlib.import_module(module)))


def _package_path() -> str:
    """Import bridge.adapters. Returns its path."""
    if PACKAGE not in sys.modules:
        here = Path(__file__).parent.parent
        spec = PathFinder.find_spec(PACKAGE, [str(here), str(here.parent)])
        if spec is None or spec.loader is None:
            raise ConfigurationError("The folder `adapters` is missing in this installation.")
        module = module_from_spec(spec)
        sys.modules[PACKAGE] = module
        spec.loader.exec_module(module)
    return str(sys.modules[PACKAGE].__path__[0])


def _from_acp_registry(name: str) -> type[Adapter]:
    agent = acp_registry.find(name.removeprefix(acp_registry.PREFIX))
    members = {
        "name": name,
        "title": agent.name,
        "binary": agent.program,
        "arguments": agent.launch.args,
        "variables": dict(agent.launch.env),
        "verified": False,
        "install": agent.install,
    }
    return checked(type("AcpRegistryAgent", (load("acp"),), members), name)


def _from_path(name: str) -> type[Adapter]:
    module_name, _, attribute = name.partition(":")
    if not module_name:
        raise ConfigurationError(f"{name!r} is not of the form pkg.mod:Class.")
    try:
        module = imported(name, lambda: importlib.import_module(module_name))
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise ConfigurationError(
                f"unknown module {module_name!r}: it is not on sys.path. Set PYTHONPATH."
            ) from None
        raise ConfigurationError(f"cannot import the adapter {name!r}: {error}") from error
    return checked(getattr(module, attribute, None), name)
