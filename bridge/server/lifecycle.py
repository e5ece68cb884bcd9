"""The life of one server: start, signals, drain and cleanup."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from aiohttp import web

from bridge import __version__
from bridge.auth.authentication import Identity
from bridge.auth.quotas import Quotas
from bridge.errors import ConfigurationError, Unavailable
from bridge.process.process_tree import keep_private, kill_descendants, reap_orphans
from bridge.process.spawn import libraries
from bridge.push.notifier import Push
from bridge.runtime.nodes.cooperation import Cooperation
from bridge.sandbox.profile import Sandbox
from bridge.server.agents.cli_info import check_logins, version_of
from bridge.server.agents.configured import ConfiguredAgent, configure_agents
from bridge.server.agents.delegates import make_endpoint
from bridge.server.agents.fleet import Fleet
from bridge.server.agents.grpc_port import GrpcPort
from bridge.server.agents.node import NodeAgents
from bridge.server.agents.redis_port import RedisPort
from bridge.server.agents.sandboxes import check_trusted, make_sandbox, writable_places
from bridge.server.app import SITES, ServedAgent, make_app
from bridge.server.assemble import SharedParts, make_root, make_served_agent
from bridge.server.banner import Listening, announce, banner
from bridge.server.extras import postgres_store, token_issuer
from bridge.server.local_peer import watch
from bridge.server.operate.admin import Administration
from bridge.server.operate.backup import Backups
from bridge.server.operate.live import Live
from bridge.server.operate.monitor import Monitor
from bridge.server.operate.pages import OperatorPages
from bridge.server.operate.reload import Reloader
from bridge.server.operate.restore import kept_in
from bridge.server.operate.signals import handle_signals, ignore_without_inheriting
from bridge.server.operate.sockets import address_of, limits, listen_tcp, listen_unix
from bridge.server.operate.systemd import ALONE, Supervisor, SystemdService
from bridge.server.operate.token_admin import administer
from bridge.server.operate.tracing import open_tracing
from bridge.server.settings.load import Loaded
from bridge.server.settings.root import Settings
from bridge.server.settings.sections import ServerSettings
from bridge.server.state_dir import State, default_name, open_state
from bridge.server.token_file import open_token
from bridge.session.pool import SessionPool
from bridge.store.cluster import SharedStore
from bridge.store.handle import TaskHandle
from bridge.store.protocol import TaskHead
from bridge.telemetry.gc_tuning import collect_seldom
from bridge.telemetry.log_context import context
from bridge.telemetry.logging import JsonFormatter, TextFormatter
from bridge.telemetry.request_log import RequestLog
from bridge.telemetry.tracing.requests import NO_ADDRESS
from bridge.telemetry.watchdog import Watchdog
from bridge.transports.listener.connection_limits import LimitedRunner
from bridge.transports.listener.unix_socket import UnixSocket
from bridge.transports.operation import encode_notification

log = logging.getLogger(__name__)

NO_LANDLOCK = (
    "this kernel has no Landlock (Linux 6.2): agents can do all that this user can do. Set "
    "BRIDGE_SANDBOX=bwrap or external to confine them, or none to accept this"
)
LOGIN_WAIT = 0.5  # seconds that the banner waits for the login status of the CLIs
CLOSE_TIMEOUT = 5.0  # seconds for connections to end after all tasks have ended


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """The parts of a server that live until its end. `node` knows whether another server took this
    one for lost; `unix`: the Unix socket."""

    node: NodeAgents
    unix: UnixSocket | None
    fleet: Fleet
    redis: RedisPort
    shared: SharedParts
    service: SystemdService
    pool: SessionPool
    state: State
    push: Push
    logins: asyncio.Task[list[str]]
    grpc: GrpcPort
    cooperation: Cooperation | None = None


class OnlyClient(Protocol):
    """The client of a server without a listener."""

    async def begin(self, root: ServedAgent, agents: Sequence[ServedAgent]) -> None:
        """Serve it from now on. Raises ConfigurationError."""

    async def left(self) -> None:
        """Return when the client needs this server no more."""

    async def end(self, within: float) -> int:
        """Give it the last answers, for this time in seconds. Returns the exit status."""


async def serve(
    loaded: Loaded,
    service: SystemdService = ALONE,
    read: Callable[[], Loaded] | None = None,
    client: OnlyClient | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT, then drain. `service`: its settings are in `loaded`. `read`
    reads the settings again for a reload. With `client`, the server does not listen, and ends with
    this client. Returns the exit status."""
    settings = loaded.settings
    _log_as(settings.server, loaded.secrets.clean, journal=loaded.stderr_is_journal)
    keep_private()
    ignore_without_inheriting()
    for warning in loaded.warnings:
        log.warning(warning)
    agents = configure_agents(loaded)
    identity = Identity(settings.auth.config, token_issuer(settings))
    sockets = [] if client else listen_tcp(settings, service.sockets)
    if sockets is None:
        return 1
    with contextlib.ExitStack() as unused:
        for listener in sockets:
            unused.callback(listener.close)
        parts = await _assemble(agents, loaded, unused, service=service, identity=identity)
        _trust_operator(settings, identity, parts)
        log.info("starting", extra={"event": "server.starting", "version": __version__})
        try:
            await _restore(settings, parts)
        except Unavailable as error:  # a database that has gone since it was opened
            raise ConfigurationError(f"cannot restore the tasks: {error}") from error
        unused.pop_all()
    if client:
        return await _run_for(client, settings, parts)
    read = read or (lambda: loaded)
    return await _run(loaded, parts, identity=identity, sockets=sockets, read=read)


