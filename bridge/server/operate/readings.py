"""The values of the metrics that are read when the page is requested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bridge import __version__
from bridge.auth.authentication import Identity
from bridge.auth.token_bucket import RateLimitedLogs
from bridge.push.notifier import Push
from bridge.runtime.tasks import TaskManager
from bridge.server.agents.grpc_port import GrpcPort
from bridge.server.operate.health import HealthCheck
from bridge.server.operate.readiness import Readiness
from bridge.session.pool import SessionPool
from bridge.session.turn import QUIET
from bridge.store.protocol import Store
from bridge.task.state import Task
from bridge.telemetry.metrics import catalog
from bridge.telemetry.metrics.metrics import Metrics
from bridge.telemetry.watchdog import Watchdog
from bridge.transports.listener.connection_limits import LimitedRunner
from bridge.transports.stream import StreamTally

Reading = tuple[str, tuple[str, ...], float]
"""See bridge/telemetry/metrics/exposition.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The parts of the server with values. `managers`, by agent id, may change. `bus`: whether
    hints between servers arrive."""

    managers: Mapping[str, TaskManager]
    pool: SessionPool
    store: Store
    push: Push
    identity: Identity
    runner: LimitedRunner
    grpc: GrpcPort
    watchdog: Watchdog
    audit: HealthCheck
    readiness: Readiness
    tally: StreamTally
    metrics: Metrics
    bus: Callable[[], bool] = lambda: True


class Readings:
    """`refused`: the refused operations, by reason. `last_event` returns the time of the last event
    of a working task of an agent."""

    def __init__(
        self,
        sources: Sources,
        refused: Counter[str],
        last_event: Callable[[str, Task], datetime],
    ) -> None:
        self._sources = sources
        self._refused = refused
        self._last_event = last_event

    def __call__(self) -> Iterator[Reading]:
        now = datetime.now(UTC)
        for agent, manager in self._sources.managers.items():
            yield from self._of_tasks(agent, manager, now)
            yield from self._of_sessions(agent, manager)
        yield from self._of_clients()
        yield from self._of_store()
        yield from self._of_server()

    def _of_tasks(self, agent: str, manager: TaskManager, now: datetime) -> Iterator[Reading]:
        tasks = [handle.task for handle in manager.open_tasks]
        states = Counter(task.state.value for task in tasks)
        yield from _counts("bridge_tasks_open", states, catalog.OPEN_STATES, agent)
        kinds: Counter[str] = Counter()
        asked, quiet = 0.0, [0.0]
        for task in tasks:
            if task.question:
                kinds[task.question.kind] += 1
                asked = max(asked, (now - (task.asked_at or now)).total_seconds())
            elif task.state.value == "working":
                quiet.append((now - self._last_event(agent, task)).total_seconds())
        yield from _counts("bridge_questions_open", kinds, catalog.QUESTION_KINDS, agent)
        yield "bridge_question_oldest_age_seconds", (agent,), asked
        yield "bridge_oldest_event_age_seconds", (agent,), max(quiet)
        yield "bridge_tasks_silent", (agent,), sum(age >= QUIET for age in quiet)

    def _of_sessions(self, agent: str, manager: TaskManager) -> Iterator[Reading]:
        uses = self._sources.pool.uses
        found = (uses.get(context.lease) for context in manager.contexts)
        states = Counter(use.value for use in found if use)
        states["warm"] = manager.warm
        yield from _counts("bridge_sessions", states, catalog.SESSION_STATES, agent)
        tally = manager.sessions
        yield from _counts("bridge_session_starts", tally.starts, catalog.STARTS, agent)
        yield from _counts("bridge_process_exits", tally.exits, catalog.EXIT_REASONS, agent)
        yield "bridge_leftover_processes", (agent,), tally.leftovers
        yield from _counts("bridge_unasked", tally.unasked, catalog.UNASKED_KINDS, agent)

    def _of_clients(self) -> Iterator[Reading]:
        sources, runner = self._sources, self._sources.runner
        refused = self._refused + runner.refused
        yield from _counts("bridge_requests_refused", refused, catalog.REFUSALS)
        for names in catalog.FAILURES:
            yield "bridge_auth_failures", names, sources.identity.failures[names]
        bindings = [one for one in sources.tally.items if one in catalog.BINDINGS]
        for binding in dict.fromkeys((*catalog.BINDINGS[:3], *bindings)):
            yield "bridge_streams", (binding,), sources.tally.open[binding]
            yield "bridge_stream_items", (binding,), sources.tally.items[binding]
        cut = {"http": runner.cut, "grpc": sources.grpc.cut}
        yield from _counts("bridge_slow_readers_cut", cut, catalog.READERS)
        yield from _counts("bridge_connections", runner.connections(), catalog.LISTENERS)

    def _of_store(self) -> Iterator[Reading]:
        sources = self._sources
        yield "bridge_journal_backlog_bytes", (), sources.store.backlog
        yield "bridge_store_bytes", (), sources.store.stored
        free = sources.readiness.free_bytes()
        if free is not None:
            yield "bridge_state_free_bytes", (), free
        yield "bridge_push_queue", (), len(sources.push.pending)
        outcomes = sources.push.delivery.outcomes
        yield "bridge_push_dead", (), outcomes["dead"]
        yield from _counts("bridge_push_deliveries", outcomes, catalog.DELIVERIES)

    def _of_server(self) -> Iterator[Reading]:
        sources, metrics = self._sources, self._sources.metrics
        found = {
            "store": sources.store.problem is not None,
            "audit": sources.audit.problem is not None,
            "event_loop": sources.watchdog.problem is not None,
            "bus": not sources.bus(),
            **dict.fromkeys(sources.readiness.problems(), True),
        }
        yield "bridge_ready", (), sources.readiness.ready
        yield from _counts("bridge_degraded", found, catalog.PROBLEMS)
        yield "bridge_session_slots", (), sources.pool.limit
        yield "bridge_event_loop_lag_seconds", (), sources.watchdog.lag
        yield from _counts("bridge_reloads", metrics.reloads, catalog.RELOADS)
        yield "bridge_config_loaded_timestamp_seconds", (), metrics.config_loaded
        yield "bridge_backup_timestamp_seconds", (), metrics.backup
        yield "bridge_spans_dropped", (), metrics.spans_dropped
        yield "bridge_log_lines_suppressed", (), RateLimitedLogs.suppressed_lines
        yield "bridge_build", (__version__, str(sources.store.schema)), 1


def _counts(
    name: str, counts: Mapping[Any, float], known: Iterable[str], *labels: str
) -> Iterator[Reading]:
    """A reading for each known value of the last label, 0 for a missing one."""
    for one in known:
        yield name, (*labels, one), counts.get(one, 0)
