"""scripts/bench: it measures a real server, it sees what a stream lacks, and its page shows its
figures."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from scripts.benchmarks import __main__ as bench
from scripts.benchmarks import measures, nodes, processes, report, servers, telemetry
from scripts.benchmarks.client import Loop, Stream, TooSlow
from scripts.benchmarks.measures import Faulty, Sizes
from scripts.benchmarks.transcript import Faults, Refused, Transcript, faults
from tests.support import programs

DOCS = servers.CHECKOUT / "docs"
PYTHON_AGENT = (sys.executable, "-I", "-S", str(servers.HERE / "agent.py"))
CHEAP = ("calls", "beside", "get", "fan", "late", "cancel")
TINY = Sizes(
    growth=(100, 1_000),
    calls_seconds=0.1,
    get=(100,),
    subscribers=(2,),
    fan_events=100,
    fan_seconds=1,
    cancels=1,
    cancel_beside=2,
    late_events=600,
    late_after=0.1,
    cap=20.0,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def agent(folder: Path) -> servers.Agent:
    return servers.make_agent(folder)


@pytest.fixture(scope="module")
def server(folder: Path, agent: servers.Agent) -> Iterator[servers.Server]:
    target = servers.Target("memory", agent, folder, "memory")
    with target.serving() as running:
        yield running
    assert not processes.with_in_command_line(agent.mark)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of one measure, as it is when it has been written down and read."""
    found = bench.measure_all(tmp_path_factory.mktemp("tiny"), ["rate"], ["durable"], 1, TINY)
    read: dict[str, Any] = json.loads(json.dumps(found))
    return read


@dataclass(frozen=True)
class Running(servers.Target):
    """A server that is there already, so that a measure need not start one."""

    server: servers.Server | None = None

    @contextmanager
    def serving(self, *agent_arguments: str, **settings: str) -> Iterator[servers.Server]:
        assert self.server
        yield self.server


# --- measuring ------------------------------------------------------------------------------------


def test_it_measures_a_server_of_its_own(result: dict[str, Any]) -> None:
    check_shape(result)
    (run,) = result["runs"]
    assert run["notes"] == {"durable": []}
    figures = run["figures"]["durable"]
    machine = {"machine.median", "machine.slowest"}
    assert set(figures) == {"rate.100", "rate.1000", "flatness", *machine}
    assert figures["machine.median"] == run["machine"]["durable"]["rate"] > 0
    assert figures["rate.1000"] > 1_000


@pytest.mark.parametrize("name", CHEAP)
def test_a_measure_has_figures_and_each_figure_a_row(server: servers.Server, name: str) -> None:
    target = Running("memory", server.agent, Path(), "memory", server=server)
    figures = dict(measures.MEASURES[name](target, TINY))
    assert figures and all(map(math.isfinite, figures.values()))
    assert set(figures) <= {row.figure for row in report.rows(asdict(TINY))}
    if name == "late":
        assert figures == {"late.lost": 0, "late.doubled": 0, "late.disordered": 0}


def test_aiohttp_alone_is_measured_by_what_it_can_do(tmp_path: Path) -> None:
    """Without the SDK, whose server not every machine has."""
    found = bench.measure_all(tmp_path, ["rate", "calls", "late"], ["alone"], 1, TINY)
    (run,) = found["runs"]
    assert run["notes"] == {"alone": []}
    figures = run["figures"]["alone"]
    assert set(figures) >= {"rate.100", "flatness", "card.cpu", "get.per_core"}
    assert not any(name.startswith("late") for name in figures)


def test_a_value_that_is_not_done_in_time_is_said(server: servers.Server) -> None:
    with pytest.raises(TooSlow, match="2 texts"):
        measures.one_stream(server, 0.2, n=2, gap_us=10_000_000)


def test_a_request_that_is_refused_is_not_a_stream(server: servers.Server) -> None:
    with Loop(server.address) as loop:
        stream = loop.stream(server.subscribe_request("no-such-task"))
        loop.run_to_end(1, 10, "the answer")
    with pytest.raises(Refused, match='"error"'):
        stream.transcript()


