"""Contexts and the places for their sessions: order, reuse, eviction, cancel. The manager is
driven directly; the CLI is the real child tests/support/agent.py behind the `jsonl` adapter."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bridge.auth.principal import OPERATOR
from bridge.errors import (
    InvalidParams,
    TaskNotCancelable,
    TaskNotFound,
    Unavailable,
    UnsupportedOperation,
)
from bridge.server import registry
from bridge.store.changes import ContextKey, Fence
from bridge.store.handle import TaskHandle
from bridge.store.memory import MemoryStore
from bridge.task.events import AgentEvent, Status, Text
from bridge.task.message import TextPart
from bridge.task.render import task_metadata
from bridge.task.silence import is_silence, silent_since
from bridge.task.state import StatusUpdate
from bridge.task.transitions import TaskState
from tests.support.children import children
from tests.support.liveness import Liveness, listening
from tests.support.task_manager import WITHIN, Bridge, Make, ended, in_state, making, message

TOOL = '{"type": "tool_call", "id": "1", "name": "Read", "input": {}}'


def answer(handle: TaskHandle) -> str:
    artifact = handle.task.artifacts.get("assistant-response")
    parts = artifact.parts if artifact else ()
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def statuses(handle: TaskHandle) -> list[TaskState]:
    entries = handle.log.kept(0) or ()
    return [e.update.state for e in entries if isinstance(e.update, StatusUpdate)]


def endings(handle: TaskHandle) -> list[TaskState]:
    return [state for state in statuses(handle) if state.terminal]


def processes() -> list[psutil.Process]:
    return children()


@pytest.fixture
async def make(workspace: Path) -> AsyncIterator[Make]:
    async with making(workspace) as make:
        yield make


@pytest.fixture
async def live() -> AsyncIterator[Liveness]:
    async with listening() as live:
        yield live


# --- order -------------------------------------------------------------------------------------


async def test_tasks_of_a_context_run_one_after_the_other_in_order(
    make: Make, live: Liveness
) -> None:
    bridge = make()
    first = await bridge.send(f"wait {live.path} first\ntext 1", "c")
    second = await bridge.send(f"wait {live.path} second\nturn", "c")
    third = await bridge.send("turn", "c")
    await live.pid("first")
    assert second.task.state is third.task.state is TaskState.SUBMITTED
    assert not live.has("second")
    await live.release("first")
    await live.pid("second")
    assert first.task.state is TaskState.COMPLETED
    assert third.task.state is TaskState.SUBMITTED
    await live.release("second")
    await ended(third)
    assert [answer(handle) for handle in (first, second, third)] == ["1", "2", "3"]


async def test_contexts_run_side_by_side_up_to_the_limit(make: Make, live: Liveness) -> None:
    bridge = make(sessions=2)
    tasks = [await bridge.send(f"wait {live.path} {name}", name) for name in "abcd"]
    await live.pid("a")
    await live.pid("b")
    assert len(processes()) == 2
    assert not live.has("c") and tasks[2].task.state is TaskState.SUBMITTED
    await live.release("b")
    await live.pid("c")
    assert len(processes()) == 2
    assert not live.has("d") and tasks[3].task.state is TaskState.SUBMITTED
    await live.release("a")
    await live.pid("d")
    for name in "cd":
        await live.release(name)
    assert [(await ended(task)).task.state for task in tasks] == [TaskState.COMPLETED] * 4


async def test_one_process_serves_all_turns_of_a_context(make: Make) -> None:
    bridge = make()
    said = [answer(await bridge.run("pid\ntext /\nturn", "c")) for _ in range(3)]
    pid = said[0].partition("/")[0]
    assert said == [f"{pid}/{n}" for n in (1, 2, 3)]
    assert [str(process.pid) for process in processes()] == [pid]


async def test_a_session_that_ended_between_turns_is_replaced(make: Make) -> None:
    bridge = make()
    first = answer(await bridge.run("pid", "c"))
    process = psutil.Process(int(first))
    pidfd = os.pidfd_open(process.pid)
    died = asyncio.Event()
    asyncio.get_running_loop().add_reader(pidfd, died.set)
    process.kill()
    async with asyncio.timeout(WITHIN):
        await died.wait()
    asyncio.get_running_loop().remove_reader(pidfd)
    os.close(pidfd)
    await asyncio.sleep(0)  # the session hears of it in the same round
    second = await bridge.run("pid", "c")
    assert second.task.state is TaskState.COMPLETED
    assert answer(second) != first


async def test_a_task_that_fails_leaves_the_context_usable(make: Make) -> None:
    bridge = make()
    first = await bridge.run("pid\nexit 4", "c")
    assert (first.task.state, "exit status 4" in message(first)) == (TaskState.FAILED, True)
    second = await bridge.run("pid", "c")
    assert second.task.state is TaskState.COMPLETED and answer(second) != answer(first)


async def test_a_task_that_fails_leaves_no_process(make: Make, live: Liveness) -> None:
    bridge = make()
    handle = await bridge.send(f"spawn {live.path} helper\nwait {live.path} agent\nexit 4")
    await live.pid("helper")
    await live.release("agent")
    assert (await ended(handle)).task.state is TaskState.FAILED
    await live.gone("helper")


async def test_an_agent_that_cannot_be_started_fails_the_task_with_the_reason(make: Make) -> None:
    bridge = make(binary="/nowhere/agent", sessions=1)
    for _ in range(2):
        handle = await bridge.run("pid", "c")
        assert handle.task.state is TaskState.FAILED
        text = "The agent could not be started: "
        assert message(handle) == f"{text}No such file or directory. The server's log says more."
    assert (await bridge.run("pid", "d")).task.state is TaskState.FAILED


async def test_output_that_triggers_a_bug_fails_only_its_task(
    make: Make,
) -> None:
    """Here an adapter makes an event that the state machine cannot read."""
    jsonl: Any = registry.load("jsonl")

    class Broken(jsonl):  # type: ignore[misc]
        def receive_line(self, line: bytes) -> Iterator[AgentEvent]:
            for event in super().receive_line(line):
                wrong: Any = 5
                yield Status(wrong) if event == Text("b") else event

    bridge = make(adapter=Broken)
    handle = await bridge.run("text a\ntext b\ntext c", "c")
    assert handle.task.state is TaskState.FAILED
    assert "log" in message(handle) and endings(handle) == [TaskState.FAILED]
    assert (await bridge.run("text d", "c")).task.state is TaskState.COMPLETED


# --- places ------------------------------------------------------------------------------------


async def test_an_idle_session_is_given_up_after_its_time(make: Make, live: Liveness) -> None:
    bridge = make(idle=0.1)
    await bridge.run(f"here {live.path} agent\nspawn {live.path} helper", "c")
    await live.gone("agent", "helper")
    assert (await bridge.run("turn", "c")).task.state is TaskState.COMPLETED


async def test_a_session_is_not_given_up_while_it_works(make: Make, live: Liveness) -> None:
    bridge = make(idle=0.1)
    await bridge.run("text a", "c")
    handle = await bridge.send(f"wait {live.path} agent\nturn", "c")
    await live.pid("agent")
    await asyncio.wait([asyncio.create_task(live.gone("agent"))], timeout=0.4)
    assert live.alive("agent")
    await live.release("agent")
    assert answer(await ended(handle)) == "2"


async def test_a_context_with_a_session_does_not_wait_for_a_slot(make: Make) -> None:
    bridge = make(sessions=1)
    await bridge.run("turn", "a")
    await bridge.rested()
    other = await bridge.send(
        "turn", "b"
    )  # whose turn it is first, and which needs the place of "a"
    again = await bridge.send("turn", "a")  # which has something to do before it could be given up
    assert [answer(await ended(one)) for one in (other, again)] == ["1", "2"]


SCRIPTS = ("turn", "turn", "ask q Which?\nturn", "exit 3", "fail no")


async def ends(bridge: Bridge, context: str, handle: TaskHandle, chance: random.Random) -> None:
    """Answered, canceled or left alone."""
    if chance.random() < 0.2:
        for _ in range(chance.randrange(200)):
            await asyncio.sleep(0)
        if not handle.task.state.terminal:
            await cancel(bridge, handle)
    while not handle.log.closed:
        if handle.task.question:
            await bridge.send("yes", context, task=handle.task.id)
        await handle.log.changed()


@pytest.mark.parametrize("seed", range(4))
async def test_many_conversations_share_a_few_slots(make: Make, seed: int) -> None:
    chance = random.Random(seed)
    bridge = make(sessions=chance.randint(1, 3))
    async with asyncio.timeout(3 * WITHIN):
        for _ in range(10):
            some = chance.sample("abcde", chance.randint(1, 5))
            begun = [(one, await bridge.send(chance.choice(SCRIPTS), one)) for one in some]
            await asyncio.gather(*(ends(bridge, *pair, chance) for pair in begun))
            await bridge.rested()
    assert len(processes()) <= 3


async def test_a_warm_session_gives_up_its_place_the_longest_idle_one_first(
    make: Make, live: Liveness
) -> None:
    bridge = make(sessions=2)
    for name in "ab":
        await bridge.run(f"here {live.path} {name}", name)
    await bridge.run("turn", "a")  # now b is idle for longer
    await bridge.run(f"here {live.path} c", "c")
    await live.gone("b")
    assert live.alive("a") and len(processes()) == 2
    assert answer(await bridge.run("turn", "a")) == "3"


async def test_a_warm_session_gives_up_its_place_to_many(make: Make) -> None:
    bridge = make(sessions=1)
    handles = [await bridge.send("cwd", f"c-{n}") for n in range(10)]
    for handle in handles:
        assert (await ended(handle)).task.state is TaskState.COMPLETED
    assert len(processes()) <= 1


async def test_a_message_during_the_end_of_an_idle_session_is_served(
    make: Make, live: Liveness
) -> None:
    bridge = make(sessions=1, grace=0.3)
    await bridge.run(f"deaf\nhere {live.path} a", "a")
    other = await bridge.send("turn", "b")
    for _ in range(5):  # until the session of `a` is being stopped, which takes its time
        await asyncio.sleep(0)
    assert live.alive("a")
    again = await bridge.send("turn", "a")
    assert answer(await ended(other)) == "1"
    assert answer(await ended(again)) == "1"


# --- cancel ------------------------------------------------------------------------------------


async def cancel(bridge: Bridge, handle: TaskHandle) -> None:
    assert await bridge.manager.cancel(handle.task.id) is handle
    assert handle.task.state is TaskState.CANCELED and handle.log.closed
    assert endings(handle) == [TaskState.CANCELED]
    with pytest.raises(TaskNotCancelable):
        await bridge.manager.cancel(handle.task.id)


async def test_a_working_task_is_canceled_with_all_its_processes(
    make: Make, live: Liveness
) -> None:
    bridge = make()
    script = f"text a\nspawn {live.path} helper\nwait {live.path} agent\ntext b"
    handle = await bridge.send(script, "c")
    after = await bridge.send("turn", "c")
    await live.pid("agent")
    await live.pid("helper")
    await cancel(bridge, handle)
    await live.gone("agent", "helper")
    assert answer(handle) == "a"
    assert answer(await ended(after)) == "1"


@pytest.mark.parametrize("turns", range(10))
async def test_a_task_that_is_being_started_is_canceled_and_its_process_with_it(
    make: Make, turns: int
) -> None:
    """Canceled a turn of the loop later each time: before, while and after it is spawned."""
    bridge = make()
    handle = await bridge.send("ask q-1 Which?", "c")
    for _ in range(turns):
        await asyncio.sleep(0)
    await cancel(bridge, handle)
    async with asyncio.timeout(WITHIN):
        while processes():  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.001)
    assert answer(await bridge.run("turn", "c")) == "1"


async def test_a_task_in_the_queue_of_its_context_is_canceled_alone(
    make: Make, live: Liveness
) -> None:
    bridge = make()
    first = await bridge.send(f"wait {live.path} agent\nturn", "c")
    second = await bridge.send("turn", "c")
    third = await bridge.send("turn", "c")
    await live.pid("agent")
    await cancel(bridge, second)
    assert live.alive("agent")
    await live.release("agent")
    assert [answer(await ended(handle)) for handle in (first, third)] == ["1", "2"]
    assert answer(second) == ""


async def test_a_task_that_waits_for_a_place_is_canceled_and_takes_none(
    make: Make, live: Liveness
) -> None:
    bridge = make(sessions=1)
    first = await bridge.send(f"here {live.path} warm\nwait {live.path} agent\nturn", "a")
    await live.pid("agent")
    waiting = await bridge.send("turn", "b")
    await asyncio.sleep(0)
    await cancel(bridge, waiting)
    async with asyncio.timeout(WITHIN):
        while bridge.pool.figures()["queued"]:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0)
    next_of_a = await bridge.send("turn", "a")
    await live.release("agent")
    assert [answer(await ended(handle)) for handle in (first, next_of_a)] == ["1", "2"]
    assert live.alive("warm")
    assert answer(await bridge.run("turn", "a")) == "3"


async def test_after_a_cancel_in_the_queue_for_a_place_the_next_task_of_it_runs(
    make: Make, live: Liveness
) -> None:
    bridge = make(sessions=1)
    first = await bridge.send(f"wait {live.path} agent", "a")
    await live.pid("agent")
    waiting = await bridge.send("text x", "b")
    after = await bridge.send("turn", "b")
    await asyncio.sleep(0)
    await cancel(bridge, waiting)
    await live.release("agent")
    await ended(first)
    assert answer(await ended(after)) == "1"


async def test_a_task_that_asks_is_canceled(make: Make, live: Liveness) -> None:
    bridge = make()
    handle = await bridge.send(f"here {live.path} agent\nask q-1 Which?", "c")
    after = await bridge.send("turn", "c")
    await in_state(handle, TaskState.INPUT_REQUIRED)
    await cancel(bridge, handle)
    await live.gone("agent")
    assert answer(await ended(after)) == "1"
    with pytest.raises(UnsupportedOperation):
        await bridge.send("late", "c", handle.task.id)


@pytest.mark.parametrize("turns", range(12))
async def test_cancel_at_the_moment_of_completion_has_one_winner(make: Make, turns: int) -> None:
    """From the submission on, cancel one turn of the loop later each time, and then as soon as
    the log has each of its entries."""
    bridge = make()
    await bridge.run("turn", "c")
    handle = await bridge.send("text a\ntext b", "c")
    for _ in range(turns):
        async with asyncio.timeout(WITHIN):
            if not handle.log.closed and turns > 5:
                await handle.log.changed()
            else:
                await asyncio.sleep(0)
    if handle.task.state.terminal:
        with pytest.raises(TaskNotCancelable):
            await bridge.manager.cancel(handle.task.id)
    else:
        await cancel(bridge, handle)
    last = statuses(handle)[-1]
    after = await bridge.run("turn", "c")
    assert after.task.state is TaskState.COMPLETED
    assert endings(handle) == [last] and statuses(handle)[-1] is last


# --- questions ---------------------------------------------------------------------------------


async def test_an_answer_goes_to_its_question_and_the_turn_continues(make: Make) -> None:
    bridge = make()
    handle = await bridge.send("permit q-1 May I?\nask q-2 How?", "c")
    await in_state(handle, TaskState.INPUT_REQUIRED)
    await bridge.send("Go on", task=handle.task.id)
    assert handle.task.state is TaskState.WORKING
    await in_state(handle, TaskState.INPUT_REQUIRED)
    await bridge.send("like this", task=handle.task.id)
    await ended(handle)
    assert (
        answer(handle) == 'answered ["q-1", "Go on", "yes"]\n\nanswered ["q-2", "like this", null]'
    )


async def test_a_client_may_take_longer_to_answer_than_a_turn_may_last(make: Make) -> None:
    bridge = make(turn=0.3)
    handle = await bridge.send("ask q-1 How?\nask q-2 How?", "c")
    for _ in range(2):
        await in_state(handle, TaskState.INPUT_REQUIRED)
        closed = asyncio.create_task(ended(handle))
        assert await asyncio.wait([closed], timeout=0.4) == (set(), {closed})
        closed.cancel()
        await bridge.send("so", task=handle.task.id)
    assert (await ended(handle)).task.state is TaskState.COMPLETED


async def test_an_answer_that_is_not_understood_is_asked_for_again(make: Make) -> None:
    bridge = make()
    handle = await bridge.send("ask q-1 How?", "c")
    await in_state(handle, TaskState.INPUT_REQUIRED)
    before = handle.log.last
    await bridge.send("   ", task=handle.task.id)
    assert handle.task.state is TaskState.INPUT_REQUIRED and handle.log.last > before
    await bridge.send("so", task=handle.task.id)
    await ended(handle)
    assert answer(handle) == 'answered ["q-1", "so", null]'


async def test_a_message_to_a_task_of_another_context_is_refused(
    make: Make, live: Liveness
) -> None:
    bridge = make()
    handle = await bridge.send(f"wait {live.path} agent", "c")
    await live.pid("agent")
    with pytest.raises(InvalidParams, match="contextId"):
        await bridge.send("hello", "another", handle.task.id)
    with pytest.raises(TaskNotFound):
        await bridge.send("hello", task="unknown")
    await live.release("agent")
    await ended(handle)
    with pytest.raises(UnsupportedOperation, match="completed"):
        await bridge.send("hello", task=handle.task.id)


# --- directories and ids -----------------------------------------------------------------------


def folders(workspace: Path) -> Path:
    """Beside and inside the workspace."""
    (workspace / "inner" / "deep").mkdir(parents=True)
    outside = workspace.parent / "outside"
    outside.mkdir()
    (workspace / "escape").symlink_to(outside)
    (workspace / "inside").symlink_to(workspace / "inner")
    (workspace / "file").write_text("")
    (workspace.parent / "workspace-evil").mkdir()
    return outside


async def test_an_agent_works_where_the_client_says_inside_the_roots(
    make: Make, workspace: Path
) -> None:
    outside = folders(workspace)
    bridge = make()
    assert answer(await bridge.run("cwd")) == str(workspace)
    inner = str(workspace / "inner")
    for cwd in ("inner", inner, "inside", "./inner/../inner", f"{inner}/deep/.."):
        assert answer(await bridge.run("cwd", metadata={"cwd": cwd})) == inner
        assert answer(await bridge.run("cwd", metadata={"bridge": {"cwd": cwd}})) == inner
        assert answer(await bridge.run("cwd", request_metadata={"bridge": {"cwd": cwd}})) == inner
    rooted = make(roots=(str(outside),))
    assert answer(await rooted.run("cwd", metadata={"cwd": str(outside)})) == str(outside)
    assert answer(await rooted.run("cwd")) == str(workspace)


@pytest.mark.parametrize(
    "cwd",
    [
        *("/", "..", "../outside", "escape", "escape/..", "/etc", "{parent}/workspace-evil"),
        *("file", "nowhere", "inner/nowhere", "a\0b", "x" * 5000, "~", 5, ["inner"], {"a": 1}),
    ],
)
async def test_no_other_directory_is_accepted(make: Make, workspace: Path, cwd: Any) -> None:
    folders(workspace)
    bridge = make()
    if isinstance(cwd, str):
        cwd = cwd.replace("{parent}", str(workspace.parent))
    for metadata in ({"cwd": cwd}, {"bridge": {"cwd": cwd}}):
        with pytest.raises(InvalidParams):
            await bridge.send("cwd", metadata=metadata)
    assert bridge.manager.figures() == {"tasks": 0, "contexts": 0}


async def test_a_context_stays_in_its_directory(make: Make, workspace: Path) -> None:
    folders(workspace)
    bridge = make()
    inner = str(workspace / "inner")
    assert answer(await bridge.run("cwd", "c", metadata={"cwd": "inner"})) == inner
    assert answer(await bridge.run("cwd", "c")) == inner
    assert answer(await bridge.run("cwd", "c", metadata={"cwd": "inside"})) == inner
    with pytest.raises(InvalidParams, match="another directory"):
        await bridge.send("cwd", "c", metadata={"cwd": "."})


async def test_a_directory_that_was_swapped_for_a_link_is_not_gone_to(
    make: Make, workspace: Path
) -> None:
    """An agent that works above it can do that while the conversation rests, or waits."""
    (workspace / "inner").mkdir()
    outside = workspace.parent / "outside"
    outside.mkdir()
    bridge = make(idle=0.0)
    assert answer(await bridge.run("cwd", "c", metadata={"cwd": "inner"}))
    (workspace / "inner").rmdir()
    (workspace / "inner").symlink_to(outside)
    handle = await bridge.run("exit 3", "c")  # a session that is still warm is where it was
    handle = await bridge.run("cwd", "c")
    assert handle.task.state is TaskState.FAILED
    assert task_metadata(handle.task) == {"bridge": {"reason": "launch"}}
    assert "the directory was replaced" in message(handle)
    assert str(outside) not in message(handle)


@pytest.mark.parametrize("context", ["a", "A-z_0.9:x", "x" * 128])
async def test_a_context_id_of_the_client_is_kept(make: Make, context: str) -> None:
    handle = await make().run("prompt", context)
    assert handle.task.context_id == context
    assert f'"contextId": "{context}"' in answer(handle)


@pytest.mark.parametrize("context", ["x" * 129, "a b", "a/b", "../a", "a\n", "é", "a\0", "٣"])
async def test_other_context_ids_are_refused(make: Make, context: str) -> None:
    with pytest.raises(InvalidParams, match="contextId"):
        await make().send("text a", context)


class Remote(MemoryStore):
    """Claims take time, as in a database."""

    async def claim(self, key: ContextKey, node: str, ttl: float) -> Fence | None:
        for _ in range(3):
            await asyncio.sleep(0)
        return await super().claim(key, node, ttl)

    async def release(self, fence: Fence) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        await super().release(fence)


@pytest.mark.parametrize("later", [False, True])
async def test_a_refused_message_does_not_release_the_context_of_another_one(
    make: Make, later: bool
) -> None:
    bridge = make(store=Remote())
    refused = {"bridge": {"cwd": "/missing"}}
    sends = [bridge.send("turn", "c", metadata=refused), bridge.send("turn", "c")]
    if later:
        sends.reverse()
    handles = await asyncio.gather(*sends, return_exceptions=True)
    (handle,) = [one for one in handles if isinstance(one, TaskHandle)]
    assert answer(await ended(handle)) == "1"
    assert answer(await bridge.run("turn", "c")) == "2"


async def test_without_a_context_id_each_task_has_its_own(make: Make) -> None:
    bridge = make()
    handles = [await bridge.run("turn") for _ in range(2)]
    assert handles[0].task.context_id != handles[1].task.context_id
    assert [answer(handle) for handle in handles] == ["1", "1"]


# --- what is remembered ------------------------------------------------------------------------


async def test_the_newest_finished_tasks_are_remembered_and_no_others(
    make: Make, live: Liveness
) -> None:
    bridge = make(keep=2)
    working = await bridge.send(f"wait {live.path} agent", "w")
    await live.pid("agent")
    finished = [await bridge.run("turn", "c") for _ in range(4)]
    async with asyncio.timeout(WITHIN):
        while await bridge.manager.find(finished[1].task.id):  # noqa: ASYNC110
            await asyncio.sleep(0)
    for forgotten in finished[:2]:
        with pytest.raises(TaskNotFound):
            await bridge.manager.get(forgotten.task.id)
    for kept in (*finished[2:], working):
        assert await bridge.manager.get(kept.task.id) is kept
    await live.release("agent")
    await ended(working)


@pytest.mark.parametrize("script", ["turn", "reply hello"])
async def test_cold_contexts_are_forgotten_when_there_are_too_many(make: Make, script: str) -> None:
    bridge = make(keep=3, sessions=1)
    for number in range(10):
        handle = await bridge.send(script, f"c-{number}")
        handle.shown = False
        await ended(handle)
    assert bridge.manager.figures()["contexts"] <= 5
    assert (await bridge.run("turn", "c-0")).task.state is TaskState.COMPLETED


# --- the end -----------------------------------------------------------------------------------


async def test_a_shut_down_lets_working_tasks_end_within_the_drain(
    make: Make, live: Liveness
) -> None:
    bridge = make()
    handle = await bridge.send(f"wait {live.path} agent\ntext a", "c")
    await live.pid("agent")
    closing = asyncio.create_task(bridge.manager.close(drain=WITHIN))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await bridge.send("text b")
    await live.release("agent")
    await ended(handle)
    await closing
    assert handle.task.state is TaskState.COMPLETED
    assert processes() == []


async def test_a_shut_down_ends_every_task_and_every_process(make: Make, live: Liveness) -> None:
    bridge = make(sessions=2, grace=0.2)
    script = f"deaf\nspawn {live.path} helper-%s\nwait {live.path} %s"
    working = [await bridge.send(script % (name, name), name) for name in "ab"]
    queued = [await bridge.send("turn", name) for name in "aabbcd"]
    asking = make(sessions=1)
    question = await asking.send("ask q-1 Which?")
    await in_state(question, TaskState.INPUT_REQUIRED)
    for name in ("a", "b", "helper-a", "helper-b"):
        await live.pid(name)
    async with asyncio.timeout(WITHIN):
        await asyncio.gather(bridge.manager.close(drain=0.1), asking.manager.close(drain=0.1))
    for handle in (*working, *queued, question):
        assert endings(handle) == [TaskState.FAILED]
        assert handle.task.state is TaskState.FAILED and "shut down" in message(handle)
    assert processes() == []
    await live.gone("a", "b", "helper-a", "helper-b")


async def test_kill_leaves_no_process(make: Make, live: Liveness) -> None:
    bridge = make()
    handle = await bridge.send(f"deaf\nspawn {live.path} helper\nwait {live.path} agent")
    await live.pid("agent")
    await live.pid("helper")
    bridge.manager.kill()
    await live.gone("agent", "helper")
    assert (await ended(handle)).task.state is TaskState.FAILED


# --- when another server takes the context -------------------------------------------------------


@pytest.mark.parametrize("rest", ["text c", "wait {} more", "exit 3"])
async def test_a_lost_context_stops_its_session_and_ends_the_logs(
    make: Make, live: Liveness, rest: str
) -> None:
    """In both cases: the turn has ended by then, or it continues."""
    bridge = make(sessions=1)
    script = f"text a\nwait {live.path} agent\ntext b\n{rest.format(live.path)}"
    handle = await bridge.send(script, "c")
    queued = await bridge.send("turn", "c")
    await live.pid("agent")
    assert handle.fence and handle.fence == queued.fence
    await bridge.tasks.store.release(handle.fence)  # as a claim of another server has it
    await live.release("agent")
    for one in (handle, queued):
        assert (await ended(one)).lost
    assert TaskState.COMPLETED not in statuses(handle)
    head = await bridge.tasks.store.head(handle.task.id)
    assert head and (head.state, head.last) == (TaskState.WORKING, handle.log.last)
    await bridge.rested()
    async with asyncio.timeout(WITHIN):
        while processes():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert bridge.manager.figures() == {"tasks": 0, "contexts": 0}
    assert answer(await bridge.run("turn", "c")) == "1"  # a claim of its own


async def test_a_context_of_another_server_takes_no_message(make: Make) -> None:
    bridge = make()
    fence = await bridge.tasks.store.claim(ContextKey("", OPERATOR.id, "c"), "other", WITHIN)
    assert fence
    with pytest.raises(Unavailable):
        await bridge.send("turn", "c")
    await bridge.tasks.store.release(fence)
    assert answer(await bridge.run("turn", "c")) == "1"


async def test_a_refused_message_keeps_no_claim(make: Make) -> None:
    bridge = make()
    with pytest.raises(InvalidParams):
        await bridge.send("turn", "c", metadata={"bridge": {"cwd": 5}})
    assert await bridge.tasks.store.claim(ContextKey("", OPERATOR.id, "c"), "other", WITHIN)


# --- silence -------------------------------------------------------------------------------------


async def silent(handle: TaskHandle) -> Status:
    """The first status about the silence of the agent."""
    async with asyncio.timeout(WITHIN):
        while True:
            event = handle.task.status.event if handle.task.status else None
            if event and is_silence(event):
                assert isinstance(event, Status)
                return event
            await handle.log.changed()


def silences(handle: TaskHandle) -> int:
    """The number of earlier statuses about the silence of the agent."""
    said = [one.event for one in handle.task.history if isinstance(one, StatusUpdate)]
    return sum(event is not None and is_silence(event) for event in said)


async def test_a_silent_task_says_so_with_its_tool(make: Make, live: Liveness) -> None:
    bridge = make(quiet=0.1)
    call = '{"type": "tool_call", "id": "1", "name": "Bash", "input": {}}'
    handle = await bridge.send(f"line {call}\nwait {live.path} a\ntext on\nwait {live.path} b")
    await live.pid("a")
    said = await silent(handle)
    assert said.data is not None
    assert said.data["tool"] == {"id": "1", "name": "Bash", "running": True}
    assert silent_since(handle.task)
    await live.release("a")
    await live.pid("b")
    async with asyncio.timeout(WITHIN):
        while silent_since(handle.task):
            await handle.log.changed()
    await live.release("b")
    assert (await ended(handle)).task.state is TaskState.COMPLETED


async def test_a_program_that_never_said_a_word_says_so(make: Make, live: Liveness) -> None:
    """Its task is still submitted, since the program may answer with a Message."""
    bridge = make(quiet=0.1, replies=True)
    handle = await bridge.send(f"wait {live.path} a\nreply late")
    handle.shown = False
    said = await silent(handle)
    assert handle.task.state is TaskState.WORKING
    assert "no tool has run" in said.text
    await live.release("a")
    assert (await ended(handle)).task.state is TaskState.COMPLETED


async def test_a_question_for_the_client_is_no_silence(make: Make) -> None:
    bridge = make(quiet=0.05)
    handle = await in_state(await bridge.send("ask q Who?\ntext x"), TaskState.INPUT_REQUIRED)
    before = silences(handle)  # its start may have been silent
    await asyncio.sleep(0.3)  # several times the silence
    assert handle.task.state is TaskState.INPUT_REQUIRED
    assert silent_since(handle.task) is None
    assert silences(handle) == before
    await bridge.run("me", handle.task.context_id, task=handle.task.id)
