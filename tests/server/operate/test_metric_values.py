"""The values of the metrics after what really happens to a server: each scenario states the series
that it increases. Those of the events of tasks in all their forms: test_task_metrics.py."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from bridge.auth.token_bucket import LINES_A_BURST
from bridge.task.rules.approval_policy import Rule
from bridge.telemetry.metrics.catalog import CATALOG, REFUSALS
from tests.support import prometheus
from tests.support.client import Client, Json, RpcError, state, task_id
from tests.support.liveness import Liveness, listening
from tests.support.principals import As, headers
from tests.support.principals import server as with_principals
from tests.support.prometheus import Page, Series, page_of
from tests.support.receivers import Receiver, accept, receiving
from tests.support.served import Server, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
WITHIN = 60.0
RULES = (Rule("allow", tool="Bash", command="git *"),)
Values = Mapping[Series, float]
OF_AN_AGENT = {one.name for one in CATALOG if "agent" in one.labels}


def series(name: str, **labels: str) -> Series:
    """The key of a series, with the label of the only agent where it belongs."""
    agent = any(name.startswith(one) for one in OF_AN_AGENT)
    return prometheus.series(name, **({"agent": "jsonl"} if agent else {}), **labels)


@dataclass(frozen=True)
class Place:
    """A server, a program that tells the test that it lives, and the folder of the test."""

    server: Server
    live: Liveness
    folder: Path

    @property
    def client(self) -> Client:
        return self.server.client()

    async def page(self) -> Page:
        return await page_of(self.server.http, self.server.url)

    async def until(self, holds: Callable[[Page], bool]) -> Page:
        """The first page for which this holds."""
        async with asyncio.timeout(WITHIN):
            while not holds(page := await self.page()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return page


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    folder = tmp_path_factory.mktemp("values")
    (folder / "workspace").mkdir()
    settings: dict[str, Any] = {
        "rules": RULES,
        "bridge_stop_grace_ms": 100,
        "bridge_stall_timeout_ms": 300,
        "bridge_header_timeout_ms": 300,
        "bridge_max_connections_per_second": 0,
        "bridge_unix_socket": str(folder / "socket"),
    }
    async with (
        serving(folder / "workspace", **settings) as server,
        listening() as live,
    ):
        yield Place(server, live, folder)


def lines(*said: Json) -> str:
    return "\n".join(f"line {json.dumps(one)}" for one in said)


# --- scenarios ------------------------------------------------------------------------------------


async def uses_tools(at: Place) -> None:
    script = lines(
        {"type": "tool_call", "id": "1", "name": "Bash", "input": {"command": "ls"}},
        {"type": "tool_result", "id": "1", "output": "x"},
        {"type": "tool_call", "id": "2", "name": "read_file", "input": {}},
        {"type": "tool_result", "id": "2", "output": "no", "isError": True},
        {"type": "usage", "inputTokens": 30, "outputTokens": 4, "costUsd": 0.25},
        {"type": "usage", "inputTokens": 50, "outputTokens": 9, "costUsd": 0.5}
        | {"cacheReadTokens": 7, "cacheCreationTokens": 3},
    )
    assert state(await at.client.send(f"{script}\ndone")) == "completed"


async def asks(at: Place) -> None:
    """A rule answers the first question, the client the second one."""
    options = [{"id": "y", "name": "Yes", "kind": "allow_once"}]
    about = {"name": "Bash", "input": {"command": "git log"}}
    asked = {"type": "question", "id": "a", "text": "May I?", "data": about, "options": options}
    task = await at.client.send(f"{lines(asked)}\nanswers 1\nask q Who?")
    assert state(task) == "input-required"
    page = await at.until(lambda page: page[AGE] > 0)
    assert page[series("bridge_questions_open", kind="text")] == 1
    assert page[series("bridge_sessions", state="waiting")] == 1
    assert state(await at.client.send("me", taskId=task_id(task))) == "completed"
    page = await at.page()
    assert page[AGE] == page[series("bridge_questions_open", kind="text")] == 0


AGE = series("bridge_question_oldest_age_seconds")
QUIET = series("bridge_oldest_event_age_seconds")


async def ends_itself(at: Place) -> None:
    assert state(await at.client.send("exit 3")) == "failed"


async def is_canceled(at: Place) -> None:
    await cancels(at, "polite", "")


async def is_canceled_and_stays(at: Place) -> None:
    await cancels(at, "deaf", "deaf\n")


async def cancels(at: Place, name: str, first: str) -> None:
    task = await at.client.send_now(f"{first}wait {at.live.path} {name}")
    await at.live.pid(name)
    await at.until(lambda page: page[QUIET] > 0)
    await at.client.cancel(task_id(task))
    await at.live.gone(name)


async def does_not_read(at: Place) -> None:
    """An answer of 4 MB. Takes the time after which such a client is cut, and one second in which
    the server does not look."""
    task = await at.client.send("repeat 4000000 x")
    body = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": task_id(task)}}
    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        await sends(at, silent, request(json.dumps(body).encode()))
        await at.until(lambda page: page[CUT] == 1)


CUT = series("bridge_slow_readers_cut_total", binding="http")


def request(body: bytes, **more: str) -> bytes:
    names = {"Host": "localhost", "Content-Type": "application/json", "A2A-Version": "1.0", **more}
    head = "".join(f"{name}: {value}\r\n" for name, value in names.items())
    first = f"POST /a2a/jsonrpc HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n"
    return first.encode() + body


async def sends(at: Place, connection: socket.socket, data: bytes) -> None:
    host, port = at.server.url.removeprefix("http://").split(":")
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, (host, int(port)))
    await loop.sock_sendall(connection, data)


async def sends_garbage(at: Place) -> None:
    """More often than the log has lines for."""
    for _ in range(LINES_A_BURST + 5):
        with socket.socket() as one:
            await sends(at, one, b"\x16\x03\x01 no HTTP\r\n\r\n")
            async with asyncio.timeout(WITHIN):
                answer = await asyncio.get_running_loop().sock_recv(one, 100)
            assert b" 400 " in answer


async def begins_a_request(at: Place) -> None:
    with socket.socket() as slow:
        await sends(at, slow, b"GET /health HTTP/1.1\r\nHost: ")
        async with asyncio.timeout(WITHIN):
            answer = await asyncio.get_running_loop().sock_recv(slow, 100)
        assert answer.startswith(b"HTTP/1.1 408")


async def is_notified(at: Place) -> None:
    """One receiver takes its notifications, one refuses them, one is away for the first one."""

    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.Response(status=410)

    async def fail(request: web.Request) -> web.StreamResponse:
        return web.Response(status=503)

    receivers = [Receiver(), Receiver(refuse), Receiver(fail, accept)]
    async with receiving(*receivers):
        for one in receivers:
            config = {"taskPushNotificationConfig": {"url": one.url}}
            params = {"message": at.client.message("text hi\ndone"), "configuration": config}
            await at.client.call("SendMessage", params)
        page = await at.until(lambda page: page[outcome("retry")] == 1)
        assert page[series("bridge_push_queue")] == 1
        page = await at.until(lambda page: page[series("bridge_push_queue")] == 0)
        assert page[series("bridge_push_dead")] == page[outcome("dead")]
        sent = sum(len(one.requests) for one in receivers)
        assert sent == sum(page[outcome(one)] for one in ("retry", "dead", "delivered"))


def outcome(name: str) -> Series:
    return series("bridge_push_deliveries_total", outcome=name)


async def streams(at: Place) -> None:
    async with at.client.stream(f"text a\nwait {at.live.path} stream\ntext b") as items:
        first = await anext(items)
        await at.live.pid("stream")
        page = await at.page()
        assert page[series("bridge_streams", binding="jsonrpc")] == 1
        assert page[series("bridge_tasks_open", state="working")] == 1
        await at.live.release("stream")
        count = 1 + len([item async for item in items])
    page = await at.until(lambda page: page[series("bridge_streams", binding="jsonrpc")] == 0)
    assert task_id(first)
    assert page[series("bridge_stream_items_total", binding="jsonrpc")] == count


async def comes_over_the_unix_socket(at: Place) -> None:
    connector = aiohttp.UnixConnector(str(at.folder / "socket"))
    async with aiohttp.ClientSession(connector=connector) as http:
        page = await page_of(http, "http://localhost")
        assert page[series("bridge_connections", listener="unix")] == 1
    await at.until(lambda page: page[series("bridge_connections", listener="unix")] == 0)


async def is_a_wrong_request(at: Place) -> None:
    with pytest.raises(RpcError):
        await at.client.get("no-such-task")


async def holds_up_the_event_loop(at: Place) -> None:
    """For half a second, which is the fault that is tested."""
    before = await at.page()
    assert before[series("bridge_event_loop_lag_seconds")] < 10
    time.sleep(0.6)  # noqa: ASYNC251
    assert (await at.page())[series("bridge_event_loop_lag_seconds")] > 0.3


def jsonrpc(operation: str, code: str = "ok") -> Series:
    names = {"operation": operation, "version": "1.0", "code": code}
    return series("bridge_requests_total", binding="jsonrpc", **names)


def ended(name: str, reason: str = "") -> Series:
    return series("bridge_tasks_total", state=name, reason=reason)


Scenario = Callable[[Place], Awaitable[None]]
EXITS, TOKENS, TOOLS = (
    "bridge_process_exits_total",
    "bridge_tokens_total",
    "bridge_tool_calls_total",
)
WAITS, TIMES = "bridge_question_wait_seconds_count", "bridge_tool_duration_seconds_count"
REFUSED = "bridge_requests_refused_total"
SCENARIOS: Mapping[Scenario, Values] = {
    uses_tools: {
        series(TOOLS, kind="execute", outcome="ok"): 1,
        series(TOOLS, kind="read", outcome="error"): 1,
        series(TIMES, kind="execute"): 1,
        series(TIMES, kind="read"): 1,
        series(TOKENS, model="unknown", type="input"): 50,
        series(TOKENS, model="unknown", type="output"): 9,
        series(TOKENS, model="unknown", type="cache_read"): 7,
        series(TOKENS, model="unknown", type="cache_creation"): 3,
        series("bridge_cost_usd_total", model="unknown"): 0.5,
        series("bridge_task_duration_seconds_count"): 1,
        series("bridge_session_starts_total", start="cold"): 1,
        series("bridge_request_duration_seconds_count", binding="jsonrpc", operation="send"): 1,
        jsonrpc("send"): 1,
        ended("completed"): 1,
    },
    asks: {
        series(WAITS, kind="permission", answered_by="rule"): 1,
        series(WAITS, kind="text", answered_by="client"): 1,
        jsonrpc("send"): 2,
        ended("completed"): 1,
    },
    ends_itself: {series(EXITS, reason="exited"): 1, ended("failed", "exit"): 1},
    is_canceled: {
        series(EXITS, reason="terminated"): 1,
        ended("canceled"): 1,
        jsonrpc("cancel"): 1,
    },
    is_canceled_and_stays: {series(EXITS, reason="killed"): 1, ended("canceled"): 1},
    does_not_read: {CUT: 1, ended("completed"): 1},
    sends_garbage: {
        series(REFUSED, reason="malformed"): LINES_A_BURST + 5,
        series("bridge_log_lines_suppressed_total"): 5,
    },
    begins_a_request: {series(REFUSED, reason="slow"): 1},
    is_notified: {outcome("retry"): 1, ended("completed"): 3},
    streams: {jsonrpc("stream"): 1, ended("completed"): 1},
    comes_over_the_unix_socket: {},
    is_a_wrong_request: {jsonrpc("get", "task_not_found"): 1},
    holds_up_the_event_loop: {},
}
COUNTED = (
    *(EXITS, TOKENS, TOOLS, WAITS, TIMES, REFUSED, "bridge_cost_usd_total", "bridge_tasks_total"),
    *("bridge_leftover_processes_total", "bridge_slow_readers_cut_total"),
)
"""Counters that a scenario increases only as stated."""


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: str(one.__name__))
async def test_a_scenario_increases_its_counters(place: Place, scenario: Scenario) -> None:
    before, expected = await place.page(), SCENARIOS[scenario]
    await scenario(place)

    def increased(page: Page) -> dict[Any, float]:
        return {key: page[key] - before[key] for key in page}

    with contextlib.suppress(TimeoutError):  # the comparison below says more
        await place.until(lambda page: increased(page).items() >= expected.items())
    found = increased(await place.page())
    assert {key: found.get(key) for key in expected} == expected
    others = {k: v for k, v in found.items() if v and k[0] in COUNTED}
    assert others == {k: v for k, v in expected.items() if k[0] in COUNTED}


# --- servers of their own -------------------------------------------------------------------------


async def test_a_question_that_nobody_answers_counts_as_timeout(workspace: Path) -> None:
    names = {"kind": "permission", "answered_by": "timeout"}
    async with serving(workspace, bridge_question_timeout_ms=50) as one, listening() as live:
        at = Place(one, live, workspace)
        await at.page()  # the observers begin
        await one.client().send("permit q May I?")
        page = await at.until(lambda page: page[series(WAITS, **names)] == 1)
    assert page[series("bridge_question_wait_seconds_sum", **names)] >= 0.05


async def test_sessions_count_by_their_state_and_start(workspace: Path, tmp_path: Path) -> None:
    """Two slots, one warm session, and a task that waits."""
    async with (
        serving(workspace, bridge_warm_sessions=1, bridge_max_sessions=2) as one,
        listening() as live,
    ):
        at, client = Place(one, live, tmp_path), one.client()
        await at.until(lambda page: page[sessions("warm")] == 1)
        await client.send_now(f"wait {live.path} warm")
        await live.pid("warm")
        await client.send_now(f"wait {live.path} cold")
        await live.pid("cold")
        await client.send_now("text hi")
        page = await at.until(lambda page: page[degraded("saturated")] == 1)
        assert page[series("bridge_tasks_open", state="submitted")] >= 1
        assert page[series("bridge_ready")] == 1
        assert page[sessions("working")] == page[series("bridge_session_slots")] == 2
        began = [page[series(STARTED, start=one)] for one in ("warm", "cold")]
        assert began[0] >= 1 and sum(began) == 2  # a new warm one may begin in time
        await live.release("warm")
        await live.release("cold")
        page = await at.until(lambda page: page[sessions("working")] == 0)
        assert page[sessions("idle")] >= 1
        assert page[degraded("saturated")] == 0


STARTED = "bridge_session_starts_total"


def sessions(name: str) -> Series:
    return series("bridge_sessions", state=name)


def degraded(problem: str) -> Series:
    return series("bridge_degraded", problem=problem)


async def test_a_task_has_its_time_in_the_queue_and_to_the_first_event(workspace: Path) -> None:
    """With an adapter that begins each task with its prompt."""
    cat: dict[str, Any] = {"agent_adapter": "generic", "agent_binary": "/bin/cat", "agent_args": ()}
    async with serving(workspace, **cat) as one:
        await page_of(one.http, one.url)  # the observers begin
        assert state(await one.client().send("hi")) == "completed"
        page = await page_of(one.http, one.url)
    queue = prometheus.series("bridge_task_queue_seconds_count", agent="generic")
    first = prometheus.series("bridge_first_event_seconds_count", agent="generic", start="cold")
    assert (page[queue], page[first]) == (1, 1)


async def test_refusals_count_by_their_reason(tmp_path: Path) -> None:
    quotas = {"tasks": 1}
    settings: dict[str, Any] = {"bridge_max_connections": 3, "bridge_max_connections_per_second": 0}
    async with (
        with_principals(tmp_path, quotas=quotas, **settings) as one,
        listening() as live,
    ):
        boss = Place(one, live, tmp_path)
        await page_of(one.http, one.url, headers("boss"))
        with pytest.raises(RpcError):
            await As(one, "reader").send("text hi")
        task = await As(one, "owner").send_now(f"wait {live.path} x")
        await live.pid("x")
        with pytest.raises(RpcError):
            await As(one, "owner").send_now("text hi")
        params = {"id": task_id(task)}
        body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": params}
        follow = request(json.dumps(body).encode(), **headers("owner"))
        held: list[socket.socket] = []
        answers = []
        for _ in range(4):  # streams; one more than there may be
            held.append(socket.socket())
            await sends(boss, held[-1], follow)
            async with asyncio.timeout(WITHIN):
                answers.append(await asyncio.get_running_loop().sock_recv(held[-1], 100))
        assert b" 503 " in answers[-1]
        for connection in held:
            connection.close()
        await one.managers[0].close(drain=0)
        with pytest.raises(RpcError):
            await As(one, "other").send("text hi")
        page = await page_of(one.http, one.url, headers("boss"))
    found = {dict(labels)["reason"]: value for labels, value in page.samples[REFUSED].items()}
    assert found == {reason: reason not in ("slow", "malformed") for reason in REFUSALS}
