"""The real Claude Code and Codex, which continue the trace of their turn (AGENT_TRACE)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.client import Client, state
from tests.support.collector import Collector, Span, collecting
from tests.support.real_claude_code import claude_code, script, tool
from tests.support.real_clis import CODEX, serving

pytestmark = [pytest.mark.real, pytest.mark.soak]
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SETTINGS = {"AGENT_TRACE": "true", "AGENT_FORCE": "true", "IS_SANDBOX": "1"}
OWN = {  # the telemetry of Claude Code itself
    "AGENT_ENV": "OTEL_EXPORTER_OTLP_ENDPOINT,OTEL_EXPORTER_OTLP_PROTOCOL,OTEL_TRACES_EXPORTER",
    "CLAUDE_CODE_ENABLE_TELEMETRY": "1",
    "CLAUDE_CODE_ENHANCED_TELEMETRY_BETA": "1",
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
}


async def send(client: Client, prompt: str) -> None:
    client.headers["traceparent"] = f"00-{TRACE}-{CALLER}-01"
    task = await client.send(prompt)
    assert state(task) == "completed", task


def below(collector: Collector, turn: Span) -> list[str]:
    """The names of the spans of the CLI directly below the turn."""
    own = ("execute_tool", "bridge.session_start", "bridge.queue")
    return [
        span.name
        for span in collector.spans
        if span.parent == turn.span_id and span.operation not in own
    ]


async def test_claude_code_continues_the_trace_of_its_turn(tmp_path: Path) -> None:
    """Takes seconds: the CLI starts, and sends its own spans at its end."""
    async with collecting() as collector:
        async with claude_code(tmp_path, **{**collector.env, **OWN, **SETTINGS}) as real:
            command = tool("Bash", command="echo $TRACEPARENT > seen; echo done")
            await send(real.client(), script("go", command, "the end"))
            (turn,) = await collector.has("invoke_agent")
            seen = (real.workspace / "seen").read_text().strip()
    assert seen.split("-")[1] == turn.trace_id == TRACE
    assert below(collector, turn) == ["claude_code.interaction"]


async def test_codex_continues_the_trace_of_its_turn(tmp_path: Path) -> None:
    """Takes seconds: the CLI starts, and sends its own spans at its end."""
    async with collecting() as collector:

        def configure(url: str, home: Path) -> None:
            CODEX.configure(url, home)
            place = f'{{ endpoint = "{collector.url}/v1/traces", protocol = "binary" }}'
            with (home / ".codex/config.toml").open("a") as file:
                file.write(f"\n[otel]\ntrace_exporter = {{ otlp-http = {place} }}\n")

        codex = replace(CODEX, configure=configure)
        async with serving(codex, tmp_path, **collector.env, **SETTINGS) as real:
            await send(real.client(), script("go", "the end"))
            (turn,) = await collector.has("invoke_agent")
        assert turn.trace_id == TRACE and below(collector, turn)
