"""Assembly: a served agent from its configuration, its sandbox and the parts of the server."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bridge.a2a.card import Skill
from bridge.auth.revocations import Revocations
from bridge.push.notifier import Push
from bridge.runtime.agent import Agent, Policy
from bridge.runtime.extension import Profile
from bridge.runtime.nodes.mirror import SharedTaskHandles
from bridge.runtime.router import Router, skills_of
from bridge.runtime.tasks import TaskManager
from bridge.sandbox.profile import Sandbox, let_through
from bridge.server import registry
from bridge.server.agents.cards import SKILLS, as_skill, make_card, make_details, make_signer
from bridge.server.agents.configured import ConfiguredAgent
from bridge.server.agents.grpc_port import GrpcPlace
from bridge.server.agents.node import shares_of
from bridge.server.agents.sandboxes import group_limits
from bridge.server.app.sites import ServedAgent
from bridge.server.operate.tracing import Tracing
from bridge.server.state_dir import State
from bridge.session.factory import SessionFactory
from bridge.session.pool import SessionPool
from bridge.session.prewarm import PrewarmPlan
from bridge.session.turn import TurnLimits
from bridge.store.handle import TaskHandles
from bridge.store.protocol import Retention
from bridge.telemetry.gc_tuning import Heap
from bridge.telemetry.observation import RequestObserver, TaskObserver
from bridge.telemetry.task_log import TaskLog
from bridge.transports.operation import Answering, Operations
from bridge.transports.stream import KEEP_ALIVE, KeepAlive, StreamTally
from bridge.workspace.attachments import Attachments, PartLimits
from bridge.workspace.project_config import ProjectConfigPolicy


@dataclass(frozen=True, slots=True)
class SharedParts:
    """The parts of the server that all its agents use. `state`: the place of data that survives a
    restart. `grpc`: the gRPC port, if there is one. `observers` see the events of tasks, and
    `request_observers` the requests. `agent_observers`: those of one agent, by its id; an observer
    that is added later sees everything from then on. `tracing`: with traces. `tally` counts the
    streams. `revocations` ends streams of invalid credentials."""

    pool: SessionPool
    push: Push
    state: State
    keep_alive: KeepAlive = KEEP_ALIVE
    grpc: GrpcPlace | None = None
    observers: Sequence[TaskObserver] = ()
    request_observers: list[RequestObserver] = field(default_factory=list)
    tracing: Tracing | None = None
    agent_observers: dict[str, list[TaskObserver]] = field(default_factory=dict)
    tally: StreamTally = field(default_factory=StreamTally)
    revocations: Revocations = field(default_factory=Revocations)

    def __post_init__(self) -> None:
        if self.tracing:
            self.request_observers.append(self.tracing.requests)


def make_served_agent(
    agent: ConfiguredAgent,
    shared: SharedParts,
    *,
    version: str,
    sandbox: Sandbox | None = None,
    prewarm: PrewarmPlan | None = None,
) -> ServedAgent:
    """The agent with its tasks and operations. `version`: the output of its CLI for --version,
    maybe "". `prewarm`: None for the plan of the settings."""
    observers = shared.agent_observers[agent.id] = [*shared.observers]
    if shared.tracing:
        observers.append(shared.tracing.agent(agent))
    manager = TaskManager(
        agent=make_runtime_agent(agent, shared, sandbox, prewarm),
        adapter=agent.adapter,
        workspaces=agent.settings.agent.workspaces,
        tasks=_task_handles(agent.id, shared.state),
        pool=shared.pool,
        notifier=shared.push,
        policy=make_policy(agent, shared),
    )
    observers.insert(0, TaskLog(agent.id, manager.beginning))
    return serve_manager(agent, shared, manager, version)


def serve_manager(
    agent: ConfiguredAgent, shared: SharedParts, manager: TaskManager, version: str
) -> ServedAgent:
    """The agent with the tasks of `manager`, which was made with these or earlier settings. Raises
    ConfigurationError for keys of its card that cannot be read."""
    if shared.tracing:
        shared.tracing.versions[agent.id] = version
    router = Router(
        {agent.id: manager},
        shared.state.store,
        profiles=_profiles(agent),
        cluster=shared.state.cluster,
    )
    return _served(agent, shared, manager=manager, router=router, version=version)


def _profiles(agent: ConfiguredAgent) -> dict[str, Profile]:
    return {
        name: profile
        for name, profile in agent.settings.server.profiles.items()
        if profile.agent in (None, agent.id)
    }


def make_policy(agent: ConfiguredAgent, shared: SharedParts) -> Policy:
    """The rules for clients of the agent."""
    settings = agent.settings
    retention = Retention(
        tasks=settings.limits.max_tasks,
        of_context=settings.limits.keep_tasks_per_context,
        days=settings.limits.keep_days,
        bytes=settings.store.max_store_bytes,
        of_owner=shared.pool.quotas.stored_bytes,
    )
    models = (one.model for one in _profiles(agent).values() if one.model)
    return Policy(
        thoughts=settings.agent.thoughts,
        models=(*settings.agent.models, *models),
        when_busy=settings.agent.when_busy,
        queue=settings.constants.max_tasks_per_context,
        on_disconnect=settings.agent.on_disconnect,
        grace=settings.constants.disconnect_grace_ms / 1000,
        retention=retention,
        role=shared.state.role,
    )


def _task_handles(agent: str, state: State) -> TaskHandles:
    trim = Heap().trim
    if state.shared:
        return SharedTaskHandles(agent, state.shared, trim)
    return TaskHandles(agent, state.store, trim)


def make_root(
    agents: Sequence[ConfiguredAgent],
    served: Sequence[ServedAgent],
    shared: SharedParts,
    *,
    version: str,
    managers: Mapping[str, TaskManager] | None = None,
) -> ServedAgent:
    """The agent that answers at the root: the default agent. Its router also reaches the other
    agents. `agents` and `served` have the same order. `managers`: with those of agents that end."""
    default, first = agents[0], served[0]
    offered = {one.id: one.settings.agent.skills or SKILLS for one in agents}
    skills = {agent_id: [skill.id for skill in found] for agent_id, found in offered.items()}
    managers = managers or {one.id: one.manager for one in served}
    return _served(
        default,
        shared,
        manager=first.manager,
        router=Router(
            managers,
            shared.state.store,
            skills_of(skills),
            default.settings.server.profiles,
            shared.state.cluster,
            withdrawn=[one for one in registry.WITHDRAWN if one not in managers],
        ),
        version=version,
        skills=tuple(map(as_skill, agents[1:])),
    )


def _served(
    agent: ConfiguredAgent,
    shared: SharedParts,
    *,
    manager: TaskManager,
    router: Router,
    version: str,
    skills: tuple[Skill, ...] = (),
) -> ServedAgent:
    settings = agent.settings
    card = functools.partial(make_card, agent, more_skills=skills, grpc=shared.grpc)
    extended = functools.partial(card, details=make_details(agent, version))
    sign = make_signer(settings)
    operations = Operations(
        tasks=router,
        push=shared.push,
        extended_card=extended if settings.auth.config.required else None,
        answering=Answering(shared.keep_alive, shared.tally),
        sign=sign,
        observers=shared.request_observers,
        revocations=shared.revocations,
    )
    return ServedAgent(
        id=agent.id,
        manager=manager,
        router=router,
        operations=operations,
        card=card,
        card_versions=settings.agent.card,
        sign=sign,
    )


def make_runtime_agent(
    agent: ConfiguredAgent,
    shared: SharedParts,
    sandbox: Sandbox | None,
    prewarm: PrewarmPlan | None = None,
) -> Agent:
    """The settings of the agent's new contexts. It has the observers of the agent with its id."""
    settings, adapter, state = agent.settings, agent.adapter, shared.state
    return Agent(
        sessions=make_session_factory(agent, state, sandbox),
        idle_seconds=settings.limits.session_idle_ms / 1000,
        attachments=_attachments(agent, state.files, sandbox),
        steers=adapter.steers,
        rules=settings.agent.rules,
        thoughts=settings.agent.thoughts != "off",
        patience=settings.limits.question_timeout_ms / 1000,
        most_bytes=settings.limits.max_task_bytes,
        audit=state.audit,
        trust=ProjectConfigPolicy(
            settings.agent.project_config,
            adapter.project_files,
            adapter.always_loaded,
            adapter.instructions,
        ),
        warm=prewarm
        or PrewarmPlan(
            settings.limits.warm_sessions if adapter.can_prewarm else 0, adapter.project_files
        ),
        check=settings.agent.workspaces.check,
        replies=adapter.may_reply,
        observers=shared.agent_observers[agent.id],
    )


