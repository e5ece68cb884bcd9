"""Imports point one way. ALLOWED is the layer diagram of docs/design.md as a table: a new edge
between modules fails here until it is entered, which is the moment to think about it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent

# What each module may import of ours. The layers, from the bottom:
PURE: dict[str, set[str]] = {
    "errors": set(),
    "message": set(),
    "readable": set(),
    "rpc": {"readable"},
    "access": {"errors"},
    "diff": set(),
    "events": {"message"},
    "question": {"events", "message", "readable"},
    "shapes": {"events"},
    "wording": {"events", "readable"},
    "task": {"events", "message", "wording"},
    "adapter": {"events", "message"},
    "adapter.testing": {"a2a", "adapter", "events", "message", "task"},
    "adapter.print_mode": {"adapter", "events", "readable", "shapes"},
    "a2a.card": set(),
    "a2a.codec": {"a2a.card", "errors", "message", "readable", "task"},
    "a2a.v0_3": {"a2a.card", "a2a.codec", "errors", "message", "task"},
    "a2a.v1_0": {"a2a.card", "a2a.codec", "message", "task"},
    "a2a": {"a2a.codec", "a2a.v0_3", "a2a.v1_0"},
    "page": {"a2a.codec", "errors", "task"},
    "options": {"a2a.codec", "adapter", "errors"},
    "shell_command": set(),
    "rules": {"shell_command"},
    "redaction": {"events", "message"},
}
ASYNCIO: dict[str, set[str]] = {
    "spawn": {"cgroup", "confine", "proc", "pump", "spool"},
    "process": {"cgroup", "channel", "errors", "proc", "spawn", "spool"},
    "denied": set(),
    "session": {
        "sandbox",
        "denied",
        "adapter",
        "events",
        "message",
        "process",
        "redaction",
        "spawn",
        "spool",
        "store.stored",
    },
    "audit": {"errors", "events", "message", "readable", "task"},
    "quotas": {"access", "errors"},
    "pool": {"quotas"},
    "warm": {"adapter", "errors", "events", "pool", "repository", "session"},
    "log": set(),
    "store": set(),
    "store.push_queue": {"errors", "store.database"},
    "workspace": {"access", "errors"},
    "folders": set(),
    "attachments": {"errors", "folders", "message", "workspace"},
    "context": {
        "adapter",
        "attachments",
        "errors",
        "events",
        "message",
        "question",
        "session",
        "spool",
        "store.stored",
        "store.tasks",
        "task",
        "audit",
        "redaction",
        "repository",
        "rules",
        "sandbox",
        "warm",
    },
    "audience": {"store.tasks"},
    "manager": {
        "a2a.codec",
        "adapter",
        "audience",
        "context",
        "errors",
        "idempotency",
        "message",
        "options",
        "store.tasks",
        "task",
        "workspace",
        "access",
        "quotas",
        "pool",
        "warm",
    },
    "idempotency": {"message", "store.tasks"},
    "egress": {"errors"},
    "push": {"egress", "errors", "log", "store.push_queue", "store.tasks", "task"},
    "registry": {"adapter", "errors"},
    "recording": {"errors"},
    "routing": {
        "a2a.codec",
        "audience",
        "errors",
        "manager",
        "options",
        "page",
        "store.tasks",
        "access",
    },
    "own_files": {"errors"},
    "peer": set(),
    "origin": {"cgroup", "errors", "peer", "proc"},
    "player": set(),  # a program of its own
    "runner": set(),  # another one
    "seccomp": set(),
    "confine": {"seccomp"},
    "launcher": {"confine", "pump", "seccomp"},  # and another
    "pump": set(),
    "repository": set(),
    "homes": {"adapter", "folders"},
    "credentials": {"homes"},
    "sandbox": {"adapter", "confine", "credentials", "errors", "folders", "homes"},
    "trusted": {"errors"},
    "channel": set(),
    "spool": {"channel", "pump"},
    "state": {
        "audit",
        "errors",
        "proc",
        "process",
        "pump",
        "spawn",
        "store.database",
        "store.journal",
        "store.tasks",
        "token_file",
    },
    "token_file": {"errors", "store.database"},
    "store.database": {"errors", "folders"},
    "store.journal": {"errors", "store.database"},
    "store.stored": {"events", "message"},
    "store.replay": {
        "errors",
        "events",
        "log",
        "message",
        "store.journal",
        "store.stored",
        "task",
    },
    "store.tasks": {
        "adapter",
        "events",
        "heap",
        "log",
        "message",
        "store.journal",
        "store.replay",
        "store.stored",
        "task",
    },
    "heap": set(),
    "cgroup": set(),
    "proc": set(),
    "watchdog": set(),
}
SHELL: dict[str, set[str]] = {
    "settings": {
        "a2a.card",
        "access",
        "errors",
        "options",
        "own_files",
        "redaction",
        "rules",
        "trusted",
        "workspace",
    },
    "transports": set(),
    "gate": {"a2a.codec", "transports.negotiation"},
    "rate": set(),
    "timers": {"gate", "rate"},
    "transports.negotiation": {"a2a", "a2a.card", "errors"},
    "transports.operation": {
        "a2a",
        "a2a.card",
        "a2a.codec",
        "audience",
        "manager",
        "errors",
        "log",
        "routing",
        "push",
        "store.push_queue",
        "store.tasks",
        "task",
        "access",
    },
    "transports.sse": {"log", "transports.negotiation", "transports.operation"},
    "transports.blocking": {"transports.operation"},
    "transports.jsonrpc": {
        "a2a",
        "transports.blocking",
        "errors",
        "transports.negotiation",
        "transports.operation",
        "transports.sse",
    },
    "transports.rest": {
        "a2a",
        "a2a.codec",
        "transports.blocking",
        "errors",
        "transports.negotiation",
        "transports.operation",
        "transports.sse",
    },
    "transports.openapi": {
        "a2a",
        "a2a.card",
        "a2a.codec",
        "a2a.v1_0",
        "errors",
        "transports.negotiation",
        "transports.operation",
        "transports.rest",
        "gate",
        "timers",
    },
    "monitor": {
        "a2a.codec",
        "log",
        "manager",
        "store.tasks",
        "task",
        "transports.sse",
        "transports.operation",
    },
    "welcome": {"transports.negotiation"},
    "app": {
        "welcome",
        "a2a",
        "a2a.card",
        "gate",
        "manager",
        "monitor",
        "rate",
        "registry",
        "store.tasks",
        "transports.jsonrpc",
        "transports.negotiation",
        "transports.operation",
        "transports.rest",
        "access",
        "errors",
    },
    "identity": {"access", "audit", "errors", "origin", "rate", "registry", "settings"},
    "oidc": {"access", "egress", "errors", "settings"},  # loaded by name, for it needs an extra
    "choice": {
        "credentials",
        "repository",
        "cgroup",
        "a2a.card",
        "adapter",
        "app",
        "attachments",
        "context",
        "errors",
        "manager",
        "push",
        "recording",
        "registry",
        "session",
        "settings",
        "state",
        "store.tasks",
        "transports.operation",
        "routing",
        "identity",
        "own_files",
        "sandbox",
        "pool",
        "trusted",
        "warm",
    },
    "cli_state": {"choice", "errors", "process", "readable", "sandbox", "spawn"},
    "signature": {"errors"},  # loaded by name, for it needs an extra
    "server": {
        "heap",
        "sandbox",
        "spawn",
        "app",
        "cgroup",
        "choice",
        "cli_state",
        "errors",
        "monitor",
        "process",
        "push",
        "settings",
        "state",
        "store.push_queue",
        "store.tasks",
        "timers",
        "transports.operation",
        "watchdog",
        "identity",
        "quotas",
        "redaction",
        "pool",
        "origin",
        "token_file",
    },
    "doctor": set(),
    "doctor.report": {"readable"},
    "doctor.adapters": {"adapter", "errors", "registry"},
    "doctor.machine": {
        "cgroup",
        "confine",
        "doctor.report",
        "identity",
        "sandbox",
        "server",
        "settings",
        "state",
        "store.database",
    },
    "doctor.talk": {
        "adapter",
        "cgroup",
        "choice",
        "doctor.report",
        "events",
        "message",
        "proc",
        "session",
        "settings",
        "spawn",
    },
    "doctor.agent": {
        "spawn",
        "sandbox",
        "adapter",
        "choice",
        "doctor.adapters",
        "doctor.report",
        "doctor.talk",
        "errors",
        "process",
        "settings",
        "repository",
    },
    "doctor.command": {
        "adapter",
        "choice",
        "doctor.agent",
        "doctor.machine",
        "doctor.report",
        "doctor.talk",
        "errors",
        "process",
        "registry",
        "server",
        "settings",
    },
    "__main__": {
        "errors",
        "registry",
        "server",
        "settings",
        "identity",
    },
}
LAYERS = (PURE, ASYNCIO, SHELL)
ALLOWED = {name: edges for layer in LAYERS for name, edges in layer.items()}
HTTP = {*SHELL, "egress", "push"}  # who may speak it: the shell in, the push notifications out

# Standard library that neither waits nor reads or writes anything.
CALM = {
    "__future__",
    "abc",
    "base64",
    "binascii",
    "bisect",
    "collections",
    "collections.abc",
    "copy",
    "dataclasses",
    "datetime",
    "difflib",
    "enum",
    "fnmatch",
    "functools",
    "hashlib",
    "hmac",
    "html",
    "itertools",
    "json",
    "math",
    "operator",
    "re",
    "shlex",
    "string",
    "textwrap",
    "typing",
    "urllib.parse",
    "uuid",
}
ACTS = {"open", "print", "input", "exec", "eval", "breakpoint", "__import__"}
CLOCKS = {"now", "utcnow", "today"}


def name_of(path: Path) -> str:
    """bridge/a2a/codec.py is a2a.codec, bridge/a2a/__init__.py is a2a."""
    parts = path.relative_to(CHECKOUT / "bridge").with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


FILES = {name_of(path): path for path in sorted(CHECKOUT.glob("bridge/**/*.py"))}
ADAPTERS = sorted(CHECKOUT.glob("adapters/*.py"))
PURE_FILES = [*(FILES[name] for name in PURE), *ADAPTERS]
ALL_FILES = [*FILES.values(), *ADAPTERS]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def imported(path: Path) -> Iterator[str]:
    """Full names of the modules that are imported, wherever in the file."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level == 1 and path in ADAPTERS:  # whose package has two names
                continue
            assert node.level == 0, f"{path}: relative import"
            assert node.module
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner.removeprefix("bridge.") in FILES else node.module


