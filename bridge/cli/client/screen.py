"""The terminal of a person: lines that stay, and below them a region that is drawn again.

Every text is shown as data: without control characters, and with an indent on each line that it
fills, so that an agent's text cannot look like a line of the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text
from rich.theme import Theme

from bridge.cli.client.answer_blocks import drawn, finished
from bridge.cli.client.keyboard import Key, Keyboard
from bridge.cli.client.output import Fields
from bridge.client import config
from bridge.task.text import exact, readable

ANSWER_LABEL = "Artifact Assistant response"
_WHOLE = 10**8  # characters: a text for the pager is not cut
_LONGEST_BLOCK = 20_000  # characters of an unfinished block that is kept in the region
_TAIL = 4_000  # characters of it that are drawn
_PLAIN = re.compile(r"[\w ./:=-]+", re.ASCII)
_THEME = Theme({"markdown.code": "cyan", "markdown.h1": "bold underline", "markdown.h2": "bold"})
Line = tuple[str, str]
"""A text, and its style."""


class Screen:
    """`region` returns the lines below the transcript for a width and a height. `plain`: the text
    of the agent is shown as it is; so it is on a terminal without colours."""

    def __init__(self, *, plain: bool = False) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False, theme=_THEME)
        self.draws_markdown = not (plain or self._console.no_color)
        self._live: Live | None = None
        self._keyboard = Keyboard()
        self._held: list[tuple[Text, bool]] | None = None  # while another program has the terminal
        self._is_gap = True  # the last line of the transcript is empty
        self.unfinished = ""  # a line of the transcript without its end
        self.region: Callable[[int, int], Sequence[Line]] = lambda width, height: ()

    @property
    def width(self) -> int:
        return self._console.width

    @contextmanager
    def open(self, on_key: Callable[[Key], None]) -> Iterator[None]:
        """Draw, and read keys. Ctrl-Z gives the terminal back until the command continues."""
        loop = asyncio.get_running_loop()
        with self._keyboard.reading(partial(self._press, on_key)):
            self._start()
            loop.add_signal_handler(signal.SIGTSTP, self._suspend)
            loop.add_signal_handler(signal.SIGWINCH, self.draw)
            try:
                yield
            finally:
                loop.remove_signal_handler(signal.SIGTSTP)
                loop.remove_signal_handler(signal.SIGWINCH)
                self._stop()

    def _press(self, on_key: Callable[[Key], None], key: Key) -> None:
        if key.name == "redraw":  # after the output of another program
            self._console.clear()
            self._stop()
            self._start()
        else:
            on_key(key)

    def draw(self) -> None:
        """Draw the region."""
        if self._live is None:
            return
        width, height = self._console.size
        tail = self.wrap(self.unfinished[-_TAIL:], max(8, width - 2)) if self.unfinished else []
        lines = [("  " + line, "") for line in tail[-max(3, height // 3) :]]
        lines += self.region(width, height - 1 - len(lines))
        texts = [Text(text, style, no_wrap=True, overflow="ellipsis") for text, style in lines]
        with _gone_terminal():
            self._live.update(Group(*texts), refresh=True)

    def print(self, text: str, style: str = "", *, indent: int = 0) -> None:
        """Add lines to the transcript. Every line but the first has an indent of at least two."""
        self._show(self._wrapped(text, style, indent))

    def gap(self) -> None:
        """Add an empty line, unless the last one is empty."""
        if not self._is_gap:
            self.print("")
            self._is_gap = True

    def print_lines(self, lines: Iterable[Line], *, indent: int = 0) -> None:
        """Add lines to the transcript, each cut at the edge."""
        for text, style in lines:
            line = Text(" " * indent + exact(text, _WHOLE).expandtabs(4), style)
            line.truncate(self.width, overflow="ellipsis")
            self._show(line)

    def print_texts(self, texts: Iterable[Text], *, indent: int) -> None:
        """Add drawn lines to the transcript."""
        for text in texts:
            self._show(Text(" " * indent) + text)

    def _show(self, text: Text, *, soft_wrap: bool = False) -> None:
        self._is_gap = False
        if self._held is not None:
            self._held.append((text, soft_wrap))
            return
        with _gone_terminal():
            self._console.print(text, soft_wrap=soft_wrap)
        self.draw()

    def drawn(self, markdown: str) -> list[Text]:
        """The lines of a block of Markdown, for an indent of two."""
        return drawn(markdown, self._console, max(8, self.width - 2))

    def print_command(self, text: str) -> None:
        """Add a line that the terminal itself wraps, so that a copy of it is one line."""
        self._show(Text(text, "dim"), soft_wrap=True)

    def discard_keys(self) -> None:
        self._keyboard.discard()

    def wrap(self, text: str, width: int) -> list[str]:
        """The lines of a text that a person decides about, at most `width` cells each."""
        lines = Text(exact(text, _WHOLE), tab_size=4)
        lines.expand_tabs()
        return [one.plain for one in lines.wrap(self._console, width, overflow="fold")]

    async def page(self, text: str) -> None:
        """Show a text in the pager of the person, with a mark for each control character. `less`
        then starts no other program."""
        with self._given_back():
            env = config.environment(LESSSECURE="1")
            process = await asyncio.create_subprocess_exec(
                *config.pager(), stdin=asyncio.subprocess.PIPE, env=env
            )
            try:
                await process.communicate(exact(text, _WHOLE).encode())
            finally:
                if process.returncode is None:
                    process.terminate()
                    await process.wait()

    def _wrapped(self, text: str, style: str, indent: int) -> Text:
        given = Text(text, style, tab_size=4)
        given.expand_tabs()
        width = max(8, self._console.width - max(indent, 2))
        lines = given.wrap(self._console, width, overflow="fold")
        joined = Text()
        for number, line in enumerate(lines):
            line.rstrip()
            joined.append("\n" if number else "")
            joined.append(" " * (indent if number == 0 else max(indent, 2)))
            joined.append_text(line)
        return joined

    # --- the terminal ---------------------------------------------------------------------------

    def _start(self) -> None:
        # A new one each time: it remembers how many lines of its own are above the cursor.
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            vertical_overflow="crop",
        )
        self._live.start()
        self.draw()

    def _stop(self) -> None:
        live, self._live = self._live, None
        with _gone_terminal():
            if live:
                live.stop()

    @contextmanager
    def _given_back(self) -> Iterator[None]:
        """The terminal as another program expects it."""
        self._stop()
        self._held = []
        try:
            with self._keyboard.paused():
                yield
        finally:
            held, self._held = self._held, None
            self._start()
            for text, soft_wrap in held:
                self._show(text, soft_wrap=soft_wrap)

    def _suspend(self) -> None:
        """Stop the process, as Ctrl-Z does, until the shell continues it."""
        loop = asyncio.get_running_loop()
        with self._given_back():
            loop.remove_signal_handler(signal.SIGTSTP)
            os.kill(os.getpid(), signal.SIGTSTP)
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)


def _gone_terminal() -> AbstractContextManager[None]:
    """Ignores that the terminal is gone: SIGHUP follows, and ends the command."""
    return contextlib.suppress(OSError)


class ScreenFields(Fields):
    """Fields and blocks on a screen. The answer of the agent has no label. Its finished blocks are
    drawn as Markdown; the last one stands in the region until it is finished, too."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen
        self._begun = False  # a line of the block is shown
        self._blanks = 0  # empty lines that are shown if a text follows in the block
        self._draws = False  # the block is Markdown

    def line(self, text: str, style: str = "dim") -> None:
        """A line of the client."""
        self.close()
        self._screen.print(text, style)

    def field(self, label: str, value: object) -> None:
        self.close()
        text = " ".join(exact(str(value), 100_000).split())
        if label == "Resume" and _PLAIN.fullmatch(text):
            self._screen.print_command(f"{label}: {text}")
        else:
            self._screen.print(f"{label}: {text}", "dim")

    def add(self, label: str, text: str) -> None:
        if not text:
            return
        if self._block != label:
            self.close()
            self._block, self._begun = label, False
            self._draws = label == ANSWER_LABEL and self._screen.draws_markdown
            self._screen.gap()
            if label != ANSWER_LABEL:
                self._screen.print(f"{exact(label)}:", "bold")
        said = self._screen.unfinished + readable(text, len(text) + 1)
        end = finished(said) if self._draws else said.rfind("\n") + 1
        if len(said) - end > _LONGEST_BLOCK:  # the region could not be drawn in time
            end, self._draws = len(said), False
        self._screen.unfinished = said[end:]
        self._print(said[:end])
        self._screen.draw()

    def close(self) -> None:
        if self._block is not None:
            rest, self._screen.unfinished = self._screen.unfinished, ""
            self._print(rest)
            self._screen.gap()
        self._block, self._blanks = None, 0

    def _print(self, text: str) -> None:
        """Print a part of the block, without the empty lines at its end."""
        if not text.strip():
            self._blanks += text.count("\n")
            return
        body = text.rstrip("\n") if self._begun else text.strip("\n")
        body = "\n" * (self._blanks if self._begun else 0) + body
        if self._draws:
            self._screen.print_texts(
                [*([Text()] if self._begun else ()), *self._screen.drawn(body)], indent=2
            )
        else:
            self._screen.print(body, indent=2)
        self._begun = True
        self._blanks = len(text) - len(text.rstrip("\n")) - 1
