"""The agents that a server serves now, and their changes while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bridge.errors import ConfigurationError, Unavailable
from bridge.process.spawn import libraries
from bridge.runtime.agent import Agent, Policy
from bridge.runtime.contexts import Stored
from bridge.runtime.tasks import TaskManager
from bridge.sandbox.profile import Sandbox
from bridge.server.agents.cli_info import version_of
from bridge.server.agents.configured import ConfiguredAgent, configure_agents
from bridge.server.agents.sandboxes import check_trusted, make_sandbox
from bridge.server.app.sites import ServedAgent
from bridge.server.assemble import (
    SharedParts,
    make_policy,
    make_root,
    make_runtime_agent,
    make_served_agent,
    serve_manager,
)
from bridge.server.settings.load import Loaded
from bridge.session.factory import SessionFactory

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Fleet:
    """The dictionaries are by agent id; `agents` and `served` have the same order, the default
    agent first. `managers` and `sandboxes` also have those of agents that end. `changed` is called
    after each change, `added` with each new agent."""

    shared: SharedParts
    agents: list[ConfiguredAgent]
    served: list[ServedAgent]
    root: ServedAgent
    managers: dict[str, TaskManager]
    sandboxes: dict[str, Sandbox | None]
    versions: dict[str, str]
    past: list[Sandbox] = field(default_factory=list)
    factories: list[tuple[str, SessionFactory]] = field(default_factory=list)
    ending: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    changed: Callable[[], None] = lambda: None
    added: Callable[[str, TaskManager], None] = lambda agent_id, manager: None

    @property
    def walled(self) -> bool:
        """Whether the CLIs of all agents, also of those before a change, have walls."""
        found = [*self.sandboxes.values(), *self.past]
        return all(one is not None and one.walls for one in found)

    async def prepare(self, loaded: Loaded) -> FleetPlan:
        """Everything for other settings; nothing is changed. Raises ConfigurationError."""
        agents = await asyncio.to_thread(configure_agents, loaded)
        if agents[0].id != self.agents[0].id:
            text = f"the default agent is {self.agents[0].id}; another one needs a restart"
            raise ConfigurationError(text)
        _check_files(self.agents[0], agents[0])
        old = {one.id: one for one in self.agents}
        plan = FleetPlan(agents, dict(self.sandboxes), dict(self.versions))
        try:
            await self._fill(plan, old)
        except BaseException:  # also if the server stops meanwhile
            await self._drop(plan)
            raise
        return plan

    async def _fill(self, plan: FleetPlan, old: Mapping[str, ConfiguredAgent]) -> None:
        agents, sandboxes, versions = plan.agents, plan.sandboxes, plan.versions
        for agent in agents:
            if agent.id in self.ending:
                raise ConfigurationError(f"the agent {agent.id} ends still: repeat this later")
            if agent.id in old and not _differs(old[agent.id], agent):
                continue
            plan.changed.append(agent.id)
            sandboxes[agent.id] = await asyncio.to_thread(make_sandbox, agent, self.shared.state)
            versions[agent.id] = await version_of(agent, sandboxes[agent.id])
        check_trusted(agents, {one.id: sandboxes[one.id] for one in agents}, libraries())
        plan.removed = [one for one in old if one not in {new.id for new in agents}]
        served: dict[str, ServedAgent] = {}
        for agent in (one for one in agents if one.id in old):
            manager = self.managers[agent.id]
            served[agent.id] = serve_manager(agent, self.shared, manager, versions[agent.id])
            runtime = make_runtime_agent(agent, self.shared, sandboxes[agent.id])
            plan.runtime[agent.id] = runtime, make_policy(agent, self.shared)
        new = [one for one in agents if one.id not in old]
        for agent in new:
            made = served[agent.id] = make_served_agent(
                agent, self.shared, version=versions[agent.id], sandbox=sandboxes[agent.id]
            )
            plan.new[agent.id] = made.manager
        plan.served = [served[one.id] for one in agents]
        for agent in new:  # last: with a shared store, this server has their conversations then
            try:
                plan.stored[agent.id] = await plan.new[agent.id].contexts.load()
            except Unavailable as error:
                text = f"the tasks of {agent.id} cannot be read: {error}"
                raise ConfigurationError(text) from error

    async def _drop(self, plan: FleetPlan) -> None:
        """Remove the parts of a plan that is not used."""
        made = [plan.sandboxes[one] for one in plan.changed if one in plan.sandboxes]
        known = [*self.sandboxes.values()]
        for sandbox in made:
            if sandbox and not any(sandbox is one for one in known):
                await asyncio.to_thread(sandbox.close)
        for stored in plan.stored.values():
            for fence in stored.fences.values():
                with contextlib.suppress(Unavailable):  # its lease ends without it
                    await self.shared.state.store.release(fence)

    def apply(self, plan: FleetPlan, drain: float) -> None:
        """Use the plan from the next request on. The open tasks of removed agents have `drain`
        seconds."""
        for agent in plan.agents:
            if agent.id in plan.runtime:
                self._change(agent, *plan.runtime[agent.id], new=agent.id in plan.changed)
        old = [self.sandboxes.get(one) for one in plan.changed]
        self.past += [one for one in old if one]
        self.agents[:], self.served[:] = plan.agents, plan.served
        self.sandboxes.update(plan.sandboxes)
        self.versions.update(plan.versions)
        self.managers.update(plan.new)
        for agent_id in plan.removed:
            self.ending[agent_id] = asyncio.create_task(self._end(agent_id, drain))
        self._renew_root()
        for agent_id, manager in plan.new.items():
            manager.contexts.restore(plan.stored[agent_id], reattach=False)
            self.added(agent_id, manager)
            manager.warm_up()
        self.changed()

    def _change(self, agent: ConfiguredAgent, made: Agent, policy: Policy, *, new: bool) -> None:
        """Change a running agent. `new`: also the sessions of new conversations; otherwise the
        rules, the redaction and the limits of its clients."""
        manager, secrets = self.managers[agent.id], made.sessions.secrets
        current = manager.contexts.agent
        if new:
            self.factories.append((agent.id, current.sessions))
            manager.change(made, agent.adapter, agent.settings.agent.workspaces, policy)
            if self.shared.tracing:
                self.shared.tracing.agent(agent)  # its spans have the new name and model
        else:
            for context in manager.contexts:
                context.change_rules(made.rules)
            manager.contexts.agent = replace(current, rules=made.rules)
        for agent_id, factory in [*self.factories, (agent.id, current.sessions)]:
            if agent_id == agent.id:
                factory.secrets = secrets

    async def _end(self, agent_id: str, drain: float) -> None:
        await self.managers[agent_id].close(drain)
        del self.managers[agent_id], self.ending[agent_id]
        sandbox = self.sandboxes.pop(agent_id, None)
        self.past += [sandbox] if sandbox else []
        self._renew_root()
        self.changed()

    def _renew_root(self) -> None:
        version = self.versions[self.agents[0].id]
        self.root = make_root(
            self.agents, self.served, self.shared, version=version, managers=self.managers
        )

    def close_sandboxes(self) -> None:
        for sandbox in filter(None, (*self.sandboxes.values(), *self.past)):
            sandbox.close()

    async def close(self) -> None:
        """Wait for the ends of removed agents."""
        await asyncio.gather(*self.ending.values(), return_exceptions=True)


@dataclass(slots=True)
class FleetPlan:
    """`changed`: agents with other settings, also new ones. `new`: the managers of new agents,
    and `stored` what earlier agents with their ids have left; `runtime`: the settings of the other
    ones."""

    agents: Sequence[ConfiguredAgent]
    sandboxes: dict[str, Sandbox | None]
    versions: dict[str, str]
    served: list[ServedAgent] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    new: dict[str, TaskManager] = field(default_factory=dict)
    stored: dict[str, Stored] = field(default_factory=dict)
    runtime: dict[str, tuple[Agent, Policy]] = field(default_factory=dict)


_OTHERWISE = ("rules", "redact")
"""Settings of an agent that hold without new sessions."""


def _differs(old: ConfiguredAgent, new: ConfiguredAgent) -> bool:
    """Whether new conversations need another session, or other rules for their clients."""
    unlike = dict.fromkeys(_OTHERWISE)
    settings = [one.settings.agent.model_copy(update=unlike) for one in (old, new)]
    sections = [(one.settings.limits, one.settings.sandbox) for one in (old, new)]
    programs = [(one.adapter, one.config, one.runs) for one in (old, new)]
    profiles = [one.settings.server.profiles for one in (old, new)]
    pairs = (settings, sections, programs, profiles)
    return any(before != after for before, after in pairs)


def _check_files(old: ConfiguredAgent, new: ConfiguredAgent) -> None:
    """Raise ConfigurationError for a new file of the server: the sandboxes of running agents do not
    hide it."""
    known = {one.path for one in old.own_files}
    for one in new.own_files:
        if one.path not in known:
            text = f"{one.setting}: {one.path} is a new file, which running agents could read"
            raise ConfigurationError(f"{text}. It needs a restart.")
