"""The objects of status messages (docs/extension.md). The bridge writes them and its client reads
them by this module, so that both have the same names for the same members."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

from bridge.task.events import (
    Answer,
    ChangeKind,
    FileChange,
    Option,
    OptionKind,
    Plan,
    PlanEntry,
    PlanStatus,
    Question,
    QuestionKind,
    Queued,
    Thought,
    ToolCall,
    ToolResult,
    Usage,
)

Facts = Mapping[str, Any]
Told = ToolCall | ToolResult | Plan | Queued | Thought | Question
_COUNTERS = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "total_tokens": "totalTokens",
    "cost_usd": "costUsd",
}


def facts_of(event: Told) -> Facts:
    """The object of an event."""
    facts: dict[str, Any]
    match event:
        case Thought(text):
            return {"type": "thought", "text": text}
        case Plan(entries):
            return {"type": "plan", "entries": [asdict(entry) for entry in entries]}
        case Queued():
            return {"type": "queued", **asdict(event)}
        case Question():
            return _question(event)
        case ToolCall():
            facts = {"type": "tool_call", "id": event.id, "name": event.name, "status": "running"}
            return _tool(facts, event, {"input": event.input})
        case ToolResult():
            status = "failed" if event.is_error else "completed"
            facts = {"type": "tool_result", "id": event.id, "name": event.name, "status": status}
            values: dict[str, Any] = {"output": event.output}
            if event.changes:
                values["changes"] = [asdict(change) for change in event.changes]
            return _tool(facts, event, values)


def _tool(facts: dict[str, Any], event: ToolCall | ToolResult, values: dict[str, Any]) -> Facts:
    """`facts` with `values`, and the original bytes of each value that was cut."""
    if event.parent is not None:
        facts["parentId"] = event.parent
    facts |= values
    if event.truncated:
        facts["truncated"] = dict(event.truncated)
    return facts


def _question(asked: Question) -> Facts:
    facts: dict[str, Any] = {
        "type": "question",
        "questionId": asked.id,
        "kind": asked.kind,
        "options": [_option(option) for option in asked.options],
        "freeText": asked.free_text,
        "multiple": asked.multiple,
    }
    if asked.subject is not None:
        facts["subject"] = asked.subject
    if asked.truncated:
        facts["truncated"] = dict(asked.truncated)
    return facts


def _option(option: Option) -> dict[str, Any]:
    return {name: value for name, value in asdict(option).items() if value or name != "description"}


def event_of(facts: Facts) -> Told | None:
    """The event of an object; None if it has none. Another program wrote the object, so a member of
    a wrong type counts as absent. The text of a question is that of its message."""
    identity, name = _word(facts, "id"), _word(facts, "name")
    parent = _word(facts, "parentId") or None
    match facts.get("type"):
        case "thought":
            return Thought(_word(facts, "text"))
        case "plan":
            return Plan(tuple(map(_entry_of, _objects(facts, "entries"))))
        case "queued":
            return Queued(_number(facts, "ahead"), _number(facts, "answers"))
        case "tool_call":
            return ToolCall(identity, name, facts.get("input"), parent)
        case "tool_result":
            failed, changes = facts.get("status") == "failed", _objects(facts, "changes")
            return ToolResult(
                identity,
                facts.get("output"),
                failed,
                name or None,
                parent,
                changes=tuple(map(_change_of, changes)),
            )
        case "question":
            return _question_of(facts)
    return None


def _entry_of(facts: Facts) -> PlanEntry:
    return PlanEntry(_word(facts, "text"), _known(facts, "status", PlanStatus, "pending"))


def _change_of(facts: Facts) -> FileChange:
    kind = _known(facts, "kind", ChangeKind, "update")
    return FileChange(_word(facts, "path"), kind, _word(facts, "diff"))


def _question_of(facts: Facts) -> Question:
    subject = facts.get("subject")
    return Question(
        _word(facts, "questionId"),
        _known(facts, "kind", QuestionKind, "text"),
        "",
        tuple(map(_option_of, _objects(facts, "options"))),
        subject if isinstance(subject, dict) else None,
        free_text=facts.get("freeText") is True,
        multiple=facts.get("multiple") is True,
    )


def _option_of(facts: Facts) -> Option:
    kind = _known(facts, "kind", OptionKind, "choice")
    return Option(_word(facts, "id"), _word(facts, "name"), kind, _word(facts, "description"))


# --- the metadata of updates and of tasks --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Closed:
    """The answer that closed a question. `by`: the principal, or `rule`, `timeout`, `limit`.
    `message_id`: None if no client answered."""

    question_id: str
    by: str
    option_ids: tuple[str, ...]
    message_id: str | None

    def describe(self, options: Sequence[Option] = ()) -> str:
        """`answered by anna: Allow`. `options`: those of the question, for their names."""
        names = {one.id: one.name for one in options}
        chosen = ", ".join(names.get(one, one) for one in self.option_ids)
        return f"answered by {self.by or 'a client'}" + (f": {chosen}" if chosen else "")


def facts_of_answer(answer: Answer) -> Facts:
    """The member `answered`. Without `messageId`: no message of a client decided."""
    known = {
        "questionId": answer.question_id,
        "optionIds": [option.id for option in answer.options],
        "by": answer.by,
        "messageId": answer.message.id if answer.message else None,
    }
    return {name: value for name, value in known.items() if value}


def closed_of(facts: Facts) -> Closed:
    """The answer in a member `answered`."""
    found = facts.get("optionIds")
    ids = tuple(map(str, found)) if isinstance(found, list) else ()
    message_id = _word(facts, "messageId") or None
    return Closed(_word(facts, "questionId"), _word(facts, "by"), ids, message_id)


def facts_of_usage(used: Usage) -> Facts:
    """The member `usage`: the counters that are known."""
    counters = {name: getattr(used, field) for field, name in _COUNTERS.items()}
    facts = {**counters, **(used.extra or {})}
    return {name: value for name, value in facts.items() if value is not None}


def usage_of(facts: Facts) -> Usage:
    """The usage in a member `usage`."""
    known = {field: _count(facts.get(name)) for field, name in _COUNTERS.items()}
    others = {name: one for name, one in facts.items() if name not in _COUNTERS.values()}
    return Usage(**known, extra=others or None)


def _count(value: Any) -> Any:
    """A number, or None."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _known(facts: Facts, name: str, kinds: Any, default: str) -> Any:
    """A member that is one of the literals `kinds`."""
    value = facts.get(name)
    return value if isinstance(value, str) and value in get_args(kinds) else default


def _word(facts: Facts, name: str) -> str:
    value = facts.get(name)
    return value if isinstance(value, str) else ""


def _number(facts: Facts, name: str) -> int:
    value = facts.get(name)
    return value if isinstance(value, int) else 0


def _objects(facts: Facts, name: str) -> Iterator[Facts]:
    value = facts.get(name)
    return (one for one in (value if isinstance(value, list) else ()) if isinstance(one, dict))
