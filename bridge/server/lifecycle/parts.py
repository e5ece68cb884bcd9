"""The parts of a server that live until its end, made from settings and the last server's state."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bridge.auth.authentication import Identity
from bridge.auth.quotas import Quotas
from bridge.errors import ConfigurationError
from bridge.process.spawn import libraries
from bridge.push.notifier import Push
from bridge.runtime.nodes.cooperation import Cooperation
from bridge.sandbox.profile import Sandbox
from bridge.server.agents.cards import offer_of
from bridge.server.agents.cli_info import check_logins, version_of
from bridge.server.agents.configured import ConfiguredAgent
from bridge.server.agents.fleet import Fleet
from bridge.server.agents.grpc_port import GrpcPort
from bridge.server.agents.node import NodeAgents
from bridge.server.agents.redis_port import RedisPort
from bridge.server.agents.sandboxes import check_trusted, make_sandbox
from bridge.server.assemble import SharedParts, make_root, make_served_agent
from bridge.server.extras import postgres_store
from bridge.server.local_peer import watch
from bridge.server.operate.ports import Ports
from bridge.server.operate.sockets import listen_unix
from bridge.server.operate.systemd import SystemdService
from bridge.server.operate.tracing import open_tracing
from bridge.server.settings.load import Loaded
from bridge.server.settings.places import Places
from bridge.server.settings.root import Settings
from bridge.server.state_dir import State, default_name, is_made, open_state
from bridge.server.token_file import open_token
from bridge.session.pool import SessionPool
from bridge.store.cluster import SharedStore, role_of
from bridge.store.handle import TaskHandle
from bridge.store.protocol import TaskHead
from bridge.telemetry.request_log import RequestLog
from bridge.transports.listener.unix_socket import UnixSocket
from bridge.transports.push_notifications import encode_notification

log = logging.getLogger(__name__)

NO_LANDLOCK = (
    "this kernel has no Landlock (Linux 6.2): agents can do all that this user can do. Set "
    "BRIDGE_SANDBOX=bwrap or external to confine them, or none to accept this"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a server that live until its end. `node` knows whether another server took this
    one for lost; `unix`: the Unix socket."""

    node: NodeAgents
    ports: Ports
    unix: UnixSocket | None
    fleet: Fleet
    redis: RedisPort
    shared: SharedParts
    requests: RequestLog
    service: SystemdService
    pool: SessionPool
    state: State
    push: Push
    logins: asyncio.Task[list[str]]
    grpc: GrpcPort
    cooperation: Cooperation | None = None


async def assemble(
    agents: Sequence[ConfiguredAgent],
    loaded: Loaded,
    unused: contextlib.ExitStack,
    *,
    service: SystemdService,
    identity: Identity,
    ports: Ports,
) -> Parts:
    """The parts of the server. `unused` releases them if a later step fails. `ports`: of HTTP."""
    settings = loaded.settings
    grpc = GrpcPort(settings, agents[0].id, ports)
    ports.bound()
    pool = make_pool(settings)
    node = NodeAgents()
    state = await _open_state(loaded, unused, {one.id: offer_of(one) for one in agents}, node)
    state.inputs.update(ports.own(state.folder, state.markers))
    workspaces = {path for one in settings.each for path in one.writable}
    Places(settings.state_home).record([state.folder] if state.folder else [], workspaces)
    unix = listen_unix(settings, unused, service.sockets.unix)
    push = Push(
        state.store,
        encode_notification,
        allow_private=settings.push.allow_private,
        supported=settings.has_push,
    )
    push.admits = identity.admits
    redis = RedisPort(settings, state)
    push.delivery.relay = redis.relay
    await redis.claim()
    requests = RequestLog(settings.server.log_requests)
    tracing = open_tracing(settings, state, push, loaded.secrets.clean)
    shared = SharedParts(
        pool,
        push,
        state,
        grpc=grpc.place,
        request_observers=[requests],
        tracing=tracing,
        revocations=identity.revocations,
    )
    sandboxes = await _make_sandboxes(agents, state, unused)
    logins = asyncio.create_task(check_logins(agents, sandboxes))
    unused.callback(logins.cancel)
    versions = {one.id: await version_of(one, sandboxes[one.id]) for one in agents}
    served = [
        make_served_agent(one, shared, version=versions[one.id], sandbox=sandboxes[one.id])
        for one in agents
    ]
    managers = {one.id: one.manager for one in served}
    cluster = state.cluster
    return Parts(
        cooperation=Cooperation(cluster, state.store, managers, pool, push) if cluster else None,
        node=node,
        ports=ports,
        unix=unix,
        fleet=Fleet(
            shared=shared,
            agents=[*agents],
            served=served,
            root=make_root(
                agents, served, shared, version=versions[agents[0].id], managers=managers
            ),
            managers=managers,
            sandboxes=sandboxes,
            versions=versions,
        ),
        pool=pool,
        state=state,
        push=push,
        logins=logins,
        grpc=grpc,
        redis=redis,
        shared=shared,
        requests=requests,
        service=service,
    )


