"""The command line that adds an extra to this installation. It names the package only if an index
had it by this name: a stranger could register the name elsewhere."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from typing import Protocol
from urllib.parse import unquote, urlsplit

from bridge.errors.program import NAME

_TOOLS = {("uv", "tool"): "uv-receipt.toml", ("pipx",): "pipx_metadata.json"}
"""Programs that install tools, with the file that each leaves in an environment."""
_NAME = re.compile(r"[\w.-]+")
_OF_EXTRA = "; extra == "


class Metadata(Protocol):
    """The parts of importlib.metadata.Distribution that are read here."""

    @property
    def requires(self) -> list[str] | None: ...

    def read_text(self, filename: str) -> str | None: ...


def install_line(extra: str) -> str:
    """The command line, which can be pasted into a shell of any directory."""
    try:
        found = distribution(NAME)
    except PackageNotFoundError:  # it runs from a folder that was not installed
        folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        return _line(_pip(), folder, {extra})
    return line_of(extra, found, sys.prefix)


def line_of(extra: str, found: Metadata, prefix: str) -> str:
    """The same for an installation in the environment `prefix`."""
    source, editable = _source(found)
    for tool, file in _TOOLS.items():
        if os.path.exists(os.path.join(prefix, file)):
            # It replaces the environment: the extras that are there are named, too.
            extras = {extra, *_complete(found)}
            return _line((*tool, "install", "--force"), source, extras, editable=editable)
    return _line(_pip(), source, {extra}, editable=editable)


def _pip() -> tuple[str, ...]:
    """The program that installs into the environment of this Python."""
    if _installed("pip"):
        return (sys.executable, "-m", "pip", "install")
    return ("uv", "pip", "install", "--python", sys.executable)


def _line(words: Iterable[str], source: str, extras: set[str], *, editable: bool = False) -> str:
    listed = ",".join(sorted(extras))
    package = f"{NAME}[{listed}] @ {source}" if "://" in source else f"{source}[{listed}]"
    return shlex.join([*words, *(["--editable"] if editable else []), package])


def _source(found: Metadata) -> tuple[str, bool]:
    """The place that the package came from: a folder, a URL, or its name in an index; and whether
    it is used in its folder."""
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    url = str(origin.get("url", ""))
    if url.startswith("file:"):
        editable = bool(origin.get("dir_info", {}).get("editable"))
        return unquote(urlsplit(url).path), editable
    if "vcs_info" in origin:
        return f"{origin['vcs_info']['vcs']}+{url}", False
    return url or NAME, False


def _complete(found: Metadata) -> set[str]:
    """The extras of which all libraries are installed."""
    wanted = (one.partition(_OF_EXTRA) for one in found.requires or ())
    pairs = [(_NAME.findall(one)[0], extra.strip("'\"")) for one, mark, extra in wanted if mark]
    missing = {extra for library, extra in pairs if not _installed(library)}
    return {extra for _, extra in pairs} - missing


def _installed(library: str) -> bool:
    try:
        distribution(library)
    except PackageNotFoundError:
        return False
    return True
