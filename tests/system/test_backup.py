"""The commands that keep the state of a server: backup, restore, rollback and `doctor --migrate`,
with real servers that run meanwhile."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import pytest

from tests.support import ledger, load
from tests.support.bridge_process import BridgeProcess, environment, scripted
from tests.support.client import Client, Json, RpcError, artifact_text, state
from tests.support.forked_command import run_forked
from tests.support.kept_state import FIRST, NEWEST, grow, schema_of, state_folder, tasks_of
from tests.support.liveness import Liveness
from tests.support.problem_cli import PROGRAM as PROBLEMS
from tests.support.prometheus import page_of
from tests.support.real_claude_code import reason
from tests.support.restart import Place, finished, kill
from tests.support.servers import on_postgres

WITHIN = 60.0  # seconds
NEWEST_SCHEMA = 5


class Commands:
    """`coding-agent-bridge` with the settings of a place, in a process of its own."""

    def __init__(self, place: Place, **env: str) -> None:
        self.folder = place.workspace.parent
        settings = {**scripted(place.workspace), **place.env, **env}
        self._home, self._env = environment(place.workspace, settings)

    def __call__(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return run_forked(list(map(str, arguments)), cwd=self._home, env=self._env)

    def passes(self, *arguments: str | Path) -> str:
        """The output of a command that succeeds."""
        done = self(*arguments)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        return done.stdout

    def fails(self, *arguments: str | Path, status: int = 1) -> str:
        """The one line of a command that fails."""
        done = self(*arguments)
        assert (done.returncode, done.stdout) == (status, ""), done.stdout + done.stderr
        assert done.stderr.count("\n") == 1 or "Hint" in done.stderr
        return done.stderr


async def raw(client: Client, task_id: str) -> bytes:
    """The bytes of the answer with the whole task."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": task_id}}
    return await (await client.post(call)).read()


def two_agents(place: Place) -> dict[str, str]:
    """Settings for the scripted agent, and for one that keeps a ledger."""
    file = place.workspace.parent / "agents.toml"
    agent = f'adapter = "jsonl"\nbinary = "{sys.executable}"\n'
    problems = f'[agents.problems]\n{agent}args = ["-I", "-S", "{PROBLEMS}"]\n'
    file.write_text(f"[agents.jsonl]\n{agent}args = {json.dumps(scripted_args(place))}\n{problems}")
    return {"CONFIG_FILE": str(file)}


def scripted_args(place: Place) -> list[str]:
    return str(scripted(place.workspace)["AGENT_ARGS"]).split()


def problem(folder: Path, name: str, *steps: list[Any]) -> tuple[Path, str]:
    """The path of a ledger, and the prompt for the agent that keeps it."""
    path = folder / "workspace" / f"{name}.ledger"
    return path, json.dumps({"ledger": str(path), "seed": 1, "steps": steps})


async def test_a_restored_server_has_every_ended_task_and_runs_none_again(
    place: Place, http: aiohttp.ClientSession, live: Liveness
) -> None:
    """The drill of docs/backup.md, beside the first server, which is killed in a further backup at
    the end. Three servers start."""
    env = {**two_agents(place), "BRIDGE_MAX_SESSIONS": "2"}  # a question holds none
    place.env |= env
    folder = place.workspace.parent
    new, command = folder / "new", Commands(place)
    async with place.server() as (server, client):
        path, prompt = problem(folder, "text", ["text", 200, 1, 300], ["raw", "odd"])
        other = Client(http, f"{server.url}/agents/problems")
        ended = [
            await client.send("text a\nstatus b\ntext c", contextId="kept"),
            await client.send("text b\nfail no"),
            await client.send("flood 500"),
            await other.send(prompt),
        ]
        assert [state(one) for one in ended] == ["completed", "failed", "completed", "completed"]
        working = await client.send_now(f"text begun\nwait {live.path} working", contextId="w")
        asking = await client.send("ask q Which?", contextId="a")
        await live.pid("working")
        third = await client.send_now(f"wait {live.path} third", contextId="t")
        await live.pid("third")
        queued = await client.send_now(f"here {live.path} queued\ntext ran", contextId="queued")
        opened = [working, asking, third, queued]
        assert state(await client.get(queued["id"])) == "submitted"
        shown = command.passes("backup", folder / "backup")
        assert "schema 5" in shown and "sessions: the live output" in shown
        before = {one["id"]: await raw(client, one["id"]) for one in ended}
        stored = tasks_of(folder / "backup" / "tasks.db")
        shown = command.passes("restore", folder / "backup", "--state", new)
        assert f"restored {len(ended) + len(opened)} tasks" in shown
        text = command.fails("restore", folder / "backup", "--state", folder / "x", "--same-id")
        assert "has the id of this backup" in text and not (folder / "x").exists()
        async with place.server(BRIDGE_STATE_DIR=str(new)) as (restored, second):
            await check_restored(second, before, opened)
            assert "killed processes" not in restored.log
            assert live.alive("working") and not live.has("queued")  # of the first server
        assert ledger.check_store(new, {ended[-1]["id"]: (ledger.read_ledger(path), False)}) == []
        kept = tasks_of(new / "tasks.db")
        assert {one: kept[one] for one in before} == {one: stored[one] for one in before}
        await live.release("working")
        assert artifact_text(await finished(client, working["id"])) == "begun"
        await live.release("third")
        assert artifact_text(await finished(client, queued["id"])) == "ran"
        await kill_in_backup(http, server, folder / "killed")
    async with place.server() as (server, client):
        assert {one: await raw(client, one) for one in before} == before
        assert artifact_text(await client.get(queued["id"])) == "ran"
        made = json.loads((folder / "backup/manifest.json").read_text())["time"]
        noted = (await page_of(http, server.url)).value("bridge_backup_timestamp_seconds")
        assert datetime.fromisoformat(made).timestamp() <= noted  # the restart did not reset it
        assert complete_or_missing(folder / "killed") in (None, {*before, *ids(opened)})
        if not (folder / "killed").exists():
            command.passes("backup", folder / "killed")
        assert not (folder / "killed.tmp").exists()


