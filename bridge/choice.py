"""Which agents are served: from settings to what the manager and the card need."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bridge import __version__, player, recording, registry, runner
from bridge.a2a.card import Card, Skill
from bridge.adapter import Adapter, AgentConfig, Lines, SessionStart
from bridge.app import Service
from bridge.attachments import Attachments, PartLimits
from bridge.context import Agent, SessionPool
from bridge.errors import ConfigurationError
from bridge.identity import needs_token
from bridge.manager import Policy, TaskManager
from bridge.push import Push
from bridge.routing import Router, skills_of
from bridge.sandbox import HIDDEN, Sandbox, make_scratch, ports
from bridge.session import Limits
from bridge.settings import Loaded, Settings, nearest
from bridge.state import NO_STATE, State
from bridge.store.tasks import Retention, TaskStore
from bridge.transports.operation import Operations

REPLAY = "replay"
RUNNER = (sys.executable, "-I", str(Path(runner.__file__)))
SKILLS = (
    Skill(
        "code",
        "Coding",
        "Reads, writes and runs code in a workspace: implement, fix, refactor, test, explain.",
        ("code", "edit", "refactor", "test", "debug", "review"),
        ("Add a test for the date parser and fix what it finds.", "Explain how login works."),
    ),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """An agent that is served, under `settings` of its own. `runs` and `notes` tell the operator
    what was chosen and why."""

    id: str
    settings: Settings
    adapter: type[Adapter]
    make: Callable[[AgentConfig, SessionStart], Adapter]
    config: AgentConfig
    runs: str
    notes: tuple[str, ...] = ()


def choose_all(loaded: Loaded) -> list[Choice]:
    """The agents that the settings ask for, the default one first. Raises ConfigurationError."""
    settings = loaded.settings
    agents = settings.agents
    if not agents:
        only = [_choose("", settings, loaded)]
        _check_profiles(settings, only)
        return only
    default = settings.bridge_default_agent or next(iter(agents))
    if default not in agents:
        raise ConfigurationError(
            f"BRIDGE_DEFAULT_AGENT: no agent {default}.{nearest(default, agents)}"
        )
    ids = sorted(agents, key=lambda agent_id: agent_id != default)  # stable: the rest as written
    choices = [_choose(agent_id, settings.for_agent(agent_id), loaded) for agent_id in ids]
    _check_profiles(settings, choices)
    return choices


def _check_profiles(settings: Settings, choices: Sequence[Choice]) -> None:
    """Raise ConfigurationError for a profile that nobody could serve."""
    by_id = {choice.id: choice for choice in choices}
    for name, profile in settings.profiles.items():
        choice = by_id.get(profile.agent) if profile.agent else choices[0]
        if choice is None:
            problem = f"there is no agent {profile.agent}.{nearest(profile.agent or '', by_id)}"
            raise ConfigurationError(f"[profiles.{name}] {problem}")
        why = choice.adapter.lacks.get("models")
        if profile.model and why:
            problem = f"{choice.adapter.name} cannot be told which model to use ({why})."
            raise ConfigurationError(f"[profiles.{name}] {problem}")


def _choose(agent_id: str, settings: Settings, loaded: Loaded) -> Choice:
    """The agent of `settings`. Without an id it is called after its adapter."""
    name, notes = (settings.agent_adapter, ()) if settings.agent_adapter else _first_found()
    agent_id = agent_id or _identifier(name)
    if name == REPLAY:
        return _replay(agent_id, settings, notes)
    try:
        adapter = registry.load(name)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}{nearest(name, registry.names())}") from None
    wanted = settings.binary(adapter.binary_setting) or adapter.binary
    if not wanted:
        raise ConfigurationError(f"The adapter {name} needs AGENT_BINARY, the program to run.")
    binary = shutil.which(os.path.expanduser(wanted))
    if binary is None:
        raise ConfigurationError(
            f"{wanted} was not found, or is not executable. Install {adapter.title}, or set "
            f"{adapter.binary_setting} to its path."
        )
    config = AgentConfig(
        os.path.abspath(binary),
        settings.agent_args,
        settings.agent_model,
        settings.agent_force,
        settings.child_environment(adapter.environment, loaded.dotenv),
        os.geteuid() == 0,
        RUNNER,
        _lines(settings),
    )
    adapter = adapter.suited(config)
    objection = adapter.objection(config) or _no_choice_of_models(adapter, settings)
    if objection:
        raise ConfigurationError(objection)
    return Choice(agent_id, settings, adapter, adapter, config, config.binary, notes)


def _no_choice_of_models(adapter: type[Adapter], settings: Settings) -> str | None:
    """Why AGENT_MODEL or AGENT_MODELS cannot be had: better than to run another model unseen."""
    why = adapter.lacks.get("models")
    given = {"AGENT_MODEL": settings.agent_model, "AGENT_MODELS": settings.agent_models}
    names = [name for name, value in given.items() if value]
    if why is None or not names:
        return None
    wanted = " and ".join(names)
    return f"{adapter.name} cannot be told which model to use ({why}). Unset {wanted} for it."


def _lines(settings: Settings) -> Lines:
    return Lines(
        settings.agent_output == "ndjson",
        settings.agent_text_field,
        settings.agent_approval_pattern,
        settings.agent_approval_response,
        settings.agent_end_pattern,
        settings.agent_pty,
    )


def _identifier(name: str) -> str:
    """An agent's id in addresses, from the name of its adapter (which may be pkg.mod:Class)."""
    return name.replace(":", "-")


