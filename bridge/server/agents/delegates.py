"""The agents and the configuration of the MCP server."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.auth.revocations import Revocations
from bridge.server.agents.cards import SKILLS, title_of
from bridge.server.agents.configured import ConfiguredAgent
from bridge.server.app.sites import ServedAgent
from bridge.server.extras import mcp_library
from bridge.server.state_dir import State
from bridge.server.token_file import open_secret
from bridge.store.handle import TaskHandle
from bridge.transports.mcp.delegates import DelegateAgent
from bridge.transports.mcp.endpoint import Caller, Endpoint, McpLimits, Missing

if TYPE_CHECKING:
    from bridge.transports.mcp.server import McpServer

log = logging.getLogger(__name__)

SECRET = "mcp-key"  # noqa: S105 - the name of a file
OFF = "This server has no MCP (BRIDGE_MCP=false)."


def make_endpoint(
    agents: Sequence[ConfiguredAgent],
    served: Sequence[ServedAgent],
    root: ServedAgent,
    state: State,
    caller: Caller,
    limits: McpLimits = McpLimits(),  # noqa: B008 - it is immutable
    revocations: Revocations | None = None,
) -> Endpoint:
    """The address of the MCP server. `agents` and `served` have the same order. `caller`: see
    Endpoint."""
    mode = agents[0].settings.mcp.mode
    return Endpoint(
        make_load(agents, served, root, state, limits),
        caller,
        sessions=limits.sessions,
        at_once=mode == "true",
        revocations=revocations,
    )


def make_load(
    agents: Sequence[ConfiguredAgent],
    served: Sequence[ServedAgent],
    root: ServedAgent,
    state: State,
    limits: McpLimits = McpLimits(),  # noqa: B008 - it is immutable
) -> Callable[[], Coroutine[Any, Any, McpServer]]:
    """Makes the MCP server of these agents."""
    if agents[0].settings.mcp.mode == "false":
        return _off
    return partial(_load, agents=agents, served=served, root=root, state=state, limits=limits)


async def _off() -> McpServer:
    raise Missing(OFF)


async def _load(
    *,
    agents: Sequence[ConfiguredAgent],
    served: Sequence[ServedAgent],
    root: ServedAgent,
    state: State,
    limits: McpLimits,
) -> McpServer:
    make_server, make_config = await asyncio.to_thread(mcp_library)
    settings = agents[0].settings
    days = settings.limits.keep_days
    config = make_config(
        approve=settings.mcp.approve,
        quick=settings.mcp.forms == "quick",
        most_depth=settings.constants.mcp_depth,
        keep=timedelta(days=days) if days else None,
        patience=settings.limits.question_timeout_ms / 1000,
        secret=await asyncio.to_thread(_secret, state.folder),
        cancel_after=limits.cancel_after,
    )
    delegates = [_delegate(*one) for one in zip(agents, served, strict=True)]
    asker = partial(_asker, root, {one.id: one.title for one in delegates})
    server = make_server(root.router, state.store, delegates, asker, config)
    await server.start()
    return server


def _secret(folder: Path | None) -> bytes:
    """The key of requestState. Without a state folder, the state ends with the server."""
    if folder:
        try:
            return open_secret(folder, SECRET).encode()
        except OSError as error:
            log.warning("MCP forms will not survive a restart", extra={"reason": error.strerror})
    return secrets.token_bytes(32)


def _delegate(agent: ConfiguredAgent, served: ServedAgent) -> DelegateAgent:
    settings, adapter = agent.settings.agent, agent.adapter
    workspaces = settings.workspaces
    return DelegateAgent(
        id=agent.id,
        title=title_of(agent),
        skills=[skill.id for skill in settings.skills or SKILLS],
        models=settings.models,
        modes=adapter.modes,
        roots=list(dict.fromkeys((workspaces.default, *workspaces.roots))),
        asks=not settings.force and "questions" not in adapter.limitations,
        is_busy=lambda: served.manager.figures()["tasks"] > 0,
    )


def _asker(root: ServedAgent, titles: Mapping[str, str], handle: TaskHandle) -> str:
    """The agent of a task and its project, for people."""
    title, directory = titles.get(handle.agent, handle.agent), root.router.directory(handle)
    return f"{title} in {os.path.basename(directory)}" if directory else title
