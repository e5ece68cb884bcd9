"""The members of a tool's input by the meaning of their names, which CLIs spell differently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bridge.task.shell_command import line_of

MOST_MEMBERS = 1_000  # of an input that is looked at in order; more would take too long
COMMANDS = frozenset(
    "command cmd script commands commandline shellcommand bashcommand shellscript".split()
)
PROGRAMS = frozenset("program executable binary exe".split())
ARGUMENTS = frozenset("args arguments argv arg parameters params".split())
PATHS = frozenset(
    "filepath path paths notebookpath absolutepath abspath relativepath targetfile oldpath newpath "
    "movepath file files filename".split()
)
URLS = frozenset("url uri href".split())
FOLDERS = frozenset("cwd workdir workingdirectory directory dir dirpath".split())
REMARKS = frozenset(
    "description title reason explanation justification kind type timeout timeoutms "
    "runinbackground isbackground".split()
)
CONTENTS = frozenset(
    "content contents text diff unifieddiff oldstring newstring oldstr newstr oldtext "
    "newtext newsource filetext replaceall".split()
)


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
