"""Streams: framing, order, subscribers of every kind, and when each of them ends."""

from __future__ import annotations

import asyncio
import json
import select
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from bridge.transports.stream import HEARTBEAT
from tests.support.client import (
    Client,
    Json,
    RpcError,
    artifact_text,
    facts,
    said,
    state,
    states,
    streamed_text,
    task_id,
    texts,
)
from tests.support.liveness import Liveness, listening
from tests.support.served import Server, serving

WITHIN = 60.0


@pytest.fixture
async def server(workspace: Path) -> AsyncIterator[Server]:
    async with serving(workspace) as server:
        yield server


@pytest.fixture(params=["1.0", "0.3"])
def client(server: Server, request: pytest.FixtureRequest) -> Client:
    return server.client(request.param)


@pytest.fixture
async def live() -> AsyncIterator[Liveness]:
    async with listening() as live:
        yield live


async def collect(stream: AbstractAsyncContextManager[AsyncIterator[Json]]) -> list[Json]:
    async with asyncio.timeout(WITHIN), stream as items:
        return [item async for item in items]


async def until(items: AsyncIterator[Json], wanted: Callable[[Json], bool]) -> list[Json]:
    """The items up to the first that is wanted."""
    found: list[Json] = []
    async with asyncio.timeout(WITHIN):
        async for item in items:
            found.append(item)
            if wanted(item):
                return found
    raise AssertionError(f"the stream ended: {found}")


def final(item: Json) -> bool | None:
    """The member `final` of a status update of 0.3."""
    return item.get("final") if item.get("kind") == "status-update" else None


def is_task(item: Json) -> bool:
    return "task" in item or item.get("kind") == "task"


def body(method: str, params: Json) -> Json:
    return {"jsonrpc": "2.0", "id": "s-1", "method": method, "params": params}


# --- framing -----------------------------------------------------------------------------------


async def raw_stream(client: Client, text: str) -> tuple[Any, bytes]:
    """The response's headers and its body, byte for byte."""
    method = "message/stream" if client.version == "0.3" else "SendStreamingMessage"
    url, headers = f"{client.url}/a2a/jsonrpc", {"A2A-Version": client.version}
    request = body(method, {"message": client.message(text)})
    async with client.session.post(url, json=request, headers=headers) as response:
        return response, await response.read()


async def test_a_stream_is_server_sent_events(client: Client) -> None:
    odd = "a\\u2028b\\u0085c\\r\\nd"
    response, stream = await raw_stream(client, f'line {{"type":"text","text":"{odd}"}}\nstatus x')
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/event-stream"
    assert "no-" in response.headers["Cache-Control"]
    assert response.headers["X-Accel-Buffering"] == "no"
    frames = [frame for frame in stream.split(b"\n\n") if frame and not frame.startswith(b":")]
    assert stream.endswith(b"\n\n")
    numbers = []
    for frame in frames:
        number, data = frame.split(b"\n")
        assert number.startswith(b"id: ") and data.startswith(b"data: ")
        assert b"\r" not in frame
        numbers.append(int(number[4:]))
        answer = json.loads(data[6:])
        assert (answer["jsonrpc"], answer["id"]) == ("2.0", "s-1")
        assert set(answer) == {"jsonrpc", "id", "result"}
    assert numbers == sorted(set(numbers)) and len(numbers) >= 4
    items = [json.loads(frame.split(b"\n")[1][6:])["result"] for frame in frames]
    assert streamed_text(items) == json.loads(f'"{odd}"')


async def test_the_task_comes_first_and_the_terminal_status_last(client: Client) -> None:
    items = await client.collect("text Hello\nstatus working\ntext  you\ndone bye")
    assert is_task(items[0]) and not any(map(is_task, items[1:]))
    assert states(items) == ["submitted", "working", "completed"]
    assert state(items[-1]) == "completed" and said(items[-1]) == "Hello you\n\nbye"
    assert streamed_text(items) == "Hello you"
    if client.version == "0.3":
        finals = [final(item) for item in items if item["kind"] == "status-update"]
        assert finals == [False] * (len(finals) - 1) + [True]
    else:
        assert not any("final" in update for item in items for update in item.values())
        assert all(len(item) == 1 for item in items)
    task = await client.get(task_id(items[0]))
    assert artifact_text(task) == "Hello you"


