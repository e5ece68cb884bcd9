"""The figures as tables: for the terminal, and for docs/performance.md."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from scripts.benchmarks.machine import ADDITIONS

BEGIN, END = "<!-- bench -->\n", "<!-- /bench -->"
OURS = ("memory", "durable")
TARGETS = (*OURS, "sdk", "alone")
WIDTH = 100  # characters of a line outside of the table
HEAD = (
    *("measure", "unit", "target", "memory", "met", "durable", "met", "SDK", "times as good"),
    "aiohttp alone",
)
PAGE_HEAD = ("measure", "unit", "target", "memory", "durable", "SDK", "aiohttp alone")

Result = Mapping[str, Any]
"""The content of the file that scripts/bench --json writes: see docs/performance.md."""


class Row(NamedTuple):
    """A line of the table. `memory` and `durable` are the targets of the two stores. A `detail` is
    shown on the terminal only."""

    figure: str
    label: str
    unit: str
    more_is_better: bool = False
    memory: float | None = None
    durable: float | None = None
    detail: bool = False


def rows(sizes: Mapping[str, Any]) -> Iterator[Row]:
    yield from _one_task(sizes)
    yield from _paces(sizes)
    yield from _memory(sizes)
    yield from _calls(sizes)
    yield from _several(sizes)
    spin = f"this machine: {ADDITIONS:,} additions in Python, before each measure"
    yield Row("machine.median", f"{spin}: median", "ms")
    yield Row("machine.slowest", f"{spin}: slowest", "ms", detail=True)


def _one_task(sizes: Mapping[str, Any]) -> Iterator[Row]:
    for events in sizes["growth"]:
        target = (400e3, 100e3) if events == 100_000 else (None, None)
        yield Row(f"rate.{events}", f"one task of {events:,} events", "events/s", True, *target)
    largest, small = max(sizes["growth"]), min(10_000, max(sizes["growth"]))
    label = f"flatness: rate of {largest:,} over {small:,} events"
    yield Row("flatness", label, "", True, 0.8, 0.8)
    yield Row("first.frame", "request to first event", "ms")
    yield Row("first.text", "request to first text", "ms")
    yield Row("first.cli", "of that, the CLI's own start, measured alone", "ms", detail=True)
    yield Row("first.beyond_frame", "first event beyond the CLI's start", "ms", detail=True)
    yield Row("first.beyond_text", "first text beyond the CLI's start", "ms", detail=True)
    yield Row("first.task", "request to first event, adapter `generic`", "ms", False, 1, 2)
    yield Row("warm.0", "first text, CLI starts in 500 ms", "ms")
    yield Row("warm.1", "the same with BRIDGE_WARM_SESSIONS=1", "ms")


def _paces(sizes: Mapping[str, Any]) -> Iterator[Row]:
    many = f"{sizes['many']} tasks at 10/s"
    for name, label in (
        ("pace.20x50", "20 tasks at 50/s"),
        ("pace.1x200", "1 task at 200/s"),
        ("many", many),
    ):
        twenty = name == "pace.20x50"
        cpu, p50, p99 = ((60, 110), (0.06, 0.6), (0.5, 3)) if twenty else ((), (), ())
        p99 = (2, 15) if name == "many" else p99
        yield Row(f"{name}.cpu", f"{label}: CPU per event", "us", False, *cpu)
        yield Row(f"{name}.p50", f"{label}: latency, median", "ms", False, *p50)
        yield Row(f"{name}.p99", f"{label}: latency, 99 %", "ms", False, *p99)
        yield Row(f"{name}.max", f"{label}: latency, longest", "ms", detail=True)
        yield Row(f"{name}.lost", f"{label}: lost, doubled or out of order", "", False, 0, 0)


def _memory(sizes: Mapping[str, Any]) -> Iterator[Row]:
    yield Row("idle", "the idle server", "MiB", False, 55, 55)
    yield Row("idle.helpers", "the process that starts its agents", "MiB", detail=True)
    for count in sizes["idle"]:
        label = f"{count} silent streaming tasks: memory of each"
        yield Row(f"idle.{count}", label, "KiB", False, 32, 32)
        yield Row(f"idle.{count}.helpers", f"{label}, outside the server", "KiB", detail=True)
    live = f"{sizes['live']:,} live streams"
    yield Row("live.seconds", f"{live}: until all stream", "s", False, 3, 5)
    yield Row("live.rss", f"{live}: memory of the server", "MiB", False, 130)
    yield Row("retained", "finished tasks: memory kept per byte of text", "bytes", False, 1.3, 0.1)


def _calls(sizes: Mapping[str, Any]) -> Iterator[Row]:
    for name, label, memory, durable in (
        ("card", "agent card", 25e3, 25e3),
        ("get", "GetTask, finished", 15e3, 5e3),
    ):
        yield Row(f"{name}.rate", f"{label}: answers, 16 connections", "1/s", True, detail=True)
        yield Row(f"{name}.cpu", f"{label}: CPU per answer", "us", detail=True)
        yield Row(f"{name}.per_core", f"{label}: answers per core", "1/s", True, memory, durable)
    label = f"agent card beside {sizes['beside_rate']:,} events/s: 99 %"
    yield Row("beside.p99", label, "ms", False, 0.2, 0.2)
    targets = {10_000: (1, 1), 100_000: (10, 10)}
    for events in sizes["get"]:
        for state in ("finished", "live"):
            label = f"GetTask, {state}, {events:,} events"
            yield Row(f"get.{events}.{state}", label, "ms", False, *targets.get(events, ()))


def _several(sizes: Mapping[str, Any]) -> Iterator[Row]:
    for count in sizes["subscribers"]:
        label = f"{count} subscriber{'s' if count > 1 else ''}"
        target = (2e6, 2e6) if count == 50 else ()
        yield Row(f"fan.{count}.rate", f"{label}: delivered in all", "events/s", True, *target)
        yield Row(f"fan.{count}.cpu", f"{label}: CPU per delivered event", "us", detail=True)
        yield Row(f"fan.{count}.p99", f"{label} at 200/s: latency, 99 %", "ms")
    yield Row("late.lost", "5 late subscribers: lost", "", False, 0, 0)
    yield Row("late.doubled", "5 late subscribers: doubled", "", False, 0, 0)
    yield Row("late.disordered", "5 late subscribers: out of order", "", False, 0, 0)
    reader = "a reader that does not read"
    yield Row("slow.growth", f"{reader}: memory it costs", "MiB", False, 1, 1)
    yield Row("slow.p99", f"{reader}: its neighbour's latency, 99 %", "ms", detail=True)
    yield Row("slow.p99.control", "the same beside one that reads", "ms", detail=True)
    label = f"{reader}: its neighbour's latency, 99 %, over that beside one that reads"
    yield Row("slow.ratio", label, "", False, 1.5, 1.5)
    yield Row("slow.faults", f"{reader}: lost or doubled when it reads on", "", False, 0, 0)
    yield Row("slow.resumed", "how often it had to resume", "", detail=True)
    canceled = f"cancel beside {sizes['cancel_beside']} others, until no process is left"
    yield Row("cancel.median", f"{canceled}: median", "ms", False, 100, 100)
    yield Row("cancel.max", f"{canceled}: longest", "ms", detail=True)


# --- cells ----------------------------------------------------------------------------------------


def table(result: Result) -> list[tuple[str, ...]]:
    """The lines of the table, the head first. Rows without any figure are left out."""
    cells = (format_row(row, result["runs"]) for row in rows(result["sizes"]["bridge"]))
    return [HEAD, *(line for line in cells if line)]


def format_row(row: Row, runs: Sequence[Mapping[str, Any]]) -> tuple[str, ...] | None:
    figures = {target: _figures(runs, target, row.figure) for target in TARGETS}
    if not any(figures.values()):
        return None
    memory, durable, sdk, alone = (_spread(list(figures[one].values())) for one in TARGETS)
    met = [
        _met(row, target, figures[store])
        for store, target in (("memory", row.memory), ("durable", row.durable))
    ]
    ratios = " / ".join(_ratio(row, figures[store], figures["sdk"]) for store in OURS)
    ratios = "" if ratios == " / " else ratios
    ours = (memory, met[0], durable, met[1])
    return row.label, row.unit, _targets(row), *ours, sdk, ratios, alone


def _page_rows(result: Result) -> Iterator[tuple[str, ...]]:
    """The medians, without details. A median that misses its target is bold."""
    for row in rows(result["sizes"]["bridge"]):
        figures = [_figures(result["runs"], target, row.figure) for target in TARGETS]
        if row.detail or not any(figures):
            continue
        medians = [number(statistics.median(one.values())) if one else "" for one in figures]
        for place, target in enumerate((row.memory, row.durable)):
            if _met(row, target, figures[place]) == "no":
                medians[place] = f"**{medians[place]}**"
        yield row.label, row.unit, _targets(row), *medians


def _figures(runs: Sequence[Mapping[str, Any]], target: str, figure: str) -> dict[int, float]:
    """The figure of each run, by the number of the run."""
    return {
        number: run["figures"][target][figure]
        for number, run in enumerate(runs)
        if figure in run["figures"].get(target, {})
    }


def _spread(values: list[float]) -> str:
    if not values:
        return ""
    median = number(statistics.median(values))
    if len(values) == 1 or min(values) == max(values):
        return median
    return f"{number(min(values))} / **{median}** / {number(max(values))}"


def _met(row: Row, target: float | None, figures: Mapping[int, float]) -> str:
    if target is None or not figures:
        return ""
    median = statistics.median(figures.values())
    return "yes" if (median >= target if row.more_is_better else median <= target) else "no"


def _targets(row: Row) -> str:
    sides = [number(side) for side in (row.memory, row.durable) if side is not None]
    return sides[0] if len(set(sides)) == 1 else " / ".join(sides)


def _ratio(row: Row, ours: Mapping[int, float], sdk: Mapping[int, float]) -> str:
    """The factor to the SDK in the same run: the median of all runs."""
    ratios = [
        (ours[run] / sdk[run]) if row.more_is_better else (sdk[run] / ours[run])
        for run in ours.keys() & sdk.keys()
        if ours[run] > 0 and sdk[run] > 0
    ]
    return f"{number(statistics.median(ratios))}" if ratios else ""


def number(value: float) -> str:
    """The number with three significant digits."""
    if value == int(value) or abs(value) >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}" if abs(value) >= 1000 else str(int(value))
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


# --- the whole ------------------------------------------------------------------------------------


def text(result: Result) -> str:
    """The result for a terminal."""
    lines = [tuple(cell.replace("**", "") for cell in line) for line in table(result)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join([*shown, "", *_notes(result)])


def markdown(result: Result) -> str:
    """The text between the marks of docs/performance.md."""
    ruler = ["---", "---", *["---:"] * (len(PAGE_HEAD) - 2)]
    shown = [f"| {' | '.join(line)} |" for line in (PAGE_HEAD, ruler, *_page_rows(result))]
    notes = [textwrap.fill(f"* {note}", WIDTH, subsequent_indent="  ") for note in _notes(result)]
    return "\n".join([textwrap.fill(_machine(result), WIDTH), "", *shown, "", *notes, ""])


def with_tables(page: str, result: Result) -> str:
    """`page` with these figures between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{markdown(result)}{END}{after}"


