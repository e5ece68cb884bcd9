"""The card of an open question: its lines, and the meaning of each key."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from bridge.cli.client.keyboard import Key
from bridge.cli.client.line_editor import LineEditor
from bridge.client.questions import ChosenAnswer, Leave, OpenQuestion
from bridge.task.events import Option
from bridge.task.text import exact

Line = tuple[str, str]
Wrap = Callable[[str, int], list[str]]
COUNTS_AFTER = 0.3  # seconds from the drawing of a card to the first key that counts
_MOST_NUMBERS = 9
_MOST_MEANING = 3  # lines of the description of an option
_INDENT, _CHANGE_INDENT = 4, 7  # of the further rows of a line
_CHANGED = re.compile(r" *\d+ ([+-])")
_COLOURS = {"+": "green", "-": "red"}
_KEYS = (
    ("y", "allow once"),
    ("a", "allow always: asks again with its reach"),
    ("n", "deny"),
    ("r", "deny with a reason"),
    ("t", "answer in own words"),
    ("1-9", "an option by its number"),
    ("d", "the whole request in the pager"),
    ("v", "the question as JSON"),
    ("q", "leave the question open"),
    ("?", "these keys"),
)


_OWN = frozenset("yanrtdv?")


@dataclass(frozen=True, slots=True)
class Show:
    """A text for the pager."""

    text: str


Action = ChosenAnswer | Show | Leave


class QuestionCard:
    """`drawn`: the time of the drawing from which keys count; a card that asks for a second press
    is drawn again. `line`: of a conversation; any question takes it as an answer in words, and the
    server tries it. If a person has begun it, typing goes on."""

    def __init__(
        self,
        question: OpenQuestion,
        agent: str,
        directory: str | None,
        now: float,
        *,
        line: LineEditor | None = None,
    ) -> None:
        self.question = question
        self.drawn = now
        self._title = f"{agent} needs you" + (f" in {directory}" if directory else "")
        self._confirm: Option | None = None
        self._chosen: list[Option] = []
        self._words = line is not None or question.free_text
        self._answer = line or LineEditor()
        self._line = line if line and line.text else None  # while a person types
        self._reason = False  # the line is the reason of a refusal
        self._help = False

    # --- keys -----------------------------------------------------------------------------------

    def press(self, key: Key, now: float) -> Action | None:
        """The action of the key. None: the card has changed, or the key has no meaning."""
        if self._line is not None:
            return self._type(key, now)
        if not key.alone or now - self.drawn < COUNTS_AFTER:
            self.drawn = now  # a key that is held down counts after its release only
            return None
        asked, self._confirm, self._help = self._confirm, None, False
        option = self._option(key.name)
        if option and self.question.multiple and key.name.isdigit():
            self._toggle(option)
            return None
        if option and option.kind == "allow_always" and option is not asked:
            self._confirm, self.drawn = option, now
            return None
        if option:
            return ChosenAnswer((option,))
        return self._command(key.name)

    def wants(self, name: str) -> bool:
        """Whether the key belongs to the card rather than to a list around it."""
        sends = name == "enter" and bool(self._chosen)
        return self._line is not None or sends or name in _OWN or name.isdigit()

    def _option(self, name: str) -> Option | None:
        kinds = {"y": ("allow_once",), "a": ("allow_always",), "n": ("reject_once",)}
        if name in kinds:
            return next(filter(None, map(self.question.of_kind, kinds[name])), None)
        if name.isdigit() and 0 < int(name) <= len(self.question.options):
            return self.question.options[int(name) - 1]
        return None

    def _command(self, name: str) -> Action | None:
        match name:
            case "enter" if self._chosen:
                return ChosenAnswer(tuple(self._chosen))
            case "r" if self.question.of_kind("reject_once"):
                self._line, self._reason = LineEditor(), True
            case "t" if self._words:
                self._line, self._reason = self._answer, False
            case "d":
                return Show(self.question.whole)
            case "v":
                return Show(json.dumps(self._facts(), indent=2, ensure_ascii=False))
            case "q" | "end":
                return Leave()
            case "?":
                self._help = True
        return None

    def _toggle(self, option: Option) -> None:
        if option in self._chosen:
            self._chosen.remove(option)
        else:
            self._chosen.append(option)

    def _type(self, key: Key, now: float) -> Action | None:
        assert self._line is not None
        match key.name:
            case "escape":
                self._line = None
            case "end":
                return Leave()
            case "enter" if now - self.drawn < COUNTS_AFTER:
                self.drawn = now  # the person had not read the question
            case "enter" if self._line.breaks():
                pass
            case "enter" if self._line.text.strip():
                refusal = self.question.of_kind("reject_once") if self._reason else None
                return ChosenAnswer((refusal,) if refusal else (), self._line.take())
            case _:
                self._line.press(key)
        return None

    # --- its lines -------------------------------------------------------------------------------

    def lines(self, wrap: Wrap, width: int, height: int) -> list[Line]:
        """The card in at most `height` lines: the request takes up to half of them."""
        inner = max(8, width - 2)
        below = self._below(wrap, inner, height)
        title = wrap(" ".join(self._title.split()), width)[:2]
        text = decorated(self.question.request, wrap, inner)
        most = max(1, min(height // 2, height - len(below) - len(title)))
        shown = text[:most]
        if len(text) > most:
            shown[-1] = (f"… {len(text) - most + 1} more lines: d", "dim")
        return [
            *((one, "bold yellow") for one in title),
            *((f"│ {one}", style) for one, style in shown),
            *below,
        ]

    def _below(self, wrap: Wrap, width: int, height: int) -> list[Line]:
        if self._line is not None:
            label = "Reason" if self._reason else "Answer"
            typed = wrap(f"{label}: {self._line.shown}", width)
            return [
                *((line, "bold") for line in typed[-2:]),
                ("Enter sends, Escape goes back", "dim"),
            ]
        if self._confirm:
            reach = wrap(f"{self._confirm.name}: press the key again to allow this always", width)
            reach += wrap(self._confirm.description, width) if self._confirm.description else []
            return [(line, "bold red") for line in reach[: height // 2]]
        if self._help:
            return [(f"{key:4}{meaning}", "dim") for key, meaning in _KEYS][: height - 3]
        options = self._options(wrap, width, described=True)
        if len(options) > height // 3:
            options = self._options(wrap, width, described=False)
        return [*options, (self._hint()[:width], "dim")]

    def _options(self, wrap: Wrap, width: int, *, described: bool) -> list[Line]:
        keys = {"allow_once": "y", "allow_always": "a", "reject_once": "n"}
        rows: list[Line] = []
        for number, option in enumerate(self.question.options[:_MOST_NUMBERS], 1):
            key = keys.pop(option.kind, " ")
            mark = ("[x] " if option in self._chosen else "[ ] ") if self.question.multiple else ""
            name = " ".join(exact(option.name, 400).split())
            rows.append((f"{key} {number} {mark}{name}"[:width], "bold" if key != " " else ""))
            meaning = wrap(option.description, max(8, width - 6)) if described else []
            rows += [(f"    {line}", "dim") for line in meaning[:_MOST_MEANING] if line]
        return rows

    def _hint(self) -> str:
        words = "Enter sends  " if self.question.multiple else ""
        if self.question.of_kind("reject_once"):
            words += "r reason  "
        if self._words:
            words += "t own words  "
        end = until(self.question)
        return f"{words}d all  q leave  ? keys" + (f"  · {end}" if end else "")

    def _facts(self) -> Mapping[str, Any]:
        options = [asdict(option) for option in self.question.options]
        return {
            "questionId": self.question.id,
            "kind": self.question.kind,
            "text": self.question.text,
            "options": options,
            "subject": self.question.subject,
            "freeText": self.question.free_text,
            "multiple": self.question.multiple,
        }


def decorated(request: str, wrap: Wrap, width: int) -> list[Line]:
    """The lines of a request with their styles: the first one stands out, and the lines of a change
    have its colours. The further rows of a line have an indent, so that none looks like a line."""
    lines: list[Line] = []
    for number, line in enumerate(request.split("\n")):
        style = change_style(line) or ("" if number else "bold")
        indent = " " * (_CHANGE_INDENT if change_style(line) else _INDENT)
        first, *others = wrap(line, width)
        if others:
            first, *others = wrap(line, max(_INDENT, width - len(indent)))
        lines += [(first, style), *((indent + one, style) for one in others)]
    return lines


def change_style(line: str) -> str:
    """The style of a line of a change; empty for any other line."""
    found = _CHANGED.match(line)
    return _COLOURS[found[1]] if found else ""


def until(question: OpenQuestion) -> str:
    """When the question ends without an answer, in the time of this machine, and what then
    happens; empty if it waits for ever."""
    try:
        end = datetime.fromisoformat(question.until).astimezone()
    except ValueError:
        return ""
    return f"{'denied' if question.then == 'deny' else 'the task ends'} at {end:%H:%M}"
