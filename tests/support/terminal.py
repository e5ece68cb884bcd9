"""A program at a terminal: what it writes, and what a person sees of it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pexpect
import pyte

WITHIN = 60.0  # seconds that any one wait may take
# What the client itself may write: erase, move, colours, the cursor and bracketed paste.
OWN = re.compile(rb"\x1b\[(?:\d*[AK]|[\d;]*m|\?25[lh]|\?2004[lh])|\r")


class _Screen(pyte.HistoryScreen):
    """pyte knows no faint text: here it is grey."""

    _is_faint = False

    def select_graphic_rendition(self, *attrs: int, **other: bool) -> None:
        if not {38, 48} & set(attrs):  # there, 2 and 22 are parts of a colour
            attrs = tuple(new for one in attrs for new in self._known(one))
        super().select_graphic_rendition(*attrs, **other)

    def _known(self, attribute: int) -> tuple[int, ...]:
        ends_faint = self._is_faint and attribute == 22
        self._is_faint = attribute == 2 or (self._is_faint and attribute not in (0, 22))
        return (22, 39) if ends_faint else (90,) if attribute == 2 else (attribute,)


class Terminal:
    """`raw` are all bytes of the program."""

    def __init__(
        self, command: Sequence[str], cwd: Path, env: Mapping[str, str], columns: int, rows: int
    ) -> None:
        self.raw = b""
        self._over = False
        self._screen = _Screen(columns, rows, history=10_000, ratio=0.5)
        self._stream = pyte.ByteStream(self._screen)
        self.child = pexpect.spawn(
            command[0],
            list(command[1:]),
            cwd=str(cwd),
            env={"TERM": "xterm-256color", **env},
            dimensions=(rows, columns),
            timeout=WITHIN,
        )
        self.child.delaybeforesend = None

    @property
    def lines(self) -> list[str]:
        """The lines that are visible now."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        """All lines, also those that have left the screen at the top."""
        top = [
            "".join(line[column].data for column in range(self._screen.columns)).rstrip()
            for line in self._screen.history.top
        ]
        return "\n".join([*top, *self.lines])

    @property
    def cells(self) -> list[list[pyte.screens.Char]]:
        """The cells of the visible lines, without the empty lines at the end."""
        end = max((number for number, line in enumerate(self.lines, 1) if line), default=0)
        columns = range(self._screen.columns)
        return [[self._screen.buffer[line][one] for one in columns] for line in range(end)]

    async def shows(self, text: str) -> None:
        """Return when a person can see `text`."""
        await self._until(lambda: text in "\n".join(self.lines), f"{text!r} is not shown")

    async def ends(self, text: str) -> None:
        """Return when `text` is at the end of the screen."""
        await self._until(
            lambda: "\n".join(self.lines).rstrip().endswith(text), f"{text!r} is not at the end"
        )

    async def hides(self, text: str) -> None:
        await self._until(lambda: text not in "\n".join(self.lines), f"{text!r} is shown")

    async def settled(self, seconds: float) -> None:
        """Return after so long without any output, or at the end of the program."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._over:
            before = len(self.raw)
            await asyncio.to_thread(self._read)
            if len(self.raw) > before:
                end = time.monotonic() + seconds

    async def press(self, keys: str) -> None:
        await asyncio.to_thread(self.child.send, keys)

    async def ended(self) -> int:
        """The exit status of the program; negative for a signal."""
        await self._until(lambda: self._over, "the program did not end")
        await asyncio.to_thread(self.child.wait)
        if self.child.signalstatus is not None:
            return -int(self.child.signalstatus)
        return int(self.child.exitstatus)

    async def gone(self) -> int:
        """Take the terminal away. Returns the exit status of the program."""
        self.child.ptyproc.fileobj.close()
        self._over = True
        return await self.ended()

    async def answered(self, card: str, key: str, pause: float) -> None:
        """Press a key that answers the card with this text, when keys count."""
        await self.shows(card)
        await asyncio.sleep(pause)
        await self.press(key)

    async def allows(self, subject: str) -> None:
        """Allow the question about this subject. On a loaded machine, the client may begin to read
        keys later than it draws a card: a person presses again."""

        def waits() -> bool:
            return any(one.startswith("Needs you") and subject in one for one in self.lines)

        await self._until(waits, f"no question about {subject!r}")
        while waits():
            await asyncio.sleep(0.4)  # earlier, a key does not count
            await self.press("y")
            end = time.monotonic() + 3
            while waits() and time.monotonic() < end:
                await asyncio.to_thread(self._read)

    def close(self) -> None:
        if not self.child.terminated:
            self.child.close(force=True)

    async def _until(self, done: Callable[[], bool], problem: str) -> None:
        end = time.monotonic() + WITHIN
        while not done():
            assert time.monotonic() < end, f"{problem}:\n{self.text}"
            await asyncio.to_thread(self._read)
            if self._over and not done():
                raise AssertionError(f"{problem}, and the program has ended:\n{self.text}")

    def _read(self) -> None:
        try:
            data = self.child.read_nonblocking(65536, timeout=0.2)
        except pexpect.TIMEOUT:
            return
        except pexpect.EOF:
            self._over = True
            return
        self.raw += data
        self._stream.feed(data)
