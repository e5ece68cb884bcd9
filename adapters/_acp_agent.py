"""The facts of one ACP agent. Its `initialize` answer has all other facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import orjson

from bridge.adapter import CliInfo, JsonLines
from bridge.adapter.fields import Json

from ._tools import IMAGES


class AcpAgent(JsonLines):
    """Subclasses in acp.py are the agents that are known by name."""

    title: ClassVar[str] = "The agent"

    arguments: ClassVar[tuple[str, ...]] = ()
    """Arguments that make the CLI speak ACP."""

    variables: ClassVar[Mapping[str, str]] = {}
    """Set for the CLI unless the operator sets them."""

    install: ClassVar[str] = ""
    login: ClassVar[str] = ""
    """Both: see CliInfo."""

    model_flag: ClassVar[str] = ""
    """The flag that chooses the model, if ACP cannot."""

    images: ClassVar[bool] = False
    """The agent takes images in its protocol; else they are files that the prompt names."""

    shut: ClassVar[Mapping[str, str]] = {}
    """Variables that keep the CLI from loading project_files, even if the operator has set them."""

    shut_options: ClassVar[Json] = {}
    """Options of a session with the same effect (Claude Agent)."""

    session_options: ClassVar[Json] = {}
    """Options of every session (Claude Agent)."""

    configured_by: ClassVar[str] = ""
    """The variable with the CLI's configuration. It names the instructions of the workspace, which
    the CLI does not read with `shut`."""

    logins: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Methods for `authenticate`, each with the variable that must be set for it ("": none)."""

    login_first: ClassVar[bool] = False
    """authenticate comes before session/new, not only after -32000."""

    list_first: ClassVar[bool] = False
    """The agent resumes an unknown conversation as an empty one, so session/list comes first."""

    load_prefix: ClassVar[str] = ""
    """Precedes the id of the conversation in session/load and in all later requests."""

    error_words: ClassVar[str] = ""
    """After an error of the model the turn ends normally: its last text begins with these words,
    and no tokens are counted."""

    counts_all_turns: ClassVar[bool] = False
    """The tokens at the end of a turn are those of all turns of the process."""

    auth_is_final: ClassVar[bool] = False
    """After a rejected key, the process refuses every prompt: the session ends."""

    silent_failures: ClassVar[bool] = False
    """After an error of the model the turn ends normally, without any text since the last tool."""

    forgets_interrupted: ClassVar[bool] = False
    """A cancel while the model answers removes the turn from the conversation."""

    going_on: ClassVar[tuple[str, ...]] = ()
    """Tools after which the agent works on by itself when its turn has ended: names, or names of
    members of their input that are true then. The session ends with such a turn."""

    asks_about_all: ClassVar[bool] = False
    """A permission request names no tool: it is about those that wait."""

    failing_words: ClassVar[Mapping[str, str]] = {}
    """Beginnings of last texts that are errors, with the reasons of the failure."""

    reads_along: ClassVar[bool] = False
    """`@path` in the last text of a prompt attaches that file, even one outside of the workspace,
    without a permission. So the last block must not contain `@`."""

    ignores_links: ClassVar[bool] = False
    """The agent drops the links of a prompt: files are named in a text."""

    lasting: ClassVar[tuple[str, ...]] = ()
    """Ids of options that write rules for other sessions, or that end in a mode that no client may
    choose: the client does not get them."""

    asks: ClassVar[str] = ""
    """The mode in which the agent asks before it changes anything, if its default is another mode.
    A session begins in it, unless the client chooses a mode."""

    changes: ClassVar[tuple[str, ...]] = ("mode", "model")
    lingers = True

    def __init_subclass__(cls) -> None:
        words, flags = cls.arguments, [cls.model_flag] if cls.model_flag else []
        # The help of a subcommand shows that it exists; the general help lists the flags.
        command = words[:1] if words and not words[0].startswith("-") else ()
        flags += [word for word in words if word.startswith("-")]
        cls.cli_info = CliInfo(cls.install, cls.login, (), (*command, "--help"), tuple(flags))
        cls.changes = ("mode",) if cls.model_flag else AcpAgent.changes
        # An image for an agent that may not take images is a file that the prompt names.
        cls.input_modes = ("text/*", "application/json", *(IMAGES if cls.images else ()))

    def closing(self) -> dict[str, str]:
        """Variables that keep the CLI from loading the repository's configuration."""
        if self.config.project_config:
            return {}
        closing = dict(self.shut)
        if self.configured_by and self.configured_by not in self.config.env:
            texts = [f"{self.start.cwd}/{name}" for name in ("AGENTS.md", "CLAUDE.md")]
            closing[self.configured_by] = orjson.dumps({"instructions": texts}).decode()
        return closing
