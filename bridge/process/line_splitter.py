"""Lines of a byte stream, with a limit for their length."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LongLine:
    """A line over the limit: its first bytes, and its full length in bytes."""

    head: bytes
    length: int


class LineSplitter:
    """Cuts a byte stream into lines at `\\n` only: U+2028 and \\r may stand inside JSON."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest: list[bytes] = []
        self.length = 0  # of the line that is not complete yet

    def feed(self, data: bytes) -> list[bytes | LongLine]:
        """The lines that `data` completes, in order, without their newlines."""
        *lines, rest = data.split(b"\n")
        complete: list[bytes | LongLine] = []
        if lines and self.length:
            self._keep(lines.pop(0))
            complete.append(self._take())
        limit = self._limit
        complete += [x if len(x) <= limit else LongLine(x[:limit], len(x)) for x in lines]
        if rest:
            self._keep(rest)
        return complete

    def end(self) -> list[bytes | LongLine]:
        """The incomplete line at the end of the stream, if there is one."""
        return [self._take()] if self.length else []

    def _keep(self, data: bytes) -> None:
        room = self._limit - self.length
        if room > 0:
            self._rest.append(data[:room])
        self.length += len(data)

    def _take(self) -> bytes | LongLine:
        line, length = b"".join(self._rest), self.length
        self._rest, self.length = [], 0
        return line if length <= self._limit else LongLine(line, length)
