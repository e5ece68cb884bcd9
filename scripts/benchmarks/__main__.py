"""Measure the bridge, with both of its stores, beside a server on the official Python SDK, and
beside aiohttp alone."""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from scripts.benchmarks import machine, report, telemetry
from scripts.benchmarks.client import TooSlow
from scripts.benchmarks.measures import ALONE, MEASURES, Faulty, Sizes
from scripts.benchmarks.servers import Target, has_sdk, make_agent
from scripts.benchmarks.transcript import Refused

RUNS = 3
POSTGRES, OF_NODES = "postgres", ("remote", "scale")
FULL = Sizes()
QUICK = Sizes(
    growth=(1_000, 10_000, 100_000),
    pace_seconds=1,
    many=30,
    first=3,
    idle=(50,),
    live=50,
    retained_tasks=3,
    calls_seconds=0.3,
    get=(10_000,),
    subscribers=(50,),
    fan_events=10_000,
    fan_seconds=1,
    slow_seconds=2,
    cancels=3,
    cancel_beside=10,
    late_events=900,
    late_after=0.3,
    warm=1,
    cap=8.0,
)


def for_sdk(sizes: Sizes) -> Sizes:
    """Sizes that the SDK's server handles in an acceptable time: its cost of an event grows with
    the task and with the subscribers."""
    return replace(
        sizes,
        growth=tuple(events for events in sizes.growth if events <= 100_000),
        beside_rate=min(sizes.beside_rate, 500),
        get=tuple(events for events in sizes.get if events <= 10_000),
        fan_events=min(sizes.fan_events, 300),
        slow_rate=min(sizes.slow_rate, 100),
        late_rate=min(sizes.late_rate, 500),
        late_events=min(sizes.late_events, 1_500),
        cap=sizes.cap / 4,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 1 if the bridge lost an event or exceeded the time of a measure."""
    options = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # and clean up
    sizes = QUICK if options.quick else FULL
    if options.telemetry:
        return _telemetry(options)
    if options.nodes:
        return _several(options, sizes)
    if POSTGRES in options.server:
        _parser().error(f"--server {POSTGRES} requires --nodes")
    runs = options.runs or (1 if options.quick else RUNS)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        result = measure_all(Path(folder), options.only, options.server, runs, sizes)
    print(report.text(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.markdown:
        page = options.markdown.read_text("utf-8")
        options.markdown.write_text(report.with_tables(page, result), "utf-8")
    bad = [note for run in result["runs"] for note in _ours(run["notes"])]
    return 1 if bad else 0


def _telemetry(options: argparse.Namespace) -> int:
    """The cost of metrics, logs and traces, with the stores of `--server`."""
    amount = telemetry.QUICK if options.quick else telemetry.Amount()
    amount = replace(amount, rounds=options.runs or amount.rounds)
    found = []
    for store in (name for name in options.server if name in report.OURS):
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            found.append(telemetry.measure_all(Path(folder), store, amount))
        print(telemetry.text(found[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _several(options: argparse.Namespace, sizes: Sizes) -> int:
    """The measures of servers on PostgreSQL."""
    from scripts.benchmarks import nodes  # noqa: PLC0415 - it needs libraries of the tests

    wanted = nodes.Wanted(
        [name for name in options.only if name in nodes.MEASURES],
        options.nodes,
        options.runs or (1 if options.quick else RUNS),
        options.bus,
    )
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        result = nodes.measure_all(Path(folder), make_agent(Path(folder)), wanted, sizes)
    print(nodes.text(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if any(result["notes"].values()) else 0


def _ours(notes: dict[str, list[Any]]) -> list[Any]:
    return [note for target, given in notes.items() if target in report.OURS for note in given]


def measure_all(
    folder: Path, only: Sequence[str], servers: Sequence[str], runs: int, sizes: Sizes
) -> dict[str, Any]:
    """The figures of all runs. The servers take turns in each measure, so that other load of the
    machine affects all of them."""
    agent = make_agent(folder)
    sizes = replace(sizes, live=machine.raise_open_files(sizes.live))
    sizes_of = {name: for_sdk(sizes) if name == "sdk" else sizes for name in servers}
    targets = [
        Target(name, agent, folder, name if name in report.OURS else None) for name in servers
    ]
    facts = machine.facts(folder, agent)
    found: list[dict[str, Any]] = [{"figures": {}, "notes": {}, "machine": {}} for _ in range(runs)]
    for name in (name for name in only if name in MEASURES):
        for number, run in enumerate(found):
            turn = number % len(targets)
            for target in targets[turn:] + targets[:turn]:
                if target.name != "alone" or name in ALONE:
                    _measure(name, target, sizes_of[target.name], run)
    for run in found:
        for target, spins in run["machine"].items():
            run["figures"][target]["machine.median"] = statistics.median(spins.values())
            run["figures"][target]["machine.slowest"] = max(spins.values())
    sizes_of_both = {"bridge": asdict(sizes), "sdk": asdict(for_sdk(sizes))}
    return {"format": 1, **facts, "sizes": sizes_of_both, "runs": found}


def _measure(name: str, target: Target, sizes: Sizes, run: dict[str, Any]) -> None:
    """Add the target's figures to `run`, with the reason for missing ones."""
    figures = run["figures"].setdefault(target.name, {})
    notes = run["notes"].setdefault(target.name, [])
    run["machine"].setdefault(target.name, {})[name] = machine.spin()
    began = time.monotonic()
    try:
        for figure, value in MEASURES[name](target, sizes):
            figures[figure] = float(f"{value:.6g}")
    except (TooSlow, Faulty, Refused, OSError) as error:
        notes.append({"measure": name, "why": str(error) or type(error).__name__})
    seconds = time.monotonic() - began
    print(f"{name}, {target.name}: {seconds:.1f} s", file=sys.stderr, flush=True)


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(names: str) -> list[str]:
        for name in names.split(","):
            if name not in known:
                raise argparse.ArgumentTypeError(f"unknown name {name}; known: {', '.join(known)}")
        return names.split(",")

    return parse


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    servers = [name for name in report.TARGETS if name != "sdk" or has_sdk()]
    parser.add_argument("--quick", action="store_true", help="small sizes, once")
    parser.add_argument(
        "--only",
        type=_names([*MEASURES, *OF_NODES]),
        default=[*MEASURES, *OF_NODES],
        metavar="NAME,…",
        help=f"measures to run, from: {', '.join(MEASURES)}",
    )
    parser.add_argument(
        "--server",
        type=_names([*servers, POSTGRES]),
        default=list(servers),
        metavar="NAME,…",
        help=f"servers to measure, from: {', '.join(servers)}",
    )
    parser.add_argument(
        "--runs", type=int, help=f"number of runs of each measure [{RUNS}; 1 with --quick]"
    )
    parser.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help="measure N servers on one PostgreSQL (the one of BRIDGE_TEST_POSTGRES, or a new one), "
        f"beside one on SQLite: rate, pace, many, {', '.join(OF_NODES)}",
    )
    parser.add_argument(
        "--telemetry",
        action="store_true",
        help="measure the cost of metrics and logs, and with OTEL_EXPORTER_OTLP_ENDPOINT that of "
        "traces: --runs rounds for each store",
    )
    parser.add_argument("--bus", default="notify", help="BRIDGE_BUS of these servers [notify]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write the tables between the marks of FILE"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
