"""Shell commands as text: whether a command is plain, and which other commands it could run.

This module does not parse shell language. `is_plain` rejects text whose meaning depends on such a
parser; `readings` returns more commands than a shell would run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

_SPECIAL = re.compile(r"[;&|<>()`$\n\r{}\\*?\[\]]")
"""Characters with which a shell runs another command, expands a word or continues a line."""
_AT_START = re.compile(r"(?:^|\s)[#!~=%^]|[=:]~")
"""Comments, history, home folders, jobs and zsh's `=command`, at the start of a word."""
_UPWARDS = re.compile(r"(?:^|[\s/=:'\"])\.\.(?:[/\s'\"]|$)")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")
BETWEEN = re.compile(r"&&|\|\||\|&|[;&|\n\r(){}`]|\$\(")
REDIRECTION = re.compile(r"(?:(?<!\d)\d++|&)?(?:<<<|<<-?|<>|>>|>\||[<>])&?\s*\S*")
_SPACE = re.compile(r"\$\{?IFS\}?")
SHELLS = frozenset("sh ash bash dash ksh mksh rbash yash zsh fish".split())
_SYSTEM = frozenset(
    "/bin /usr/bin /usr/local/bin /opt/homebrew/bin /run/current-system/sw/bin".split()
)
"""Folders in which no agent can put a program with the name of a shell."""
RUNS = re.compile("-[eilux]*c")
"""Options of a shell, after which its next argument is the command and the only one."""
WRAPPERS = frozenset(
    "builtin bundle bunx busybox bwrap cgexec choom chroot chrt cmd command conda coproc direnv "
    "dbus-run-session doas env eval exec expect fakeroot find firejail flock gdb hatch ionice "
    "linux32 linux64 ltrace mise nice nix-shell nohup npx nsenter numactl parallel pdm pkexec pnpx "
    "poetry powershell prlimit proxychains pwsh rlwrap runcon runuser screen script setarch "
    "setpriv setsid sg ssh stdbuf strace su sudo systemd-inhibit systemd-run taskset time timeout "
    "tmux toybox torsocks unbuffer unshare uv uvx valgrind watch xargs "
    "if then elif else while until do !".split()
)
_EVALUATORS = SHELLS | frozenset(
    "cmd eval expect nix-shell powershell pwsh screen script sg ssh su tmux trap watch".split()
)
"""Programs whose arguments may be commands."""
_DEPTH = 2  # levels of commands in commands
LONGEST = 16 * 1024  # characters of a command; the words of a longer one would take too long
SUFFIXES = 40  # words of a wrapper's command line that may be where its command begins


def is_plain(command: str, pattern: str) -> bool:
    """Whether `command` is one program with literal arguments. An assignment or a wrapper before
    the program must stand in `pattern` literally."""
    if len(command) > LONGEST:
        return False
    if not command.replace("\t", " ").isprintable():  # a shell splits words at fewer kinds of space
        return False
    if _SPECIAL.search(command) or _AT_START.search(command):
        return False
    if _UPWARDS.search(command) and not _UPWARDS.search(pattern):
        return False
    try:
        shlex.split(command)
    except ValueError:  # an open quotation mark
        return False
    return _begins_as(command.split(), pattern.split())


def _begins_as(words: Sequence[str], wanted: Sequence[str]) -> bool:
    for number, word in enumerate(words):
        if not (ASSIGNMENT.match(word) or program_name(word) in WRAPPERS | SHELLS):
            return True
        if list(wanted[number : number + 1]) != [word]:
            return False
    return True


def line_of(words: Sequence[str]) -> str:
    """The command line of an argument list; for `bash -lc …` and the like, the inner command. Only
    the name of a shell, or its path in a folder of the system, is one: an agent can give any name
    to a program of its own."""
    if len(words) == 3 and RUNS.fullmatch(words[1]):
        folder, _, name = words[0].rpartition("/")
        if name in SHELLS and (folder in _SYSTEM or name == words[0]):
            return words[2]
    return shlex.join(words)


def readings(command: str) -> Iterator[str]:
    """The commands that `command` may run, in all spellings that a pattern may have: as written,
    without quotation marks, assignments, redirections and wrappers, and with the program's name
    instead of its path."""
    yield from _readings(command, 0, set())


def _readings(command: str, depth: int, seen: set[str]) -> Iterator[str]:
    if command in seen:  # `eval eval …` repeats the same commands
        return
    seen.add(command)
    command = command.replace("\\\n", "").replace("$'", "'").replace('$"', '"')
    for piece in dict.fromkeys((command, *BETWEEN.split(command))):
        yield " ".join(piece.split())
        for spelling in dict.fromkeys((piece, REDIRECTION.sub(" ", piece))):
            yield from _of_words(split_words(_SPACE.sub(" ", spelling)), depth, seen)


def _of_words(words: list[str], depth: int, seen: set[str]) -> Iterator[str]:
    words = _without_assignments(words)
    # The options of a wrapper may have values: its command may begin at any of its words.
    wrapped = bool(words) and program_name(words[0]) in WRAPPERS
    for start in range(min(len(words), SUFFIXES) if wrapped else min(len(words), 1)):
        rest = _without_assignments(words[start:])
        if not rest:
            continue
        yield " ".join(rest)
        yield " ".join([program_name(rest[0]), *rest[1:]])
        if program_name(rest[0]) in _EVALUATORS and depth < _DEPTH:
            for text in (*rest[1:SUFFIXES], " ".join(rest[1:])):
                yield from _readings(text, depth + 1, seen)


def _without_assignments(words: list[str]) -> list[str]:
    first = next((n for n, word in enumerate(words) if not ASSIGNMENT.match(word)), len(words))
    return words[first:]


def split_words(text: str) -> list[str]:
    try:
        if len(text) <= LONGEST:
            return shlex.split(text)
    except ValueError:  # cut inside of quotation marks
        pass
    return re.sub(r"['\"\\]", "", text).split()


def program_name(word: str) -> str:
    """The name of a program without its folder, also as Windows writes it."""
    return word.replace("\\", "/").rpartition("/")[2].removesuffix(".exe")