def _first_found() -> tuple[str, tuple[str, ...]]:
    for adapter in registry.with_binary():
        if shutil.which(adapter.binary):
            return adapter.name, (f"{adapter.binary} is the first known CLI on PATH",)
    return REPLAY, (
        "no coding-agent CLI was found on PATH, so a recording is played",
        f"choose another with AGENT_ADAPTER: {', '.join(registry.names())}",
    )


def _replay(agent_id: str, settings: Settings, notes: tuple[str, ...]) -> Choice:
    adapter = registry.load(REPLAY)
    objection = _no_choice_of_models(adapter, settings)
    if objection:
        raise ConfigurationError("; ".join((*notes[:1], objection)))
    path = os.path.abspath(settings.bridge_replay_file or recording.EXAMPLE)
    dialect = registry.load(recording.dialect(path))
    speed = str(settings.bridge_replay_speed)
    config = AgentConfig(sys.executable, ("-I", str(Path(player.__file__)), path, speed))
    make = functools.partial(adapter, dialect=dialect)  # type: ignore[call-arg]
    return Choice(agent_id, settings, adapter, make, config, f"{path} ({dialect.title})", notes)


def make_service(
    choice: Choice, pool: SessionPool, push: Push, version: str, state: State = NO_STATE
) -> Service:
    """The agent ready to be served. `version`: what its CLI says of itself, maybe nothing.
    `state`: where it keeps what must survive a restart."""
    settings = choice.settings
    limits = Limits(
        turn=settings.agent_timeout_ms / 1000,
        silence=settings.agent_idle_exit_ms / 1000,
        line=settings.bridge_max_line_bytes,
        term_grace=settings.bridge_stop_grace_ms / 1000,
    )
    sandbox = make_sandbox(choice, state)
    environment = choice.config.env
    if sandbox:
        environment = {**environment, "TMPDIR": sandbox.scratch}
    agent = Agent(
        choice.make,
        choice.config,
        environment,
        limits,
        settings.bridge_session_idle_ms / 1000,
        _attachments(choice, state.files),
        choice.adapter.steers,
        state.markers,
        state.spools if choice.adapter.spools else None,
        choice.adapter.by_the_minute,
        sandbox,
    )
    days, size = settings.bridge_keep_days, settings.bridge_max_store_bytes
    retention = Retention(settings.bridge_max_tasks, days, size)
    store = TaskStore(retention, choice.id, state.journal)
    profiles = {
        name: profile
        for name, profile in settings.profiles.items()
        if profile.agent in (None, choice.id)
    }
    manager = TaskManager(
        agent,
        choice.adapter,
        settings.workspaces,
        store,
        pool,
        notifier=push,
        policy=Policy(
            settings.bridge_thoughts,
            (*settings.agent_models, *(one.model for one in profiles.values() if one.model)),
            settings.bridge_when_busy,
            settings.bridge_max_tasks_per_context,
        ),
    )
    router = Router({choice.id: manager}, profiles=profiles)
    return _service(choice, manager, store, router, push, version)


def make_sandbox(choice: Choice, state: State = NO_STATE) -> Sandbox | None:
    """The boundary of the agent's CLIs, if it has one. Raises ConfigurationError where the one that
    was asked for cannot be had."""
    settings, adapter = choice.settings, choice.adapter
    if settings.bridge_sandbox == "none":
        return None
    allowed = ports(settings.bridge_sandbox_ports)
    if allowed is not None and adapter.any_port:
        text = f"{adapter.title} talks to itself over any TCP port"
        raise ConfigurationError(f"BRIDGE_SANDBOX_PORTS: {text}; it cannot be kept to some.")
    folder = state.files.parent if state.files else None
    sandbox = Sandbox(
        settings.bridge_sandbox,
        choice.config.env,
        make_scratch(folder, choice.id),
        (*adapter.writes, *settings.bridge_sandbox_write),
        (*HIDDEN, *([str(folder)] if folder else [])),
        ports=allowed,
        wrapper=settings.bridge_sandbox_wrapper,
    )
    sandbox.check()
    return sandbox


