"""The sandbox of each configured agent, and the limits of its processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from bridge.adapter import Adapter
from bridge.adapter.print_mode import RunnerAdapter
from bridge.errors import ConfigurationError, LaunchError
from bridge.process import cgroup
from bridge.sandbox.credentials import OF_CLIENT, Privacy, privacy
from bridge.sandbox.homes import resolve
from bridge.sandbox.own_files import has_only_sockets, refuse_reachable
from bridge.sandbox.profile import Sandbox, best, find_user, make_homes, make_scratch, ports
from bridge.sandbox.trusted_programs import check as check_programs
from bridge.sandbox.trusted_programs import check_links, default_workspace, places
from bridge.server.agents.configured import ConfiguredAgent
from bridge.server.settings.places import Places
from bridge.server.settings.root import Settings
from bridge.server.state_dir import NO_STATE, State


def make_sandbox(agent: ConfiguredAgent, state: State = NO_STATE) -> Sandbox | None:
    """The sandbox of the agent's CLIs, after a trial run; None without one. Blocks. Raises
    ConfigurationError if the configured sandbox is not available."""
    settings, adapter = agent.settings, agent.adapter
    wanted = settings.sandbox
    profile = best() if wanted.profile == "auto" else wanted.profile
    allowed = ports(wanted.ports)
    _check_wanted(settings, adapter, profile=profile, allowed=allowed)
    user = find_user(wanted.user) if wanted.user else None
    limits = _process_limits(settings)
    if profile == "none" and not (user or limits):
        return None
    folder = state.files.parent if state.files else None
    env = agent.config.env
    homes = adapter.homes if profile in ("landlock", "bwrap") else ()
    sandbox = Sandbox(
        profile=profile,
        environment=env,
        scratch=make_scratch(folder, agent.id, user),
        writes=(*adapter.writable_paths, *wanted.write),
        private=private_places(agent, same_user=user is None),
        hidden=tuple(_own(agent, state)),
        elsewhere=Places(settings.state_home).private,
        homes=make_homes(homes, env, folder, agent.id, user),
        ports=allowed,
        wrapper=wanted.wrapper,
        limits=limits,
        user=user,
        sockets=wanted.unix_sockets == "allow",
        system_v=wanted.system_v == "allow",
        temporary=folder is None,
    )
    try:
        return _tried(sandbox, agent)
    except LaunchError as error:
        sandbox.close()
        raise ConfigurationError(f"{error} (BRIDGE_STATE_DIR)") from None
    except ConfigurationError:
        sandbox.close()
        raise


def _tried(sandbox: Sandbox, agent: ConfiguredAgent) -> Sandbox:
    """The sandbox after its checks, with resolved paths."""
    workspaces = agent.settings.agent.workspaces
    sandbox.prepare(workspaces.default)
    if sandbox.walls:
        refuse_reachable(agent.own_files, _writable(agent, sandbox))
    check_links(_named(agent, sandbox), _writable(agent, sandbox))
    sandbox = sandbox.settled(())  # the trial creates missing folders
    runner = agent.config.runner if issubclass(agent.adapter, RunnerAdapter) else ("", "")
    sandbox.check(agent.config.binary, workspaces.default, runner)
    places = (workspaces.default, *workspaces.roots)
    return sandbox.settled(places) if sandbox.walls else sandbox


def check_trusted(
    agents: Sequence[ConfiguredAgent],
    sandboxes: Mapping[str, Sandbox | None],
    libraries: str = "",
) -> None:
    """Raise ConfigurationError if an agent with walls could change a file that runs outside of
    them: the server, or the program of any agent. `libraries`: LD_LIBRARY_PATH of the server."""
    for one in agents:
        sandbox = sandboxes.get(one.id)
        if sandbox and sandbox.walls:
            helpers = ("bwrap",) if sandbox.profile == "bwrap" else ()
            for other in agents:
                config = other.config
                writable = _writable(one, sandbox)
                check_programs(writable, config.binary, config.env, libraries, helpers)


def group_limits(settings: Settings) -> dict[str, str]:
    """The limits of a session's control group: file name to content."""
    limits = settings.limits
    percent = limits.session_cpu_percent
    values = {
        "memory.max": limits.session_memory_bytes,
        "cpu.max": f"{percent * 1000} 100000" if percent else 0,
        "pids.max": limits.session_processes if _group_counts_processes(settings) else 0,
    }
    return {name: str(value) for name, value in values.items() if value}


