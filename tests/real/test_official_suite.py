"""The official suite of A2A 1.0 over each binding. It is in no package index: BRIDGE_TCK_DIR names
a checkout of a2aproject/a2a-tck, branch 1.0-dev, with its environment in .venv (`uv sync`). The run
takes one or two minutes, because the suite waits for streams and deadlines."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests import CHECKOUT
from tests.support.bridge_process import bridge, scripted
from tests.support.suite_agent import PROGRAM

SUITE = os.environ.get("BRIDGE_TCK_DIR")
WITHIN = 400.0  # seconds
# binding -> the rows that fail and the number of rows that pass, as in docs/evidence/conformance.md
EXPECTED: dict[str, tuple[set[str], int]] = {
    "grpc": (set(), 87),
    "jsonrpc": (set(), 106),
    "http_json": ({"test_content_type_not_supported_returns_400"}, 95),
}

pytestmark = [
    pytest.mark.real,
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not SUITE, reason="BRIDGE_TCK_DIR names no checkout of the suite"),
]


async def outcomes(url: str, binding: str, report: Path) -> tuple[set[str], Counter[str]]:
    """The rows that fail, and the number of rows per outcome."""
    suite = Path(str(SUITE))
    line = ("-m", "pytest", "tests/compatibility/", "-q", "-p", "no:cacheprovider")
    process = await asyncio.create_subprocess_exec(
        *(str(suite / ".venv/bin/python"), *line, f"--junitxml={report}"),
        *(f"--sut-host={url}", f"--transport={binding}"),
        cwd=suite,
        stdout=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "HOME": str(report.parent), "PYTHONPATH": str(suite)},
    )
    try:
        async with asyncio.timeout(WITHIN):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode in (0, 1), output.decode()[-2000:]
    failed, count = set(), Counter[str]()
    for row in ElementTree.parse(report).iter("testcase"):
        outcome = next((one.tag for one in row if one.tag in ("failure", "error", "skipped")), "")
        count[outcome or "passed"] += 1
        if outcome in ("failure", "error"):
            failed.add(row.attrib["name"])
    return failed, count


async def test_the_failing_rows_are_the_documented_ones(workspace: Path, tmp_path: Path) -> None:
    settings = scripted(workspace) | {
        "AGENT_ADAPTER": "tests.support.suite_agent:TextOnly",
        "AGENT_ARGS": f"-I -S {PROGRAM}",
        "BRIDGE_CARD": "1.0",
        "BRIDGE_GRPC_PORT": "0",
        "BRIDGE_PUSH_ALLOW_PRIVATE": "true",
    }
    async with bridge(workspace, **settings) as server:
        runs = (outcomes(server.url, one, tmp_path / f"{one}.xml") for one in EXPECTED)
        found = dict(zip(EXPECTED, await asyncio.gather(*runs), strict=True))
    assert {one: failed for one, (failed, _) in found.items()} == {
        one: failed for one, (failed, _) in EXPECTED.items()
    }
    for one, (_, passed) in EXPECTED.items():
        assert found[one][1]["passed"] >= passed, one  # later versions have further rows


def test_the_page_names_the_failing_rows() -> None:
    page = (CHECKOUT / "docs/evidence/conformance.md").read_text("utf-8")
    assert all(row in page for rows, _ in EXPECTED.values() for row in rows)
