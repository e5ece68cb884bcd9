"""Information that a CLI prints about itself: its version, and whether it is logged in."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence

from bridge.errors import LaunchError
from bridge.process.agent_process import AgentProcess, Hooks
from bridge.process.line_splitter import LongLine
from bridge.process.spawn import Start
from bridge.sandbox.profile import Sandbox, launch_refusal
from bridge.server.agents.configured import ConfiguredAgent
from bridge.task.text import one_line

log = logging.getLogger(__name__)

VERSION_TIMEOUT = 5.0  # seconds for a CLI to print its version
LOGIN_TIMEOUT = 15.0  # seconds for its login status; the start of the server does not wait for it
NOT_LOGGED_IN = "is not logged in; tasks will fail"


async def version_of(agent: ConfiguredAgent, sandbox: Sandbox | None) -> str:
    """The first line that the CLI prints for --version; "" after a failure or timeout."""
    if not agent.adapter.binary:
        return ""
    printed: list[bytes | LongLine] = []
    try:
        process = await _start(agent, sandbox, ["--version"], Hooks(printed.extend))
        await _wait(process, VERSION_TIMEOUT)
    except (LaunchError, TimeoutError):
        pass
    first = printed[0] if printed else b""
    return one_line(first.decode(errors="replace")) if isinstance(first, bytes) else ""


async def check_logins(
    agents: Sequence[ConfiguredAgent], sandboxes: Mapping[str, Sandbox | None]
) -> list[str]:
    """Log a warning for each CLI that is not logged in, by the same test as `doctor`. Returns the
    warnings. The CLIs run one after the other, so that many agents do not slow down the start."""
    notes = []
    for agent in agents:
        if not await _is_logged_in(agent, sandboxes.get(agent.id)):
            log.warning(NOT_LOGGED_IN, extra={"agent": agent.id, "todo": _login(agent)})
            notes.append(f"{agent.id}: {agent.adapter.title} {NOT_LOGGED_IN}: {_login(agent)}")
    return notes


def _login(agent: ConfiguredAgent) -> str:
    return agent.adapter.cli_info.login or f"coding-agent-bridge doctor --agent {agent.id}"


async def _is_logged_in(agent: ConfiguredAgent, sandbox: Sandbox | None) -> bool:
    """True also if the status is unknown."""
    status = agent.adapter.cli_info.status
    if not status:
        return True
    try:
        process = await _start(agent, sandbox, status, Hooks(lambda batch: None))
        code = await _wait(process, LOGIN_TIMEOUT)
    except (LaunchError, TimeoutError):
        return True
    stderr = process.stderr.decode(errors="replace")
    return code == 0 or (sandbox is not None and launch_refusal(code, stderr) is not None)


async def _start(
    agent: ConfiguredAgent, sandbox: Sandbox | None, arguments: Sequence[str], hooks: Hooks
) -> AgentProcess:
    cwd = sandbox.temporary_folder() if sandbox else os.getcwd()
    rules = sandbox.rules(cwd) if sandbox else None
    environment = sandbox.variables() if sandbox else agent.config.env
    argv = (agent.config.binary, *arguments)
    start = Start(argv, environment, cwd, stdin=False, rules=rules)
    return await AgentProcess.spawn(start, hooks, line_limit=200)


async def _wait(process: AgentProcess, timeout: float) -> int:
    try:
        return await asyncio.wait_for(process.wait(), timeout)
    finally:
        await process.stop()
