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
CLIS_FOLDER = CHECKOUT / "tests/clis"
MODULES = CLIS_FOLDER / "node_modules"
SOAK_MODULES = CLIS_FOLDER / "soak/node_modules"
ENVIRONMENTS = CHECKOUT / ".venvs"
VERSIONS: dict[str, str] = {}
for folder in (CLIS_FOLDER, CLIS_FOLDER / "soak"):
    pinned = json.loads((folder / "package.json").read_text("utf-8"))
    for kind in ("dependencies", "optionalDependencies", "pythonDependencies"):
        VERSIONS |= pinned.get(kind, {})
KEY = "a-key-that-is-not-secret"  # copilot blots out the value wherever it occurs in what it says


def nothing(url: str, home: Path) -> None:
    """It needs no configuration but its environment."""


def tool_of(name: str) -> Callable[[str], Step]:
    """For a CLI whose model runs commands with the tool of this name."""
    return lambda command: tool(name, command=command, description="Run it")


@dataclass(frozen=True, slots=True)
class Cli:
    """`program` is a pattern in `folder`: opencode and kilo are installed as what their packages
    start, because npm's lock file would need their packages for all systems. `run` makes the model
    have a command run, `environment` gets the address of the model. `force` is what AGENT_FORCE
    needs besides."""

    name: str
    package: str
    program: str
    run: Callable[[str], Step]
    environment: Callable[[str], dict[str, str]]
    configure: Callable[[str, Path], None] = nothing
    model: Callable[[], ModelServer | GeminiServer | OpenAiServer | ResponsesServer] = ModelServer
    force: dict[str, str] = field(default_factory=dict)
    run_outside: Callable[[str], Step] | None = None  # of its sandbox, where it has one
    folder: Path = MODULES

    def __str__(self) -> str:
        return self.name

    def path(self) -> str:
        found = sorted(self.folder.glob(self.program))
        option = "" if self.folder == MODULES else " --soak"
        assert found, f"{self.folder}/{self.program} is missing: run scripts/install{option}"
        return str(found[0])

    @property
    def version(self) -> str:
        """As it is pinned."""
        return VERSIONS[self.package]
