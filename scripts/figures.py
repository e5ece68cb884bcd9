"""Sizes of the code: `scripts/check --figures` prints them."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).parent.parent
PRODUCT = sorted([*CHECKOUT.glob("bridge/**/*.py"), *CHECKOUT.glob("adapters/*.py")])
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
LONG_FUNCTION, MANY_POSITIONAL = 46, 6
PACKS = {"pack", "pack_into", "_SYSCALL", "syscall", "prctl", "mount", "capset"}
"""Functions that need positional arguments: struct packing and system calls."""
IGNORED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def bare_strings(tree: ast.Module) -> set[int]:
    """The lines of docstrings and of other strings that are statements."""
    return {
        line
        for node in ast.walk(tree)
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
    return len(lines - bare_strings(ast.parse(source)))


def walk(kind: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    for path in PRODUCT:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, kind):
                yield path, node


def functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path, node in walk(ast.AST):
        if isinstance(node, FUNCTION):
            yield path, node


def statements(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body
    is_docstring = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    return len(body) - is_docstring


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


def by_name() -> list[str]:
    return [
        str(path.relative_to(CHECKOUT))
        for path in PRODUCT
        if re.search(r"\bimportlib\b", path.read_text("utf-8"))
    ]


def figures() -> Iterator[tuple[str, str]]:
    sizes = {path: code_lines(path) for path in PRODUCT}
    ordered = sorted(sizes.values())
    largest = max(sizes, key=lambda path: sizes[path])
    every = list(functions())
    lengths = [(node.end_lineno or 0) - node.lineno + 1 for _, node in every]
    methods, name = largest_class()
    in_bridge = sum(size for path, size in sizes.items() if "adapters" not in path.parts)
    yield "`.py` files directly in `bridge/`", str(len(list(CHECKOUT.glob("bridge/*.py"))))
    yield "product code lines", f"{sum(ordered)} (bridge {in_bridge})"
    place = largest.relative_to(CHECKOUT)
    p90 = ordered[len(ordered) * 9 // 10]
    yield "code lines of a module, p90 / max", f"{p90} / {ordered[-1]} ({place})"
    yield "methods of the largest class", f"{methods} ({name})"
    long = sum(length > LONG_FUNCTION for length in lengths)
    single = sum(statements(node) == 1 for _, node in every)
    yield "functions above 46 lines / with one statement / all", f"{long} / {single} / {len(every)}"
    yield "calls with 6 or more positional arguments", str(len(positional_calls()))
    yield "version literals outside `a2a/`", str(len(version_literals()))
    yield "modules that import by name", str(len(by_name()))


if __name__ == "__main__":
    for measure, figure in figures():
        print(f"{measure:54}{figure}")