async def test_chunks_of_an_artifact_add_up_to_it(client: Client) -> None:
    items = await client.collect("flood 300\ndone")
    updates = [item.get("artifactUpdate", item) for item in items]
    updates = [update for update in updates if "artifact" in update]
    assert [update["append"] for update in updates] == [False] + [True] * (len(updates) - 1)
    assert [update["lastChunk"] for update in updates] == [False] * (len(updates) - 1) + [True]
    assert len({update["artifact"]["artifactId"] for update in updates}) == 1
    text = "".join(f"{number} " for number in range(300))
    assert streamed_text(items) == text
    assert artifact_text(await client.get(task_id(items[0]))) == text


async def test_a_client_hears_something_before_the_agent_has_said_a_word(
    server: Server, live: Liveness
) -> None:
    async def listen(version: str) -> None:
        client, name = server.client(version), f"agent-{version}"
        method = "message/stream" if version == "0.3" else "SendStreamingMessage"
        message = client.message(f"wait {live.path} {name}\nreply Hello")
        url, headers = f"{client.url}/a2a/jsonrpc", {"A2A-Version": version}
        request = body(method, {"message": message})
        async with asyncio.timeout(WITHIN):
            response = await client.session.post(url, json=request, headers=headers)
            assert await response.content.readline() == b": ping\n"
        async with response, asyncio.timeout(WITHIN):
            await live.release(name)
            assert b"Hello" in await response.read()

    await asyncio.gather(listen("1.0"), listen("0.3"))


async def test_a_silent_stream_has_heartbeats(server: Server, live: Liveness) -> None:
    assert HEARTBEAT < 5  # seconds of silence, after which the official client disconnects
    client = server.client("1.0")
    task = await client.send_now(f"wait {live.path} agent")
    await live.pid("agent")
    request = body("SubscribeToTask", {"id": task["id"]})
    url, headers = f"{client.url}/a2a/jsonrpc", {"A2A-Version": "1.0"}
    async with client.session.post(url, json=request, headers=headers) as response:
        lines: list[bytes] = []
        while not (lines and lines[-1].startswith(b":")):
            async with asyncio.timeout(WITHIN):
                lines.append(await response.content.readline())
        assert lines[0].startswith(b"id: ")
        await live.release("agent")
        rest = await response.read()
        assert b"COMPLETED" in rest
        # A blank line dispatches an event in some clients, even one that has no data.
        whole = b"".join(lines) + rest
        assert whole.count(b"\n\n") == whole.count(b"data: ") == whole.count(b"id: ")


# --- replies -----------------------------------------------------------------------------------


async def test_a_direct_reply_is_the_whole_stream(client: Client) -> None:
    items = await client.collect("reply Hello")
    assert len(items) == 1
    message = items[0].get("message", items[0])
    assert texts(message["parts"]) == "Hello"
    if client.version == "0.3":
        assert message["kind"] == "message"
    else:
        assert set(items[0]) == {"message"}


# --- questions ---------------------------------------------------------------------------------


async def test_the_stream_of_a_send_ends_at_a_question(client: Client) -> None:
    items = await collect(client.stream("text a\npermit q-1 May I?\ntext b"))
    assert states(items) == ["submitted", "working", "input-required"]
    assert facts(items[-1])["questionId"] == f"{task_id(items[0])[:8]}-1"
    if client.version == "0.3":
        assert final(items[-1]) is True
        assert not any(final(item) for item in items[:-1])
    answered = await collect(client.stream("yes", taskId=task_id(items[0])))
    assert is_task(answered[0]) and task_id(answered[0]) == task_id(items[0])
    assert states(answered) == ["working", "completed"]
    task = await client.get(task_id(items[0]))
    assert artifact_text(task) == 'a\n\nanswered ["q-1", "yes", "yes"]b'


