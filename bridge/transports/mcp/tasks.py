"""The extension `io.modelcontextprotocol/tasks`: a task as its clients poll it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from bridge.a2a.codec import timestamp
from bridge.errors import DataLoss, TaskNotCancelable, Unavailable
from bridge.runtime.router import Router
from bridge.store.handle import TaskHandle, durable
from bridge.task.state import Task
from bridge.task.transitions import TaskState
from bridge.transports.mcp.calls import Call
from bridge.transports.mcp.questions import OpenQuestions
from bridge.transports.mcp.results import Json, status_line

STREAMING, ASKING, OTHERWISE = 1_000, 2_000, 5_000  # milliseconds between two polls
_STATUS = {
    TaskState.COMPLETED: "completed",
    TaskState.FAILED: "completed",  # `failed` means an error of JSON-RPC
    TaskState.REJECTED: "completed",
    TaskState.CANCELED: "cancelled",
}
UNREADABLE = -32603
Final = Callable[[TaskHandle, Call], Awaitable[Json]]
"""The result of the call that began the task."""


class PolledTasks:
    """`keep`: how long the server keeps a finished task; None: without a limit."""

    def __init__(
        self, router: Router, questions: OpenQuestions, final: Final, keep: timedelta | None
    ) -> None:
        self._router = router
        self._questions = questions
        self._final = final
        self._keep = keep

    async def created(self, handle: TaskHandle, call: Call) -> Json:
        """The result that makes a call a task."""
        await durable(None, handle)
        return {"resultType": "task", **self._members(handle.task, _STATUS.get(handle.task.state))}

    async def get(self, task_id: str, call: Call) -> Json:
        """The task, with its forms or its result. Raises RequestError."""
        handle = await self._router.get(task_id, call.principal)
        await durable(None, handle)
        found = await self._questions.form(handle, call)
        if found:
            key, form = found
            request = {"method": "elicitation/create", "params": form.params()}
            more: Json = {"inputRequests": {key: request}}
            return self._polled(handle.task, "input_required", more)
        status = _STATUS.get(handle.task.state, "working")
        if not handle.task.state.terminal:
            return self._polled(handle.task, status)
        try:
            task = await handle.whole()
            more = {"result": await self._final(handle, call)} if status == "completed" else {}
        except (DataLoss, Unavailable) as problem:
            error = {"code": UNREADABLE, "message": str(problem)}
            return self._polled(handle.task, "failed", {"error": error})
        return self._polled(task, status, more)

    async def update(self, task_id: str, call: Call) -> Json:
        """Apply the responses to forms in `call.answers`. Raises RequestError."""
        handle = await self._router.get(task_id, call.principal)
        await self._questions.take(handle, call)
        await durable(None, handle)  # the client does not repeat them after a crash
        return {"resultType": "complete"}

    async def cancel(self, task_id: str, call: Call) -> Json:
        with suppress(TaskNotCancelable):
            await self._router.cancel(task_id, call.principal)
        return {"resultType": "complete"}

    def _polled(self, task: Task, status: str, more: Mapping[str, Any] | None = None) -> Json:
        return {"resultType": "complete", **self._members(task, status), **(more or {})}

    def _members(self, task: Task, status: str | None) -> Json:
        keep = self._keep
        lives = task.status_time - task.created + keep if keep is not None else None
        return {
            "taskId": task.id,
            "status": status or "working",
            "statusMessage": status_line(task),
            "createdAt": timestamp(task.created),
            "lastUpdatedAt": timestamp(task.status_time),
            "ttlMs": round(lives.total_seconds() * 1000) if lives is not None else None,
            "pollIntervalMs": _interval(task),
        }


def _interval(task: Task) -> int:
    if task.question:
        return ASKING
    writes = any(artifact.open for artifact in task.artifacts.values())
    return STREAMING if writes and not task.state.terminal else OTHERWISE
