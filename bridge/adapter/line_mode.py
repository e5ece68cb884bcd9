"""Base classes for CLIs that print text, and read their prompts and answers as lines.

`TerminalAdapter` is for programs on a terminal, `LineAdapter` for programs on pipes, too. `lines`
says how to read the CLI; docs/adapters.md has an example.

* Without `lines.end`, each turn is a process: its stdin ends after the prompt (or stays open, if
  the CLI asks questions), its exit ends the turn, its exit status is the outcome.
* With it, one process serves all turns, each prompt is a line, and the pattern matches the CLI's
  request for the next prompt.

If an argument contains `{prompt}`, the prompt is put there, and the CLI has no stdin of its own;
else the CLI reads the prompt from stdin. A prompt that begins with `/` or `!` may be a command of
such a CLI: see plain(). Both patterns are matched only when the CLI may be waiting: in an
incomplete line when the output pauses, or in the last line after a pause of a second. They are
never matched in the middle of the output.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import orjson

from bridge.adapter import (
    Ability,
    AgentConfig,
    ExitStatus,
    Lines,
    Prompt,
    SessionStart,
    explain_exit,
)
from bridge.adapter.fields import Json, Said, output_status
from bridge.adapter.json_lines import read
from bridge.adapter.print_mode import TERMINALS, RunnerAdapter
from bridge.adapter.question_ids import QuestionIds
from bridge.adapter.wish import permission, subject_of
from bridge.task.events import (
    Answer,
    Done,
    Failed,
    Option,
    Question,
    QuestionWithdrawn,
    Status,
    Text,
)

PROMPT = "{prompt}"
UNSEEN = "\u200b"  # a zero-width space, which trim() of most languages does not strip
_ENDING = 2048  # characters at the end of a line, in which the operator's patterns are searched
_ANIMATION = 64 * 1024  # characters of an animated line, of which the end is shown
_ANIMATED = re.compile(r"[\b\r]")
_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
ALLOW = Option("allow", "Allow", "allow_once")
DENY = Option("deny", "Deny", "reject_once")


class LineAdapter(RunnerAdapter):
    """Subclasses have `lines`, and override the methods that differ for their CLI."""

    lines: ClassVar[Lines | None] = None
    """How to read the CLI. None: as the operator says (AgentConfig.lines)."""

    silence: ClassVar[float] = 4
    """Seconds without output after which a started CLI seems to wait for a prompt."""

    limitations: ClassVar[Mapping[Ability, str]] = {
        "resume": "its conversation ends with its process",
        "models": "its arguments choose the model",
    }

    def __init__(self, config: AgentConfig, start: SessionStart) -> None:
        super().__init__(config, start)
        self._lines = self.lines or config.lines
        self._question = compiled(self._lines.question)
        self._end = compiled(self._lines.end)
        self._interrupted = False
        self._over = True  # no turn runs
        self._waiting: str | None = None  # the prompt, until the CLI asks for it
        self._heard = False  # output of the CLI since its start or its first prompt
        self._early = False  # the CLI got the first prompt before it asked for one
        self._last = ""  # the last complete line
        self._recent: deque[str] = deque(maxlen=20)
        self._shown = 0  # characters of the incomplete line that became events
        self._ids = QuestionIds()
        self._open: Question | None = None

    # --- calls of the session --------------------------------------------------------------------

    def prompt(self, prompt: Prompt) -> None:
        self._interrupted = self._over = False
        self._last, self._open = "", None
        self._recent.clear()
        self._ids.begin(prompt.task_id)
        text = self.as_words(prompt.text)
        if self._end is None:
            self._shown = 0
            args, asks = self.arguments(), self._question is not None
            if in_arguments(self.config):
                # The argument begins with the operator's text, so the prompt cannot become a flag.
                args = [arg.replace(PROMPT, _argument(arg, text)) for arg in args]
                text = ""
            elif asks:
                text = self.as_input(text)
            self._run_it(args, text, stays_open=asks)
        elif self.running and self._waiting is None:
            self.write(self.as_input(text))
        else:
            self._shown = 0
            self._heard = self._early = False
            self._waiting = self.as_input(text)
            self._run_it(self.arguments(), "", stays_open=True)

    def _run_it(self, args: Iterable[str], text: str, *, stays_open: bool) -> None:
        argv = (self.config.binary, *args)
        terminal = self._lines.terminal
        env = {"TERM": "dumb"} if terminal else {}
        self.run(argv, text, stays_open=stays_open, terminal=terminal, env=env)

    def arguments(self) -> Sequence[str]:
        """The arguments of the CLI."""
        return self.config.args

    def as_words(self, text: str) -> str:
        """The prompt in a form that is not a command."""
        return plain(text, "/!")

    def as_input(self, text: str) -> str:
        """The prompt for a CLI that reads lines."""
        return _one_line(text) + "\n"

    def answer(self, question: Question, answer: Answer) -> None:
        self._open = None
        self.write(f"{self.written(answer)}\n")

    def interrupt(self) -> bool:
        self._interrupted = True
        if self._end:
            self.break_off()  # the process stays
        else:
            self.stop()
        return True

    def stop_unasked(self) -> bool:
        if self._end is None:
            return super().stop_unasked()
        self.break_off()
        return True

    # --- output of the CLI -----------------------------------------------------------------------

    def heard_line(self, text: str) -> Said:
        yield from self._withdrawn()
        text = _rendered(text) if self._lines.terminal else text
        shown, self._shown = self._shown, 0
        new = text[shown:]
        self._last, self._heard = text, True
        self._recent.append(text)
        if self.introducing:
            yield from self.introduced(new)
        elif self._lines.json:
            show = partial(_rest, shown)
            yield from read(text.encode(), self._object, show, halves=self.halves)
        else:
            yield from self.said(f"{new}\n")

    @property
    def introducing(self) -> bool:
        """Whether the CLI has not asked for its first prompt yet."""
        return self._waiting is not None

    def introduced(self, text: str) -> Said:
        """The events of a line before the first prompt."""
        return [output_status(text.encode())] if text.strip() else ()

    def begun(self) -> Said:
        """The events before the first prompt."""
        return ()

    def said(self, text: str) -> Said:
        """The events of a line, or of a further part of a line."""
        return [Text(text)]

    def _object(self, line: Json, _: bytes) -> Said:
        words = _member(line, self._lines.text)
        if isinstance(words, str):
            yield Text(words)
        else:
            yield Status(orjson.dumps(line).decode()[:2000], {"type": "output", "line": dict(line)})

    def heard_tail(self, text: str) -> Said:
        """The CLI has paused within a line: a question, its prompt, or more of its text."""
        if self._lines.terminal and _ANIMATED.search(text):
            return  # an animation, which the CLI overwrites
        yield from self._withdrawn()
        if self._question and self._question.search(text[-_ENDING:]):
            self._shown = len(text)
            yield from self.ask(text)
        elif self._end and self._end.search(text[-_ENDING:]):
            self._shown = len(text)  # the next output continues this line
            yield from self._ready()
        elif not (self._lines.json or self.introducing):
            new, self._shown = text[self._shown :], len(text)
            self._heard = True
            yield from self.said(new)

    def heard_pause(self, seconds: int) -> Said:
        if self._open or self._shown:
            return
        if self._question and self._question.search(self._last[-_ENDING:]):
            yield from self.ask(self._last)
        elif self._end and self._end.search(self._last[-_ENDING:]):
            yield from self._ready()
        elif self.introducing and not self._heard and seconds >= self.silence:
            self._early = True
            yield from self._ready()

    def _ready(self) -> Said:
        """The CLI waits for a prompt."""
        text, self._waiting = self._waiting, None
        if text is None and self._early and not self._heard:
            self._early = False  # it was slow to start, and has its prompt already
        elif text is None:
            yield from self._finish()
        else:
            self._last, self._heard = "", False
            yield from self.begun()
            self.write(text)

    def ask(self, text: str) -> Said:
        if self.config.force and not self._over:
            self.write(f"{self._lines.answers[0]}\n")
            return
        self._open = self.question(self._ids.next_id(), text)
        yield self._open

    def question(self, question_id: str, text: str) -> Question:
        """The question for the client when the CLI has printed `text`. The lines above it are the
        only thing that is known about the action."""
        above = [line for line in self._recent if line.strip()]
        given = {"text": "\n".join(above[:-1] if above[-1:] == [text] else above)}
        title = f"{self.title} asks: {text}"
        subject = subject_of(self.name, title, given if given["text"] else {})
        return replace(permission(question_id, subject, (ALLOW, DENY)), free_text=True)

    def written(self, answer: Answer) -> str:
        """The answer as the CLI reads it."""
        if answer.option:
            return self._lines.answers[answer.option != ALLOW]
        return _one_line(answer.text)

    def _withdrawn(self) -> Said:
        """The CLI has continued without an answer: the text was not a question."""
        if self._open:
            yield QuestionWithdrawn(self._open.id)
            self._open = None

    def heard_exit(self, status: ExitStatus) -> Said:
        yield from self._withdrawn()
        if self._interrupted:
            yield from self._finish()
        elif status.code == 0 and not self._end:
            yield from self._finish()
        else:
            words = status.stderr.strip() or "\n".join(self._recent)
            yield Failed(*explain_exit(self.title, ExitStatus(status.code, words)))

    def _finish(self) -> Said:
        self._over = True
        if self._interrupted:
            yield Failed("The turn was interrupted.", "interrupted")
        else:
            yield from self.finished()

    def finished(self) -> Said:
        """The events of a turn that ended without an interrupt."""
        return [Done()]


class TerminalAdapter(LineAdapter):
    """For a CLI that needs a terminal: its `lines` have `terminal=True`."""

    writable_paths: ClassVar[tuple[str, ...]] = (TERMINALS,)


def plain(text: str, signs: str = "/") -> str:
    """`text` in a form that is not a command. Unchanged if it begins with none of the `signs`. Run
    against six CLIs over ACP, and the print modes of gemini and copilot: most of them strip a
    leading space or newline first, and join a separate block with the next one."""
    seen = next((one for one in text if one.isprintable() and one != " "), "")
    return f"{UNSEEN}{text}" if seen and seen in signs else text


def compiled(pattern: str | None) -> re.Pattern[str] | None:
    return re.compile(pattern) if pattern else None


def in_arguments(config: AgentConfig) -> bool:
    return any(PROMPT in arg for arg in config.args)


def _argument(arg: str, text: str) -> str:
    """The prompt inside `arg`. If it is the beginning of the argument, it must not be a flag."""
    return f" {text}" if arg.startswith(PROMPT) and text.startswith("-") else text


def _rendered(text: str) -> str:
    """The line as a terminal shows it, after backspaces and carriage returns, without colours."""
    text = _CONTROL.sub("", text)
    if not _ANIMATED.search(text):
        return text
    text = text[-_ANIMATION:]
    shown: list[str] = []
    at = 0
    for letter in text:
        if letter in "\b\r":
            at = max(at - 1, 0) if letter == "\b" else 0
        else:
            shown[at : at + 1] = letter
            at += 1
    return "".join(shown).rstrip(" ")  # which erase an animation


def _one_line(text: str) -> str:
    """The text as one line: control characters, newlines included, become spaces."""
    return re.sub(r"[\x00-\x08\x0a-\x1f\x7f]+", " ", text)


def _member(line: Json, path: str) -> Any:
    value: Any = line
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _rest(shown: int, line: bytes) -> Text:
    return Text(f"{line.decode(errors='replace')[shown:]}\n")
