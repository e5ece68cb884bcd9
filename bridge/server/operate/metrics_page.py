"""GET /metrics, for principals with the scope `metrics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from aiohttp import web

from bridge.errors import ConfigurationError
from bridge.errors.extras import install_line
from bridge.runtime.tasks import TaskManager
from bridge.server.assemble import SharedParts
from bridge.server.extras import metrics_library
from bridge.server.operate.readings import Readings, Sources
from bridge.task.state import Task
from bridge.telemetry.metrics.requests import RequestMetrics
from bridge.telemetry.metrics.tasks import TaskMetrics
from bridge.transports.operation import PRINCIPAL

if TYPE_CHECKING:
    from bridge.telemetry.metrics.exposition import Exposition

MISSING = "The library for metrics (the extra `metrics`) is missing."
OFF = "This server has no metrics (BRIDGE_METRICS=off)."


class MetricsPage:
    """`mode`: the setting BRIDGE_METRICS. The library is imported and the observers begin with the
    first request, or now with the mode `on`; ConfigurationError if it is missing then."""

    def __init__(
        self,
        mode: str,
        sources: Sources,
        shared: SharedParts,
    ) -> None:
        self._mode = mode
        self._sources = sources
        self._shared = shared
        self._exposition: Exposition | None = None
        self._tasks: dict[str, TaskMetrics] = {}
        if mode == "on" and self._opened() is None:
            text = f"BRIDGE_METRICS is on. {MISSING} Install it: {install_line('metrics')}"
            raise ConfigurationError(text)

    async def answer(self, request: web.Request) -> web.Response:
        """The text form of Prometheus; 403 without the scope, 404 without metrics."""
        if not request[PRINCIPAL].may("metrics"):
            text = "These credentials do not allow this: the scope 'metrics' is missing."
            return web.json_response({"error": text}, status=403)
        exposition = self._opened() if self._mode != "off" else None
        if exposition is None:
            text = OFF if self._mode == "off" else MISSING
            return web.json_response({"error": text}, status=404)
        self._observe(exposition)
        headers = {"Content-Type": exposition.content_type, "Cache-Control": "no-store"}
        return web.Response(body=exposition.page(), headers=headers)

    def _opened(self) -> Exposition | None:
        """The registry, from the first call on; None without the library."""
        if self._exposition:
            return self._exposition
        library = metrics_library()
        if library is None:
            return None
        refused = Counter[str]()
        read = Readings(
            self._sources, refused, lambda agent, task: self._tasks[agent].last_event(task)
        )
        made = self._exposition = library(read)
        self._sources.store.time_commits(made.committed)
        self._shared.request_observers.append(RequestMetrics(made, refused))
        self._observe(made)
        return made

    def follow(self) -> None:
        """Observe agents that a reload has added, if the observers have begun."""
        if self._exposition:
            self._observe(self._exposition)

    def _observe(self, exposition: Exposition) -> None:
        """Observe all agents. One that came back after its end has the counters of the earlier
        agent with its id."""
        for agent, manager in self._sources.managers.items():
            known = self._tasks.get(agent)
            if known is None:
                starts = _Starts(agent, self._sources.managers)
                known = self._tasks[agent] = TaskMetrics(exposition.agent(agent), starts)
            observers = self._shared.agent_observers[agent]
            if known not in observers:
                observers.append(known)
            known.forget(handle.task.id for handle in manager.open_tasks)


class _Starts:
    """How the session of a task began, for the agent with this id."""

    def __init__(self, agent: str, managers: Mapping[str, TaskManager]) -> None:
        self._agent = agent
        self._managers = managers

    def __call__(self, task: Task) -> str:
        manager = self._managers.get(self._agent)
        found = manager.beginning(task) if manager else None
        return found[0] if found else "warm"
