"""Members of lines that several CLIs share: counts, plans, choices and the output of tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from bridge.adapter.fields import Json, as_dict
from bridge.task.events import Option, Plan, PlanEntry, PlanStatus, Question, Usage

IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_STATUS: Mapping[str, PlanStatus] = {
    "in_progress": "in_progress",
    "inprogress": "in_progress",
    "completed": "completed",
}


def is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def number(value: Any) -> float:
    """The value, or 0 if it is not a number."""
    return float(value) if isinstance(value, int | float) else 0.0


def count(value: Any) -> int | None:
    return value if is_count(value) else None


def counts(values: Any) -> dict[str, int]:
    """The members of an object that are counts."""
    return {name: one for name, one in as_dict(values).items() if is_count(one)}


def usage_of(used: Json, names: Sequence[str], **extra: str) -> Usage:
    """The usage with the tokens `names` (input, output, total) and the `extra` counts: each value
    is the name of a member of `used`."""
    sent, said, *total = (count(used.get(name)) for name in names)
    known = counts({name: used.get(theirs) for name, theirs in extra.items()})
    return Usage(sent, said, total[0] if total else None, None, known or None)


def options(values: Mapping[str, str | None]) -> list[str]:
    """The options that have a value. Each is one argument: no value can be read as a flag."""
    return [f"{name}={value}" for name, value in values.items() if value]


def tokens(used: dict[str, int]) -> tuple[int | None, int | None, int | None]:
    """Take the input, output and total tokens out of `used`."""
    sent, said, total = (used.pop(f"{name}Tokens", None) for name in ("input", "output", "total"))
    return sent, said, total


def plan(entries: Iterable[Any]) -> Plan:
    """The plan of a to-do list. CLIs differ in the names of members and in the case of words."""
    return Plan(tuple(_plan_entry(as_dict(entry)) for entry in entries))


def _plan_entry(entry: Json) -> PlanEntry:
    text = next((entry[name] for name in ("content", "step", "text") if entry.get(name)), "")
    status = "completed" if entry.get("completed") is True else str(entry.get("status") or "")
    word = status.lower().removeprefix("todo_status_")
    return PlanEntry(str(text), _STATUS.get(word, "pending"))


def choice(
    question_id: str,
    text: Any,
    options: Iterable[Option],
    *,
    subject: Json | None = None,
    free_text: bool = False,
    multiple: bool = False,
) -> Question:
    """A question with these options; without any, a question for a text."""
    known = tuple(options)
    return Question(
        question_id,
        "choice" if known else "text",
        str(text or ""),
        known,
        subject,
        free_text=free_text or not known,
        multiple=multiple,
    )


def labelled(option: Any, option_id: str = "") -> Option:
    """The option of a choice as CLIs write it: {label, description}."""
    known = as_dict(option)
    label = str(known.get("label") or option_id)
    return Option(option_id or label, label, "choice", str(known.get("description") or ""))


def joined(content: Iterable[Any]) -> str:
    """The texts of content blocks; the type of a block without a text."""
    blocks = (one for one in content if isinstance(one, dict))
    return "\n".join(str(one.get("text", f"[{one.get('type')}]")) for one in blocks)
