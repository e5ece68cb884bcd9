"""The names of the events in the log. docs/observability.md has the same list, and a test compares
both."""

from __future__ import annotations

EVENTS = frozenset(
    {
        *("task.started", "task.ended", "question.asked", "question.answered"),
        *("session.started", "session.ended", "session.unasked"),
        *("processes.background", "processes.leftover"),
        *("auth.failed", "auth.token_exposed", "request.answered", "request.refused"),
        *("request.failed", "stream.cut"),
        *("config.reloaded", "config.reload_failed"),
        *("server.starting", "server.ready", "server.draining", "server.stopped"),
        *("store.degraded", "store.recovered", "backup.done", "push.dead"),
    }
)
OTHER = "log"
"""The event of a line without one in EVENTS."""
