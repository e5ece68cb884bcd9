"""Slots of sessions: a question holds no slot; the limits; and the updates of waiting tasks. The
pool itself: test_pool.py."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from bridge.session.slot_queue import Waiter
from bridge.task.events import Queued
from bridge.task.state import StatusUpdate
from bridge.task.transitions import TaskState
from tests.support.client import Client, Json, RpcError, artifact_text, facts, said, state, task_id
from tests.support.liveness import Liveness
from tests.support.monitored import changes
from tests.support.monitored import serving as serving_process
from tests.support.restart import Place, kill
from tests.support.served import Server, serving
from tests.support.task_manager import Bridge, Make, in_state, making

WITHIN = 60.0


@pytest.fixture
async def make(workspace: Path) -> AsyncIterator[Make]:
    async with making(workspace) as make:
        yield make


async def sessions(server: Server) -> Json:
    async with server.http.get(f"{server.url}/health") as response:
        health: Json = await response.json()
    assert health["status"] == "ok"
    figures: Json = health["sessions"]
    return figures


async def asked(client: Client, number: int, script: str = "permit q May I?") -> list[Json]:
    """So many tasks that wait for an answer, each in a context of its own."""
    tasks = []
    for _ in range(number):
        async with asyncio.timeout(WITHIN):
            tasks.append(await client.send(script))  # a blocking send returns when its task asks
        assert state(tasks[-1]) == "input-required"
    return tasks


async def settled(client: Client, one: Json) -> Json:
    """The task, once it has ended."""
    async with asyncio.timeout(WITHIN):
        with contextlib.suppress(RpcError):  # it has ended already
            async with client.subscribe(task_id(one)) as items:
                async for _ in items:
                    pass
    return await client.get(task_id(one))


# --- questions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_task_runs_beside_eight_times_as_many_questions_as_slots(
    workspace: Path, version: str
) -> None:
    """17 programs are started: 2 s."""
    async with serving(workspace, bridge_max_sessions=2) as server:
        client = server.client(version)
        tasks = await asked(client, 8 * 2)
        async with asyncio.timeout(WITHIN):
            last = await client.send("text a")
        assert state(last) == "completed" and artifact_text(last) == "a"
        after = [await settled(client, one) for one in tasks[:8]]
        after += [await client.get(task_id(one)) for one in tasks[8:]]
        assert [state(one) for one in after] == ["completed"] * 8 + ["input-required"] * 8
        assert artifact_text(after[0]) == 'answered ["q", "Do not", "no"]'
        told = [one.get("metadata", {}).get("bridge", {}) for one in after[0]["history"]]
        question = f"{task_id(after[0])[:8]}-1"
        decisions = [one for one in told if one.get("type") == "decision"]
        assert decisions == [
            {"type": "decision", "questionId": question, "decision": "deny", "by": "limit"}
        ]
        figures = await sessions(server)
        assert figures["waiting"] == figures["waitingLimit"] == 8


async def test_a_turn_that_needs_another_answer_ends_beyond_the_limit(workspace: Path) -> None:
    async with serving(workspace, bridge_max_sessions=1, bridge_max_waiting_sessions=1) as server:
        client = server.client()
        first, second = await asked(client, 2, "ask q What?")
        task = await settled(client, first)
        assert state(task) == "failed"
        assert task["metadata"]["bridge"]["reason"] == "limit"
        assert "BRIDGE_MAX_WAITING_SESSIONS" in task["status"]["message"]["parts"][0]["text"]
        assert state(await client.send("red", taskId=task_id(second))) == "completed"


async def test_an_answered_question_continues_at_once_above_the_limit(
    workspace: Path, live: Liveness
) -> None:
    async with serving(workspace, bridge_max_sessions=1) as server:
        client = server.client()
        (question,) = await asked(client, 1, f"permit q May I?\nwait {live.path} answered")
        await client.send_now(f"wait {live.path} other")
        await live.pid("other")
        await client.send_now("yes", taskId=task_id(question))
        await live.pid("answered")  # both work
        figures = await sessions(server)
        assert (figures["working"], figures["limit"], figures["saturated"]) == (2, 1, True)
        waiting = await client.send_now(f"wait {live.path} third")
        await live.release("other")
        async with asyncio.timeout(WITHIN):
            while server.managers[0].contexts.pool.figures()["working"] != 1:
                await server.managers[0].contexts.pool.changed()
        assert not live.has("third")  # there is still no room
        await live.release("answered")
        await live.pid("third")
        await live.release("third")
        assert state(await settled(client, waiting)) == "completed"


async def test_a_waiting_session_counts_against_no_quota_of_its_principal(make: Make) -> None:
    bridge: Bridge = make(sessions=2, running=1)
    asking = await bridge.send("permit q May I?")
    await in_state(asking, TaskState.INPUT_REQUIRED)
    assert (await bridge.run("text a")).task.state is TaskState.COMPLETED


async def test_questions_are_restored_as_waiting(place: Place) -> None:
    """Two servers are started: 3 s."""
    async with place.server(BRIDGE_MAX_SESSIONS="1") as (server, client):
        tasks = await asked(client, 3)
        await kill(server)
    async with place.server(BRIDGE_MAX_SESSIONS="1") as (_, client):
        async with asyncio.timeout(WITHIN):
            assert state(await client.send("text a")) == "completed"
        figures = (await (await client.session.get(f"{client.url}/health")).json())["sessions"]
        assert (figures["working"], figures["waiting"]) == (0, 3)
        for one in tasks:
            assert state(await client.send("yes", taskId=one["id"])) == "completed"


async def test_a_lower_limit_after_a_restart_ends_the_oldest_questions(
    place: Place,
) -> None:
    """Two servers are started: 3 s."""
    async with place.server() as (server, client):
        tasks = await asked(client, 3)
        await kill(server)
    async with place.server(BRIDGE_MAX_WAITING_SESSIONS="1") as (_, client):
        after = [await settled(client, one) for one in tasks[:2]]
        assert [state(one) for one in after] == ["completed"] * 2
        assert state(await client.get(tasks[2]["id"])) == "input-required"


# --- what a waiting task says ---------------------------------------------------------------------


async def test_a_task_that_waits_for_a_slot_says_so(
    workspace: Path,
    live: Liveness,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(workspace, bridge_max_sessions=1) as server:
        client = server.client()
        await asked(client, 2)
        await client.send_now(f"wait {live.path} slow")
        await live.pid("slow")
        first = await client.send_now("text a")
        second = await client.send_now("text b")
        for task, ahead in ((first, 0), (second, 1)):
            shown = await told(client, task)
            assert state(shown) == "submitted"
            assert said(shown) == f"queued: {ahead} ahead, 2 waiting for answers"
            assert facts(shown) == {"type": "queued", "ahead": ahead, "answers": 2}
        assert await sessions(server) == {
            "working": 1,
            "limit": 1,
            "waiting": 2,
            "waitingLimit": 4,
            "queued": 2,
            "saturated": True,
        }
        logged = [one for one in caplog.records if one.getMessage() == "task waits for a slot"]
        assert [vars(one)["task"] for one in logged] == [first["id"], second["id"]]
        await live.release("slow")
        assert artifact_text(await settled(client, first)) == "a"
        assert artifact_text(await settled(client, second)) == "b"
        figures = await sessions(server)
        assert (figures["queued"], figures["saturated"]) == (0, False)


async def told(client: Client, task: Json) -> Json:
    """The task, once its status has a message."""
    async with asyncio.timeout(WITHIN), client.subscribe(task["id"]) as items:
        async for item in items:
            if (item.get("task") or item["statusUpdate"])["status"].get("message"):
                break
    return await client.get(task["id"])


async def test_the_monitor_shows_why_a_task_waits(
    workspace: Path, http: aiohttp.ClientSession, live: Liveness
) -> None:
    async with serving_process(workspace, BRIDGE_MAX_SESSIONS="1") as server:
        client = Client(http, server.url)
        await client.send_now(f"wait {live.path} slow")
        await live.pid("slow")
        async with http.get(f"{server.url}/monitor/events") as feed:
            waiting = await client.send_now("text a")
            (change,) = await changes(feed, 1)
        assert (change["id"], change["state"], change["waitsFor"]) == (
            waiting["id"],
            "submitted",
            "slot",
        )
        assert change["queued"] == {"ahead": 0, "answers": 0}
        async with http.get(f"{server.url}/monitor/agents") as response:
            figures = (await response.json())["sessions"]
        assert (figures["working"], figures["queued"], figures["saturated"]) == (1, 1, True)
        await live.release("slow")


async def test_a_queue_position_is_reported_only_when_it_changes(
    make: Make, live: Liveness
) -> None:
    """For any number of events, a task has one update at once and the next one after a pause."""
    bridge = make(sessions=1, announce_every=0.0, first_pause=3600.0)
    slow = await bridge.send(f"wait {live.path} slow")
    await live.pid("slow")
    tasks = [await bridge.send(f"text {number}", f"c{number}") for number in range(10)]
    async with asyncio.timeout(WITHIN):
        for number, one in enumerate(tasks):
            while one.task.queued is None:
                await one.log.changed()
            assert one.task.queued == Queued(number, 0)
    for one in tasks[:5]:  # each cancel moves those that come after
        await bridge.manager.cancel(one.task.id)
    await live.release("slow")
    for one in (slow, *tasks):
        async with asyncio.timeout(WITHIN):
            while not one.log.closed:
                await one.log.changed()
    for one in tasks:
        updates = [entry.update for entry in one.log.kept(0) or ()]
        causes = [update.event for update in updates if isinstance(update, StatusUpdate)]
        assert sum(isinstance(event, Queued) for event in causes) == 1


async def test_the_pauses_between_updates_grow() -> None:
    """An hour with a change in each second, on a simulated clock."""
    heard: list[tuple[int, int]] = []
    waiter = Waiter(0, lambda ahead, answers: heard.append((ahead, answers)), 1.0)
    waiter.parked = True
    for second in range(3600):
        waiter.tell(second, 0, float(second))
    assert heard[0] == (0, 0) and 60 <= len(heard) <= 70
    assert waiter.tell(heard[-1][0], 0, 3600.0) == float("inf")  # nothing has changed
