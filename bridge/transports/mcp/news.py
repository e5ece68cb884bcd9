"""The news of a task: its updates as short items for a model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from bridge.store.event_log import Entry
from bridge.store.handle import TaskHandle
from bridge.task.artifact import ANSWER_ID, ArtifactUpdate
from bridge.task.events import Plan, Question, Started, ToolCall, ToolResult
from bridge.task.message import TextPart
from bridge.task.render import status_message
from bridge.task.state import StatusUpdate, Task, Update
from bridge.task.text import MESSAGE_CHARS, STATUS_CHARS, exact, one_line, readable

NEWEST = 2_000  # updates that one call reads; a model needs no more, and reading costs time
_AT_ONCE = 3600.0  # seconds; a reader stops before it would wait


@dataclass(frozen=True, slots=True)
class Item:
    """`number`: of the newest update in the item. `kind`: text, tool, plan, state or notice."""

    number: int
    kind: str
    text: str

    def encode(self) -> dict[str, Any]:
        return {"n": self.number, "kind": self.kind, "text": self.text}


async def read_news(handle: TaskHandle, after: int, newest: int) -> Sequence[Item]:
    """The published updates after number `after` up to `newest`, the oldest first, as items. The
    first item says so if updates are left out."""
    begin = max(after, newest - NEWEST)
    items: list[Item] = []
    if begin > after:
        items.append(Item(begin, "notice", f"{begin - after} older updates are not shown."))
    if begin >= newest:
        return items
    async with aclosing(handle.log.follow(begin, _AT_ONCE)) as batches:  # type: ignore[type-var]
        async for batch in batches:
            for entry in batch:
                if entry.number <= newest:
                    _add(items, handle.task, entry)
            if not batch or batch[-1].number >= newest:
                break
    return items


def _add(items: list[Item], task: Task, entry: Entry[Update]) -> None:
    """Append the item of an update. A piece of text extends the text before it."""
    found = _item(task, entry)
    if found is None:
        return
    last = items[-1] if items else None
    if last and last.kind == found.kind == "text":
        items[-1] = Item(found.number, "text", last.text + found.text)
    else:
        items.append(found)


def _item(task: Task, entry: Entry[Update]) -> Item | None:
    update = entry.update
    if isinstance(update, ArtifactUpdate):
        if update.artifact_id != ANSWER_ID:
            named = update.name or update.artifact_id
            text = f"artifact: {named}"
            return Item(entry.number, "notice", text) if not update.append else None
        text = "".join(part.text for part in update.parts if isinstance(part, TextPart))
        return Item(entry.number, "text", readable(text)) if text else None
    text = update_text(task, update)
    return Item(entry.number, _kind(update), text) if text else None


def _kind(update: StatusUpdate) -> str:
    match update.event:
        case ToolCall() | ToolResult():
            return "tool"
        case Plan():
            return "plan"
        case Question():
            return "state"
    return "state" if update.state.terminal or update.event is None else "notice"


def update_text(task: Task, update: StatusUpdate, limit: int = MESSAGE_CHARS) -> str:
    """The words of a status update, else its state; empty for an update that says nothing. `limit`:
    the most characters."""
    if isinstance(update.event, Started):
        return ""
    if isinstance(update.event, Question):  # the result has the whole question while it is open
        return one_line(f"asks: {exact(update.event.text, STATUS_CHARS)}")
    message = status_message(task, update)
    if message and message.text.strip():
        return readable(message.text.strip(), limit)
    return update.state.value if update.number is None and update.event is None else ""


def log_lines(task: Task) -> Sequence[str]:
    """The messages of the task, each with its sender or kind."""
    lines: list[str] = []
    said = task.history if task.status in task.history[-1:] else [*task.history, task.status]
    for one in said:
        if isinstance(one, StatusUpdate):
            if one.number is not None and (text := update_text(task, one)):
                lines.append(f"[{_kind(one)}] {text}")
        elif one is not None:
            lines.append(f"[client] {one.text}")
    return lines
