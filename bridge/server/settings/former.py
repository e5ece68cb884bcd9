"""Former names of settings, and withdrawn settings. A server that finds one says so in one line
each, and goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

BESIDES = {"bridge_host": "host", "bridge_port": "port"}
"""Second names, which have precedence: other programs also read HOST and PORT."""

_LIMIT = "the limit is always {}"
_TIME = "the time is always {}"
WITHDRAWN = {
    "a2a_agent_discovery_max_age": _TIME.format("two minutes"),
    "agent_output": "set AGENT_TEXT_FIELD (text, delta.text) for a CLI that prints JSON lines",
    "bridge_body_timeout_ms": _TIME.format("60 s and 1 s for each 64 KiB"),
    "bridge_commit_pause_ms": "each commit begins when the last one has ended",
    "bridge_default_agent": "the first table [agents.ID] is the default agent",
    "bridge_disconnect_grace_ms": _TIME.format("10 s"),
    "bridge_fast_path_ms": "a send is always answered with a task",
    "bridge_grpc_reflection": "give clients the file a2a.proto",
    "bridge_header_timeout_ms": _TIME.format("10 s"),
    "bridge_max_file_bytes": _LIMIT.format("25 MiB"),
    "bridge_max_line_bytes": _LIMIT.format("16 MiB"),
    "bridge_max_parts": _LIMIT.format("64"),
    "bridge_max_raw_bytes": _LIMIT.format("5 MiB"),
    "bridge_max_tasks_per_context": _LIMIT.format("100"),
    "bridge_max_text_bytes": _LIMIT.format("1 MiB"),
    "bridge_mcp_depth": _LIMIT.format("2"),
    "bridge_node_grace_ms": _TIME.format("two minutes"),
    "bridge_on_restart": "the server always connects to the CLIs of the last one again",
    "bridge_push_lease_ms": _TIME.format("60 s"),
    "bridge_redis_claim_ms": _TIME.format("60 s"),
    "bridge_redis_reply_items": _LIMIT.format("20,000"),
    "bridge_replay_speed": "a recording is played as it was recorded",
    "bridge_require_extension": "clients without the extension are always served",
    "bridge_session_open_files": "the limit is that of the server (LimitNOFILE of systemd)",
    "bridge_stop_grace_ms": _TIME.format("5 s"),
    "bridge_stream_on_question": "a question always closes the stream of a send",
    "bridge_websocket_ping_ms": _TIME.format("20 s"),
    "otel_exporter_otlp_protocol": "spans are always sent by http/protobuf",
    "otel_exporter_otlp_traces_protocol": "spans are always sent by http/protobuf",
}
"""Each withdrawn setting with its replacement."""

CLAUDE = "claude-code"
CLAUDE_PATH = "claude_code_path"
"""For one release, it is AGENT_BINARY for the agents that run Claude Code."""

NAMES = frozenset((*BESIDES, *WITHDRAWN, CLAUDE_PATH))

Say = Callable[[str], object]


def current(name: str) -> str:
    """The setting that the name sets; the name itself if it is not in NAMES."""
    return "agent_binary" if name == CLAUDE_PATH else BESIDES.get(name, name)


def translated(given: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """The settings of one source, without withdrawn ones. The names are in lower case. `say` gets a
    line for each withdrawn one."""
    found = dict(given)
    for name in sorted(given.keys() & WITHDRAWN.keys()):
        say(f"{name.upper()} is not a setting any more: {WITHDRAWN[name]}. Unset it.")
        del found[name]
    for name in found.keys() & BESIDES.keys():
        found[BESIDES[name]] = found.pop(name)
    return found


def of_agent(table: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """A table [agents.ID] without withdrawn settings. Its names may lack their prefixes."""
    kept: dict[str, Any] = {}
    for written, value in table.items():
        short = written.lower()
        names = (short, f"agent_{short}", f"bridge_{short}")
        found = next((one for one in names if one in WITHDRAWN), None)
        if found:
            translated({found: value}, say)
        else:
            kept[written] = value
    return kept


def give_binary(given: dict[str, Any], say: Say) -> None:
    """Replace CLAUDE_CODE_PATH by the setting of each agent that runs Claude Code."""
    path = given.pop(CLAUDE_PATH, None)
    if not path:
        return
    say("CLAUDE_CODE_PATH will not be a setting any more: set AGENT_BINARY for Claude Code.")
    adapter, tables = given.get("agent_adapter"), given.get("agents") or {}
    if given.get("agent_binary"):
        return
    if not tables and adapter in (None, CLAUDE):
        given |= {"agent_adapter": CLAUDE, "agent_binary": path}
    given["agents"] = {
        name: {"binary": path, **table} if _adapter(table, adapter) == CLAUDE else table
        for name, table in tables.items()
    }


def _adapter(table: Mapping[str, Any], default: Any) -> Any:
    lower = {name.lower(): value for name, value in table.items()}
    return lower.get("adapter", lower.get("agent_adapter", default))
