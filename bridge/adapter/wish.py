"""The question for a permission: its subject, and the text that names the whole action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridge.adapter.diff import WRITES, changes_in
from bridge.adapter.fields import Json, as_dict
from bridge.task.events import FileChange, Option, Question
from bridge.task.inputs import COMMANDS, PATHS, URLS, first_of
from bridge.task.subject import leaves, text_of
from bridge.task.text import MESSAGE_CHARS

HEADLINE = 200  # characters of an action that stands in the first line


def subject_of(
    tool: str,
    title: str,
    given: Any,
    *,
    call_id: str | None = None,
    kind: str = "",
    note: str = "",
    changes: Sequence[FileChange] = (),
) -> dict[str, Any]:
    """The subject of a permission (docs/extension.md). `title`: the first line for a person;
    `given`: the whole input of the tool; `note`: words that came with the request; `changes`:
    the files that the request names besides the input, with their diffs if the CLI gives any. Else
    the diffs are those that the input describes."""
    writes = kind == "edit" or bool(WRITES.search(tool))
    diffs = [change.diff for change in changes if change.diff]
    diffs = diffs or [diff for diff in changes_in(given, writes=writes) if diff]
    named = {
        "command": first_of(COMMANDS, given),
        "url": first_of(URLS, given),
        "path": first_of(PATHS, given),
    }
    facts: dict[str, Any] = {
        "toolCallId": call_id,
        "name": tool,
        "tool": tool,
        "kind": kind,
        "title": title,
    }
    known = {value for _, _, value in leaves(given)} if changes else ()
    paths = [one for one in dict.fromkeys(change.path for change in changes) if one not in known]
    facts |= named | {"paths": paths, "changes": diffs, "note": note}
    return {name: value for name, value in facts.items() if value} | {"input": given}


def headline(sentence: str, given: Any) -> str:
    """The first line of a permission: `sentence`, and the command, file or address if it is one
    line."""
    chief = next(filter(None, (first_of(names, given) for names in (COMMANDS, PATHS, URLS))), "")
    return f"{sentence}: {chief}" if 0 < len(chief) <= HEADLINE and "\n" not in chief else sentence


def permission(question_id: str, subject: Json, options: Sequence[Option]) -> Question:
    """The question for a permission; `subject` is one of subject_of()."""
    return Question(question_id, "permission", text_of(subject), tuple(options), subject)


def begins(agent: str) -> str:
    """The title of a plan."""
    return f"{agent} has a plan and asks to begin:"


def plan_question(
    question_id: str,
    subject: Json,
    plan: str,
    options: Sequence[Option],
    *,
    free_text: bool = False,
) -> Question:
    """The question whether a plan may begin. The plan comes after the other members."""
    others = {name: one for name, one in as_dict(subject.get("input")).items() if one != plan}
    text = f"{text_of({**subject, 'input': others}, MESSAGE_CHARS // 2)}\n\n{plan}"
    return Question(question_id, "plan", text, tuple(options), subject, free_text=free_text)
