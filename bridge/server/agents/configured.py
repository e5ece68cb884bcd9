"""The agents that the settings name, each with its adapter and its CLI."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bridge.adapter import Adapter, AgentConfig, Lines, SessionStart
from bridge.errors import ConfigurationError
from bridge.process import pty_runner, replayer
from bridge.sandbox.own_files import OwnFile
from bridge.sandbox.profile import find_user
from bridge.sandbox.trusted_programs import default_workspace
from bridge.server import recording, registry
from bridge.server.settings.load import Loaded
from bridge.server.settings.root import Settings
from bridge.task.nearest import nearest
from bridge.workspace import project_config

REPLAY = "replay"
# Programs that run as files; the server does not import the libraries that they need.
RUNNER = (sys.executable, "-I", pty_runner.__file__)
PLAYER = (sys.executable, "-I", replayer.__file__)
UNVERIFIED = "the bridge was not tested with this program"
OUTSIDE_THE_CODE = (
    "this directory contains the code of the bridge, which agents must not change; the workspace "
    "is its folder `workspace`. Set AGENT_REPO_PATH to use another directory"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredAgent:
    """An agent with its `settings`. `make` creates an adapter for a session. `runs` (the program)
    and `notes` are for the operator. `own_files`: files of the server that the agent must not
    read."""

    id: str
    settings: Settings
    adapter: type[Adapter]
    make: Callable[[AgentConfig, SessionStart], Adapter]
    config: AgentConfig
    runs: str
    notes: tuple[str, ...] = ()
    own_files: tuple[OwnFile, ...] = ()


def configure_agents(loaded: Loaded) -> list[ConfiguredAgent]:
    """All agents of the settings; the first one is the default agent. Raises ConfigurationError."""
    settings = loaded.settings
    tables = settings.server.agents
    if tables:
        agents = [_configure(one, settings.for_agent(one), loaded) for one in tables]
    else:
        agents = [_configure("", settings, loaded)]
    _check_profiles(settings, agents)
    return agents


def agent_id_of(adapter: str) -> str:
    """The id of an agent without a table of its own: the name of its adapter in a form for ids."""
    return adapter.replace(":", "-")


def first_on_path() -> type[Adapter] | None:
    """The preferred adapter whose CLI is on PATH."""
    return next((one for one in registry.with_binary() if shutil.which(one.binary)), None)


def _check_profiles(settings: Settings, agents: Sequence[ConfiguredAgent]) -> None:
    """Raise ConfigurationError for a profile that no agent can serve."""
    by_id = {agent.id: agent for agent in agents}
    for name, profile in settings.server.profiles.items():
        agent = by_id.get(profile.agent) if profile.agent else agents[0]
        if agent is None:
            hint = nearest(profile.agent or "", by_id)
            raise ConfigurationError(f"[profiles.{name}] unknown agent {profile.agent}.{hint}")
        why = agent.adapter.limitations.get("models")
        if profile.model and why:
            problem = f"{agent.adapter.name} does not support the choice of a model ({why})."
            raise ConfigurationError(f"[profiles.{name}] {problem}")


def _configure(agent_id: str, settings: Settings, loaded: Loaded) -> ConfiguredAgent:
    """The agent of `settings`. The default id is the name of the adapter."""
    agent = settings.agent
    name, notes = (agent.adapter, ()) if agent.adapter else _default_adapter()
    if agent.repo_path is None and default_workspace() != os.getcwd():
        notes = (*notes, OUTSIDE_THE_CODE)
    if name == REPLAY:
        return _replay(agent_id or REPLAY, settings, notes=notes, loaded=loaded)
    adapter = registry.load(name)
    agent_id = agent_id or agent_id_of(adapter.name)
    config = AgentConfig(
        binary=_find_binary(settings, adapter),
        args=agent.args,
        model=agent.model,
        force=agent.force,
        env=_environment(settings, adapter, loaded),
        superuser=os.geteuid() == 0 and not settings.sandbox.user,
        runner=RUNNER,
        lines=Lines(
            json=agent.text_field is not None,
            text=agent.text_field or "",
            question=agent.approval_pattern,
            answers=agent.approval_response,
            end=agent.end_pattern,
            terminal=agent.pty,
        ),
        project_config=agent.project_config == "allow",
    )
    adapter = adapter.variant_for(config)
    problem = adapter.unsupported_reason(config) or _models_objection(adapter, settings)
    if problem:
        raise ConfigurationError(problem)
    return ConfiguredAgent(
        id=agent_id,
        settings=settings,
        adapter=adapter,
        make=adapter,
        config=config,
        runs=config.binary,
        notes=(*notes, *_notes_on(adapter, settings)),
        own_files=tuple(loaded.own_files),
    )


def _notes_on(adapter: type[Adapter], settings: Settings) -> Iterator[str]:
    if settings.limits.warm_sessions and not adapter.can_prewarm:
        why = f"{adapter.title} starts a new process for each turn"
        yield f"BRIDGE_WARM_SESSIONS has no effect: {why}"
    if not adapter.verified:
        yield f"{adapter.name} is unverified: {UNVERIFIED}"


def _find_binary(settings: Settings, adapter: type[Adapter]) -> str:
    """The absolute path of the CLI. Raises ConfigurationError."""
    wanted = settings.agent.binary or adapter.binary
    if not wanted:
        raise ConfigurationError(
            f"The adapter {adapter.name} requires AGENT_BINARY, the path of the program to run."
        )
    binary = shutil.which(os.path.expanduser(wanted))
    if binary is None:
        install = adapter.cli_info.install
        command = f" ({install})" if install else ""
        raise ConfigurationError(
            f"{wanted} was not found, or is not executable. Install {adapter.title}{command}, or "
            "set AGENT_BINARY to its path."
        )
    return os.path.abspath(binary)


def _environment(settings: Settings, adapter: type[Adapter], loaded: Loaded) -> dict[str, str]:
    """The variables of the CLI. With BRIDGE_SANDBOX_USER, the variables of that user replace the
    server's."""
    environment = settings.agent.child_environment(adapter.environment, loaded.dotenv)
    if settings.sandbox.user is not None:
        kept = {name: value for name, value in environment.items() if not name.startswith("XDG_")}
        environment = {**kept, **find_user(settings.sandbox.user).variables}
    if settings.agent.project_config != "allow":
        environment |= project_config.guards(environment)
    return environment


