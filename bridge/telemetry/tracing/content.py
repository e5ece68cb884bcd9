"""The content of messages and tool calls as attributes: redacted, and at most MOST_CONTENT bytes
each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from bridge.task.events import Text
from bridge.telemetry.tracing.catalog import MOST_CONTENT

Clean = Callable[[str], str]


class Content:
    """`clean` redacts secrets from a text."""

    def __init__(self, clean: Clean) -> None:
        self.clean = clean

    def value(self, value: Any) -> str:
        """A value as JSON; what exceeds the limit is left out."""
        try:
            text = orjson.dumps(self._cleaned(value), default=str).decode()
        except TypeError:  # a number above 64 bits
            text = self.clean(repr(value))
        return cut(text)

    def message(self, role: str, text: str, **members: str) -> str:
        """A list with one message in the form of the convention. A long text loses its end."""
        text = cut(self.clean(text))
        while True:
            part = {"type": "text", "content": text.encode("utf-8", "replace").decode()}
            data = orjson.dumps([{"role": role, "parts": [part], **members}])
            if len(data) <= MOST_CONTENT:
                return data.decode()
            text = text[: len(text) * 3 // 4]

    def answer(self) -> AnswerBegin:
        """The text of an answer, which is empty so far."""
        return AnswerBegin(self)

    def _cleaned(self, value: Any) -> Any:
        match value:
            case str():
                return self.clean(value).encode("utf-8", "replace").decode()
            case Mapping():
                return {self._cleaned(str(k)): self._cleaned(v) for k, v in value.items()}
            case list() | tuple():
                return [self._cleaned(one) for one in value]
        return value


class AnswerBegin:
    """The begin of the answer of an agent."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._text = ""
        self._left = 0  # characters after the begin

    def add(self, event: Text) -> None:
        gap = "\n\n" if event.new_block and self._text else ""
        taken = (gap + event.text)[: max(0, 2 * MOST_CONTENT - len(self._text))]
        self._left += len(gap + event.text) - len(taken)
        self._text += taken

    def retract(self, length: int) -> None:
        """The last characters do not count."""
        from_begin = max(0, length - self._left)
        self._left = max(0, self._left - length)
        self._text = self._text[: max(0, len(self._text) - from_begin)]

    def message(self) -> str:
        return self._content.message("assistant", self._text, finish_reason="stop")


def cut(text: str, most: int = MOST_CONTENT) -> str:
    """The text, or its begin, in at most `most` bytes of UTF-8."""
    data = text.encode("utf-8", "replace")
    return text if len(data) <= most else data[: most - 3].decode("utf-8", "ignore") + "…"
