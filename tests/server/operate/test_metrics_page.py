"""/metrics: its scope, its modes, and the values that are read for it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.errors import ConfigurationError
from bridge.errors.extras import install_line
from bridge.server.settings.load import Loaded
from bridge.server.settings.root import Settings
from bridge.telemetry.metrics.catalog import CATALOG, RELOADS
from tests import CHECKOUT
from tests.support.agent import PROGRAM
from tests.support.bridge_process import bridge, scripted
from tests.support.client import Client, task_id
from tests.support.liveness import listening
from tests.support.metrics_table import READ_BY_TWO_AGENTS
from tests.support.principals import As, headers, server
from tests.support.prometheus import Page, page_of, promtool
from tests.support.served import Server, serving, serving_loaded


async def until(one: Server, name: str, value: float, **labels: str) -> None:
    async with asyncio.timeout(30):
        while (await page_of(one.http, one.url)).value(name, **labels) != value:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("who", "status"), [("anonymous", 401), ("owner", 403), ("reader", 403), ("boss", 200)]
)
async def test_the_page_needs_the_scope_metrics(tmp_path: Path, who: str, status: int) -> None:
    async with server(tmp_path) as one:
        got = await one.http.get(f"{one.url}/metrics", headers=headers(who))
        text = await got.text()
        assert got.status == status
        assert ("bridge_ready" in text) is (status == 200)


async def test_without_metrics_there_is_no_page(workspace: Path) -> None:
    async with serving(workspace, bridge_metrics="off") as one:
        async with one.http.get(f"{one.url}/metrics") as response:
            assert response.status == 404
            assert "BRIDGE_METRICS=off" in (await response.json())["error"]


async def test_a_task_and_its_requests_are_on_the_page(workspace: Path) -> None:
    async with serving(workspace) as one, listening() as live:
        before = await page_of(one.http, one.url)  # the observers begin
        assert before.value("bridge_tasks_total", agent="jsonl", state="completed", reason="") == 0
        client = one.client()
        await client.collect("text hi\ndone")
        await client.send_now(f"wait {live.path} x\nfail broken")
        await live.pid("x")
        await until(one, "bridge_tasks_open", 1, agent="jsonl", state="working")
        asked = await client.send("ask q Who?")
        page = await page_of(one.http, one.url)
        assert page.value("bridge_questions_open", agent="jsonl", kind="text") == 1
        assert page.value("bridge_sessions", agent="jsonl", state="waiting") == 1
        assert page.value("bridge_sessions", agent="jsonl", state="working") == 1
        assert page.value("bridge_session_starts_total", agent="jsonl", start="cold") == 3
        assert page.value("bridge_session_slots") == 8
        await live.release("x")
        await client.cancel(task_id(asked))
        await until(
            one, "bridge_tasks_total", 1, agent="jsonl", state="failed", reason="agent-error"
        )
        page = await page_of(one.http, one.url)
    ends = page.samples["bridge_tasks_total"]
    found = {(dict(k)["state"], dict(k)["reason"]): v for k, v in ends.items() if v}
    assert found == {
        ("completed", ""): 1,
        ("canceled", ""): 1,
        ("failed", "agent-error"): 1,
    }
    codes = page.samples["bridge_requests_total"]
    operations = {dict(key)["operation"] for key in codes}
    assert operations == {"stream", "send", "cancel"}
    assert page.value("bridge_stream_items_total", binding="jsonrpc") >= 3
    assert page.value("bridge_streams", binding="jsonrpc") == 0
    assert page.value("bridge_connections", listener="tcp") >= 1
    assert page.value("bridge_ready") == 1
    assert promtool("check", "metrics", given=page.text) == (0, "")


async def test_a_page_of_two_agents_has_each_metric(workspace: Path) -> None:
    """Except those that begin with their first value."""
    given = {
        "agent_adapter": "jsonl",
        "agent_binary": sys.executable,
        "agent_args": ("-I", "-S", PROGRAM),
        "agent_repo_path": str(workspace),
        "agents": {"a": {}, "b": {}},
    }
    loaded = Loaded(Settings().updated(given), {}, [])
    async with serving_loaded(loaded) as one:
        page = await page_of(one.http, one.url)
    late = {
        *("bridge_tokens_total", "bridge_cost_usd_total", "bridge_requests_total"),
        *("bridge_request_duration_seconds", "bridge_question_wait_seconds"),
        *("bridge_tool_duration_seconds", "bridge_state_free_bytes"),
    }
    shown = {name for name in page.samples if name.startswith("bridge_")}
    whole = {name.removesuffix("_bucket").removesuffix("_sum") for name in shown}
    assert {one.shown for one in CATALOG} - whole == late
    read = {one.shown for one in CATALOG if one.read}
    series = sum(
        len(found)
        for name, found in page.samples.items()
        if name in read or name.startswith("process_")
    )
    assert series == READ_BY_TWO_AGENTS
    text = " ".join((CHECKOUT / "docs/observability.md").read_text("utf-8").split())
    assert f"A server with two agents has {page.series} series at its start;" in text
    sessions = {dict(labels)["agent"] for labels in page.samples["bridge_sessions"]}
    assert sessions == {"a", "b"}


async def test_failed_authentications_count_by_scheme_and_cause(tmp_path: Path) -> None:
    async with server(tmp_path) as one:
        basic = {"Authorization": "Basic eDp3cm9uZw=="}
        for sent in ({}, {"Authorization": "Bearer wrong"}, {"X-API-Key": "wrong"}, basic):
            async with one.http.get(f"{one.url}/a2a/rest/tasks", headers=sent) as response:
                assert response.status == 401
        async with one.http.get(f"{one.url}/health") as response:  # not a failure
            assert response.status == 200
        async with one.http.get(f"{one.url}/metrics", headers=headers("boss")) as response:
            page = Page(await response.text())
    found = {
        (dict(k)["scheme"], dict(k)["reason"]): v
        for k, v in page.samples["bridge_auth_failures_total"].items()
        if v
    }
    unknown = {(scheme, "unknown"): 1 for scheme in ("bearer", "api_key", "basic")}
    assert found == {("bearer", "missing"): 1, **unknown}


async def test_other_parts_report_their_facts(workspace: Path) -> None:
    async with serving(workspace) as one:
        assert one.pages
        one.pages.metrics.spans_dropped += 3
        one.managers[0].sessions.leftovers += 2
        page = await page_of(one.http, one.url)
    assert page.value("bridge_spans_dropped_total") == 3
    assert page.value("bridge_leftover_processes_total", agent="jsonl") == 2


# --- /health -------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["anonymous", "wrong", "reader", "boss"])
async def test_health_has_figures_for_known_clients_alone(tmp_path: Path, who: str) -> None:
    async with server(tmp_path) as one:
        sent = {"Authorization": "Bearer wrong"} if who == "wrong" else headers(who)
        async with one.http.get(f"{one.url}/health", headers=sent) as response:
            assert response.status == 200
            body = await response.json()
        known = who in ("reader", "boss")
        assert set(body) == {"status", "version", *(("agents", "sessions") if known else ())}


async def test_wrong_tokens_at_health_count_as_anywhere(tmp_path: Path) -> None:
    """Otherwise it would tell an attacker which of any number of tokens is right."""
    async with server(tmp_path) as one:
        for _ in range(25):
            sent = {"Authorization": "Bearer wrong"}
            async with one.http.get(f"{one.url}/health", headers=sent) as response:
                assert set(await response.json()) == {"status", "version"}
        async with one.http.get(f"{one.url}/a2a/rest/tasks", headers=sent) as response:
            assert response.status == 429
        await As(one, "boss").send("text hi\ndone")


# --- a real server -------------------------------------------------------------------------------

WITHOUT_LIBRARY = """
import sys
sys.modules["prometheus_client"] = None
from bridge.server.extras import metrics_library
print(metrics_library())
"""


def program(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_missing_library_is_noticed() -> None:
    done = program(WITHOUT_LIBRARY)
    assert done.stdout == "None\n", done.stderr


IMPORTED = """
import asyncio, sys
from bridge.server.settings.load import Loaded
from tests.support.served import serving
from pathlib import Path
async def main():
    async with serving(Path(sys.argv[1]), bridge_metrics=sys.argv[2]) as one:
        await one.client().send("text hi\\ndone")
        print("prometheus_client" in sys.modules, one.observers())
        async with one.http.get(one.url + "/metrics") as response:
            await response.read()
        print("prometheus_client" in sys.modules, one.observers())
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("mode", "before", "after"),
    [("off", "False 1", "False 1"), ("auto", "False 1", "True 3")],  # one writes the log
)
def test_nothing_is_imported_or_observed_before_its_use(
    workspace: Path, mode: str, before: str, after: str
) -> None:
    """Takes a second: the start of a server in a process of its own."""
    done = program(IMPORTED, str(workspace), mode)
    assert done.stdout.splitlines() == [before, after], done.stderr


