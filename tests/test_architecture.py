"""The rooms of the product and the imports between them. ROOMS is the diagram of docs/design.md
as a table: a room imports only the rooms in its row, which lie on lower floors."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests import CHECKOUT
from tests.support.cases import each

ROOMS = {
    # room: the rooms that it may import, from the top floor to the bottom
    "cli": "errors task adapter a2a auth workspace sandbox process session server",
    "server": "errors task adapter a2a auth workspace sandbox telemetry process store session push "
    "runtime transports files",
    "transports": "errors task a2a auth telemetry store push runtime",
    "runtime": "errors task adapter a2a auth workspace telemetry store session",
    "session": "errors task adapter auth workspace sandbox process",
    "push": "errors task store",
    "process": "errors sandbox",
    "store": "errors task adapter files",
    "adapter": "task files",
    "a2a": "errors task",
    "auth": "errors",
    "workspace": "errors task files",
    "sandbox": "errors files",
    "telemetry": "errors task",
    "task": "",
    "files": "",
    "errors": "",
}
MOST_FILES, MOST_IN_A_ROOM = (
    3,
    14,
)  # directly in bridge/; in a room, where a subfolder counts as one
MOST_BOXES, MOST_ARROWS, MOST_FLOORS = 18, 72, 8  # the adapters are a box, too

PURE = {"task", "adapter", "a2a"}
PURE_LIBRARIES = {"orjson", "pydantic", "pydantic.alias_generators"}
SIGNING = "bridge/a2a/signing.py"  # and its libraries, which an extra installs
SIGNING_LIBRARIES = {"rfc8785", "joserfc", "joserfc.errors", "joserfc.jwk", "joserfc.util"}
SPEAKS_HTTP = {"auth", "push", "transports", "server", "cli"}
IMPORTS_LATE = {"bridge/cli/main.py", "bridge/server/extras.py"}
IMPORTS_BY_NAME = {"bridge/server/registry.py"}
READS_ENVIRONMENT = {
    "bridge/server/settings/load.py": None,
    "bridge/server/settings/root.py": None,
    "bridge/server/settings/sections.py": None,
    "bridge/process/pty_runner.py": None,  # a program: it passes its own environment on
    "bridge/process/spawn.py": "os.environ.get(LIBRARIES",  # without it, interpreters do not start
}

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


PRODUCT = sorted((CHECKOUT / "bridge").rglob("*.py"))
ADAPTERS = sorted((CHECKOUT / "adapters").glob("*.py"))
ALL_FILES = [*PRODUCT, *ADAPTERS]


def label(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


def room_of(path: Path) -> str:
    """bridge/a2a/codec.py is in the room a2a; bridge/errors.py is one of its own."""
    top, *rest = path.relative_to(CHECKOUT).with_suffix("").parts
    return rest[0] if top == "bridge" else top


PURE_FILES = [path for path in PRODUCT if room_of(path) in PURE] + ADAPTERS
PURE_FILES.append(CHECKOUT / "bridge/files/home.py")  # which adapters import


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
                yield (
                    inner if (CHECKOUT / f"{inner.replace('.', '/')}.py").exists() else node.module
                )


def modules(path: Path) -> set[str]:
    """The modules of the product that are imported. The package itself has only its version."""
    return {name for name in imported(path) if name.startswith("bridge.")}


def rooms(path: Path) -> set[str]:
    """The other rooms that are imported."""
    return {name.split(".")[1] for name in modules(path)} - {room_of(path)}


def others(path: Path) -> set[str]:
    return {name for name in imported(path) if name.partition(".")[0] != "bridge"}


def arrows() -> set[tuple[str, str]]:
    """Which room imports which, as the code has it."""
    return {
        (room_of(path), room)
        for path in ALL_FILES
        for room in rooms(path)
        if label(path) not in ("bridge/__init__.py", "bridge/__main__.py")
    }


def floor(room: str) -> int:
    """1 for a room that imports no other one. Raises RecursionError for a cycle."""
    return 1 + max((floor(below) for below in ROOMS[room].split()), default=0)


@each("room", ROOMS)
def test_a_room_imports_only_the_rooms_of_its_row(room: str) -> None:
    for path in PRODUCT:
        if room_of(path) == room:
            assert rooms(path) <= set(ROOMS[room].split()), label(path)


def test_only_codecs_render_updates() -> None:
    """The state machine and the stores do not, so that an update without a reader costs nothing.
    A binding renders the direct answer of a send."""
    users = {label(path) for path in ALL_FILES if "bridge.task.render" in modules(path)}
    assert users == {"bridge/a2a/codec.py", "bridge/transports/operation.py"}


def test_every_file_is_in_a_room() -> None:
    inside = {room_of(path) for path in PRODUCT} - {"__init__", "__main__"}
    assert inside == set(ROOMS)
    assert len(list((CHECKOUT / "bridge").glob("*.py"))) <= MOST_FILES
    for room in set(ROOMS) - {"errors"}:
        entries = [
            entry
            for entry in (CHECKOUT / "bridge" / room).iterdir()
            if entry.suffix == ".py" or (entry / "__init__.py").exists()
        ]
        assert len(entries) - 1 <= MOST_IN_A_ROOM, room  # __init__.py is the room itself


def test_the_house_has_few_rooms_arrows_and_floors() -> None:
    found = arrows()
    figures = (len(ROOMS) + 1, len(found), max(map(floor, ROOMS)))
    print("boxes, arrows, floors:", *figures)
    assert all(
        figure <= most
        for figure, most in zip(figures, (MOST_BOXES, MOST_ARROWS, MOST_FLOORS), strict=True)
    )


def test_no_modules_import_each_other_in_a_circle() -> None:
    left = {
        label(path).removesuffix("/__init__.py").removesuffix(".py").replace("/", "."): {
            name for name in modules(path) if name != "bridge.adapter"
        }
        for path in PRODUCT
    }
    while left:
        free = {name for name, edges in left.items() if not edges & set(left)}
        assert free, f"a circle in {sorted(left)}"
        left = {name: edges for name, edges in left.items() if name not in free}


def test_the_package_itself_imports_nothing() -> None:
    """Nor do the rooms with programs that run with `python -I -S`, or the pure room of adapters."""
    for name in ("", "sandbox/", "process/"):
        assert not list(imported(CHECKOUT / f"bridge/{name}__init__.py"))


@each("path", ADAPTERS, ids=label)
def test_adapters_import_only_pure_rooms(path: Path) -> None:
    assert rooms(path) <= {*PURE, "errors"}


@each("path", PURE_FILES, ids=label)
def test_pure_modules_do_no_input_or_output(path: Path) -> None:
    third_party = {"orjson"} if path in ADAPTERS else PURE_LIBRARIES
    if label(path) == SIGNING:
        third_party = SIGNING_LIBRARIES
    assert others(path) <= CALM | third_party
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            called = node.func
            assert not (isinstance(called, ast.Name) and called.id in ACTS), label(path)
            assert not (isinstance(called, ast.Attribute) and called.attr in CLOCKS), label(path)
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await), label(path)


@each("path", ALL_FILES, ids=label)
def test_few_rooms_speak_http(path: Path) -> None:
    speaks = {name.partition(".")[0] for name in others(path)} & {"aiohttp", "yarl"}
    assert not speaks or room_of(path) in SPEAKS_HTTP


@each("path", ALL_FILES, ids=label)
def test_only_the_settings_read_the_environment(path: Path) -> None:
    if label(path) in READS_ENVIRONMENT:
        line = READS_ENVIRONMENT[label(path)]
        assert line is None or path.read_text().count("os.environ") == path.read_text().count(line)
        return
    names = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)]
    assert not [node for node in names if node.attr in ("environ", "environb", "getenv")]
    assert not others(path) & {"dotenv"}


def test_only_the_registry_imports_by_name() -> None:
    users = {label(path) for path in PRODUCT if any("importlib" in one for one in others(path))}
    assert users == IMPORTS_BY_NAME


@each("path", ALL_FILES, ids=label)
def test_no_import_hides_in_a_function(path: Path) -> None:
    if label(path) in IMPORTS_LATE:
        return
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in ast.walk(node):
                hidden = isinstance(inner, ast.Import | ast.ImportFrom)
                assert not hidden, f"{label(path)}:{getattr(inner, 'lineno', 0)}"


@each("path", [*ALL_FILES, *sorted((CHECKOUT / "tests").rglob("*.py"))], ids=label)
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
