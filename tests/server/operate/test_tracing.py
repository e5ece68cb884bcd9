"""The spans of a server, as a collector gets them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bridge.telemetry.tracing.catalog import SPANS
from tests.support.client import state
from tests.support.collector import Collector, Span, check_whole, collecting
from tests.support.restart import asking
from tests.support.served import serving

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


async def test_a_turn_is_a_trace(workspace: Path) -> None:
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
    assert json.dumps(turn.attributes)
