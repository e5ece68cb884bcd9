"""Lines that are too long for a terminal: the next row begins with an indent, so that the text of
an agent or of a server cannot look like a line of the client."""

from __future__ import annotations

import os
import unicodedata

TYPE_CHECKING = False  # a name that type checkers know: the module typing takes long to import
if TYPE_CHECKING:
    from typing import IO

INDENT = "  "


def width_of(file: IO[str]) -> int | None:
    """The columns of a terminal; None for a file that is not one."""
    try:
        return os.get_terminal_size(file.fileno()).columns if file.isatty() else None
    except (OSError, ValueError):
        return None


def folded(text: str, width: int | None, column: int = 0) -> tuple[str, int]:
    """`text` with the breaks that a terminal of `width` columns would make, and the column behind
    it. `column`: the one before it. Without a width the text stays."""
    if width is None:
        return text, column
    pieces = []
    for one in text:
        size = _cells(one, column)
        if one == "\n":
            size, column = 0, 0
        elif column + size > max(width, len(INDENT) + 2):
            pieces.append(f"\n{INDENT}")
            column = len(INDENT)
        pieces.append(one)
        column += size
    return "".join(pieces), column


def message(text: str, width: int | None) -> str:
    """A message of several lines, of which only the first one begins at the edge."""
    return folded(text.replace("\n", f"\n{INDENT}"), width)[0]


def _cells(one: str, column: int) -> int:
    if one == "\t":
        return 8 - column % 8
    if unicodedata.combining(one):
        return 0
    return 2 if unicodedata.east_asian_width(one) in "WF" else 1
