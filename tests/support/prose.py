"""The documents, and the prose in them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from tests import CHECKOUT

AT_THE_TOP = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
DOCUMENTS = [
    *(CHECKOUT / name for name in (*AT_THE_TOP, "tests/suites.md")),
    *sorted((CHECKOUT / "docs").rglob("*.md")),
]

Text = tuple[int, str]
"""A piece of prose on one line, and the number of the line where it begins."""


def blocks(path: Path) -> Iterator[Text]:
    """The paragraphs, lists and table cells of a document, or the lines of a script."""
    lines = enumerate(path.read_text("utf-8").splitlines(), 1)
    stripped = ((number, line.strip(" #*>/-")) for number, line in lines)
    for is_prose, group in groupby(stripped, key=lambda one: bool(one[1]) and one[1][0] != "|"):
        pieces = list(group)
        if is_prose:
            yield pieces[0][0], " ".join(line for _, line in pieces)
        else:
            yield from (
                (number, cell.strip()) for number, line in pieces for cell in line.split("|")
            )