def test_a_reader_that_is_cut_off_gets_the_rest(folder: Path, agent: servers.Agent) -> None:
    sizes = Sizes(slow_seconds=1, slow_rate=20_000, cap=20.0)
    target = servers.Target("durable", agent, folder, "durable")
    impatient = target.serving(BRIDGE_STALL_TIMEOUT_MS="200")
    with impatient as server, Loop(server.address) as loop:
        request = server.send_request(n=20_000, bytes=1024)
        stream = Stream(loop, request, receive_buffer=16 * 1024)
        loop.run_for(1.0)  # much longer than this server has patience
        found, resumed = measures._read_on(server, loop, stream, sizes)
    assert found == (0, 0, 0)
    assert resumed > 0


# --- the client's check ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("knob", "expected"),
    [
        ("lose", Faults(lost=1, doubled=0, disordered=0)),
        ("twice", Faults(lost=0, doubled=1, disordered=0)),
        ("swap", Faults(lost=0, doubled=0, disordered=1)),
    ],
)
def test_a_stream_with_a_fault_is_seen(server: servers.Server, knob: str, expected: Faults) -> None:
    measures.one_stream(server, 20, n=500)
    with pytest.raises(Faulty) as error:
        measures.one_stream(server, 20, n=500, **{knob: 250})
    assert str(expected) in str(error.value)


def said(*numbers: int) -> bytes:
    return b"".join(b"~%08d@%018d~xxx" % (number, 7) for number in numbers)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((0, 1, 2), Faults(0, 0, 0)),
        ((), Faults(3, 0, 0)),
        ((0, 1), Faults(1, 0, 0)),
        ((1, 2, 0), Faults(0, 0, 1)),
        ((0, 1, 2, 0, 1, 2), Faults(0, 3, 1)),
        ((0, 1, 2, 3), Faults(0, 1, 0)),
    ],
)
def test_faults_are_counted(numbers: tuple[int, ...], expected: Faults) -> None:
    assert faults(said(*numbers), 3) == expected


def test_a_text_is_received_when_its_last_byte_is() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    mark = said(0)
    first, second = mark[:5], mark[5:]
    pieces = [
        (1, head + b"%x\r\n%s\r\n" % (len(first), first)),
        (2, b"%x\r\n%s" % (len(second), second[:4])),
        (3, second[4:] + b"\r\n"),
        (4, b"0\r\n\r\n"),
    ]
    transcript = Transcript(pieces)
    assert transcript.ended
    assert transcript.marks() == [(0, 7, 3)]
    assert not Transcript(pieces[:-1]).ended


# --- the agent ------------------------------------------------------------------------------------


@programs.needed("cc")
@pytest.mark.parametrize("knobs", ["n=3", "n=4 lose=2", "n=4 twice=1", "n=4 swap=1 bytes=40"])
def test_both_agents_say_the_same(agent: servers.Agent, knobs: str) -> None:
    assert agent.language == "C"
    ours, python = (told(command, knobs) for command in (agent.command, PYTHON_AGENT))
    assert ours == python != []


def told(command: tuple[str, ...], knobs: str) -> list[dict[str, Any]]:
    """What the agent says, without the times in it."""
    prompt = f'{{"type":"prompt","text":"{knobs}"}}\n'
    said = subprocess.check_output(command, input=prompt, text=True, timeout=20)
    lines = [json.loads(line) for line in said.splitlines()]
    return [{**line, "text": line.get("text", "")[:10]} for line in lines]


# --- the page -------------------------------------------------------------------------------------


def test_the_page_shows_the_figures_that_are_stored_beside_it() -> None:
    result = json.loads((DOCS / "evidence/performance.json").read_text())
    check_shape(result)
    page = (DOCS / "performance.md").read_text("utf-8")
    assert report.with_tables(page, result) == page, "scripts/bench --json … --markdown …"


def test_the_page_explains_every_measure() -> None:
    page = (DOCS / "performance.md").read_text("utf-8")
    for name in measures.MEASURES:
        assert f"| `{name}` |" in page


def test_the_page_is_short() -> None:
    assert len((DOCS / "performance.md").read_text("utf-8").splitlines()) < 250


def test_a_row_compares_with_the_target_and_with_the_sdk_of_the_same_run() -> None:
    others = {"durable": {"x": 4.0}, "alone": {"x": 0.5}}
    runs = [
        {"figures": {**others, "memory": {"x": ours}, "sdk": {"x": theirs}}}
        for ours, theirs in ((1.0, 10.0), (2.0, 40.0), (3.0, 30.0))
    ]
    row = report.Row("x", "label", "ms", memory=2.0, durable=3.0)
    assert report.format_row(row, runs) == (
        *("label", "ms", "2 / 3"),
        *("1 / **2** / 3", "yes", "4", "no", "10 / **30** / 40", "10 / 7.5", "0.5"),
    )
    assert report.format_row(report.Row("y", "", ""), runs) is None


