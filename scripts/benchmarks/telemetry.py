"""The cost of metrics, logs and traces: CPU time of the server with each of them, over that of a
server without all of them.

All servers run at the same time, and do the same work at the same time, round by round. So other
load of the machine affects all of them, and the ratios of each round count. A second server without
anything shows the error of the measure.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.benchmarks import machine
from scripts.benchmarks.client import Loop, TooSlow
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
STREAMS, PER_SECOND = 10, 25
BEGIN_WITHIN = 10  # seconds for the streams of all servers
Servers = Mapping[str, Server]
Costs = dict[str, float]
"""CPU microseconds by the name of the server."""


@dataclass(frozen=True)
class Amount:
    """The work of a round, for each server: `seconds` of streams and of GetTask, `texts` of one
    task, and `tasks` of one text each."""

    rounds: int = 30
    seconds: float = 1.0
    texts: int = 30_000
    tasks: int = 5


QUICK = Amount(rounds=2, seconds=0.2, texts=2_000, tasks=1)


def variants(environment: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The settings of all servers. There is one with traces if OTEL_EXPORTER_OTLP_ENDPOINT names a
    collector; it gets all variables OTEL_*."""
    found = {name: {**_OFF, **settings} for name, settings in VARIANTS.items()}
    if any(environment.get(name) for name in ENDPOINTS):
        given = {name: value for name, value in environment.items() if name.startswith("OTEL_")}
        found["traces"] = {**_OFF, **given}
    return found


# --- the work -------------------------------------------------------------------------------------


def cpu_seconds(pid: int) -> float:
    """Of all threads of the process, ended ones included, in ns: /proc has only 10 ms."""
    return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3)


def used(servers: Servers, before: Costs | None = None) -> Costs:
    """CPU microseconds of each server, since `before`."""
    now = {name: cpu_seconds(server.pid) * 1e6 for name, server in servers.items()}
    return {name: value - (before[name] if before else 0.0) for name, value in now.items()}


def events(servers: Servers, amount: Amount) -> Iterator[Costs]:
    """Of an event: each server has STREAMS tasks with PER_SECOND events each."""
    texts = int(PER_SECOND * (amount.seconds * amount.rounds + BEGIN_WITHIN))
    knobs = {"n": texts, "gap_us": 1_000_000 // PER_SECOND}
    with Loop(("", 0)) as loop:
        opened = {}
        for name, server in servers.items():
            loop.address = server.address
            requests = [server.send_request(**knobs) for _ in range(STREAMS)]
            opened[name] = loop.crowd(requests, 30, "streams")
        found = []
        for _ in range(amount.rounds):
            before, begun = used(servers), time.monotonic_ns()
            loop.run_for(amount.seconds)
            found.append((begun, time.monotonic_ns(), used(servers, before)))
        loop.run_to_end(STREAMS * len(servers), 60, "streams")
    received = {
        name: [mark.received for one in streams for mark in heard(one, texts).marks()]
        for name, streams in opened.items()
    }
    for begun, ended, costs in found:
        counts = {n: sum(begun < one <= ended for one in received[n]) for n in servers}
        if not all(counts.values()):
            raise TooSlow(f"the first stream ended within {BEGIN_WITHIN} s of the last begin")
        yield {name: cost / counts[name] for name, cost in costs.items()}


def flood(servers: Servers, amount: Amount) -> Iterator[Costs]:
    """Of an event of one task that is as fast as it can."""
    for _ in range(amount.rounds):
        with Loop(("", 0)) as loop:
            before, streams = used(servers), []
            for server in servers.values():
                loop.address = server.address
                streams.append(loop.stream(server.send_request(n=amount.texts)))
            loop.run_to_end(len(streams), 60, "texts")
            costs = used(servers, before)
        for one in streams:
            heard(one, amount.texts)
        yield {name: cost / amount.texts for name, cost in costs.items()}


def tasks(servers: Servers, amount: Amount) -> Iterator[Costs]:
    """Of a task of one event, without the CPU time of the CLI and its start."""
    for number in range(amount.rounds):
        before = used(servers)
        for _ in range(amount.tasks):
            for name in _in_turn(list(servers), number):
                one_stream(servers[name], 30, n=1)
        yield {name: cost / amount.tasks for name, cost in used(servers, before).items()}


def calls(servers: Servers, amount: Amount) -> Iterator[Costs]:
    """Of a GetTask: each server has one busy connection."""
    with Loop(("", 0)) as loop:
        callers = {}
        for name, server in servers.items():
            task_id = one_stream(server, 30, n=10).task_id()
            loop.address = server.address
            callers[name] = loop.call(server.get_task_request(task_id))
        for _ in range(amount.rounds):
            done = {name: len(one.milliseconds) for name, one in callers.items()}
            before = used(servers)
            loop.run_for(amount.seconds)
            costs = used(servers, before)
            yield {
                name: cost / (len(callers[name].milliseconds) - done[name])
                for name, cost in costs.items()
            }


def _in_turn(names: list[str], number: int) -> Sequence[str]:
    """Each name once, each time with another one first."""
    turn = number % len(names)
    return names[turn:] + names[:turn]


WORK: Mapping[str, tuple[str, Callable[[Servers, Amount], Iterator[Costs]]]] = {
    "events": (f"an event, {STREAMS} tasks at {PER_SECOND}/s", events),
    "flood": ("an event, one task at full speed", flood),
    "tasks": ("a task of one event", tasks),
    "calls": ("a GetTask", calls),
}


# --- the figures ----------------------------------------------------------------------------------


def measure_all(folder: Path, store: str, amount: Amount) -> dict[str, Any]:
    """The CPU microseconds of each work, round and server."""
    agent = make_agent(folder)
    facts, costs = machine.facts(folder, agent), {}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(Target(store, agent, folder, store).serving(**settings))
            for name, settings in variants(os.environ).items()
        }
        for server in servers.values():
            warm_up(server)
        for work, (_, measure) in WORK.items():
            costs[work] = list(measure(servers, amount))
    return {**facts, "store": store, "costs": costs}


def text(result: dict[str, Any]) -> str:
    """A table: the CPU time of a server without anything, and what each of the others adds to it in
    per cent: the median of the rounds, with the middle half of them."""
    chosen = [name for name in next(iter(result["costs"].values()))[0] if name != BASE]
    lines = [
        f"| CPU of the server, {result['store']} store | {BASE} | {' | '.join(chosen)} |",
        f"|---|{'---:|' * (len(chosen) + 1)}",
    ]
    for work, rounds in result["costs"].items():
        base = f"{statistics.median(one[BASE] for one in rounds):,.4g} us"
        added = " | ".join(_added(rounds, name) for name in chosen)
        lines.append(f"| {WORK[work][0]} | {base} | {added} |")
    return "\n".join(lines)


def _added(rounds: Sequence[Costs], name: str) -> str:
    ratios = [100 * (one[name] / one[BASE] - 1) for one in rounds]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"**{middle:+.1f} %** ({low:+.1f} to {high:+.1f})"
