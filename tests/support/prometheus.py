"""The real Prometheus and promtool, which scripts/install unpacks, and the samples of a page."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import CHECKOUT
from tests.support import programs

FOLDER = CHECKOUT / ".venvs/tools/prometheus/usr/bin"
DEPLOY = CHECKOUT / "deploy/prometheus"
WITHIN = 60.0

Labels = frozenset[tuple[str, str]]
Series = tuple[str, Labels]


def series(name: str, **labels: str) -> Series:
    """The key of a series with exactly these labels."""
    return name, frozenset(labels.items())


def tool(name: str) -> str:
    """The path of `promtool` or `prometheus`. Skips the test if it is missing."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(programs.missing(name))
    return str(path)


def promtool(*arguments: str, given: str = "", cwd: Path | None = None) -> tuple[int, str]:
    """The exit status and the output of promtool."""
    done = subprocess.run(
        [tool("promtool"), *arguments],
        input=given,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


class Page:
    """A page of metrics, read by the parser of the library."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples: dict[str, dict[Labels, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = frozenset(sample.labels.items())
                self.samples.setdefault(sample.name, {})[labels] = sample.value

    @property
    def series(self) -> int:
        return sum(map(len, self.samples.values()))

    def value(self, name: str, **labels: str) -> float:
        """The value of the series with exactly these labels."""
        return self.samples[name][frozenset(labels.items())]

    def __iter__(self) -> Iterator[Series]:
        return ((name, labels) for name, found in self.samples.items() for labels in found)

    def __getitem__(self, key: Series) -> float:
        """The value of a series; 0 for a missing one."""
        return self.samples.get(key[0], {}).get(key[1], 0.0)


async def page_of(
    http: aiohttp.ClientSession, url: str, headers: Mapping[str, str] | None = None
) -> Page:
    """The metrics of the server at this address. `headers`: with credentials."""
    async with http.get(f"{url}/metrics", headers=headers) as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert response.headers["Cache-Control"] == "no-store"
        return Page(await response.text())
