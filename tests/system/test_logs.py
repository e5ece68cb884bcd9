"""The log of the program in JSON: every line of its life, and the id of a request in all places."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests import CHECKOUT
from tests.support.bridge_process import BridgeProcess, bridge, environment, scripted
from tests.support.client import Client, state
from tests.support.grpc_client import GrpcError, connected
from tests.support.log_lines import problems

TOKEN = "a-token-of-the-test-1234"


def lines(log: str) -> list[dict[str, Any]]:
    """All lines. Raises an error if one does not match the schema."""
    found = [json.loads(line) for line in log.splitlines()]
    assert [problem for line in found for problem in problems(line)] == []
    return found


async def place(server: BridgeProcess) -> dict[str, Any]:
    """The line that says where the server listens."""
    await server.logged('"server.ready"')
    (found,) = [line for line in lines(server.log) if line["event"] == "server.ready"]
    return found


async def test_each_line_is_json_and_the_id_of_a_request_is_in_all_places(workspace: Path) -> None:
    audit = workspace.parent / "audit.jsonl"
    env = {
        **scripted(workspace),
        **{"LOG_FORMAT": "json", "LOG_REQUESTS": "true", "BRIDGE_AUDIT_FILE": str(audit)},
        **{"BRIDGE_TOKEN": TOKEN, "BRIDGE_GRPC_PORT": "0", "LOG_LEVEL": "DEBUG"},
    }
    async with bridge(workspace, ready=False, **env) as server, ClientSession() as http:
        where = await place(server)
        bearer = {"Authorization": f"Bearer {TOKEN}", "A2A-Version": "1.0"}
        client = Client(http, where["address"], headers={**bearer, "X-Request-Id": "mine.1"})
        task = await client.send("ask q1 Shall I?; text done")
        assert state(task) == "input-required"
        ids = {}
        for name, headers in {
            "answered": {**bearer, "X-Request-Id": "mine.2"},
            "refused": {"Authorization": "Bearer not-the-token", "X-Request-Id": "mine.3"},
            "made": {**bearer, "X-Request-Id": "not suitable"},
        }.items():
            url = f"{where['address']}/tasks/{task['id']}"
            async with http.get(url, headers=headers) as answer:
                ids[name] = answer.headers["X-Request-Id"]
        async with http.get(where["address"] + "/tasks/unknown", headers=bearer) as answer:
            ids["unknown"] = answer.headers["X-Request-Id"]
        async with connected(where["grpc"], authorization=f"Bearer {TOKEN}") as grpc:
            with pytest.raises(GrpcError):
                await grpc.call("GetTask", {"id": "unknown"}, **{"x-request-id": "mine.4"})
        assert await server.stop() == 0
        log = server.log
    found = lines(log)
    assert (ids["answered"], ids["refused"]) == ("mine.2", "mine.3")
    assert len(ids["made"]) == 16
    events = [line["event"] for line in found]
    named = [event for event in events if event != "log"]
    assert (named[0], named[-1]) == ("server.starting", "server.stopped")
    expected = {"task.started", "question.asked", "session.started", "session.ended", "auth.failed"}
    expected |= {"task.ended", "request.refused", "request.answered", "server.draining"}
    assert expected <= set(events)

    def of(event: str, request: str) -> dict[str, Any]:
        (one,) = [x for x in found if (x["event"], x.get("request_id")) == (event, request)]
        return one

    for event in ("task.started", "question.asked", "task.ended"):
        line = of(event, "mine.1")
        assert (line["task"], line["context"]) == (task["id"], task["contextId"])
        assert (line["binding"], line["peer"]) == ("jsonrpc", "127.0.0.1")
    assert of("request.answered", "mine.2")["binding"] == "rest"
    failed = of("auth.failed", "mine.3")
    assert (failed["scheme"], failed["cause"], failed["level"]) == ("bearer", "unknown", "warning")
    assert of("request.refused", ids["unknown"])["code"] == "task_not_found"
    assert of("request.refused", "mine.4")["binding"] == "grpc"
    audited = [json.loads(line) for line in audit.read_text().splitlines()]
    by_request = {(line["what"], line["request_id"]) for line in audited}
    assert {("task", "mine.1"), ("asked", "mine.1"), ("auth_failed", "mine.3")} <= by_request
    assert "not-the-token" not in log and TOKEN not in log and "Shall I" not in log


@pytest.mark.parametrize("form", [pytest.param("text", marks=pytest.mark.soak), "json"])
def test_journald_gets_the_priority_of_each_line(workspace: Path, form: str) -> None:
    """A shell sets JOURNAL_STREAM to its own stderr, as systemd does, and then ends the start."""
    home, variables = environment(workspace, {"LOG_FORMAT": form, "BRIDGE_SANDBOX": "auto"})
    set_stream = "JOURNAL_STREAM=$(stat -L -c %d:%i /proc/$$/fd/2) && export JOURNAL_STREAM"
    start = (
        "from bridge.server.operate.log_output import configure_logging, log; from bridge.server."
    )
    start += "settings.load import load; loaded = load({}); configure_logging('INFO', form="
    start += f"'{form}', journal=loaded.stderr_is_journal); log.warning('a warning')"
    for before, priority in (
        (set_stream, "<4>"),
        ("JOURNAL_STREAM=1:2; export JOURNAL_STREAM", ""),
    ):
        done = subprocess.run(
            ["/bin/sh", "-c", f'{before}; exec "$0" -c "$1"', sys.executable, start],
            cwd=home,
            env={**variables, "PYTHONPATH": str(CHECKOUT)},
            capture_output=True,
            text=True,
            check=True,
        )
        (line,) = done.stderr.splitlines()
        assert line.startswith(priority + ("{" if form == "json" else "2")), line
