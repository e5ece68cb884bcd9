"""The members of a tool's input by the meaning of their names, which CLIs spell differently."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from bridge.task.rules.commands import line_of

MOST_MEMBERS = 1_000  # of an input that is looked at in order; more would take too long
COMMANDS = frozenset(
    "command cmd script commands commandline shellcommand bashcommand shellscript".split()
)
PROGRAMS = frozenset("program executable binary exe bin file path tool app".split())
ARGUMENTS = frozenset("args arguments argv arg parameters params".split())
PATHS = frozenset(
    "filepath path paths notebookpath absolutepath abspath relativepath targetfile oldpath newpath "
    "movepath file files filename".split()
)
URLS = frozenset("url uri href".split())
FOLDERS = frozenset(
    "cwd workdir workingdirectory directory dir dirpath dirname folder basedir basepath "
    "rootdir".split()
)
REMARKS = frozenset(
    "description title reason explanation justification kind type timeout timeoutms "
    "runinbackground isbackground".split()
)
CONTENTS = frozenset(
    "content contents text diff unifieddiff oldstring newstring oldstr newstr oldtext "
    "newtext newsource filetext replaceall".split()
)
_KNOWN = COMMANDS | PATHS | FOLDERS | REMARKS | CONTENTS
_DEPTH = 6  # levels of containers in an input; an `allow` never matches a deeper one
_MOST_MEMBERS = 2_000  # of an input
_MOST_WORDS = 2_000  # of a command that is a list
_MOST_TEXT = 256 * 1024  # characters of values that patterns are compared with
_MOST_JSON = 16 * 1024  # characters of a text that is read as JSON


def plain(name: str) -> str:
    """The name without case, hyphens and underscores: `filePath` and `file_path` are one name."""
    return name.replace("_", "").replace("-", "").lower()


def input_of(subject: Mapping[str, Any]) -> Any:
    """The input in the subject of a question. A program of one's own may give the members of the
    action without a name and an input around them."""
    if "input" in subject:
        return subject["input"]
    return {name: one for name, one in subject.items() if name not in _AROUND} or None


_AROUND = ("toolCallId", "name", "tool", "kind", "title", "note", "paths", "changes")


def first_of(names: frozenset[str], given: Any) -> str | None:
    """The first text in an input whose member has one of the `names`, by the order of the alphabet.
    A list of words is a command line."""
    few = isinstance(given, Mapping) and len(given) <= MOST_MEMBERS
    members = given.items() if few else ()
    for name, value in sorted(members, key=lambda member: str(member[0])):
        if plain(name) not in names or not value:
            continue
        if isinstance(value, str):
            return value
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return "\n".join(value) if plain(name).endswith("s") else line_of(value)
    return None


def command_lines(given: Mapping[str, Any]) -> Iterator[str]:
    """The command lines of an object whose program and arguments are different members."""
    programs = [
        value
        for name, value in given.items()
        if isinstance(value, str) and plain(name) in COMMANDS | PROGRAMS
    ]
    for name, value in given.items():
        if programs and plain(name) in ARGUMENTS:
            yield from (f"{program} {one}" for program in programs for one in _lines(value))


def _lines(arguments: Any) -> Sequence[str]:
    if isinstance(arguments, str):
        return (arguments,)
    words = arguments if isinstance(arguments, list) else ()
    return (line_of(list(map(str, words))), " ".join(map(str, words))) if words else ()


def first_members(given: Any) -> tuple[list[tuple[str, Any]], bool]:
    """The members of an input that patterns are compared with, and whether it has more."""
    found: list[tuple[str, Any]] = []
    left = _MOST_TEXT
    members = _members(given)
    for name, value in islice(members, _MOST_MEMBERS):
        is_read = isinstance(value, str) and name not in REMARKS | CONTENTS
        one = value[:left] if is_read else value
        left -= len(value) if is_read else 0
        if not (one in (None, False) or (isinstance(one, str) and not one.strip())):
            found.append((name, one))
        if left < 0:
            return found, True
    return found, any(one is ... for _, one in found) or next(members, None) is not None


def _members(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The values in an input with the names of their members. A list of words is a command."""
    match value:
        case list() | dict() if depth >= _DEPTH:
            yield "", ...
        case list():
            yield from _of_list(value, name, depth + 1)
        case dict():
            yield from (("command", line) for line in command_lines(value))
            for key, one in value.items():
                if name == "changes":  # codex lists changes by path
                    yield "path", key
                elif "/" in key or " " in key:
                    yield "", key
                yield from _members(one, plain(key), depth + 1)
        case _:
            yield name, value
            if isinstance(value, str) and name not in REMARKS | CONTENTS:
                yield from _members(_json(value), name, depth + 1)


def _of_list(value: list[Any], name: str, depth: int) -> Iterator[tuple[str, Any]]:
    if name in COMMANDS - {"commands"} and not any(map(_has_members, value)):
        yield from _line(name, list(_words(value)))
        return
    if value and name not in _KNOWN and all(isinstance(one, str) for one in value):
        yield from _line(name, value)
        if " " in value:  # keys of a terminal
            yield name, "".join(value[:_MOST_WORDS])
    for one in value:
        is_line = name == "commands" and isinstance(one, list)
        yield from _members(one, "command" if is_line else name, depth)


def _json(text: str) -> Any:
    """The object or list that a text is, or None."""
    if text[:1] not in ("{", "[") or len(text) > _MOST_JSON:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list | dict) else None


def _has_members(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(map(_has_members, value)))


def _words(value: Any) -> Iterator[str]:
    """The words of a list, also of lists in it and of numbers."""
    for one in value:
        if isinstance(one, list):
            yield from _words(one)
        elif one is not None:
            yield str(one)


def _line(name: str, words: list[str]) -> Iterator[tuple[str, Any]]:
    """A list of words as a command."""
    yield name, line_of(words[:_MOST_WORDS])
    if len(words) > _MOST_WORDS:
        yield "", ...
