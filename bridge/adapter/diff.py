"""A change to a text, for people and for `patch`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile


def unified_diff(path: str, old: str, new: str) -> str:
    """A unified diff in one hunk, from the first line that differs to the last."""
    if old == new:
        return ""
    before, after = old.splitlines(True), new.splitlines(True)
    head = _same(before, after)
    tail = _same(before[head:][::-1], after[head:][::-1])
    first, context = max(head - 3, 0), min(tail, 3)
    gone = before[head : len(before) - tail]
    come = after[head : len(after) - tail]
    around = len(before[first:head]) + context
    lines = [f"--- {path if old else '/dev/null'}\n", f"+++ {path if new else '/dev/null'}\n"]
    spans = (_span(first, len(gone) + around), _span(first, len(come) + around))
    lines.append(f"@@ -{spans[0]} +{spans[1]} @@\n")
    end = len(before) - tail
    marked = [(" ", before[first:head]), ("-", gone), ("+", come)]
    for mark, some in (*marked, (" ", before[end : end + context])):
        lines += [f"{mark}{_whole(line)}" for line in some]
    return "".join(lines)


def _span(first: int, length: int) -> str:
    return f"{first + 1 if length else first},{length}"


def _whole(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _same(left: Sequence[str], right: Sequence[str]) -> int:
    """How many lines both begin with."""
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))
    )
