"""The open question of a task, and its answer (docs/extension.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.client.failure import usage
from bridge.client.shapes import INTERRUPTED, Json, state_of
from bridge.task.events import Option, Question
from bridge.task.facts import Closed, closed_of, event_of
from bridge.task.subject import how_to_answer
from bridge.task.subject import text_of as text_of_subject

_WHOLE = 10**8  # characters: a subject is smaller


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """`id` None: the agent asks in words only. `text` is for people. `multiple`: an answer may have
    several options. `until` and `then`: the time when it ends without an answer, and the
    consequence, `deny` or `end`."""

    id: str | None
    kind: str
    text: str
    options: tuple[Option, ...] = ()
    subject: Mapping[str, Any] | None = None
    free_text: bool = True
    multiple: bool = False
    until: str = ""
    then: str = ""

    @property
    def request(self) -> str:
        """The text without its end on how to answer in words."""
        options, words = self.options, self.free_text
        asked = Question("", "text", "", options, free_text=words, multiple=self.multiple)
        return self.text.removesuffix(how_to_answer(asked)).rstrip()

    @property
    def whole(self) -> str:
        """The request with the parts of its subject that the server has cut in its text."""
        cut = text_of_subject(self.subject or {})
        if not cut.strip():
            return self.request
        return self.request.replace(cut, text_of_subject(self.subject or {}, _WHOLE), 1)

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


def question_of(task: Mapping[str, Any]) -> OpenQuestion | None:
    """The open question; None if the task does not wait for an answer."""
    if state_of(task) not in INTERRUPTED:
        return None
    message = (task.get("status") or {}).get("message") or {}
    facts = facts_of(message)
    text = text_of(message.get("parts") or ())
    asked = event_of(facts)
    if not isinstance(asked, Question):
        return OpenQuestion(None, "text", text)
    return OpenQuestion(
        asked.id or None,
        asked.kind,
        text,
        options=asked.options,
        subject=asked.subject,
        free_text=asked.free_text,
        multiple=asked.multiple,
        until=str(facts.get("until") or ""),
        then=str(facts.get("then") or ""),
    )


@dataclass(frozen=True, slots=True)
class ChosenAnswer:
    """The answer to a question: options, or own words; `text` is the reason of a refusal, too."""

    chosen: tuple[Option, ...]
    text: str | None = None


class Leave:
    """The decision to leave a question open."""


def closed_by(item: Mapping[str, Any]) -> Closed | None:
    """The newest answer in the metadata of a task or of a status update."""
    bridge = (item.get("metadata") or {}).get("bridge")
    found = bridge.get("answered") if isinstance(bridge, dict) else None
    return closed_of(found) if isinstance(found, dict) else None


def facts_of(message: Mapping[str, Any]) -> Json:
    """The object of the extension in a status message: a data part, or the metadata."""
    for part in message.get("parts") or ():
        if isinstance(part.get("data"), dict) and "type" in part["data"]:
            return dict(part["data"])
    found = (message.get("metadata") or {}).get("bridge")
    return found if isinstance(found, dict) else {}


def text_of(parts: Sequence[Mapping[str, Any]]) -> str:
    return "".join(str(part["text"]) for part in parts if isinstance(part.get("text"), str))


def answer_parts(question: OpenQuestion, chosen: Sequence[Option], text: str | None) -> list[Json]:
    """The parts of the message that answers. `text`: own words, or the reason of a refusal."""
    parts: list[Json] = [{"text": text}] if text else []
    if chosen:
        ids = [option.id for option in chosen]
        named: Json = {"optionIds": ids} if question.multiple else {"optionId": ids[0]}
        parts.append({"data": {"questionId": question.id, **named}})
    elif question.id is not None and question.free_text and text:
        parts.append({"data": {"questionId": question.id}})
    return parts
