"""The request and the task of a line in the log, where the line does not name them itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bridge.task.state import Task
from bridge.telemetry.observation import REQUEST, RequestInfo, observed
from bridge.telemetry.tracing.context import TraceContext, traced

MOST_TASKS = 20_000  # with a known request; the end of a lost task is not seen
NO_CLIENT = ("rule", "timeout", "limit")  # keywords of Answer.by
_SERVES = ("bridge.transports", "bridge.server.app", "bridge.auth")
"""Loggers of code that runs for the current request only. Other code may run for a session or a
server, and sees the request that began it."""


@dataclass(frozen=True, slots=True)
class KnownTask:
    """An open task. `request`: the one that began it. `trace`: the span of its turn."""

    agent: str
    owner: str
    context: str
    request: RequestInfo | None
    trace: TraceContext | None = None


class KnownTasks:
    """The open tasks that this server began. `most`: the oldest ones above it are forgotten."""

    def __init__(self, most: int = MOST_TASKS) -> None:
        self._most = most
        self._tasks: dict[str, KnownTask] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, agent: str, task: Task, request: RequestInfo | None) -> None:
        if len(self._tasks) >= self._most:
            del self._tasks[next(iter(self._tasks))]
        self._tasks[task.id] = KnownTask(agent, task.owner, task.context_id, request, traced(task))

    def drop(self, task_id: str) -> None:
        self._tasks.pop(task_id, None)

    def request_of(self, task_id: str) -> str | None:
        """The id of the request that began the task."""
        known = self._tasks.get(task_id)
        return known.request.id if known and known.request else None

    def members(self, task_id: str) -> dict[str, Any]:
        known = self._tasks.get(task_id)
        if known is None:
            return {}
        found: dict[str, Any] = {
            "agent": known.agent,
            "principal": known.owner,
            "context": known.context,
        }
        return found | (_of(known.request) if known.request else {}) | trace_ids(known.trace)


TASKS = KnownTasks()
"""The tasks of this process."""


def context(members: Mapping[str, Any]) -> Mapping[str, Any]:
    """See logging.Context. A line about a task has the request that began it, unless the current
    request writes the line."""
    task = members.get("task")
    found = TASKS.members(task) if isinstance(task, str) else {}
    if REQUEST.get() and str(members.get("logger", "")).startswith(_SERVES):
        request = observed()
        found |= _of(request)
        if request.principal:
            found["principal"] = request.principal
    return found


def _of(request: RequestInfo) -> dict[str, Any]:
    facts = {"request_id": request.id, "binding": request.binding, "peer": request.peer}
    return facts | trace_ids(request.trace)


def trace_ids(trace: TraceContext | None) -> dict[str, Any]:
    """The members of a line that belongs to this span."""
    return {"trace_id": trace.trace_id, "span_id": trace.span_id} if trace else {}