async def check_restored(client: Client, ended: dict[str, bytes], opened: list[Json]) -> None:
    """The ended tasks are as they were, the open ones have failed, and conversations continue."""
    for task_id, body in ended.items():
        assert await raw(client, task_id) == body
    for task in opened:
        found = await finished(client, task["id"])
        assert (state(found), reason(found)) == ("failed", "restart")
    again = await client.send("turn", contextId=opened[0]["contextId"])
    assert (state(again), again["contextId"]) == ("completed", opened[0]["contextId"])


async def kill_in_backup(http: aiohttp.ClientSession, server: BridgeProcess, target: Path) -> None:
    backing = asyncio.create_task(ask_backup(http, server, target))
    await asyncio.sleep(0)
    await kill(server)
    await backing


def ids(tasks: list[Json]) -> set[str]:
    return {one["id"] for one in tasks}


async def ask_backup(http: aiohttp.ClientSession, server: BridgeProcess, target: Path) -> int:
    """The status of the answer; 0 if the server ends first."""
    headers = server.credentials if server.token_file.name else {}
    body = {"folder": str(target)}
    try:
        async with http.post(f"{server.url}/admin/backup", json=body, headers=headers) as response:
            return response.status
    except aiohttp.ClientError:
        return 0


def complete_or_missing(backup: Path) -> set[str] | None:
    """The ids of the tasks of a complete backup; None without one."""
    if not backup.exists():
        return None
    assert (backup / "manifest.json").exists()
    return set(tasks_of(backup / "tasks.db"))


async def test_an_upgrade_and_the_way_back(place: Place) -> None:
    """With the store of an early revision. Two servers start, and one refuses to."""
    command, folder = Commands(place), place.workspace.parent
    database = state_folder(place.state, FIRST) / "tasks.db"
    before = tasks_of(database)
    shown = command.passes("doctor", "--migrate")
    assert "schema 2 to 5: 9 tasks" in shown
    assert schema_of(database) == 2 and not list(folder.glob("bridge-migrate-*"))
    async with place.server() as (_, client):
        done = await client.send("text later")
        assert "not necessary: 10 tasks have schema 5" in command.passes("doctor", "--migrate")
        assert "runs: stop it first" in command.fails("rollback")
        checks = json.loads(command("doctor", "--migrate", "--json").stdout)["server"]["checks"]
        assert [(one["name"], one["facts"]["after"]) for one in checks] == [("migration", 5)]
        assert not list(folder.glob("bridge-migrate-*"))
    kept = json.loads(command("doctor", "--json").stdout)["server"]["checks"]
    assert {"files": ["tasks.db.schema-2"]} in [one["facts"] for one in kept]
    with closing(sqlite3.connect(database)) as newer:  # as a later version leaves it
        newer.executescript("PRAGMA journal_mode = DELETE; PRAGMA user_version = 6")
    refused = command.fails("serve", status=2)
    assert "schema 6" in refused and "coding-agent-bridge rollback" in refused
    assert "it has schema 6" in command("doctor", "--migrate").stdout
    shown = command.passes("rollback")
    assert "1 later tasks are lost" in shown and "rolled-back-" in shown
    assert tasks_of(database) == before and schema_of(database) == 2
    assert "no file to roll back to" in command.fails("rollback")
    async with place.server() as (_, client):
        with pytest.raises(RpcError, match="-32001"):
            await client.get(done["id"])
        assert state(await client.send("text new")) == "completed"


