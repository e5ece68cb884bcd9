"""The names of all metrics, their labels and the values of these. Each label has a closed set of
values: no label ever has an id, a name of a client, a path, an address, or text of a CLI.

Times are seconds, sizes are bytes. A name is a promise to alerts and dashboards:
docs/observability.md has the same table, and a test compares both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

TASK_BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
TOOL_BUCKETS = (1.0, 5.0, 60.0, 300.0)
FIRST_BUCKETS = (1.0, 5.0, 15.0, 60.0)
REQUEST_BUCKETS = (0.005, 0.05, 0.5, 2.5, 10.0)

STARTS = ("cold", "warm", "resumed")
OPEN_STATES = ("submitted", "working", "input-required", "auth-required")
END_STATES = ("completed", "canceled", "rejected", "failed")
REASONS = (
    *("adapter-error", "agent-error", "auth", "configuration", "context-window", "exit"),
    *("internal", "launch", "limit", "model-error", "node-lost", "overloaded", "protocol", "quota"),
    *("rate-limit", "restart", "session-lost", "shutdown", "start", "task-size", "timeout"),
    "workspace",
)
"""The reasons of failed tasks that have a label of their own; all others are OTHER. A task with
another end has an empty reason."""
OTHER, UNKNOWN = "other", "unknown"
QUESTION_KINDS = ("permission", "choice", "plan", "text", "auth")
ANSWERERS = ("client", "rule", "timeout")
SESSION_STATES = ("working", "idle", "waiting", "warm")
UNASKED_KINDS = ("request", "turn", "output")
EXIT_REASONS = ("exited", "terminated", "killed", "limit")
TOKEN_TYPES = ("input", "output", "cache_read", "cache_creation")
MOST_MODELS = 19  # with labels of their own; the others are OTHER
TOOL_KINDS = (
    *("read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode"),
    OTHER,
)
"""The kinds of tools in the Agent Client Protocol."""
TOOL_OUTCOMES = ("ok", "error")
"""`error` also for a call without a result."""
BINDINGS = ("jsonrpc", "rest", "grpc", "websocket", "stdio", "redis", "mcp")
REFUSALS = ("limit", "forbidden", "unavailable", "connections", "slow", "malformed")
_TOKEN_CAUSES = ("unknown", "expired", "revoked", "throttled", "agent_process")
FAILURES = (
    ("bearer", "missing"),
    *product(("bearer", "api_key", "basic"), _TOKEN_CAUSES),
    *product(("oidc",), ("unknown", "expired", "signature", "audience", "throttled")),
    ("same_user", "agent_process"),
    *product(("unix_socket",), ("missing", "other_uid", "forwarded", "agent_process")),
)
"""Scheme and cause of all failed authentications."""
LISTENERS = ("tcp", "unix")
READERS = ("http", "grpc")
DELIVERIES = ("delivered", "retry", "dead")
RELOADS = ("ok", "failed")
PROBLEMS = ("store", "audit", "event_loop", "bus", "saturated", "disk", "agents")

Kind = Literal["counter", "gauge", "histogram", "info"]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: its name without the suffix that its kind adds (`_total`, `_info`), its help text
    and the names of its labels. `buckets`: of a histogram. `read`: the value is read when the page
    is requested; otherwise an observer feeds it."""

    name: str
    kind: Kind
    help: str
    labels: Sequence[str] = ()
    buckets: Sequence[float] = ()
    read: bool = False

    @property
    def shown(self) -> str:
        """The name with its suffix."""
        return self.name + {"counter": "_total", "info": "_info"}.get(self.kind, "")


def _times(name: str, text: str, *labels: str) -> Family:
    return Family(name, "histogram", text, labels, TASK_BUCKETS)


def _gauge(name: str, text: str, *labels: str) -> Family:
    return Family(name, "gauge", text, labels, read=True)


def _read_counter(name: str, text: str, *labels: str) -> Family:
    return Family(name, "counter", text, labels, read=True)


