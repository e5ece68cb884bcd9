"""Quantities that no operator has to choose. Tests give a server other ones (main(), load())."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Constants(BaseModel):
    """The string below a field is the reason for its value."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    header_timeout_ms: int = 10_000
    """For the headers of a request, and for a pause in its body. The slowest client that is alive
    sends headers within a second; a slow attacker holds a connection no longer than this."""
    body_timeout_ms: int = 60_000
    """For a request body, plus 1000 ms for each 64 KiB of it: a mobile network is fast enough."""
    websocket_ping_ms: int = 20_000
    """Between two pings: proxies close a connection that is silent for 30 or 60 seconds."""
    stop_grace_ms: int = 5000
    """Between SIGTERM and SIGKILL for a CLI: it saves its conversation meanwhile."""
    disconnect_grace_ms: int = 10_000
    """For a client to return, before BRIDGE_ON_DISCONNECT=cancel cancels its task: a connection
    that is lost is made again sooner."""
    max_tasks_per_context: int = 100
    """That wait for the running task of a context: a hundred turns take days."""
    max_parts: int = 64
    """Of a message: more files than a model reads."""
    max_text_bytes: int = 1024 * 1024
    """Of a text or data part: the context windows of models take no more."""
    max_raw_bytes: int = 5 * 1024 * 1024
    """Of a file inside a message, decoded: the APIs of models refuse larger images."""
    max_file_bytes: int = 25 * 1024 * 1024
    """Of a workspace file that a message refers to: it is read into memory."""
    max_line_bytes: int = 16 * 1024 * 1024
    """Of a line of CLI output: more than a CLI writes in one event, files included."""
    node_grace_ms: int = 120_000
    """After which another server ends the tasks of a lost server that only that one could continue,
    and GET /agents does not name it any more: a machine restarts in less time."""
    push_lease_ms: int = 60_000
    """After which another worker takes a notification: four times the timeout of a receiver."""
    redis_claim_ms: int = 60_000
    """Without a sign of life of a server, after which another one takes its requests: a restart of
    a server takes less time."""
    redis_reply_items: int = 20_000
    """Of an answer in Redis, about: some 20 MB, and more than an hour of output."""
    mcp_depth: int = 2
    """Agents that delegate to each other through MCP: a third one would be a loop."""
    on_restart: Literal["reattach", "fail"] = "reattach"
    """Turns that ran when the last server ended: their CLIs still work."""
    replay_speed: float = 1.0
    """Of a recording: as it was recorded."""


CONSTANTS = Constants()
