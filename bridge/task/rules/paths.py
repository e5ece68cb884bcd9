"""The spellings of a path in the input of a tool, besides its text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

_FILE_URL = re.compile(r"file:(?://[^/]*)?", re.IGNORECASE)
_IN_A_PATCH = re.compile(
    r"^(?:\*\*\* (?:Add|Update|Delete) File:|\*\*\* Move to:|---|\+\+\+|rename (?:from|to)"
    r"|copy (?:from|to))[ \t]+(?:[ab]/)?([^\t\n]+)",
    re.MULTILINE,
)
_AROUND = " \t\r\n'\"`@<>"  # a tool may remove these
_OF_PROCESSES = re.compile(r"/+(?:proc|dev/fd)/")


def from_url(path: str) -> str:
    """The path of a file URL; another text as it is."""
    found = _FILE_URL.match(path)
    return unquote(path[found.end() :]) if found else path


def unquoted(path: str) -> str:
    return path.strip(_AROUND)


def files_in_patch(text: str) -> Iterator[str]:
    """The names of the files that a patch changes."""
    return (one[1].strip() for one in _IN_A_PATCH.finditer(text))


def is_hidden(path: str) -> bool:
    """Whether another process sees another file at the path: `/proc/self/cwd/x`."""
    return bool(_OF_PROCESSES.match(path))
