"""A line of text that a person types, with the usual keys of a shell."""

from __future__ import annotations

import re

from bridge.cli.client.keyboard import Key

CURSOR = "\N{LEFT ONE EIGHTH BLOCK}"
_LAST_WORD = re.compile(r"\S*\s*\Z")


class LineEditor:
    """The line breaks of a paste stay in the text. Up and down bring earlier lines back."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        self._place = len(text)  # of the cursor
        self._lines: list[str] = [""]  # the earlier ones, and last the one that is being typed
        self._chosen = 0

    @property
    def shown(self) -> str:
        """The text with its cursor, in one line."""
        text = self.text[: self._place] + CURSOR + self.text[self._place :]
        return text.replace("\n", "\N{RETURN SYMBOL}")

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
