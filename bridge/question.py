"""What a client's message means as the answer to an open question.

Understood are, in this order: the id of an option in a data part, the id or name of an option,
the common words for yes, always and no, and words of the client's own where the question allows
them. What is not understood is asked again, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from bridge.events import Answer, Option, OptionKind, Question
from bridge.message import DataPart, Message

TO_READ = timedelta(milliseconds=700)
HASTY = (
    "That answer came right after this question was asked and may have been meant for the question "
    "before, so nothing was decided. Answer again, or name the question by its questionId."
)
_ONCE = ("yes", "y", "ok", "okay", "allow", "allow once", "approve", "accept", "proceed", "sure")
_ALWAYS = ("always", "always allow", "allow always", "yes always", "allow all")
_NO = ("no", "n", "deny", "reject", "refuse", "decline", "stop", "cancel")

# "yes" never means "always": an answer is not widened. A refusal may be.
WORDS: dict[str, tuple[OptionKind, ...]] = {
    **dict.fromkeys(_ONCE, ("allow_once",)),
    **dict.fromkeys(_ALWAYS, ("allow_always",)),
    **dict.fromkeys(_NO, ("reject_once", "reject_always")),
    "never": ("reject_always", "reject_once"),
}
# "no, use pytest instead": a refusal may carry its reason, an approval may not carry conditions.
_REFUSAL = re.compile(r"(?:no|deny|reject|refuse)\s*[,.:;!\-–—]\s*(?P<reason>.+)", re.I | re.S)  # noqa: RUF001


def read_answer(question: Question, message: Message) -> Answer | None:
    """The answer in `message`, or None where it cannot be understood."""
    facts = [part.data for part in message.parts if isinstance(part, DataPart)]
    facts = [data for data in facts if isinstance(data, dict)]
    if any(data.get("questionId") not in (None, question.id) for data in facts):
        return None  # it answers a question that is no longer open
    text = message.text.strip()
    ids = [one for data in facts for one in _wanted_ids(data)]
    chosen = _chosen_by_id(question, ids) if ids else _chosen_by_text(question, text)
    if ids and not chosen:
        return None  # an id is no guess, and must not be helped with one
    if chosen or (question.free_text and text):
        return Answer(question.id, text, tuple(chosen), message)
    refusal = _REFUSAL.fullmatch(text)
    option = _of_kind(question, WORDS["no"]) if refusal else None
    if option and refusal:
        return Answer(question.id, refusal["reason"].strip(), (option,), message)
    return None


def permission(question: Question, by: str) -> Answer | None:
    """The answer that allows what is asked for, this once; None where there is none such."""
    return _meant(question, "yes", by)


def refusal(question: Question, by: str) -> Answer | None:
    """The answer that means no; None where a question is not one that takes it. To a permission
    that has no such option the word itself is, which adapters tell in the CLI's own way."""
    words = Answer(question.id, "no", by=by) if question.kind == "permission" else None
    return _meant(question, "no", by) or words


def _meant(question: Question, word: str, by: str) -> Answer | None:
    option = _of_kind(question, WORDS[word])
    return Answer(question.id, option.name, (option,), by=by) if option else None


def is_hasty(message: Message, asked: int, age: timedelta) -> bool:
    """Whether the message is a bare word that was probably meant for an earlier question: it comes
    sooner after the publication of this one than a person can have read it. `asked`: how many
    questions the task has asked; `age`: how long ago this one was published."""
    names = any(isinstance(part, DataPart) for part in message.parts)
    return asked > 1 and timedelta(0) <= age < TO_READ and not names and is_word(message.text)


def is_word(text: str) -> bool:
    """Whether `text` is no more than one of the common words for yes, always or no."""
    return _normal(text) in WORDS


def hint(question: Question) -> str:
    """Why the message was not understood, and what would be."""
    if not question.options:
        return "The answer had no text."
    return "That is none of the possible answers, so nothing was decided."


def _wanted_ids(data: Mapping[str, Any]) -> list[Any]:
    one, several = data.get("optionId"), data.get("optionIds")
    ids = several if isinstance(several, list) else [one]
    return [each for each in ids if each is not None]


def _chosen_by_id(question: Question, ids: Sequence[Any]) -> list[Option]:
    """The options with these ids; none where one is unknown, or where they are too many."""
    chosen = [option for option in question.options if option.id in ids]
    known = [option.id for option in chosen]
    if any(one not in known for one in ids) or (len(chosen) > 1 and not question.multiple):
        return []
    return chosen


def _chosen_by_text(question: Question, text: str) -> list[Option]:
    one = _named(question.options, text)
    if one:
        return [one]
    if question.multiple:
        several = [_named(question.options, piece) for piece in re.split(r"[,;\n]", text)]
        if all(several):
            return [option for option in question.options if option in several]
    if question.kind in ("permission", "plan", "auth"):
        option = _of_kind(question, WORDS.get(_normal(text), ()))
        return [option] if option else []
    return []


def _named(options: tuple[Option, ...], text: str) -> Option | None:
    same_id = [option for option in options if option.id == text.strip()]
    same_name = [option for option in options if _normal(option.name) == _normal(text)]
    return next(iter(same_id + same_name), None)


def _of_kind(question: Question, kinds: Iterable[OptionKind]) -> Option | None:
    for kind in kinds:
        for option in question.options:
            if option.kind == kind:
                return option
    return None


def _normal(text: str) -> str:
    return " ".join(text.casefold().split()).strip(" .!\"'")