async def _assemble(
    agents: Sequence[ConfiguredAgent],
    loaded: Loaded,
    unused: contextlib.ExitStack,
    *,
    service: SystemdService,
    identity: Identity,
) -> _Parts:
    """The parts of the server. `unused` releases them if a later step fails."""
    settings = loaded.settings
    grpc = GrpcPort(settings, agents[0].id)
    pool = make_pool(settings)
    node = NodeAgents()
    state = await _open_state(loaded, unused, [one.id for one in agents], node)
    unix = listen_unix(settings, unused, service.sockets.unix)
    push = Push(
        state.store,
        encode_notification,
        allow_private=settings.push.allow_private,
        supported=settings.has_push,
    )
    push.admits = identity.admits
    redis = RedisPort(settings, state)
    push.use_relay(redis.relay)
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
    return _Parts(
        cooperation=Cooperation(cluster, state.store, managers, pool, push) if cluster else None,
        node=node,
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
        service=service,
    )


@dataclass(frozen=True, slots=True)
class _Site:
    """The application, its pages for operators, and its reloads."""

    runner: LimitedRunner
    monitor: Monitor
    pages: OperatorPages
    reloader: Reloader
    watchdog: Watchdog


def _make_app(
    settings: Settings, parts: _Parts, identity: Identity
) -> tuple[web.Application, Monitor, OperatorPages, Watchdog]:
    fleet, state, watchdog = parts.fleet, parts.state, Watchdog()
    monitor = Monitor(
        state.store,
        fleet.managers,
        parts.pool.figures,
        state.cluster,
        settings.store.discovery_max_age,
        identity.revocations,
    )
    pages = OperatorPages(
        settings,
        parts.shared,
        managers=fleet.managers,
        agents=fleet.agents,
        sandboxes=fleet.sandboxes,
        node=parts.node,
        watchdog=watchdog,
    )
    app = make_app(
        fleet.root,
        fleet.served,
        settings=settings.server,
        identify=identity,
        monitor=monitor,
        checks=(watchdog, state.audit, state.store, parts.redis, pages.readiness),
        about=lambda: {
            "sessions": parts.pool.figures(),
            **parts.node.about(),
            **kept_in(state.folder),
        },
    )
    backups = Backups(
        state, settings.audit_file, lambda: writable_places(fleet.agents, fleet.sandboxes)
    )
    Administration(state.store, fleet.managers, state.audit, backups).attach(app)
    return app, monitor, pages, watchdog