def make_root(
    choices: Sequence[Choice], services: Sequence[Service], push: Push, version: str
) -> Service:
    """What answers at the root: the default agent, and by its routing all the others."""
    default, first = choices[0], services[0]
    skills = {
        one.id: [skill.id for skill in one.settings.agent_skills or SKILLS] for one in choices
    }
    managers = {service.id: service.manager for service in services}
    router = Router(managers, skills_of(skills), default.settings.profiles)
    others = tuple(map(_as_skill, choices[1:]))
    return _service(default, first.manager, first.store, router, push, version, others)


def _service(
    choice: Choice,
    manager: TaskManager,
    store: TaskStore,
    router: Router,
    push: Push,
    version: str,
    skills: tuple[Skill, ...] = (),
) -> Service:
    settings = choice.settings
    card = functools.partial(make_card, choice, more_skills=skills)
    extended = functools.partial(card, details=_details(choice, version))
    sign = _signer(settings)
    operations = Operations(
        router,
        push,
        extended if needs_token(settings) else None,
        settings.bridge_stream_on_question,
        settings.bridge_fast_path_ms / 1000,
        sign,
    )
    return Service(
        choice.id,
        manager,
        store,
        operations,
        card,
        settings.bridge_card,
        sign,
        settings.bridge_require_extension,
    )


def _attachments(choice: Choice, folder: Path | None) -> Attachments:
    settings, adapter = choice.settings, choice.adapter
    sizes = (settings.bridge_max_text_bytes, settings.bridge_max_raw_bytes)
    return Attachments(
        settings.workspaces,
        adapter.input_modes,
        adapter.takes_urls,
        folder / choice.id if folder else None,
        limits=PartLimits(*sizes, settings.bridge_max_file_bytes, settings.bridge_max_parts),
    )


def _signer(settings: Settings) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    if settings.bridge_card_keys is None:
        return None
    if settings.bridge_card != "1.0":
        raise ConfigurationError("Only a pure 1.0 card can be signed: set BRIDGE_CARD=1.0.")
    signature = registry.optional("signature")
    keys = signature.load_keys(Path(settings.bridge_card_keys).expanduser())
    return functools.partial(signature.sign, keys=keys)


def make_card(
    choice: Choice,
    address: str,
    details: dict[str, object] | None = None,
    more_skills: tuple[Skill, ...] = (),
) -> Card:
    """The agent's card; `address` is what clients put before /a2a."""
    settings, title = choice.settings, choice.adapter.title
    about = f"{title} as an A2A agent: delegate coding tasks, watch them, answer, stop them."
    return Card(
        name=settings.agent_name or f"{title} (coding-agent-bridge)",
        description=settings.agent_description or about,
        version=__version__,
        url=f"{address}/a2a/jsonrpc",
        rest_url=f"{address}/a2a/rest",
        skills=(*(settings.agent_skills or _skills(choice.adapter)), *more_skills),
        input_modes=_input_modes(choice.adapter),
        output_modes=("text/plain", "application/json"),
        bearer=needs_token(settings),
        push=True,
        extended=needs_token(settings),
        details=details,
        extension_required=settings.bridge_require_extension,
    )


def _skills(adapter: type[Adapter]) -> tuple[Skill, ...]:
    """What a coding agent does; and, of this one, what it does not."""
    lacks = "".join(f" No {ability}: {why}." for ability, why in adapter.lacks.items())
    return tuple(replace(skill, description=skill.description + lacks) for skill in SKILLS)


def _as_skill(choice: Choice) -> Skill:
    """Another agent of the server, as a skill of the one at the root."""
    about = f"Has {choice.adapter.title} do it: send metadata.bridge.agent = {choice.id!r}."
    described = choice.settings.agent_description
    return Skill(
        choice.id,
        choice.settings.agent_name or choice.adapter.title,
        f"{described} {about}" if described else about,
        ("code",),
    )


def _input_modes(adapter: type[Adapter]) -> tuple[str, ...]:
    """What the CLI takes as it is, and any file: it is put down where the prompt says."""
    every = "application/octet-stream"
    known = {every, "*/*"} & set(adapter.input_modes)
    return adapter.input_modes if known else (*adapter.input_modes, every)


def _details(choice: Choice, version: str) -> dict[str, object]:
    """What the extended card tells of the runtime. No paths: they are the operator's."""
    settings = choice.settings
    return {
        "adapter": choice.adapter.name,
        "cliVersion": version,
        "model": settings.agent_model or "the CLI's own choice",
        "models": list(settings.agent_models),
        "modes": list(choice.adapter.modes),
        "asksForPermission": not settings.agent_force,
        "limits": {
            "turnMs": settings.agent_timeout_ms,
            "silenceMs": settings.agent_idle_exit_ms,
            "sessions": settings.bridge_max_sessions,
            "bodyBytes": settings.bridge_max_body_bytes,
        },
    }
