"""The operator's rules for permission requests: `[[rules]]` in CONFIG_FILE.

Rules reduce the questions to people and the mistakes of agents. They are not a boundary: a shell
has more spellings for a command than a pattern can have, and rules only see requests that the agent
makes. The boundary is the sandbox.

`deny` and `ask` look for a match in every reading of a request. `allow` needs exactly one reading:
an input that could mean more than the pattern says does not match.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, ClassVar, Literal

from bridge.task.inputs import (
    COMMANDS,
    CONTENTS,
    FOLDERS,
    PATHS,
    REMARKS,
    command_lines,
    input_of,
    plain,
)
from bridge.task.shell_command import is_plain, line_of, readings

Decision = Literal["allow", "ask", "deny"]

_DEPTH = 6  # levels of containers in an input; an `allow` never matches a deeper one
_SUSPECTS = 200  # values of unknown members that are read as commands
_SUSPECT_CHARS = 16 * 1024  # of one of them; a longer one may hide a command
_KNOWN = COMMANDS | PATHS | FOLDERS | REMARKS | CONTENTS
_FILE_NAME = re.compile(r"\S+\.\w{1,10}")


@dataclass(frozen=True, slots=True)
class Rule:
    """A decision for the requests that match each given pattern of `tool`, `command` and `path`.
    Patterns have `*`, `?` and `[…]`; `*` matches any characters, spaces and slashes included.

    `tool`: the tool's name, or its kind as ACP has it (`edit`, `execute` …). `command`: a shell
    command. To `allow` one, it must be one plain command without assignments, expansions or unknown
    members beside it; `deny` and `ask` look at each command of a line, behind assignments and
    wrappers such as `sudo`, too. `path`: a file, after symbolic links, relative to the workspace or
    absolute. To `allow`, all paths of a request must match.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}  # rules are read from TOML

    decision: Decision
    tool: str | None = None
    command: str | None = None
    path: str | None = None


@dataclass(frozen=True)
class Wish:
    """The action that an agent requests. `paths` are real and absolute. `suspects` and `guesses`:
    other values that could be commands or paths. `sure_of_command` and `sure_of_paths`: whether the
    input holds nothing that could change the meaning of the commands or the paths.
    `hides_command` and `hides_paths`: whether the action may have some that the input does not
    show."""

    tools: tuple[str, ...]
    commands: tuple[str, ...]
    suspects: tuple[str, ...]
    paths: tuple[str, ...]
    guesses: tuple[str, ...]
    sure_of_command: bool
    sure_of_paths: bool
    hides_command: bool
    hides_paths: bool

    @cached_property
    def readings(self) -> frozenset[str]:
        """The readings of the commands. It takes time, and only `deny` and `ask` need it."""
        found = (*self.commands, *self.suspects)
        return frozenset(reading for command in found for reading in readings(command))


def decide(
    rules: Iterable[Rule], subject: Mapping[str, Any], cwd: str, real: Callable[[str], str]
) -> Decision:
    """The strictest decision of the rules that match, in any order; "ask" if none matches. An
    `allow` does not count if another rule could match a part that the request does not show.

    `subject`: the subject of a permission request; `real` makes a real path of an absolute one.
    """
    wish = _wish(subject, cwd, real)
    known = list(rules)
    said = {rule.decision for rule in known if _fits(rule, wish, cwd)}
    if any(_may_fit(rule, wish) for rule in known if rule.decision != "allow"):
        said.discard("allow")
    return next((one for one in ("deny", "ask", "allow") if one in said), "ask")


