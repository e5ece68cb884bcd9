"""The parts of a running server that get new settings at a reload."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from bridge.auth.authentication import Identity
from bridge.errors import ConfigurationError
from bridge.runtime.tasks import TaskManager
from bridge.server.agents.delegates import make_load
from bridge.server.agents.fleet import Fleet, FleetPlan
from bridge.server.agents.grpc_port import GrpcPort
from bridge.server.agents.redis_port import RedisPort
from bridge.server.app.sites import Sites
from bridge.server.local_peer import watch
from bridge.server.operate.monitor import Monitor
from bridge.server.operate.pages import OperatorPages
from bridge.server.operate.sockets import limits
from bridge.server.settings.load import Loaded
from bridge.telemetry.audit import Audit
from bridge.telemetry.request_log import RequestLog
from bridge.transports.listener.connection_limits import LimitedRunner
from bridge.transports.mcp.endpoint import Endpoint

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """`requests` logs requests, and `log_as` configures the whole log."""

    fleet: Fleet
    sites: Sites
    runner: LimitedRunner
    grpc: GrpcPort
    redis: RedisPort
    mcp: Endpoint
    monitor: Monitor
    pages: OperatorPages
    requests: RequestLog
    audit: Audit
    identity: Identity
    log_as: Callable[[Loaded], None]

    async def prepare(self, loaded: Loaded) -> FleetPlan:
        """Make all that can fail. Raises ConfigurationError; nothing has changed then."""
        await self.redis.prepare(loaded.settings)
        return await self.fleet.prepare(loaded)

    def apply(self, loaded: Loaded, plan: FleetPlan) -> None:
        """Use new settings from the next request on. Raises nothing."""
        settings, clean = loaded.settings, loaded.secrets.clean
        self.log_as(loaded)
        self.requests.all_of_them = settings.server.log_requests
        if tracing := self.fleet.shared.tracing:
            tracing.redact(clean)
        try:
            self.audit.reopen(clean)
        except ConfigurationError as error:
            log.error("the audit log was not reopened", extra={"reason": str(error)})
        quotas = self.fleet.shared.pool.quotas
        quotas.change({**settings.auth.tokens, **settings.auth.unix_users})
        self.runner.change(limits(settings))
        walled = self.fleet.walled

        def serve() -> None:
            self.sites.change(self.fleet.root, self.fleet.served, settings.server)
            self.grpc.change(self.fleet.root, self.fleet.served, settings.server.public_url)
            self.redis.change(self.fleet.root, settings)

        self.fleet.changed = serve
        self.fleet.added = self._added
        self.fleet.apply(plan, settings.server.drain_ms / 1000)
        for agent in (*plan.changed, *plan.removed):
            self.pages.forget(agent)
        if plan.changed or plan.removed:
            fleet, state = self.fleet, self.fleet.shared.state
            self.mcp.renew(make_load(fleet.agents, fleet.served, fleet.root, state))
        if walled and not self.fleet.walled:
            # The search through processes decides from now on; it takes longer.
            self.identity.watch_origin(watch(self.fleet.shared.state.markers, False))

    def _added(self, agent: str, manager: TaskManager) -> None:
        self.monitor.watch(agent, manager)
        self.pages.watch(agent, manager)
