"""How an adapter describes the private folder of its CLI. bridge/sandbox/homes.py makes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Index:
    """A file at the top of a Home into which a CLI enters each working directory, and does not
    start where it cannot. The server enters them: `enter` makes its new content from the directory
    and the content until then. `folder`, one of Home.state, is for the CLI's lock beside it."""

    name: str
    folder: str
    enter: Callable[[str, bytes], bytes]


@dataclass(frozen=True, slots=True)
class Home:
    """A folder with files that a CLI executes or trusts beside files that it writes.

    `variable` names it in the CLI's environment; `folder` is where it is without that, as in
    Adapter.writable_paths. Inside a sandbox the agent has a private one, in which it can write only
    the paths in `state`, relative to it: folders that end in `/`, and files, which begin as copies
    of the operator's. Everything else there is a link to the operator's, which the agent reads.
    """

    variable: str
    folder: str
    state: tuple[str, ...]
    inner: str = ""
    """The folder's name, if `variable` names the folder around it."""

    variables: tuple[tuple[str, str], ...] = ()
    """Further variables, each with its path in the folder."""

    links: tuple[tuple[str, str], ...] = ()
    """Further links, by path in the folder or in the one around it: to files that are elsewhere
    where `variable` is not set."""

    seeds: tuple[tuple[str, str], ...] = ()
    """Files, with their content, without which the CLI does not start and which it cannot write
    here. They are there where the operator has none."""

    index: Index | None = None

    database: str = ""
    """A file that two processes must not create at the same time: until it exists, a session starts
    after the one before it has created it."""

    logins: tuple[str, ...] = ()
    """Files of the operator's that the agent may change in place, because the CLI stores renewed
    tokens there, and the old ones are worth nothing then."""

    kept: tuple[str, ...] | None = None
    """For a CLI that creates or replaces files at the top of its folder; `state` has only folders
    then. Each session has a top of its own, in which it may write everything, and no other session
    reads it. These files at the top last; the others end with the session."""

    sessions: tuple[str, ...] = ()
    """Patterns for the files of the conversation `{id}` (its first eight letters: `{short}`): if it
    began in the operator's folder, they are copied when it is resumed."""