def _process_limits(settings: Settings) -> dict[str, int]:
    """The limits of each process, by their names in setrlimit(2)."""
    limits = settings.limits
    values = {
        "fsize": limits.session_file_bytes,
        "nproc": 0 if _group_counts_processes(settings) else limits.session_processes,
    }
    return {name: value for name, value in values.items() if value}


def _group_counts_processes(settings: Settings) -> bool:
    """Whether the control group limits the number of processes. Otherwise the limit of the user
    does, if the CLIs have a user of their own."""
    return settings.sandbox.user is None or "pids" in cgroup.controllers()


def _named(agent: ConfiguredAgent, sandbox: Sandbox) -> dict[str, str]:
    """The paths that an agent may write to as they are configured, each with its setting."""
    settings = agent.settings
    named = {path: f"the adapter {agent.adapter.name}" for path in sandbox.paths}
    named |= {sandbox.path(path): "BRIDGE_SANDBOX_WRITE" for path in settings.sandbox.write}
    named |= {path: "AGENT_ALLOWED_REPO_ROOTS" for path in settings.agent.allowed_repo_roots}
    return {**named, settings.agent.repo_path or default_workspace(): "AGENT_REPO_PATH"}


def _writable(agent: ConfiguredAgent, sandbox: Sandbox) -> dict[str, str]:
    """The real paths that an agent may write to, each with its setting."""
    return {os.path.realpath(path): setting for path, setting in _named(agent, sandbox).items()}


def writable_places(
    agents: Sequence[ConfiguredAgent], sandboxes: Mapping[str, Sandbox | None]
) -> dict[str, str]:
    """The paths that any of the agents may write to, each with its setting."""
    found: dict[str, str] = {}
    for agent in agents:
        sandbox = sandboxes.get(agent.id)
        found |= _writable(agent, sandbox) if sandbox else agent.settings.writable
    return found


def _check_wanted(
    settings: Settings, adapter: type[Adapter], *, profile: str, allowed: tuple[int, ...] | None
) -> None:
    """Raise ConfigurationError for settings that the sandbox profile cannot enforce."""
    if allowed is not None and profile not in ("landlock", "bwrap"):
        text = f"requires BRIDGE_SANDBOX=landlock or bwrap; the sandbox profile is {profile}"
        raise ConfigurationError(f"BRIDGE_SANDBOX_PORTS {text}.")
    if allowed is not None and adapter.uses_any_port:
        text = f"{adapter.title} uses any local TCP port for its own connections"
        raise ConfigurationError(f"BRIDGE_SANDBOX_PORTS: {text}. Unset it for this agent.")
    if settings.agent.force and profile == "none" and settings.sandbox.profile == "auto":
        raise ConfigurationError(
            "AGENT_FORCE lets the CLI act without permission requests, and this kernel has no "
            "Landlock to confine it. Set BRIDGE_SANDBOX=bwrap or external. Set BRIDGE_SANDBOX=none "
            "if the CLI may do all that this user can do."
        )
    why = cgroup.enable({name.partition(".")[0] for name in group_limits(settings)})
    if why:
        raise ConfigurationError(f"BRIDGE_SESSION_…: {why}. Otherwise unset these limits.")


def private_places(agent: ConfiguredAgent, same_user: bool) -> Privacy:
    """The private places of the operator's home, and the paths there that the agent's CLI reads."""
    config = agent.config
    reads = (*own_reads(agent.adapter), *agent.settings.sandbox.read)
    return privacy(config.env, reads, places(config.binary, config.env), same_user)


def own_reads(adapter: type[Adapter]) -> list[str]:
    """The private paths that a CLI reads: its settings and its login."""
    own = [one.folder for one in adapter.homes if not one.variable.startswith("XDG_")]
    own += [path for one in adapter.homes for _, path in one.links]
    return [*own, *adapter.reads]


def _own(agent: ConfiguredAgent, state: State) -> Iterator[str]:
    """The server's own files outside the workspaces, which may contain tokens and keys, the folders
    that only the server and its client use, and files with credentials that variables name."""
    paths = [".env", *(one.path for one in agent.own_files if not (one.folder or one.public))]
    paths += [resolve(one, agent.config.env) for one in OF_CLIENT]
    paths += agent.settings.files_of_tools(agent.config.env)
    for path in (os.path.abspath(os.path.expanduser(one)) for one in paths):
        if not agent.settings.agent.workspaces.contains(path):
            yield path
    if socket_path := agent.settings.server.unix_socket:
        folder = os.path.realpath(os.path.dirname(socket_path))
        if has_only_sockets(folder):
            yield folder
    if state.files:
        yield str(state.files.parent)
    if state.operator:
        yield str(state.operator.path.parent)