async def test_a_stopped_server_is_backed_up_from_its_folder(place: Place) -> None:
    """One server starts."""
    command, folder = Commands(place), place.workspace.parent
    assert "is not the state folder of a server" in command.fails("backup", folder / "none")
    async with place.server() as (server, client):
        task = await client.send("text a")
        await kill(server)  # its newest commits are in the WAL
        for process in place.processes():
            process.kill()
    assert "schema 5" in command.passes("backup", folder / "backup")
    assert task["id"] in tasks_of(folder / "backup" / "tasks.db")
    elsewhere = Commands(place, BRIDGE_STATE_DIR=str(folder / "elsewhere"))
    elsewhere.passes("backup", folder / "again", "--state", place.state)
    assert task["id"] in tasks_of(folder / "again" / "tasks.db")
    assert not (folder / "elsewhere").exists()
    text = command.fails("restore", folder / "backup", "--state", place.state)
    assert "exists already" in text
    assert "is not a backup" in command.fails("restore", folder, "--state", folder / "new")


async def test_a_backup_of_a_server_on_postgresql_names_the_missing_part(
    place: Place, postgres_url: str
) -> None:
    """One server starts."""
    place.env |= on_postgres(postgres_url)
    command, folder = Commands(place), place.workspace.parent
    async with place.server() as (server, client):
        await client.send("text a")
        for target in ("running", "stopped"):
            shown = command.passes("backup", folder / target)
            assert "pg_dump" in shown and "schema" not in shown
            assert not (folder / target / "tasks.db").exists()
            assert (folder / target / "id").read_text() == (place.state / "id").read_text()
            if server.process.returncode is None:
                assert await server.stop() == 0
    for words in (("restore", folder / "running", "--state", folder / "new"), ("rollback",)):
        assert "PostgreSQL" in command.fails(*words)
    assert "the tasks are in PostgreSQL" in command.passes("doctor", "--migrate")


# --- soak ----------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.timeout(600)  # 50 starts of a server
async def test_a_server_that_is_killed_in_a_backup_loses_nothing(
    place: Place, http: aiohttp.ClientSession
) -> None:
    """50 times, at random moments of a backup of 20 MB."""
    state_folder(place.state, NEWEST)
    grow(place.state / "tasks.db", 20)
    folder, chance, killed = place.workspace.parent, random.Random(6), 0
    acked: dict[str, bytes] = {}
    target = folder / "backup"
    for _ in range(50):
        async with place.server() as (server, client):
            for task_id, body in acked.items():
                assert await raw(client, task_id) == body
            backing = asyncio.create_task(ask_backup(http, server, target))
            end = asyncio.get_running_loop().time() + chance.uniform(0.0, 0.9)
            while asyncio.get_running_loop().time() < end:
                task = await client.send("text a")
                acked[task["id"]] = await raw(client, task["id"])
            await kill(server)
            killed += await backing == 0
        for process in place.processes():  # idle ones
            process.kill()
        found = complete_or_missing(target)
        assert found is None or found >= {"done", "failed"}
        shutil.rmtree(target, ignore_errors=True)
    print(f"{killed} of 50 backups were killed, {len(acked)} tasks are there")
    assert killed >= 10


@pytest.mark.soak
@pytest.mark.timeout(400)
async def test_clients_do_not_notice_a_backup() -> None:
    """20 streams of 50 pieces per second, in five pairs of runs: without a backup, and with one of
    100 MB after the other. The time of the slowest hundredth at most doubles. The figures of single
    runs differ by a factor of ten on a busy machine, so medians count. There, a backup may also
    outlast its run. This takes two minutes."""
    begun: list[Path] = []
    backups: list[Json] = []

    def large(folder: Path) -> None:
        grow(state_folder(folder / "state") / "tasks.db", 100)

    async def back_up(folder: Path, http: aiohttp.ClientSession, url: str) -> None:
        for number in range(1000):
            begun.append(folder / f"backup-{number}")
            body = {"folder": str(begun[-1])}
            async with http.post(f"{url}/admin/backup", json=body) as response:
                assert response.status == 200, await response.text()
                backups.append(await response.json())
            await asyncio.sleep(0.2)

    alone, during = [], []
    for _ in range(5):
        alone.append(await load.run(20, 50, seconds=6, before=large))
        during.append(await load.run(20, 50, seconds=6, before=large, meanwhile=back_up))
    seconds = [one["seconds"] for one in backups]
    print(f"{len(backups)} of {len(begun)} backups in {min(seconds):.1f} to {max(seconds):.1f} s")
    for name, runs in (("alone", alone), ("during", during)):
        print(name, *(f"median {one.median:.1f}, p99 {one.most:.1f} ms;" for one in runs))
    assert len({one.parent for one in begun}) == 5 and backups[0]["bytes"] > 100_000_000
    assert not any(one.lost for one in (*alone, *during))
    assert median(one.most for one in during) <= 2 * median(one.most for one in alone)
