"""Texts that make careless code slow, and the CPU time that a call takes for them."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests import CHECKOUT

TURN = 0.1  # seconds of CPU time that one turn of the event loop may take
SHAPES = {
    "path": "a/",
    "digits": "1",
    "jwt": "eyJ-",
    "deep": "{",
    "spaces": " ",
    "bidi": "\u202ee\u0301",
}
"""The shapes that every surface gets: each is repeated up to a length."""
FRAGMENTS = (
    *SHAPES.values(),
    *("x", "_", "-", ".", "~", "*", "/", "\\", "'", '"', "\n", "[", "<", "${IFS", "a=", "a["),
    *("eyJabcdefgh", "eyJabcdefgh.", "eyJabcdefgh.eyJabcdefgh.", "Bearer a", "http://a:b@", "%41"),
    *("-----BEGIN PRIVATE KEY-----", "-----BEGIN A", "sk-", "ghp_a", "xoxb-", "glpat-", "AKIA"),
    *("\x1b[", "\x1b]", "\x1b]a", "'/a", " '/a' denied\n", "(Y)", "xError: ", "1.", "1,1 "),
    *("a multi> ", "Tokens: 1 sent, ", "no, ", "the answer ", "1) ", ",a", "q=1.", "a{", "${a:-"),
)
"""More of them for patterns, which are cheap to try."""


class Use(NamedTuple):
    """A pattern in the source, and the method that is called with a text."""

    place: str
    pattern: re.Pattern[Any]
    method: str


def repeated(fragment: str, length: int) -> str:
    return (fragment * (length // len(fragment) + 1))[:length]


def cpu_seconds(call: Callable[[], object]) -> float:
    """The CPU time of this thread for the call, which the load of the machine does not change."""
    begin = time.thread_time()
    call()
    return time.thread_time() - begin


def uses() -> Iterator[Use]:
    """Each use of a constant pattern in bridge/ and adapters/."""
    for folder in ("bridge", "adapters"):
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            yield from _uses_in(path)


def _uses_in(path: Path) -> Iterator[Use]:
    tree = ast.parse(path.read_text("utf-8"))
    compiled: dict[str, re.Pattern[Any]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            name = node.targets[0] if isinstance(node, ast.Assign) else node.target
            pattern = _compiled(node.value) if _method(node.value) == ("re", "compile") else None
            if pattern and isinstance(name, ast.Name):
                compiled[name.id] = pattern
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        owner, method = _method(node)
        place = f"{path.relative_to(CHECKOUT)}:{node.lineno}"
        if owner == "re" and method not in ("compile", "escape"):
            if pattern := _compiled(node):
                yield Use(place, pattern, method)
        elif owner in compiled:
            yield Use(place, compiled[owner], method)


def _method(call: ast.Call) -> tuple[str, str]:
    """The object and the method of a call such as `re.compile(…)` or `self.lost.search(…)`."""
    match call.func:
        case ast.Attribute(ast.Name(owner) | ast.Attribute(attr=owner), method):
            return owner, method
    return "", ""


def _compiled(call: ast.Call) -> re.Pattern[Any] | None:
    """The pattern of a call, if it is constant."""
    allowed = {"re": re}
    try:
        flags = [one for one in call.args[1:] if isinstance(one, ast.Attribute | ast.BinOp)]
        flags += [one.value for one in call.keywords if one.arg == "flags"]
        source = ast.Expression(call.args[0])
        value = eval(compile(source, "pattern", "eval"), allowed)
        known = [eval(compile(ast.Expression(one), "flag", "eval"), allowed) for one in flags]
        return re.compile(value, *known[:1])
    except (NameError, AttributeError, IndexError):
        return None
