"""The documents, docstrings, comments and strings are in plain English: subject, verb, object, and
a noun before each relative clause. PATTERNS match the usual violations."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from tests import CHECKOUT
from tests.support.cases import each
from tests.support.prose import DOCUMENTS, Text, blocks

PRODUCT = sorted(
    path
    for folder in ("bridge", "adapters", "scripts")
    for path in (CHECKOUT / folder).rglob("*.py")
)
SCRIPTS = [
    path
    for path in sorted((CHECKOUT / "scripts").rglob("*"))
    if path.is_file() and path.suffix in ("", ".c")
]

PATTERNS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b(anew|lest|mend(s|ed|ing)?|nobody|somebody|anybody|everybody|whoever|whosoever)\b",
        r"\bof ours\b|\b(to|can|cannot) be had\b|\btold (of|so)\b|\bgo(es)? on with\b|\bput down\b",
        r"\b(is|are|was|were) no (?!longer\b)[a-z]+\b",
        r"\bwhat(ever)? (is|are|was|were|has|have|had|it|they|there|can|may|must|needs?|comes?"
        r"|came|goes|happen(s|ed)|waits?|follows|ends|runs|becomes|asks?|reads?|makes?|holds?"
        r"|sends?|an?|the|you)\b",
        r"(^|[.,;:(]\s+|\b(of|for|to|by|from|with|than|as|and|or|but|is|are|at|in|on|about|says"
        r"|tells)\s+)(who|whom|whose)\b",
    )
]
REFUSED = "anew lest mend nobody somebody anybody everybody whoever"
ALLOWED: set[tuple[str, str]] = {("CONTRIBUTING.md", word) for word in REFUSED.split()}
"""(document, matching words): violations that stay, such as quotations."""
MOST_ALLOWED = 10

WIDTH = 100  # characters of a line in a document, except in tables and code


def prose(path: Path) -> Iterator[Text]:
    """The docstrings, comments and other strings of a module."""
    source = path.read_text("utf-8")
    inside: set[ast.AST] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            inside.update(ast.walk(node))
            yield (
                node.lineno,
                "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "X"
                    for part in node.values
                ),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            yield from ((node.lineno, part) for part in re.split(r"\n\s*\n", node.value))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [one for one in tokens if one.type == tokenize.COMMENT]
    for _, group in groupby(enumerate(comments), key=lambda one: one[1].start[0] - one[0]):
        together = [comment for _, comment in group]  # on consecutive lines
        yield together[0].start[0], " ".join(one.string.strip("# ") for one in together)


def violations(path: Path) -> list[str]:
    name = str(path.relative_to(CHECKOUT))
    texts = prose(path) if path.suffix == ".py" else blocks(path)
    return [
        f"{name}:{line}: {found[0]}"
        for line, text in texts
        for pattern in PATTERNS
        for found in pattern.finditer(" ".join(text.split()))
        if (name, found[0]) not in ALLOWED
    ]


def place(path: Path) -> str:
    """The room of a module, or the name of a document."""
    top, *rest = path.relative_to(CHECKOUT).parts
    return path.name if path in DOCUMENTS else rest[0] if top == "bridge" and rest[1:] else top


PLACES = sorted({place(path) for path in (*DOCUMENTS, *PRODUCT, *SCRIPTS)})


@each("name", PLACES)
def test_the_language_is_plain(name: str) -> None:
    paths = [path for path in (*DOCUMENTS, *PRODUCT, *SCRIPTS) if place(path) == name]
    found = [one for path in paths for one in violations(path)]
    assert not found, "\n".join(found)


def test_few_violations_are_allowed_in_documents() -> None:
    assert len(ALLOWED) <= MOST_ALLOWED
    for name, words in ALLOWED:
        assert words in (CHECKOUT / name).read_text("utf-8"), f"{name} no longer has {words!r}"


@each(
    "text",
    [
        "It starts anew.",
        "A boundary that cannot be had.",
        "{path} sets {name}, which is no setting.",
        "What comes later is not heard.",
        "A client is told, and who waits is told later.",
        "Who makes more is cut off.",
    ],
)
def test_a_violation_is_found(text: str) -> None:
    assert any(pattern.search(text) for pattern in PATTERNS)


@each(
    "text",
    [
        "It is no longer running.",
        "A client that waits gets the update later.",
        "The output, what else the CLI prints.",
        "Connections above the limit are closed.",
    ],
)
def test_plain_language_passes(text: str) -> None:
    assert not any(pattern.search(text) for pattern in PATTERNS)


@each("path", DOCUMENTS, ids=lambda path: path.name)
def test_the_lines_of_documents_are_short(path: Path) -> None:
    is_code = False
    found = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        is_code ^= line.lstrip().startswith("```")
        if len(line) > WIDTH and not is_code and not line.lstrip().startswith("|"):
            found.append(f"{path.name}:{number}")
    assert not found, found


def test_no_text_tells_to_send_a_token_to_a_name() -> None:
    """`localhost:PORT` may be [::1]:PORT, of another program."""
    files = (*DOCUMENTS, *PRODUCT, *SCRIPTS, *(CHECKOUT / "deploy").rglob("*"))
    texts = {path: path.read_text("utf-8") for path in files if path.is_file()}
    found = [
        f"{path.relative_to(CHECKOUT)}: {one}"
        for path, text in texts.items()
        for one in re.findall(r"localhost:[0-9$<{P].*", text)
    ]
    assert not found, "\n".join(found)


def test_no_text_installs_the_package_by_its_name() -> None:
    """No index has the package, so a stranger could register the name."""
    files = (*DOCUMENTS, *PRODUCT, *SCRIPTS, *(CHECKOUT / "deploy").rglob("*"))
    found = [
        f"{path.relative_to(CHECKOUT)}: {one}"
        for path in files
        if path.is_file()
        for one in re.findall(
            r"install [^\n]*(?<![/\w-])coding-agent-bridge(?:\[| |'|$).*", path.read_text("utf-8")
        )
        if "@" not in one and "command line" not in one
    ]
    assert not found, "\n".join(found)
