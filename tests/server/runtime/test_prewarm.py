"""Sessions that are started ahead of their tasks: the server with scripted agents as its CLIs. The
processes are looked at from outside; the real CLIs are in tests/real/test_prewarm.py."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from bridge.server import registry
from bridge.session import prewarm
from bridge.session.pool import SessionPool
from bridge.workspace import project_config
from tests.support.acp_agent import PROGRAM as ACP_PROGRAM
from tests.support.agent import PROGRAM
from tests.support.bridge_process import bridge, scripted
from tests.support.client import Client, Json, artifact_text, context_id, said, state, task_id
from tests.support.liveness import listening, until
from tests.support.prewarmed import WITHIN, warm_in
from tests.support.restart import Place, heard, kill
from tests.support.served import Server, serving

JsonLines: Any = registry.load("jsonl")

# Tells of its start in the file START, and of what it does with it otherwise in its first argument.
BEGINS = """
import os, sys
open("starts", "a").write("x")
sys.path.insert(0, {tests!r})
{first}
import agent
agent.Agent().run()
"""


def clis(program: str = PROGRAM, parent: psutil.Process | None = None) -> set[int]:
    """The agents that run, by pid; without the shells that write down their ends."""
    found = (parent or psutil.Process()).children(recursive=True)
    return {one.pid for one in found if program in arguments(one)[:4]}


def arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


async def kept(server: Server, number: int) -> None:
    """Until so many sessions wait for a task."""
    await until(lambda: server.managers[0].figures()["warm"] == number)


async def pid(client: Client, **members: Any) -> int:
    """Of the process that serves it."""
    return int(artifact_text(await client.send("pid", **members)))


def reasons(caplog: pytest.LogCaptureFixture) -> str:
    """The logged reasons for sessions that were not kept."""
    return " ".join(getattr(record, "reason", "") for record in caplog.records)


def program(folder: Path, first: str) -> str:
    """A program that writes an `x` into the file `starts` for each start, then does `first`, and is
    tests/support/agent.py after that."""
    path = folder / "begins.py"
    path.write_text(BEGINS.format(tests=str(Path(PROGRAM).parent), first=first))
    return str(path)


def starts(workspace: Path) -> int:
    path = workspace / "starts"
    return len(path.read_text()) if path.exists() else 0


# --- what is handed over -------------------------------------------------------------------------


async def test_the_first_task_of_a_context_finds_its_process_started(workspace: Path) -> None:
    async with serving(workspace, bridge_warm_sessions=1) as server:
        await kept(server, 1)
        before = clis()
        assert len(before) == 1
        assert {await pid(server.client())} == before
        await kept(server, 1)
        assert len(clis() - before) == 1  # the next one


async def test_two_contexts_at_once_get_different_ones(workspace: Path) -> None:
    async with serving(workspace, bridge_warm_sessions=2) as server:
        await kept(server, 2)
        before = clis()
        both = await asyncio.gather(pid(server.client()), pid(server.client()))
        assert set(both) == before
        assert len(set(both)) == 2


async def test_nothing_is_started_unless_it_is_wanted(workspace: Path) -> None:
    async with serving(workspace, program=program(workspace, "")) as server:
        assert "warm" not in server.managers[0].figures()
        await server.client().send("text one")
        assert starts(workspace) == 1


async def test_a_conversation_continues_in_the_prewarmed_process(workspace: Path) -> None:
    async with serving(workspace, bridge_warm_sessions=1) as server:
        await kept(server, 1)
        first = await server.client().send("turn")
        second = await server.client().send("turn", contextId=context_id(first))
        assert [artifact_text(first), artifact_text(second)] == ["1", "2"]


@pytest.mark.parametrize("choice", [{"model": "other"}, {"cwd": "below"}])
async def test_who_wants_another_session_gets_one_of_its_own(workspace: Path, choice: Json) -> None:
    (workspace / "below").mkdir()
    settings: Json = {"bridge_warm_sessions": 1, "agent_models": ("other",)}
    async with serving(workspace, **settings) as server:
        await kept(server, 1)
        before = clis()
        assert await pid(server.client(), metadata={"bridge": choice}) not in before
        assert before <= clis()


async def test_a_context_with_attachments_gets_one_of_its_own(workspace: Path) -> None:
    """The CLI must be allowed to read their folder."""
    async with serving(
        workspace,
        bridge_warm_sessions=1,
        agent_adapter="opencode",
        agent_args=("-I", "-S", ACP_PROGRAM, "{}"),
    ) as server:
        await kept(server, 1)
        before = clis(ACP_PROGRAM)
        file = {"raw": "QUJD", "mediaType": "application/zip", "filename": "a.zip"}
        task = await server.client().send([{"text": "pid"}, file])
        assert int(artifact_text(task).split()[0]) not in before


async def test_the_handshake_waits_for_the_first_task(workspace: Path) -> None:
    async with serving(
        workspace,
        bridge_warm_sessions=1,
        agent_adapter="opencode",
        agent_args=("-I", "-S", ACP_PROGRAM, json.dumps({"sessions": str(workspace / "new")})),
    ) as server:
        await kept(server, 1)
        (before,) = clis(ACP_PROGRAM)
        task = await server.client().send("pid")
        assert artifact_text(task) == str(before)
        assert task["metadata"]["bridge"]["sessionId"] == f"session-{before}"
        assert (workspace / "new").read_text() == f"session-{before}\n"


async def test_its_output_before_the_first_task_is_read_with_that_task(workspace: Path) -> None:
    """A flood fills the pipe, and waits in it."""
    flood = 'print(\'{"type":"status","text":"an update is there"}\\n\' * 5000, flush=True)'
    with_words = program(workspace, flood)
    async with serving(workspace, program=with_words, bridge_warm_sessions=1) as server:
        await kept(server, 1)
        await until(lambda: starts(workspace) == 1)
        before = clis(with_words)
        items = await server.client().collect("pid")
        assert json.dumps(items).count("an update is there") >= 5000
        assert str(before.pop()) in json.dumps(items)


# --- what is not kept ----------------------------------------------------------------------------


async def test_one_that_died_is_replaced(workspace: Path) -> None:
    async with serving(workspace, prewarm=prewarm.PrewarmPlan(1, longest_pause=0.05)) as server:
        await kept(server, 1)
        (first,) = clis()
        os.kill(first, signal.SIGKILL)
        await until(lambda: clis() not in ({first}, set()))
        await kept(server, 1)
        assert await pid(server.client()) != first


async def test_one_that_is_old_is_replaced(workspace: Path) -> None:
    async with serving(workspace, prewarm=prewarm.PrewarmPlan(1, max_age=0.5)) as server:
        await kept(server, 1)
        (first,) = clis()
        await until(lambda: clis() not in ({first}, set()))
        assert first not in clis()


class WithHooks(JsonLines):  # type: ignore[misc]
    """The program reads its hooks in the workspace."""

    project_files = (".tool/*.json",)


def make_other(workspace: Path, change: str) -> None:
    match change:
        case "instructions":
            (workspace / "AGENTS.md").write_text("Be short.")
        case "hooks":
            (workspace / ".tool").mkdir()
            (workspace / ".tool/hooks.json").write_text("{}")
        case "directory":
            workspace.rename(workspace.parent / "old")
            workspace.mkdir()


@pytest.mark.parametrize("change", ["instructions", "hooks", "directory"])
async def test_one_that_knows_another_workspace_is_not_handed_over(
    workspace: Path, change: str
) -> None:
    adapter = f"{__name__}:WithHooks"
    async with serving(workspace, agent_adapter=adapter, bridge_warm_sessions=1) as server:
        await kept(server, 1)
        (first,) = clis()
        make_other(workspace, change)
        assert await pid(server.client()) != first
        await until(lambda: first not in clis())
        await kept(server, 1)


async def test_one_that_does_not_stay_is_tried_again_less_and_less(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = prewarm.PrewarmPlan(1, longest_pause=1.0)
    hasty = program(workspace, "if os.path.exists('hasty'):\n    sys.exit(3)")
    (workspace / "hasty").touch()
    async with serving(workspace, program=hasty, prewarm=plan) as server:
        await until(lambda: starts(workspace) == 3 and not clis(hasty))
        await kept(server, 0)
        (workspace / "hasty").unlink()
        assert starts(workspace) == 3
        assert state(await server.client().send("text fine")) == "completed"
        await kept(server, 1)
    assert caplog.text.count("no session can be kept warm") == 1


def test_the_pauses_grow() -> None:
    plan = prewarm.PrewarmPlan(1)
    pauses = [plan.pause(failures) for failures in range(1, 13)]
    assert pauses[:4] == [2, 4, 8, 16]
    assert pauses[-1] == plan.longest_pause == 600


@pytest.mark.parametrize("policy", ["ask", "deny"])
async def test_a_repository_with_doubts_is_not_warmed(
    workspace: Path, caplog: pytest.LogCaptureFixture, policy: Any
) -> None:
    trust = project_config.ProjectConfigPolicy(policy, ("hooks.json",), ("hooks.json",))
    (workspace / "hooks.json").touch()
    started: list[Any] = []
    make: Any = started.append
    ahead = prewarm.Prewarm(make, SessionPool(1), str(workspace), prewarm.PrewarmPlan(1), trust)
    ahead.begin()
    await until(lambda: "hooks.json" in reasons(caplog))
    assert not started
    await ahead.close()


# --- places --------------------------------------------------------------------------------------


async def test_the_waiting_task_gets_the_slot(workspace: Path) -> None:
    settings: Json = {
        "bridge_warm_sessions": 3,
        "bridge_max_sessions": 2,
        "agent_models": ("other",),
    }
    async with serving(workspace, **settings) as server, listening() as live:
        await kept(server, 2)
        before = clis()
        other = {"metadata": {"bridge": {"model": "other"}}}
        await server.client().send_now(f"wait {live.path} one", **other)
        await server.client().send_now(f"wait {live.path} two", **other)
        pids = {await live.pid("one"), await live.pid("two")}
        assert clis() == pids
        assert not pids & before
        await live.release("one")
        await live.release("two")


async def test_where_it_fits_the_place_is_that_of_the_session(workspace: Path) -> None:
    async with serving(workspace, bridge_warm_sessions=1, bridge_max_sessions=1) as server:
        await kept(server, 1)
        before = clis()
        assert {await pid(server.client())} == before
        assert clis() == before  # it keeps its place, and nobody else has one
        assert {await pid(server.client())} == clis()  # the next context has that place


async def test_none_is_begun_while_a_task_waits_for_a_slot(workspace: Path) -> None:
    begins = program(workspace, "")
    settings: Json = {
        "bridge_warm_sessions": 1,
        "bridge_max_sessions": 1,
        "agent_models": ("other",),
    }
    async with serving(workspace, program=begins, **settings) as server, listening() as live:
        await kept(server, 1)
        await until(lambda: starts(workspace) == 1)  # or it could be ended before it had begun
        other = {"metadata": {"bridge": {"model": "other"}}}
        for name in "abc":
            await server.client().send_now(f"wait {live.path} {name}", **other)
        for name in "abc":
            await live.release(name)
        await until(lambda: server.managers[0].figures()["tasks"] == 0)
        assert starts(workspace) == 4


async def test_idle_contexts_leave_it_a_place_where_there_are_more_of_them(workspace: Path) -> None:
    async with serving(workspace, bridge_warm_sessions=3, bridge_max_sessions=3) as server:
        served = [await pid(server.client()) for _ in range(4)]
        await kept(server, 1)
        await until(lambda: len(clis()) == 3)
        assert set(served[-2:]) <= clis()  # those that were at work last


class Idle:
    """A context with a slot and without work."""

    owner = ""
    idle = True

    def __init__(self, pool: SessionPool) -> None:
        self.pool = pool

    async def close(self) -> None:
        self.pool.release(self)


async def test_half_of_the_places_without_work_are_left_to_contexts() -> None:
    pool = SessionPool(4)
    contexts = [Idle(pool) for _ in range(4)]
    for one in contexts:
        await pool.acquire(one, lambda: True)
        pool.idle(one)
    for _ in range(2):
        assert await pool.vacate()
        pool.lend(Idle(pool))
    assert not await pool.vacate()
    assert list(pool.holders) == contexts[2:]


async def test_another_directory_than_the_default_one_has_none(workspace: Path) -> None:
    (workspace / "below").mkdir()
    async with serving(workspace, bridge_warm_sessions=1, bridge_max_sessions=20) as server:
        await kept(server, 1)
        before = clis()
        choice = {"metadata": {"bridge": {"cwd": "below"}}}
        served = [await pid(server.client(), **choice) for _ in range(2)]
        assert clis() == before | set(served)
        assert not before & set(served)


# --- the end -------------------------------------------------------------------------------------


async def test_a_stopped_server_leaves_no_prewarmed_session(place: Place) -> None:
    async with place.server(BRIDGE_WARM_SESSIONS="2", BRIDGE_ON_STOP="keep") as (server, client):
        await warm_in(client, 2)
        assert len(place.sessions) == 2
        assert await server.stop() == 0
    assert place.processes() == []
    assert place.sessions == []


async def test_the_next_server_ends_prewarmed_sessions_of_a_killed_server(place: Place) -> None:
    async with place.server(BRIDGE_WARM_SESSIONS="2") as (server, client):
        await warm_in(client, 2)
        left = {one.pid for one in place.processes()}
        await kill(server)
    async with place.server() as (server, _):
        assert not left & {one.pid for one in place.processes()}
        assert place.sessions == []


async def test_the_streams_of_an_evicted_session_are_removed(place: Place) -> None:
    env: Json = {"BRIDGE_MAX_SESSIONS": "1", "AGENT_MODELS": "other"}
    async with place.server(BRIDGE_WARM_SESSIONS="1", **env) as (_, client):
        await warm_in(client, 1)
        (before,) = place.sessions
        await client.send("text", metadata={"bridge": {"model": "other"}})
        assert len(place.sessions) == 1
        assert before not in place.sessions


@pytest.mark.parametrize("adapter", ["jsonl", "opencode"])
async def test_one_that_was_handed_over_outlives_the_server(place: Place, adapter: str) -> None:
    """Like any other session: the next server continues the turn and the conversation."""
    env: Json = {"BRIDGE_WARM_SESSIONS": "1", "AGENT_ADAPTER": adapter}
    if adapter == "opencode":
        env["AGENT_ARGS"] = f"-I -S {ACP_PROGRAM} {{}}"
    async with listening() as live:
        async with place.server(**env) as (server, client):
            await warm_in(client, 1)
            script = f"text one\nwait {live.path} here\ntext two\npid"
            task = await client.send_now(script, messageId="m" * 20)
            await heard(client, task_id(task), "one")
            agent = await live.pid("here")
            await kill(server)
        async with place.server(**env) as (_, client):
            await live.release("here")
            await until_ended(client, task_id(task))
            ended = await client.get(task_id(task))
            assert (state(ended), artifact_text(ended)) == ("completed", f"onetwo{agent}")
            again = await client.send("turn", contextId=context_id(task))
            assert artifact_text(again) == "2", said(again)


async def until_ended(client: Client, task: str) -> None:
    async with asyncio.timeout(WITHIN):
        while state(await client.get(task)) not in ("completed", "failed"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


# --- what operators see --------------------------------------------------------------------------


async def test_the_operator_gets_a_warning_if_prewarming_has_no_effect(workspace: Path) -> None:
    settings: Json = {"AGENT_ADAPTER": "generic", "AGENT_BINARY": "/bin/cat"}
    async with bridge(workspace, **settings, BRIDGE_WARM_SESSIONS="1") as server:
        (note,) = [line for line in server.log.splitlines() if "BRIDGE_WARM_SESSIONS" in line]
        assert "starts a new process for each turn" in note


async def test_health_and_monitor_count_them(workspace: Path, http: aiohttp.ClientSession) -> None:
    env = {**scripted(workspace), "BRIDGE_WARM_SESSIONS": "1"}
    async with bridge(workspace, **env) as server:
        await warm_in(Client(http, server.url), 1)
        async with http.get(f"{server.url}/monitor/agents") as response:
            (agent,) = (await response.json())["agents"]
        assert agent["warm"] == 1
        assert sys.executable in arguments(psutil.Process(server.process.pid))
