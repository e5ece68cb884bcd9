"""The description of the running server: a text for the operator, and a file for local clients."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bridge import __version__
from bridge.auth.config import AuthConfig
from bridge.errors.program import command
from bridge.process import cgroup
from bridge.process.process_tree import missed
from bridge.sandbox.profile import Sandbox
from bridge.server.agents.configured import ConfiguredAgent
from bridge.server.app.sites import CARD_PATHS
from bridge.server.state_dir import State
from bridge.server.token_file import describe
from bridge.workspace import project_config

log = logging.getLogger(__name__)

OPEN_TO_ALL = (
    "not required: every program of every user on this machine has access as the operator, except "
    "agents"
)
OPEN_TO_USER = "not required: every program of this user has access as the operator, except agents"
NO_SANDBOX = "none: agents can do all that this user can do"
MOST_NAMES = 5  # of files of a project in a note


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the server listens. `url`: http://HOST:PORT, or None without TCP. `path`: its Unix
    socket; `knows_users`: users of that socket need no token. `inodes`: of its TCP sockets."""

    url: str | None
    path: str | None = None
    knows_users: bool = False
    inodes: Sequence[int] = ()

    @property
    def base(self) -> str:
        """The base of URLs."""
        return self.url or "http://localhost"


def announce(
    agents: Sequence[ConfiguredAgent],
    address: Listening,
    state: State,
    home: Path,
    *,
    until_idle: bool = False,
) -> Callable[[], None]:
    """Describe the running server for clients of this user: in its folder, or in a temporary one in
    `home`; a folder elsewhere gets a pointer in `home`. `until_idle`: a command started it. Returns
    the function that removes it."""
    folder = state.folder or (state.operator.path.parent if state.operator else None)
    spaces = [one.settings.agent.workspaces for one in agents]
    facts = {
        "url": _local(address),
        "socket": address.path,
        "inodes": address.inodes,
        "started": time.time(),
        "untilIdle": until_idle,
        "agents": [one.id for one in agents],
        "roots": list(dict.fromkeys(root for one in spaces for root in (one.default, *one.roots))),
        "token": state.operator.path.name if state.operator else None,
    }
    closing = contextlib.ExitStack()
    try:
        closing.callback(describe(folder, home, facts).close)
        if folder and os.path.realpath(folder.parent) != os.path.realpath(home):
            # Clients look only in `home`, where no agent can write.
            closing.callback(describe(None, home, {"folder": os.path.realpath(folder)}).close)
    except OSError as error:
        place = {"folder": error.filename or folder or home, "reason": error.strerror}
        log.warning("local clients cannot find this server", extra=place)
    return closing.close


def banner(
    agents: Sequence[ConfiguredAgent],
    *,
    versions: Mapping[str, str],
    address: Listening,
    state: State,
    sandboxes: Mapping[str, Sandbox | None],
    notes: Sequence[str] = (),
    more: Sequence[str] = (),
) -> str:
    """The agents, the addresses, and a command to try them. `versions` and `sandboxes` are by agent
    id; `more`: lines about other addresses."""
    auth_config = agents[0].settings.auth.config
    lines = [f"coding-agent-bridge {__version__}", *(f"  note       {note}" for note in notes)]
    for agent in agents:
        lines += [f"  note       {note}" for note in (*agent.notes, *_workspace_notes(agent))]
        lines.append(f"  agent      {agent.id}: {agent.runs} {versions[agent.id]}".rstrip())
        lines.append(f"  workspace  {agent.settings.agent.workspaces.default}")
        sandbox = sandboxes.get(agent.id)
        lines.append(f"  sandbox    {sandbox or NO_SANDBOX}")
        if sandbox and sandbox.left_open:
            lines.append(f"  left open  {'; '.join((*sandbox.left_open, *missed()))}")
    base, card = address.base, CARD_PATHS[0]
    open_to = OPEN_TO_ALL if address.url else OPEN_TO_USER
    lines += [
        f"  state      {state.place}",
        f"  token      {state.operator.path if state.operator else open_to}",
        f"  cleanup    {_cleanup(all(one and one.walls for one in sandboxes.values()))}",
        *([f"  socket     {address.path}{_who(address, auth_config)}"] if address.path else []),
        f"  endpoint   {base}/a2a/jsonrpc",
        *(f"             {base}/agents/{agent.id}/a2a/jsonrpc" for agent in agents[1:]),
        *more,
        f"  card       {base}{card}",
        *(f"             {base}/agents/{agent.id}{card}" for agent in agents[1:]),
        f"  try it     {command('run', '-a', _local(address), 'Describe this project.')}",
    ]
    return "\n".join(lines)


def _workspace_notes(agent: ConfiguredAgent) -> Iterator[str]:
    """The facts about the workspace that surprise a person later."""
    settings = agent.settings.agent
    workspace = settings.workspaces.default
    folders = (Path(workspace), *Path(workspace).parents)
    if not any((folder / ".git").exists() for folder in folders):
        yield f"{workspace} is not in a git repository: the changes of an agent have no history"
    if settings.project_config == "deny":
        names = ", ".join(project_config.found(workspace, agent.adapter.project_files)[:MOST_NAMES])
        if names:
            yield f"the CLI does not use {names} (AGENT_PROJECT_CONFIG=allow: it does)"


def _local(address: Listening) -> str:
    """The address for programs of this machine."""
    url = address.url or f"unix:{address.path}"
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _cleanup(walled: bool) -> str:
    """How the processes of a session are found at its end."""
    if groups := cgroup.home():
        return f"control groups in {groups}"
    if missed():
        return "signals to descendants"
    return f"marks of processes{'' if walled else ', which an agent without a sandbox can remove'}"


def _who(address: Listening, config: AuthConfig) -> str:
    """Whether clients of the Unix socket need a token."""
    if not (config.required and config.same_user):
        return ""
    if address.knows_users:
        return ", where programs of this user need no token"
    return ", where clients need a token: agents have no sandbox or no control group"
