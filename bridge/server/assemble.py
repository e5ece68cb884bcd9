"""Which agents are served: from settings to what the manager and the card need."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge import __version__
from bridge.a2a.card import Card, Skill
from bridge.adapter import Adapter, AgentConfig, Lines, SessionStart
from bridge.auth.config import discovery
from bridge.errors import ConfigurationError, LaunchError
from bridge.process import cgroup, pty_runner, replayer
from bridge.push.notifier import Push
from bridge.runtime.context import Agent
from bridge.runtime.router import Router, skills_of
from bridge.runtime.tasks import Policy, TaskManager
from bridge.sandbox.credentials import hidden
from bridge.sandbox.own_files import OwnFile, refuse_reachable
from bridge.sandbox.profile import (
    Sandbox,
    best,
    find_user,
    let_through,
    make_homes,
    make_scratch,
    ports,
)
from bridge.sandbox.trusted_programs import check as check_programs
from bridge.sandbox.trusted_programs import check_links, default_workspace
from bridge.server import recording, registry
from bridge.server.app import Service
from bridge.server.extras import card_signer
from bridge.server.settings import Loaded, Settings, nearest
from bridge.server.state_dir import NO_STATE, State
from bridge.session.factory import SessionFactory
from bridge.session.pool import SessionPool
from bridge.session.prewarm import Plan
from bridge.session.session import Limits
from bridge.store.tasks import Retention, TaskStore
from bridge.telemetry.gc_tuning import Heap
from bridge.transports.operation import Operations
from bridge.workspace import project_config
from bridge.workspace.attachments import Attachments, PartLimits
from bridge.workspace.project_config import Trust

REPLAY = "replay"
# Programs, which are not imported: the server does without what they need.
RUNNER = (sys.executable, "-I", pty_runner.__file__)
PLAYER = (sys.executable, "-I", replayer.__file__)
OUTSIDE_THE_CODE = (
    "this directory has the bridge's own code, which no agent may change, so that the workspace is "
    "the folder below; choose another with AGENT_REPO_PATH"
)
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
    what was chosen and why. `own_files`: what it may not read, since the server has read it."""

    id: str
    settings: Settings
    adapter: type[Adapter]
    make: Callable[[AgentConfig, SessionStart], Adapter]
    config: AgentConfig
    runs: str
    notes: tuple[str, ...] = ()
    own_files: tuple[OwnFile, ...] = ()


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
    if settings.agent_repo_path is None and default_workspace() != os.getcwd():
        notes = (*notes, OUTSIDE_THE_CODE)
    agent_id = agent_id or _identifier(name)
    if name == REPLAY:
        return _replay(agent_id, settings, notes, loaded)
    try:
        adapter = registry.load(name)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}{nearest(name, registry.names())}") from None
    wanted = settings.binary(adapter.binary_setting) or adapter.binary
    if not wanted:
        raise ConfigurationError(f"The adapter {name} needs AGENT_BINARY, the program to run.")
    binary = shutil.which(os.path.expanduser(wanted))
    if binary is None:
        install = adapter.upkeep.install
        command = f" ({install})" if install else ""
        raise ConfigurationError(
            f"{wanted} was not found, or is not executable. Install {adapter.title}{command}, or "
            f"set {adapter.binary_setting} to its path."
        )
    config = AgentConfig(
        os.path.abspath(binary),
        settings.agent_args,
        settings.agent_model,
        settings.agent_force,
        _guarded(_environment(settings, adapter, loaded), settings),
        os.geteuid() == 0 and not settings.bridge_sandbox_user,
        RUNNER,
        _lines(settings),
        settings.agent_project_config == "allow",
    )
    adapter = adapter.suited(config)
    objection = adapter.objection(config) or _no_choice_of_models(adapter, settings)
    if objection:
        raise ConfigurationError(objection)
    if settings.bridge_warm_sessions and adapter.warms == "no":
        notes = (*notes, f"BRIDGE_WARM_SESSIONS: {adapter.title} is started anew for each turn")
    own = tuple(loaded.own_files)
    return Choice(agent_id, settings, adapter, adapter, config, config.binary, notes, own)


def _environment(settings: Settings, adapter: type[Adapter], loaded: Loaded) -> dict[str, str]:
    """What the CLI sees of the server's; of another user, who that is and where he lives."""
    environment = settings.child_environment(adapter.environment, loaded.dotenv)
    if settings.bridge_sandbox_user is None:
        return environment
    user = find_user(settings.bridge_sandbox_user)
    kept = {name: value for name, value in environment.items() if not name.startswith("XDG_")}
    return {**kept, **user.variables}


