"""A change to a text, for people and for `patch`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Any

from bridge.adapter.fields import as_dict, as_list, as_word
from bridge.task.inputs import PATHS, first_of, plain

CONTEXT = 3  # lines around a change
_COMPARED = 10_000  # pairs of lines; the time of the comparison grows faster than their number
WRITES = re.compile("write|create|edit|replace|save", re.IGNORECASE)
"""Names of tools that write a whole file."""
_PAIRS = (("oldstring", "newstring"), ("oldstr", "newstr"), ("oldtext", "newtext"))
_WHOLE = ("content", "contents", "filetext", "newsource")
_DIFFS = ("diff", "unifieddiff", "patch")
_LINE = re.compile(r"[ +\-@\\]|$|diff |index |Index: |={3}|(?:new|old|deleted|create) file")


def unified_diff(
    path: str, old: str, new: str, context: int = CONTEXT, *, part: bool = False
) -> str:
    """A unified diff in one hunk, from the first line that differs to the last. `part`: the texts
    are parts of the file, so that it stays if the new one is empty."""
    if old == new:
        return ""
    path = path.replace("\n", "\N{REPLACEMENT CHARACTER}")
    ends = part and old[-1:] != "\n" != new[-1:]  # the parts end within a line
    before, after = _lines(old, ends=ends), _lines(new, ends=ends)
    head = _same(before, after)
    tail = _same(before[head:][::-1], after[head:][::-1])
    first, below = max(head - context, 0), min(tail, context)
    gone = before[head : len(before) - tail]
    come = after[head : len(after) - tail]
    around = len(before[first:head]) + below
    files = (path if old else "/dev/null", path if new or part else "/dev/null")
    lines = [f"--- {files[0]}\n", f"+++ {files[1]}\n"]
    spans = (_span(first, len(gone) + around), _span(first, len(come) + around))
    lines.append(f"@@ -{spans[0]} +{spans[1]} @@\n")
    end = len(before) - tail
    between = _between(gone, come)
    for mark, some in ((" ", before[first:head]), *between, (" ", before[end : end + below])):
        lines += [f"{mark}{_whole(line)}" for line in some]
    return "".join(lines)


def _between(gone: Sequence[str], come: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """The lines of a hunk with their marks. Lines that are in both texts stay, as long as the
    comparison is quick."""
    if len(gone) * len(come) > _COMPARED:
        yield from (("-", gone), ("+", come))
        return
    for kind, i1, i2, j1, j2 in SequenceMatcher(None, gone, come, autojunk=False).get_opcodes():
        if kind == "equal":
            yield " ", gone[i1:i2]
        else:
            yield from (("-", gone[i1:i2]), ("+", come[j1:j2]))


def changes_in(given: Any, *, writes: bool) -> Iterator[str]:
    """The changes that the input of a tool describes, as unified diffs, in the spellings of known
    CLIs. `writes`: its content is that of a whole file. The old content of such a file is unknown:
    it is shown as a new file. An edit begins at line 1, for the same reason."""
    facts = {plain(name): value for name, value in as_dict(given).items()}
    path = first_of(PATHS, given) or ""
    for name in _DIFFS:
        diff = unified(facts.get(name))
        if diff and is_unified(diff):
            yield diff
    edits = [facts, *(_plain_names(one) for one in as_list(facts.get("edits")))]
    for edit in edits:
        for old, new in _PAIRS:
            before, after = as_word(edit.get(old)), as_word(edit.get(new))
            if before is not None and after is not None and path:
                yield unified_diff(path, before, after, context=len(before), part=True)
    for name in _WHOLE if writes and path else ():
        text = as_word(facts.get(name))
        if text:
            yield unified_diff(path, "", text)


def is_unified(diff: str) -> bool:
    """Whether each line is one of a unified diff, so that none looks like other text."""
    return "\n@@" in diff and all(map(_LINE.match, diff.split("\n")))


def unified(diff: Any) -> str:
    """A diff without the header of git."""
    text = diff if isinstance(diff, str) else ""
    start = 0 if text.startswith("--- ") else text.find("\n--- ") + 1
    return text[start:] if text.startswith("--- ", start) else ""


def _plain_names(edit: Any) -> Mapping[str, Any]:
    return {plain(name): value for name, value in as_dict(edit).items()}


def _lines(text: str, *, ends: bool) -> list[str]:
    """The lines with their ends. Only a newline ends a line: `patch` knows no other. `ends`: the
    last one has an end, too."""
    lines = text.split("\n")
    last = f"{lines[-1]}\n" if ends else lines[-1]
    return [f"{line}\n" for line in lines[:-1]] + [last] * bool(lines[-1])


def _span(first: int, length: int) -> str:
    return f"{first + 1 if length else first},{length}"


def _whole(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _same(left: Sequence[str], right: Sequence[str]) -> int:
    """How many lines both begin with."""
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))
    )
