"""The operator's rules for permission requests: `[[rules]]` in CONFIG_FILE.

Rules reduce the questions to people and the mistakes of agents. They are not a boundary: a shell
has more spellings for a command than a pattern can have, and rules only see requests that the agent
makes. The boundary is the sandbox.

`deny` and `ask` look for a match in every reading of a request. `allow` needs exactly one reading:
an input that could mean more than the pattern says does not match.

An agent decides how long a request is. Only its first characters are read; where a rule could have
matched the rest, a person decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import product
from typing import Any, ClassVar, Literal

from bridge.task.inputs import (
    COMMANDS,
    CONTENTS,
    FOLDERS,
    PATHS,
    REMARKS,
    first_members,
    input_of,
)
from bridge.task.rules.commands import LONGEST, is_plain, readings, split_words
from bridge.task.rules.doubts import could_be, doubts
from bridge.task.rules.paths import files_in_patch, from_url, is_hidden, unquoted

Decision = Literal["allow", "ask", "deny"]

_DOUBLE = re.compile(r"(^|/)(?:\*\*/)+")
_ANY_FOLDER = re.compile(r"(^|/)(?:\*/)+")
_SUSPECTS = 200  # values of unknown members that are read as commands
_SUSPECT_CHARS = 16 * 1024  # of one of them; a longer one may hide a command
_FILE_NAME = re.compile(r"\S+\.\w{1,10}")
_BETWEEN_PATHS = re.compile(r"[<>|;&()=,:]")  # in a command
_GLOB = re.compile(r"[*?\[\]{}]")
_FEW = 20  # folders and paths that are joined
_PATH_MAX = 4096  # bytes of a path that the system has
_MOST_NAMES = 512  # in a path that is resolved; the time grows with their square
_MOST_PATHS = 16 * 1024  # characters of paths that are resolved
_MOST_READINGS = 512 * 1024  # characters of all readings of the commands
_MOST_DOUBTS = 64 * 1024


@dataclass(frozen=True, slots=True)
class Rule:
    """A decision for the requests that match each given pattern of `tool`, `command` and `path`.
    Patterns have `*`, `?` and `[…]`; `*` matches any characters, spaces and slashes included.

    `tool`: the tool's name, or its kind as ACP has it (`edit`, `execute` …), in any case for `deny`
    and `ask`. `command`: a shell command. To `allow` one, it must be one plain command without
    assignments, expansions or unknown members beside it; `deny` and `ask` look at each command of a
    line, behind assignments and wrappers such as `sudo`, too. `path`: a file, after symbolic links,
    relative to the workspace or absolute. To `allow`, all paths of a request must match. `deny` and
    `ask` also match the path before symbolic links, in any case, without folders for `*/`, and
    below a path that ends in `/`.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}  # rules are read from TOML

    decision: Decision
    tool: str | None = None
    command: str | None = None
    path: str | None = None


@dataclass(frozen=True)
class Wish:
    """The action that an agent requests. `paths` are real and absolute. `suspects` and `guesses`:
    other values that could be commands or paths, and paths before symbolic links. `places`: the
    working directory, as it is written and real. `sure_of_command` and `sure_of_paths`: whether the
    input holds nothing that could change the meaning of the commands or the paths. `hides_command`
    and `hides_paths`: whether the action may have some that the input does not show. `cut`: it has
    more than was read."""

    tools: tuple[str, ...]
    commands: tuple[str, ...]
    suspects: tuple[str, ...]
    paths: tuple[str, ...]
    guesses: tuple[str, ...]
    places: tuple[str, ...]
    sure_of_command: bool
    sure_of_paths: bool
    hides_command: bool
    hides_paths: bool
    cut: bool = False

    @cached_property
    def readings(self) -> tuple[frozenset[str], bool]:
        """The readings of the commands without case, and whether these are all of them. It takes
        time, and only `deny` and `ask` need it."""
        texts = (*self.commands, *self.suspects)
        return _gathered((one for text in texts for one in readings(text)), _MOST_READINGS)

    @cached_property
    def doubts(self) -> tuple[frozenset[str], bool]:
        """Further commands that these may run (doubts.py), and whether these are all."""
        texts = (*self.commands, *(self.suspects if "execute" in self.tools else ()))
        return _gathered((one for text in texts for one in doubts(text)), _MOST_DOUBTS)

    @cached_property
    def words(self) -> frozenset[str]:
        """The words of the commands that could be paths, as `likely`."""
        texts = [_BETWEEN_PATHS.sub(" ", one) for one in (*self.commands, *self.suspects)]
        words = {word for one in texts for word in split_words(one)}
        words = {one for one in words if _like_a_path(one) and not _GLOB.search(one)}
        return frozenset(_comparable(_below(self.places[0], word)) for word in words)

    @cached_property
    def likely(self) -> frozenset[str]:
        """The paths that it could concern, in the form in which `deny` and `ask` compare them."""
        return frozenset(map(_comparable, (*self.paths, *self.guesses)))


