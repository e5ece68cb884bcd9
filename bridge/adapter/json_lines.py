"""Lines of CLIs that print a JSON object on each line.

Other output may share a line with an object: a library of the CLI, or a program that it starts,
prints a notice or a control sequence without a newline, or a newline between two objects is lost.
Each object that reaches to the end of its line is read all the same; otherwise a text, a permission
or the end of a turn would be lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from bridge.adapter.fields import Json, Said, output_status
from bridge.task.events import AgentEvent
from bridge.task.text import json_object

PLACES = 64  # strings whose last character may be incomplete
STARTS = 8  # places of a line where its objects may begin; each costs a look at the rest
# Between objects, and after the last one: blanks, and control sequences of a terminal.
_GAP = re.compile(
    r"(?:[\s\x00-\x1a\x1c-\x1f\x7f]|\x1b\[[0-?]{0,32}[ -/]{0,4}[@-~]|\x1b\][^\x07\x1b]{0,256}+\x07"
    r"|\x1b[()][0-9A-Z]|\x1b[=>78c])*+"
)
_DECODER = json.JSONDecoder()


class Halves:
    """The halves of characters that a CLI divides between two pieces of a text: JavaScript counts
    an emoji as two. A half at the end of a string waits for a string at the same place of a later
    line that begins with the other half."""

    def __init__(self) -> None:
        self._waiting: dict[str, str] = {}  # first halves, by the place of their string

    def join(self, value: Any, place: str = "") -> Any:
        """The value of a line, with whole characters."""
        match value:
            case dict():
                return {name: self.join(one, f"{place}/{name}") for name, one in value.items()}
            case list():
                return [self.join(one, f"{place}/{n}") for n, one in enumerate(value)]
            case str():
                return self._joined(value, place)
        return value

    def _joined(self, text: str, place: str) -> str:
        first = self._waiting.pop(place, "")
        if first and "\udc00" <= text[:1] <= "\udfff":
            text = (first + text[0]).encode("utf-16", "surrogatepass").decode("utf-16") + text[1:]
        if "\ud800" <= text[-1:] <= "\udbff":
            if len(self._waiting) >= PLACES:
                self._waiting.clear()
            self._waiting[place] = text[-1]
            text = text[:-1]
        return text


def read(
    line: bytes,
    receive: Callable[[Json, bytes], Said],
    show: Callable[[bytes], AgentEvent] = output_status,
    *,
    halves: Halves | None = None,
) -> Said:
    """The events of a line: `receive` reads each object, `show` other output. `halves`: those of
    the lines before."""
    join = halves.join if halves else None
    value = json_object(line, join)
    if value is not None:
        return receive(value, line)
    before, objects = _divided(line)
    said: list[AgentEvent] = [show(before)] if before.strip() else []
    for one in objects:
        value = json_object(one, join)
        said += [show(one)] if value is None else receive(value, one)
    return said


def _divided(line: bytes) -> tuple[bytes, list[bytes]]:
    """The output before the first object, and the objects. An object within a sentence belongs to
    the sentence: without an object at its end, the whole line is output."""
    last = line.rfind(b"}") + 1
    text = line.decode("utf-8", "replace") if last else ""
    if not last or not _GAP.fullmatch(text, text.rfind("}") + 1):
        return line, []
    at = 0  # the end of all that cannot be a part of the objects
    for _ in range(STARTS):
        start = text.find('{"', at)
        if start < 0:
            break
        objects, at = _objects(text, start)
        if at == len(text):
            return text[:start].encode("utf-8", "replace"), objects
    return line, []


def _objects(text: str, start: int) -> tuple[list[bytes], int]:
    """The adjacent objects from `start` on, and where they end: at the end of the text, or behind
    the first character of something else."""
    found: list[bytes] = []
    while start < len(text):
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            return found, start + 1
        if not isinstance(value, dict):
            return found, start + 1
        found.append(text[start:end].encode("utf-8", "replace"))
        gap = _GAP.match(text, end)
        start = gap.end() if gap else end
    return found, start
