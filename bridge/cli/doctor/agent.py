"""The checks of one CLI, run as the server would run it: program, flags, login, handshake, prompt.

Each command has a timeout and is ended with all of its child processes. The values of the CLI's
variables are redacted from its output.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from bridge.adapter import Adapter
from bridge.cli.doctor.adapters import COLUMNS, ability
from bridge.cli.doctor.mcp import own_entries
from bridge.cli.doctor.report import ADAPTER, SETTINGS, AgentReport, Check, failed, note, ok
from bridge.cli.doctor.talk import Talk, Within
from bridge.errors import ConfigurationError, LaunchError
from bridge.process.process_tree import missed
from bridge.process.spawn import libraries
from bridge.sandbox.profile import Sandbox
from bridge.server.agents.cli_info import CommandResult, run_command
from bridge.server.agents.configured import REPLAY, ConfiguredAgent, configure_agents
from bridge.server.agents.sandboxes import check_trusted, make_sandbox
from bridge.server.settings.load import Loaded
from bridge.server.settings.root import Settings
from bridge.server.settings.sections import CHILD_ENVIRONMENT
from bridge.workspace.project_config import guards

MAX_TEXT = 400  # characters of CLI output in a report


@dataclass(frozen=True, slots=True)
class Candidate:
    """A CLI to check. `served`: the server would run it with `settings`."""

    id: str
    adapter: type[Adapter]
    settings: Settings
    served: bool

    @property
    def path(self) -> str | None:
        """The path of its program; None for a program of the bridge, or if it was not found."""
        wanted = self.wanted
        return shutil.which(os.path.expanduser(wanted)) if wanted else None

    @property
    def wanted(self) -> str:
        return self.settings.agent.binary or self.adapter.binary


async def examine(
    one: Candidate, dotenv: Mapping[str, str], *, live: bool, within: Within, deep: bool
) -> AgentReport:
    """Run all checks. `live`: also send a prompt to the model (may incur API cost). `deep`: also
    report the abilities and the variables of the agent."""
    found = one.path
    about = AgentReport(one.id, one.adapter.name, one.adapter.title, one.served, ())
    about = replace(about, install=one.adapter.cli_info.install)
    if found is None and one.adapter.name != REPLAY:
        return replace(about, checks=[_missing(one)])
    try:
        agent = configure(one, dotenv)
        sandbox = await asyncio.to_thread(make_sandbox, agent)
        check_trusted([agent], {agent.id: sandbox}, libraries())
    except ConfigurationError as error:
        return replace(about, program=found, checks=[_wrong(str(error))])
    try:
        checks = await _Examination(agent, sandbox, within).run(live)
    finally:
        if sandbox:
            await asyncio.to_thread(sandbox.close)
    checks += own_entries(agent)
    checks += _particulars(agent) if deep else ()
    return replace(about, program=agent.config.binary, checks=[_boundary(sandbox), *checks])


def configure(one: Candidate, dotenv: Mapping[str, str]) -> ConfiguredAgent:
    """The agent as the server would run it. Raises ConfigurationError."""
    name = one.settings.agent.adapter or one.adapter.name
    settings = one.settings.updated({"agents": {}, "agent_adapter": name})
    (agent,) = configure_agents(Loaded(settings, dotenv, []))
    return replace(agent, id=one.id)


def _particulars(agent: ConfiguredAgent) -> Iterator[Check]:
    """The abilities of the agent, and the names of its own variables."""
    can = {name: ability(agent.adapter, name) for name in COLUMNS}
    words = [name if answer == "yes" else f"{name} ({answer})" for name, answer in can.items()]
    yield note("abilities", ", ".join(words), **can)
    for name, why in agent.adapter.limitations.items():
        yield note("abilities", f"no {name}: {why}")
    own = sorted(name for name in agent.config.env if not _is_common(name))
    yield note("variables", f"its own: {', '.join(own) or 'none'}", names=own)


def _boundary(sandbox: Sandbox | None) -> Check:
    """The sandbox of the checks, which is that of the server."""
    if sandbox is None:
        return note("sandbox", "none: it can do all that this user can do (BRIDGE_SANDBOX)")
    check = ok if sandbox.walls or sandbox.profile == "external" else note
    left = [*sandbox.left_open, *missed()]
    words = f"{sandbox}; left open: {'; '.join(left)}" if left else str(sandbox)
    return check("sandbox", words, profile=sandbox.profile, open=left)


def _missing(one: Candidate) -> Check:
    adapter = one.adapter
    if not one.wanted:
        text = f"the adapter {adapter.name} runs any program, and AGENT_BINARY is unset"
        return failed(SETTINGS, text, "AGENT_BINARY=/path/to/the/program")
    text = f"{one.wanted} was not found, or is not executable"
    step = "set AGENT_BINARY to its path"
    return failed("program", text, " — or ".join(filter(None, (adapter.cli_info.install, step))))


def _wrong(text: str) -> Check:
    """The failed check of invalid settings. The first sentence of `text` is the problem, the rest
    is the remedy."""
    problem, _, step = text.partition(". ")
    return failed(SETTINGS, problem, step or "change this setting")


class _Examination:
    """The checks of the CLI of `agent`. After a fatal failure the later steps are skipped."""

    def __init__(self, agent: ConfiguredAgent, sandbox: Sandbox | None, within: Within) -> None:
        self._agent = agent
        self._sandbox = sandbox
        self._within = within
        self._cli_info = agent.adapter.cli_info
        self._secrets = dict(_secrets(agent.config.env))
        self._logged_in: bool | None = None  # None: unknown

    async def run(self, live: bool) -> list[Check]:
        checks: list[Check] = []
        try:
            checks.append(await self._program())
            if not checks[0].failed:
                checks += await self._flags()
                checks += await self._login()
                talk = Talk(
                    self._agent,
                    self._sandbox,
                    within=self._within,
                    shown=self.shown,
                    logged_in=self._logged_in,
                )
                checks += await talk.run(live)
        except LaunchError as error:
            step = self._cli_info.install or "repair or replace the program"
            checks.append(failed("program", self.shown(str(error)), step))
        except Exception as error:  # an adapter of another package can raise anything
            text = self.shown(f"the adapter failed: {type(error).__name__}: {error}")
            checks.append(failed(ADAPTER, text, "report it to the author of the adapter"))
        return checks

    def shown(self, text: str) -> str:
        """Output of a CLI on one line, with its secrets redacted."""
        for value, name in self._secrets.items():
            text = text.replace(value, f"<{name}>")
        text = " ".join(text.split())
        return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 2]} …"

    async def _run(self, arguments: Sequence[str], within: float) -> CommandResult:
        """Raises LaunchError."""
        agent = self._agent
        cwd = agent.settings.agent.workspaces.default
        return await run_command(agent, self._sandbox, arguments, within=within, cwd=cwd)

    # --- program, flags, login -----------------------------------------------------------------

    async def _program(self) -> Check:
        path = self._agent.config.binary
        if self._agent.adapter.name == REPLAY:
            return ok("program", self._agent.runs)
        if not self._agent.adapter.binary:  # an arbitrary program could do anything for --version
            return ok("program", path)
        ran = await self._run(["--version"], self._within.version)
        if ran.code is None:
            text = f"{path} printed no version within {self._within.version:g} s"
            return failed("program", text, f"run it yourself: {shlex.quote(path)} --version")
        version = self.shown(ran.out.strip().partition("\n")[0])
        if ran.code != 0:
            return note("program", f"{path}, version unknown")
        return ok("program", f"{path}, {version}" if version else path, version=version)

    async def _flags(self) -> list[Check]:
        """Look for the flags that the bridge uses in the help of the CLI."""
        flags, words = self._cli_info.flags, self._cli_info.help
        if not flags and words == ("--help",):
            return []
        ran = await self._run(words, self._within.help)
        command = shlex.join([self._agent.config.binary, *words])
        if ran.code is None:
            text = f"it printed no help within {self._within.help:g} s"
            return [failed("flags", text, f"run it yourself: {command}")]
        missing = [flag for flag in flags if not _names(f"{ran.out}\n{ran.err}", flag)]
        update = f"update it: {self._cli_info.install}"
        if missing:
            text = f"this version does not know {', '.join(missing)}"
            return [failed("flags", text, update, missing=missing)]
        if not flags:
            known = ok("flags", f"this version has the command {words[0]}", missing=[])
            unknown = failed("flags", f"this version has no command {words[0]}", update)
            return [known if ran.code == 0 else unknown]
        text = f"this version knows all {len(flags)} flags that the bridge uses"
        return [ok("flags", text, missing=[])]

    async def _login(self) -> list[Check]:
        status = self._cli_info.status
        if not status:
            return []
        ran = await self._run(status, self._within.login)
        if ran.code is None:
            text = f"no login status within {self._within.login:g} s"
            command = shlex.join([self._agent.config.binary, *status])
            return [failed("login", text, f"run it yourself: {command}")]
        self._logged_in = ran.code == 0
        if not self._logged_in:
            return [failed("login", "not logged in", self._cli_info.login, loggedIn=False)]
        return [ok("login", "logged in", loggedIn=True)]


def _names(text: str, flag: str) -> bool:
    """Whether the text contains the flag as a whole word."""
    return re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text) is not None


def _secrets(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The values to redact, with the names of their variables. Variables that every program gets
    are not secret, except addresses of proxies, which may contain passwords."""
    for name, value in environment.items():
        if len(value) >= 6 and ("proxy" in name.lower() or not _is_common(name)):
            yield value, name


def _is_common(name: str) -> bool:
    known = (*CHILD_ENVIRONMENT, *guards({}))
    return any(fnmatchcase(name, pattern) for pattern in known)
