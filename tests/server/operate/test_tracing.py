"""The spans of a server, as a collector gets them."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bridge.errors.extras import install_line
from bridge.server.settings.root import Settings
from bridge.task.events import Done, Event, ToolCall, ToolResult
from bridge.task.message import Message, MessageTrace, Role
from bridge.task.state import Task
from bridge.telemetry.tracing import catalog
from bridge.telemetry.tracing.catalog import SPANS
from bridge.telemetry.tracing.context import TraceContext
from bridge.telemetry.tracing.exporter import QUEUE, SpanQueue
from bridge.telemetry.tracing.spans import EndedSpan
from bridge.telemetry.tracing.tasks import TaskSpans
from bridge.telemetry.tracing.turns import TracedAgent
from tests import CHECKOUT
from tests.support.cases import each
from tests.support.client import Json, RpcError, state
from tests.support.collector import Collector, Span, check_whole, collecting
from tests.support.command_line import refusal_without
from tests.support.grpc_client import connected
from tests.support.mcp import Mcp
from tests.support.receivers import Receiver, accept, receiving
from tests.support.rest import message
from tests.support.restart import asking
from tests.support.served import Server, serving

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{CALLER}-01"
CALL = '{"type":"tool_call","id":"c1","name":"Bash","input":{"command":"cat /etc/hostname"}}'
RESULT = '{"type":"tool_result","id":"c1","output":"secret-host"}'
SCRIPT = f"text Hello\nline {CALL}\nline {RESULT}\npermit q May I?\ndone bye"


def traced(workspace: Path, collector: Collector, **settings: Any) -> Any:
    return serving(workspace, otel_exporter_otlp_endpoint=collector.url, **settings)


def check_table(spans: list[Span]) -> None:
    """Each span is in the table of the server."""
    for span in spans:
        found = [
            one
            for one in SPANS
            if re.sub(r"\{(.+)\}", lambda part: str(span.attributes.get(part[1])), one.name)  # noqa: B023
            == span.name
            and one.kind == span.kind
        ]
        assert len(found) == 1, span
        assert set(span.attributes) <= found[0].attributes | found[0].content, span


async def test_a_turn_is_a_trace(workspace: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with collecting() as collector:
        async with traced(workspace, collector, agent_name="Reviewer") as one:
            client = one.client(traceparent=SAMPLED)
            begun = await client.send_now(SCRIPT)  # the client knows the task from here on
            asked = await asking(client, begun["id"])
            other = one.client("0.3")
            ended = await other.send("yes", taskId=asked["id"])
            assert state(ended) == "completed"
        spans = collector.spans
    check_table(spans)
    turn, tool = collector.one("invoke_agent"), collector.one("execute_tool")
    question, (first, second) = collector.one("bridge.question"), collector.named("SendMessage")
    first, second = sorted((first, second), key=lambda span: span.begin)
    check_whole([one for one in spans if one is not second], CALLER)
    assert (turn.name, turn.kind, turn.parent) == (
        "invoke_agent Reviewer",
        "internal",
        first.span_id,
    )
    assert (tool.name, tool.parent, question.parent) == (
        "execute_tool Bash",
        turn.span_id,
        turn.span_id,
    )
    assert (first.kind, first.parent, first.trace_id) == ("server", CALLER, TRACE)
    assert second.parent == "" and question.links == [(second.trace_id, second.span_id)]
    assert turn.begin <= tool.begin <= tool.end <= question.begin <= question.end <= turn.end
    assert first.begin <= turn.begin < first.end < turn.end  # it outlives the send
    assert turn.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "jsonl",
        "gen_ai.agent.id": "jsonl",
        "gen_ai.agent.name": "Reviewer",
        "gen_ai.conversation.id": asked["contextId"],
        "a2a.task.id": asked["id"],
        "a2a.task.state": "completed",
        "bridge.session.start": "cold",
    }
    assert tool.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "Bash",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.type": "function",
    }
    assert question.attributes == {
        "bridge.question.kind": "permission",
        "bridge.question.answered_by": "client",
    }
    assert collector.one("bridge.session_start").attributes == {"bridge.session.start": "cold"}
    facts = {**second.attributes, "a2a.message.id": "", "bridge.request_id": ""}
    assert facts == {
        "a2a.method.name": "SendMessage",
        "a2a.protocol.version": "0.3",
        "a2a.message.id": "",
        "a2a.task.id": asked["id"],
        "a2a.task.state": "completed",
        "gen_ai.agent.name": "Reviewer",
        "gen_ai.conversation.id": asked["contextId"],
        "client.address": "127.0.0.1",
        "bridge.binding": "jsonrpc",
        "bridge.request_id": "",
    }
    assert collector.resources[0]["service.name"] == "coding-agent-bridge"
    assert not [one for one in collector.bodies if b"secret-host" in one or b"hostname" in one]
    assert not [one for one in collector.bodies if b"May I" in one or b"Hello" in one]
    assert not [one for one in collector.bodies if str(workspace).encode() in one]
    (line,) = [one for one in map(vars, caplog.records) if one.get("event") == "task.ended"]
    assert (line["trace_id"], line["span_id"]) == (turn.trace_id, turn.span_id)


async def test_each_binding_continues_the_trace_of_its_client(workspace: Path) -> None:
    """Header, metadata, envelope and `_meta`."""
    ids = {name: character * 32 for name, character in zip(BINDINGS, "abcde", strict=True)}
    headers = {name: f"00-{trace}-{CALLER}-01" for name, trace in ids.items()}
    settings = {"bridge_grpc_port": 0, "bridge_websocket": True, "bridge_mcp": "true"}
    async with collecting() as collector:
        async with traced(workspace, collector, **settings) as one:
            await one.client(traceparent=headers["jsonrpc"]).send("text a")
            await rest(one, headers["rest"])
            async with connected(str(one.grpc)) as client:
                params = {"message": message("text a")}
                await client.call("SendMessage", params, traceparent=headers["grpc"])
            async with one.http.ws_connect(f"{one.url}/a2a/ws") as socket:
                await socket.send_json(envelope(headers["websocket"]))
                await socket.receive(timeout=20)
            client_of_mcp = Mcp(one.http, one.url)
            body = client_of_mcp.body("tools/call", DELEGATE, traceparent=headers["mcp"])
            sent = client_of_mcp.routing("tools/call", DELEGATE)
            async with one.http.post(client_of_mcp.url, json=body, headers=sent) as response:
                assert response.status == 200 and "a" in await response.text()
        spans = collector.spans
    check_table(spans)
    for name, trace in ids.items():
        own = [span for span in spans if span.trace_id == trace]
        check_whole(own, CALLER)
        (request,) = [span for span in own if span.kind == "server"]
        (turn,) = [span for span in own if span.operation == "invoke_agent"]
        assert (request.name, request.parent, turn.parent) == (
            "SendMessage",
            CALLER,
            request.span_id,
        ), name
        assert request.attributes["bridge.binding"] == name
        assert request.attributes["a2a.task.id"] == turn.attributes["a2a.task.id"]


BINDINGS = ("jsonrpc", "rest", "grpc", "websocket", "mcp")
DELEGATE: Json = {"name": "delegate", "arguments": {"prompt": "text a"}}


async def rest(one: Server, traceparent: str) -> None:
    headers = {"traceparent": traceparent, "A2A-Version": "1.0"}
    body = {"message": message("text a")}
    async with one.http.post(f"{one.url}/a2a/rest/message:send", json=body, headers=headers) as got:
        assert got.status == 200, await got.text()


def envelope(traceparent: str) -> Json:
    parameters = {"A2A-Version": "1.0", "traceparent": traceparent}
    params = {"message": message("text a")}
    request = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    return {**request, "a2a-service-parameters": parameters}


async def test_requests_that_fail_and_those_that_are_not_sampled(workspace: Path) -> None:
    async with collecting() as collector:
        async with traced(workspace, collector) as one:
            with pytest.raises(RpcError):
                await one.client().get("nothing")
            await one.client(traceparent=f"00-{TRACE}-{CALLER}-00").send("text a")
        (failed,) = [span for span in collector.spans if span.name == "GetTask"][:1]
        assert failed.failed and failed.attributes["error.type"] == "-32001"
        assert not [span for span in collector.spans if span.trace_id == TRACE]
        assert not collector.named("invoke_agent")


async def test_a_request_that_only_reads_has_a_span_if_its_client_has_one(workspace: Path) -> None:
    async with collecting() as collector:
        async with traced(workspace, collector) as one:
            task = await one.client().send("text a")
            await one.client().get(task["id"])
            await one.client().call("ListTasks", {})
            await one.client(traceparent=SAMPLED).get(task["id"])
        assert [span.name for span in collector.spans if span.kind == "server"] == [
            *("SendMessage", "GetTask")
        ]
        assert collector.one("GetTask").parent == CALLER


async def test_push_attempts_are_spans_of_the_turn(workspace: Path) -> None:
    """The first one gets no retry."""
    receiver = Receiver(refuse, accept)
    async with collecting() as collector, receiving(receiver):
        async with traced(workspace, collector) as one:
            config = {"taskPushNotificationConfig": {"url": receiver.url, "token": "my-token"}}
            await one.client().send("status x\nstatus y\ntext a", config)
            await receiver.got(3)
        attempts = collector.named("POST")
        turn = collector.one("invoke_agent")
    first, second = attempts[:2]
    assert {span.parent for span in attempts} == {turn.span_id}
    assert {span.kind for span in attempts} == {"client"}
    assert first.attributes == {
        "http.request.method": "POST",
        "server.address": "127.0.0.1",
        "http.response.status_code": 404,
        "error.type": "404",
    }
    assert (second.attributes["http.response.status_code"], second.failed) == (202, False)
    assert not [body for body in collector.bodies if b"my-token" in body]


async def refuse(request: web.Request) -> web.Response:
    return web.Response(status=404)


async def test_content_is_recorded_on_request_and_without_secrets(workspace: Path) -> None:
    secret, settings = "a-secret-of-the-collector", {**CONTENT}
    headers = f"x-key={secret},authorization=Bearer%20{secret}-2"
    async with collecting() as collector:
        async with traced(
            workspace, collector, **settings, otel_exporter_otlp_headers=headers
        ) as one:
            call = CALL.replace("cat", f"curl {secret}")
            await one.client().send(
                f"line {call}\nline {RESULT}\ntext key {secret}-2 {LEAKED}\ndone"
            )
        (turn,) = collector.named("invoke_agent")
        (tool,) = collector.named("execute_tool")
    check_table(collector.spans)
    assert collector.headers[0]["x-key"] == secret
    assert collector.headers[0]["Authorization"] == f"Bearer {secret}-2"
    (said,) = json.loads(turn.attributes["gen_ai.output.messages"])
    assert said["parts"][0]["content"].startswith("key [redacted]")
    assert json.loads(turn.attributes["gen_ai.input.messages"])[0]["role"] == "user"
    assert "curl [redacted]" in tool.attributes["gen_ai.tool.call.arguments"]
    assert tool.attributes["gen_ai.tool.call.result"] == '"secret-host"'
    sent = b"".join(collector.bodies)
    assert secret.encode() not in sent and LEAKED.encode() not in sent


CONTENT = {"otel_instrumentation_genai_capture_message_content": True}
LEAKED = "ghp_" + "a1B2" * 10


# --- tasks of another server ---------------------------------------------------------------------


def begun() -> Task:
    task = Task("t", "c", datetime(2026, 1, 1, tzinfo=UTC))
    task.history.append(Message("m", Role.USER, (), trace=MessageTrace(SAMPLED)))
    return task


async def test_the_spans_of_a_restored_task_are_those_of_its_journal() -> None:
    """Also of a task that the server began, lost to another one, and restored."""
    journal: list[Event] = [ToolCall("x", "Bash", {}), ToolResult("x", ""), Done()]

    async def read(task_id: str) -> AsyncIterator[tuple[Sequence[Event], datetime]]:
        for event in journal:
            yield [event], datetime(2026, 1, 1, 1, tzinfo=UTC)

    for known in (False, True):
        spans: list[EndedSpan] = []
        observer = TaskSpans(TracedAgent("a", "A", "p"), spans.append, read)
        if known:
            observer.began(begun())
        task = begun()
        task.apply(Done(), task.created)
        observer.recorded(task, [Done()], task.created)
        assert spans == []  # the end is not committed yet
        await observer.settle(5)
        assert [span.name for span in spans] == ["execute_tool Bash", "invoke_agent A"]
        observer.recorded(task, [Done()], task.created)
        await observer.settle(5)
        assert len(spans) == 4 and spans[:2] == spans[2:]  # nothing is kept


async def test_a_journal_that_cannot_be_read_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def read(task_id: str) -> AsyncIterator[tuple[Sequence[Event], datetime]]:
        raise LookupError(task_id)
        yield [], datetime.now(UTC)

    task = begun()
    observer = TaskSpans(TracedAgent("a", "A", "p"), lambda span: None, read)
    observer.restore(task)
    await observer.settle(5)
    assert "a trace is incomplete" in caplog.text


# --- the queue -----------------------------------------------------------------------------------


async def test_a_full_queue_drops_spans_and_delays_nobody() -> None:
    """Nothing listens at the address: a connection to it is refused at once."""
    queue = SpanQueue("http://127.0.0.1:9/v1/traces", {}, service=None, version="1", clean=str)
    dropped: list[int] = []
    queue.dropped = dropped.append
    span = EndedSpan(catalog.QUEUE, TraceContext(TRACE, CALLER, True), 1, 2, {})
    begun = time.monotonic()
    for _ in range(QUEUE + 500):
        queue.add(span)
    seconds = time.monotonic() - begun
    assert sum(dropped) >= 500 and seconds < 20
    queue.close(0.5)
    assert time.monotonic() - begun < 20
    queue.add(span)


REFUSED = """
import gc, threading
from opentelemetry.sdk.trace import ReadableSpan
from bridge.telemetry.tracing import catalog
from bridge.telemetry.tracing.context import TraceContext
from bridge.telemetry.tracing.exporter import SpanQueue
from bridge.telemetry.tracing.spans import EndedSpan

