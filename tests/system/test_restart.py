"""A server that is killed, or told to stop, and the next one on the same folder: real processes,
real signals, and the scripted program as the agent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bridge.process.held_ports import NAME
from bridge.process.procfs import MARKER
from tests.support.bridge_process import BridgeProcess
from tests.support.client import (
    Client,
    Json,
    RpcError,
    artifact_text,
    facts,
    said,
    state,
    streamed_text,
)
from tests.support.liveness import Liveness
from tests.support.receivers import Receiver, receiving
from tests.support.restart import Place, asking, finished, heard, kill

WITHIN = 60.0  # seconds


def unique() -> str:
    return str(uuid.uuid4())


def reason(task: Json) -> Any:
    return (task.get("metadata") or {}).get("bridge", {}).get("reason")


# --- what is over ------------------------------------------------------------------------------


async def all_tasks(client: Client) -> list[Json]:
    if client.version == "0.3":  # which has no list
        return []
    listed: Json = await client.call("ListTasks", {"includeArtifacts": True, "historyLength": 99})
    return list(listed["tasks"])


async def test_tasks_that_have_ended_are_what_they_were(each_place: Place) -> None:
    artifact = '{"type":"artifact","artifactId":"x","name":"X","parts":[{"data":{"a":[1,2.5]}}]}'
    call = '{"type":"tool_call","id":"c","name":"Bash","input":{"command":"x"}}'
    usage = '{"type":"usage","inputTokens":7}'
    script = f"text Hello \nline {call}\nline {artifact}\nline {usage}\ntext wörld\ndone bye"
    async with each_place.server() as (server, client):
        old = Client(client.session, client.url, "0.3")
        tasks = [await client.send(script), await client.send("text x\nfail no")]
        asked = await client.send("permit q May I?")
        tasks.append(await client.send("yes", taskId=asked["id"]))
        tasks.append(await client.send("cwd", contextId=tasks[0]["contextId"]))
        seen = [await one.get(t["id"]) for one in (client, old) for t in tasks]
        listed = await all_tasks(client)
        await kill(server)
    async with each_place.server() as (_, client):
        old = Client(client.session, client.url, "0.3")
        assert [await one.get(t["id"]) for one in (client, old) for t in tasks] == seen
        assert await all_tasks(client) == listed
        assert [task["id"] for task in listed] == [t["id"] for t in reversed(tasks)]
        assert artifact_text(tasks[0]) == "Hello \n\nwörld" and len(tasks[2]["history"]) >= 3
        newest = await client.send("text x")
        first, *_ = await all_tasks(client)
        assert first["id"] == newest["id"]


async def test_inputs_between_two_turns_are_known_after_a_restart(place: Place) -> None:
    """A refusal and a `cancel` line are inputs of the session, which the next server continues. The
    program has two seconds to stop, then its session takes the next message."""
    done = '{"type":"done"}'
    async with place.server() as (server, client):
        first = await client.send(f"text a\nline {done}\nask late Who?")
        async with asyncio.timeout(WITHIN):
            while server.log.count("session.unasked") < 2:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.05)
        await asyncio.sleep(2.1)  # the grace
        script = "turn\nask one Which?\ntext end"
        task = await client.send(script, contextId=first["contextId"])
        assert (state(task), artifact_text(task)) == ("input-required", "2")
        await kill(server)
    async with place.server() as (_, client):
        await client.send("blue", taskId=task["id"], contextId=first["contextId"])
        task = await finished(client, task["id"])
        assert state(task) == "completed"
        assert artifact_text(task).endswith('"blue", null]end')


async def test_a_message_that_was_taken_before_the_end_begins_nothing_after_it(
    place: Place,
) -> None:
    message_id = unique()
    async with place.server() as (server, client):
        first = await client.send("turn", messageId=message_id)
        other = await client.send("another", messageId=message_id)
        asked = await client.send("ask one Which?", messageId=message_id)
        await kill(server)
    async with place.server() as (_, client):
        assert await client.send("ask one Which?", messageId=message_id) == asked
        client.headers["Idempotency-Key"] = "x"
        assert await client.send("turn", messageId=message_id) == first
        assert await client.send("another", messageId=message_id) == other
        assert len(await all_tasks(client)) == 3
        del client.headers["Idempotency-Key"]
        new = await client.send("turn", messageId=message_id)
        assert len(await all_tasks(client)) == 4
    async with place.server() as (_, client):
        client.headers["Idempotency-Key"] = "x"
        assert await client.send("turn", messageId=message_id) == new


async def test_a_server_that_is_killed_during_a_delivery_sends_it_again(each_place: Place) -> None:
    receiver = Receiver()
    receiver.behaviours = [receiver.stall]
    async with receiving(receiver):
        async with each_place.server() as (server, client):
            config = {"taskPushNotificationConfig": {"id": "one", "url": receiver.url}}
            task = await client.send("status a\ntext b\nturn", config)
            await receiver.got(1)
            await kill(server)
        receiver.over.set()
        async with each_place.server() as (_, client):
            count = 1
            while state(json.loads(receiver.bodies[-1])) != "completed":
                count = len(await receiver.got(count + 1))
            assert await client.get(task["id"]) == task
    numbers = [1, *range(1, count)]
    assert receiver.ids == [f"{task['id']}:one:{number}" for number in numbers]


async def test_nothing_is_told_that_is_not_written_down(place: Place, live: Liveness) -> None:
    """With a disk that is full for the server, while its agent goes on."""
    async with place.server() as (server, client):
        task = await client.send_now(f"text a\nwait {live.path} agent\ntext b\npermit q May I?")
        await live.pid("agent")
        await heard(client, task["id"], "a")
        pid, limit = server.process.pid, resource.RLIMIT_FSIZE
        soft, hard = resource.prlimit(pid, limit)
        async with client.subscribe(task["id"]) as items:
            assert artifact_text((await anext(items))["task"]) == "a"
            resource.prlimit(pid, limit, (1000, hard))
            await live.release("agent")
            async with asyncio.timeout(WITHIN):
                while await taken(client):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            news = asyncio.ensure_future(anext(items))
            assert await asyncio.wait([news], timeout=0.3) == (set(), {news})
            resource.prlimit(pid, limit, (soft, hard))
            async with asyncio.timeout(WITHIN):
                assert streamed_text([await news]) == "b"
                assert state(await anext(items)) == "input-required"
        await client.send("turn")  # it takes messages again
        await kill(server)
    async with place.server() as (_, client):
        assert artifact_text(await client.get(task["id"])) == "ab"


async def taken(client: Client) -> bool:
    """Whether the server takes a message; this one would end at once."""
    try:
        await client.send_now("x", taskId="nobody")
    except RpcError as error:
        return "cannot write" not in str(error)
    return True


# --- what the next server continues ---------------------------------------------------------------

Play = AsyncGenerator[None, Client]
"""A test in three parts: before a server is killed, while none runs, and with the client of the
next server, which the second `yield` returns."""


async def a_conversation_keeps_its_directory(client: Client, place: Place, live: Liveness) -> Play:
    (place.workspace / "below").mkdir()
    chosen = {"bridge": {"cwd": str(place.workspace / "below")}}
    task = await client.send("cwd", metadata=chosen)
    assert artifact_text(task).endswith("/below")
    context = task["contextId"]
    yield
    client = yield
    again = await client.send("cwd", contextId=context)
    assert again["contextId"] == context
    assert artifact_text(again) == artifact_text(task)
    other = {"bridge": {"cwd": str(place.workspace)}}
    with pytest.raises(RpcError, match="another directory"):
        await client.send("cwd", contextId=context, metadata=other)


async def receivers_of_notifications_are_known(
    client: Client, place: Place, live: Liveness
) -> Play:
    create, read = "CreateTaskPushNotificationConfig", "ListTaskPushNotificationConfigs"
    task = await client.send("permit q May I?")
    config = {"taskId": task["id"], "id": "one", "url": "http://127.0.0.1:9/x"}
    await client.call(create, config)
    before = await client.call(read, {"taskId": task["id"]})
    yield
    client = yield
    assert await client.call(read, {"taskId": task["id"]}) == before
    assert len(before["configs"]) == 1


async def a_running_task_and_its_queue_continue(
    client: Client, place: Place, live: Liveness
) -> Play:
    script = f"pid\ntext  before \nwait {live.path} runs\ntext after \npid\nturn"
    first = await client.send_now(script)
    context = first["contextId"]
    pid = await live.pid("runs")
    queued = [await client.send_now("turn", contextId=context) for _ in range(2)]
    yield
    client = yield
    assert live.alive("runs")
    assert state(await client.get(first["id"])) == "working"
    assert artifact_text(await client.get(first["id"])) == f"{pid} before "
    assert [state(await client.get(t["id"])) for t in queued] == ["submitted"] * 2
    await live.release("runs")
    assert artifact_text(await finished(client, first["id"])) == f"{pid} before after {pid}1"
    # The program counts its prompts: it got each of them once.
    assert [artifact_text(await finished(client, t["id"])) for t in queued] == ["2", "3"]
    assert artifact_text(await client.send("turn", contextId=context)) == "4"


async def a_question_stays_open(client: Client, place: Place, live: Liveness) -> Play:
    """For several servers."""
    asked = await client.send("text a\npermit q May I?\nturn")
    for _ in range(2):
        yield
        client = yield
        assert await client.get(asked["id"]) == asked
        with pytest.raises(RpcError):
            await client.send("yes", taskId=asked["id"], contextId="another")
    task = await client.send("yes", taskId=asked["id"])
    assert state(task) == "completed"
    assert artifact_text(task) == 'a\n\nanswered ["q", "yes", "yes"]1'


async def a_question_with_any_data_stays_open(client: Client, place: Place, live: Liveness) -> Play:
    question = '{"type":"question","id":"q","text":"Which?","data":["a","b"]}'
    asked = await client.send(f"line {question}\npermit r Sure?")
    assert state(asked) == "input-required"
    yield
    client = yield
    assert await client.get(asked["id"]) == asked


async def an_answer_reaches_the_agent_once(client: Client, place: Place, live: Liveness) -> Play:
    asked = await client.send("permit q May I?\nask r And then?\nturn")
    await client.send_now("no", taskId=asked["id"])
    yield
    client = yield
    asked = await asking(client, asked["id"])
    assert facts(asked)["questionId"].endswith("-2")
    task = await client.send("red", taskId=asked["id"])
    assert artifact_text(task) == 'answered ["q", "no", "no"]\n\nanswered ["r", "red", null]1'


async def an_agent_that_exits_without_a_server_is_read_to_its_end(
    client: Client, place: Place, live: Liveness
) -> Play:
    task = await client.send_now(f"text a\nwait {live.path} exits\nflood 2000\nexit 3")
    await live.pid("exits")
    yield
    await live.release("exits")
    await live.gone("exits")
    client = yield
    ended = await finished(client, task["id"])
    assert state(ended) == "failed" and reason(ended) == "exit"
    assert artifact_text(ended) == "a" + "".join(f"{n} " for n in range(2000))
    assert "exit status 3" in said(ended)
    again = await client.send("turn", contextId=task["contextId"])
    assert artifact_text(again) == "1"


async def a_turn_that_ends_without_a_server_is_completed(
    client: Client, place: Place, live: Liveness
) -> Play:
    script = f"wait {live.path} ends\ntext last words\nhere {live.path} ended"
    task = await client.send_now(script)
    await live.pid("ends")
    yield
    await live.release("ends")
    await live.pid("ended")
    client = yield
    ended = await finished(client, task["id"])
    assert (state(ended), artifact_text(ended)) == ("completed", "last words")
    again = await client.send("turn", contextId=task["contextId"])
    assert artifact_text(again) == "2"  # the same process


async def a_running_task_can_be_canceled(client: Client, place: Place, live: Liveness) -> Play:
    script = f"deaf\nspawn {live.path} below\nwait {live.path} canceled"
    task = await client.send_now(script)
    await live.pid("canceled")
    await live.pid("below")
    yield
    client = yield
    assert state(await client.cancel(task["id"])) == "canceled"
    await live.gone("canceled", "below")
    again = await client.send("turn", contextId=task["contextId"])
    assert artifact_text(again) == "1"


PLAYS = (
    a_conversation_keeps_its_directory,
    receivers_of_notifications_are_known,
    a_running_task_and_its_queue_continue,
    a_question_stays_open,
    a_question_with_any_data_stays_open,
    an_answer_reaches_the_agent_once,
    an_agent_that_exits_without_a_server_is_read_to_its_end,
    a_turn_that_ends_without_a_server_is_completed,
    a_running_task_can_be_canceled,
)


async def test_the_next_server_continues_the_tasks_of_one_that_was_killed(
    each_place: Place, live: Liveness
) -> None:
    """Several tasks of the same servers, because a start of a server takes a second."""
    place = each_place
    settings: Any = {"BRIDGE_MAX_SESSIONS": "20"}
    async with place.server(**settings) as (server, client):
        plays = {play.__name__: play(client, place, live) for play in PLAYS}
        await each_next(plays)
        await kill(server)
    for _ in range(2):
        await each_next(plays)
        async with place.server(**settings) as (server, client):
            await each_next(plays, client)
            await (kill(server) if plays else server.stop())
    assert plays == {}


async def each_next(plays: dict[str, Play], client: Client | None = None) -> None:
    """Run the next part of each play, and forget those that have ended."""
    for name, play in list(plays.items()):
        try:
            await (anext(play) if client is None else play.asend(client))
        except StopAsyncIteration:
            del plays[name]
        except Exception as error:
            error.add_note(f"play: {name}")
            raise


# --- what was running, or waited -----------------------------------------------------------------


async def test_tasks_that_wait_for_a_place_are_begun_after_a_restart(
    place: Place, live: Liveness
) -> None:
    async with place.server(BRIDGE_MAX_SESSIONS="1") as (server, client):
        await client.send_now(f"wait {live.path} agent")
        await live.pid("agent")
        waiting = [await client.send_now(f"text {number}\nturn") for number in range(3)]
        await kill(server)
    async with place.server() as (_, client):
        texts = [artifact_text(await finished(client, t["id"])) for t in waiting]
        assert texts == ["01", "11", "21"]


async def test_an_answer_of_which_a_half_was_sent_is_sent_to_its_end(
    place: Place, live: Liveness
) -> None:
    """The agent does not read, so that the pipe is full when the server is killed."""
    words = "".join(f"{number} " for number in range(110_000))
    async with place.server() as (server, client):
        asked = await client.send(f"here {live.path} agent\nask q Which?\nturn")
        agent = psutil.Process(await live.pid("agent"))
        agent.suspend()
        await client.send_now(words, taskId=asked["id"])
        await kill(server)
        agent.resume()
    async with place.server() as (_, client):
        task = await finished(client, asked["id"])
        assert artifact_text(task) == f'answered ["q", "{words}", null]1'


async def test_a_prompt_that_was_taken_reaches_the_agent_once(place: Place) -> None:
    """However far it has come when the server is killed: written down, started, or told."""
    async with place.server() as (server, client):
        first = await client.send_now("text a\nturn")
        await kill(server)
    async with place.server() as (server, client):
        second = await client.send_now("text b\nturn", contextId=first["contextId"])
        await kill(server)
    async with place.server() as (_, client):
        tasks = [await finished(client, one["id"]) for one in (first, second)]
        assert [state(task) for task in tasks] == ["completed"] * 2
        assert artifact_text(tasks[0]) == "a1"
        assert artifact_text(tasks[1]) in ("b1", "b2")  # by another process, or by the same


async def test_where_running_turns_are_not_continued_they_fail(
    place: Place, live: Liveness
) -> None:
    async with place.server() as (server, client):
        script = f"text a\nspawn {live.path} below\nwait {live.path} agent"
        task = await client.send_now(script)
        queued = await client.send_now("turn", contextId=task["contextId"])
        await live.pid("agent")
        await live.pid("below")
        await heard(client, task["id"], "a")
        await kill(server)
    async with place.server(BRIDGE_ON_RESTART="fail") as (_, client):
        await live.gone("agent", "below")
        ended = await client.get(task["id"])
        assert (state(ended), reason(ended)) == ("failed", "restart")
        assert artifact_text(ended) == "a"
        assert artifact_text(await finished(client, queued["id"])) == "1"  # it had not begun
    assert place.sessions == []


# --- what cannot be gone on with -----------------------------------------------------------------


async def test_an_agent_without_server_and_launcher_fails_its_turn(
    place: Place, live: Liveness
) -> None:
    """Both had the position in its input. It takes no other turn: its output of the old turn would
    belong to the new one."""
    async with place.server() as (server, client):
        task = await client.send_now(f"text a\nwait {live.path} agent\ntext of the old turn")
        launcher = psutil.Process(await live.pid("agent")).parent()
        assert launcher and launcher.name() == NAME
        await heard(client, task["id"], "a")
        await kill(server)
    launcher.kill()
    launcher.wait(WITHIN)
    async with place.server() as (_, client):
        ended = await finished(client, task["id"])
        assert (state(ended), reason(ended), artifact_text(ended)) == ("failed", "restart", "a")
        assert "does not know which input" in said(ended)
        await live.gone("agent")
        again = await client.send("turn", contextId=task["contextId"])
        assert artifact_text(again) == "1"


async def test_streams_that_are_gone_end_their_turn_and_their_agent(
    place: Place, live: Liveness
) -> None:
    async with place.server() as (server, client):
        task = await client.send_now(f"text a\nwait {live.path} agent")
        await live.pid("agent")
        await heard(client, task["id"], "a")
        await kill(server)
    shutil.rmtree(place.state / "sessions")
    async with place.server() as (server, client):
        ended = await finished(client, task["id"])
        assert (state(ended), reason(ended), artifact_text(ended)) == ("failed", "restart", "a")
        again = await client.send("turn", contextId=task["contextId"])
        assert artifact_text(again) == "1"
        await server.stop()
        await live.gone("agent")


# --- stopping in order -------------------------------------------------------------------------


async def test_agents_that_are_kept_are_continued(place: Place, live: Liveness) -> None:
    async with place.server(BRIDGE_ON_STOP="keep") as (server, client):
        task = await client.send_now(f"text a\nwait {live.path} agent\ntext b\nturn")
        asked = await client.send("permit q May I?\nturn")
        await client.send(f"here {live.path} idle")
        await live.pid("agent")
        assert await server.stop() == 0
        await live.gone("idle")  # it had nothing to do
    assert live.alive("agent")
    async with place.server() as (_, client):
        assert [state(await client.get(t["id"])) for t in (task, asked)] == [
            "working",
            "input-required",
        ]
        await live.release("agent")
        assert artifact_text(await finished(client, task["id"])) == "ab1"
        answered = await client.send("yes", taskId=asked["id"])
        assert artifact_text(answered) == 'answered ["q", "yes", "yes"]1'


async def test_a_stop_leaves_no_process_and_no_folder(place: Place, live: Liveness) -> None:
    async with place.server() as (server, client):
        script = f"deaf\nspawn {live.path} below\nwait {live.path} agent"
        task = await client.send_now(script)
        asked = await client.send("permit q May I?")
        for name in ("agent", "below"):
            await live.pid(name)
        assert len(place.sessions) == 2
        assert await server.stop() == 0
        await live.gone("agent", "below")
    assert (place.processes(), place.sessions) == ([], [])
    async with place.server() as (_, client):
        for one in (task, asked):
            ended = await client.get(one["id"])
            assert (state(ended), reason(ended)) == ("failed", "shutdown")


def start(argv: tuple[str, ...], env: Json) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv, env={**os.environ, **env})


async def test_what_an_earlier_server_has_left_is_ended_and_nothing_else(
    place: Place, live: Liveness
) -> None:
    async with place.server() as (server, client):
        await client.send(f"deaf\nspawn {live.path} below\nhere {live.path} idle")
        await live.pid("below")
        await kill(server)
        assert live.alive("idle") and live.alive("below")
    argv = (sys.executable, "-I", "-c", "import time; time.sleep(1000)")
    others = [{}, {MARKER: "0123456789abcdef.x"}, {MARKER: uuid.uuid4().hex}]
    strangers = [start(argv, one) for one in others]
    try:
        async with place.server() as (server, client):
            await live.gone("idle", "below")
            assert "killed processes of an earlier server" in server.log
            assert place.sessions == []
        assert [one.poll() for one in strangers] == [None] * 3
    finally:
        for one in strangers:
            one.kill()
            one.wait()


# --- the folder --------------------------------------------------------------------------------


async def refusal(server: BridgeProcess) -> str:
    """What a server says that does not start."""
    assert await server.ended() == 2, server.log
    lines = server.log.splitlines()
    assert lines[0].startswith("coding-agent-bridge: "), server.log
    assert "Traceback" not in server.log, server.log
    return lines[0]


async def test_a_folder_that_others_can_read_is_refused(place: Place) -> None:
    """In one line."""
    place.state.mkdir(mode=0o755)
    place.state.chmod(0o755)
    async with place.server(ready=False) as (server, _):
        text = await refusal(server)
    assert str(place.state) in text and "chmod 700" in text
    assert len(server.log.splitlines()) == 1
    assert os.listdir(place.state) == []


async def test_a_second_server_is_refused_and_harms_nothing(place: Place, live: Liveness) -> None:
    """It names the first, by its address and its pid."""
    async with place.server() as (first, client):
        task = await client.send_now(f"wait {live.path} agent\ntext x")
        await live.pid("agent")
        async with place.server(ready=False) as (second, _):
            text = await refusal(second)
            assert str(place.state) in text and "BRIDGE_STATE_DIR" in text
            assert first.url in text and f"pid {first.process.pid}" in text
        await live.release("agent")
        assert artifact_text(await finished(client, task["id"])) == "x"


def spoil_all(database: Path) -> None:
    database.write_bytes(b"this is no database " * 1000)


def spoil_the_end(database: Path) -> None:
    """All but what is looked at when it is opened."""
    size = database.stat().st_size
    assert size > 8192
    with open(database, "r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_all,
        spoil_the_end,
    ],
)
@pytest.mark.soak
async def test_a_damaged_database_is_put_aside(place: Place, spoil: Any) -> None:
    async with place.server() as (server, client):
        task = await client.send("text x")
        assert await server.stop() == 0
    spoil(place.state / "tasks.db")
    spoiled = (place.state / "tasks.db").read_bytes()
    async with place.server() as (server, client):
        assert "was renamed" in server.log
        with pytest.raises(RpcError):
            await client.get(task["id"])
        assert artifact_text(await client.send("turn")) == "1"
    (aside,) = place.state.glob("tasks.db.damaged-*")
    assert aside.read_bytes() == spoiled


DAMAGED = (b'[["Unheard",{}]]', b'[["Failed",{}]]', b'[["Text",{"text":', b"[[[],[]]]")


@pytest.mark.soak
async def test_a_damaged_task_is_an_error_only_for_a_client_that_reads_it(place: Place) -> None:
    async with place.server() as (server, client):
        *spoiled, sound = [await client.send("flood 3000") for _ in (*DAMAGED, "sound")]
        assert await server.stop() == 0
    with contextlib.closing(sqlite3.connect(place.state / "tasks.db")) as database, database:
        for task, events in zip(spoiled, DAMAGED, strict=True):
            find = "SELECT place FROM task WHERE id = ?"
            (number,) = database.execute(find, (task["id"],)).fetchone()
            for shift in ("batch = -1 - batch", "batch = -batch"):  # room for one before the others
                database.execute(f"UPDATE event SET {shift} WHERE task = ?", (number,))
            database.execute("INSERT INTO event VALUES (?, 1, 0, ?, 0)", (number, events))
    async with place.server() as (server, client):
        for task, events in zip(spoiled, DAMAGED, strict=True):
            with pytest.raises(RpcError) as refused:
                await client.get(task["id"])
            assert refused.value.code == -32603, events
            assert refused.value.error["data"][0]["reason"] == "DATA_LOSS", events
        first, *others = await all_tasks(client)
        assert facts(first) == facts(sound)
        assert [one["id"] for one in others] == [one["id"] for one in reversed(spoiled)]
        for one in others:
            assert state(one) == "completed"
            assert "artifacts" not in one and "history" not in one
        (short, *_) = (await client.call("ListTasks", {}))["tasks"]
        assert short["id"] == sound["id"]
        assert facts(await client.get(sound["id"])) == facts(sound)


@pytest.mark.soak
async def test_what_is_kept_in_memory_is_forgotten(place: Place) -> None:
    async with place.server(BRIDGE_STORE="memory") as (server, client):
        task = await client.send("text x")
        await kill(server)
    assert not (place.state / "tasks.db").exists() and place.sessions == []
    async with place.server(BRIDGE_STORE="memory") as (_, client):
        with pytest.raises(RpcError) as missing:
            await client.get(task["id"])
        assert missing.value.code == -32001


async def test_all_that_is_kept_is_its_owners_alone(place: Place) -> None:
    async with place.server() as (_, client):
        await client.send("text x")
        assert place.state.stat().st_mode & 0o077 == 0
        for path in place.state.rglob("*"):
            if path.is_file() and path.name != "id":  # which is no secret
                assert path.stat().st_mode & 0o077 == 0, path


# --- several agents ----------------------------------------------------------------------------

AGENTS = """
[agents.one]
adapter = "jsonl"
[agents.two]
adapter = "jsonl"
"""


@pytest.mark.soak
async def test_agents_keep_their_tasks_apart(place: Place, tmp_path: Path) -> None:
    config = tmp_path / "agents.toml"
    config.write_text(AGENTS)
    env: dict[str, Any] = {"CONFIG_FILE": str(config), "AGENT_ADAPTER": ""}
    async with place.server(**env) as (server, client):
        agents = [Client(client.session, f"{client.url}/agents/{name}") for name in ("one", "two")]
        tasks = [await agent.send("permit q May I?\nturn", contextId="c") for agent in agents]
        await kill(server)
    async with place.server(**env) as (server, client):
        agents = [Client(client.session, f"{client.url}/agents/{name}") for name in ("one", "two")]
        for agent, task in zip(agents, tasks, strict=True):
            assert [one["id"] for one in await all_tasks(agent)] == [task["id"]]
            assert artifact_text(await agent.send("yes", taskId=task["id"])).endswith("1")


async def test_no_agent_that_was_just_begun_is_taken_for_a_leftover(
    place: Place, tmp_path: Path, live: Liveness
) -> None:
    """The first agent's tasks begin while those of the next agents are still being read."""
    config = tmp_path / "agents.toml"
    config.write_text(AGENTS)
    env: dict[str, Any] = {"CONFIG_FILE": str(config), "AGENT_ADAPTER": ""}
    async with place.server(**env, BRIDGE_MAX_SESSIONS="1") as (server, client):
        one, two = (Client(client.session, f"{client.url}/agents/{n}") for n in ("one", "two"))
        for _ in range(5):
            await two.send("flood 3000", contextId="c")
        await one.send_now(f"wait {live.path} agent")
        await live.pid("agent")
        waiting = [await one.send_now("text x") for _ in range(4)]
        await kill(server)
    async with place.server(**env) as (server, client):
        one = Client(client.session, f"{client.url}/agents/one")
        ended = [await finished(one, task["id"]) for task in waiting]
        assert [(state(task), said(task)) for task in ended] == [("completed", "x")] * 4


