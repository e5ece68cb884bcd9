"""Fixtures that many tests share."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Generator, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from hypothesis.configuration import set_hypothesis_home_dir

from tests import CHECKOUT
from tests.support import matrix, programs
from tests.support.liveness import Liveness, listening
from tests.support.redis_broker import broker
from tests.support.redis_server import redis_server
from tests.support.restart import Place
from tests.support.servers import database, on_postgres, postgres_url

__all__ = ["broker", "database", "postgres_url", "redis_server"]  # fixtures

CI = os.environ.get("CI") == "true"

# What hypothesis keeps of its own goes where pytest keeps its own, not into the checkout.
set_hypothesis_home_dir(CHECKOUT / ".pytest_cache" / "hypothesis")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out the real CLIs and SDKs")
    parser.addoption("--soak", action="store_true", help="run the soak tier, and nothing else")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    soak = config.getoption("--soak")
    other = [item for item in items if bool(item.get_closest_marker("soak")) != soak]
    config.hook.pytest_deselected(items=other)
    items[:] = [item for item in items if bool(item.get_closest_marker("soak")) == soak]
    if config.getoption("--quick"):
        for item in items:
            if item.get_closest_marker("real"):
                item.add_marker(pytest.mark.skip(reason="--quick leaves out the real programs"))
    items[:] = longest_first(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def longest_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """The same items in an order in which each worker begins with some of the longest tests: a
    worker gets one of the equal parts of the list. A long test that begins late prolongs the run,
    because it has no other worker."""
    long = [item for item in items if item.get_closest_marker("long")]
    others = [item for item in items if not item.get_closest_marker("long")]
    cuts = [len(others) * number // workers for number in range(workers + 1)]
    ordered: list[pytest.Item] = []
    for number in range(workers):
        ordered += long[number::workers] + others[cuts[number] : cuts[number + 1]]
    return ordered


def pytest_collection_finish() -> None:
    """Ten thousand tests stay to the end. Each search for garbage among them would keep the clients
    of the tests from running, for longer than some servers here wait for a request."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, Any]:
    """In CI, a skip for a missing program is a failure: without it, the test proves nothing."""
    report = yield
    if report.skipped and CI and skip_reason(report).startswith(programs.MISSING):
        report.outcome = "failed"
        report.longrepr = skip_reason(report)
    return report


def skip_reason(report: pytest.TestReport) -> str:
    """Empty where there is none, as for an expected failure."""
    found = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    return found.removeprefix("Skipped: ")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """The last words of a run: a line for each tier."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or config.option.collectonly or hasattr(config, "workerinput"):
        return
    count = {name: len(reporter.stats.get(name, ())) for name in ("passed", "failed", "error")}
    failed = count["failed"] + count["error"]
    skipped = Counter(skip_reason(report) for report in reporter.stats.get("skipped", ()))
    line = f"{count['passed']} passed, {failed} failed, {skipped.total()} skipped"
    if skipped:
        reasons = (f"{times} x {reason}" for reason, times in sorted(skipped.items()))
        line += f" ({'; '.join(reasons)})"
    tiers = {"default": "not run (scripts/test)", "soak": "not run (scripts/soak)"}
    tiers["soak" if config.getoption("--soak") else "default"] = line
    for tier, result in tiers.items():
        reporter.write_line(f"{tier:8}{result}")


# Seconds that each tier may take on two cores, with four processes (CONTRIBUTING.md).
LIMITS = {"unit": 30, "component": 110, "server": 150, "system": 150, "real": 150}


def write_times(reporter: Any) -> None:
    """The time of each tier: the time of its tests, divided by the number of processes."""
    spent: dict[str, float] = defaultdict(float)
    for report in chain.from_iterable(reporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            tier = report.nodeid.removeprefix("tests/").partition("/")[0]
            spent[tier if tier in LIMITS else "unit"] += report.duration
    processes = getattr(reporter.config.option, "numprocesses", None) or 1
    for tier, limit in LIMITS.items():
        if tier in spent:
            reporter.write_line(f"{tier:10}{spent[tier] / processes:4.0f} s (limit {limit} s)")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The time of each tier, and the matrix of CLIs and scenarios, as this run has found them."""
    write_times(terminalreporter)
    found: dict[tuple[str, str], str] = {}
    for report in chain.from_iterable(terminalreporter.stats.values()):
        for name, cell in getattr(report, "user_properties", ()):
            if name == "cell":
                found[cell[0], cell[1]] = cell[2]
    if found:
        terminalreporter.section("CLIs and scenarios")
        terminalreporter.write(matrix.table({**dict.fromkeys(matrix.CANNOT, "no"), **found}))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client session whose waits are bounded and whose lines may be long."""
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout, read_bufsize=2**25) as session:
        yield session


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that every user can reach; not in /tmp, which bwrap empties."""
    folder = Path(tempfile.mkdtemp(dir="/var/lib" if os.geteuid() == 0 else Path.home()))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def place(workspace: Path, http: aiohttp.ClientSession) -> AsyncIterator[Place]:
    """After the test, when the last server has stopped in order, no process is left."""
    place = Place(workspace, http)
    yield place
    left = place.processes()
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert left == []


@pytest.fixture(params=["durable", pytest.param("postgresql", marks=pytest.mark.soak)])
def each_place(place: Place, request: pytest.FixtureRequest) -> Place:
    """The place with each durable store."""
    if request.param == "postgresql":
        place.env = on_postgres(request.getfixturevalue("postgres_url"))
    return place


@pytest.fixture
async def live() -> AsyncIterator[Liveness]:
    async with listening() as live:
        yield live
