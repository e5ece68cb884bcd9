"""Information that a CLI prints about itself: its version, and whether it is logged in."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bridge.errors import LaunchError
from bridge.errors.program import command
from bridge.process.agent_process import AgentProcess, Hooks, ProcessLimits
from bridge.process.line_splitter import LongLine
from bridge.process.spawn import Start
from bridge.sandbox.profile import Sandbox, launch_refusal
from bridge.server.agents.configured import ConfiguredAgent
from bridge.task.text import one_line

log = logging.getLogger(__name__)

VERSION_TIMEOUT = 5.0  # seconds for a CLI to print its version
LOGIN_TIMEOUT = 15.0  # seconds for its login status; the start of the server does not wait for it
MAX_LINES, MAX_LINE = 5000, 4096  # of the output of a command; bytes of a line
MAX_VERSION = 200  # characters
NOT_LOGGED_IN = "is not logged in; tasks will fail"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command; `code` is None after a timeout."""

    code: int | None
    out: str
    err: str


async def run_command(
    agent: ConfiguredAgent,
    sandbox: Sandbox | None,
    arguments: Sequence[str],
    *,
    within: float,
    cwd: str | None = None,
) -> CommandResult:
    """Run the CLI with these arguments as its sessions are run, at most for `within` seconds, in a
    folder of its own or in `cwd`. Raises LaunchError if it cannot be started."""
    cwd = cwd or (sandbox.temporary_folder() if sandbox else os.getcwd())
    rules = sandbox.rules(cwd) if sandbox else None
    environment = sandbox.variables() if sandbox else agent.config.env
    lines: list[str] = []

    def hear(batch: list[bytes | LongLine]) -> None:
        for line in batch[: MAX_LINES - len(lines)]:
            raw = line.head if isinstance(line, LongLine) else line
            lines.append(raw.decode(errors="replace"))

    start = Start((agent.config.binary, *arguments), environment, cwd, stdin=False, rules=rules)
    process = await AgentProcess.spawn(start, Hooks(hear), limits=ProcessLimits(MAX_LINE))
    code = None
    try:
        code = await asyncio.wait_for(process.wait(), within)
    except TimeoutError:
        pass
    finally:
        await process.stop(grace=1.0)
    err = process.stderr.decode(errors="replace")
    problem = launch_refusal(code, err) if sandbox else None
    if problem:
        raise LaunchError(problem)
    return CommandResult(code, "\n".join(lines), err)


async def version_of(agent: ConfiguredAgent, sandbox: Sandbox | None) -> str:
    """The first line that the CLI prints for --version; "" after a failure or timeout."""
    if not agent.adapter.binary:
        return ""
    try:
        ran = await run_command(agent, sandbox, ["--version"], within=VERSION_TIMEOUT)
    except LaunchError:
        return ""
    first = one_line(ran.out.partition("\n")[0])
    return first if len(first) <= MAX_VERSION else ""


async def check_logins(
    agents: Sequence[ConfiguredAgent], sandboxes: Mapping[str, Sandbox | None]
) -> list[str]:
    """Log a warning for each CLI that is not logged in, by the same test as `doctor`. Returns the
    warnings. The CLIs run one after the other, so that many agents do not slow down the start."""
    notes = []
    for agent in agents:
        if not await is_logged_in(agent, sandboxes.get(agent.id)):
            doctor = command("doctor", "--agent", agent.id)
            todo = agent.adapter.cli_info.login or doctor
            log.warning(NOT_LOGGED_IN, extra={"agent": agent.id, "todo": todo})
            notes.append(f"{agent.id}: {agent.adapter.title} {NOT_LOGGED_IN}: {todo}")
    return notes


async def is_logged_in(agent: ConfiguredAgent, sandbox: Sandbox | None) -> bool:
    """Whether the CLI is logged in; True also if the status is unknown."""
    status = agent.adapter.cli_info.status
    if not status:
        return True
    try:
        ran = await run_command(agent, sandbox, status, within=LOGIN_TIMEOUT)
    except LaunchError:
        return True
    return ran.code in (0, None)
