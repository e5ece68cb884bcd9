"""Denials of the sandbox, recognised in the error messages of a CLI."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from bridge.files.folders import is_possible
from bridge.sandbox.landlock import DOTS, covers, is_inside

DENIED = re.compile(
    r"\bE(?:ACCES|PERM|ROFS)\b|permission denied|operation not permitted|read-only file system",
    re.IGNORECASE,
)
# Absolute paths, in quotes or bare; neither a URL nor the end of a relative path.
PATH = re.compile(
    r"""'(?P<single>/[^'\n]+)'|"(?P<double>/[^"\n]+)"|"""
    r"""(?<![\w.~/-])(?P<bare>/(?!/)[^\s'"`:,;()\[\]{}<>]+)"""
)
MOST_WORDS = 8_000  # characters of an error that are read; clients see no more
MOST_PATHS = 16  # in them, since the search looks at the disk for each
NEAR = 5  # lines after the error in which Node.js names the path
WALLS = ("landlock", "bwrap")
WRITE = "BRIDGE_SANDBOX_WRITE names further paths that it may write."
READ = "BRIDGE_SANDBOX_READ names hidden paths that it may read."


def explain(words: str, rules: Mapping[str, Any], ended: bool) -> tuple[str, str] | None:
    """A sentence that names the sandbox and the setting, and the path, where a CLI under `rules`
    (see Sandbox.rules) failed with `words` because of them. `ended`: its process did, so that an
    error without a path counts, too."""
    profile = rules.get("profile")
    words = words[:MOST_WORDS]
    if profile not in WALLS or not DENIED.search(words):
        return None
    paths = list(islice(dict.fromkeys(filter(is_possible, _paths(words))), MOST_PATHS))
    open_ = [*map(os.path.realpath, rules.get("write", ()))]
    for path in paths:
        if _is_hidden(path, rules):
            text = f"The sandbox ({profile}) hides a path that the agent wanted to read: {READ}"
            return text, path
        writable = _is_below(path, open_)
        if not writable and ("uid" in rules or _could_write(path)):
            text = f"The sandbox ({profile}) did not let the agent write a path: {WRITE}"
            return text, path
    if ended and not paths:
        return f"The sandbox ({profile}) may have refused something to the agent: {WRITE}", ""
    return None


def _paths(words: str) -> Iterator[str]:
    """Those that are named with an error, the first one first."""
    lines = words.splitlines()
    for number, line in enumerate(lines):
        if DENIED.search(line):
            found = list(_named(line)) or list(_named("\n".join(lines[number : number + NEAR])))
            yield from found


def _named(text: str) -> Iterator[str]:
    for found in PATH.finditer(text):
        yield found["single"] or found["double"] or found["bare"].rstrip(".")


def _is_hidden(path: str, rules: Mapping[str, Any]) -> bool:
    """Whether the rules hide a path. One that does not exist in a private place was to be made."""
    real = os.path.realpath(path)
    hidden = [one for one in rules.get("hide", ()) if covers(one, real)]
    if not hidden or _is_below(path, map(os.path.realpath, rules.get("show", ()))):
        return False
    return os.path.lexists(path) or not all(one.endswith(DOTS) for one in hidden)


def _is_below(path: str, folders: Iterable[str]) -> bool:
    """`folders`: real paths."""
    real = os.path.realpath(path)
    return any(is_inside(real, one) for one in folders)


def _could_write(path: str) -> bool:
    """Whether the server itself could: else the sandbox did not cause the failure."""
    while not os.path.lexists(path) and path != "/":
        path = os.path.dirname(path)
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