def _guarded(environment: dict[str, str], settings: Settings) -> dict[str, str]:
    allowed = settings.agent_project_config == "allow"
    return environment if allowed else {**environment, **project_config.guards(environment)}


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


def _replay(agent_id: str, settings: Settings, notes: tuple[str, ...], loaded: Loaded) -> Choice:
    adapter = registry.load(REPLAY)
    objection = _no_choice_of_models(adapter, settings)
    if objection:
        raise ConfigurationError("; ".join((*notes[:1], objection)))
    path = os.path.abspath(settings.bridge_replay_file or recording.EXAMPLE)
    dialect = registry.load(recording.dialect(path))
    speed = str(settings.bridge_replay_speed)
    config = AgentConfig(PLAYER[0], (*PLAYER[1:], path, speed))
    make = functools.partial(adapter, dialect=dialect)  # type: ignore[call-arg]
    runs = f"{path} ({dialect.title})"
    own = tuple(loaded.own_files)
    return Choice(agent_id, settings, adapter, make, config, runs, notes, own)


def make_service(
    choice: Choice,
    pool: SessionPool,
    push: Push,
    version: str,
    state: State = NO_STATE,
    sandbox: Sandbox | None = None,
) -> Service:
    """The agent ready to be served. `version`: what its CLI says of itself, maybe nothing.
    `state`: where it keeps what must survive a restart. `sandbox`: see make_sandbox()."""
    settings = choice.settings
    limits = Limits(
        turn=settings.agent_timeout_ms / 1000,
        silence=settings.agent_idle_exit_ms / 1000,
        start=settings.bridge_start_timeout_ms / 1000,
        line=settings.bridge_max_line_bytes,
        term_grace=settings.bridge_stop_grace_ms / 1000,
        group=_group(settings),
    )
    sessions = SessionFactory(
        adapter=choice.make,
        config=choice.config,
        environment=choice.config.env,
        limits=limits,
        markers=state.markers,
        spools=state.spools,
        sandbox=sandbox,
        secrets=settings.secrets(choice.config.env, _secret(state)),
    )
    agent = Agent(
        sessions=sessions,
        idle_seconds=settings.bridge_session_idle_ms / 1000,
        attachments=_attachments(choice, state.files, sandbox),
        steers=choice.adapter.steers,
        by_the_minute=choice.adapter.by_the_minute,
        rules=settings.rules,
        patience=settings.bridge_question_timeout_ms / 1000,
        audit=state.audit,
        trust=Trust(
            settings.agent_project_config, choice.adapter.project_files, choice.adapter.unshut
        ),
        warm=_warm(choice),
        check=settings.workspaces.check,
        replies=choice.adapter.may_reply,
    )
    days, size = settings.bridge_keep_days, settings.bridge_max_store_bytes
    retention = Retention(settings.bridge_max_tasks, days, size, pool.quotas.stored_bytes)
    store = TaskStore(retention, choice.id, state.journal, Heap().trim)
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
            settings.bridge_on_disconnect,
            settings.bridge_disconnect_grace_ms / 1000,
        ),
    )
    router = Router({choice.id: manager}, profiles=profiles)
    return _service(choice, manager, store, router, push, version)


def _secret(state: State) -> Mapping[str, str]:
    return {"OPERATOR_TOKEN": state.operator.value} if state.operator else {}


def _warm(choice: Choice) -> Plan:
    adapter = choice.adapter
    number = choice.settings.bridge_warm_sessions if adapter.warms != "no" else 0
    files = (*adapter.project_files, *adapter.remembers)
    return Plan(number, adapter.warms == "greeted", files)


def make_sandbox(choice: Choice, state: State = NO_STATE) -> Sandbox | None:
    """The boundary of the agent's CLIs, if it has one; blocks until it was tried. Raises
    ConfigurationError where the one that was asked for cannot be had."""
    settings, adapter = choice.settings, choice.adapter
    profile = best() if settings.bridge_sandbox == "auto" else settings.bridge_sandbox
    allowed = ports(settings.bridge_sandbox_ports)
    _check_wanted(settings, profile, allowed, adapter)
    user = find_user(settings.bridge_sandbox_user) if settings.bridge_sandbox_user else None
    limits = _limits(settings)
    if profile == "none" and not (user or limits):
        return None
    folder = state.files.parent if state.files else None
    env = choice.config.env
    wanted = adapter.homes if profile in ("landlock", "bwrap") else ()
    sandbox = Sandbox(
        profile,
        env,
        make_scratch(folder, choice.id, user),
        (*adapter.writes, *settings.bridge_sandbox_write),
        (*_hidden(adapter, env, settings.bridge_sandbox_read), *_own(choice), *_kept(state)),
        settings.bridge_sandbox_read,
        make_homes(wanted, env, folder, choice.id, user),
        allowed,
        settings.bridge_sandbox_wrapper,
        limits,
        user,
        settings.bridge_sandbox_unix_sockets == "allow",
        temporary=folder is None,
    )
    try:
        sandbox.prepare(settings.workspaces.default)
        if sandbox.walls:
            refuse_reachable(choice.own_files, _writable(choice, sandbox))
        check_links(_named(choice, sandbox), _writable(choice, sandbox))
        places = (settings.workspaces.default, *settings.workspaces.roots)
        sandbox = sandbox.settled(())  # what is missing is made by the trial
        sandbox.check(choice.config.binary, settings.workspaces.default)
        return sandbox.settled(places) if sandbox.walls else sandbox
    except LaunchError as error:
        sandbox.close()
        raise ConfigurationError(f"{error} (BRIDGE_STATE_DIR)") from None
    except ConfigurationError:
        sandbox.close()
        raise


