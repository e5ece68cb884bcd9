"""`coding-agent-bridge doctor`: check whether the server would work with these settings."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bridge import __version__
from bridge.adapter import Adapter
from bridge.cli.doctor.agent import Candidate, examine
from bridge.cli.doctor.database import broker, database
from bridge.cli.doctor.machine import kept, machine, port, state, unix_socket, workspace
from bridge.cli.doctor.report import (
    ADAPTER,
    SETTINGS,
    AgentReport,
    Check,
    absent,
    agent_section,
    as_json,
    failed,
    further,
    note,
    section,
    status,
    unlisted,
    verdict,
)
from bridge.cli.doctor.shares import shares
from bridge.cli.doctor.talk import Within
from bridge.errors import ConfigurationError
from bridge.errors.program import command
from bridge.process.process_tree import kill_descendants, reap_orphans
from bridge.server import registry
from bridge.server.agents.configured import REPLAY, agent_id_of, first_on_path
from bridge.server.operate.log_output import configure_logging
from bridge.server.settings.load import Loaded
from bridge.server.settings.root import Settings
from bridge.task.nearest import nearest

PARALLEL = 2  # checked CLIs; they start slowly, and each check has a timeout


async def doctor(
    loaded: Loaded,
    agent: str | None = None,
    *,
    live: bool = False,
    whole: bool = False,
    for_programs: bool = False,
    within: Within | None = None,
) -> int:
    """Check the machine and all agents, or only `agent` (an id of CONFIG_FILE, or the name of an
    adapter), and print a report, `for_programs` as JSON. `whole`: also list the known CLIs that are
    not checked. Returns the exit status. Raises
    ConfigurationError for an unknown agent."""
    configure_logging("ERROR")
    task, ended_by = asyncio.current_task(), []

    def stop(number: int) -> None:
        assert task
        ended_by.append(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    try:
        run = _Doctor(loaded, within=within or Within(), live=live, quiet=for_programs)
        return await run.run(agent, whole=whole)
    except asyncio.CancelledError:
        if not ended_by:
            raise
        return 128 + ended_by[0]
    finally:
        kill_descendants()
        reap_orphans()


class _Doctor:
    def __init__(self, loaded: Loaded, *, within: Within, live: bool, quiet: bool) -> None:
        self._loaded = loaded
        self._within = within
        self._live = live
        self._deep = False
        self._quiet = quiet

    async def run(self, agent: str | None, *, whole: bool) -> int:
        self._say(f"coding-agent-bridge {__version__}")
        if agent:
            one = named(self._loaded, agent)
            server = [*workspace(one.settings)]
            candidates, skipped, self._deep = [one], list[AgentReport](), True
        else:
            served = configured(self._loaded)
            settings = self._loaded.settings
            server = [*self._server(served), *await database(settings), *await broker(settings)]
            candidates, skipped = self._select(served)
        if server:
            self._say("\n" + section("server" if agent is None else "folder", server))
        agents = await self._examine(candidates)
        for report in skipped:
            if not report.like:
                self._show(report)
        self._list(agents, skipped, whole=whole)
        every = [*agents, *skipped]
        code = status(server, every)
        self._say("\n" + verdict(code, server, every))
        if self._quiet:
            print(json.dumps(as_json(code, server, every), indent=2))
        return code

    def _list(self, agents: list[AgentReport], skipped: list[AgentReport], *, whole: bool) -> None:
        """The known CLIs that were not checked; unless `whole`, only their number."""
        missing = [one for one in (*agents, *skipped) if not (one.like or one.shown)]
        others = [one for one in skipped if one.like and one.found]
        if not whole:
            if left := len(missing) + len(others):
                self._say(f"\n{unlisted(left)}")
            return
        if others:
            self._say("\n" + further(others))
        if missing:
            self._say("\n" + absent(missing))

    def _say(self, text: str) -> None:
        if not self._quiet:
            print(text, flush=True)

    def _server(self, served: list[Candidate]) -> Iterator[Check]:
        settings = self._loaded.settings
        yield from machine()
        yield from shares(settings, [one.adapter for one in served])
        yield from (note(SETTINGS, warning) for warning in self._loaded.warnings)
        if served[0].adapter.name == REPLAY and not served[0].settings.agent.adapter:
            yield note(SETTINGS, "no known CLI is on PATH: the server would play a recording")
        for one in {one.settings.agent.workspaces.default: one for one in served}.values():
            yield from workspace(one.settings)
        yield state(settings)
        yield from kept(settings)
        yield port(settings)
        if settings.server.unix_socket:
            yield unix_socket(settings)

    def _select(self, served: list[Candidate]) -> tuple[list[Candidate], list[AgentReport]]:
        """The CLIs to check, and the reports of those that are skipped."""
        candidates, skipped = list(served), list[AgentReport]()
        known = dict(self._known())
        seen = {one.adapter.binary: one.id for one in served}
        for name in sorted(known, key=lambda name: _rank(known[name])):
            adapter = known[name]
            if isinstance(adapter, str):
                check = failed(ADAPTER, adapter, f"repair or uninstall the package of {name}")
                skipped.append(AgentReport(name, name, adapter, False, [check]))
            elif name not in [one.adapter.name for one in served] and adapter.binary:
                path = shutil.which(adapter.binary)
                like = seen.setdefault(adapter.binary, name)
                if like != name or adapter.binary in registry.COMMON_NAMES:
                    skipped.append(_not_run(adapter, path, like))
                else:
                    candidates.append(_alone(name, self._loaded.settings))
        return candidates, skipped

    def _known(self) -> Iterator[tuple[str, type[Adapter] | str]]:
        """All adapters. For an adapter of another package that cannot be loaded, the reason."""
        for name in registry.names():
            try:
                yield name, registry.load(name)
            except (ConfigurationError, ImportError, AttributeError) as error:
                yield name, str(error)

    async def _examine(self, candidates: list[Candidate]) -> list[AgentReport]:
        """The reports in order. Each is printed as soon as all reports before it are complete."""
        room = asyncio.Semaphore(PARALLEL)

        async def one(candidate: Candidate) -> AgentReport:
            async with room:
                return await examine(
                    candidate,
                    self._loaded.dotenv,
                    live=self._live and candidate.served,
                    within=self._within,
                    deep=self._deep,
                )

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(candidate)) for candidate in candidates]
            for task in tasks:
                self._show(await task)
        return [task.result() for task in tasks]

    def _show(self, report: AgentReport) -> None:
        if report.shown:
            self._say("\n" + agent_section(report))


def configured(loaded: Loaded) -> list[Candidate]:
    """The agents that the server would run."""
    settings = loaded.settings
    if settings.server.agents:
        return [_of(name, settings.for_agent(name)) for name in settings.server.agents]
    return [_of("", settings)]


def named(loaded: Loaded, name: str) -> Candidate:
    """The agent of CONFIG_FILE with this id, otherwise the adapter with this name."""
    settings = loaded.settings
    agents = settings.server.agents
    if name in agents:
        return _of(name, settings.for_agent(name))
    known = [*agents, *registry.names()]
    if name not in known and ":" not in name:
        registry.refuse_withdrawn(name)
        text = f"unknown agent or adapter {name!r}; known are {', '.join(known)}."
        raise ConfigurationError(text + nearest(name, known))
    if not agents and settings.agent.adapter in (None, name):
        return _of("", settings.updated({"agent_adapter": name}))
    return _alone(name, settings, served=True)


def _of(agent_id: str, settings: Settings) -> Candidate:
    first = None if settings.agent.adapter else first_on_path()
    name = settings.agent.adapter or (first.name if first else REPLAY)
    adapter = registry.load(name)
    return Candidate(agent_id or agent_id_of(adapter.name), adapter, settings, served=True)


def _alone(name: str, settings: Settings, served: bool = False) -> Candidate:
    """An adapter without the settings for the CLI of another adapter."""
    update: dict[str, Any] = {"agent_binary": None, "agent_model": None, "agent_force": False}
    update |= {"agent_args": (), "agent_models": (), "agents": {}, "agent_adapter": name}
    return replace(_of(name, settings.updated(update)), served=served)


def _rank(adapter: type[Adapter] | str) -> bool:
    """Adapters that can ask the client precede other adapters of the same program."""
    return isinstance(adapter, str) or "questions" in adapter.limitations


def _not_run(adapter: type[Adapter], path: str | None, like: str) -> AgentReport:
    """The report of a CLI that is skipped although it is installed."""
    name, install = adapter.name, adapter.cli_info.install
    report = AgentReport(name, name, adapter.title, False, (), program=path, install=install)
    line = command("doctor", "--agent", name)
    if like != name:
        checks = [note("program", f"the same program as {like}; {line}")]
        return replace(report, checks=checks, like=like)
    text = f"{path} was not run, because other programs have the same name: {line}"
    checks = [note("program", text)] if path else []
    return replace(report, checks=checks)
