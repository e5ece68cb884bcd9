"""Forms (ACP and MCP elicitation): a question for each member of a flat JSON schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from bridge.adapter.fields import Json, as_dict, as_list
from bridge.task.events import Answer, Option, Question

ACCEPT = Option("accept", "Done", "allow_once")
DECLINE = Option("decline", "Decline", "reject_once")
YES = Option("true", "Yes")
NO = Option("false", "No")


def visited(answers: Mapping[str, Answer]) -> Json:
    (answer,) = answers.values()
    return {"action": "accept" if answer.option in (None, ACCEPT) else "decline"}


def asked_members(members: Json) -> Iterator[tuple[str, Json]]:
    """Name and schema of each member with a question. `X_custom` has none: it takes a free text
    as the answer to the choice X (claude-agent-acp)."""
    for name, schema in members.items():
        chosen = name.removesuffix("_custom")
        if chosen == name or not _choices_of(as_dict(members.get(chosen))):
            yield name, as_dict(schema)


def member_question(
    question_id: str, name: str, schema: Json, *, message: str, members: Json
) -> Question:
    """The question for one of asked_members()."""
    multiple = schema.get("type") == "array"
    options = tuple(_choices(as_dict(schema.get("items")) if multiple else schema))
    if schema.get("type") == "boolean":
        options = (YES, NO)
    label = str(schema.get("description") or schema.get("title") or name)
    alone = len(list(asked_members(members))) == 1
    text = message if alone and message else f"{message}\n{label}".strip()
    own_words = not options or f"{name}_custom" in members
    kind: Literal["choice", "text"] = "choice" if options else "text"
    subject = {"name": name, "schema": schema}
    return Question(
        question_id, kind, text, options, subject, free_text=own_words, multiple=multiple
    )


def _choices(schema: Json) -> Iterator[Option]:
    named = as_list(schema.get("oneOf")) or as_list(schema.get("anyOf"))
    for one in map(as_dict, named):
        value = str(one.get("const"))
        yield Option(value, str(one.get("title") or value))
    for value in map(str, as_list(schema.get("enum"))):
        yield Option(value, value)


def form(asked: Mapping[str, tuple[str, Json]], answers: Mapping[str, Answer]) -> Json:
    content: dict[str, Any] = {}
    for question_id, answer in answers.items():
        name, schema = asked[question_id]
        if answer.options:
            chosen = [one.id for one in answer.options]
            content[name] = chosen if schema.get("type") == "array" else _typed(schema, chosen[0])
        elif schema.get("type") in ("number", "integer", "boolean") or not _choices_of(schema):
            content[name] = _typed(schema, answer.text)
        else:
            content[f"{name}_custom"] = answer.text
    return {"action": "accept", "content": content}


def _choices_of(schema: Json) -> bool:
    return any(_choices(as_dict(schema.get("items")))) or any(_choices(schema))


def _typed(schema: Json, text: str) -> Any:
    """The text as a value of the member's type, if it can be parsed."""
    try:
        match schema.get("type"):
            case "boolean":
                return text == YES.id
            case "integer":
                return int(text)
            case "number":
                return float(text)
    except ValueError:
        pass
    return text
