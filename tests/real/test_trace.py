"""The real Claude Code and Codex, which get the trace of their turn (AGENT_TRACE)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.client import state
from tests.support.collector import Collector, collecting
from tests.support.real_claude_code import claude_code, script, tool

pytestmark = pytest.mark.real
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
OWN = {  # the telemetry of Claude Code itself
    "AGENT_ENV": "OTEL_EXPORTER_OTLP_ENDPOINT,OTEL_EXPORTER_OTLP_PROTOCOL,OTEL_TRACES_EXPORTER",
    "CLAUDE_CODE_ENABLE_TELEMETRY": "1",
    "CLAUDE_CODE_ENHANCED_TELEMETRY_BETA": "1",
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
}


async def test_claude_code_continues_the_trace_of_its_turn(tmp_path: Path) -> None:
    """Takes seconds: the CLI starts, and sends its own spans at its end."""
    async with collecting() as collector:
        settings = {**collector.env, **OWN, "AGENT_TRACE": "true", "AGENT_FORCE": "true"}
        async with claude_code(tmp_path, **settings) as real:
            client = real.client()
            client.headers["traceparent"] = f"00-{TRACE}-{CALLER}-01"
            command = tool("Bash", command="echo $TRACEPARENT > seen; echo done")
            task = await client.send(script("go", command, "the end"))
            assert state(task) == "completed", task
            (turn,) = await collector.has("invoke_agent")
            seen = (real.workspace / "seen").read_text().strip()
        print(seen, [(span.name, span.parent) for span in theirs(collector)])
    assert seen.split("-")[1] == TRACE
    assert turn.span_id in {span.parent for span in theirs(collector)}


def theirs(collector: Collector) -> list[object]:
    """The spans of the CLI in the trace of the turn."""
    return [one for one in collector.spans if one.trace_id == TRACE and "claude" in one.name]
