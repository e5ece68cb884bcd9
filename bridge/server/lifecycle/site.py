"""The application of a server with its pages for operators, and the reloads of its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from bridge.auth.authentication import Identity
from bridge.server.agents.delegates import make_endpoint
from bridge.server.agents.sandboxes import writable_places
from bridge.server.app.application import make_app
from bridge.server.app.sites import SITES
from bridge.server.lifecycle.parts import Parts
from bridge.server.operate.admin import Administration
from bridge.server.operate.backup import Backups
from bridge.server.operate.backup_folder import last_backup
from bridge.server.operate.live import Live
from bridge.server.operate.log_output import log_as
from bridge.server.operate.monitor import Monitor
from bridge.server.operate.pages import OperatorPages
from bridge.server.operate.reload import Reloader
from bridge.server.operate.restore import kept_in
from bridge.server.operate.sockets import limits
from bridge.server.operate.token_admin import administer
from bridge.server.settings.load import Loaded
from bridge.server.settings.root import Settings
from bridge.telemetry.watchdog import Watchdog
from bridge.transports.listener.connection_limits import LimitedRunner

CLOSE_TIMEOUT = 5.0  # seconds for connections to end after all tasks have ended


@dataclass(frozen=True, slots=True)
class Site:
    """The application, its pages for operators, and its reloads."""

    runner: LimitedRunner
    monitor: Monitor
    pages: OperatorPages
    reloader: Reloader
    watchdog: Watchdog


def make_site(loaded: Loaded, parts: Parts, identity: Identity, read: Callable[[], Loaded]) -> Site:
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
        redis=parts.redis,
        mcp=mcp,
        monitor=monitor,
        pages=pages,
        requests=parts.requests,
        audit=state.audit,
        identity=identity,
        log_as=log_as,
    )
    reloader = Reloader(
        loaded, read, identity=identity, push=parts.push, operator=state.operator, target=live
    )
    reloader.counted = pages.metrics.reloaded
    administer(app, reloader, state, fleet.managers)
    return Site(runner, monitor, pages, reloader, watchdog)


def _make_app(
    settings: Settings, parts: Parts, identity: Identity
) -> tuple[web.Application, Monitor, OperatorPages, Watchdog]:
    fleet, state, watchdog = parts.fleet, parts.state, Watchdog()
    monitor = Monitor(
        state.store,
        fleet.managers,
        parts.pool.figures,
        cluster=state.cluster,
        max_age=settings.constants.node_grace_ms / 1000,
        revocations=identity.revocations,
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
        settings=settings,
        identify=identity,
        monitor=monitor,
        checks=(watchdog, state.audit, state.store, parts.redis, pages.readiness),
        about=lambda: {
            "sessions": parts.pool.figures(),
            **parts.node.about(),
            **kept_in(state.folder),
        },
    )
    if state.folder:
        pages.metrics.backed_up(last_backup(state.folder))
    backups = Backups(
        state,
        settings.audit_file,
        lambda: writable_places(fleet.agents, fleet.sandboxes),
        pages.metrics.backed_up,
    )
    Administration(state.store, fleet.managers, state.audit, backups).attach(app)
    return app, monitor, pages, watchdog
