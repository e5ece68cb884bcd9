"""The line for messages: the earlier lines of its directory, and completion by Tab."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson

from bridge.cli.client.keyboard import Key
from bridge.cli.client.line_editor import LineEditor

COMMANDS = {
    "/cancel": "cancel the running task",
    "/help": "these commands and keys",
    "/outputs": "the whole outputs of the tools in the pager",
    "/quit": "leave; nothing ends",
}
KEYS = {
    "Enter": "send; with \\ before it, or Alt-Enter: a new line",
    "Up, Down": "earlier lines of this directory",
    "Tab": "complete @PATH or /COMMAND",
    "Ctrl-O": COMMANDS["/outputs"],
    "Ctrl-L": "draw the screen again",
    "Ctrl-C": "cancel the running task; without one, leave",
    "Ctrl-D": "leave",
}
_MOST = 200  # lines of a directory
_LARGEST = 1024 * 1024  # bytes of its file
_MOST_NAMES = 1_000  # of a folder that is listed
_PATH = re.compile(r"(?:^|\s)@(\S*)\Z")


class History:
    """The earlier lines, in a file that only this user can read. Without the file, or a right to
    it, the lines of this run remain."""

    def __init__(self, folder: Path, directory: str) -> None:
        name = hashlib.sha256(directory.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self._file = folder / f"{name}.jsonl"

    def read(self) -> list[str]:
        """The newest lines, the oldest first."""
        with contextlib.suppress(OSError, ValueError):
            with open(os.open(self._file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                rows = file.read(_LARGEST).splitlines()
            found = [orjson.loads(row) for row in rows[-_MOST:]]
            return [one for one in found if isinstance(one, str)]
        return []

    def add(self, text: str) -> None:
        rows = [*self.read()[1 - _MOST :], text]
        content = b"".join(orjson.dumps(row) + b"\n" for row in rows)
        if len(content) > _LARGEST:
            return
        part = self._file.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with open(os.open(part, flags, 0o600), "wb") as file:
                file.write(content)
            part.replace(self._file)


class PromptLine(LineEditor):
    """`directory`: of the agent, if it is on this machine. `choices`: the possible completions, if
    there are several."""

    def __init__(self, history: History | None = None, directory: str | None = None) -> None:
        super().__init__(lines=history.read() if history else ())
        self._history = history
        self._directory = directory
        self.choices: Sequence[str] = ()

    def take(self) -> str:
        taken = super().take()
        if taken and self._history:
            self._history.add(taken)
        return taken

    def press(self, key: Key) -> None:
        self.choices = ()
        if key.name == "tab":
            self._complete()
        else:
            super().press(key)

    def _complete(self) -> None:
        """Complete the word before the cursor as far as it is clear."""
        found = _PATH.search(self.before)
        if found:
            begun, names = found[1], list(self._paths(found[1]))
        elif self.before.startswith("/"):
            begun, names = self.before, [one for one in COMMANDS if one.startswith(self.before)]
        else:
            return
        common = os.path.commonprefix(names)  # noqa: RUF071 - of characters
        self.insert(common.removeprefix(begun) if common else "")
        self.choices = sorted(names) if len(names) > 1 else ()

    def _paths(self, begun: str) -> Iterator[str]:
        """The files and folders below the directory whose path begins so."""
        if self._directory is None:
            return
        folder, _, name = begun.rpartition("/")
        shown = f"{folder}/" if folder or begun.startswith("/") else ""
        with contextlib.suppress(OSError), os.scandir(Path(self._directory, shown)) as entries:
            for entry, _ in zip(entries, range(_MOST_NAMES), strict=False):
                hidden = entry.name.startswith(".") and not name.startswith(".")
                if entry.name.startswith(name) and not hidden and entry.name.isprintable():
                    yield f"{shown}{entry.name}" + ("/" if entry.is_dir() else "")
