"""The keys of a terminal, one at a time, while the rest of the command goes on."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

PASTE_ON, PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"
_PASTE_BEGIN, _PASTE_END = "\x1b[200~", "\x1b[201~"
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|[^\[O])", re.DOTALL)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?")
_ESCAPE_AFTER = 0.1  # seconds without a further byte after which an escape is the key Escape
_NAMES = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x04": "end"}
_NAMES |= {
    "\x15": "clear",
    "\x17": "word",
    "\x0b": "kill",
    "\x0f": "outputs",
    "\x0c": "redraw",
    "\t": "tab",
    "\x01": "home",
    "\x05": "line-end",
}
_MOVES = {"A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "line-end"}
_SEQUENCES = {f"\x1b{first}{letter}": name for letter, name in _MOVES.items() for first in "[O"}
_SEQUENCES |= {"\x1b\r": "newline", "\x1b\n": "newline"}  # with Alt
_SEQUENCES |= {"\x1b[3~": "delete", "\x1b[1~": "home", "\x1b[4~": "line-end"}


@dataclass(frozen=True, slots=True)
class Key:
    """`name`: a printable character, enter, escape, paste, end (of the input), or a key of
    line_editor.py. `text`: the text that it adds to a line. `alone`: it came by itself, as
    keys do that a person presses."""

    name: str
    text: str = ""
    alone: bool = True


class KeyParser:
    """Keys from the bytes of a terminal. A bracketed paste is one key; keys without a meaning, such
    as F1, are left out."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes) -> list[Key]:
        """The keys in the bytes of one read."""
        self._rest += self._decoder.decode(data)
        keys = list(self._keys())
        if len(keys) > 1:  # a paste into a terminal without brackets, or keys of earlier
            return [Key(key.name, key.text, alone=False) for key in keys]
        return keys

    def rest(self) -> list[Key]:
        """The key Escape, if it is the last byte so far."""
        if self._rest != "\x1b":
            return []
        self._rest = ""
        return [Key("escape")]

    def _keys(self) -> Iterator[Key]:
        while self._rest:
            if self._rest.startswith(_PASTE_BEGIN):
                text, end, rest = self._rest.removeprefix(_PASTE_BEGIN).partition(_PASTE_END)
                if not end:
                    return
                self._rest = rest
                yield Key("paste", text, alone=False)
            elif found := _SEQUENCE.match(self._rest):
                self._rest = self._rest[found.end() :]
                if name := _SEQUENCES.get(found[0]):
                    yield Key(name)
            elif _UNFINISHED.fullmatch(self._rest):
                return
            else:
                one, self._rest = self._rest[0], self._rest[1:]
                name = _NAMES.get(one, one if one.isprintable() else "")
                if name:
                    yield Key(name, one if one.isprintable() else "")


class Keyboard:
    """The terminal at stdin, read key by key. Ctrl-C and Ctrl-Z stay signals."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno()
        self._parser = KeyParser()
        self._before: list[Any] = []
        self._read: Callable[[], None] = lambda: None

    @contextmanager
    def reading(self, on_key: Callable[[Key], None]) -> Iterator[None]:
        """Call `on_key` for each key."""
        loop = asyncio.get_running_loop()
        self._before = termios.tcgetattr(self._fd)

        def give(keys: list[Key]) -> None:
            for key in keys:
                on_key(key)

        def read() -> None:
            try:
                data = os.read(self._fd, 4096)
            except OSError:
                data = b""
            if not data:  # the terminal is gone, and SIGHUP ends the command
                loop.remove_reader(self._fd)
            give(self._parser.feed(data))
            loop.call_later(_ESCAPE_AFTER, lambda: give(self._parser.rest()))

        self._read = read
        self._take()
        try:
            yield
        finally:
            self._give_back()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal to another program."""
        self._give_back()
        try:
            yield
        finally:
            self._take()

    def _take(self) -> None:
        """Switch lines and echo off, and bracketed paste on."""
        asyncio.get_running_loop().add_reader(self._fd, self._read)
        tty.setcbreak(self._fd, termios.TCSADRAIN)
        sys.stdout.write(PASTE_ON)
        sys.stdout.flush()

    def _give_back(self) -> None:
        """Set the modes that the terminal had before."""
        asyncio.get_running_loop().remove_reader(self._fd)
        with contextlib.suppress(OSError, termios.error):  # the terminal may be gone
            sys.stdout.write(PASTE_OFF)
            sys.stdout.flush()
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def discard(self) -> None:
        """Forget the keys that were pressed and are not read yet."""
        termios.tcflush(self._fd, termios.TCIFLUSH)