def ours(path: Path) -> set[str]:
    """The modules of ours that are imported; the package itself has only its version."""
    found = {name for name in imported(path) if name.partition(".")[0] == "bridge"}
    return {name.removeprefix("bridge.") for name in found - {"bridge"}}


def others(path: Path) -> set[str]:
    return {name for name in imported(path) if name.partition(".")[0] != "bridge"}


def label(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


def test_every_module_is_in_the_table() -> None:
    assert set(FILES) - {""} == set(ALLOWED)


def test_layers_import_only_from_their_own_or_from_below() -> None:
    below: set[str] = set()
    for layer in LAYERS:
        below |= set(layer)
        for name, edges in layer.items():
            assert edges <= below, name


def test_the_table_has_no_cycle() -> None:
    left = {name: set(edges) for name, edges in ALLOWED.items()}
    while left:
        free = {name for name, edges in left.items() if not edges}
        assert free, f"a cycle in {sorted(left)}"
        left = {name: edges - free for name, edges in left.items() if name not in free}


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_a_module_imports_what_the_table_says(name: str) -> None:
    assert ours(FILES[name]) == ALLOWED[name]


def test_the_package_itself_imports_nothing() -> None:
    assert not list(imported(FILES[""]))


@pytest.mark.parametrize("path", ADAPTERS, ids=label)
def test_adapters_import_only_pure_modules(path: Path) -> None:
    assert ours(path) <= set(PURE)


@pytest.mark.parametrize("path", PURE_FILES, ids=label)
def test_pure_modules_do_no_input_or_output(path: Path) -> None:
    third_party = (
        {"orjson"} if path in ADAPTERS else {"orjson", "pydantic", "pydantic.alias_generators"}
    )
    assert others(path) <= CALM | third_party
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            called = node.func
            assert not (isinstance(called, ast.Name) and called.id in ACTS), label(path)
            assert not (isinstance(called, ast.Attribute) and called.attr in CLOCKS), label(path)
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await), label(path)


