"""Several servers on one PostgreSQL, beside a server on SQLite in the same run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from scripts.benchmarks import machine, measures, processes
from scripts.benchmarks.client import Loop, TooSlow
from scripts.benchmarks.measures import Faulty, Figures, Sizes, heard, latencies, percentile
from scripts.benchmarks.servers import Agent, Server, Target
from scripts.benchmarks.transcript import Refused
from tests.support.servers import PUSH_KEY, Postgres, started

SQLITE, POSTGRES = "sqlite", "postgres"
STREAMS, PER_SECOND = 20, 50
QUOTA = 0.2  # of a core, for each server of `scale`
QUOTAS = Path("/sys/fs/cgroup/cpu")  # the controller of cgroup v1
BURST_TASKS, BURST_EVENTS = 4, 50_000  # of each server of `scale`


@dataclass(frozen=True)
class Wanted:
    """`nodes`: the number of servers. `bus`: their BRIDGE_BUS."""

    measures: Sequence[str]
    nodes: int
    runs: int
    bus: str = "notify"


class Goal(NamedTuple):
    """`figure` over the figure `over`, or less the figure `less`, is at most (or at least) `limit`.
    The figures are of PostgreSQL; `of`: the store of the other one."""

    label: str
    figure: str
    limit: float
    at_least: bool = False
    over: str = ""
    less: str = ""
    of: str = POSTGRES


GOALS = (
    Goal("one task of 100,000 events, events/s", "rate.100000", 100e3, at_least=True),
    Goal("20 tasks at 50/s: p50, ms", "pace.20x50.p50", 3.0),
    Goal("20 tasks at 50/s at another server: p50 beyond, ms", "remote.p50", 1.5, less="local.p50"),
    Goal(
        "20 tasks at 50/s: CPU per event", "pace.20x50.cpu", 1.4, over="pace.20x50.cpu", of=SQLITE
    ),
    Goal("servers at 20 % of a core: rate, times", "scale.many", 1.8, True, over="scale.one"),
)


@contextmanager
def cluster(database: Postgres, target: Target, count: int) -> Iterator[list[Server]]:
    """New servers on a new schema."""
    with database.schema() as url, ExitStack() as stack:
        at = replace(target, store=url)
        yield [stack.enter_context(at.serving()) for _ in range(count)]


def remote(servers: Sequence[Server], sizes: Sizes) -> Figures:
    """Tasks of the first server, each with a reader there and at the last one."""
    writer, reader = servers[0], servers[-1]
    texts = int(PER_SECOND * (sizes.pace_seconds + 2))
    with Loop(writer.address) as loop:
        measures.warm_up(writer)
        knobs = {"n": texts, "gap_us": 1_000_000 // PER_SECOND}
        requests = [writer.send_request(**knobs) for _ in range(STREAMS)]
        near = loop.crowd(requests, sizes.cap, "streams")
        loop.address = reader.address  # of the next connections
        ids = [stream.transcript().task_id() for stream in near]
        far = loop.crowd(map(reader.subscribe_request, ids), sizes.cap, "streams elsewhere")
        loop.run_for(0.3)
        cpu, began = [one.cpu_seconds() for one in (writer, reader)], time.monotonic_ns()
        loop.run_to_end(2 * STREAMS, texts / PER_SECOND + sizes.cap, "streams")
        spent = [one.cpu_seconds() - was for one, was in zip((writer, reader), cpu, strict=True)]
    count = 0
    for name, streams in (("local", near), ("remote", far)):
        found = [stream.transcript() for stream in streams]
        marks = [mark for one in found for mark in one.marks() if mark.written > began]
        count = max(count, len(marks))
        yield f"{name}.p50", percentile(latencies(marks), 0.5)
        yield f"{name}.p99", percentile(latencies(marks), 0.99)
        yield f"{name}.lost", sum(sum(one.faults(texts)) for one in found)
    yield "remote.cpu.writer", spent[0] / count * 1e6
    yield "remote.cpu.reader", spent[1] / count * 1e6


# --- servers with a part of a core ----------------------------------------------------------------


@contextmanager
def limited(servers: Sequence[Server]) -> Iterator[None]:
    """Each of the servers gets QUOTA of a core. Raises TooSlow where the kernel does not permit
    that."""
    groups = [QUOTAS / f"bench-{one.pid}" for one in servers]
    try:
        for one, group in zip(servers, groups, strict=True):
            group.mkdir()
            period = int((group / "cpu.cfs_period_us").read_text())
            (group / "cpu.cfs_quota_us").write_text(str(int(period * QUOTA)))
            for pid in {one.pid, *one.family()}:
                (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        raise TooSlow(f"no quota of a core: {error}") from error
    try:
        yield
    finally:
        for one, group in zip(servers, groups, strict=True):
            processes.kill({one.pid, *one.family()})
            _remove(group)


def _remove(group: Path) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            group.rmdir()
            return
        except OSError:  # its processes end
            time.sleep(0.01)


def burst(servers: Sequence[Server], sizes: Sizes) -> float:
    """Events per second of all servers, each of which has tasks that write as fast as they can."""
    events = min(BURST_EVENTS, max(sizes.growth) // 2)
    with limited(servers), Loop(servers[0].address) as loop:
        streams = []
        for server in servers:
            loop.address = server.address
            streams += [loop.stream(server.send_request(n=events)) for _ in range(BURST_TASKS)]
        loop.run_to_end(len(streams), sizes.cap, f"{events:,} texts of each task")
        spans = [heard(stream, events).span() for stream in streams]
    seconds = (max(end for _, end in spans) - min(begin for begin, _ in spans)) / 1e9
    return len(spans) * events / seconds


def scale(database: Postgres, target: Target, count: int, sizes: Sizes) -> Figures:
    for name, number in (("scale.one", 1), ("scale.many", count)):
        with cluster(database, target, number) as servers:
            for one in servers:
                measures.warm_up(one)
            yield name, burst(servers, sizes)


# --- all ------------------------------------------------------------------------------------------

Measure = Callable[[Target, Sizes], Figures]
EMBEDDED: dict[str, Measure] = {
    "rate": measures.rate,
    "pace": measures.pace,
    "many": measures.many,
}
MEASURES = (*EMBEDDED, "remote", "scale")


def measure_all(folder: Path, agent: Agent, wanted: Wanted, sizes: Sizes) -> dict[str, Any]:
    """The figures of all runs by store, with their medians in text(). The stores take turns."""
    settings = {"BRIDGE_PUSH_KEY": PUSH_KEY, "BRIDGE_BUS": wanted.bus}
    sqlite = Target(SQLITE, agent, folder, "durable")
    postgres = Target(POSTGRES, agent, folder, "", settings=settings)
    runs: list[dict[str, dict[str, float]]] = []
    notes: dict[str, list[str]] = {SQLITE: [], POSTGRES: []}
    with started() as database:
        for _ in range(wanted.runs):
            run: dict[str, dict[str, float]] = {SQLITE: {}, POSTGRES: {}}
            runs.append(run)
            for name in wanted.measures:
                if name in EMBEDDED:
                    _add(run[SQLITE], notes[SQLITE], EMBEDDED[name](sqlite, sizes))
                found = _figures(name, database, postgres, wanted.nodes, sizes)
                _add(run[POSTGRES], notes[POSTGRES], found)
    facts = machine.facts(folder, agent)
    return {**facts, "nodes": wanted.nodes, "bus": wanted.bus.partition(":")[0]} | {
        "runs": runs,
        "notes": notes,
    }


def _figures(name: str, database: Postgres, target: Target, nodes: int, sizes: Sizes) -> Figures:
    if name == "scale":
        yield from scale(database, target, nodes, sizes)
    elif name == "remote":
        with cluster(database, target, nodes) as servers:
            yield from remote(servers, sizes)
    else:
        with database.schema() as url:
            yield from EMBEDDED[name](replace(target, store=url), sizes)


def _add(figures: dict[str, float], notes: list[str], found: Figures) -> None:
    try:
        for figure, value in found:
            figures[figure] = float(f"{value:.6g}")
    except (TooSlow, Faulty, Refused, OSError) as error:
        notes.append(str(error) or type(error).__name__)


def text(result: dict[str, Any]) -> str:
    """A table of the medians, and one of the goals: the median of the ratios of each run."""
    lines = ["| figure | SQLite | PostgreSQL | ratio |", "|---|---:|---:|---:|"]
    stores = {name: [run[name] for run in result["runs"]] for name in (SQLITE, POSTGRES)}
    for figure in dict.fromkeys(name for run in stores[POSTGRES] for name in run):
        old, new = (_values(stores[name], figure) for name in (SQLITE, POSTGRES))
        ratio = f"{new / old:.2f}" if old and new is not None else ""
        lines.append(f"| {figure} | {_short(old)} | {_short(new)} | {ratio} |")
    lines += ["", "| goal | found | limit | met |", "|---|---:|---:|---|"]
    for goal in GOALS:
        found = [value for run in result["runs"] if (value := _reached(goal, run)) is not None]
        if found:
            value = statistics.median(found)
            met = value >= goal.limit if goal.at_least else value <= goal.limit
            sign = ">=" if goal.at_least else "<="
            row = (goal.label, _short(value), f"{sign} {goal.limit:,}", "yes" if met else "no")
            lines.append(f"| {' | '.join(row)} |")
    lines += [f"{name}: {note}" for name, notes in result["notes"].items() for note in notes]
    return "\n".join(lines)


def _reached(goal: Goal, run: dict[str, dict[str, float]]) -> float | None:
    value = run[POSTGRES].get(goal.figure)
    other = run[goal.of].get(goal.over or goal.less) if goal.over or goal.less else 0.0
    if value is None or other is None:
        return None
    return value / other if goal.over else value - other


def _values(runs: Sequence[dict[str, float]], figure: str) -> float | None:
    found = [run[figure] for run in runs if figure in run]
    return statistics.median(found) if found else None


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
