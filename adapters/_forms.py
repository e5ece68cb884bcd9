"""Forms (ACP and MCP elicitation): a question for each member of a flat JSON schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bridge.adapter.fields import Json, as_dict, as_list, as_word
from bridge.task.events import Answer, Option, Question, QuestionKind
from bridge.task.form_values import describe, type_of, value_of
from bridge.task.subject import leaves

ACCEPT = Option("accept", "Done", "allow_once")
CONFIRM = Option("accept", "Accept", "allow_once")
DECLINE = Option("decline", "Decline", "reject_once")
# The ids and names of the options below must not be those of a member's own options.
REFUSE = Option("(decline)", "Decline the whole form", "reject_once")
EMPTY = Option("(empty)", "Leave it empty")
DEFAULT = "(default)"
YES = Option("true", "Yes")
NO = Option("false", "No")


def confirmed(answers: Mapping[str, Answer]) -> Json:
    """The result of an elicitation with one question, to accept or to decline."""
    (answer,) = answers.values()
    accepted = answer.option in (None, ACCEPT)
    return {"action": "accept" if accepted else "decline"}


def permitted(answers: Mapping[str, Answer]) -> Json:
    """The result of an elicitation without members: it needs an explicit yes."""
    (answer,) = answers.values()
    if answer.option and answer.option.kind == "allow_once":
        return {"action": "accept", "content": {}}
    return {"action": "decline"}


@dataclass(frozen=True, slots=True)
class FormMember:
    """A member with a question. `custom`: another member takes own words as its answer."""

    name: str
    schema: Json
    required: bool
    custom: bool = False

    @property
    def choices(self) -> dict[str, tuple[Any, str, str]]:
        """Value, name and description of each option, by its id."""
        source = as_dict(self.schema.get("items")) if self.is_list else self.schema
        return {str(value): (value, *words) for value, *words in _choices(source)}

    @property
    def is_list(self) -> bool:
        return type_of(self.schema) == "array"

    def question(self, question_id: str, form: str, message: str, *, alone: bool) -> Question:
        options = [
            Option(one, name, "choice", text) for one, (_, name, text) in self.choices.items()
        ]
        if type_of(self.schema) == "boolean":
            options = [YES, NO]
        own_words = self.custom or not options
        kind: QuestionKind = "choice" if options else "text"
        label = str(self.schema.get("description") or self.schema.get("title") or self.name)
        lines = [message, "" if alone and message else label, "" if options else self._needs()]
        return Question(
            question_id,
            kind,
            "\n".join(filter(None, lines)),
            (*options, *self._without(), REFUSE),
            {"name": self.name, "schema": self.schema},
            free_text=own_words,
            multiple=self.is_list and bool(options),
            schema=None if self.custom or options else self.schema,
            form=form,
        )

    def _needs(self) -> str:
        needs = describe(self.schema)
        return f"(The answer is {needs}.)" if needs else ""

    def _without(self) -> Iterator[Option]:
        """The option for no answer."""
        if "default" in self.schema:
            value = ", ".join(text for _, _, text in leaves(self.schema["default"]))
            yield Option(DEFAULT, f"Keep the default: {value}")
        elif not self.required:
            yield EMPTY

    def content(self, answer: Answer) -> Iterator[tuple[str, Any]]:
        """The members of the form's content for the answer."""
        ids = [option.id for option in answer.options]
        known = self.choices | {YES.id: (True,), NO.id: (False,)} if self._is_bool else self.choices
        values = [known[one][0] for one in ids if one in known]
        if values:
            yield self.name, values if self.is_list else values[0]
        elif DEFAULT in ids:
            yield self.name, self.schema["default"]
        elif not ids and self.custom:
            yield f"{self.name}_custom", answer.text
        elif not ids:
            yield self.name, _value(self.schema, answer.text)

    @property
    def _is_bool(self) -> bool:
        return type_of(self.schema) == "boolean"


def members_of(schema: Json) -> list[FormMember]:
    """The members with a question. `X_custom` has none: it takes a free text as the answer to the
    choice X (claude-agent-acp)."""
    members, required = as_dict(schema.get("properties")), as_list(schema.get("required"))
    asked = [
        FormMember(name, as_dict(one), name in required, f"{name}_custom" in members)
        for name, one in members.items()
    ]
    with_options = {member.name for member in asked if member.choices}
    customs = {f"{name}_custom" for name in with_options}
    return [
        one if one.name in with_options else FormMember(one.name, one.schema, one.required)
        for one in asked
        if one.name not in customs
    ]


def form(asked: Mapping[str, FormMember], answers: Mapping[str, Answer]) -> Json:
    """The result of a form from the answers by question id; a refusal declines it."""
    content: dict[str, Any] = {}
    for question_id, answer in answers.items():
        if REFUSE in answer.options:
            return {"action": "decline"}
        content |= asked[question_id].content(answer)
    return {"action": "accept", "content": content}


def _choices(schema: Json) -> Iterator[tuple[Any, str, str]]:
    named = as_list(schema.get("oneOf")) or as_list(schema.get("anyOf"))
    for one in map(as_dict, named):
        if "const" in one:
            value = one["const"]
            yield value, str(one.get("title") or value), _description(one)
    names = as_list(schema.get("enumNames"))
    for number, value in enumerate(as_list(schema.get("enum"))):
        yield value, str(names[number] if number < len(names) else value), ""


def _description(option: Json) -> str:
    """The description of an option; claude-agent-acp has it in the metadata."""
    meta = as_dict(option.get("_meta")).values()
    known = [option.get("description"), *(as_dict(one).get("description") for one in meta)]
    return next(filter(None, map(as_word, known)), "")


def _value(schema: Json, text: str) -> Any:
    """The text as a value; as it is, if it is none: the questions ask for a value that fits."""
    try:
        return value_of(schema, text)
    except ValueError:
        return text
