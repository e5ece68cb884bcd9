"""The Markdown of an answer: its blocks as they arrive, and their drawing on a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.text import Text

from bridge.task.text import readable

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)]) ")
# Tags and entities of HTML stay text: a person sees the words of the agent.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
_PARSER.disable(["entity", "html_block", "html_inline"])


def finished(text: str) -> int:
    """The length of the blocks that no further text can change. A block ends at an empty line
    before a line without an indent. The items of a list are one block."""
    fence, begin, end, empty, place = "", 0, 0, False, 0
    for line in text.splitlines(keepends=True):
        mark = _FENCE.match(line)
        if empty and not fence and line.strip() and line[0] not in " \t":
            joins = _ITEM.match(line) and _ITEM.match(text, begin)
            if not joins:
                begin = end = place
        if mark and not fence:
            fence = mark[1]
        elif fence and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
            fence = ""
        empty = not line.strip()
        place += len(line)
    return end


class _Heading(Heading):
    """A heading at the left edge. That of the library is centered, in a box."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Markdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
    }


def drawn(text: str, console: Console, width: int) -> list[Text]:
    """The lines of a part of an answer, at most `width` cells each, with one empty line between two
    blocks."""
    lines: list[Text] = []
    for tokens in _blocks(_PARSER.parse(text)):
        document = _Markdown("", code_theme="ansi_dark", hyperlinks=False)
        document.parsed = tokens
        block = list(_lines(document, console, width))
        if block:
            lines += [*([Text()] if lines else ()), *block]
    return lines


def _blocks(tokens: Iterable[Token]) -> Iterator[list[Token]]:
    """The tokens of each block at the top level."""
    block: list[Token] = []
    for token in tokens:
        block.append(token)
        if token.level == 0 and token.nesting <= 0:
            yield block
            block = []


def _lines(document: Markdown, console: Console, width: int) -> Iterator[Text]:
    """The lines of a document without the empty ones around it."""
    waiting: list[Text] = []
    begun = False
    options = console.options.update(width=width, height=None)
    for segments in console.render_lines(document, options, pad=False):
        line = Text()
        for one in segments:
            line.append(readable(one.text, len(one.text) + 1), one.style)
        line.rstrip()
        waiting = [*waiting, line] if begun or line else []
        if line:
            yield from waiting
            waiting, begun = [], True