@pytest.mark.parametrize("path", ALL_FILES, ids=label)
def test_only_the_shell_and_the_push_notifications_speak_http(path: Path) -> None:
    speaks = {name.partition(".")[0] for name in others(path)} & {"aiohttp", "yarl"}
    assert not speaks or (path not in ADAPTERS and name_of(path) in HTTP)


@pytest.mark.parametrize("path", ALL_FILES, ids=label)
def test_only_the_settings_read_the_environment(path: Path) -> None:
    if path in (FILES["settings"], FILES["runner"]):  # the runner hands on what it was given
        return
    names = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)]
    reads = [node.lineno for node in names if node.attr in ("environ", "environb", "getenv")]
    if path == FILES["spawn"]:  # one variable, which another interpreter needs to start
        assert len(reads) == 1 and "os.environ.get(LIBRARIES" in path.read_text()
    else:
        assert reads == []
    assert not others(path) & {"dotenv"}


def test_only_the_registry_imports_by_name() -> None:
    users = {
        name for name, path in FILES.items() if any("importlib" in one for one in others(path))
    }
    late = {"store.push_queue"}  # a library that takes 7 MiB, when there is something to encrypt
    assert users == {"registry", *late}


@pytest.mark.parametrize("path", ALL_FILES, ids=label)
def test_no_import_hides_in_a_function(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in ast.walk(node):
                hidden = isinstance(inner, ast.Import | ast.ImportFrom)
                assert not hidden, f"{label(path)}:{getattr(inner, 'lineno', 0)}"


@pytest.mark.parametrize(
    "path", [*ALL_FILES, *sorted((CHECKOUT / "tests").rglob("*.py"))], ids=label
)
def test_nobody_imports_the_name_that_belongs_to_somebody_else(path: Path) -> None:
    if "node_modules" in path.parts:
        return
    tops = {
        name.partition(".")[0]
        for node in ast.walk(tree(path))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert "adapters" not in tops


# Import names that are not the names of their distributions.
BROUGHT_BY = {"dotenv": "python-dotenv", "yarl": "aiohttp"}


def test_what_is_imported_is_declared_as_a_dependency() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]
    optional = [one for group in project["optional-dependencies"].values() for one in group]
    lines = [*project["dependencies"], *optional]
    declared = {re.split(r"[^\w-]", line)[0] for line in lines}
    tops = {name.partition(".")[0] for path in ALL_FILES for name in others(path)}
    needed = {BROUGHT_BY.get(name, name) for name in tops - sys.stdlib_module_names}
    assert needed <= declared
