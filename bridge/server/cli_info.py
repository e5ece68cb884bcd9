"""What a CLI says of itself when the server starts: its version, and whether it is signed in."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence

from bridge.errors import LaunchError
from bridge.process.agent_process import AgentProcess, Hooks, LongLine
from bridge.process.spawn import Start
from bridge.sandbox.profile import Sandbox, refusal
from bridge.server.assemble import Choice
from bridge.task.text import one_line

log = logging.getLogger(__name__)

VERSION_WITHIN = 5.0  # seconds that a CLI gets to print its version
LOGIN_WITHIN = 15.0  # seconds that it gets to say whether it is signed in; the server does not wait
NOT_SIGNED_IN = "is not signed in; tasks will fail"


async def version_of(choice: Choice, sandbox: Sandbox | None) -> str:
    """The first line that the CLI prints for --version; empty if it is not there in time."""
    if not choice.adapter.binary:
        return ""
    printed: list[bytes | LongLine] = []
    try:
        process = await _started(choice, sandbox, ["--version"], Hooks(printed.extend))
        await _ended(process, VERSION_WITHIN)
    except (LaunchError, TimeoutError):
        pass
    first = printed[0] if printed else b""
    return one_line(first.decode(errors="replace")) if isinstance(first, bytes) else ""


async def check_logins(
    choices: Sequence[Choice], sandboxes: Mapping[str, Sandbox | None]
) -> list[str]:
    """Warn of each CLI that is not signed in, as `doctor` finds it out. One after the other, so
    that many agents do not slow down the start. Returns the warnings."""
    notes = []
    for choice in choices:
        if not await _signed_in(choice, sandboxes.get(choice.id)):
            log.warning(NOT_SIGNED_IN, extra={"agent": choice.id, "todo": _login(choice)})
            notes.append(f"{choice.id}: {choice.adapter.title} {NOT_SIGNED_IN}: {_login(choice)}")
    return notes


def _login(choice: Choice) -> str:
    return choice.adapter.upkeep.login or f"coding-agent-bridge doctor --agent {choice.id}"


async def _signed_in(choice: Choice, sandbox: Sandbox | None) -> bool:
    """True also if there is no way to know."""
    status = choice.adapter.upkeep.status
    if not status:
        return True
    try:
        process = await _started(choice, sandbox, status, Hooks(lambda batch: None))
        code = await _ended(process, LOGIN_WITHIN)
    except (LaunchError, TimeoutError):
        return True
    said = process.stderr.decode(errors="replace")
    return code == 0 or (sandbox is not None and refusal(code, said) is not None)


async def _started(
    choice: Choice, sandbox: Sandbox | None, arguments: Sequence[str], hooks: Hooks
) -> AgentProcess:
    cwd = sandbox.temporary_folder() if sandbox else os.getcwd()
    rules = sandbox.rules(cwd) if sandbox else None
    environment = sandbox.variables() if sandbox else choice.config.env
    argv = (choice.config.binary, *arguments)
    start = Start(argv, environment, cwd, stdin=False, rules=rules)
    return await AgentProcess.spawn(start, hooks, line_limit=200)


async def _ended(process: AgentProcess, within: float) -> int:
    try:
        return await asyncio.wait_for(process.wait(), within)
    finally:
        await process.stop()
