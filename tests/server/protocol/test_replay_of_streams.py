"""A broken stream resumes after the last update that its client has seen, for each number: the rest
equals that of an unbroken stream."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.a2a.card import EXTENSION
from tests.support.agent import PROGRAM
from tests.support.bridge_process import bridge
from tests.support.client import METHODS, Json, artifact_text, state, streamed_text, task_id
from tests.support.liveness import Liveness, listening
from tests.support.served import Server, serving

WITHIN = 60.0
Items = list[tuple[int, Json]]
SCRIPT = "text one \nstatus two\ntext three \nthought x\ntext four\ndone five"


@dataclass(frozen=True)
class Wire:
    """One binding of one version. `after`: the header Last-Event-ID; `seen`: metadata."""

    http: aiohttp.ClientSession
    url: str
    version: str
    rest: bool = False

    def moved(self, url: str) -> Wire:
        return Wire(self.http, url, self.version, self.rest)

    def message(self, text: str, message_id: str, **members: Any) -> Json:
        old = self.version == "0.3"
        part = {"kind": "text", "text": text} if old else {"text": text}
        kind = {"kind": "message"} if old else {}
        role = "user" if old else "ROLE_USER"
        return {**kind, "messageId": message_id, "role": role, "parts": [part], **members}

    @asynccontextmanager
    async def send(
        self, message: Json, after: object = None, seen: Any = None
    ) -> AsyncIterator[AsyncIterator[tuple[int, Json]]]:
        params = {"message": message, **_metadata(seen)}
        async with self._open("/message:stream", 1, params, after) as items:
            yield items

    @asynccontextmanager
    async def subscribe(
        self, task: str, after: object = None, seen: Any = None
    ) -> AsyncIterator[AsyncIterator[tuple[int, Json]]]:
        params = {"id": task, **_metadata(seen)}
        async with self._open(f"/tasks/{task}:subscribe", 4, params, after) as items:
            yield items

    @asynccontextmanager
    async def _open(
        self, path: str, method: int, params: Json, after: object
    ) -> AsyncIterator[AsyncIterator[tuple[int, Json]]]:
        headers = {"A2A-Version": self.version, "A2A-Extensions": EXTENSION}
        if after is not None:
            headers["Last-Event-ID"] = str(after)
        url, body = f"{self.url}/a2a/jsonrpc", params
        if self.rest:
            url, body = f"{self.url}/a2a/rest{path}", params
            body.pop("id", None)
        else:
            body = {"jsonrpc": "2.0", "id": 1, "method": METHODS[self.version][method]}
            body["params"] = params
        async with self.http.post(url, json=body, headers=headers) as response:
            yield _frames(response, self.rest)

    async def sent(self, message: Json, after: object = None, seen: Any = None) -> Items:
        async with asyncio.timeout(WITHIN), self.send(message, after, seen) as items:
            return [item async for item in items]

    async def subscribed(self, task: str, after: object = None, seen: Any = None) -> Items:
        async with asyncio.timeout(WITHIN), self.subscribe(task, after, seen) as items:
            return [item async for item in items]


class Refused(Exception):
    """The answer is an error, and no stream."""


def _metadata(seen: Any) -> Json:
    return {} if seen is None else {"metadata": {"bridge": {"after": seen}}}


async def _frames(response: aiohttp.ClientResponse, rest: bool) -> AsyncIterator[tuple[int, Json]]:
    if response.content_type != "text/event-stream":
        raise Refused(await response.text())
    number = -1
    async for line in response.content:
        if line.startswith(b"id: "):
            number = int(line[4:])
        elif line.startswith(b"data: "):
            said = json.loads(line[6:])
            yield number, said if rest else said["result"]


WIRES = [("1.0", False), ("0.3", False), ("1.0", True)]
each_wire = pytest.mark.parametrize(
    ("version", "rest"), WIRES, ids=["jsonrpc-1.0", "jsonrpc-0.3", "rest"]
)


@pytest.fixture
async def server(workspace: Path) -> AsyncIterator[Server]:
    async with serving(workspace) as server:
        yield server


@pytest.fixture
def wire(server: Server, version: str, rest: bool) -> Wire:
    return Wire(server.http, server.url, version, rest)


@pytest.fixture
async def live() -> AsyncIterator[Liveness]:
    async with listening() as live:
        yield live


def unique() -> str:
    return str(uuid.uuid4())


def inner(item: Json) -> Json:
    """A task without the envelope of its version."""
    found: Json = item.get("task", item)
    return found


def is_task(item: Json) -> bool:
    return "task" in item or item.get("kind") == "task"


def reset(item: Json) -> Any:
    return (inner(item).get("metadata") or {}).get("bridge", {}).get("reset")


# --- after the end -----------------------------------------------------------------------------


@each_wire
async def test_an_ended_stream_resumes_after_every_number(wire: Wire) -> None:
    message = wire.message(SCRIPT, unique())
    whole = await wire.sent(message)
    task, updates = task_id(whole[0][1]), whole[1:]
    assert is_task(whole[0][1]) and state(whole[-1][1]) == "completed"
    assert [number for number, _ in updates] == list(range(1, len(updates) + 1))
    assert len(updates) >= 6
    for number in range(len(updates) + 1):
        rest = updates[number:]
        assert await wire.sent(message, after=number) == rest
        assert await wire.sent(message, seen=number) == rest
        assert await wire.subscribed(task, after=number) == rest
        assert await wire.subscribed(task, seen=number) == rest


@each_wire
async def test_without_a_number_the_task_is_first(wire: Wire) -> None:
    message = wire.message(SCRIPT, unique())
    whole = await wire.sent(message)
    ((number, item),) = await wire.sent(message)
    assert (number, state(item), reset(item)) == (whole[-1][0], "completed", None)
    assert artifact_text(inner(item)) == "one three four"
    with pytest.raises(Refused):
        await wire.subscribed(task_id(item))


JUNK = ["x", "-1", "+1", "1.0", "1e3", "", "0x1", "٣", "9" * 19, "1, 2"]
NO_NUMBERS: list[Any] = ["1", -1, True, 1.5, [], {"after": 1}]


@each_wire
async def test_a_number_that_is_none_is_ignored(wire: Wire) -> None:
    message = wire.message(SCRIPT, unique())
    whole = await wire.sent(message)
    for junk in JUNK:
        (first,) = await wire.sent(message, after=junk)
        assert is_task(first[1]) and reset(first[1]) is None
        with pytest.raises(Refused):
            await wire.subscribed(task_id(whole[0][1]), after=junk)


@each_wire
async def test_metadata_that_is_not_a_number_leaves_the_word_to_the_header(wire: Wire) -> None:
    message = wire.message(SCRIPT, unique())
    whole = await wire.sent(message)
    for junk in NO_NUMBERS:
        assert await wire.sent(message, after=3, seen=junk) == whole[4:]
        assert await wire.subscribed(task_id(whole[0][1]), after=3, seen=junk) == whole[4:]


@each_wire
async def test_metadata_counts_more_than_the_header(wire: Wire) -> None:
    """The member is set by the author of the request; a program in between may set the header."""
    message = wire.message(SCRIPT, unique())
    whole = await wire.sent(message)
    assert await wire.sent(message, after=1, seen=4) == whole[5:]
    assert await wire.subscribed(task_id(whole[0][1]), after=1, seen=0) == whole[1:]


@each_wire
async def test_a_number_from_another_life_gets_the_task_again(wire: Wire) -> None:
    message = wire.message(SCRIPT, unique())
    whole = await wire.sent(message)
    task, last = task_id(whole[0][1]), whole[-1][0]
    for beyond in (last + 1, last + 1000, 10**18 - 1):
        for answer in (
            await wire.sent(message, after=beyond),
            await wire.sent(message, seen=beyond),
            await wire.subscribed(task, after=beyond),
            await wire.subscribed(task, seen=beyond),
        ):
            ((number, item),) = answer
            assert (number, is_task(item), reset(item)) == (last, True, True)
            assert artifact_text(inner(item)) == "one three four"


@each_wire
async def test_numbers_of_another_version_get_the_task_again(server: Server, wire: Wire) -> None:
    """Of the server that has written the task, see tests/component/store/test_mirrors.py."""
    whole = await wire.sent(wire.message(SCRIPT, unique()))
    task, last = task_id(whole[0][1]), whole[-1][0]
    handle = await server.managers[0].get(task)
    handle.renumbered = True
    ((number, item),) = await wire.subscribed(task, after=2)
    assert (number, is_task(item), reset(item)) == (last, True, True)


@each_wire
async def test_a_new_message_begins_with_its_task_whatever_number_it_has(wire: Wire) -> None:
    """A browser's EventSource, or a proxy, may send the number of another stream."""
    whole = await wire.sent(wire.message(SCRIPT, unique()), after=3, seen=4)
    assert is_task(whole[0][1]) and reset(whole[0][1]) is None
    assert [number for number, _ in whole[1:]] == list(range(1, len(whole)))
    assert streamed_text([item for _, item in whole]) == "one three four"