CATALOG: Sequence[Family] = (
    Family("bridge_tasks", "counter", "Tasks that have ended.", ("agent", "state", "reason")),
    _gauge("bridge_tasks_open", "Tasks that have not ended.", "agent", "state"),
    _times("bridge_task_duration_seconds", "From the begin of a task to its end.", "agent"),
    _times("bridge_task_queue_seconds", "From the begin of a task to its prompt.", "agent"),
    Family(
        "bridge_first_event_seconds",
        "histogram",
        "From the prompt to the first event of the agent.",
        ("agent", "start"),
        FIRST_BUCKETS,
    ),
    _gauge(
        "bridge_oldest_event_age_seconds",
        "Time since the last event of the quietest working task.",
        "agent",
    ),
    _gauge("bridge_tasks_silent", "Working tasks without an event for 2 minutes.", "agent"),
    _gauge("bridge_questions_open", "Tasks that wait for an answer.", "agent", "kind"),
    _gauge("bridge_question_oldest_age_seconds", "Age of the oldest open question.", "agent"),
    _times(
        "bridge_question_wait_seconds",
        "From a question to its answer.",
        *("agent", "kind", "answered_by"),
    ),
    _gauge("bridge_sessions", "Sessions of CLIs.", "agent", "state"),
    _gauge("bridge_session_slots", "Slots for sessions that work or are idle."),
    _read_counter("bridge_session_starts", "Sessions that began for a task.", "agent", "start"),
    _read_counter("bridge_process_exits", "CLI processes that have ended.", "agent", "reason"),
    _read_counter(
        "bridge_leftover_processes",
        "Processes that still lived after their session had been killed.",
        "agent",
    ),
    _read_counter(
        "bridge_unasked", "Requests, turns and output of CLIs between two turns.", "agent", "kind"
    ),
    Family("bridge_tokens", "counter", "Tokens that CLIs report.", ("agent", "model", "type")),
    Family("bridge_cost_usd", "counter", "Cost that CLIs report.", ("agent", "model")),
    Family("bridge_tool_calls", "counter", "Calls of tools.", ("agent", "kind", "outcome")),
    Family(
        "bridge_tool_duration_seconds",
        "histogram",
        "Time of a call of a tool.",
        ("agent", "kind"),
        TOOL_BUCKETS,
    ),
    Family(
        "bridge_requests",
        "counter",
        "Operations of clients that were answered.",
        ("binding", "operation", "version", "code"),
    ),
    Family(
        "bridge_request_duration_seconds",
        "histogram",
        "Time to the answer, or to the first item of a stream.",
        ("binding", "operation"),
        REQUEST_BUCKETS,
    ),
    _read_counter(
        "bridge_requests_refused", "Requests and connections that were refused.", "reason"
    ),
    _read_counter("bridge_auth_failures", "Failed authentications.", "scheme", "reason"),
    _gauge("bridge_streams", "Open streams.", "binding"),
    _read_counter("bridge_stream_items", "Items that streams have sent.", "binding"),
    _read_counter("bridge_slow_readers_cut", "Clients that did not read.", "binding"),
    _gauge("bridge_connections", "Open connections.", "listener"),
    Family(
        "bridge_journal_commit_seconds",
        "histogram",
        "Time of a commit of the store.",
        (),
        REQUEST_BUCKETS,
    ),
    _gauge("bridge_journal_backlog_bytes", "Changes that are not committed yet."),
    _gauge("bridge_store_bytes", "Size of the store; 0 for PostgreSQL."),
    _gauge("bridge_state_free_bytes", "Free disk space for the state folder."),
    _gauge("bridge_push_queue", "Receivers with undelivered notifications."),
    _gauge("bridge_push_dead", "Dead letters since the start of the server."),
    _read_counter("bridge_push_deliveries", "Attempts to notify a receiver.", "outcome"),
    _gauge("bridge_ready", "1 while /ready answers 200."),
    _gauge("bridge_degraded", "1 while the server has this problem.", "problem"),
    _gauge("bridge_event_loop_lag_seconds", "Delay of the event loop."),
    _read_counter("bridge_reloads", "Reloads of the configuration.", "outcome"),
    _gauge("bridge_config_loaded_timestamp_seconds", "Time of the last successful load."),
    _gauge("bridge_backup_timestamp_seconds", "Time of the last backup; 0 for none."),
    _read_counter("bridge_spans_dropped", "Spans that were not exported."),
    _read_counter("bridge_log_lines_suppressed", "Log lines above the limit of their kind."),
    Family("bridge_build", "info", "The program.", ("version", "schema"), read=True),
)
FAMILIES = {one.name: one for one in CATALOG}
