"""The messages and the metadata of a task and its updates: a text for people, and the same content
as an object for programs. A codec renders an update when it has a reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from bridge.task.answers import denial
from bridge.task.events import (
    Canceled,
    Done,
    Failed,
    Interrupted,
    Plan,
    Question,
    Queued,
    Rejected,
    Reply,
    Started,
    Status,
    Steered,
    Thought,
    TimedOut,
    ToolCall,
    ToolResult,
)
from bridge.task.facts import Facts, facts_of, facts_of_answer, facts_of_usage
from bridge.task.message import Message, Role, TextPart
from bridge.task.state import StatusUpdate, Task
from bridge.task.subject import how_to_answer
from bridge.task.text import exact, one_line, readable

RESULT_CHARS = 80  # characters of the output of a tool that did not fail
Words = tuple[str, Facts | None]


def status_message(task: Task, update: StatusUpdate | None) -> Message | None:
    """The message of an update; None if it has none."""
    if update is None or update.number is None or update.event is None:
        return None
    identity = f"{task.id}-{update.number}"
    if isinstance(update.event, Reply):  # it stands for the task, which the client never sees
        return Message(identity, Role.AGENT, update.event.parts, None, task.context_id)
    text, facts = _words(update)
    if not (update.state.terminal or update.state.interrupted):
        text += "\n"  # some clients print all progress messages without a separator
    parts = (TextPart(text),)
    return Message(identity, Role.AGENT, parts, task.id, task.context_id, facts=facts)


def status_metadata(update: StatusUpdate) -> Mapping[str, Any] | None:
    """The metadata of an update; None if it has none."""
    facts: dict[str, Any] = {}
    match update.event:
        case Started() as started:
            known = {
                "sessionId": started.session_id,
                "model": started.model,
                "cliVersion": started.version,
                "mode": started.mode,
            }
            facts = {name: value for name, value in known.items() if value is not None}
        case Steered(message):
            facts = {"steered": message.id}
        case Done(details=details) if details:
            facts = {"result": details}
        case Failed(reason=reason, details=details) if details and (
            at := _retry_at(update, details)
        ):
            facts = {"reason": reason, "result": {"retryAt": at}}
        case Failed(reason=reason) | Interrupted(reason=reason) | TimedOut(reason=reason):
            facts = {"reason": reason}
    if update.answer:
        facts["answered"] = facts_of_answer(update.answer)
    metadata: dict[str, Any] = {"bridge": facts} if facts else {}
    if update.usage:
        metadata["usage"] = facts_of_usage(update.usage)
    return metadata or None


def _retry_at(update: StatusUpdate, details: Facts) -> str | None:
    """When the CLI or its provider takes the next attempt, if it says so."""
    after = details.get("retryAfter")
    if isinstance(after, int | float):
        at = update.time + timedelta(seconds=after)
        return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return details.get("retryAt")


def task_metadata(task: Task) -> Mapping[str, Any] | None:
    """The metadata of all updates of a task; the newest value of each member."""
    metadata: dict[str, Any] = {}
    for update in task.reported:
        for name, facts in (status_metadata(update) or {}).items():
            metadata[name] = {**metadata.get(name, {}), **facts}
    return metadata or None


def history(task: Task, length: int | None) -> Sequence[Message]:
    """The `length` most recent messages (§3.2.4); None means all of them."""
    count = len(task.history)
    recent = task.history[count - min(count if length is None else length, count) :]
    messages: list[Message] = []
    for one in recent:
        message = one if isinstance(one, Message) else status_message(task, one)
        if message and (message.task_id, message.context_id) != (task.id, task.context_id):
            # a direct reply belongs to its task here
            message = replace(message, task_id=task.id, context_id=task.context_id)
        if message:
            messages.append(message)
    return messages


def _words(update: StatusUpdate) -> Words:
    """The text of a status message, and its facts. The text on progress is one short line."""
    match event := update.event:
        case Thought(text):
            return one_line(text), facts_of(event)
        case Status(text, data):
            return one_line(text), data or None
        case ToolCall() | ToolResult():
            return one_line(_tool(event)), facts_of(event)
        case Plan():
            done = sum(entry.status == "completed" for entry in event.entries)
            return one_line(f"Plan: {done} of {len(event.entries)} done"), facts_of(event)
        case Queued():
            text = f"queued: {event.ahead} ahead, {event.answers} waiting for answers"
            return text, facts_of(event)
        case Question():
            return _question(event, update)
        case Done():
            return event.text or "", None
        case Failed(text, reason, details) if details:
            return readable(text), {"type": "error", "reason": reason, **details}
        case Failed(text) | Rejected(text) | Canceled(text) | TimedOut(text) | Interrupted(text):
            return readable(text), None
    raise AssertionError(f"{type(event).__name__} has no words")


def _tool(event: ToolCall | ToolResult) -> str:
    if isinstance(event, ToolCall):
        return f"Using tool: {event.name}"
    verb = "failed" if event.is_error else "finished"
    output = event.output if isinstance(event.output, str) else ""
    if not event.is_error:  # the facts have all of it; models that delegate read every status
        output = readable(" ".join(output[: 4 * RESULT_CHARS].split()), RESULT_CHARS)
    return f"Tool {event.name or event.id} {verb}" + (f": {output}" if output.strip() else "")


def _question(asked: Question, update: StatusUpdate) -> Words:
    """The question, after the problem of the last answer."""
    lines = [update.hint, exact(asked.text), how_to_answer(asked)]
    facts = facts_of(asked)
    if asked.patience:
        until = update.time + timedelta(seconds=asked.patience)
        then = "deny" if denial(asked, "") else "end"
        facts = {**facts, "until": _time(until), "then": then}
    return "\n".join(filter(None, lines)), facts


def _time(time: datetime) -> str:
    """As RFC 3339, in milliseconds."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