def check_trusted(
    choices: Sequence[Choice], sandboxes: Mapping[str, Sandbox | None], libraries: str = ""
) -> None:
    """Raise ConfigurationError if an agent with walls could change what runs outside of them: the
    server, or the program of any agent. `libraries`: LD_LIBRARY_PATH of the server."""
    for one in choices:
        sandbox = sandboxes.get(one.id)
        if sandbox and sandbox.walls:
            helpers = ("bwrap",) if sandbox.profile == "bwrap" else ()
            for other in choices:
                config = other.config
                writable = _writable(one, sandbox)
                check_programs(writable, config.binary, config.env, libraries, helpers)


def _named(choice: Choice, sandbox: Sandbox) -> dict[str, str]:
    """The paths that an agent may write as they are written down, each with its setting."""
    settings = choice.settings
    named = {path: f"the adapter {choice.adapter.name}" for path in sandbox.paths}
    named |= {sandbox.path(one): "BRIDGE_SANDBOX_WRITE" for one in settings.bridge_sandbox_write}
    named |= {one: "AGENT_ALLOWED_REPO_ROOTS" for one in settings.agent_allowed_repo_roots}
    return {**named, settings.agent_repo_path or default_workspace(): "AGENT_REPO_PATH"}


def _writable(choice: Choice, sandbox: Sandbox) -> dict[str, str]:
    """The real paths that an agent may write, each with its setting."""
    return {os.path.realpath(path): setting for path, setting in _named(choice, sandbox).items()}


def _check_wanted(
    settings: Settings, profile: str, allowed: tuple[int, ...] | None, adapter: type[Adapter]
) -> None:
    """Raise ConfigurationError for what there can be no such boundary for."""
    if allowed is not None and profile not in ("landlock", "bwrap"):
        text = "only BRIDGE_SANDBOX=landlock and bwrap keep a CLI to some"
        raise ConfigurationError(f"BRIDGE_SANDBOX_PORTS: {text}, and here it is {profile}.")
    if allowed is not None and adapter.any_port:
        text = f"{adapter.title} talks to itself over any TCP port"
        raise ConfigurationError(f"BRIDGE_SANDBOX_PORTS: {text}; it cannot be kept to some.")
    if settings.agent_force and profile == "none" and settings.bridge_sandbox == "auto":
        raise ConfigurationError(
            "AGENT_FORCE lets the CLI act without asking, and this kernel has no Landlock to keep "
            "it in. Set BRIDGE_SANDBOX=bwrap or external; or BRIDGE_SANDBOX=none, if it may do "
            "whatever this user can."
        )
    why = cgroup.enable({name.partition(".")[0] for name in _group(settings)})
    if why:
        raise ConfigurationError(f"BRIDGE_SESSION_…: {why}, or set no such limit.")


def _hidden(
    adapter: type[Adapter], environment: Mapping[str, str], reads: Sequence[str]
) -> tuple[str, ...]:
    """Credentials that are not the CLI's own. `reads`: what the operator shows it besides."""
    own = [one.folder for one in adapter.homes if not one.variable.startswith("XDG_")]
    own += [path for one in adapter.homes for _, path in one.links]
    return hidden(environment, (*own, *adapter.reads, *reads))


def _own(choice: Choice) -> Iterator[str]:
    """The server's own files, which may hold tokens and keys, as far as no agent works on them."""
    named = (".env", *(one.path for one in choice.own_files if not one.folder))
    for path in (os.path.abspath(os.path.expanduser(one)) for one in named):
        if not choice.settings.workspaces.contains(path):
            yield path