async def test_a_conversation_of_a_withdrawn_adapter_is_not_begun_again(each_place: Place) -> None:
    """Another agent would not have the earlier messages. The id of an agent is stored, and without
    a table it is the name of its adapter."""
    config = each_place.workspace.parent / "agents.toml"
    config.write_text("[agents.codex-exec]\nadapter = 'jsonl'\n")
    async with each_place.server(CONFIG_FILE=str(config), AGENT_ADAPTER="") as (_, client):
        old = await client.send("text x", contextId="c")
        await client.send("text x", contextId="c")  # this server has the agent
    refused = r"was with codex-exec, .* begin a new context"
    async with each_place.server() as (_, client):
        for _ in range(2):
            with pytest.raises(RpcError, match=refused) as error:
                await client.send("text x", contextId="c")
            assert error.value.code == -32602
        with pytest.raises(RpcError, match="not found"):
            await client.send("text x", taskId=old["id"], contextId="c")
        assert state(await client.send("text x", contextId="new")) == "completed"
        assert state(await client.send("text x", contextId="new")) == "completed"
        assert state(await client.send("text x")) == "completed"


# --- clients that do not come back (BRIDGE_ON_DISCONNECT) ----------------------------------------


async def test_a_task_is_canceled_unless_its_client_comes_back_to_the_next_server(
    place: Place, live: Liveness
) -> None:
    cancels: Json = {"BRIDGE_ON_DISCONNECT": "cancel", "BRIDGE_DISCONNECT_GRACE_MS": "2000"}
    script = "status begun\nwait {} {}\ntext done"
    async with place.server(**cancels) as (server, client):
        async with (
            client.stream(script.format(live.path, "back")) as first,
            client.stream(script.format(live.path, "away")) as second,
        ):
            back, away = [(await anext(items))["task"]["id"] for items in (first, second)]
            await live.pid("back")
            await live.pid("away")
            await kill(server)
    async with place.server(**cancels) as (_, client), client.subscribe(back) as items:
        await anext(items)
        await live.gone("away")  # its grace is over, and that of the other one would be
        assert state(await client.get(away)) == "canceled"
        await live.release("back")
        assert [state(item) async for item in items][-1] == "completed"
