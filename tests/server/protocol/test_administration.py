"""The requests of operators: usage, the deletion of a principal's tasks, and backups."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from bridge.auth.credentials import new_token
from tests.support.client import Client, RpcError, state
from tests.support.kept_state import tasks_of
from tests.support.monitored import serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPERATOR = "operator" * 4
Json = dict[str, Any]
USED = (
    'line {"type":"usage","inputTokens":10,"outputTokens":5,"totalTokens":20,"costUsd":0.25,'
    '"cacheReadTokens":5,"cacheCreationTokens":"many","other":1}'
)


def config(folder: Path) -> tuple[str, str]:
    """A file with the principal anna, who may run and read, and her token."""
    token, _, entry = new_token("anna").partition("\n\n")
    path = folder / "config.toml"
    path.write_text(f'{entry}scopes = ["run", "read"]\n')
    return str(path), token


def attach(folder: Path, owner: str, task: Json) -> Path:
    """A file of the task, where Attachments puts it for a CLI that takes no parts."""
    key = hashlib.sha256(f"{owner}/{task['contextId']}".encode()).hexdigest()[:32]
    path = folder / "files" / "jsonl" / key / str(task["id"]) / "0-note.txt"
    path.parent.mkdir(parents=True)
    path.write_text("secret")
    return path


class Admin:
    """Requests with the operator's token, or another one."""

    def __init__(self, http: aiohttp.ClientSession, url: str, token: str = OPERATOR) -> None:
        self._http = http
        self._url = url
        self.headers = {"Authorization": f"Bearer {token}"}

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Json]:
        sent = {} if body is None else {"json": body}
        url = f"{self._url}{path}"
        async with self._http.request(method, url, headers=self.headers, **sent) as response:
            return response.status, await response.json()


@dataclass(frozen=True, slots=True)
class Team:
    """A server with two principals; only `admin` may do all. `anna` may run and read."""

    folder: Path
    url: str
    admin: Admin
    other: Admin
    local: Client
    anna: Client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def team(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Team]:
    """One server for all tests here: its start takes half a second. A second session takes the slot
    of the first one."""
    folder = tmp_path_factory.mktemp("team")
    (folder / "workspace").mkdir()
    file, token = config(folder)
    settings = {
        "CONFIG_FILE": file,
        "BRIDGE_STATE_DIR": str(folder / "state"),
        "BRIDGE_MAX_SESSIONS": "1",
    }
    timeout = aiohttp.ClientTimeout(total=60)
    async with (
        aiohttp.ClientSession(timeout=timeout) as http,
        serving(folder / "workspace", OPERATOR, **settings) as server,
    ):
        admin, other = Admin(http, server.url), Admin(http, server.url, token)
        clients = [Client(http, server.url, headers=one.headers) for one in (admin, other)]
        yield Team(folder, server.url, admin, other, *clients)


async def test_usage_is_summed_by_day_principal_and_agent(team: Team) -> None:
    """The last usage of a task counts; open tasks do not."""
    admin, anna, local = team.admin, team.anna, team.local
    for text in (USED, f'line {{"type":"usage","inputTokens":99}}\n{USED}', "text no usage"):
        assert state(await anna.send(text)) == "completed"
    assert state(await local.send(f"{USED}\nfail")) == "failed"
    assert state(await local.send(f"{USED}\nask q Open?")) == "input-required"
    status, found = await admin.ask("GET", "/monitor/usage")
    today = datetime.now(UTC).date()
    assert status == 200 and found["since"] == (today - timedelta(days=30)).isoformat()
    empty = {"day": today.isoformat(), "agent": "jsonl", "model": None}
    figures = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheCreationTokens")
    assert found["usage"] == [
        {
            **empty,
            "principal": principal,
            "tasks": tasks,
            **dict(zip(figures, (10 * n, 5 * n, 5 * n, 0), strict=True)),
            "totalTokens": 20 * n,
            "costUsd": 0.25 * n,
        }
        for principal, tasks, n in (("anna", 3, 2), ("local", 1, 1))
    ]
    tomorrow = (today + timedelta(days=1)).isoformat()
    assert await admin.ask("GET", f"/monitor/usage?since={tomorrow}") == (
        200,
        {"since": tomorrow, "usage": []},
    )
    status, found = await admin.ask("GET", "/monitor/usage?since=soon")
    assert status == 400 and "YYYY-MM-DD" in found["error"]


