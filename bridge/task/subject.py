"""The subject of a question: an action that an agent wants to do, as the text for a person.

The text names the whole action: each member of the input, the change of each file, and the words
that came with the request. No member can hide another one. A value that is too long is cut, and
says how many characters are missing; the room is shared so that short values are never cut. The
further lines of a value are indented, so that no value looks like another member.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import orjson

from bridge.task.events import Question
from bridge.task.inputs import (
    COMMANDS,
    CONTENTS,
    MOST_MEMBERS,
    PATHS,
    URLS,
    input_of,
    plain,
)
from bridge.task.text import MESSAGE_CHARS, exact

NAME_CHARS = 100
OPTION_CHARS = 400  # characters of the name of an option
LEAST = 40  # characters of a value that are always shown
_MARK = 48  # characters of the words that a cut value ends with
_INDENT = "  "
CONTEXT = 3  # unchanged lines around a change
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,\d+)? \+(\d{1,9})(?:,\d+)? @@")
_COMPARED = 64 * 1024  # characters of a change that may repeat a value of the input


@dataclass(slots=True)
class _Piece:
    """A part of the text. `head` precedes the value. `rank`: less is more important. `raw`: the
    lines of the value have numbers and marks of their own, as those of a change."""

    head: str
    value: str
    rank: int = 1
    raw: bool = False

    def size(self, most: int | None = None) -> int:
        """The characters of the piece if its value has at most `most`."""
        length = len(self.value)
        lines = 0 if self.raw else self.value.count("\n", 0, most) * len(_INDENT)
        cut = most is not None and length > most
        return len(self.head) + lines + (most + _MARK if cut and most else length) + 4

    def text(self, most: int) -> str:
        if self.raw:
            return _first_lines(self.value, most)
        shown = exact(self.value, most)
        if "\n" not in shown:
            return f"{self.head}{shown}"
        first, lines = ("\n", shown) if self.head.endswith(": ") else ("", shown)
        return f"{self.head.rstrip()}{first}" + _indented(lines, all_lines=bool(first))


def text_of(subject: Mapping[str, Any], limit: int = MESSAGE_CHARS) -> str:
    """The text of a subject (docs/extension.md) in at most about `limit` characters."""
    pieces, missing = _pieces(subject)
    fitting, least = set(), 0
    for piece in sorted(pieces, key=lambda one: (one.rank, one.size())):
        least += piece.size(LEAST)
        if least <= limit - 2 * _MARK or piece.rank == 0:
            fitting.add(id(piece))
    shown = [piece for piece in pieces if id(piece) in fitting]
    missing += len(pieces) - len(shown)
    most = _fair(shown, limit - 2 * _MARK)
    lines = [piece.text(most) for piece in shown]
    if missing:
        number = f"{missing}" if missing < MOST_MEMBERS else f"{MOST_MEMBERS} or"
        lines.append(f"… ({number} more members are not shown)")
    return "\n".join(line.rstrip("\n") for line in lines)


def question_text(asked: Question, limit: int) -> str:
    """The text of a question in at most `limit` characters. No member of an action is hidden behind
    a long one."""
    subject = asked.subject or {}
    if len(asked.text) > limit and asked.text == text_of(subject):
        return text_of(subject, limit)
    return exact(asked.text, limit)


def how_to_answer(asked: Question) -> str:
    """The end of the text of a question, for a model as well as for a person: the meanings of the
    options, and their names."""
    return "\n".join(filter(None, (*_meanings(asked), _names(asked))))


def _meanings(asked: Question) -> Iterator[str]:
    """The options with a description."""
    for option in asked.options:
        if option.description:
            text = f"{option.name}: {option.description}"
            yield "- " + exact(text, 2 * OPTION_CHARS).replace("\n", "\n  ")


def _names(asked: Question) -> str:
    if not asked.options:
        return ""
    names = ", ".join(f'"{exact(option.name, OPTION_CHARS)}"' for option in asked.options)
    if asked.multiple:
        return f"Reply with one or more of these, separated by commas: {names}."
    free = " Or reply in your own words." if asked.free_text else ""
    return f"Reply with exactly one of: {names}.{free}"


def _pieces(subject: Mapping[str, Any]) -> tuple[list[_Piece], int]:
    """All parts, the title first, and the number of those that were not looked at."""
    title, note = str(subject.get("title") or ""), str(subject.get("note") or "")
    found = subject.get("changes")
    changes = [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
    pieces = [_Piece("", title, rank=0)]
    given, paths = input_of(subject), subject.get("paths")
    members = chain(
        leaves(given) if given not in (None, {}, []) else (),
        leaves(paths, "path", "path") if paths else (),
    )
    found = list(islice(members, MOST_MEMBERS + 1))
    shown = _covered(title, changes)
    pieces += [
        _Piece(f"{name}: ", value.rstrip("\n") or "(blank)", rank=1 if last in _CHIEF else 2)
        for name, last, value in found[:MOST_MEMBERS]
        if _identity(last, value) not in shown
    ]
    pieces.sort(key=lambda piece: piece.rank and _is_long(piece.value))  # stable
    pieces += [_Piece("", numbered(change), raw=True) for change in changes]
    known = note in title or any(note == value for _, _, value in found)
    pieces += [_Piece("", f"({note})")] if note and not known else []
    return pieces, MOST_MEMBERS if len(found) > MOST_MEMBERS else 0


def _is_long(value: str) -> bool:
    return len(value) > 200 or "\n" in value


_CHIEF = COMMANDS | PATHS | URLS
_DIFFS = ("diff", "unifieddiff", "patch")


def leaves(value: Any, name: str = "", last: str = "") -> Iterator[tuple[str, str, str]]:
    """Each value in an input as text, with its whole name and the plain name of its last member.
    The order of members means nothing: the same action always looks the same."""
    match value:
        case dict() if value:
            names = list(islice(map(str, value), MOST_MEMBERS + 1))
            for key in sorted(names, key=lambda key: (plain(key) not in _CHIEF, key)):
                yield from leaves(value[key], f"{name}.{key}" if name else key, plain(key))
        case list() | tuple() if value:
            for number, one in enumerate(value):
                yield from leaves(one, f"{name}[{number}]" if len(value) > 1 else name, last)
        case _:
            yield _name(name), last, _as_text(value)


def _name(name: str) -> str:
    shown = exact(name or "input", NAME_CHARS)
    return shown.replace("\n", "\N{REPLACEMENT CHARACTER}").replace("\t", " ")


def _as_text(value: Any) -> str:
    match value:
        case str():
            return value or "(empty)"
        case dict() | list() | tuple():  # an empty one
            return "(empty)"
        case None | bool() | int() | float():
            return orjson.dumps(value).decode() if abs(value or 0) < 2**63 else str(value)
    return str(value)


def _kind(name: str) -> str:
    """Names with the same meaning have one kind: the same value under both is shown once."""
    kinds = {"command": COMMANDS, "path": PATHS, "url": URLS, "content": CONTENTS | {"patch"}}
    return next((kind for kind, names in kinds.items() if name in names), name)


def _covered(title: str, changes: Sequence[str]) -> set[tuple[str, str]]:
    """Values that other parts show completely: the end of the title, and the texts of changes."""
    covered: set[tuple[str, str]] = set()
    _, colon, end = title.partition(": ")
    if colon and "\n" not in end:
        covered |= {(kind, end) for kind in ("command", "path", "url", "title")}
    for change in changes:
        if len(change) > _COMPARED:
            continue
        lines = change.split("\n")
        heads, body = _parted(lines)
        covered |= {("path", head[4:]) for head in heads if head[:4] in ("--- ", "+++ ")}
        covered.add(("content", "\n".join(body).rstrip("\n")))
        covered |= {("content", change.rstrip("\n")), ("content", _hunks_of(change))}
        for mark in "-+":
            side = [line[1:] for line in body if line[:1] in (" ", mark)]
            covered.add(("content", "\n".join(side).rstrip("\n")))
    return covered - {("content", "")}


def _identity(last: str, value: str) -> tuple[str, str]:
    """The kind and the text of a value, as _covered() has them."""
    if last in _DIFFS and len(value) <= _COMPARED:
        return ("content", _hunks_of(value) or value.rstrip("\n"))
    return (_kind(last), value.rstrip("\n"))


def _hunks_of(diff: str) -> str:
    """The files and the hunks of a diff; "" if its header says anything else."""
    heads, body = _parted(diff.split("\n"))
    files = {head[4:] for head in heads if head[:4] in ("--- ", "+++ ")} - {"/dev/null"}
    known = {"", *(f"Index: {file}" for file in files)}
    others = [head for head in heads if head[:4] not in ("--- ", "+++ ")]
    if any(head not in known and head.strip("=") for head in others):
        return ""
    return "\n".join([*sorted(files), *body]).rstrip("\n")


def _parted(lines: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The header and the hunks of a unified diff."""
    start = next((number for number, line in enumerate(lines) if line[:2] == "@@"), len(lines))
    return lines[:start], lines[start:]