def _make_site(
    loaded: Loaded, parts: _Parts, identity: Identity, read: Callable[[], Loaded]
) -> _Site:
    fleet, state, settings = parts.fleet, parts.state, loaded.settings
    app, monitor, pages, watchdog = _make_app(settings, parts, identity)
    mcp = make_endpoint(
        fleet.agents,
        fleet.served,
        fleet.root,
        state,
        identity.session,
        revocations=identity.revocations,
    )
    mcp.attach(app)
    runner = LimitedRunner(app, limits(settings), shutdown_timeout=CLOSE_TIMEOUT)
    pages.attach(app, runner, identity, parts.grpc)
    live = Live(
        fleet=fleet,
        sites=app[SITES],
        runner=runner,
        grpc=parts.grpc,
        mcp=mcp,
        monitor=monitor,
        audit=state.audit,
        identity=identity,
        configure_logging=partial(_log_as, journal=loaded.stderr_is_journal),
    )
    reloader = Reloader(
        loaded, read, identity=identity, push=parts.push, operator=state.operator, target=live
    )
    reloader.counted = pages.metrics.reloaded
    administer(app, reloader, state, fleet.managers)
    return _Site(runner, monitor, pages, reloader, watchdog)


async def _run(
    loaded: Loaded,
    parts: _Parts,
    *,
    identity: Identity,
    sockets: Sequence[socket.socket],
    read: Callable[[], Loaded],
) -> int:
    stop = asyncio.Event()
    site = _make_site(loaded, parts, identity, read)
    handle_signals(stop, partial(_kill, parts), site.reloader.request)
    unused = contextlib.ExitStack()
    systemd = unused.enter_context(Supervisor(parts.service.supervision, parts.pool.figures))
    try:
        listening = await _listen(parts, site, sockets)
        address = address_of(site.runner, parts.unix, identity)
        if parts.shared.tracing:
            parts.shared.tracing.requests.place = _where(site.runner.addresses)
        await _open(parts, site, identity, address)
        home = loaded.settings.state_home
        unused.callback(announce(parts.fleet.agents, address, parts.state, home))
        if loaded.settings.server.log_format == "text":
            await _print_banner(parts, address)
        log.info("ready", extra={"event": "server.ready", **_place(parts, address)})
        systemd.ready()
        await _first_of(stop, parts.node.ended)
        site.pages.readiness.phase = "draining"
        open_tasks = sum(one.manager.figures()["tasks"] for one in parts.fleet.served)
        log.info("stopping", extra={"event": "server.draining", "open_tasks": open_tasks})
        systemd.stopping()
        parts.grpc.drain()
        await parts.redis.drain()
        await asyncio.gather(*(one.stop() for one in listening))
        if parts.cooperation:
            await parts.cooperation.close()
        await _drain(site.reloader.loaded.settings, parts)
        site.monitor.close()
        return parts.node.status
    finally:
        unused.close()
        await _close_all(parts, site)


async def _run_for(client: OnlyClient, settings: Settings, parts: _Parts) -> int:
    """Serve one client, without a listener."""
    watchdog, stop, fleet = Watchdog(), asyncio.Event(), parts.fleet
    handle_signals(stop, partial(_kill, parts), lambda: None)
    leaving: asyncio.Task[None] | None = None
    try:
        collect_seldom()
        await client.begin(fleet.root, fleet.served)
        leaving = asyncio.create_task(client.left())
        leaving.add_done_callback(lambda _: stop.set())
        await _first_of(stop, parts.node.ended)
        log.info("stopping")
        if parts.cooperation:
            await parts.cooperation.close()
        await _drain(settings, parts)
        return await client.end(CLOSE_TIMEOUT) or parts.node.status
    finally:
        if leaving:
            leaving.cancel()
        parts.logins.cancel()
        await _release(parts, watchdog)


