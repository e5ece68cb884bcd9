"""Several servers on one database: a task of one server is read at the others, byte for byte, and
changed there."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.support.bridge_process import BridgeProcess
from tests.support.client import Client, RpcError, artifact_text, state
from tests.support.liveness import Liveness
from tests.support.nodes import Follower
from tests.support.redis_server import RedisServer
from tests.support.restart import Place, asking, finished, heard, kill
from tests.support.servers import on_postgres

WITHIN = 60.0  # seconds
NOW = {"configuration": {"returnImmediately": True}}
MARKERS = [f"m{number} " for number in range(400)]
Node = tuple[BridgeProcess, Client]


def script(live: Liveness) -> str:
    """A prompt of 400 pieces, with a pause in the middle. A status after each piece keeps the next
    one from joining it."""
    lines = [f"text {marker}\nstatus x" for marker in MARKERS]
    return "\n".join([*lines[:200], f"wait {live.path} agent", *lines[200:]])


@pytest.fixture
def nodes(place: Place, postgres_url: str) -> Place:
    place.env = on_postgres(postgres_url)
    return place


def other(place: Place, name: str, **env: str) -> Any:
    """A further server, with a state folder of its own."""
    state_dir = str(place.state.with_name(f"state-{name}"))
    return place.server(True, BRIDGE_STATE_DIR=state_dir, BRIDGE_NODE=f"test:{name}", **env)


@asynccontextmanager
async def three(place: Place) -> AsyncIterator[tuple[Node, Node, Node]]:
    async with place.server(BRIDGE_NODE="test:a") as a, other(place, "b") as b:
        async with other(place, "c") as c:
            yield a, b, c


class Reader:
    """The events of a subscription as they arrive, without comments. `number`: of the last one."""

    def __init__(self, client: Client, task_id: str, after: int) -> None:
        self.events: list[bytes] = []
        self.number = after
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read(client, task_id, after))

    async def _read(self, client: Client, task_id: str, after: int) -> None:
        body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task_id}}
        headers = {"A2A-Version": "1.0", "Last-Event-ID": str(after)}
        url = f"{client.url}/a2a/jsonrpc"
        async with client.session.post(url, json=body, headers=headers) as response:
            assert response.content_type == "text/event-stream", await response.text()
            async for line in response.content:
                if line.startswith((b"id:", b"data:")):
                    self.events.append(line)
                if line.startswith(b"id:"):
                    assert int(line[3:]) == self.number + 1
                    self.number += 1
                    self._news.set()

    async def reached(self, number: int) -> None:
        async with asyncio.timeout(WITHIN):
            while self.number < number:
                assert not self._reading.done(), self.events[-4:]
                self._news.clear()
                await self._news.wait()

    async def ended(self) -> bytes:
        async with asyncio.timeout(WITHIN):
            await self._reading
        return b"".join(self.events)


def found_in(events: bytes) -> list[str]:
    return [marker for marker in MARKERS if events.count(f'"{marker}"'.encode()) == 1]


async def test_a_task_is_read_at_any_server(nodes: Place, live: Liveness) -> None:
    """Takes seconds, because three servers start."""
    async with three(nodes) as ((_, a), (_, b), (_, c)):
        task = await a.send_now(script(live))
        await live.pid("agent")
        await heard(a, task["id"], "".join(MARKERS[:200]))
        whole = [Reader(one, task["id"], 0) for one in (a, b)]
        await whole[1].reached(101)
        resumed = [Reader(one, task["id"], 100) for one in (a, b, b, c)]
        for one in resumed:
            await one.reached(101)
        shown = [await one.get(task["id"]) for one in (a, b, c)]
        assert shown[0] == shown[1] == shown[2]
        assert artifact_text(shown[2]) == "".join(MARKERS[:200])
        listed = [await one.call("ListTasks", {"includeArtifacts": True}) for one in (a, b, c)]
        assert listed[0] == listed[1] == listed[2]
        await live.release("agent")
        first = [await one.ended() for one in whole]
        assert first[0] == first[1] and found_in(first[1]) == MARKERS
        later = [await one.ended() for one in resumed]
        assert later == later[:1] * 4 and first[0].endswith(later[0])
        ended = [await one.get(task["id"]) for one in (c, b, a)]
        assert ended[0] == ended[1] == ended[2] and state(ended[0]) == "completed"
        assert artifact_text(ended[0]) == "".join(MARKERS)


@pytest.mark.soak
@pytest.mark.parametrize("fault", ["none", "flush", "kill"])
async def test_readers_lose_nothing_with_redis(
    nodes: Place, live: Liveness, redis_server: RedisServer, fault: str
) -> None:
    nodes.env |= {"BRIDGE_BUS": redis_server.url}
    async with three(nodes) as ((_, a), (_, b), (_, c)):
        task = await a.send_now(script(live))
        await live.pid("agent")
        readers = [Reader(one, task["id"], 0) for one in (a, b, c)]
        for one in readers:
            await one.reached(200)
        if fault == "flush":
            with redis_server.client() as client:
                client.flushall()
        elif fault == "kill":
            redis_server.kill()
        await live.release("agent")
        events = [await one.ended() for one in readers]
        assert events == events[:1] * 3 and found_in(events[0]) == MARKERS


async def test_a_reader_at_another_server_sees_no_restart(nodes: Place, live: Liveness) -> None:
    """Takes seconds, because a server starts three times."""
    async with other(nodes, "b") as (_, b):
        async with nodes.server(BRIDGE_NODE="test:a") as (server, a):
            task = await a.send_now(script(live))
            await live.pid("agent")
            await heard(b, task["id"], "".join(MARKERS[:200]))
            reader = Reader(b, task["id"], 0)
            await reader.reached(150)
            await kill(server)
        shown = await b.get(task["id"])
        assert artifact_text(shown) == "".join(MARKERS[:200])
        async with nodes.server(BRIDGE_NODE="test:a") as (_, a):
            await live.release("agent")
            events = await reader.ended()
            assert found_in(events) == MARKERS
            again = Reader(a, task["id"], 0)
            assert await again.ended() == events


async def test_a_task_is_changed_at_any_server(nodes: Place, live: Liveness) -> None:
    """Takes seconds, because three servers start."""
    async with three(nodes) as ((_, a), (_, b), (_, c)):
        task = await a.send_now("ask q-1 Which?\ntext x")
        asked = await asking(b, task["id"])
        context = {"contextId": task["contextId"], "taskId": task["id"]}
        answer = b.message(b.answer_parts(asked, "this"), messageId="an-answer-at-b-1", **context)
        answered = await b.call("SendMessage", {"message": answer})
        assert answered["task"]["id"] == task["id"] and state(answered) == "completed"
        retry = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": answer}}
        again = await c.post(retry, **{"Idempotency-Key": "an-answer"})
        assert (await again.json())["result"]["task"]["id"] == task["id"]

        follow = b.message(f"wait {live.path} agent\ntext y", contextId=task["contextId"])
        second = await b.call("SendMessage", {"message": follow, **NOW})
        await live.pid("agent")
        assert second["task"]["contextId"] == task["contextId"]
        config = {"taskId": second["task"]["id"], "id": "p", "url": "http://127.0.0.1:9/x"}
        await c.call("CreateTaskPushNotificationConfig", config)
        named = {"taskId": config["taskId"], "id": "p"}
        assert (await a.call("GetTaskPushNotificationConfig", named))["id"] == "p"
        await b.call("DeleteTaskPushNotificationConfig", named)
        with pytest.raises(RpcError):
            await a.call("GetTaskPushNotificationConfig", named)
        canceled = await c.call("CancelTask", {"id": second["task"]["id"]})
        assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
        await live.gone("agent")
        assert await a.get(config["taskId"]) == canceled == await b.get(config["taskId"])
        with pytest.raises(RpcError, match="canceled already") as error:
            await b.call("CancelTask", {"id": config["taskId"]})
        assert error.value.code == -32002

        ids, token = list[str](), ""
        for one in (a, c):  # a page at each server
            page = await one.call("ListTasks", {"pageSize": 1, "pageToken": token})
            ids += [listed["id"] for listed in page["tasks"]]
            token = page.get("nextPageToken", "")
        assert ids == [second["task"]["id"], task["id"]]
        async with c.session.get(f"{c.url}/monitor/tasks") as response:
            tasks = {one["id"]: one for one in (await response.json())["tasks"]}
        assert [tasks[one]["node"] for one in ids] == ["test:a", "test:a"]
        for node, here in (("test:a", set(ids)), ("test:b", set())):
            async with c.session.get(f"{c.url}/monitor/tasks", params={"node": node}) as response:
                seen = {one["id"] for one in (await response.json())["tasks"]}
            assert {*ids} & seen == here
        async with b.session.get(f"{b.url}/nodes") as response:
            listed = (await response.json())["nodes"]
        assert [(one["name"], one["state"]) for one in listed] == [
            ("test:a", "up"),
            ("test:b", "up"),
            ("test:c", "up"),
        ]
        assert [one["self"] for one in listed] == [False, True, False]
        async with b.session.get(f"{b.url}/agents") as response:
            (agent,) = (await response.json())["agents"]
        found = [(one["role"], one["instance_id"]) for one in agent["nodes"]]
        assert found == [("test", "a"), ("test", "b"), ("test", "c")]


@pytest.mark.parametrize("messages", [12, pytest.param(200, marks=pytest.mark.soak)])
async def test_a_message_to_two_servers_begins_one_task(nodes: Place, messages: int) -> None:
    """Takes seconds, because three servers start."""
    async with three(nodes) as ((_, a), (_, b), (_, c)):

        async def twice(number: int) -> set[str]:
            message = a.message(f"text {number}", messageId=f"a-message-to-two-{number}")
            params, keys = {"message": message, **NOW}, {"Idempotency-Key": f"k-{number}"}
            body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
            first, second = ((a, b), (b, c), (c, a))[number % 3]
            sent = await asyncio.gather(first.post(body, **keys), second.post(body, **keys))
            answers = [await one.json() for one in sent]
            return {one["result"]["task"]["id"] for one in answers}

        tasks = [await twice(number) for number in range(messages)]
        assert [len(one) for one in tasks] == [1] * messages
        ids = [one.pop() for one in tasks]
        texts = [artifact_text(await finished(c, one)) for one in ids]
        assert texts == [str(number) for number in range(messages)]
        listed = await b.call("ListTasks", {"pageSize": 1})
        assert listed["totalSize"] == messages


async def test_a_retry_at_another_server_finds_a_task_that_no_client_has_seen(
    nodes: Place, live: Liveness
) -> None:
    """Takes seconds, because two servers start."""
    async with nodes.server(BRIDGE_NODE="test:a") as (_, a), other(nodes, "b") as (_, b):
        message = a.message(f"wait {live.path} agent\nreply hello", messageId="a-message-to-retry")
        first = asyncio.create_task(a.call("SendMessage", {"message": message}))
        await live.pid("agent")  # until it says something, it may reply with a Message
        assert (await b.call("ListTasks", {}))["tasks"] == []
        params = {"message": message, **NOW}
        retry = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
        answer = await b.post(retry, **{"Idempotency-Key": "k"})
        found = (await answer.json())["result"]["task"]
        await live.release("agent")
        assert (await first)["task"]["id"] == found["id"]  # no Message any more
        ended = await finished(b, found["id"])
        assert state(ended) == "completed" and ended == await a.get(found["id"])
        assert (await b.call("ListTasks", {}))["totalSize"] == 1


async def test_a_server_without_slots_gives_tasks_to_the_others(
    nodes: Place, live: Liveness
) -> None:
    """Takes seconds, because two servers start twice."""
    async with other(nodes, "front", BRIDGE_MAX_SESSIONS="0") as (_, front):
        waiting = await front.send_now("text later")
        assert state(waiting) == "submitted"
        canceled = await front.send_now("text never")
        assert state(await front.call("CancelTask", {"id": canceled["id"]})) == "canceled"
        async with other(nodes, "worker", BRIDGE_MAX_SESSIONS="1") as (_, worker):
            assert artifact_text(await finished(front, waiting["id"])) == "later"
            first = await front.send_now(f"wait {live.path} agent\ntext x")
            await live.pid("agent")
            second = front.message("text y", contextId=first["contextId"])
            queued = await front.call("SendMessage", {"message": second, **NOW})
            await live.release("agent")
            assert state(await finished(front, first["id"])) == "completed"
            shown = await finished(worker, queued["task"]["id"])
            assert artifact_text(shown) == "y" and shown["contextId"] == first["contextId"]


async def test_a_server_that_stops_leaves_its_queue_to_the_others(
    nodes: Place, live: Liveness
) -> None:
    """Takes seconds, because two servers start."""
    async with nodes.server(BRIDGE_NODE="test:a", BRIDGE_MAX_SESSIONS="1") as (server, a):
        running = await a.send_now(f"wait {live.path} agent\ntext x")
        await live.pid("agent")
        queued = [await a.send_now(f"text {number}", messageId=f"q-{number}") for number in "12"]
        async with other(nodes, "b", BRIDGE_MAX_SESSIONS="1") as (_, b):
            placed = await a.send_now("text 3", messageId="q-3")
            assert artifact_text(await finished(a, placed["id"])) == "3"
            assert state(await b.get(queued[0]["id"])) == "submitted"
            assert await server.stop() == 0
            for number, task in zip("12", queued, strict=True):
                assert artifact_text(await finished(b, task["id"])) == number
            assert state(await b.get(running["id"])) == "failed"


async def test_a_change_waits_for_a_server_that_is_away(nodes: Place, live: Liveness) -> None:
    """Takes seconds, because a server starts three times."""
    async with other(nodes, "b") as (_, b):
        async with nodes.server(BRIDGE_NODE="test:a") as (server, a):
            task = await a.send_now(f"wait {live.path} agent\ntext x")
            await live.pid("agent")
            await kill(server)
        with pytest.raises(RpcError, match="The server test:a works in this context") as error:
            await b.call("CancelTask", {"id": task["id"]})
        assert error.value.error["data"][0]["reason"] == "UNAVAILABLE"
        url = f"{b.url}/tasks/{task['id']}:cancel"
        async with b.session.post(url, json={}, headers={"A2A-Version": "1.0"}) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "1")
        async with nodes.server(BRIDGE_NODE="test:a"):
            assert state(await b.call("CancelTask", {"id": task["id"]})) == "canceled"
            await live.gone("agent")


class Fleet:
    """Three servers that restart one by one. Clients use those that run."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._stacks: dict[str, AsyncExitStack] = {}
        self._servers: dict[str, BridgeProcess] = {}
        self.clients: dict[str, Client] = {}

    async def start(self, name: str) -> None:
        stack = self._stacks[name] = AsyncExitStack()
        node = await stack.enter_async_context(other(self._place, name))
        self._servers[name], self.clients[name] = node

    async def restart(self, name: str) -> None:
        del self.clients[name]
        assert await self._servers[name].stop() == 0
        await self._stacks[name].aclose()
        await self.start(name)

    async def close(self) -> None:
        for stack in self._stacks.values():
            await stack.aclose()

    async def run(self, number: int) -> str:
        """Send a message to any server, and follow its task to the end at any server. Returns its
        text."""
        pieces = "\n".join(f"text {number}.{piece} \npause 0.1" for piece in range(20))
        message = {
            "messageId": f"a-message-to-the-fleet-{number}",
            "role": "ROLE_USER",
            "parts": [{"text": pieces}],
        }
        body = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "SendMessage",
            "params": {"message": message, **NOW},
        }
        task_id = ""
        async with asyncio.timeout(2 * WITHIN):
            while not task_id:
                client = random.choice([*self.clients.values()])
                with contextlib.suppress(aiohttp.ClientError):
                    response = await client.post(body, **{"Idempotency-Key": str(number)})
                    answer = await response.json()
                    if "error" in answer:
                        assert answer["error"]["data"][0]["reason"] == "UNAVAILABLE", answer
                        await asyncio.sleep(0.1)  # as Retry-After, but faster
                    else:
                        task_id = answer["result"]["task"]["id"]
            follower = Follower(task_id)
            while True:
                client = random.choice([*self.clients.values()])
                with contextlib.suppress(aiohttp.ClientError, RpcError, AssertionError):
                    await follower.follow(client)
                    task = await client.get(task_id)
                    if state(task) not in ("submitted", "working"):
                        break
                await asyncio.sleep(0.05)
        assert state(task) == "completed", task
        return artifact_text(task)


@pytest.mark.soak
async def test_a_rolling_restart_ends_no_task(nodes: Place) -> None:
    """Takes half a minute: three servers restart under load."""
    nodes.env |= {"BRIDGE_ON_STOP": "keep", "BRIDGE_MAX_SESSIONS": "4"}
    fleet = Fleet(nodes)
    running: list[asyncio.Task[str]] = []
    try:
        for name in "abc":
            await fleet.start(name)

        async def load() -> None:
            while True:
                running.append(asyncio.create_task(fleet.run(len(running))))
                await asyncio.sleep(0.4)

        loading = asyncio.create_task(load())
        await asyncio.sleep(2)
        for name in "abc":
            await fleet.restart(name)
        loading.cancel()
        texts = await asyncio.gather(*running)
        for number, text in enumerate(texts):
            assert text == "".join(f"{number}.{piece} " for piece in range(20))
        print("tasks:", len(texts))
    finally:
        await fleet.close()
