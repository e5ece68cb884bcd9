"""The state folder while a server runs, and between two."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from pathlib import Path

import aiohttp
import pytest

from tests.support.bridge_process import bridge, scripted
from tests.support.client import Client, RpcError, artifact_text, state, task_id
from tests.support.refusals import refused
from tests.support.sandboxed import SHELL


async def health(http: aiohttp.ClientSession, url: str) -> dict[str, object]:
    async with http.get(f"{url}/health") as response:
        found: dict[str, object] = await response.json()
        return found


@pytest.mark.parametrize("way", ["deleted", "replaced", "moved"])
async def test_a_server_whose_state_is_gone_takes_nothing_new_and_says_so(
    workspace: Path, http: aiohttp.ClientSession, way: str
) -> None:
    folder, aside = workspace.parent / "state", workspace.parent / "aside"
    async with bridge(workspace, **scripted(workspace)) as server:
        client = Client(http, server.url)
        waiting = await client.send("ask q Who?")
        assert (await health(http, server.url))["status"] == "ok"
        if way == "deleted":
            shutil.rmtree(folder)
        else:
            folder.rename(aside)
        if way == "replaced":
            folder.mkdir(mode=0o700)
            shutil.copy(aside / "tasks.db", folder)
        found = await health(http, server.url)
        assert found["status"] == "degraded"
        assert f"{folder}/tasks.db was removed or replaced" in json.dumps(found)
        with pytest.raises(RpcError, match="cannot write"):
            await client.send("text a")
        assert "the state folder was removed or replaced" in server.log
        if way == "moved":  # and back: nothing is lost
            aside.rename(folder)
            assert (await health(http, server.url))["status"] == "ok"
            done = await client.send("me", taskId=task_id(waiting))
            assert state(done) == "completed"
            assert artifact_text(await client.send("text b")) == "b"
        else:  # what runs can be ended
            assert state(await client.cancel(task_id(waiting))) == "canceled"


async def test_a_deleted_audit_log_is_said(workspace: Path, http: aiohttp.ClientSession) -> None:
    audit = workspace.parent / "audit.jsonl"
    env = {**scripted(workspace), "BRIDGE_AUDIT_FILE": str(audit)}
    async with bridge(workspace, **env) as server:
        audit.unlink()
        assert "the audit log was deleted" in json.dumps(await health(http, server.url))


async def test_a_folder_that_an_agent_has_opened_is_closed_again(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    folder = workspace.parent / "state"
    async with bridge(workspace, **scripted(workspace)) as server:
        task = await Client(http, server.url).send("text a")
    folder.chmod(0o777)
    async with bridge(workspace, **scripted(workspace)) as server:
        assert "others could look into a folder of the server" in server.log
        assert stat.S_IMODE(folder.stat().st_mode) == 0o710
        again = await Client(http, server.url).get(task_id(task))
        assert artifact_text(again) == "a"


async def test_each_session_closes_folders_that_an_agent_has_opened(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    async with bridge(workspace, **scripted(workspace)) as server:
        opened = workspace.parent / "state" / "sessions"
        opened.mkdir(exist_ok=True)
        opened.chmod(0o777)
        assert state(await Client(http, server.url).send("text x")) == "completed"
        assert opened.stat().st_mode & 0o007 == 0


async def test_tasks_survive_what_an_agent_of_an_ordinary_user_has_closed(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    """Modes bind this user, unlike root. Two starts as another user take some seconds."""
    folder = workspace.parent / "state"
    async with bridge(workspace, ordinary=True, **scripted(workspace)) as server:
        client = Client(http, server.url)
        task = await client.send("text a")
        (folder / "sessions").chmod(0)
        assert state(await client.send("text b")) == "completed"
        (folder / "tasks.db").chmod(0)
    async with bridge(workspace, ordinary=True, **scripted(workspace)) as server:
        again = await Client(http, server.url).get(task_id(task))
        assert artifact_text(again) == "a"


async def test_the_push_database_of_an_earlier_version_is_renamed(workspace: Path) -> None:
    folder = workspace.parent / "state" / "push"
    async with bridge(workspace, **scripted(workspace)) as server:
        assert "push configs" not in server.log
    folder.mkdir(mode=0o700)
    for name in ("push.db", "push.db-wal", "push.key"):
        (folder / name).write_text(name)
    for first in (True, False):
        async with bridge(workspace, **scripted(workspace)) as server:
            assert ("push configs of an earlier version" in server.log) is first
            assert (f"{folder}/push.db.old" in server.log) is first
        found = {path.name: path.read_text() for path in folder.iterdir()}
        assert found == {
            "push.db.old": "push.db",
            "push.db-wal.old": "push.db-wal",
            "push.key": "push.key",
        }


async def test_a_folder_that_no_server_has_used_is_left_as_it_is(workspace: Path) -> None:
    folder = workspace.parent / "state"
    folder.mkdir(mode=0o755)
    with pytest.raises(AssertionError, match="chmod 700"):
        async with bridge(workspace, **scripted(workspace)):
            pass
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_a_state_folder_that_cannot_be_used_ends_the_server(workspace: Path) -> None:
    """It does not run in memory, without the tasks and the audit log of the last one."""
    path = workspace.parent / "sockets" / "s"
    path.parent.mkdir(mode=0o700)
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    folder = workspace.parent / f"home/.local/state/coding-agent-bridge/unix-{digest}"
    (folder / "tasks.db").mkdir(parents=True)
    folder.chmod(0o700)
    env = {**SHELL, "PORT": "none", "BRIDGE_UNIX_SOCKET": str(path), "BRIDGE_AUTH": "auto"}
    assert f"cannot use {folder}" in refused(workspace, **env)