def _models_objection(adapter: type[Adapter], settings: Settings) -> str | None:
    """Why the agent cannot run with AGENT_MODEL or AGENT_MODELS. Without this error, it would run
    another model than the operator chose."""
    why = adapter.limitations.get("models")
    given = {"AGENT_MODEL": settings.agent.model, "AGENT_MODELS": settings.agent.models}
    names = [name for name, value in given.items() if value]
    if why is None or not names:
        return None
    text = f"{adapter.name} does not support the choice of a model ({why})."
    return f"{text} Unset {' and '.join(names)} for it."


def _default_adapter() -> tuple[str, tuple[str, ...]]:
    """The name of the adapter where AGENT_ADAPTER is unset, and notes with the reason."""
    adapter = first_on_path()
    if adapter:
        return adapter.name, (f"{adapter.binary} is the first known CLI on PATH",)
    return REPLAY, (
        "no coding-agent CLI was found on PATH: the server plays a recording",
        f"set AGENT_ADAPTER to one of: {', '.join(registry.names())}",
    )


def _replay(
    agent_id: str, settings: Settings, *, notes: tuple[str, ...], loaded: Loaded
) -> ConfiguredAgent:
    adapter = registry.load(REPLAY)
    problem = _models_objection(adapter, settings)
    if problem:
        raise ConfigurationError("; ".join((*notes[:1], problem)))
    path = os.path.abspath(settings.agent.replay_file or recording.EXAMPLE)
    dialect = registry.load(recording.dialect(path))
    arguments = (*PLAYER[1:], path, str(settings.constants.replay_speed))
    return ConfiguredAgent(
        id=agent_id,
        settings=settings,
        adapter=adapter,
        make=functools.partial(adapter, dialect=dialect),  # type: ignore[call-arg]
        config=AgentConfig(PLAYER[0], arguments),
        runs=f"{path} ({dialect.title})",
        notes=notes,
        own_files=tuple(loaded.own_files),
    )
