"""The operator's rules for what agents ask to do: `[[rules]]` in CONFIG_FILE.

They save people questions and agents mistakes. They are no boundary: a shell has more spellings for
a command than a pattern can have, and only what an agent asks about comes this way. The boundary
is the sandbox.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal

Decision = Literal["allow", "ask", "deny"]

_COMMANDS = frozenset({"command", "cmd", "script"})
_PATHS = frozenset(
    {"file_path", "filePath", "path", "paths", "notebook_path", "absolute_path", "abs_path"}
)
_SHELL = re.compile(r"[;&|<>()`$\n\r{}]")  # what makes of a command more than one program's
_BETWEEN = re.compile(r"&&|\|\||[;&|\n\r()`]|\$\(")
_ASSIGNMENT = re.compile(r"^(?:\w+=\S*\s+)+")


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of a wish that fits all that is given of `tool`, `command` and `path`, which are
    patterns with `*`, `?` and `[…]`.

    `tool`: the tool's name, or its kind as ACP has it (`edit`, `execute` …). `command`: a shell
    command; to `allow` one it must be a single plain command, while `deny` and `ask` look at each
    one in a line. `path`: a file, after symbolic links, relative to the workspace or absolute;
    `*` is any number of directories, too. To `allow`, all paths of a wish must fit.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}  # it is read from TOML

    decision: Decision
    tool: str | None = None
    command: str | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What an agent asks to do. `paths` are real and absolute."""

    tools: tuple[str, ...]
    commands: tuple[str, ...]
    paths: tuple[str, ...]


def decide(
    rules: Iterable[Rule], subject: Mapping[str, Any], cwd: str, real: Callable[[str], str]
) -> Decision:
    """The strictest of what the rules say, in whatever order they stand; "ask" where none fits.

    `subject` is the one of a question for permission; `real` makes real paths of absolute ones.
    """
    wish = _wish(subject, cwd, real)
    said = {rule.decision for rule in rules if _fits(rule, wish, cwd)}
    return next((one for one in ("deny", "ask", "allow") if one in said), "ask")


def _wish(subject: Mapping[str, Any], cwd: str, real: Callable[[str], str]) -> Wish:
    named = (subject.get("name"), subject.get("kind"))
    found = list(_members(subject.get("input")))
    commands = [text for name, text in found if name in _COMMANDS]
    paths = [real(_below(cwd, text)) for name, text in found if name in _PATHS]
    return Wish(tuple(one for one in named if isinstance(one, str)), tuple(commands), tuple(paths))


def _members(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """The texts in an input with the names of their members; a list of words is a command."""
    match value:
        case str():
            yield name, value
        case list() if name in _COMMANDS and all(isinstance(word, str) for word in value):
            yield name, _line(value)
        case list() if depth < 5:
            for one in value:
                yield from _members(one, name, depth + 1)
        case dict() if depth < 5:
            for key, one in value.items():
                if name == "changes":  # of codex: by path
                    yield "path", key
                yield from _members(one, key, depth + 1)


def _line(words: Sequence[str]) -> str:
    """A command's line; of a shell that is given one (`bash -lc …`), that one."""
    shell = len(words) == 3 and re.fullmatch(r"(?:.*/)?(?:ba|da|z|k)?sh", words[0])
    return words[2] if shell and re.fullmatch(r"-\w*c", words[1]) else shlex.join(words)


def _fits(rule: Rule, wish: Wish, cwd: str) -> bool:
    allows = rule.decision == "allow"
    if rule.tool is not None and not any(fnmatchcase(one, rule.tool) for one in wish.tools):
        return False
    if rule.command is not None and not _command_fits(rule.command, wish.commands, allows):
        return False
    if rule.path is None:
        return True
    pattern = _below(re.sub(r"([*?[])", r"[\1]", cwd), rule.path)
    fit = [fnmatchcase(path, pattern) for path in wish.paths]
    return bool(fit) and (all(fit) if allows else any(fit))


def _command_fits(pattern: str, commands: Sequence[str], allows: bool) -> bool:
    if allows:
        plain = not any(_SHELL.search(command) for command in commands)
        return bool(commands) and plain and all(_same(one, pattern) for one in commands)
    pieces = [piece for command in commands for piece in (command, *_BETWEEN.split(command))]
    return any(_same(piece, pattern) for piece in pieces)


def _same(command: str, pattern: str) -> bool:
    plain = " ".join(command.split())
    return any(fnmatchcase(one, pattern) for one in (plain, _ASSIGNMENT.sub("", plain)))


def _below(cwd: str, path: str) -> str:
    return path if path.startswith("/") else f"{cwd}/{path}"
