"""A server whose tasks are in PostgreSQL: errors at the start, faults of the database, a second
server with the same identity, push notifications without a key, and the doctor."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from bridge.server.agents.node import COPIED
from tests import CHECKOUT
from tests.support.bridge_process import environment, scripted
from tests.support.client import RpcError, artifact_text, state, streamed_text
from tests.support.forked_command import run_forked
from tests.support.liveness import Liveness
from tests.support.refusals import refused
from tests.support.restart import Place, finished, heard
from tests.support.servers import Postgres, on_postgres

WITHIN = 60.0  # seconds
AWAY = "postgresql://me:pa55word@127.0.0.1:1/bridge"


def without_the_driver(folder: Path) -> str:
    """A PYTHONPATH on which the driver cannot be found."""
    folder.mkdir()
    (folder / "psycopg.py").write_text("raise ModuleNotFoundError(name='psycopg')")
    return f"{folder}{os.pathsep}{CHECKOUT}"


@pytest.mark.parametrize("driver", [True, False])
def test_a_database_that_cannot_be_used_is_explained(workspace: Path, driver: bool) -> None:
    env: dict[str, str] = {**scripted(workspace), "BRIDGE_STORE": AWAY}
    if not driver:
        env["PYTHONPATH"] = without_the_driver(workspace.parent / "path")
    home, variables = environment(workspace, env)
    # A process of its own, because a forked one has the driver in memory.
    log = refused(workspace, **env) if driver else run(home, variables)
    expected = "the database bridge at 127.0.0.1:1" if driver else "[postgres]'"
    assert expected in log
    assert "pa55word" not in log


def run(home: Path, variables: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "bridge"],
        cwd=home,
        env=variables,
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    return done.stderr


async def test_the_embedded_store_does_not_load_the_driver(place: Place) -> None:
    async with place.server() as (server, _):
        loaded = {one.path for one in psutil.Process(server.process.pid).memory_maps()}
        assert any("pydantic" in path for path in loaded)
        assert not any("psycopg" in path for path in loaded)


async def test_without_a_key_there_are_no_push_notifications(
    place: Place, postgres_url: str
) -> None:
    config = {"id": "one", "url": "http://127.0.0.1:9/x"}
    async with place.server(BRIDGE_STORE=postgres_url) as (server, client):
        async with client.session.get(f"{server.url}/.well-known/agent-card.json") as response:
            card = await response.json()
        assert card["capabilities"]["pushNotifications"] is False
        task = await client.send("text x")
        calls: list[tuple[str, Any]] = [
            ("CreateTaskPushNotificationConfig", {"taskId": task["id"], **config}),
            ("ListTaskPushNotificationConfigs", {"taskId": task["id"]}),
            (
                "SendMessage",
                {
                    "message": client.message("text y"),
                    "configuration": {"taskPushNotificationConfig": config},
                },
            ),
        ]
        for method, params in calls:
            with pytest.raises(RpcError) as error:
                await client.call(method, params)
            assert error.value.code == -32003
        assert len((await client.call("ListTasks", {}))["tasks"]) == 1


async def test_a_running_task_survives_a_crash_of_the_database(
    place: Place, live: Liveness, database: Postgres, postgres_url: str
) -> None:
    """Takes a second, because PostgreSQL recovers."""
    if not database.restarts:
        pytest.skip("the server of BRIDGE_TEST_POSTGRES must not be restarted")
    place.env = on_postgres(postgres_url)
    database.checkpoint()
    async with place.server() as (_, client):
        script = f"text a\nwait {live.path} agent\n" + "text b\n" * 100 + "turn"
        task = await client.send_now(script)
        await live.pid("agent")
        await heard(client, task["id"], "a")
        await asyncio.to_thread(database.crash)
        await live.release("agent")
        with pytest.raises(RpcError) as error:
            await client.send_now("text x", taskId="unknown")
        assert error.value.error["data"][0]["reason"] == "UNAVAILABLE", error.value.error
        await asyncio.to_thread(database.start)
        ended = await finished(client, task["id"])
        assert state(ended) == "completed"
        assert artifact_text(ended) == "a" + "b" * 100 + "1"
        again = await client.send("turn", contextId=task["contextId"])
        assert artifact_text(again) == "2"


@pytest.mark.soak
async def test_ten_crashes_of_the_database_lose_and_repeat_nothing(
    place: Place, database: Postgres, postgres_url: str
) -> None:
    """Takes a minute: twenty tasks with fifty pieces of text in a second each."""
    if not database.restarts:
        pytest.skip("the server of BRIDGE_TEST_POSTGRES must not be restarted")
    place.env = {**on_postgres(postgres_url), "BRIDGE_MAX_SESSIONS": "20"}
    pieces = range(1500)
    script = "\n".join(f"text {number} \npause 0.02" for number in pieces)
    expected = "".join(f"{number} " for number in pieces)

    async with place.server() as (server, client):
        streams = [asyncio.create_task(client.collect(script)) for _ in range(20)]
        crashes = 0
        while not all(stream.done() for stream in streams) and crashes < 10:
            await asyncio.sleep(1)
            await asyncio.to_thread(database.crash)
            await asyncio.to_thread(database.start)
            crashes += 1
        assert crashes == 10
        for stream in streams:
            items = await stream
            assert streamed_text(items) == expected
            assert state(items[-1]) == "completed"
            task = await client.get(items[0]["task"]["id"])
            assert artifact_text(task) == expected
        assert "stopped" not in server.log and "Traceback" not in server.log


async def test_a_server_on_a_copy_of_the_state_folder_stops_the_first_one(
    place: Place, live: Liveness, postgres_url: str
) -> None:
    place.env = on_postgres(postgres_url)
    copied = place.state.with_name("copied")
    async with place.server() as (first, client):
        task = await client.send_now(f"text a\nwait {live.path} agent\ntext b")
        await live.pid("agent")
        await heard(client, task["id"], "a")
        copied.mkdir(mode=0o700)
        shutil.copy(place.state / "id", copied)
        async with place.server(BRIDGE_STATE_DIR=str(copied), BRIDGE_ON_RESTART="fail") as (
            _,
            second,
        ):
            # It has killed the agent, whose end the first server cannot commit.
            async with asyncio.timeout(WITHIN):
                assert await first.process.wait() == COPIED
            await live.gone("agent")
            ended = await second.get(task["id"])
            assert (state(ended), artifact_text(ended)) == ("failed", "a")


def test_the_doctor_reaches_the_database(workspace: Path, postgres_url: str) -> None:
    for url, status in ((postgres_url, "ok"), (AWAY, "failed")):
        env = {**scripted(workspace), "BRIDGE_STORE": url}
        home, variables = environment(workspace, env)
        done = run_forked(["doctor", "--json"], cwd=home, env=variables)
        checks = {one["name"]: one for one in json.loads(done.stdout)["server"]["checks"]}
        assert checks["database"]["status"] == status, checks["database"]
        assert "pa55word" not in done.stdout + done.stderr
        if status == "ok":
            assert checks["database"]["facts"]["milliseconds"] > 0
            assert checks["push"]["status"] == "note"
        else:
            assert "Start PostgreSQL" in checks["database"]["next"]