def _gathered(texts: Iterable[str], most: int) -> tuple[frozenset[str], bool]:
    """The texts without case, and whether these are all of them: `most` characters are read."""
    found: set[str] = set()
    left = most
    for text in texts:
        found.add(text.casefold())
        left -= len(text) + 64  # the time for a short one
        if left < 0:
            return frozenset(found), False
    return frozenset(found), True


def decide(
    rules: Iterable[Rule], subject: Mapping[str, Any], cwd: str, real: Callable[[str], str]
) -> Decision:
    """The strictest decision of the rules that match, in any order; "ask" if none matches. An
    `allow` does not count if another rule could match a part that the request does not show.

    `subject`: the subject of a permission request; `real` makes a real path of an absolute one.
    """
    wish = _wish(subject, cwd, real)
    known = list(rules)
    said = {_said(rule, wish, cwd) for rule in known}
    others = (rule for rule in known if rule.decision != "allow")
    if "allow" in said and any(_may_fit(rule, wish, cwd) for rule in others):
        said.discard("allow")
    return next((one for one in ("deny", "ask", "allow") if one in said), "ask")


def _wish(subject: Mapping[str, Any], cwd: str, real: Callable[[str], str]) -> Wish:
    named = (subject.get("name"), subject.get("kind"))
    found, cut = first_members(input_of(subject))
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
    paths = _Paths(cwd, real)
    limited = [*((one, LONGEST) for one in commands), *((one, _PATH_MAX) for one in given)]
    here = (cwd, real(cwd))
    at_home = all(isinstance(one, str) and paths.real(one) in here for one in folders)
    likely = [one for one in (*guesses, *folders) if isinstance(one, str) and _like_a_path(one)]
    patched = [one for text in texts for one in files_in_patch(text)]
    names = [one for one in guesses if isinstance(one, str) and " " not in one]
    spelled = _spelled([*given, *likely, *named_paths, *patched], folders, names)
    return Wish(
        tools=tuple(one for one in named if isinstance(one, str)),
        commands=tuple(command[:LONGEST] for command in commands),
        suspects=tuple(short),
        paths=tuple(map(paths.real, given)),
        guesses=tuple(
            path
            for one in spelled
            for path in (paths.real(one), _below(cwd, one), _below(cwd, _slashes(one)))
        ),
        places=here,
        sure_of_command=not unknown and not given and at_home,
        sure_of_paths=all(map(_is_literal, given))
        and not (commands or any(map(_like_a_path, guesses)))
        and at_home,
        hides_command=len(short) < len(texts) or (not commands and (vague or "execute" in named)),
        hides_paths=(not (given or named_paths) and vague) or any(map(is_hidden, spelled)),
        cut=cut or paths.cut or any(len(one) > limit for one, limit in limited),
    )


def _spelled(paths: Sequence[str], folders: Sequence[Any], names: Sequence[str]) -> list[str]:
    """The paths in the spellings that a tool may read, and with the names below the folders."""
    found = [spelling for one in paths for spelling in (one, from_url(one), unquoted(one))]
    inside = [
        f"{folder}/{one}"
        for folder in folders[:_FEW]
        for one in (*found[:_FEW], *names[:_FEW])
        if isinstance(folder, str) and not one.startswith("/")
    ]
    return list(dict.fromkeys((*found, *inside)))


class _Paths:
    """Resolves paths of an input, as long as it takes little time. `cut`: not all of them."""

    def __init__(self, cwd: str, real: Callable[[str], str]) -> None:
        self._cwd = cwd
        self._real = real
        self._left = _MOST_PATHS
        self.cut = False

    def real(self, path: str) -> str:
        path = _below(self._cwd, path)
        if len(path) > _PATH_MAX:  # no file can have this name
            return path
        self._left -= len(path)
        takes_long = self._left < 0 or path.count("/") > _MOST_NAMES
        self.cut = self.cut or takes_long
        try:
            return path if takes_long else self._real(path)
        except ValueError:  # no file can have this name
            return path


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


