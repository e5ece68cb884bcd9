"""One CLI, looked at as the server would run it: program, flags, login, handshake, a prompt.

Everything that is run has a time limit, and is ended with all that it has started. What a CLI
says is shown without the values of the variables that it was given.
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
from bridge.cli.doctor.report import SETTINGS, AgentReport, Check, failed, note, ok
from bridge.cli.doctor.talk import Talk, Within
from bridge.errors import ConfigurationError, LaunchError
from bridge.process.agent_process import AgentProcess, Hooks, LongLine
from bridge.process.spawn import Start, libraries
from bridge.sandbox.profile import Sandbox, refusal
from bridge.server.assemble import REPLAY, Choice, check_trusted, choose_all, make_sandbox
from bridge.server.settings import CHILD_ENVIRONMENT, Loaded, Settings
from bridge.workspace.project_config import guards

LINES = 5000  # of a CLI's help that are kept
SHOWN = 400  # characters of what a CLI says


@dataclass(frozen=True, slots=True)
class Candidate:
    """A CLI to look at, with the settings that it is, or would be, served with."""

    id: str
    adapter: type[Adapter]
    settings: Settings
    served: bool

    @property
    def path(self) -> str | None:
        """Its program, where there is one; none is looked for where the bridge brings it along."""
        wanted = self.wanted
        return shutil.which(os.path.expanduser(wanted)) if wanted else None

    @property
    def wanted(self) -> str:
        return self.settings.binary(self.adapter.binary_setting) or self.adapter.binary


async def examine(
    one: Candidate,
    dotenv: Mapping[str, str],
    live: bool = False,
    within: Within | None = None,
    deep: bool = False,
) -> AgentReport:
    """Look at all of it. `live`: with a prompt to the model, which may cost something. `deep`:
    with what the agent can do, and what it is given."""
    found = one.path
    about = AgentReport(one.id, one.adapter.name, one.adapter.title, one.served, ())
    about = replace(about, install=one.adapter.upkeep.install)
    if found is None and one.adapter.name != REPLAY:
        return replace(about, checks=[_missing(one)])
    try:
        choice = choose(one, dotenv)
        sandbox = await asyncio.to_thread(make_sandbox, choice)
        check_trusted([choice], {choice.id: sandbox}, libraries())
    except ConfigurationError as error:
        return replace(about, program=found, checks=[_wrong(str(error))])
    try:
        checks = await _Examination(choice, sandbox, within or Within()).run(live)
    finally:
        if sandbox:
            await asyncio.to_thread(sandbox.close)
    checks += _particulars(choice) if deep else ()
    return replace(about, program=choice.config.binary, checks=[_boundary(sandbox), *checks])


def choose(one: Candidate, dotenv: Mapping[str, str]) -> Choice:
    """What the server makes of it. Raises ConfigurationError."""
    name = one.settings.agent_adapter or one.adapter.name
    settings = one.settings.model_copy(update={"agents": {}, "agent_adapter": name})
    (choice,) = choose_all(Loaded(settings, dotenv, []))
    return replace(choice, id=one.id)


def _particulars(choice: Choice) -> Iterator[Check]:
    """What the agent can do, and the names of the variables that are set for it."""
    can = {name: ability(choice.adapter, name) for name in COLUMNS}
    words = [name if answer == "yes" else f"{name} ({answer})" for name, answer in can.items()]
    yield note("abilities", ", ".join(words), **can)
    for name, why in choice.adapter.lacks.items():
        yield note("abilities", f"no {name}: {why}")
    own = sorted(name for name in choice.config.env if not _is_common(name))
    yield note("variables", f"it sees {', '.join(own) or 'none'} of its own", names=own)


def _boundary(sandbox: Sandbox | None) -> Check:
    """What it is looked at in, as it would be served."""
    if sandbox is None:
        return note("sandbox", "none: it can do what this user can (BRIDGE_SANDBOX)")
    check = ok if sandbox.walls or sandbox.profile == "external" else note
    left = list(sandbox.left_open)
    words = f"{sandbox}; left open: {'; '.join(left)}" if left else str(sandbox)
    return check("sandbox", words, profile=sandbox.profile, open=left)


def _missing(one: Candidate) -> Check:
    adapter, setting = one.adapter, one.adapter.binary_setting
    if not one.wanted:
        text = f"the adapter {adapter.name} runs any program, and none is named"
        return failed(SETTINGS, text, "AGENT_BINARY=/path/to/the/program")
    text = f"{one.wanted} was not found, or is not executable"
    step = f"set {setting} to its path"
    return failed("program", text, " — or ".join(filter(None, (adapter.upkeep.install, step))))


def _wrong(text: str) -> Check:
    """What the settings are refused for; the first sentence says what, the rest what to do."""
    problem, _, step = text.partition(". ")
    return failed(SETTINGS, problem, step or "change that setting")


@dataclass(frozen=True, slots=True)
class _Ran:
    """What came of a command: `code` is None if it had to be ended."""

    code: int | None
    out: str
    err: str

    @property
    def text(self) -> str:
        return f"{self.out}\n{self.err}"


class _Examination:
    """The CLI of `choice`. Each step adds its checks; the first that fails for good is the last."""

    def __init__(self, choice: Choice, sandbox: Sandbox | None, within: Within) -> None:
        self._choice = choice
        self._rules = sandbox.rules(choice.settings.workspaces.default) if sandbox else None
        self._environment = sandbox.variables() if sandbox else choice.config.env
        self._within = within
        self._upkeep = choice.adapter.upkeep
        self._cwd = choice.settings.workspaces.default
        self._secrets = dict(_secrets(choice.config.env))
        self._logged_in: bool | None = None  # None: it has no way to tell

    async def run(self, live: bool) -> list[Check]:
        checks: list[Check] = []
        try:
            checks.append(await self._program())
            if not checks[0].failed:
                checks += await self._flags()
                checks += await self._login()
                talk = Talk(
                    self._choice,
                    self._within,
                    self.told,
                    self._logged_in,
                    self._environment,
                    self._rules,
                )
                checks += await talk.run(live)
        except LaunchError as error:
            text, step = self.told(str(error)), self._upkeep.install or "repair or replace it"
            checks.append(failed("program", text, step))
        except Exception as error:  # an adapter, which may be anybody's
            text = self.told(f"the adapter failed: {type(error).__name__}: {error}")
            checks.append(failed("adapter", text, "tell whoever wrote it"))
        return checks

    def told(self, text: str) -> str:
        """What a CLI says, on one line, and without what it was told in confidence."""
        for value, name in self._secrets.items():
            text = text.replace(value, f"<{name}>")
        text = " ".join(text.split())
        return text if len(text) <= SHOWN else f"{text[: SHOWN - 2]} …"

    async def _run(self, arguments: Sequence[str], within: float) -> _Ran:
        """Raises LaunchError."""
        argv = (self._choice.config.binary, *arguments)
        lines: list[str] = []

        def hear(batch: list[bytes | LongLine]) -> None:
            for line in batch[: LINES - len(lines)]:
                raw = line.head if isinstance(line, LongLine) else line
                lines.append(raw.decode(errors="replace"))

        start = Start(argv, self._environment, self._cwd, stdin=False, rules=self._rules)
        process = await AgentProcess.spawn(start, Hooks(hear), line_limit=4096)
        code = None
        try:
            code = await asyncio.wait_for(process.wait(), within)
        except TimeoutError:
            pass
        finally:
            await process.stop(grace=1.0)
        err = process.stderr.decode(errors="replace")
        problem = refusal(code, err) if self._rules else None
        if problem:
            raise LaunchError(problem)
        return _Ran(code, "\n".join(lines), err)

    # --- what it is ----------------------------------------------------------------------------

    async def _program(self) -> Check:
        path = self._choice.config.binary
        if self._choice.adapter.name == REPLAY:
            return ok("program", self._choice.runs)
        if not self._choice.adapter.binary:  # any program: who knows what it does with --version
            return ok("program", path)
        ran = await self._run(["--version"], self._within.version)
        if ran.code is None:
            text = f"{path} printed no version within {self._within.version:g} s"
            return failed("program", text, f"see what keeps it: {shlex.quote(path)} --version")
        said = self.told(ran.out.strip().partition("\n")[0])
        if ran.code != 0:
            return note("program", f"{path}, which does not tell its version")
        return ok("program", f"{path}, {said}" if said else path, version=said)

    async def _flags(self) -> list[Check]:
        """Those that the bridge uses, in the CLI's own help."""
        flags, words = self._upkeep.flags, self._upkeep.help
        if not flags and words == ("--help",):
            return []
        ran = await self._run(words, self._within.help)
        command = shlex.join([self._choice.config.binary, *words])
        if ran.code is None:
            text = f"it printed no help within {self._within.help:g} s"
            return [failed("flags", text, f"see what keeps it: {command}")]
        missing = [flag for flag in flags if not _names(ran.text, flag)]
        update = f"update it: {self._upkeep.install}"
        if missing:
            text = f"this version does not have {', '.join(missing)}"
            return [failed("flags", text, update, missing=missing)]
        if not flags:
            known = ok("flags", f"it knows the command {words[0]}", missing=[])
            unknown = failed("flags", f"this version has no command {words[0]}", update)
            return [known if ran.code == 0 else unknown]
        return [ok("flags", f"it has all {len(flags)} that the bridge uses", missing=[])]

    async def _login(self) -> list[Check]:
        status = self._upkeep.status
        if not status:
            return []
        ran = await self._run(status, self._within.login)
        if ran.code is None:
            text = f"it did not tell within {self._within.login:g} s"
            command = shlex.join([self._choice.config.binary, *status])
            return [failed("login", text, f"see what keeps it: {command}")]
        self._logged_in = ran.code == 0
        if not self._logged_in:
            return [failed("login", "not logged in", self._upkeep.login, loggedIn=False)]
        return [ok("login", "logged in", loggedIn=True)]


def _names(text: str, flag: str) -> bool:
    """Whether the flag stands there as a whole word."""
    return re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text) is not None


def _secrets(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Values that nobody is to be shown, with the names of their variables. Those that every
    program may see are none, but for proxies, whose addresses may hold passwords."""
    for name, value in environment.items():
        if len(value) >= 6 and ("proxy" in name.lower() or not _is_common(name)):
            yield value, name


def _is_common(name: str) -> bool:
    known = (*CHILD_ENVIRONMENT, *guards({}))
    return any(fnmatchcase(name, pattern) for pattern in known)