async def test_the_stream_stays_open_while_a_login_is_waited_for(client: Client) -> None:
    async with client.stream("login l-1 Please log in\ntext b") as items:
        asked = await until(items, lambda item: state(item) == "auth-required")
        assert not any(final(item) for item in asked)
        await client.send("done", taskId=task_id(asked[0]))
        rest = await until(items, lambda item: state(item) == "completed")
        assert streamed_text(rest).endswith("b")


async def test_a_subscription_stays_open_at_a_question(client: Client) -> None:
    task = await client.send("text a\npermit q-1 May I?\ntext b")
    async with client.subscribe(task["id"]) as items:
        first = await until(items, is_task)
        assert state(first[0]) == "input-required"
        await client.send("no", taskId=task["id"])
        rest = await until(items, lambda item: state(item) == "completed")
        assert [item async for item in items] == []
    assert states(rest) == ["working", "completed"]


async def test_an_answer_that_is_not_understood_ends_its_stream_with_the_question(
    client: Client,
) -> None:
    task = await client.send("ask q-1 Which?")
    items = await collect(client.stream(" ", taskId=task["id"]))
    assert is_task(items[0]) and state(items[-1]) == "input-required"
    assert said(items[-1]).endswith("Which?")


# --- subscribers -------------------------------------------------------------------------------


async def test_all_subscribers_see_the_same_updates_in_the_same_order(
    client: Client, live: Liveness
) -> None:
    script = f"wait {live.path} agent\nflood 500\nstatus a\nstatus b\ndone"
    task = await client.send_now(script)
    await live.pid("agent")
    async with asyncio.TaskGroup() as group:
        ready = [asyncio.Event() for _ in range(5)]

        async def subscriber(event: asyncio.Event) -> list[Json]:
            async with client.subscribe(task["id"]) as items:
                found = []
                async for item in items:
                    found.append(item)
                    event.set()
                return found

        streams = [group.create_task(subscriber(event)) for event in ready]
        async with asyncio.timeout(WITHIN):
            for event in ready:
                await event.wait()
        await live.release("agent")
    first = streams[0].result()
    assert is_task(first[0]) and state(first[-1]) == "completed"
    assert streamed_text(first) == "".join(f"{number} " for number in range(500))
    for stream in streams[1:]:
        assert stream.result() == first


async def test_a_later_subscriber_begins_with_the_current_task(
    client: Client, live: Liveness
) -> None:
    task = await client.send_now(f"text a \nwait {live.path} agent\ntext b\ndone")
    await live.pid("agent")
    async with client.subscribe(task["id"]) as items:
        first = (await until(items, is_task))[0]
        whole = first.get("task", first)
        assert artifact_text(whole) == "a "
        await live.release("agent")
        rest = await until(items, lambda item: state(item) == "completed")
    updates = [item.get("artifactUpdate", item) for item in rest]
    pieces = [texts(u["artifact"]["parts"]) for u in updates if "artifact" in u]
    assert "".join(pieces) == "b"


async def test_a_subscriber_that_goes_away_ends_nothing(
    client: Client, live: Liveness, caplog: pytest.LogCaptureFixture
) -> None:
    async with client.stream(f"text a\nwait {live.path} agent\ntext b\nstatus c") as items:
        first = (await until(items, is_task))[0]
        await live.pid("agent")
        async with client.subscribe(task_id(first)) as others:
            await until(others, is_task)
        assert live.alive("agent")
    await live.release("agent")
    final_items = []
    try:
        final_items = await collect(client.subscribe(task_id(first)))
    except RpcError as error:  # it has ended meanwhile
        assert error.code == -32004
    assert not final_items or state(final_items[-1]) == "completed"
    async with asyncio.timeout(WITHIN):
        task = await client.get(task_id(first))
        while state(task) != "completed":
            task = await client.get(task_id(first))
    assert artifact_text(task) == "ab"
    assert "stream failed" not in caplog.text