def make_session_factory(
    agent: ConfiguredAgent, state: State, sandbox: Sandbox | None
) -> SessionFactory:
    """The factory of the agent's sessions."""
    settings = agent.settings
    shares = shares_of(settings, resumes_elsewhere=agent.adapter.resumes_elsewhere)
    operator = {"OPERATOR_TOKEN": state.operator.value} if state.operator else {}
    return SessionFactory(
        adapter=agent.make,
        config=replace(agent.config, confined=sandbox is not None and sandbox.walls),
        environment=agent.config.env,
        limits=TurnLimits(
            turn=settings.agent.timeout_ms / 1000,
            silence=settings.agent.idle_exit_ms / 1000,
            start=settings.limits.start_timeout_ms / 1000,
            line=settings.constants.max_line_bytes,
            term_grace=settings.constants.stop_grace_ms / 1000,
            group=group_limits(settings),
            background=settings.limits.background_processes == "keep",
        ),
        markers=state.markers,
        spools=state.spools,
        inputs=state.inputs,
        restore=state.restore_modes,
        sandbox=sandbox,
        secrets=settings.secrets(agent.config.env, operator),
        shares=shares if state.shared else {},
        traces=settings.agent.trace and agent.adapter.understands_traces,
    )


def _attachments(
    agent: ConfiguredAgent, folder: Path | None, sandbox: Sandbox | None
) -> Attachments:
    constants, adapter = agent.settings.constants, agent.adapter
    user = sandbox.user if sandbox else None
    if folder and user:
        for one in (folder, folder / agent.id):
            one.mkdir(mode=0o700, exist_ok=True)
            let_through(one, user)
    return Attachments(
        workspaces=agent.settings.agent.workspaces,
        input_modes=adapter.input_modes,
        takes_urls=adapter.takes_urls,
        takes_files=adapter.takes_files,
        folder=folder / agent.id if folder else None,
        limits=PartLimits(
            text=constants.max_text_bytes,
            raw=constants.max_raw_bytes,
            file=constants.max_file_bytes,
            parts=constants.max_parts,
        ),
        group=user.gid if user else None,
    )
