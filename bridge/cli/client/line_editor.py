"""A line of text that a person types, with the usual keys of a shell."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bridge.cli.client.keyboard import Key

CURSOR = "\N{LEFT ONE EIGHTH BLOCK}"
_LAST_WORD = re.compile(r"\S*\s*\Z")


class LineEditor:
    """The text may have several lines: those of a paste, and of the key for a new line. Up and down
    bring earlier texts back; `lines` are those of earlier runs."""

    def __init__(self, text: str = "", lines: Sequence[str] = ()) -> None:
        self.text = text
        self._place = len(text)  # of the cursor
        self._lines: list[str] = [*lines, ""]  # the last one is being typed
        self._chosen = len(lines)

    @property
    def before(self) -> str:
        """The text before the cursor."""
        return self.text[: self._place]

    @property
    def shown(self) -> str:
        """The text with its cursor."""
        return self.before + CURSOR + self.text[self._place :]

    def insert(self, text: str) -> None:
        """Add a text at the cursor."""
        self._set(self.before + text, self.text[self._place :])

    def breaks(self) -> bool:
        """Replace a backslash before the cursor by a new line. Returns whether there was one."""
        found = self.before.endswith("\\")
        if found:
            self._set(f"{self.before[:-1]}\n", self.text[self._place :])
        return found

    def take(self) -> str:
        """The typed text, without blanks around it. The line is empty afterwards."""
        taken = self.text.strip()
        if taken:
            self._lines[-1:] = [taken, ""]
        self._chosen = len(self._lines) - 1
        self._set("", "")
        return taken

    def press(self, key: Key) -> None:
        before, after = self.text[: self._place], self.text[self._place :]
        match key.name:
            case "left" | "right":
                step = -1 if key.name == "left" else 1
                self._place = min(max(self._place + step, 0), len(self.text))
            case "home" | "line-end":
                self._place = 0 if key.name == "home" else len(self.text)
            case "up" | "down":
                self._choose(-1 if key.name == "up" else 1)
            case "backspace":
                self._set(before[:-1], after)
            case "delete":
                self._set(before, after[1:])
            case "newline":
                self._set(f"{before}\n", after)
            case "clear":
                self._set("", after)
            case "kill":
                self._set(before, "")
            case "word":
                self._set(_LAST_WORD.sub("", before), after)
            case _:
                self._set(before + re.sub(r"\r\n?", "\n", key.text), after)

    def _set(self, before: str, after: str) -> None:
        self.text, self._place = before + after, len(before)

    def _choose(self, step: int) -> None:
        self._lines[self._chosen] = self.text
        self._chosen = min(max(self._chosen + step, 0), len(self._lines) - 1)
        self._set(self._lines[self._chosen], "")
