"""Texts that make careless code slow, and the CPU time that a call takes for them."""

from __future__ import annotations

import ast
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
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
    """The least CPU time of this thread for the call. The call is repeated if it seems to take too
    long: a neighbour that fills the caches of a processor can double its time."""
    least = math.inf
    for _ in range(10):
        begin = time.thread_time()
        call()
        least = min(least, time.thread_time() - begin)
        if least < TURN or least > 5 * TURN:
            break
    return least


def uses() -> Iterator[Use]:
    """Each use of a constant pattern in bridge/ and adapters/. A pattern that another module uses
    is searched for."""
    for folder in ("bridge", "adapters"):
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            source = path.read_text("utf-8")
            if "import re\n" in source:  # a parser takes long
                yield from _uses_in(ast.parse(source), str(path.relative_to(CHECKOUT)))


def _uses_in(tree: ast.Module, file: str) -> Iterator[Use]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named: dict[str, re.Pattern[Any]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            name = node.targets[0] if isinstance(node, ast.Assign) else node.target
            pattern = _compiled(node.value, named) if _method(node.value)[0] == "re" else None
            if pattern and isinstance(name, ast.Name):
                named[name.id] = pattern
    unused = set(named)
    for call in calls:
        owner, method = _method(call)
        if owner == "re" and method not in ("compile", "escape"):
            pattern = _compiled(call, named)
        else:
            pattern = named.get(owner)
            unused.discard(owner)
        if pattern and hasattr(pattern, method):
            yield Use(f"{file}:{call.lineno}", pattern, method)
    for name_ in sorted(unused):
        yield Use(f"{file}:{name_}", named[name_], "search")


def _method(call: ast.Call) -> tuple[str, str]:
    """The object and the method of a call such as `re.compile(…)`."""
    match call.func:
        case ast.Attribute(ast.Name(owner), method):
            return owner, method
    return "", ""


def _compiled(call: ast.Call, named: Mapping[str, re.Pattern[Any]]) -> re.Pattern[Any] | None:
    """The pattern of a call, if it is constant. `named`: other patterns of the module."""
    known = {"re": re, **named}
    try:
        source, *others = (
            eval(compile(ast.Expression(one), "pattern", "eval"), known) for one in call.args[:2]
        )
    except (NameError, AttributeError):
        return None
    flags = others[0] if others and isinstance(others[0], re.RegexFlag) else re.NOFLAG
    return re.compile(source, flags)
