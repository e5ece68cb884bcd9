"""The open question of a task, and its answer (docs/extension.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.client.failure import usage
from bridge.client.shapes import INTERRUPTED, Json, state_of


@dataclass(frozen=True, slots=True)
class Option:
    id: str
    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Question:
    """`id` None: the agent asks in words only. `text` is for people."""

    id: str | None
    kind: str
    text: str
    options: tuple[Option, ...]
    subject: Mapping[str, Any] | None
    free_text: bool

    def choose(self, word: str) -> Option:
        """The option with the id, or with the name in any case. Raises ClientError."""
        named = [one for one in self.options if one.id == word]
        named = named or [one for one in self.options if one.name.lower() == word.lower()]
        if len(named) != 1:
            choice = ", ".join(one.id for one in self.options) or "none"
            raise usage(f"{word!r} is not an option of the question; the options are: {choice}")
        return named[0]

    def of_kind(self, kind: str) -> Option | None:
        return next((one for one in self.options if one.kind == kind), None)


def question_of(task: Mapping[str, Any]) -> Question | None:
    """The open question; None if the task does not wait for an answer."""
    if state_of(task) not in INTERRUPTED:
        return None
    message = (task.get("status") or {}).get("message") or {}
    facts = facts_of(message)
    text = text_of(message.get("parts") or ())
    if facts.get("type") != "question":
        return Question(None, "text", text, (), None, True)
    options = tuple(
        Option(str(one.get("id")), str(one.get("name", "")), str(one.get("kind", "")))
        for one in facts.get("options") or ()
        if isinstance(one, dict)
    )
    identity = facts.get("questionId")
    return Question(
        None if identity is None else str(identity),
        str(facts.get("kind", "text")),
        text,
        options,
        facts.get("subject"),
        facts.get("freeText") is True,
    )


def facts_of(message: Mapping[str, Any]) -> Json:
    """The object of the extension in a status message: a data part, or the metadata."""
    for part in message.get("parts") or ():
        if isinstance(part.get("data"), dict) and "type" in part["data"]:
            return dict(part["data"])
    found = (message.get("metadata") or {}).get("bridge")
    return found if isinstance(found, dict) else {}


def text_of(parts: Sequence[Mapping[str, Any]]) -> str:
    return "".join(str(part["text"]) for part in parts if isinstance(part.get("text"), str))


def answer_parts(question: Question, option: Option | None, text: str | None) -> list[Json]:
    """The parts of the message that answers. `text`: own words, or the reason of a refusal."""
    parts: list[Json] = [{"text": text}] if text else []
    if option:
        parts.append({"data": {"questionId": question.id, "optionId": option.id}})
    elif question.id is not None and question.free_text and text:
        parts.append({"data": {"questionId": question.id}})
    return parts