async def never_reads(
    client: Client, method: str, params: Json, path: Path | None = None
) -> socket.socket:
    """A client with the smallest buffers that sends a request and then reads nothing. `path`: of
    the Unix socket that it uses."""
    host, port = client.url.removeprefix("http://").split(":")
    stalled = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    stalled.connect(str(path) if path else (host, int(port)))
    data = json.dumps(body(method, params)).encode()
    head = (
        f"POST /a2a/jsonrpc HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"A2A-Version: {client.version}\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    await asyncio.to_thread(stalled.sendall, head.encode() + data)
    return stalled


async def test_a_client_that_never_reads_slows_no_other_client_and_is_cut_off(
    workspace: Path, live: Liveness
) -> None:
    """One over TCP, and one over a Unix socket."""
    path = Path(live.path).with_name("server")
    stall: Json = {"bridge_stall_timeout_ms": 500, "bridge_unix_socket": str(path)}
    async with serving(workspace, **stall) as server:
        client = server.client("1.0")
        script = f"wait {live.path} agent\n" + "repeat 1000000 x\n" * 12 + "done"
        named = {"id": (await client.send_now(script))["id"]}
        await live.pid("agent")
        stalled = [await never_reads(client, "SubscribeToTask", named, on) for on in (None, path)]
        async with client.subscribe(named["id"]) as items:
            await until(items, is_task)
            await live.release("agent")
            rest = await until(items, lambda item: state(item) == "completed")
        assert streamed_text(rest) == "x" * 12_000_000
        async with asyncio.timeout(WITHIN):
            while not all(map(is_closed, stalled)):
                await client.get(named["id"])
        for one in stalled:
            with one, pytest.raises(ConnectionResetError):
                await asyncio.to_thread(read_to_the_end, one)
        assert state(await client.send("text a")) == "completed"


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed it. Reads nothing."""
    poll = select.poll()
    poll.register(connection, 0)
    return bool(poll.poll(0))


def read_to_the_end(connection: socket.socket) -> None:
    async_end = b"\r\n0\r\n\r\n"
    tail = b""
    while data := connection.recv(2**16):
        tail = (tail + data)[-20:]
        assert not tail.endswith(async_end), "the stream came to its proper end"
    raise ConnectionResetError


async def test_a_task_that_ends_while_its_stream_begins_loses_nothing(server: Server) -> None:
    """The first item is so large that a client which reads slowly holds it back."""
    client = server.client("0.3")
    script = "text a\nstatus b\n" + f"unknown {'x' * 8_000_000}\n" + "done"
    params = {"message": client.message(script, contextId="c")}
    with await never_reads(client, "message/stream", params) as slow:
        async with asyncio.timeout(WITHIN):
            while server.managers[0].figures() != {"tasks": 0, "contexts": 1}:
                async with client.session.get(f"{client.url}/health") as response:
                    await response.read()
        slow.settimeout(WITHIN)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**22)
        stream = b""
        while not stream.endswith(b"0\r\n\r\n"):
            data = await asyncio.to_thread(slow.recv, 2**20)
            assert data, "the stream was cut"
            stream += data
    assert b'"state":"completed"' in stream and b'"final":true' in stream


async def test_resubscribing_again_and_again_costs_nothing_that_stays(
    client: Client, live: Liveness
) -> None:
    task = await client.send_now(f"wait {live.path} agent\ntext a")
    await live.pid("agent")
    for _ in range(30):
        async with client.subscribe(task["id"]) as items:
            await until(items, is_task)
    async with client.subscribe(task["id"]) as items:
        await until(items, is_task)
        await live.release("agent")
        await until(items, lambda item: state(item) == "completed")


# --- thoughts, cancel, errors ------------------------------------------------------------------


async def test_thoughts_are_not_shown(client: Client) -> None:
    items = await client.collect("thought secret plan\ntext a")
    assert "secret plan" not in json.dumps(items[1:])


async def test_thoughts_are_shown_where_the_operator_wants_it(workspace: Path) -> None:
    async with serving(workspace, bridge_thoughts="always") as server:
        items = await server.client().collect("thought a plan\ntext a")
    assert facts(items[1]) == {"type": "thought", "text": "a plan"}


async def test_a_canceled_task_ends_its_streams(client: Client, live: Liveness) -> None:
    async with client.stream(f"text a\nwait {live.path} agent") as items:
        first = (await until(items, is_task))[0]
        await live.pid("agent")
        async with client.subscribe(task_id(first)) as others:
            await until(others, is_task)
            await client.cancel(task_id(first))
            for stream in (items, others):
                last = (await until(stream, lambda item: state(item) == "canceled"))[-1]
                assert final(last) in (None, True)
                assert [item async for item in stream] == []


async def test_a_task_in_the_queue_streams_from_the_beginning(
    client: Client, live: Liveness
) -> None:
    await client.send_now(f"wait {live.path} agent", contextId="c")
    await live.pid("agent")
    async with client.stream("turn", contextId="c") as items:
        await live.release("agent")
        found = await until(items, lambda item: state(item) == "completed")
    assert states(found) == ["submitted", "working", "completed"]
    assert streamed_text(found) == "2"


STREAM_ERRORS = [
    ({"A2A-Version": "0.3"}, "tasks/resubscribe", {"id": "nope"}, -32001),
    ({"A2A-Version": "0.3"}, "message/stream", {}, -32602),
    ({"A2A-Version": "0.3"}, "message/stream", [], -32602),
    ({}, "tasks/resubscribe", {"id": "nope"}, -32001),
]


@pytest.mark.parametrize(("headers", "method", "params", "code"), STREAM_ERRORS)
async def test_a_client_that_reads_streams_only_gets_the_error_as_one(
    server: Server, headers: dict[str, str], method: str, params: Any, code: int
) -> None:
    url = f"{server.url}/a2a/jsonrpc"
    for accept in ("text/event-stream", "application/json, text/event-stream", "*/*", None):
        given = {**headers, **({"Accept": accept} if accept else {})}
        async with server.http.post(url, json=body(method, params), headers=given) as response:
            text = await response.text()
        assert response.status == 200
        if accept == "text/event-stream":
            assert response.content_type == "text/event-stream"
            assert text.startswith("data: ") and text.endswith("\n\n") and text.count("\n") == 2
            answer = json.loads(text[6:])
        else:
            assert response.content_type == "application/json"
            answer = json.loads(text)
        assert (answer["id"], answer["error"]["code"]) == ("s-1", code)


async def test_errors_of_streams_are_plain_json_in_1_0(server: Server) -> None:
    headers = {"A2A-Version": "1.0", "Accept": "text/event-stream"}
    request = body("SubscribeToTask", {"id": "nope"})
    url = f"{server.url}/a2a/jsonrpc"
    async with server.http.post(url, json=request, headers=headers) as response:
        assert response.content_type == "application/json"
        assert (await response.json())["error"]["code"] == -32001


async def test_the_end_of_the_server_ends_streams_and_blocking_sends(
    workspace: Path, live: Liveness
) -> None:
    async with serving(workspace) as server:
        client = server.client()
        sending = asyncio.create_task(client.send(f"wait {live.path} agent"))
        await live.pid("agent")
        async with client.stream(f"text a\nwait {live.path} other") as items:
            await until(items, is_task)
            await live.pid("other")
            await server.managers[0].close(drain=0)
            last = (await until(items, lambda item: state(item) == "failed"))[-1]
        assert "shut down" in said(last)
        assert state(await sending) == "failed"
        with pytest.raises(RpcError) as raised:
            await client.send("text a")
        assert raised.value.code == -32603 and "shutting down" in str(raised.value)
