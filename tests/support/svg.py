"""Screens of a terminal as a picture: SVG that a page shows as an image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from xml.sax.saxutils import escape

from pyte.screens import Char

Row = Sequence[Char]
Frame = Sequence[Row]

_WIDTH, _HEIGHT, _SIZE, _EDGE = 8.4, 19, 14, 18  # of a cell, of the font, around the text
_FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
_TEXT, _GROUND = "#d8dee9", "#1b1f27"
_COLOURS = {
    "black": "#2e3440",
    "red": "#f07a83",
    "green": "#9fd07a",
    "brown": "#ecc66f",
    "blue": "#82aaff",
    "magenta": "#c99be8",
    "cyan": "#7fd1de",
    "white": "#d8dee9",
    "brightblack": "#7d8699",
    "brightred": "#ff9ba2",
    "brightgreen": "#b9e69a",
    "brightbrown": "#ffdd95",
    "brightblue": "#a6c3ff",
    "brightmagenta": "#dfbcf5",
    "brightcyan": "#a4e6f0",
    "brightwhite": "#ffffff",
}


def svg(frames: Sequence[Frame], seconds: Sequence[int], title: str) -> str:
    """A picture of `frames`, each for so many `seconds`, from the beginning again after the last
    one. A viewer without animations, or a person who wants none, sees the last frame."""
    width = round(max(len(row) for frame in frames for row in frame) * _WIDTH) + 2 * _EDGE
    height = max(map(len, frames)) * _HEIGHT + 2 * _EDGE
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" fill="{_TEXT}" '
        'role="img">',
        f"<title>{escape(title)}</title>",
        *_style(seconds),
        f'<rect width="{width}" height="{height}" rx="10" fill="{_GROUND}"/>',
    ]
    for number, frame in enumerate(frames):
        lines += [f'<g class="f{number}">', *_drawn(frame), "</g>"]
    return "\n".join([*lines, "</svg>", ""])


def _style(seconds: Sequence[int]) -> Iterator[str]:
    yield "<style>"
    yield f"text{{font:{_SIZE}px {_FONT};white-space:pre}}"
    yield ".b{font-weight:700}.i{font-style:italic}.u{text-decoration:underline}"
    total, last = sum(seconds), len(seconds) - 1
    if last:
        yield ",".join(f".f{number}" for number in range(last)) + "{opacity:0}"
        yield "@media (prefers-reduced-motion:no-preference){"
        for number, length in enumerate(seconds):
            begin = 100 * sum(seconds[:number]) / total
            end = begin + 100 * length / total
            steps = f"0%{{opacity:0}}{begin:.1f}%{{opacity:1}}{end:.1f}%{{opacity:0}}"
            yield f"@keyframes k{number}{{{steps}}}"
            yield f".f{number}{{opacity:0;animation:k{number} {total}s steps(1) infinite}}"
        yield "}"
    yield "</style>"


def _drawn(frame: Frame) -> Iterator[str]:
    for line, row in enumerate(frame):
        column = 0
        for (colour, ground, kind), group in groupby(row, _look):
            text = "".join(cell.data for cell in group)
            if ground != _GROUND:
                yield (
                    f'<rect x="{_x(column)}" y="{_EDGE + line * _HEIGHT}" '
                    f'width="{len(text) * _WIDTH:.1f}" height="{_HEIGHT}" fill="{ground}"/>'
                )
            if inner := text.strip():
                start = column + len(text) - len(text.lstrip())
                look = (f' class="{kind}"' if kind else "") + (
                    f' fill="{colour}"' if colour != _TEXT else ""
                )
                # The length makes the columns of any font those of the terminal.
                yield (
                    f'<text x="{_x(start)}" y="{_EDGE + line * _HEIGHT + _SIZE}" '
                    f'textLength="{len(inner) * _WIDTH:.1f}"{look}>{escape(inner)}</text>'
                )
            column += len(text)


def _look(cell: Char) -> tuple[str, str, str]:
    """The colours of the text and the ground of a cell, and its classes."""
    colour, ground = _colour(cell.fg, _TEXT), _colour(cell.bg, _GROUND)
    if cell.reverse:
        colour, ground = ground, colour
    names = {"b": cell.bold, "i": cell.italics, "u": cell.underscore}
    return colour, ground, " ".join(name for name, has in names.items() if has)


def _colour(name: str, default: str) -> str:
    return default if name == "default" else _COLOURS.get(name, f"#{name}")


def _x(column: int) -> str:
    return f"{_EDGE + column * _WIDTH:.1f}"