def _kept(state: State) -> Iterator[str]:
    """The folders that the server keeps to itself."""
    if state.files:
        yield str(state.files.parent)
    if state.operator:
        yield str(state.operator.path.parent)


def _limits(settings: Settings) -> dict[str, int]:
    """Those of each process, by their names in setrlimit(2)."""
    limits = {
        "fsize": settings.bridge_session_file_bytes,
        "nofile": settings.bridge_session_open_files,
        "nproc": 0 if _counted(settings) else settings.bridge_session_processes,
    }
    return {name: most for name, most in limits.items() if most}


def _group(settings: Settings) -> dict[str, str]:
    """Those of a session's control group, by its files."""
    percent = settings.bridge_session_cpu_percent
    limits = {
        "memory.max": settings.bridge_session_memory_bytes,
        "cpu.max": f"{percent * 1000} 100000" if percent else 0,
        "pids.max": settings.bridge_session_processes if _counted(settings) else 0,
    }
    return {name: str(most) for name, most in limits.items() if most}


def _counted(settings: Settings) -> bool:
    """Whether processes are counted by session. Where no group can do that, those of a user can
    be, if he has no others."""
    return settings.bridge_sandbox_user is None or "pids" in cgroup.controllers()


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
        extended if settings.auth.required else None,
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


def _attachments(choice: Choice, folder: Path | None, sandbox: Sandbox | None) -> Attachments:
    settings, adapter = choice.settings, choice.adapter
    user = sandbox.user if sandbox else None
    if folder and user:
        for one in (folder, folder / choice.id):
            one.mkdir(mode=0o700, exist_ok=True)
            let_through(one, user)
    sizes = (settings.bridge_max_text_bytes, settings.bridge_max_raw_bytes)
    return Attachments(
        settings.workspaces,
        adapter.input_modes,
        adapter.takes_urls,
        folder / choice.id if folder else None,
        PartLimits(*sizes, settings.bridge_max_file_bytes, settings.bridge_max_parts),
        user.gid if user else None,
    )


def _signer(settings: Settings) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    if settings.bridge_card_keys is None:
        return None
    if settings.bridge_card != "1.0":
        raise ConfigurationError("Only a pure 1.0 card can be signed: set BRIDGE_CARD=1.0.")
    return card_signer(settings.bridge_card_keys)


def make_card(
    choice: Choice,
    address: str,
    details: dict[str, object] | None = None,
    more_skills: tuple[Skill, ...] = (),
) -> Card:
    """The agent's card; `address` is what clients put before /a2a."""
    settings = choice.settings
    issuer = settings.bridge_oidc_issuer
    return Card(
        name=settings.agent_name or f"{_title(choice)} (coding-agent-bridge)",
        description=settings.agent_description or _about(choice),
        version=__version__,
        url=f"{address}/a2a/jsonrpc",
        rest_url=f"{address}/a2a/rest",
        skills=(*(settings.agent_skills or SKILLS), *more_skills),
        input_modes=_input_modes(choice.adapter),
        output_modes=("text/plain", "application/json"),
        bearer=settings.auth.required,
        oidc=issuer and discovery(issuer),
        push=True,
        extended=settings.auth.required,
        details=details,
        extension_required=settings.bridge_require_extension,
    )


def _about(choice: Choice) -> str:
    """What a model is told that may delegate to the agent: clients put it into its prompt."""
    asks = not choice.settings.agent_force and "questions" not in choice.adapter.lacks
    return (
        f"{choice.adapter.title}, a coding agent that reads, writes and runs code in a repository. "
        "Send a whole task in one message; the agent keeps its conversation for the next one."
        + (
            " It may ask before it edits a file or runs a command: reply with one of the options "
            "that the question names."
            if asks
            else ""
        )
    )


def _title(choice: Choice) -> str:
    """The adapter's title, with the agent's id where the operator has chosen one: a client that
    reads several cards must be able to tell the agents apart by their names."""
    title = choice.adapter.title
    names = (choice.adapter.name, choice.settings.agent_adapter or "")
    return title if choice.id in map(_identifier, names) else f"{title} {choice.id}"


def _as_skill(choice: Choice) -> Skill:
    """Another agent of the server, as a skill of the one at the root."""
    about = f"Has {choice.adapter.title} do it: send metadata.bridge.agent = {choice.id!r}."
    described = choice.settings.agent_description
    return Skill(
        choice.id,
        choice.settings.agent_name or _title(choice),
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
        "lacks": dict(choice.adapter.lacks),
        "limits": {
            "turnMs": settings.agent_timeout_ms,
            "silenceMs": settings.agent_idle_exit_ms,
            "sessions": settings.bridge_max_sessions,
            "bodyBytes": settings.bridge_max_body_bytes,
        },
    }