async def test_a_real_server_reports_its_disk_store_reloads_and_backups(
    workspace: Path, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """A start of a server takes a second."""
    config = tmp_path / "bridge.toml"
    config.write_text("")
    settings = {"BRIDGE_METRICS": "on", "CONFIG_FILE": str(config)}
    settings["BRIDGE_STATE_DIR"] = str(tmp_path / "state")
    env: dict[str, Any] = {**scripted(workspace), **settings}
    async with bridge(workspace, **env) as one:
        before = await page_of(http, one.url)
        await Client(http, one.url).send("text hi\ndone")
        one.process.send_signal(signal.SIGHUP)
        await one.logged("the configuration was reloaded")
        config.write_text("this is no TOML")
        one.process.send_signal(signal.SIGHUP)
        await one.logged("the configuration was not reloaded")
        target = {"folder": str(tmp_path / "backup")}
        async with http.post(f"{one.url}/admin/backup", json=target) as response:
            assert response.status == 200, await response.text()
        page = await page_of(http, one.url)
    assert page.value("bridge_state_free_bytes") > 0
    assert page.value("bridge_store_bytes") > 0
    assert page.value("bridge_journal_backlog_bytes") == 0
    assert page.value("bridge_journal_commit_seconds_count") >= 2
    assert 0 < page.value("bridge_journal_commit_seconds_sum") < 60
    ((labels, _),) = page.samples["bridge_build_info"].items()
    assert int(dict(labels)["schema"]) >= 1
    assert page.value("process_start_time_seconds") > 0
    reloads = {outcome: page.value("bridge_reloads_total", outcome=outcome) for outcome in RELOADS}
    assert reloads == {"ok": 1, "failed": 1}
    loaded = "bridge_config_loaded_timestamp_seconds"
    assert before.value(loaded) < page.value(loaded) < page.value(BACKED_UP) <= time.time()
    assert before.value(BACKED_UP) == 0


BACKED_UP = "bridge_backup_timestamp_seconds"


def test_metrics_that_are_on_need_the_library(workspace: Path) -> None:
    """Takes a second: the begin of a server in a process of its own."""
    code = "import sys; sys.modules['prometheus_client'] = None\n" + IMPORTED
    done = program(code, str(workspace), "on")
    assert done.returncode != 0
    assert f"{ConfigurationError.__name__}: BRIDGE_METRICS is on." in done.stderr
    assert install_line("metrics") in done.stderr
