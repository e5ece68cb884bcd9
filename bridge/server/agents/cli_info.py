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
        hooks = Hooks(printed.extend)
        await _run(agent, sandbox, ["--version"], hooks=hooks, timeout=VERSION_TIMEOUT)
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
            doctor = f"coding-agent-bridge doctor --agent {agent.id}"
            todo = agent.adapter.cli_info.login or doctor
            log.warning(NOT_LOGGED_IN, extra={"agent": agent.id, "todo": todo})
            notes.append(f"{agent.id}: {agent.adapter.title} {NOT_LOGGED_IN}: {todo}")
    return notes


async def _is_logged_in(agent: ConfiguredAgent, sandbox: Sandbox | None) -> bool:
    """True also if the status is unknown."""
    status = agent.adapter.cli_info.status
    if not status:
        return True
    try:
        hooks = Hooks(lambda batch: None)
        code, stderr = await _run(agent, sandbox, status, hooks=hooks, timeout=LOGIN_TIMEOUT)
    except (LaunchError, TimeoutError):
        return True
    return code == 0 or (sandbox is not None and launch_refusal(code, stderr) is not None)


async def _run(
    agent: ConfiguredAgent,
    sandbox: Sandbox | None,
    arguments: Sequence[str],
    *,
    hooks: Hooks,
    timeout: float,
) -> tuple[int, str]:
    """The exit status and stderr. Raises LaunchError, and TimeoutError after `timeout` seconds."""
    cwd = sandbox.temporary_folder() if sandbox else os.getcwd()
    rules = sandbox.rules(cwd) if sandbox else None
    environment = sandbox.variables() if sandbox else agent.config.env
    argv = (agent.config.binary, *arguments)
    start = Start(argv, environment, cwd, stdin=False, rules=rules)
    process = await AgentProcess.spawn(start, hooks, line_limit=200)
    try:
        code = await asyncio.wait_for(process.wait(), timeout)
    finally:
        await process.stop()
    return code, process.stderr.decode(errors="replace")
