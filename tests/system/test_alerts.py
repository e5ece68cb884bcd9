"""The alerts and the dashboard of deploy/, with the real promtool and a real Prometheus."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.telemetry.metrics.catalog import CATALOG
from tests import CHECKOUT
from tests.support.bridge_process import bridge, scripted
from tests.support.client import Client
from tests.support.free_port import free_port
from tests.support.prometheus import DEPLOY, Page, promtool, tool

DASHBOARD = CHECKOUT / "deploy/grafana/bridge.json"
WITHIN = 60.0
VARIABLES = {"$agent": ".*", "$instance": ".*", "$job": "coding-agent-bridge"}
SUFFIXES = ("_bucket", "_sum", "_count")
NAME = re.compile(r"\bbridge_[a-z_]+")


def dashboard() -> Iterator[str]:
    """The expressions of the dashboard, with values for its variables."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            text = target["expr"]
            for name, value in VARIABLES.items():
                text = text.replace(name, value)
            yield text


def alerts() -> list[str]:
    """The expressions of the alerts."""
    found = re.findall(
        r"expr: (?:>-\n((?: {10}.*\n)+)|(.*)\n)", (DEPLOY / "alerts.yml").read_text()
    )
    return [" ".join((folded or line).split()) for folded, line in found]


EXPRESSIONS = [*dashboard(), *alerts()]


def test_promtool_accepts_the_alerts() -> None:
    code, said = promtool(
        "check", "rules", "--lint=all", "--lint-fatal", str(DEPLOY / "alerts.yml")
    )
    assert code == 0, said
    names = (DEPLOY / "alerts.yml").read_text().count("- alert:")
    assert f"{names} rules found" in said
    assert len(alerts()) == names


def test_each_alert_fires_and_stays_quiet_as_specified() -> None:
    code, said = promtool("test", "rules", "alerts_test.yml", "alerts_days_test.yml", cwd=DEPLOY)
    assert code == 0, said
    cases = (DEPLOY / "alerts_test.yml").read_text()
    for name in re.findall(r"- alert: (\w+)", (DEPLOY / "alerts.yml").read_text()):
        assert re.search(rf"alertname: {name}\n +exp_alerts:\n", cases), name  # one that fires
        assert f"alertname: {name}\n        exp_alerts: []" in cases, name


def test_promtool_parses_each_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"a:b{number}", "expr": text} for number, text in enumerate(dashboard())]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    code, said = promtool("check", "rules", str(path))
    assert code == 0, said
    assert f"{len(rules)} rules found" in said


def test_alerts_and_dashboard_name_only_metrics_of_the_catalog() -> None:
    """A histogram is named with a suffix. The dashboard shows each metric."""
    known = {one.shown: one.kind for one in CATALOG}
    for text in EXPRESSIONS:
        for name in NAME.findall(text):
            base = next((name[: -len(s)] for s in SUFFIXES if name.endswith(s)), name)
            assert name in known or known.get(base) == "histogram", name
    used = {
        next((name[: -len(s)] for s in SUFFIXES if name.endswith(s)), name)
        for text in dashboard()
        for name in NAME.findall(text)
    }
    shown = {name for name in known if name not in used}
    assert shown == set()


# --- a real Prometheus ---------------------------------------------------------------------------


@asynccontextmanager
async def prometheus(folder: Path, target: str) -> AsyncIterator[str]:
    """The URL of a Prometheus with the alerts, which scrapes `target` (HOST:PORT) each second."""
    port = free_port()
    scrape = {
        "job_name": "coding-agent-bridge",
        "scrape_interval": "1s",
        "scrape_timeout": "1s",
        "static_configs": [{"targets": [target]}],
    }
    config = folder / "prometheus.yml"
    rules = [str(DEPLOY / "alerts.yml")]
    settings = {"evaluation_interval": "1s"}
    config.write_text(
        json.dumps({"global": settings, "rule_files": rules, "scrape_configs": [scrape]})
    )
    process = await asyncio.create_subprocess_exec(
        tool("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), WITHIN)
        except TimeoutError:
            process.kill()
            await process.wait()


async def query(http: aiohttp.ClientSession, url: str, text: str) -> list[Any]:
    """The result of an expression."""
    async with http.get(f"{url}/api/v1/query", params={"query": text}) as response:
        body = await response.json()
    assert body["status"] == "success", (text, body)
    found: list[Any] = body["data"]["result"]
    return found


async def scraped(http: aiohttp.ClientSession, url: str, text: str) -> list[Any]:
    """The result of an expression as soon as it has one."""
    async with asyncio.timeout(WITHIN):
        while True:
            try:
                if found := await query(http, url, text):
                    return found
            except aiohttp.ClientError:
                pass  # it starts: no connection, or 503 with a text
            await asyncio.sleep(0.1)


ENDINGS = {
    "completed": "text hi\ndone",
    "failed": "fail broken",
    "canceled": "text hi\nwait",
}


@pytest.mark.soak
async def test_prometheus_scrapes_tasks_and_answers_each_expression(workspace: Path) -> None:
    """The start of a Prometheus takes seconds, and a rate needs several scrapes."""
    tool("prometheus")
    env = {**scripted(workspace), "BRIDGE_METRICS": "on"}
    async with bridge(workspace, **env) as server, aiohttp.ClientSession() as http:
        address = server.url.removeprefix("http://")
        async with prometheus(workspace.parent, address) as url:
            await scraped(http, url, "bridge_ready == 1")
            client = Client(http, server.url)
            await client.send(ENDINGS["completed"])
            await client.send(ENDINGS["failed"])
            task = await client.send_now(ENDINGS["canceled"])
            await client.cancel(task["task"]["id"] if "task" in task else task["id"])
            for state in ENDINGS:
                text = f'increase(bridge_tasks_total{{state="{state}"}}[1m]) > 0'
                await scraped(http, url, f"sum({text})")
            for text in EXPRESSIONS:
                await query(http, url, text)
            async with http.get(f"{url}/api/v1/rules") as response:
                groups = (await response.json())["data"]["groups"]
            assert [one["health"] for one in groups[0]["rules"]] == ["ok"] * len(alerts())
            async with http.get(f"{url}/api/v1/targets") as response:
                (target,) = (await response.json())["data"]["activeTargets"]
            assert (target["health"], target["lastError"]) == ("up", "")
        async with http.get(f"{server.url}/metrics") as response:
            text = await response.text()
        assert promtool("check", "metrics", given=text) == (0, "")
        assert Page(text).value("bridge_ready") == 1