def _wish(subject: Mapping[str, Any], cwd: str, real: Callable[[str], str]) -> Wish:
    named = (subject.get("name"), subject.get("kind"))
    found = [one for one in _members(input_of(subject)) if one[1] not in (None, False, "")]
    commands = [value for name, value in found if name in COMMANDS and isinstance(value, str)]
    given = [value for name, value in found if name in PATHS and isinstance(value, str)]
    folders = [value for name, value in found if name in FOLDERS]
    others = [(name, value) for name, value in found if name not in COMMANDS | PATHS | FOLDERS]
    unknown = [value for name, value in others if name not in REMARKS]
    guesses = [value for name, value in others if name not in REMARKS | CONTENTS]
    vague = ... in guesses or not (commands or given or guesses)
    suspects = [*(guesses if given else unknown)]  # not the content of a file
    if vague:  # the action may be in the words around it
        suspects = [value for _, value in others] + [subject.get("note")]
    texts = [one for one in suspects if isinstance(one, str)]
    short = [one for one in texts if len(one) <= _SUSPECT_CHARS][:_SUSPECTS]
    named_paths = [one for one in subject.get("paths") or () if isinstance(one, str)]
    here = (cwd, real(cwd))
    at_home = all(isinstance(one, str) and _real(cwd, one, real) in here for one in folders)
    likely = [one for one in (*guesses, *folders) if isinstance(one, str) and _like_a_path(one)]
    return Wish(
        tuple(one for one in named if isinstance(one, str)),
        tuple(commands),
        tuple(short),
        tuple(_real(cwd, path, real) for path in given),
        tuple(_real(cwd, one, real) for one in (*likely, *named_paths)),
        sure_of_command=not unknown and not given and at_home,
        sure_of_paths=all(map(_is_literal, given))
        and not (commands or any(map(_like_a_path, guesses)))
        and at_home,
        hides_command=len(short) < len(texts) or (not commands and (vague or "execute" in named)),
        hides_paths=not (given or named_paths) and vague,
    )


def _members(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The values in an input with the names of their members. A list of words is a command."""
    match value:
        case list() | dict() if depth >= _DEPTH:
            yield "", ...
        case list() if name in COMMANDS - {"commands"} and all(isinstance(w, str) for w in value):
            yield name, line_of(value)
        case list():
            if value and name not in _KNOWN and all(isinstance(one, str) for one in value):
                yield name, line_of(value)
            for one in value:
                yield from _members(one, name, depth + 1)
        case dict():
            yield from (("command", line) for line in command_lines(value))
            for key, one in value.items():
                if name == "changes":  # codex lists changes by path
                    yield "path", key
                elif "/" in key:
                    yield "", key
                yield from _members(one, plain(key), depth + 1)
        case _:
            yield name, value


def _real(cwd: str, path: str, real: Callable[[str], str]) -> str:
    try:
        return real(_below(cwd, path))
    except ValueError:  # no file can have this name
        return _below(cwd, path)


def _is_literal(path: str) -> bool:
    """Whether a tool can read the path only as the name of a file. With `~`, `$HOME` or a URL it
    may become another name."""
    return path.isprintable() and not path.startswith("~") and "$" not in path and ":/" not in path


def _like_a_path(value: Any) -> bool:
    """Whether the value of an unknown member could name a file, or hide one."""
    if not isinstance(value, str):
        return value is ...
    separated = "/" in value or "\\" in value or value.startswith(("~", "."))
    return separated or bool(_FILE_NAME.fullmatch(value))


def _fits(rule: Rule, wish: Wish, cwd: str) -> bool:
    allows = rule.decision == "allow"
    if rule.tool is not None and not any(fnmatchcase(one, rule.tool) for one in wish.tools):
        return False
    if rule.command is not None and not _command_fits(rule.command, wish, allows):
        return False
    return rule.path is None or _path_fits(rule.path, wish, cwd, allows)


def _may_fit(rule: Rule, wish: Wish) -> bool:
    """Whether the rule could match an action of which the request shows only a part."""
    if rule.tool is not None and not any(fnmatchcase(one, rule.tool) for one in wish.tools):
        return False
    hides_command = rule.command is not None and wish.hides_command
    return hides_command or (rule.path is not None and wish.hides_paths)


def _path_fits(pattern: str, wish: Wish, cwd: str, allows: bool) -> bool:
    pattern = _below(re.sub(r"([*?[])", r"[\1]", cwd), pattern)
    if allows:
        fit = [fnmatchcase(path, pattern) for path in wish.paths]
        return wish.sure_of_paths and bool(fit) and all(fit)
    return any(fnmatchcase(path, pattern) for path in (*wish.paths, *wish.guesses))


def _command_fits(pattern: str, wish: Wish, allows: bool) -> bool:
    if allows:
        plain = all(is_plain(command, pattern) for command in wish.commands)
        fit = [fnmatchcase(" ".join(command.split()), pattern) for command in wish.commands]
        return wish.sure_of_command and bool(fit) and plain and all(fit)
    return any(fnmatchcase(reading, pattern) for reading in wish.readings)


def _below(cwd: str, path: str) -> str:
    return path if path.startswith("/") else f"{cwd}/{path}"