def numbered(diff: str) -> str:
    """A unified diff with the number of each line, and CONTEXT lines around each change. Numbers of
    removed lines are those of the old text. Any other text stays, with an indent."""
    heads, body = _parted(diff[:_COMPARED].rstrip("\n").split("\n"))
    files = [head[4:] for head in heads if head[:4] in ("--- ", "+++ ")]
    others = [f"{_INDENT}{head}" for head in heads if head[:4] not in ("--- ", "+++ ") and head]
    left = diff.count("\n", _COMPARED)
    cut = [_more_lines(left)] if left else []
    names = " → ".join(one for one in dict.fromkeys(files) if one != "/dev/null")
    if not body:
        return "\n".join([*([names] if names else ()), *others, *cut])
    signs = [line[:1] for line in body]
    counts = f"+{signs.count('+')} \N{MINUS SIGN}{signs.count('-')}" + (" and more" if cut else "")
    deleted = "deleted, " if files[1:] == ["/dev/null"] else ""
    return "\n".join([f"{names} ({deleted}{counts})".lstrip(), *others, *_numbered(body), *cut])


def _numbered(body: Sequence[str]) -> Iterator[str]:
    """The lines of hunks. Context that is farther away than CONTEXT lines is counted only."""
    changed = [number for number, line in enumerate(body) if line[:1] in ("+", "-")]
    near = {one + step for one in changed for step in range(-CONTEXT, CONTEXT + 1)}
    old = new = skipped = 0
    for place, line in enumerate(body):
        mark, text = line[:1] or " ", line[1:]
        if skipped and (place in near or mark == "@"):
            yield _unchanged(skipped)
            skipped = 0
        if begins := _HUNK.match(line):
            old, new = int(begins[1]), int(begins[2])
            yield from (f"{_INDENT}…",) if place else ()
        elif mark == " " and place not in near:
            skipped += 1
        elif mark in "+- ":
            yield f"{old if mark == '-' else new:>5} {mark}{text}"
        else:
            yield f"{_INDENT}{line}"
        old, new = old + (mark in "- "), new + (mark in "+ ")
    if skipped:
        yield _unchanged(skipped)


def _unchanged(number: int) -> str:
    return f"{_INDENT}… {number} unchanged line{'s' if number > 1 else ''}"


def _first_lines(value: str, most: int) -> str:
    """The lines of a change that fit, and the number of the others."""
    if len(value) <= most:
        return exact(value, most)
    whole = value.rfind("\n", 0, most)
    if whole < 0:
        return exact(value, most)
    return f"{exact(value[:whole], most)}\n{_more_lines(value.count(chr(10), whole))}"


def _more_lines(number: int) -> str:
    return f"{_INDENT}… ({number} more lines are not shown)"


def _fair(pieces: Sequence[_Piece], room: int) -> int:
    """The most characters of a value, so that all pieces fit into the room."""
    low, high = LEAST, max(LEAST, min(room, max(len(piece.value) for piece in pieces)))
    while low < high:
        middle = (low + high + 1) // 2
        fits = sum(piece.size(middle) for piece in pieces) <= room
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _indented(text: str, *, all_lines: bool) -> str:
    first, *rest = text.split("\n")
    begin = _INDENT if all_lines else ""
    return "\n".join([begin + first, *(_INDENT + line for line in rest)])
