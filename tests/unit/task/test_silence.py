"""The status of a task with a silent agent."""

from __future__ import annotations

from datetime import UTC, datetime

from bridge.task.events import Done, Event, Prompted, Text, ToolCall, ToolResult
from bridge.task.silence import is_silence, silence, silent_since
from bridge.task.state import Task
from tests.support.cases import each

NOW = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


def task(*events: Event) -> Task:
    made = Task("t", "c", NOW)
    for event in events:
        made.apply(event, NOW)
    return made


@each(
    ("events", "text", "tool"),
    [
        ((), "No output for 4 min; no tool has run", None),
        ((Prompted(), Text("x")), "No output for 4 min; no tool has run", None),
        (
            (ToolCall("1", "Bash", {}), Text("x")),
            "No output for 4 min; the running tool is Bash",
            {"id": "1", "name": "Bash", "running": True},
        ),
        (
            (ToolCall("1", "Bash", {}), ToolResult("1", "", name="Bash")),
            "No output for 4 min; the last tool was Bash",
            {"id": "1", "name": "Bash", "running": False},
        ),
        (
            (ToolCall("1", "Task", {}), ToolCall("2", "Bash", {}), ToolResult("2", "")),
            "No output for 4 min; the running tool is Task",
            {"id": "1", "name": "Task", "running": True},
        ),
    ],
)
def test_it_names_the_last_tool_and_the_time(
    events: tuple[Event, ...], text: str, tool: object
) -> None:
    said = silence(task(*events), 240.2, NOW)
    assert said.text == text
    assert said.data is not None
    assert said.data.get("tool") == tool
    assert (said.data["type"], said.data["seconds"]) == ("silent", 240)
    assert said.data["since"] == "2026-01-02T02:59:59Z"
    assert is_silence(said)


def test_a_task_is_silent_until_it_says_something() -> None:
    one = task(Prompted())
    assert silent_since(one) is None
    one.apply(silence(one, 120, NOW), NOW)
    assert silent_since(one) == "2026-01-02T03:02:00Z"
    one.apply(silence(one, 0, NOW), NOW)
    assert silent_since(one) is None
    one.apply(silence(one, 120, NOW), NOW)
    one.apply(Done(), NOW)
    assert silent_since(one) is None
