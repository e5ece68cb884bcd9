"""What is said of events: a text for people, and the same as an object for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bridge.task.events import (
    Canceled,
    Failed,
    Interrupted,
    Plan,
    Question,
    Queued,
    Rejected,
    Status,
    Thought,
    TimedOut,
    ToolCall,
    ToolResult,
    Usage,
)
from bridge.task.text import capped, exact, one_line, readable

OPTION_CHARS = 400  # of the name of an option
RESULT_CHARS = 80  # of what a tool that did not fail has said
Facts = Mapping[str, Any]
Words = tuple[str, Facts | None]
BadEnd = Failed | Rejected | Canceled | TimedOut | Interrupted


def progress(event: Thought | Status | ToolCall | ToolResult | Plan) -> Words:
    """The text of a status message, cut to a line, and its facts."""
    match event:
        case Thought(text):
            return one_line(text), {"type": "thought", "text": text}
        case Status(text, data):
            return one_line(text), data or None
        case ToolCall():
            facts = {"type": "tool_call", "id": event.id, "name": event.name, "status": "running"}
            return one_line(f"Using tool: {event.name}"), _facts(facts, event, input=event.input)
        case ToolResult():
            return _tool_result(event)
        case Plan():
            done = sum(entry.status == "completed" for entry in event.entries)
            plan = {"type": "plan", "entries": [asdict(entry) for entry in event.entries]}
            return one_line(f"Plan: {done} of {len(event.entries)} done"), plan


def _tool_result(event: ToolResult) -> Words:
    facts = {
        "type": "tool_result",
        "id": event.id,
        "name": event.name,
        "status": "failed" if event.is_error else "completed",
    }
    verb = "failed" if event.is_error else "finished"
    output = event.output if isinstance(event.output, str) else ""
    if not event.is_error:  # the facts have it; models that delegate are shown every status
        output = readable(" ".join(output[: 4 * RESULT_CHARS].split()), RESULT_CHARS)
    text = f"Tool {event.name or event.id} {verb}" + (f": {output}" if output.strip() else "")
    values = {"output": event.output}
    if event.changes:
        values["changes"] = [asdict(change) for change in event.changes]
    return one_line(text), _facts(facts, event, **values)


def _facts(facts: dict[str, Any], event: ToolCall | ToolResult, **values: Any) -> Facts:
    """`facts` with `values` cut to size; what was cut says how many bytes it had."""
    if event.parent is not None:
        facts["parentId"] = event.parent
    for name, value in values.items():
        facts[name], size = capped(value)
        if size is not None:
            facts["truncated"] = {**facts.get("truncated", {}), name: size}
    return facts


def question(asked: Question, hint: str) -> Words:
    """What the client is asked; `hint` says what was wrong with its last answer."""
    lines = [hint, exact(asked.text), _answers(asked)]
    facts: dict[str, Any] = {
        "type": "question",
        "questionId": asked.id,
        "kind": asked.kind,
        "options": [asdict(option) for option in asked.options],
        "freeText": asked.free_text,
        "multiple": asked.multiple,
    }
    if asked.subject is not None:
        facts["subject"], size = capped(asked.subject)
        if size is not None:
            facts["truncated"] = {"subject": size}
    return "\n".join(filter(None, lines)), facts


def _answers(asked: Question) -> str:
    """How to answer, for a model as well as for a person."""
    if not asked.options:
        return ""
    names = ", ".join(f'"{exact(option.name, OPTION_CHARS)}"' for option in asked.options)
    if asked.multiple:
        return f"Reply with one or more of these, separated by commas: {names}."
    free = " Or reply in your own words." if asked.free_text else ""
    return f"Reply with exactly one of: {names}.{free}"


def queued(event: Queued) -> Words:
    """Why the task has not begun."""
    text = f"queued: {event.ahead} ahead, {event.answers} waiting for answers"
    return text, {"type": "queued", **asdict(event)}


def ending(event: BadEnd) -> Words:
    """The status message of a task that did not complete."""
    facts = None
    if isinstance(event, Failed) and event.details:
        facts = {"type": "error", "reason": event.reason, **event.details}
    return readable(event.text), facts


def reason(event: BadEnd) -> Mapping[str, Any]:
    """The metadata that says in one word, for programs, why it did not complete."""
    match event:
        case Failed() | Interrupted() | TimedOut():
            word = event.reason
        case Rejected() | Canceled():
            return {}
    return {"bridge": {"reason": word}}


def usage(used: Usage | None) -> dict[str, Any]:
    """The members of a usage that are known."""
    if used is None:
        return {}
    facts = {
        "inputTokens": used.input_tokens,
        "outputTokens": used.output_tokens,
        "totalTokens": used.total_tokens,
        "costUsd": used.cost_usd,
        **(used.extra or {}),
    }
    return {name: value for name, value in facts.items() if value is not None}