async def test_the_finished_tasks_of_a_principal_are_deleted(team: Team) -> None:
    admin, anna, local = team.admin, team.anna, team.local
    folder = team.folder / "state"
    await admin.ask("DELETE", "/monitor/tasks?principal=anna")  # of other tests
    done = [await anna.send("text secret"), await anna.send("text b")]
    attached = attach(folder, "anna", done[0])
    other, waiting = await local.send("text keep"), await anna.send("ask q Open?")
    status, found = await admin.ask("DELETE", "/monitor/tasks?principal=anna")
    assert (status, found["deleted"], found["open"]) == (200, 2, [waiting["id"]])
    for task in done:
        with pytest.raises(RpcError, match="-32001"):
            await anna.get(task["id"])
    assert state(await anna.get(waiting["id"])) == "input-required"
    assert (await local.get(other["id"]))["id"] == other["id"]
    assert not attached.exists() and not attached.parent.parent.exists()
    assert await admin.ask("DELETE", "/monitor/tasks?principal=nobody") == (
        200,
        {"deleted": 0, "conversations": 0, "open": []},
    )
    status, found = await admin.ask("DELETE", "/monitor/tasks")
    assert status == 400 and "principal" in found["error"]
    assert (await admin.ask("POST", "/admin/backup", {"folder": str(team.folder / "b")}))[0] == 200
    stored = set(tasks_of(team.folder / "b" / "tasks.db"))
    assert {other["id"], waiting["id"]} <= stored
    assert not stored & {one["id"] for one in done}
    lines = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    *_, last, _ = [one for one in lines if one["what"] == "tasks_deleted"]
    assert (last["principal"], last["owner"], last["deleted"]) == ("local", "anna", 2)


async def test_a_conversation_ends_with_its_tasks(team: Team) -> None:
    """The row of a conversation names its directory and its principal."""
    admin, local = team.admin, team.anna
    await admin.ask("DELETE", "/monitor/tasks?principal=anna")  # of other tests
    await local.send("text a", contextId="one")
    await local.send("text a", contextId="two")  # which takes the slot: `one` has no session
    async with asyncio.timeout(20):
        status, found = await admin.ask("DELETE", "/monitor/tasks?principal=anna")
    assert (status, found["deleted"], found["conversations"]) == (200, 2, 1)
    assert state(await local.send("turn", contextId="one")) == "completed"  # it begins again


async def test_a_backup_of_a_running_server(team: Team) -> None:
    admin, anna, folder, tmp_path = team.admin, team.other, team.folder / "state", team.folder
    task = await team.local.send("text kept")
    target = tmp_path / "backup"
    status, done = await admin.ask("POST", "/admin/backup", {"folder": str(target)})
    assert (status, done["folder"], done["schema"]) == (200, str(target), 5)
    assert task["id"] in tasks_of(target / "tasks.db")
    wrong: list[Any] = [
        *({"folder": one} for one in ("relative", 1, None, "/tmp/a\0b", str(target))),
        {"folder": str(folder / "inside")},
        {"folder": f"{tmp_path}/x/../state/inside"},
        {"folder": str(tmp_path / "workspace" / "reachable")},
        [],
        {},
    ]
    for body in wrong:
        found = await admin.ask("POST", "/admin/backup", body)
        assert found[0] == 400 and found[1]["error"], body
    new = {"folder": str(tmp_path / "new")}
    for method, path, body in (
        ("POST", "/admin/backup", new),
        ("GET", "/monitor/usage", None),
        ("DELETE", "/monitor/tasks?principal=anna", None),
    ):
        status, answer = await anna.ask(method, path, body)
        assert status == 403 and "'admin' is missing" in answer["error"]
        admin_without = Admin(team.local.session, team.url, "wrong" * 4)
        assert (await admin_without.ask(method, path, body))[0] == 401
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "workspace" / "reachable").exists()
    assert '"what":"backup"' in (folder / "audit.jsonl").read_text()


async def test_files_that_were_put_aside_are_in_health(team: Team) -> None:
    folder = team.folder / "state"
    assert "keptFiles" not in (await team.admin.ask("GET", "/health"))[1]
    names = ["tasks.db.damaged-20260101-000000", "tasks.db.schema-4"]
    for name in (*names, "tasks.db.schema-4.tmp", "other.schema-1"):
        (folder / name).touch()
    status, found = await team.admin.ask("GET", "/health")
    assert (status, found["status"], found["keptFiles"]) == (200, "ok", names)
