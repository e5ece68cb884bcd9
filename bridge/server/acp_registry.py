"""Agents of the public ACP registry, `acp:ID`: a copy of its manifests, from `acp_registry.json`.

The bridge runs the installed program of an agent. It downloads nothing, neither with npx nor with
uvx, and uses no shell. `scripts/acp-registry` renews the copy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from bridge.errors import ConfigurationError
from bridge.task.nearest import nearest

COPY = Path(__file__).with_name("acp_registry.json")
PREFIX = "acp:"
_VERSION = r"[0-9A-Za-z][0-9A-Za-z.+-]{0,63}"
_NPM = rf"(?:@[a-z0-9][a-z0-9._-]{{0,99}}/)?[a-z0-9][a-z0-9._-]{{0,99}}(?:@{_VERSION})?"
_PYPI = rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,99}}(?:\[[A-Za-z0-9,._-]{{1,99}}\])?(?:(?:==|@){_VERSION})?"
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
# Variables that decide which code a program loads.
_LOADERS = re.compile(r"PATH|HOME|ENV|BASH_.*|LD_.*|DYLD_.*|NODE_.*|PYTHON.*|PERL.*|RUBY.*|GIT_.*")


def _harmless(name: str) -> str:
    if _LOADERS.fullmatch(name):
        raise ValueError(f"an agent of the registry must not set {name}")
    return name


Text = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Argument = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Variable = Annotated[
    str, Field(max_length=64, pattern=r"^[A-Z][A-Z0-9_]*$"), AfterValidator(_harmless)
]


class RegistryLaunch(BaseModel):
    """Arguments and variables of a program; unknown members are ignored."""

    model_config = ConfigDict(frozen=True)

    args: tuple[Argument, ...] = Field((), max_length=20)
    env: Mapping[Variable, Argument] = Field({}, max_length=20)


class Npx(RegistryLaunch):
    package: str = Field(pattern=rf"^{_NPM}$")


class Uvx(RegistryLaunch):
    package: str = Field(pattern=rf"^{_PYPI}$")


class Program(RegistryLaunch):
    """A program in an archive."""

    cmd: str = Field(max_length=200, pattern=rf"^(?:\./)?(?:{_PART}/)*{_PART}$")
    archive: str = Field(max_length=500, pattern=r"^https://[^\s]+$")


class Distribution(BaseModel):
    """The ways to get the program."""

    model_config = ConfigDict(frozen=True)

    npx: Npx | None = None
    uvx: Uvx | None = None
    binary: Mapping[str, Program] = Field({}, max_length=20)

    @property
    def best(self) -> RegistryLaunch | None:
        """A package rather than an archive; of archives, that for Linux."""
        programs = [one for system, one in self.binary.items() if system.startswith("linux-")]
        return self.npx or self.uvx or next(iter(programs), None)


class AgentManifest(BaseModel):
    """An agent of the registry."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(max_length=64, pattern=r"^[a-z][a-z0-9-]*$")
    name: Text
    version: str = Field(pattern=rf"^{_VERSION}$")
    distribution: Distribution

    @property
    def launch(self) -> RegistryLaunch:
        """Raises ConfigurationError if no program for Linux is known."""
        found = self.distribution.best
        if found is None:
            raise ConfigurationError(f"{PREFIX}{self.id}: the registry has no program for Linux.")
        return found

    @property
    def program(self) -> str:
        """The name of the program. That of a package is a guess: the last part of its name."""
        match self.launch:
            case Program(cmd=cmd):
                return cmd.rpartition("/")[2]
            case Npx(package=package):
                return package.rpartition("/")[2].partition("@")[0]
            case Uvx(package=package):
                return re.split(r"[\[=@]", package)[0]
        raise AssertionError("an unknown kind of launch")

    @property
    def install(self) -> str:
        """A command for the operator, or the address of an archive."""
        match self.launch:
            case Program(archive=archive):
                return f"unpack {archive}"
            case Npx(package=package):
                return f"npm install -g {package}"
            case Uvx(package=package):
                return f"uv tool install '{package}'"
        raise AssertionError("an unknown kind of launch")


class Registry(BaseModel):
    """`date`: of the manifests."""

    model_config = ConfigDict(frozen=True)

    date: str = Field(pattern=r"^\d{4}-\d\d-\d\d$")
    agents: tuple[AgentManifest, ...] = Field(max_length=1000)


@cache
def copied() -> Registry:
    """The copy in this package."""
    return Registry.model_validate_json(COPY.read_bytes())


def find(agent_id: str) -> AgentManifest:
    """Raises ConfigurationError, with a suggestion, for an unknown id."""
    known = {one.id: one for one in copied().agents}
    if agent_id not in known:
        hint = nearest(agent_id, known)
        raise ConfigurationError(
            f"unknown agent {PREFIX}{agent_id}: the copy of the ACP registry of {copied().date} "
            f"has {', '.join(sorted(known))}.{hint}"
        )
    return known[agent_id]
