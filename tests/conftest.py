"""Fixtures that many tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from hypothesis.configuration import set_hypothesis_home_dir

# What hypothesis keeps of its own goes where pytest keeps its own, not into the checkout.
set_hypothesis_home_dir(Path(__file__).parent.parent / ".pytest_cache" / "hypothesis")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out the real CLIs and SDKs")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--quick"):
        return
    for item in items:
        if item.get_closest_marker("real"):
            item.add_marker(pytest.mark.skip(reason="--quick leaves out the real programs"))


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
