"""Shell commands as text: which commands a person must decide about.

`readings` of commands.py are commands that a shell runs. The doubts are commands that a
program may run if it takes its arguments, its input or its variables for one (`docker exec web rm
x`), and those that only a shell knows (`$X`, `r?`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from bridge.task.rules.commands import (
    ASSIGNMENT,
    BETWEEN,
    REDIRECTION,
    RUNS,
    SHELLS,
    SUFFIXES,
    WRAPPERS,
    program_name,
    readings,
    split_words,
)

OPEN = "\0"
"""Stands in a doubt for a text that is not known."""
_EXPANSION = re.compile(
    r"\$\([^()]*+\)|`[^`]*+`|\$\{[^{}]*+\}|\$'[^']*+'|\$\w+|\$[@*#?!$-]"
    r"|\{[^{}\s,]*+,[^{}\s]*+\}|\{[\w-]++\.\.[^{}\s]*+\}|[*?]+|\[[^\s\[\]]++\]"
)
_NESTED = 3  # levels of expansions in expansions
_VALUE = re.compile(r"[-+\d]|\w+=")
"""The beginning of an option or a value of a wrapper, behind which its command follows."""
_RUNS_NEXT = re.compile(r"-(?:exec|ok)(?:dir)?")
_MARKS = "!:+;@"  # with which editors and git begin a command


def doubts(command: str) -> Iterator[str]:
    """The commands that `command` could run besides its readings. OPEN stands for their unknown
    rest."""
    masked = command
    for _ in range(_NESTED):
        masked = _EXPANSION.sub(OPEN, masked)
    if OPEN in masked:
        for piece in filter(str.strip, BETWEEN.split(masked)):
            yield from _open(_words(piece))
    for piece in filter(str.strip, BETWEEN.split(command)):
        words = split_words(piece)
        yield from _of_arguments(words)
        if _reads_commands(_words(piece)):
            yield OPEN


def _reads_commands(words: Sequence[str]) -> bool:
    """Whether the words are a shell that reads commands from its input."""
    for place in _places(words):
        if program_name(words[place]) in SHELLS:
            options = words[place + 1 :]
            return all(one[:1] in "-+" for one in options) and not any(map(RUNS.match, options))
    return False


def _words(piece: str) -> list[str]:
    return split_words(REDIRECTION.sub(" ", piece))


def _places(words: Sequence[str]) -> Iterator[int]:
    """The words that a shell or a wrapper takes for the name of a program."""
    wraps = True
    for place, word in enumerate(words[:SUFFIXES]):
        before = words[place - 1] if place else ""
        if wraps or _RUNS_NEXT.fullmatch(before):
            yield place
        is_value = place > 0 and before.startswith("-")
        wraps = wraps and (program_name(word) in WRAPPERS or bool(_VALUE.match(word)) or is_value)


def _open(words: Sequence[str]) -> Iterator[str]:
    """The commands whose program or arguments are not known."""
    for place in _places(words):
        rest = words[place:]
        if OPEN in " ".join(rest) and not ASSIGNMENT.match(rest[0]):
            yield " ".join(rest)
            yield " ".join([program_name(rest[0]), *rest[1:]])
        if program_name(rest[0]) in SHELLS:
            yield from (one for one in rest[1:] if one.startswith(OPEN))


def _of_arguments(words: Sequence[str]) -> Iterator[str]:
    """Each argument as the beginning of a command, and the commands within one."""
    for place, word in enumerate(words[:SUFFIXES]):
        if place:
            yield " ".join([program_name(word), *words[place + 1 :]])
        for text in dict.fromkeys((word, _glued(word), *_values(word))):
            if " " in text:
                yield from readings(text.lstrip(_MARKS))


def _glued(word: str) -> str:
    """The value of an option that has it without a space: `-crm x`."""
    return word[2:] if word.startswith("-") else ""


def _values(word: str) -> tuple[str, str]:
    """Of a variable or an option: behind the first `=` and behind the last one."""
    return word.partition("=")[2], word.rpartition("=")[2]


def could_be(text: str, pattern: str) -> bool:
    """Whether the pattern matches the text, or could match it with another text for OPEN."""
    known, is_open, _ = text.partition(OPEN)
    if not is_open:
        return fnmatchcase(text, pattern)
    head = re.split(r"[*\[]", pattern, maxsplit=1)[0]
    both = min(len(known), len(head))
    return fnmatchcase(known[:both], head[:both]) and (both == len(known) or head != pattern)