def _said(rule: Rule, wish: Wish, cwd: str) -> Decision | None:
    """The decision of a rule that matches, and "ask" if a part that was not read could match."""
    allows = rule.decision == "allow"
    if not _tool_fits(rule, wish):
        return None
    if (rule.command is None or _command_fits(rule.command, wish, allows)) and (
        rule.path is None or _path_fits(rule.path, wish, cwd, allows)
    ):
        return rule.decision
    unread = wish.cut or (rule.command is not None and not allows and not wish.readings[1])
    return "ask" if unread and not allows else None


def _tool_fits(rule: Rule, wish: Wish) -> bool:
    if rule.tool is None or rule.decision == "allow":
        return rule.tool is None or any(fnmatchcase(one, rule.tool) for one in wish.tools)
    return any(fnmatchcase(one.casefold(), rule.tool.casefold()) for one in wish.tools)


def _may_fit(rule: Rule, wish: Wish, cwd: str) -> bool:
    """Whether the rule, which does not match, could match an action of which the request shows
    only a part."""
    if wish.tools and not _tool_fits(rule, wish):
        return False
    command, path = rule.command, rule.path
    if command is not None and not _may_be_command(command, wish):
        shown = path is not None or not wish.tools
        if not (shown and _command_fits(command, wish, False)):
            return False
    if path is not None and not _may_be_path(path, wish):
        shown = command is not None or not wish.tools
        if not (shown and _path_fits(path, wish, cwd, False)):
            return False
    return True


def _may_be_command(pattern: str, wish: Wish) -> bool:
    wanted = _one_space(pattern)
    if wish.hides_command:
        return True
    found, are_all = wish.doubts
    return not are_all or any(could_be(one, wanted) for one in found)


def _may_be_path(pattern: str, wish: Wish) -> bool:
    """Also of a file that a command names, or of one of several files."""
    wanted = [one for place in wish.places for one in _spellings(pattern, _literally(place))]
    named = any(fnmatchcase(path, one) for one in wanted for path in wish.words)
    several = [_comparable(one) for one in wish.paths if _GLOB.search(one)]
    return wish.hides_paths or named or any(_overlap(*two) for two in product(several, wanted))


def _overlap(one: str, other: str) -> bool:
    """Whether the beginnings and the ends of two patterns allow a path that matches both."""
    (*_, end), (*_, other_end) = first, second = _GLOB.split(one), _GLOB.split(other)
    head, tail = min(len(first[0]), len(second[0])), min(len(end), len(other_end))
    same_head = first[0][:head] == second[0][:head]
    return same_head and end[len(end) - tail :] == other_end[len(other_end) - tail :]


def _one_space(pattern: str) -> str:
    return " ".join(pattern.casefold().split())


def _path_fits(pattern: str, wish: Wish, cwd: str, allows: bool) -> bool:
    if allows:
        pattern = _below(_literally(cwd), pattern)
        fit = [fnmatchcase(path, pattern) for path in wish.paths]
        return wish.sure_of_paths and not wish.cut and bool(fit) and all(fit)
    return any(
        fnmatchcase(path, wanted)
        for place in wish.places
        for wanted in _spellings(pattern, _literally(place))
        for path in wish.likely
    )


def _spellings(pattern: str, place: str) -> Iterator[str]:
    """The patterns of paths for a `deny` or `ask`: `*/` and `**/` also stand for no folder, and a
    pattern that ends in `/` for all that is below."""
    written = _DOUBLE.sub(r"\1*/", _slashes(pattern))
    for one in dict.fromkeys((written, _ANY_FOLDER.sub(r"\1", written))):
        wanted = _comparable(_below(place, one))
        yield wanted
        if written.endswith("/"):
            yield f"{wanted}/*"


def _comparable(path: str) -> str:
    """An absolute path, or a pattern of such, without `.`, `..`, empty names and case."""
    names: list[str] = []
    for name in path.casefold().split("/"):
        if name == "..":
            del names[-1:]
        elif name not in ("", "."):
            names.append(name)
    return "/" + "/".join(names)


def _literally(path: str) -> str:
    """A pattern that matches this path alone."""
    return re.sub(r"([*?[])", r"[\1]", path)


def _slashes(path: str) -> str:
    """The path with the separators of Windows replaced."""
    return path.replace("\\", "/")


def _command_fits(pattern: str, wish: Wish, allows: bool) -> bool:
    if allows:
        plain = all(is_plain(command, pattern) for command in wish.commands)
        fit = [fnmatchcase(" ".join(command.split()), pattern) for command in wish.commands]
        return wish.sure_of_command and not wish.cut and bool(fit) and plain and all(fit)
    wanted = _one_space(pattern)
    return any(fnmatchcase(reading, wanted) for reading in wish.readings[0])


def _below(cwd: str, path: str) -> str:
    return path if path.startswith("/") else f"{cwd}/{path}"
