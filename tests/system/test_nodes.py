"""Several servers on one database: a task of one server is read at the others, byte for byte; its
changes are refused there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.bridge_process import BridgeProcess
from tests.support.client import Client, Json, RpcError, artifact_text, state
from tests.support.liveness import Liveness
from tests.support.restart import Place, finished, heard, kill
from tests.support.servers import on_postgres

WITHIN = 45.0  # seconds
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


def other(place: Place, name: str) -> Any:
    """A further server, with a state folder of its own."""
    state_dir = str(place.state.with_name(f"state-{name}"))
    return place.server(BRIDGE_STATE_DIR=state_dir, BRIDGE_NODE=f"test:{name}")


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


async def test_changes_at_another_server_name_the_right_one(nodes: Place, live: Liveness) -> None:
    """Takes seconds, because three servers start."""
    async with three(nodes) as ((_, a), (_, b), (_, c)):
        task = await a.send_now(f"wait {live.path} agent\ntext x")
        await live.pid("agent")
        config = {"taskId": task["id"], "url": "http://127.0.0.1:9/x"}
        more = {"messageId": "m-2", "taskId": task["id"]}
        calls: list[tuple[str, Json]] = [
            ("CancelTask", {"id": task["id"]}),
            ("SendMessage", {"message": b.message("text y", **more)}),
            ("SendMessage", {"message": b.message("text y", contextId=task["contextId"])}),
            ("CreateTaskPushNotificationConfig", config),
        ]
        for method, params in calls:
            with pytest.raises(RpcError, match="The server test:a works in this context") as error:
                await b.call(method, params)
            assert error.value.error["data"][0]["reason"] == "UNAVAILABLE"
        url = f"{b.url}/tasks/{task['id']}:cancel"
        async with b.session.post(url, json={}, headers={"A2A-Version": "1.0"}) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "1")
        assert state(await c.get(task["id"])) == "working"

        own = [await one.send("text z", messageId=f"n-{n}") for n, one in enumerate((b, c))]
        ids, token = list[str](), ""
        for one in (a, c, b):  # a page at each server
            page = await one.call("ListTasks", {"pageSize": 1, "pageToken": token})
            ids += [listed["id"] for listed in page["tasks"]]
            token = page["nextPageToken"]
        assert ids == [own[1]["id"], own[0]["id"], task["id"]]

        async with c.session.get(f"{c.url}/monitor/tasks") as response:
            tasks = {one["id"]: one for one in (await response.json())["tasks"]}
        assert [tasks[one]["node"] for one in ids] == ["test:c", "test:b", "test:a"]
        assert [tasks[one]["state"] for one in ids] == ["completed", "completed", "working"]
        async with b.session.get(f"{b.url}/nodes") as response:
            listed = (await response.json())["nodes"]
        assert [(one["name"], one["state"], one["working"]) for one in listed] == [
            ("test:a", "up", 1),
            ("test:b", "up", 0),
            ("test:c", "up", 0),
        ]
        assert [one["self"] for one in listed] == [False, True, False]
        await live.release("agent")
        assert state(await finished(b, task["id"])) == "completed"
