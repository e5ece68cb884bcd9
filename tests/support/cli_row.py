"""What the tests know of a real CLI: a row of tests/support/real_clis.py or soak_clis.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests import CHECKOUT
from tests.support.client import Json
from tests.support.gemini_server import GeminiServer
from tests.support.model_server import ModelServer
from tests.support.openai_server import OpenAiServer
from tests.support.real_claude_code import tool
from tests.support.responses_server import ResponsesServer

Step = str | Json
FOLDERS = (CHECKOUT / "tests/clis", CHECKOUT / "tests/clis/soak")
"""With the pinned CLIs: those of each run, and those of the soak tier."""
PROGRAMS = (*(folder / "node_modules" for folder in FOLDERS), CHECKOUT / ".venvs")
KINDS = ("dependencies", "optionalDependencies", "pythonDependencies")
VERSIONS: dict[str, str] = {}
for folder in FOLDERS:
    pinned = json.loads((folder / "package.json").read_text("utf-8"))
    for kind in KINDS:
        VERSIONS |= pinned.get(kind, {})
KEY = "a-key-that-is-not-secret"  # no common word: copilot redacts it in all of its output


def nothing(url: str, home: Path) -> None:
    """It needs no configuration but its environment."""


def tool_of(name: str) -> Callable[[str], Step]:
    """For a CLI whose model runs commands with the tool of this name."""
    return lambda command: tool(name, command=command, description="Run it")


@dataclass(frozen=True, slots=True)
class Cli:
    """`program` is a pattern in node_modules or .venvs: opencode and kilo are installed as what
    their packages start, because npm's lock file would need their packages for all systems.
    `run` makes the model have a command run, `environment` gets the address of the model. `force`
    is what AGENT_FORCE needs besides."""

    name: str
    package: str
    program: str
    run: Callable[[str], Step]
    environment: Callable[[str], dict[str, str]]
    configure: Callable[[str, Path], None] = nothing
    model: Callable[[], ModelServer | GeminiServer | OpenAiServer | ResponsesServer] = ModelServer
    force: dict[str, str] = field(default_factory=dict)
    run_outside: Callable[[str], Step] | None = None  # of its sandbox, where it has one

    def __str__(self) -> str:
        return self.name

    def path(self) -> str:
        found = [path for folder in PROGRAMS for path in folder.glob(self.program)]
        assert found, f"{self.program} is missing: run scripts/install --clis"
        return str(found[0])

    @property
    def version(self) -> str:
        """As it is pinned."""
        return VERSIONS[self.package]