def _machine(result: Result) -> str:
    machine, versions = result["machine"], result["versions"]
    count = len(result["runs"])
    return (
        f"{result['date']}, {count} run{'s' if count > 1 else ''}, medians. "
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_mib']:,} MiB, "
        f"Linux {machine['kernel']}, {machine['file_system']}, Python {versions['python']}, "
        f"bridge {versions['bridge']} ({versions['revision']}), "
        f"a2a-sdk {versions['sdk'].get('a2a-sdk', 'none')}; the agent is in {result['agent']}; "
        f"load average at the beginning {machine['load']}."
    )


def _notes(result: Result) -> list[str]:
    """The measures without a result, and the smaller sizes of the SDK's server."""
    problems = dict.fromkeys(
        f"{target}, `{note['measure']}`: {note['why']}"
        for run in result["runs"]
        for target, notes in run["notes"].items()
        for note in notes
    )
    ours, theirs = result["sizes"]["bridge"], result["sizes"]["sdk"]
    less = [
        f"`{name}` {_shown(theirs[name])} instead of {_shown(ours[name])}"
        for name in ours
        if name != "cap" and theirs[name] != ours[name]
    ]
    if less and any("sdk" in run["figures"] for run in result["runs"]):
        return [f"sdk, smaller sizes: {', '.join(less)}", *problems]
    return list(problems)


def _shown(size: Any) -> str:
    return ", ".join(map(number, size)) if isinstance(size, list | tuple) else number(size)