async def _listen(
    parts: _Parts, site: _Site, sockets: Sequence[socket.socket]
) -> Sequence[web.SockSite]:
    """Accept connections from now on."""
    await site.runner.setup()
    sites = [site.runner.site(one) for one in (*sockets, *_unix(parts))]
    await asyncio.gather(*(one.start() for one in sites))
    collect_seldom()
    return sites


async def _open(parts: _Parts, site: _Site, identity: Identity, address: Listening) -> None:
    """Serve the bindings with listeners of their own; the server is ready then."""
    readiness = site.pages.readiness
    await parts.grpc.serve(
        parts.fleet.root, parts.fleet.served, address.base, identity, lambda: readiness.ready
    )
    parts.redis.start(parts.fleet.root, address.base, parts.pool.quotas)
    readiness.phase = "serving"


async def _close_all(parts: _Parts, site: _Site) -> None:
    site.reloader.close()
    site.pages.close()
    parts.logins.cancel()
    await parts.grpc.stop(CLOSE_TIMEOUT)
    await parts.redis.stop(CLOSE_TIMEOUT)
    await site.runner.cleanup()
    await _release(parts, site.watchdog)


async def _release(parts: _Parts, watchdog: Watchdog) -> None:
    await parts.push.close()
    if parts.shared.tracing:
        await parts.shared.tracing.close()
    await parts.state.close()
    if parts.unix:
        parts.unix.close()
    watchdog.close()
    _kill_leftovers(parts)
    await asyncio.to_thread(parts.fleet.close_sandboxes)
    log.info("stopped", extra={"event": "server.stopped"})


def _where(addresses: Sequence[Any]) -> tuple[str, int]:
    """The address and the port of the first TCP listener; NO_ADDRESS without one. Paths of Unix
    sockets are texts."""
    tcp = (one for one in addresses if not isinstance(one, str))
    name = next(tcp, NO_ADDRESS)
    return str(name[0]), int(name[1])


def _place(parts: _Parts, address: Listening) -> dict[str, Any]:
    """The members of the line that tells how to reach the server. A token is named by its path."""
    operator = parts.state.operator
    return {
        "version": __version__,
        "address": address.url,
        "socket": address.path,
        "grpc": parts.grpc.address,
        "agents": [one.id for one in parts.fleet.agents],
        "state": parts.state.place,
        "token": operator.path if operator else None,
    }


async def _drain(settings: Settings, parts: _Parts) -> None:
    """Wait for the tasks; then end the others, or keep them for the next server (BRIDGE_ON_STOP).
    After a fence they belong to another server."""
    drain, keep = settings.server.drain_ms / 1000, settings.server.on_stop == "keep"
    if parts.node.ended.is_set():
        drain, keep = 0.0, False
    await asyncio.gather(*(one.manager.close(drain, keep) for one in parts.fleet.served))
    await parts.fleet.close()


async def _first_of(*events: asyncio.Event) -> None:
    waiting = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for one in waiting:
        one.cancel()


async def _print_banner(parts: _Parts, address: Listening) -> None:
    """Includes the warnings of the login checks that end in time; the log has all of them."""
    done, _ = await asyncio.wait([parts.logins], timeout=LOGIN_WAIT)
    text = banner(
        parts.fleet.agents,
        versions=parts.fleet.versions,
        address=address,
        state=parts.state,
        sandboxes=parts.fleet.sandboxes,
        notes=parts.logins.result() if done else (),
        more=[*parts.grpc.lines, *await parts.redis.lines()],
    )
    with contextlib.suppress(OSError):  # the reader of the pipe may have exited: `… 2>&1 | head`
        print(text, file=sys.stderr, flush=True)


