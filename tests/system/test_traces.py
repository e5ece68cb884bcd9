"""Traces of servers that are killed or lost, and a collector that is down."""

from __future__ import annotations

import pytest

from tests.support.client import Client, state
from tests.support.collector import check_whole, collecting
from tests.support.liveness import Liveness
from tests.support.restart import Place, asking, finished, heard, kill

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{CALLER}-01"
CALL = '{"type":"tool_call","id":"%s","name":"Bash","input":{}}'
RESULT = '{"type":"tool_result","id":"%s","output":"x"}'


async def test_a_turn_of_a_killed_server_is_one_trace(place: Place, live: Liveness) -> None:
    """Takes seconds: two servers start. The first one has sent nothing."""
    async with collecting() as collector:
        place.env = {**collector.env, "BRIDGE_ON_RESTART": "fail"}
        tool = f"line {CALL % 'one'}\nline {RESULT % 'one'}\nline {CALL % 'two'}"
        async with place.server(OTEL_BSP_SCHEDULE_DELAY="60000") as (server, client):
            await client.send("text before")
            client.headers["traceparent"] = SAMPLED
            task = await client.send_now(f"{tool}\ntext a\nwait {live.path} agent")
            await heard(client, task["id"], "a")
            await kill(server)
        assert collector.spans == []
        async with place.server() as (_, client):
            ended = await finished(client, task["id"])
            assert state(ended) == "failed"
            early, turn = sorted(await collector.has("invoke_agent", 2), key=lambda span: span.end)
    check_whole([span for span in collector.spans if span.trace_id == early.trace_id], "")
    assert early.attributes["a2a.task.state"] == "completed"  # just before the server was killed
    spans = [span for span in collector.spans if span.trace_id == TRACE]
    check_whole(spans, CALLER)
    assert turn.attributes["error.type"] == "restart" and turn.failed
    assert turn.attributes["a2a.task.id"] == task["id"]
    (request,) = [span for span in spans if span.kind == "server" and span.name == "SendMessage"]
    assert (request.name, request.parent, turn.parent) == ("SendMessage", CALLER, request.span_id)
    one, two = sorted(collector.named("execute_tool"), key=lambda span: span.begin)
    assert one.end < two.end == turn.end
    assert "error.type" not in one.attributes and two.attributes["error.type"] == "no_result"


@pytest.mark.soak
async def test_a_question_of_a_killed_server_is_one_trace(place: Place) -> None:
    """Takes seconds: two servers start. The first one has sent some spans, and the agent lives."""
    async with collecting() as collector:
        place.env = collector.env
        script = f"line {CALL % 'one'}\nline {RESULT % 'one'}\npermit q May I?\ndone"
        async with place.server() as (server, client):
            client.headers["traceparent"] = SAMPLED
            task = await client.send_now(script)
            await asking(client, task["id"])
            await collector.has("execute_tool")
            await collector.has("SendMessage")
            await kill(server)
        async with place.server() as (_, client):
            ended = await client.send("yes", taskId=task["id"])
            assert state(ended) == "completed"
            (turn,) = await collector.has("invoke_agent")
            (answer,) = [one for one in await collector.has("SendMessage", 2) if not one.parent]
    spans = [span for span in collector.spans if span.trace_id == TRACE]
    check_whole(spans, CALLER)
    assert len(collector.named("execute_tool")) == 2  # equal, and so is its id
    (question,) = collector.named("bridge.question")
    assert question.links == [(answer.trace_id, answer.span_id)]
    assert question.parent == turn.span_id and question.end <= turn.end


@pytest.mark.soak
async def test_a_collector_that_is_down_costs_only_spans(place: Place) -> None:
    """Takes seconds: a server starts, and its log is read."""
    async with collecting() as collector:
        collector.down = True
        place.env = {**collector.env, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
        async with place.server(BRIDGE_METRICS="on") as (server, client):
            assert state(await client.send("text a")) == "completed"
            await collector.refuses()
            assert state(await client.send("text b")) == "completed"
            await server.logged("does not take spans")
            assert await dropped(client) > 0
            collector.down = False
            task = await client.send("text c")
            await server.logged("takes spans again")
            await collector.has_turn(task["id"])  # spans of the second task may come before
        log = server.log
    assert log.count("does not take spans") == 1 and log.count("takes spans again") == 1
    assert "opentelemetry" not in log


async def dropped(client: Client) -> float:
    async with client.session.get(f"{client.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return float(next(x for x in lines if x.startswith("bridge_spans_dropped_total")).split()[1])
