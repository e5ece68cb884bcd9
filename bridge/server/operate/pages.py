"""The pages for operators and balancers: /ready and /metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiohttp import web

from bridge.auth.authentication import Identity
from bridge.runtime.tasks import TaskManager
from bridge.sandbox.profile import Sandbox
from bridge.server.agents.configured import ConfiguredAgent
from bridge.server.agents.grpc_port import GrpcPort
from bridge.server.agents.node import NodeAgents
from bridge.server.assemble import SharedParts
from bridge.server.operate.metrics_page import MetricsPage
from bridge.server.operate.readiness import AgentFaults, Readiness, ReadyParts
from bridge.server.operate.readings import Sources
from bridge.server.settings.root import Settings
from bridge.telemetry.metrics.metrics import Metrics
from bridge.telemetry.watchdog import Watchdog
from bridge.transports.listener.connection_limits import LimitedRunner


class OperatorPages:
    """`metrics` takes the facts of other parts; `readiness` decides about /ready. `shared` has
    the observers. `agents`, and by agent id `managers` and `sandboxes`, may change; `watch` and
    `forget` follow such a change. Needs a running event loop."""

    def __init__(
        self,
        settings: Settings,
        shared: SharedParts,
        *,
        agents: Sequence[ConfiguredAgent],
        managers: Mapping[str, TaskManager],
        sandboxes: Mapping[str, Sandbox | None],
        node: NodeAgents,
        watchdog: Watchdog,
    ) -> None:
        state = shared.state
        self.metrics = Metrics()
        self._settings = settings.operate
        self.shared = shared
        self._managers = managers
        self._watchdog = watchdog
        self._faults = AgentFaults(agents, managers, sandboxes)
        self._page: MetricsPage | None = None
        self.readiness = Readiness(
            ReadyParts(
                store=state.store,
                shared=state.shared is not None,
                folder=state.folder,
                free=settings.operate.min_free_bytes,
                watchdog=watchdog,
                node=node,
                pool=shared.pool,
                faults=self._faults,
            )
        )

    def attach(
        self, app: web.Application, runner: LimitedRunner, identity: Identity, grpc: GrpcPort
    ) -> None:
        """Add the pages to the application. Raises ConfigurationError for BRIDGE_METRICS=on without
        the library."""
        shared, state = self.shared, self.shared.state
        sources = Sources(
            managers=self._managers,
            pool=shared.pool,
            store=state.store,
            push=shared.push,
            identity=identity,
            runner=runner,
            grpc=grpc,
            watchdog=self._watchdog,
            audit=state.audit,
            readiness=self.readiness,
            tally=shared.tally,
            metrics=self.metrics,
            bus=lambda: state.shared is None or state.shared.bus.works,
        )
        if shared.tracing:
            shared.tracing.count_drops(self.metrics.spans_lost)
        page = self._page = MetricsPage(self._settings.metrics, sources, shared)
        app.router.add_get("/ready", self.readiness.answer)
        app.router.add_get("/metrics", page.answer)

    def watch(self, agent: str, manager: TaskManager) -> None:
        """The agent is new."""
        self._faults.watch(agent, manager)
        if self._page:
            self._page.follow()

    def forget(self, agent: str) -> None:
        """The agent was changed or removed: what prevented its last task is of no interest."""
        self._faults.forget(agent)

    def close(self) -> None:
        """End the checks of agents."""
        self._faults.close()
