"""Sizes of the code: `scripts/check --figures` prints them, and tests/test_figures.py holds each
one below its bar in BARS."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).parent.parent
PRODUCT = sorted([*CHECKOUT.glob("bridge/**/*.py"), *CHECKOUT.glob("adapters/*.py")])
EVERY = set(PRODUCT)
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
LONG_FUNCTION, MANY_POSITIONAL = 46, 6
PACKS = {"pack", "pack_into", "_SYSCALL", "syscall", "prctl", "mount", "capset", "_in"}
"""Functions that need positional arguments: struct packing, system calls, lists of patterns."""
IGNORED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True, slots=True)
class Bar:
    """`most`: the test fails above it. `goal`: of the next steps. Lower is better."""

    most: int
    goal: int


BARS = {
    "product code lines": Bar(50_447, 41_000),
    "code lines of a module, 90th percentile": Bar(232, 230),
    "code lines of a module, largest": Bar(348, 330),
    "code lines of a room, largest": Bar(7_228, 5_300),
    "files of a room, largest": Bar(69, 52),
    "files of a folder, largest": Bar(29, 16),
    "doors: modules that another room imports": Bar(217, 110),
    "pairs of folders of a room that import each other": Bar(15, 0),
    "methods of the largest class": Bar(35, 25),
    "functions above 46 lines": Bar(7, 0),
    "calls with 6 or more positional arguments": Bar(0, 0),
    "version literals outside `a2a/`": Bar(0, 0),
    "parameters of type `Callable`": Bar(209, 90),
    "assignments to attributes of another object": Bar(282, 60),
    "file names that occur three times or more": Bar(13, 4),
    "sleeps in tests": Bar(249, 60),
    "settings": Bar(120, 120),
}


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text("utf-8"))))


def bare_strings(path: Path) -> set[int]:
    """The lines of docstrings and of other strings that are statements."""
    return {
        line
        for node in nodes_of(path)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def code_lines(path: Path) -> int:
    """The lines with a token that is not part of a comment, a docstring or a bare string."""
    source = path.read_text("utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {
        line
        for token in tokens
        if token.type not in IGNORED
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - bare_strings(path))


def walk(kind: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    for path in PRODUCT:
        for node in nodes_of(path):
            if isinstance(node, kind):
                yield path, node


def functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path, node in walk(ast.AST):
        if isinstance(node, FUNCTION):
            yield path, node


def positional_calls() -> list[str]:
    found = []
    for path, node in walk(ast.Call):
        assert isinstance(node, ast.Call)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        plain = [one for one in node.args if not isinstance(one, ast.Starred)]
        if len(plain) >= MANY_POSITIONAL and name not in PACKS:
            found.append(f"{path.relative_to(CHECKOUT)}:{node.lineno}")
    return found


def version_literals() -> list[str]:
    return [
        f"{path.relative_to(CHECKOUT)}:{node.lineno}"
        for path, node in walk(ast.Constant)
        if isinstance(node, ast.Constant) and node.value in ("0.3", "1.0")
        if "bridge/a2a/" not in str(path)
    ]


def largest_class() -> tuple[int, str]:
    sizes = []
    for path, node in walk(ast.ClassDef):
        assert isinstance(node, ast.ClassDef)
        methods = sum(isinstance(one, FUNCTION) for one in node.body)
        sizes.append((methods, f"{path.relative_to(CHECKOUT)}: {node.name}"))
    return max(sizes)


def house(path: Path) -> tuple[str, str]:
    """The room of a module, and its folder in the room: "" for a module directly in the room."""
    parts = path.relative_to(CHECKOUT).parts
    return ("adapters", "") if parts[0] == "adapters" else (parts[1], "/".join(parts[2:-1]))


def imports(path: Path) -> set[Path]:
    """The modules of the product that a module imports."""
    found = set()
    for node in nodes_of(path):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            place = CHECKOUT / name.replace(".", "/")
            found |= {place.with_suffix(".py"), place / "__init__.py"}
    return found & EVERY


def doors(edges: dict[Path, set[Path]]) -> set[Path]:
    """The modules that another room imports."""
    return {
        to
        for path, targets in edges.items()
        for to in targets
        if house(path)[0] != house(to)[0] and house(to)[0] not in ("__init__.py", "__main__.py")
    }


def upward(edges: dict[Path, set[Path]]) -> set[tuple[str, str, str]]:
    """Pairs of folders of one room that import each other: one of the two arrows points up."""
    inner = {
        (house(path)[0], house(path)[1], house(to)[1])
        for path, targets in edges.items()
        for to in targets
        if house(path)[0] == house(to)[0] and house(path)[1] != house(to)[1]
    }
    return {(room, a, b) for room, a, b in inner if a < b and (room, b, a) in inner}


def callables() -> int:
    """Parameters that are functions."""
    return sum(
        "Callable" in ast.unparse(argument.annotation)
        for _, node in functions()
        for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        if argument.annotation
    )


def foreign_assignments() -> int:
    """Assignments to an attribute of another object than the own one."""
    own = ("self", "cls")
    return sum(
        isinstance(node.ctx, ast.Store)
        and not (isinstance(node.value, ast.Name) and node.value.id in own)
        for _, node in walk(ast.Attribute)
        if isinstance(node, ast.Attribute)
    )


def common_names() -> list[str]:
    """File names that occur three times or more, without `__init__.py`."""
    names = Counter(path.name for path in PRODUCT)
    return sorted(name for name, times in names.items() if times > 2 and name[0] != "_")


def sleeps() -> int:
    files = (CHECKOUT / "tests").rglob("*.py")
    own = (path for path in files if "node_modules" not in path.parts)
    return sum(len(re.findall(r"\bsleep\(", path.read_text("utf-8"))) for path in own)


def settings() -> int:
    """The variables of .env.example, which a test compares with the code."""
    lines = (CHECKOUT / ".env.example").read_text("utf-8").splitlines()
    return len({match[1] for line in lines if (match := re.match(r"#? ?([A-Z][A-Z0-9_]+)=", line))})


@dataclass(frozen=True, slots=True)
class Measure:
    """`detail`: for people. Each value is better if it is lower."""

    name: str
    value: int
    detail: str = ""


def figures() -> Iterator[Measure]:
    sizes = {path: code_lines(path) for path in PRODUCT}
    edges = {path: imports(path) for path in PRODUCT}
    ordered = sorted(sizes.values())
    largest = max(sizes, key=lambda path: sizes[path])
    every = list(functions())
    methods, name = largest_class()
    lines, files, folders = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for path in PRODUCT:
        room, folder = house(path)
        lines[room] += sizes[path]
        files[room] += path.name != "__init__.py"
        folders[room, folder] += path.name != "__init__.py"
    yield Measure("product code lines", sum(ordered))
    yield Measure("code lines of a module, 90th percentile", ordered[len(ordered) * 9 // 10])
    yield Measure("code lines of a module, largest", ordered[-1], label(largest))
    yield _most("code lines of a room", {room: lines[room] for room in lines if room != "adapters"})
    yield _most("files of a room", {room: files[room] for room in files if room != "adapters"})
    in_rooms = {"/".join(one): size for one, size in folders.items() if one[0] != "adapters"}
    yield _most("files of a folder", in_rooms)
    yield Measure("doors: modules that another room imports", len(doors(edges)))
    mutual = upward(edges)
    detail = ", ".join(f"{room}: {a or '.'} {b}" for room, a, b in sorted(mutual))
    yield Measure("pairs of folders of a room that import each other", len(mutual), detail)
    yield Measure("methods of the largest class", methods, name)
    long = [f"{label(path)}: {node.name}" for path, node in every if _length(node) > LONG_FUNCTION]
    yield Measure("functions above 46 lines", len(long), ", ".join(long))
    positional = positional_calls()
    yield Measure(
        "calls with 6 or more positional arguments", len(positional), ", ".join(positional)
    )
    literals = version_literals()
    yield Measure("version literals outside `a2a/`", len(literals), ", ".join(literals))
    yield Measure("parameters of type `Callable`", callables())
    yield Measure("assignments to attributes of another object", foreign_assignments())
    names = common_names()
    yield Measure("file names that occur three times or more", len(names), ", ".join(names))
    yield Measure("sleeps in tests", sleeps())
    yield Measure("settings", settings())


def label(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def _most(name: str, sizes: dict[str, int]) -> Measure:
    most = max(sizes, key=lambda one: sizes[one])
    return Measure(f"{name}, largest", sizes[most], most)


if __name__ == "__main__":
    print(f"{'':54}{'now':8}{'bar':8}{'goal':8}")
    for one in figures():
        bar = BARS[one.name]
        print(f"{one.name:54}{one.value:<8}{bar.most:<8}{bar.goal:<8}{one.detail}")