@each_wire
async def test_a_message_without_a_unique_id_is_a_new_one(wire: Wire) -> None:
    message = wire.message(SCRIPT, "m-1")
    first, second = await wire.sent(message), await wire.sent(message, after=2)
    assert task_id(first[0][1]) != task_id(second[0][1])


# --- during the run ----------------------------------------------------------------------------


@each_wire
async def test_a_running_stream_resumes_after_every_number(wire: Wire, live: Liveness) -> None:
    script = f"{SCRIPT.removesuffix('done five')}wait {live.path} agent\ntext  five\nstatus six"
    message = wire.message(script, unique())
    async with asyncio.timeout(WITHIN), wire.send(message) as items:
        whole = [await anext(items) for _ in range(6)]
        task, seen = task_id(whole[0][1]), whole[-1][0]
        await live.pid("agent")
        streams = [
            asyncio.create_task(one)
            for number in range(seen + 1)
            for one in (
                wire.sent(message, after=number),
                wire.sent(message, seen=number),
                wire.subscribed(task, after=number),
                wire.subscribed(task, seen=number),
            )
        ]
        beyond = asyncio.create_task(wire.subscribed(task, after=10**6))
        async with wire.subscribe(task, after=seen - 1) as other:
            assert await anext(other) == whole[-1]  # while the agent still works
        await live.release("agent")
        whole += [item async for item in items]
        for place, stream in enumerate(streams):
            assert await stream == whole[1 + place // 4 :]
        first, *rest = await beyond
    assert (is_task(first[1]), reset(first[1])) == (True, True)
    assert rest == whole[first[0] + 1 :]


@each_wire
async def test_the_stream_of_an_answer_resumes_after_every_number(wire: Wire) -> None:
    question = await wire.sent(wire.message("text a\npermit q May I?\ntext b\ndone", unique()))
    task = task_id(question[0][1])
    answer = wire.message("yes", unique(), taskId=task)
    whole = await wire.sent(answer)
    assert state(question[-1][1]) == "input-required" and state(whole[-1][1]) == "completed"
    asked, shown = question[-1][0], whole[0][0]  # the answer had brought an update by then
    everything = await wire.subscribed(task, after=0)
    assert [number for number, _ in everything] == list(range(1, whole[-1][0] + 1))
    assert everything[shown:] == whole[1:]
    for number in range(asked, whole[-1][0] + 1):
        assert await wire.sent(answer, after=number) == everything[number:]


@each_wire
async def test_the_first_stream_ends_at_its_question_again(wire: Wire) -> None:
    message = wire.message("text a\npermit q May I?\ntext b\ndone", unique())
    whole = await wire.sent(message)
    for number in range(whole[-1][0]):
        assert await wire.sent(message, after=number) == whole[number + 1 :]


# --- across the end of a server ----------------------------------------------------------------


def settings(workspace: Path) -> Mapping[str, Any]:
    return {
        "AGENT_ADAPTER": "jsonl",
        "AGENT_BINARY": sys.executable,
        "AGENT_ARGS": f"-I -S {PROGRAM}",
        "BRIDGE_STATE_DIR": str(workspace.parent / "state"),
        "BRIDGE_DRAIN_MS": "0",
    }


@each_wire
async def test_a_stream_continues_with_the_next_server(
    workspace: Path, http: aiohttp.ClientSession, live: Liveness, version: str, rest: bool
) -> None:
    """From every number that a client can have seen, for a running and for an ended task."""
    script = f"{SCRIPT.removesuffix('done five')}wait {live.path} agent\ntext  five\nstatus six"
    async with bridge(workspace, **settings(workspace)) as server:
        wire = Wire(http, server.url, version, rest)
        ended = wire.message(SCRIPT, unique())
        old = await wire.sent(ended)
        message = wire.message(script, unique())
        async with asyncio.timeout(WITHIN), wire.send(message) as items:
            seen = [await anext(items) for _ in range(6)]
            await live.pid("agent")
        await server.stop(signal.SIGKILL)
    async with bridge(workspace, **settings(workspace)) as server:
        wire, task = wire.moved(server.url), task_id(seen[0][1])
        streams = [
            asyncio.create_task(one)
            for number in range(seen[-1][0] + 1)
            for one in (
                wire.sent(message, after=number),
                wire.subscribed(task, seen=number),
            )
        ]
        for number in range(len(old)):
            assert await wire.sent(ended, after=number) == old[number + 1 :]
            assert await wire.subscribed(task_id(old[0][1]), after=number) == old[number + 1 :]
        ((_, item),) = await wire.sent(ended, after=1000)
        assert (reset(item), artifact_text(inner(item))) == (True, "one three four")
        async with asyncio.timeout(WITHIN), wire.subscribe(task, after=0) as items:
            whole = [seen[0], *[await anext(items) for _ in range(5)]]
            assert whole == seen  # what was told before is told again, to the letter
            await live.release("agent")
            whole += [item async for item in items]
        for place, stream in enumerate(streams):
            assert await stream == whole[1 + place // 2 :]
        assert [number for number, _ in whole[1:]] == list(range(1, len(whole)))
        assert streamed_text([item for _, item in whole]) == "one three four five"
