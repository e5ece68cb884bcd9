"""The status of a task whose agent has said nothing for a long time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from bridge.task.events import Event, Status, ToolCall, ToolResult
from bridge.task.state import StatusUpdate, Task

SILENT = "silent"  # the type of its object for programs


def silence(task: Task, seconds: float, now: datetime) -> Status:
    """The agent of `task` has said nothing for so many seconds; 0: it has said something again."""
    if not seconds:
        return Status("Output again", {"type": SILENT, "seconds": 0})
    minutes = round(seconds) // 60
    text = f"No output for {f'{minutes} min' if minutes else f'{seconds:.0f} s'}"
    facts: dict[str, Any] = {"type": SILENT, "seconds": round(seconds)}
    since = (now - timedelta(seconds=seconds)).astimezone(UTC)
    facts["since"] = since.strftime("%Y-%m-%dT%H:%M:%SZ")
    tool = _last_tool(task)
    if tool:
        running = isinstance(tool, ToolCall)
        name = tool.name or tool.id
        text += f"; {'the running tool is' if running else 'the last tool was'} {name}"
        facts["tool"] = {"id": tool.id, "name": name, "running": running}
    else:
        text += "; no tool has run"
    return Status(text, facts)


def is_silence(event: Event) -> bool:
    """Whether the bridge itself reports the silence of an agent."""
    return type(event) is Status and event.data is not None and event.data.get("type") == SILENT


def silent_since(task: Task) -> str | None:
    """The time of the last output, if the newest status reports a silence."""
    event = task.status.event if task.status else None
    if task.state.terminal or not isinstance(event, Status) or not is_silence(event):
        return None
    since = (event.data or {}).get("since")
    return since if isinstance(since, str) else None


def _last_tool(task: Task) -> ToolCall | ToolResult | None:
    """The newest running tool, or else the last one that has ended."""
    ended: set[str] = set()
    last: ToolResult | None = None
    for event in _events(task):
        match event:
            case ToolResult():
                ended.add(event.id)
                last = last or event
            case ToolCall() if event.id not in ended:
                return event
    return last


def _events(task: Task) -> Iterator[Event | None]:
    """The events of the statuses, the newest first."""
    if task.status:
        yield task.status.event
    for said in reversed(task.history):
        if isinstance(said, StatusUpdate):
            yield said.event
