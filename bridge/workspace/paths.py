"""Which directories agents may work in."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bridge.errors import ContentTypeNotSupported, Forbidden, InvalidParams, WorkspaceError
from bridge.files.folders import MOST_NAMES, NAME_MAX, PATH_MAX, is_possible


class Workspaces:
    """`default` is where an agent works unless the client says otherwise; `roots` are the
    directories below which it may choose. Paths are compared after symbolic links."""

    def __init__(self, default: str, roots: Iterable[str]) -> None:
        self.default = os.path.realpath(default)
        self.roots = tuple(os.path.realpath(root) for root in roots) or (self.default,)

    def contains(self, path: str) -> bool:
        return _is_below(os.path.realpath(path), (*self.roots, self.default))

    def check(self, path: str) -> None:
        """Raises WorkspaceError where no CLI can work in the directory, which is one of these."""
        cause = obstacle(path)
        if cause:
            below = _is_below(path, (self.default,))
            name = os.path.relpath(path, self.default) if below else os.path.basename(path)
            raise WorkspaceError(path, "the default workspace" if name == "." else name, cause)

    def resolve(self, cwd: object, within: Sequence[str] | None = None) -> str:
        """The directory that a client's `cwd` means; relative ones start at the default. `within`:
        the directories below which this client may work, if not all.

        Raises InvalidParams. What exists outside the roots is not told.
        """
        if cwd is None:
            inside = within is None or _is_below(self.default, within)
            return self.default if inside else self.resolve(next(iter(within or ())), within)
        if not isinstance(cwd, str) or not cwd or "\0" in cwd:
            raise InvalidParams("metadata.bridge.cwd is not a path", [("cwd", "not a path")])
        if not is_possible(cwd):
            text = f"has more than {PATH_MAX} bytes, {NAME_MAX} in a name, or {MOST_NAMES} names"
            raise InvalidParams(f"metadata.bridge.cwd {text}", [("cwd", text)])
        path = os.path.realpath(os.path.join(self.default, cwd))
        if not self.contains(path) or not (within is None or _is_below(path, within)):
            text = "metadata.bridge.cwd is outside the directories that this server allows"
            raise InvalidParams(text, [("cwd", "outside the allowed roots")])
        if not os.path.isdir(path):
            raise InvalidParams("metadata.bridge.cwd is not a directory", [("cwd", "no directory")])
        return path

    def file(self, url: str, within: Sequence[str] | None = None) -> tuple[Path, int]:
        """The real path of the file that a `file:` URL (RFC 8089) names, and its size in bytes.

        Raises InvalidParams unless it is a regular file in one of the directories; whether there
        is anything outside is not told. Raises ContentTypeNotSupported for another machine's.
        """
        problem = "names no file in the workspace"
        refusal = InvalidParams(f"A file: URL {problem}.", [("url", problem)])
        if len(url) > 3 * PATH_MAX + len("file://localhost"):  # each byte may be written as %2F
            raise refusal
        try:
            parsed = urlsplit(url)
        except ValueError:  # half of an IPv6 address
            raise refusal from None
        if parsed.netloc not in ("", "localhost"):
            raise ContentTypeNotSupported("A file: URL must name no host, or localhost.")
        named = unquote(parsed.path)
        if "\0" in named or not (named.startswith("/") and is_possible(named)):
            raise refusal
        path = os.path.realpath(named)
        try:
            visible = self.contains(path) and (within is None or _is_below(path, within))
            found = os.stat(path) if visible else None
        except OSError:
            found = None
        if found is None or not stat.S_ISREG(found.st_mode):
            raise refusal
        return Path(path), found.st_size


def obstacle(path: str) -> str | None:
    """The error message of the system if the directory is not usable."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        os.stat(os.path.join(path, "."))  # it may be listed and yet not be entered
    except OSError as error:
        return error.strerror
    return None


def check_place(cwd: str, within: Sequence[str] | None) -> None:
    """Raises Forbidden if `cwd`, the directory of a conversation, is not below one of the
    directories `within`, which its principal may use. None: no limit. The limit may have changed
    since the conversation began, or another principal began it."""
    if within is not None and not _is_below(os.path.realpath(cwd), within):
        raise Forbidden("These credentials do not allow the directory of this conversation.")


def _is_below(path: str, roots: Iterable[str]) -> bool:
    """Whether a real path is one of these or lies in one."""
    return any(os.path.commonpath((root, path)) == root for root in roots)