def test_the_page_has_medians_and_no_details() -> None:
    result = json.loads((DOCS / "evidence/performance.json").read_text())
    terminal, page = report.text(result), report.markdown(result)
    figures = [run["figures"]["memory"]["first.task"] for run in result["runs"]]
    missed = f"| **{report.number(sorted(figures)[1])}** |"  # the target is 1 ms
    assert missed in page and missed not in terminal
    for detail in ("the process that starts its agents", "latency, longest"):
        assert detail in terminal and detail not in page


def check_shape(result: dict[str, Any]) -> None:
    assert result["format"] == 1
    assert set(result["machine"]) >= {"cpu", "cores", "memory_mib", "kernel", "open_files", "load"}
    assert set(result["versions"]) == {"bridge", "revision", "python", "ours", "sdk"}
    assert result["settings"]["BRIDGE_AUTH"] == "token"
    assert result["agent"] in ("C", "Python")
    assert set(result["sizes"]) == {"bridge", "sdk"}
    for run in result["runs"]:
        assert set(run) == {"figures", "notes", "machine"}
        for target, figures in run["figures"].items():
            assert target in report.TARGETS
            assert all(type(value) is float for value in figures.values())
        for notes in run["notes"].values():
            assert all(set(note) == {"measure", "why"} for note in notes)


def test_the_goals_of_several_servers_are_ratios_of_each_run() -> None:
    def run(old: float, new: float, near: float, far: float) -> dict[str, dict[str, float]]:
        postgres = {"pace.20x50.cpu": new, "local.p50": near, "remote.p50": far}
        return {nodes.SQLITE: {"pace.20x50.cpu": old}, nodes.POSTGRES: postgres}

    runs = [run(100, 130, 1, 2), run(200, 300, 5, 7), run(100, 139, 1, 2.4)]
    lines = nodes.text({"runs": runs, "notes": {nodes.POSTGRES: ["a fault"]}}).splitlines()
    assert "| pace.20x50.cpu | 100 | 139 | 1.39 |" in lines
    assert "| 20 tasks at 50/s: CPU per event | 1.39 | <= 1.4 | yes |" in lines
    beyond = "| 20 tasks at 50/s at another server: p50 beyond, ms | 1.4 | <= 1.5 | yes |"
    assert beyond in lines and lines[-1] == "postgres: a fault"


@pytest.mark.soak
def test_several_servers_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Takes half a minute, for ten servers."""
    only = "pace,remote"
    assert bench.main(["--server", "postgres", "--nodes", "2", "--quick", "--only", only]) == 0
    shown = capsys.readouterr().out
    assert "remote.p50" in shown and "pace.20x50.cpu" in shown


def test_the_cost_of_telemetry_is_the_ratio_of_each_round() -> None:
    rounds = [{"nothing": base, "metrics": base * more} for base, more in COSTS]
    text = telemetry.text({"store": "memory", "costs": {"calls": rounds}})
    assert text.splitlines()[-1] == "| a GetTask | 200 us | **+2.0 %** (+1.0 to +3.0) |"


COSTS = ((100.0, 1.01), (200.0, 1.02), (900.0, 1.03), (200.0, 1.0), (50.0, 1.5))


def test_traces_are_measured_if_there_is_a_collector() -> None:
    """It is the only server with the variables of OpenTelemetry."""
    assert "traces" not in telemetry.variants({"OTEL_SERVICE_NAME": "x", "PATH": "/"})
    given = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1]:1", "OTEL_SERVICE_NAME": "x"}
    found = telemetry.variants({**given, "PATH": "/"})
    assert found.pop("traces") == {**found[telemetry.BASE], **given}
    assert not any(name.startswith("OTEL_") for one in found.values() for name in one)


@pytest.mark.soak
def test_the_cost_of_telemetry_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Takes half a minute, for six servers."""
    assert bench.main(["--telemetry", "--server", "memory", "--quick"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("\n| a") == len(telemetry.WORK) and "| metrics |" in shown