def make_pool(settings: Settings) -> SessionPool:
    server = settings.server
    return SessionPool(
        server.max_sessions,
        Quotas({**settings.auth.tokens, **settings.auth.unix_users}),
        server.max_waiting_sessions,
    )


def _kill_leftovers(parts: _Parts) -> None:
    """Kill all remaining processes of agents, except those that the next server takes over."""
    state = parts.state
    kept = [marker for one in parts.fleet.served for marker in one.manager.kept]
    kill_descendants(kept)
    state.tidy(marker.removeprefix(state.markers) for marker in kept)
    reap_orphans()


def _unix(parts: _Parts) -> list[socket.socket]:
    return [parts.unix.listening] if parts.unix else []


async def _open_state(
    loaded: Loaded, unused: contextlib.ExitStack, agents: Sequence[str], node: NodeAgents
) -> State:
    """The state of earlier servers, if there is a folder for it, and the operator token. `agents`:
    the ids of the agents, the default one first."""
    settings, clean = loaded.settings, loaded.secrets.clean
    audit, database = settings.audit_file, settings.store.database

    def make_store(identity: str) -> SharedStore:
        node.name = settings.store.node or default_name(agents[0], identity)
        return postgres_store(settings, identity, node.name, agents, node)

    try:
        folder = settings.store_folder
        state = await open_state(folder, audit, clean, make_store if database else None)
        state = replace(state, database=settings.store.shown)
    except ConfigurationError as error:
        if settings.store.state_dir or database:
            raise
        log.warning("tasks will not survive a restart", extra={"reason": str(error)})
        state = await open_state(None, audit, clean)
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


def _trust_operator(settings: Settings, identity: Identity, parts: _Parts) -> None:
    state = parts.state
    identity.report = state.audit.auth_failed
    # Without tokens, every connection is checked. The search through its processes would take too
    # long, so control groups decide also for agents without walls.
    no_tokens = not settings.auth.config.required
    walled = no_tokens or all(one and one.walls for one in parts.fleet.sandboxes.values())
    if state.operator or no_tokens or parts.unix:
        token = state.operator.value if state.operator else None
        identity.trust(token, watch(state.markers, walled))


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


async def _restore(settings: Settings, parts: _Parts) -> None:
    """Restore the tasks, the running agents and the notifications of the last server."""
    reattach = settings.server.on_restart == "reattach"
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
        await managers[handle.agent].tell_push(handle, config_id)

    await parts.push.start(find, tell)
    for served in parts.fleet.served:
        served.manager.warm_up()
    if parts.cooperation:
        parts.cooperation.start()


# --- the process -------------------------------------------------------------------------------


def _kill(parts: _Parts, number: int) -> None:
    """End the process at once, after a second signal."""
    for one in parts.fleet.served:
        one.manager.kill()
    kill_descendants()
    parts.fleet.close_sandboxes()
    os._exit(128 + number)


def _log_as(server: ServerSettings, clean: Callable[[str], str], *, journal: bool) -> None:
    configure_logging(server.log_level, clean, form=server.log_format, journal=journal)


def configure_logging(
    level: str,
    clean: Callable[[str], str] = str,
    *,
    form: str = "text",
    journal: bool = False,
) -> None:
    """Log to stderr, in the format `form`: text or json. `clean` redacts secrets from each line.
    `journal`: journald reads stderr."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = JsonFormatter if form == "json" else TextFormatter
    handler.setFormatter(formatter(clean, context, priorities=journal))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.captureWarnings(True)  # these, and errors without a handler, are lines of the log
    sys.unraisablehook = _log_unraisable
    logging.getLogger("aiohttp").setLevel(max(logging.getLevelName(level), logging.WARNING))


def _log_unraisable(error: sys.UnraisableHookArgs) -> None:
    text = error.err_msg or "an exception was ignored"
    if error.exc_value:
        log.error(text, exc_info=error.exc_value)
