"""The open question of a task, and its answer (docs/extension.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.client.failure import usage
from bridge.client.shapes import INTERRUPTED, Json, state_of


@dataclass(frozen=True, slots=True)
class QuestionOption:
    id: str
    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """`id` None: the agent asks in words only. `text` is for people. `multiple`: an answer may have
    several options."""

    id: str | None
    kind: str
    text: str
    options: tuple[QuestionOption, ...] = ()
    subject: Mapping[str, Any] | None = None
    free_text: bool = True
    multiple: bool = False

    def choose(self, word: str) -> QuestionOption:
        """The option with the id, or with the name in any case. Raises ClientError."""
        named = [one for one in self.options if one.id == word]
        named = named or [one for one in self.options if one.name.lower() == word.lower()]
        if len(named) != 1:
            choice = ", ".join(one.id for one in self.options) or "none"
            raise usage(f"{word!r} is not an option of the question; the options are: {choice}")
        return named[0]

    def of_kind(self, kind: str) -> QuestionOption | None:
        return next((one for one in self.options if one.kind == kind), None)


def question_of(task: Mapping[str, Any]) -> OpenQuestion | None:
    """The open question; None if the task does not wait for an answer."""
    if state_of(task) not in INTERRUPTED:
        return None
    message = (task.get("status") or {}).get("message") or {}
    facts = facts_of(message)
    text = text_of(message.get("parts") or ())
    if facts.get("type") != "question":
        return OpenQuestion(None, "text", text)
    options = tuple(
        QuestionOption(str(one.get("id")), str(one.get("name", "")), str(one.get("kind", "")))
        for one in facts.get("options") or ()
        if isinstance(one, dict)
    )
    identity = facts.get("questionId")
    return OpenQuestion(
        None if identity is None else str(identity),
        str(facts.get("kind", "text")),
        text,
        options=options,
        subject=facts.get("subject"),
        free_text=facts.get("freeText") is True,
        multiple=facts.get("multiple") is True,
    )


@dataclass(frozen=True, slots=True)
class ChosenAnswer:
    """The answer to a question: options, or own words; `text` is the reason of a refusal, too."""

    chosen: tuple[QuestionOption, ...]
    text: str | None = None


class Leave:
    """The decision to leave a question open."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The answer that closed a question. `by`: the principal, or `rule`, `timeout`, `limit`.
    `message_id`: None if no client answered."""

    question_id: str
    by: str
    option_ids: tuple[str, ...]
    message_id: str | None

    def describe(self, options: Sequence[QuestionOption] = ()) -> str:
        """`answered by anna: Allow`. `options`: those of the question, for their names."""
        names = {one.id: one.name for one in options}
        chosen = ", ".join(names.get(one, one) for one in self.option_ids)
        return f"answered by {self.by or 'a client'}" + (f": {chosen}" if chosen else "")


def closed_by(item: Mapping[str, Any]) -> Closed | None:
    """The newest answer in the metadata of a task or of a status update."""
    bridge = (item.get("metadata") or {}).get("bridge")
    found = bridge.get("answered") if isinstance(bridge, dict) else None
    if not isinstance(found, dict):
        return None
    ids = tuple(map(str, found.get("optionIds") or ()))
    by, message_id = str(found.get("by") or ""), found.get("messageId")
    return Closed(str(found.get("questionId")), by, ids, message_id)


def facts_of(message: Mapping[str, Any]) -> Json:
    """The object of the extension in a status message: a data part, or the metadata."""
    for part in message.get("parts") or ():
        if isinstance(part.get("data"), dict) and "type" in part["data"]:
            return dict(part["data"])
    found = (message.get("metadata") or {}).get("bridge")
    return found if isinstance(found, dict) else {}


def text_of(parts: Sequence[Mapping[str, Any]]) -> str:
    return "".join(str(part["text"]) for part in parts if isinstance(part.get("text"), str))


def answer_parts(
    question: OpenQuestion, chosen: Sequence[QuestionOption], text: str | None
) -> list[Json]:
    """The parts of the message that answers. `text`: own words, or the reason of a refusal."""
    parts: list[Json] = [{"text": text}] if text else []
    if chosen:
        ids = [option.id for option in chosen]
        named: Json = {"optionIds": ids} if question.multiple else {"optionId": ids[0]}
        parts.append({"data": {"questionId": question.id, **named}})
    elif question.id is not None and question.free_text and text:
        parts.append({"data": {"questionId": question.id}})
    return parts
