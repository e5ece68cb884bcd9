"""The content of a stream: its numbered texts, their times, and their faults."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

BEGINS = b"~"
NUMBER = re.compile(rb"~(\d{8})@\d{18}~")
MARK = re.compile(rb"~(\d{8})@(\d{18})~")
STATUS = re.compile(rb'^data:.{0,200}?"(?:statusUpdate|status-update)".*$', re.MULTILINE)
EVENT_ID = re.compile(rb"^id: ?(\d+)", re.MULTILINE)


class Refused(Exception):
    """The server did not answer with a stream."""


class Mark(NamedTuple):
    """A text: its number, and the monotonic nanoseconds of its writing and its receipt."""

    number: int
    written: int
    received: int


class Faults(NamedTuple):
    lost: int
    doubled: int
    disordered: int


class Transcript:
    """The answer to one request, from the input of its socket: pairs (monotonic ns, bytes)."""

    def __init__(self, received: Sequence[tuple[int, bytes]]) -> None:
        self._times = [time for time, _ in received]
        self._ends = list(accumulate(len(data) for _, data in received))
        raw = b"".join(data for _, data in received)
        head, _, _ = raw.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200") or b"chunked" not in head.lower():
            raise Refused(raw[:500].decode(errors="replace"))
        self._raw_starts: list[int] = []
        self._starts: list[int] = []
        self.body, self.ended = self._unchunked(raw, len(head) + 4)

    def _unchunked(self, raw: bytes, at: int) -> tuple[bytes, bool]:
        pieces, length, ended = [], 0, False
        while (line_end := raw.find(b"\r\n", at)) >= 0 and not ended:
            size = int(raw[at:line_end], 16)
            ended = size == 0
            begin = line_end + 2
            pieces.append(raw[begin : begin + size])
            self._raw_starts.append(begin)
            self._starts.append(length)
            length += len(pieces[-1])
            at = begin + size + 2
        return b"".join(pieces), ended

    def received_at(self, end: int) -> int:
        """The time when the body was complete up to `end`."""
        piece = bisect_left(self._starts, end) - 1
        raw_end = self._raw_starts[piece] + end - self._starts[piece]
        return self._times[bisect_left(self._ends, raw_end)]

    def marks(self) -> list[Mark]:
        return [
            Mark(int(found[1]), int(found[2]), self.received_at(found.end()))
            for found in MARK.finditer(blanked(self.body))
        ]

    def span(self) -> tuple[int, int]:
        """The times when the first text was written, and when the last one was received."""
        texts = blanked(self.body)
        first = MARK.search(texts)
        if not first:
            raise Refused("no text came")
        return int(first[2]), self.received_at(texts.rfind(BEGINS) + 1)

    def faults(self, events: int) -> Faults:
        """The deviations from the texts 0, 1, … in this order, `events` of them."""
        return faults(self.body, events)

    def first_frame_at(self) -> int:
        return self.received_at(self.body.index(b"data:") + 5)

    def task_id(self) -> str:
        """The id of the stream's first task."""
        line = next(line for line in self.body.splitlines() if line.startswith(b"data:"))
        result: dict[str, Any] = json.loads(line[5:])["result"]
        return str(result["task"]["id"])

    def whole_frames(self) -> bytes:
        """The body without an incomplete last event."""
        end = max(self.body.rfind(blank) + len(blank) for blank in (b"\n\n", b"\r\n\r\n"))
        return self.body[:end]

    def last_event_id(self) -> int | None:
        ids = EVENT_ID.findall(self.whole_frames())
        return int(ids[-1]) if ids else None


def blanked(body: bytes) -> bytes:
    """`body` with blanks for status updates, because the last one repeats texts."""
    return STATUS.sub(lambda found: b" " * len(found[0]), body)


def faults(body: bytes, events: int) -> Faults:
    digits = b"".join(NUMBER.findall(blanked(body)))
    if digits == expected(events):  # the usual case, a thousand times as fast as the check below
        return Faults(0, 0, 0)
    numbers = [int(digits[at : at + 8]) for at in range(0, len(digits), 8)]
    lost = len(set(range(events)).difference(numbers))
    doubled = len(numbers) - (events - lost)  # or never written at all
    return Faults(lost, doubled, sum(after < before for before, after in pairwise(numbers)))


@lru_cache(maxsize=8)
def expected(events: int) -> bytes:
    return b"".join(b"%08d" % number for number in range(events))
