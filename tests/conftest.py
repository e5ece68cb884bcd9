"""Fixtures that many tests share."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Generator
from itertools import chain
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis.configuration import set_hypothesis_home_dir

from tests import matrix

# What hypothesis keeps of its own goes where pytest keeps its own, not into the checkout.
set_hypothesis_home_dir(Path(__file__).parent.parent / ".pytest_cache" / "hypothesis")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out the real CLIs and SDKs")
    parser.addoption("--soak", action="store_true", help="run the soak tier, and nothing else")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    soak = config.getoption("--soak")
    other = [item for item in items if bool(item.get_closest_marker("soak")) != soak]
    config.hook.pytest_deselected(items=other)
    items[:] = [item for item in items if bool(item.get_closest_marker("soak")) == soak]
    if not config.getoption("--quick"):
        return
    for item in items:
        if item.get_closest_marker("real"):
            item.add_marker(pytest.mark.skip(reason="--quick leaves out the real programs"))


def pytest_collection_finish() -> None:
    """Ten thousand tests stay to the end. Each search for garbage among them would keep the clients
    of the tests from running, for longer than some servers here wait for a request."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, Any]:
    """Notes which cell of the matrix the test is."""
    report = yield
    marker = item.get_closest_marker("scenario")
    if marker and isinstance(item, pytest.Function):
        cli: Any = item.callspec.params["cli"]
        report.user_properties.append(("cell", (cli.name, *marker.args)))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The matrix of CLIs and scenarios, as this run has found it."""
    found: dict[tuple[str, str], str] = {}
    for report in chain.from_iterable(terminalreporter.stats.values()):
        for name, cell in getattr(report, "user_properties", ()):
            if name == "cell" and (report.when == "call" or not report.passed):
                word = "yes" if report.passed else report.outcome.upper()
                found[cell] = word if found.get(cell, "yes") == "yes" else found[cell]
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
