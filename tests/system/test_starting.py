"""Commands without a server start one for their directory, and it ends when nothing uses it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bridge.errors.program import command
from tests.support.bridge_process import bridge, scripted
from tests.support.cab import WITHIN, Cab

REPLAY = {"AGENT_ADAPTER": "replay"}


@pytest.fixture
async def cab(workspace: Path) -> AsyncIterator[Cab]:
    """The commands of a user in a project. No server runs at first; all end with the test."""
    found = Cab(workspace, workspace.parent / "home", **REPLAY)
    found.home.mkdir(exist_ok=True)
    yield found
    assert (await found.run("stop", "--all")).status == 0
    assert await listed(found) == []


async def listed(cab: Cab) -> list[Any]:
    """The rows of `servers`."""
    done = await cab.run("servers", "--json")
    return list(json.loads(done.text)["servers"])


async def test_a_first_run_starts_a_server_and_the_next_one_uses_it(cab: Cab) -> None:
    first = await cab.run("run", "hi")
    assert f"started a server for {cab.cwd} (replay)" in first.err
    assert f"`{command('stop')}`" in first.err
    assert first.field("State") == "input-required"
    second = await cab.run("send", "hi")
    assert "started" not in second.err and second.field("State") == "input-required"
    (row,) = await listed(cab)
    assert (row["roots"], row["agents"], row["tasks"]) == ([str(cab.cwd)], ["replay"], 2)
    shown = (await cab.run("servers")).text.splitlines()
    assert shown[0].split() == ["ROOT", "AGENTS", "PID", "SINCE", "TASKS", "URL"]
    assert shown[1].split()[:3] == [str(cab.cwd), "replay", str(row["pid"])]
    stopped = await cab.run("stop")
    assert f"(pid {row['pid']}, {cab.cwd})" in stopped.text
    with contextlib.suppress(psutil.NoSuchProcess):  # a zombie, until its parent reads its status
        assert psutil.Process(row["pid"]).status() == psutil.STATUS_ZOMBIE
    assert (await cab.run("stop")).status == 3


async def test_the_server_of_one_project_is_not_that_of_another(cab: Cab) -> None:
    """Otherwise yesterday's project would get today's task."""
    await cab.run("send", "hi")
    other = Cab(cab.home.parent / "other", cab.home, **REPLAY)
    other.cwd.mkdir()
    assert "started a server" in (await other.run("send", "hi")).err
    assert sorted(one["roots"][0] for one in await listed(cab)) == sorted(
        [str(cab.cwd), str(other.cwd)]
    )
    assert (await other.run("stop", str(cab.cwd))).status == 0
    assert [one["roots"] for one in await listed(cab)] == [[str(other.cwd)]]


async def test_no_server_is_started_without_the_wish(cab: Cab) -> None:
    for words in (("send", "--no-start", "x"), ("send", "x", "--task-id", "t"), ("task", "list")):
        done = await cab.run(*words)
        assert (done.status, done.error) == (3, "CAB_ERR_NO_SERVER")
    assert f"Hint: {command('serve')}" in done.err


async def test_a_start_that_fails_says_why(cab: Cab) -> None:
    done = await Cab(cab.home, cab.home, **REPLAY).run("send", "x")
    assert (done.status, done.error) == (3, "CAB_ERR_NO_SERVER")
    assert f"{cab.home} is your home directory" in done.err and "cd to a project" in done.err


async def test_commands_that_start_no_agent_work_in_the_home_directory(cab: Cab) -> None:
    """The commands of an operator work in the home directory. Without a server, they say so."""
    at_home = Cab(cab.home, cab.home, **REPLAY)
    for words in (("health",), ("backup", "new"), ("rollback",), ("doctor", "--migrate")):
        done = await at_home.run(*words)
        assert done.status < 2 and "home directory" not in done.err, (words, done.err)


async def test_the_only_server_of_a_person_works_in_its_own_workspace(workspace: Path) -> None:
    settings = {**scripted(workspace), "BRIDGE_STATE_DIR": ""}
    elsewhere = workspace.parent / "elsewhere"
    elsewhere.mkdir()
    cab = Cab(elsewhere, workspace.parent / "home")
    async with bridge(workspace, **settings) as server:
        done = await cab.run("send", "cwd")
        assert f"the agent works in {workspace}, the workspace of {server.url}" in done.err
        assert str(workspace) in done.text
        refused = await cab.run("send", "cwd", "--cwd", ".")
        assert refused.status == 2 and f"may not work in {elsewhere}" in refused.err


async def test_an_idle_server_ends_and_a_question_keeps_it(workspace: Path) -> None:
    """Over a second: the time without use is one."""
    settings = {**scripted(workspace), "BRIDGE_STATE_DIR": ""}
    cab = Cab(workspace, workspace.parent / "home")
    async with bridge(workspace, "--until-idle", "0.02", **settings) as server:
        asked = await cab.run("send", "ask q What?")
        assert asked.field("State") == "input-required"
        await asyncio.sleep(2.4)  # two of its periods
        assert server.process.returncode is None
        await cab.run("task", "cancel", asked.field("Task"))
        async with asyncio.timeout(WITHIN):
            assert await server.ended() == 0


async def test_the_short_name_alone_shows_the_help(cab: Cab) -> None:
    """It is the name of the client. `serve`, and the long name alone, serve."""
    script = Path(sys.executable).with_name("cab")
    process = await asyncio.create_subprocess_exec(
        script, cwd=cab.cwd, env=cab.env, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(WITHIN):
        out, _ = await process.communicate()
    assert process.returncode == 0 and out.startswith(b"usage: ")
    assert await listed(cab) == []