gc.disable()
queue = SpanQueue("http://127.0.0.1:9/v1/traces", {}, service=None, version="1", clean=str)
lost = threading.Event()
queue.dropped = lambda count: lost.set()
for _ in range(100):
    queue.add(EndedSpan(catalog.QUEUE, TraceContext("1" * 32, "1" * 16, True), 1, 2, {}))
while not lost.wait(0.01):
    gc.collect(1)  # what lives during the pauses of the library is old then
queue.close(10)
gc.collect(1)  # new objects only, as in a server
print(sum(isinstance(one, ReadableSpan) for one in gc.get_objects()))
"""


@pytest.mark.soak
def test_lost_spans_need_no_full_collection() -> None:
    """A server seldom makes one, see gc_tuning.py. Takes seconds: the library tries again."""
    variables = {"OTEL_EXPORTER_OTLP_TIMEOUT": "2", "OTEL_BSP_SCHEDULE_DELAY": "10"}
    done = subprocess.run(
        [sys.executable, "-c", REFUSED],
        env={"PYTHONPATH": str(CHECKOUT), **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_a_missing_library_ends_the_start(tmp_path: Path) -> None:
    """A start of an interpreter takes up to a second."""
    found = refusal_without(
        "opentelemetry", tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9"
    )
    assert found == (
        "An endpoint of OTEL_EXPORTER_OTLP is set, and a library for it is missing: "
        f"{install_line('otel')}"
    )


@each(
    ("given", "endpoint"),
    [
        ({}, None),
        ({"endpoint": "http://c:4318/"}, "http://c:4318/v1/traces"),
        ({"endpoint": "http://c", "traces_endpoint": "https://d/x"}, "https://d/x"),
        ({"traces_endpoint": "https://d/x", "sdk_disabled": True}, None),
        ({"endpoint": "http://c", "traces_exporter": "none"}, None),
    ],
)
def test_traces_are_off_without_an_endpoint(given: Json, endpoint: str | None) -> None:
    names = {
        f"otel_exporter_otlp_{one}" if "endpoint" in one else f"otel_{one}": one for one in given
    }
    settings = Settings().updated({name: given[one] for name, one in names.items()})
    assert settings.traces.endpoint == endpoint
