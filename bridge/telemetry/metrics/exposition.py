"""The registry of the metrics and its page, with the library prometheus-client."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, product
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from bridge.telemetry.metrics.catalog import (
    CATALOG,
    END_STATES,
    FAMILIES,
    MOST_MODELS,
    OTHER,
    REASONS,
    STARTS,
    TOOL_KINDS,
    TOOL_OUTCOMES,
    Family,
)

# One more series for each counter, which no alert needs.
disable_created_metrics()  # type: ignore[no-untyped-call]
Reading = tuple[str, tuple[str, ...], float]
"""A value: the name of its family in the catalog, the values of its labels, and the value. The
value of an info is 1."""
Read = Callable[[], Iterable[Reading]]
REQUESTS, REQUEST_TIMES = "bridge_requests", "bridge_request_duration_seconds"


class Exposition:
    """The metrics of a server. `read` returns the values that are read when the page is requested.
    The children of an agent's counters are made at once, so that each series begins at 0:
    `increase()` does not see the first value of a series. The series of requests, questions, tokens
    and the times of tools begin with their first value: in advance they would be thousands."""

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self, read: Read) -> None:
        self._registry = CollectorRegistry()
        self._made = {
            one.name: _MAKE[one.kind](self._registry, one)
            for one in CATALOG
            if not one.read and one.name not in (REQUESTS, REQUEST_TIMES)
        }
        self._registry.register(_Readings(read))
        ProcessCollector(registry=self._registry)
        self._models: set[str] = set()
        requests = _Requests()
        self._registry.register(requests)
        self.answered = requests.answered
        self.committed: Callable[[float], None] = self.family(
            "bridge_journal_commit_seconds"
        ).observe

    def page(self) -> bytes:
        """The text form, version 0.0.4."""
        return generate_latest(self._registry)

    def family(self, name: str) -> Any:
        return self._made[name]

    def agent(self, agent: str) -> AgentChildren:
        """The metrics of the agent with this id. Call it once for each."""
        return AgentChildren(self, agent)

    def model(self, name: str) -> str:
        """The label of a model: only the first ones have labels of their own."""
        if name in self._models:
            return name
        if len(self._models) >= MOST_MODELS:
            return OTHER
        self._models.add(name)
        return name


class Children(dict[tuple[str, ...], Any]):
    """The children of a family by the values of their labels. Each is made when it is first needed,
    or before; `labels()` takes four times as long as to find it here. `first`: the values of the
    first labels, which are not in the keys."""

    def __init__(self, family: Any, *first: str) -> None:
        self._family = family
        self._first = first

    def __missing__(self, labels: tuple[str, ...]) -> Any:
        made = self[labels] = self._family.labels(*self._first, *labels)
        return made

    def begin(self, known: Iterable[tuple[str, ...]]) -> None:
        """Make these children: their series exist from now on."""
        self.update((labels, self[labels]) for labels in known)


class AgentChildren:
    """The metrics of one agent: an AgentSink."""

    def __init__(self, exposition: Exposition, agent: str) -> None:
        self._model = exposition.model

        def of(name: str) -> Children:
            return Children(exposition.family(name), agent)

        self._ends, self._first = of("bridge_tasks"), of("bridge_first_event_seconds")
        self._calls, self._call_times = of("bridge_tool_calls"), of("bridge_tool_duration_seconds")
        self._waits = of("bridge_question_wait_seconds")
        self._tokens, self._costs = of("bridge_tokens"), of("bridge_cost_usd")
        self._duration = of("bridge_task_duration_seconds")[()]
        self._queue = of("bridge_task_queue_seconds")[()]
        self._ends.begin((state, "") for state in END_STATES if state != "failed")
        self._ends.begin(("failed", reason) for reason in (*REASONS, OTHER))
        self._first.begin((start,) for start in STARTS)
        self._calls.begin(product(TOOL_KINDS, TOOL_OUTCOMES))

    def ended(self, state: str, reason: str, seconds: float) -> None:
        self._ends[state, reason].inc()
        self._duration.observe(seconds)

    def prompted(self, seconds: float) -> None:
        self._queue.observe(seconds)

    def first_event(self, start: str, seconds: float) -> None:
        self._first[start,].observe(seconds)

    def answered(self, kind: str, by: str, seconds: float) -> None:
        self._waits[kind, by].observe(seconds)

    def tool(self, kind: str, outcome: str, seconds: float) -> None:
        self._calls[kind, outcome].inc()
        self._call_times[kind,].observe(seconds)

    def used(self, model: str, tokens: Iterable[tuple[str, int]], cost: float) -> None:
        label = self._model(model)
        for kind, count in tokens:
            self._tokens[label, kind].inc(count)
        self._costs[label,].inc(max(cost, 0.0))


class _Requests(Collector):
    """The number and the times of requests: a RequestSink. The counters of the library take four
    times as long, for each request 2 % of the time of a GetTask. Used by the event loop only."""

    def __init__(self) -> None:
        self._bounds = FAMILIES[REQUEST_TIMES].buckets
        self._counts: dict[tuple[str, str, str, str], int] = {}
        self._times: dict[tuple[str, ...], list[float]] = {}  # by bucket, and their sum

    def answered(self, names: tuple[str, str, str, str], seconds: float) -> None:
        """See RequestSink."""
        self._counts[names] = self._counts.get(names, 0) + 1
        times = self._times.get(names[:2])
        if times is None:
            times = self._times[names[:2]] = [0] * (len(self._bounds) + 2)
        times[bisect_left(self._bounds, seconds)] += 1
        times[-1] += seconds

    def collect(self) -> Iterator[Metric]:
        one = FAMILIES[REQUESTS]
        counter = CounterMetricFamily(one.name, one.help, labels=one.labels)
        for names, count in self._counts.items():
            counter.add_metric(names, count)
        yield counter
        one = FAMILIES[REQUEST_TIMES]
        histogram = HistogramMetricFamily(one.name, one.help, labels=one.labels)
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        for labels, (*counts, total) in self._times.items():
            buckets = [*zip(bounds, accumulate(counts), strict=True)]
            histogram.add_metric(labels, buckets, total)
        yield histogram


class _Readings(Collector):
    """The values that are read for each page."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def describe(self) -> Sequence[Metric]:
        """No values are read when the collector is registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        found: dict[str, list[tuple[tuple[str, ...], float]]] = {}
        for name, labels, value in self._read():
            found.setdefault(name, []).append((labels, value))
        for name, values in found.items():
            one = FAMILIES[name]
            labeled = () if one.kind == "info" else one.labels
            made: Any = _FAMILY[one.kind](one.name, one.help, labels=labeled)
            for labels, value in values:
                if one.kind == "info":
                    made.add_metric((), dict(zip(one.labels, labels, strict=True)))
                else:
                    made.add_metric(labels, value)
            yield made


def _counter(registry: CollectorRegistry, one: Family) -> Counter:
    return Counter(one.name, one.help, one.labels, registry=registry)


def _histogram(registry: CollectorRegistry, one: Family) -> Histogram:
    return Histogram(one.name, one.help, one.labels, buckets=one.buckets, registry=registry)


_MAKE: dict[str, Any] = {"counter": _counter, "histogram": _histogram}
_FAMILY: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "info": InfoMetricFamily,
}
