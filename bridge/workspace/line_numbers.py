"""The numbers of the lines that an edit changes, from the file that it will change.

Adapters do not read files, so a diff that comes from the texts of an edit begins at line 1. An
agent can write in the directory at any time, so the file is opened by descriptors, and no link is
followed: nothing outside of the directory can be compared.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import PurePath

from bridge.files.folders import closing, open_folder

_LARGEST = 1024 * 1024  # bytes of a file
_DEEPEST = 64  # folders that are open at a time
_BEGIN = re.compile(r"--- (?P<path>[^\n]+)\n\+\+\+ (?P=path)\n@@ -1,(\d+) \+1,(\d+) @@\n")
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def numbered_in(diff: str, directory: str) -> str:
    """The diff with the numbers of its lines in the file, if its old text stands there once, and
    the file is below the directory; else the diff as it is."""
    found = _BEGIN.match(diff)
    body = diff[found.end() :] if found else ""
    if found is None or "\n@@" in body:
        return diff
    content, old = _content(found["path"], directory), "\n".join(_old(body))
    place = content.find(old) if old else -1
    if place < 0 or content.find(old, place + 1) >= 0:
        return diff
    line = content.count("\n", 0, place) + 1
    spans = f"@@ -{line},{found[2]} +{line},{found[3]} @@\n"
    return f"--- {found['path']}\n+++ {found['path']}\n{spans}{body}"


def _old(body: str) -> Iterator[str]:
    """The lines of the old text in a hunk."""
    return (line[1:] for line in body.rstrip("\n").split("\n") if line[:1] in (" ", "-"))


def _content(path: str, directory: str) -> str:
    """The text of a file below the directory; empty if it cannot be read."""
    names = PurePath(directory, path).parts
    inside = names[: len(PurePath(directory).parts)] == PurePath(directory).parts
    if not inside or ".." in names or len(names) > _DEEPEST or not os.path.isabs(directory):
        return ""
    try:
        with ExitStack() as opened:
            folder = opened.enter_context(closing(open_folder("/")))
            for name in names[1:-1]:
                folder = opened.enter_context(closing(open_folder(name, folder)))
            file = opened.enter_context(closing(os.open(names[-1], _FILE, dir_fd=folder)))
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
                return ""
            return os.read(file, _LARGEST).decode()
    except (OSError, ValueError):
        return ""