def make_pool(settings: Settings) -> SessionPool:
    server = settings.server
    return SessionPool(
        server.max_sessions,
        Quotas({**settings.auth.tokens, **settings.auth.unix_users}),
        server.max_waiting_sessions,
    )


async def _open_state(
    loaded: Loaded, unused: contextlib.ExitStack, agents: Mapping[str, Any], node: NodeAgents
) -> State:
    """The state of earlier servers, if there is a folder for it, and the operator token. `agents`:
    their offers, by their ids, the default one first."""
    settings, clean = loaded.settings, loaded.secrets.clean
    audit, database = settings.audit_file, settings.store.database
    default = next(iter(agents))

    def make_store(identity: str) -> SharedStore:
        node.name = settings.store.node or default_name(default, identity)
        return postgres_store(settings, identity, node.name, agents, node)

    folder = settings.store_folder
    try:
        state = await open_state(folder, audit, clean, make_store if database else None)
        state = replace(state, database=settings.store.shown)
    except ConfigurationError as error:
        if settings.store.state_dir or database or is_made(folder):
            raise
        log.warning("tasks will not survive a restart", extra={"reason": str(error)})
        state = await open_state(None, audit, clean)
    state = replace(state, role=role_of(settings.store.node or default))
    if not settings.auth.config.required:
        return state
    try:
        operator = open_token(state.folder, settings.state_home)
    except ConfigurationError as error:
        if settings.auth.config.has_tokens:
            log.warning("the server has no operator token", extra={"reason": str(error)})
            return state
        await state.close()
        raise
    unused.callback(operator.close)
    return replace(state, operator=operator)


async def _make_sandboxes(
    agents: Sequence[ConfiguredAgent], state: State, unused: contextlib.ExitStack
) -> dict[str, Sandbox | None]:
    """The sandbox of each agent. Raises ConfigurationError if one is not available."""
    made: dict[str, Sandbox | None] = {}
    unused.callback(_close, made)
    for agent in agents:
        sandbox = made[agent.id] = await asyncio.to_thread(make_sandbox, agent, state)
        if agent.settings.sandbox.profile == "auto" and not (sandbox and sandbox.walls):
            log.warning(NO_LANDLOCK, extra={"agent": agent.id})
    check_trusted(agents, made, libraries())
    return made


def _close(sandboxes: Mapping[str, Sandbox | None]) -> None:
    for sandbox in filter(None, sandboxes.values()):
        sandbox.close()


def trust_operator(settings: Settings, identity: Identity, parts: Parts) -> None:
    state = parts.state
    identity.report = state.audit.auth_failed
    # Without tokens, every connection is checked. The search through its processes would take too
    # long, so control groups decide also for agents without walls.
    no_tokens = not settings.auth.config.required
    walled = no_tokens or all(one and one.walls for one in parts.fleet.sandboxes.values())
    if state.operator or no_tokens or parts.unix:
        identity.trust(state.operator, watch(state.markers, walled))


async def restore(settings: Settings, parts: Parts) -> None:
    """Restore the tasks, the running agents and the notifications of the last server."""
    reattach = settings.constants.on_restart == "reattach"
    managers = parts.node.managers = parts.fleet.managers
    if parts.shared.tracing:
        await parts.shared.tracing.resend()
    loaded = [(manager, await manager.contexts.load()) for manager in managers.values()]
    kept: set[str] = set()
    for manager, stored in loaded:
        kept |= manager.contexts.restore(stored, reattach)
    parts.state.sweep(kept)  # before new sessions start: nothing is awaited meanwhile

    async def find(head: TaskHead) -> TaskHandle | None:
        manager = managers.get(head.context.agent)  # None: the agent is not configured any more
        return await manager.find(head.task_id) if manager else None

    async def tell(handle: TaskHandle, config_id: str) -> None:
        await managers[handle.agent].others.tell_push(handle, config_id)

    await parts.push.start(find, tell)
    for served in parts.fleet.served:
        served.manager.warm_up()
    if parts.cooperation:
        parts.cooperation.start()
