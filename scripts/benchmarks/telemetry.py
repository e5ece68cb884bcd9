"""The cost of metrics, logs and traces: CPU time of the server with each of them, over that of a
server without all of them.

All servers run at the same time. In each round each of them does the same work, in another order,
and the ratios of that round count: so other load of the machine affects all of them. A second
server without anything shows the error of the measure.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.benchmarks import machine
from scripts.benchmarks.client import Loop
from scripts.benchmarks.measures import heard, one_stream, warm_up
from scripts.benchmarks.servers import Server, Target, make_agent

BASE, AGAIN = "nothing", "nothing, again"
_OFF = {"BRIDGE_METRICS": "off", "LOG_FORMAT": "text", "LOG_REQUESTS": "false"}
_ON = {"BRIDGE_METRICS": "on", "LOG_FORMAT": "json", "LOG_REQUESTS": "true"}
VARIANTS: Mapping[str, Mapping[str, str]] = {
    BASE: {},
    AGAIN: {},
    "metrics": {"BRIDGE_METRICS": "on"},
    "JSON log": {"LOG_FORMAT": "json"},
    "request log": {"LOG_REQUESTS": "true"},
    "all of these": _ON,
}
"""Settings of the servers, beside those of _OFF."""
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
STREAMS, PER_SECOND = 20, 50


@dataclass(frozen=True)
class Amount:
    """The work of a round. `seconds` of streams, `texts` of one task, `tasks` of one text each, and
    `calls_seconds` of GetTask."""

    rounds: int = 20
    seconds: float = 1.5
    texts: int = 50_000
    tasks: int = 20
    calls_seconds: float = 0.5


QUICK = Amount(rounds=2, seconds=0.2, texts=2_000, tasks=2, calls_seconds=0.1)


def variants() -> dict[str, dict[str, str]]:
    """The settings of all servers. There is one with traces if OTEL_EXPORTER_OTLP_ENDPOINT names a
    collector; it gets all variables OTEL_*."""
    found = {name: {**_OFF, **settings} for name, settings in VARIANTS.items()}
    if any(os.environ.get(name) for name in ENDPOINTS):
        given = {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}
        found["traces"] = {**_OFF, **given}
    return found


# --- the work -------------------------------------------------------------------------------------


def cpu_seconds(pid: int) -> float:
    """Of all threads of the process, ended ones included, in ns: /proc has only 10 ms."""
    return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3)


def events(server: Server, amount: Amount) -> float:
    """CPU microseconds of an event, while STREAMS tasks run at PER_SECOND each."""
    texts = int(PER_SECOND * (amount.seconds + 0.5))
    with Loop(server.address) as loop:
        knobs = {"n": texts, "gap_us": 1_000_000 // PER_SECOND}
        requests = [server.send_request(**knobs) for _ in range(STREAMS)]
        streams = loop.crowd(requests, 30, "streams")
        cpu, begun = cpu_seconds(server.pid), time.monotonic_ns()
        loop.run_for(amount.seconds)
        cpu, ended = cpu_seconds(server.pid) - cpu, time.monotonic_ns()
        loop.run_to_end(STREAMS, 60, "streams")
    marks = [mark for one in streams for mark in heard(one, texts).marks()]
    return cpu / sum(begun < mark.received <= ended for mark in marks) * 1e6


def flood(server: Server, amount: Amount) -> float:
    """CPU microseconds of an event of one task that is as fast as it can."""
    cpu = cpu_seconds(server.pid)
    one_stream(server, 60, n=amount.texts)
    return (cpu_seconds(server.pid) - cpu) / amount.texts * 1e6


def tasks(server: Server, amount: Amount) -> float:
    """CPU microseconds of a task of one event, without those of the CLI and its start."""
    cpu = cpu_seconds(server.pid)
    for _ in range(amount.tasks):
        one_stream(server, 30, n=1)
    return (cpu_seconds(server.pid) - cpu) / amount.tasks * 1e6


def calls(server: Server, amount: Amount) -> float:
    """CPU microseconds of a GetTask on a busy connection."""
    task_id = one_stream(server, 30, n=10).task_id()
    with Loop(server.address) as loop:
        caller = loop.call(server.get_task_request(task_id))
        cpu = cpu_seconds(server.pid)
        loop.run_for(amount.calls_seconds)
        cpu = cpu_seconds(server.pid) - cpu
    return cpu / len(caller.milliseconds) * 1e6


WORK: Mapping[str, tuple[str, Callable[[Server, Amount], float]]] = {
    "events": (f"an event, {STREAMS} tasks at {PER_SECOND}/s", events),
    "flood": ("an event, one task at full speed", flood),
    "tasks": ("a task of one event", tasks),
    "calls": ("a GetTask", calls),
}


# --- the figures ----------------------------------------------------------------------------------


def measure_all(folder: Path, store: str, amount: Amount) -> dict[str, Any]:
    """The CPU microseconds of each work, server and round."""
    agent, chosen = make_agent(folder), variants()
    found: dict[str, dict[str, list[float]]] = {work: {v: [] for v in chosen} for work in WORK}
    facts = machine.facts(folder, agent)
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(Target(store, agent, folder, store).serving(**settings))
            for name, settings in chosen.items()
        }
        for server in servers.values():
            warm_up(server)
        for number in range(amount.rounds):
            for work, (_, measure) in WORK.items():
                for name in _in_turn(list(servers), number):
                    found[work][name].append(measure(servers[name], amount))
    return {**facts, "store": store, "costs": found}


def _in_turn(names: list[str], number: int) -> Iterator[str]:
    """Each name once. Over the rounds each is equally often early and late, and next to each."""
    turn = number % len(names)
    order = names[turn:] + names[:turn]
    return iter(order if number // len(names) % 2 == 0 else order[::-1])


def text(result: dict[str, Any]) -> str:
    """A table: the CPU time of a server without anything, and what each of the others adds to it in
    per cent: the median of the rounds, with the middle half of them."""
    chosen = [name for name in next(iter(result["costs"].values())) if name != BASE]
    lines = [
        f"| CPU of the server, {result['store']} store | {BASE} | {' | '.join(chosen)} |",
        f"|---|{'---:|' * (len(chosen) + 1)}",
    ]
    for work, costs in result["costs"].items():
        base = f"{statistics.median(costs[BASE]):,.4g} us"
        added = " | ".join(_added(costs[name], costs[BASE]) for name in chosen)
        lines.append(f"| {WORK[work][0]} | {base} | {added} |")
    return "\n".join(lines)


def _added(costs: list[float], base: list[float]) -> str:
    ratios = [100 * (one / other - 1) for one, other in zip(costs, base, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"**{middle:+.1f} %** ({low:+.1f} to {high:+.1f})"
