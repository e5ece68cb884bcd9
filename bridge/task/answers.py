"""The meaning of a client's message as the answer to an open question.

The bridge understands, in this order: the id of an option in a data part; the id, the name or the
number of an option; the common phrases for yes, always and no; and free text if the question allows
it. Many answers come from models, so emphasis, quotes and a label ("Answer: X") around them are
ignored. The bridge repeats the question if it cannot match the answer. It never guesses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from bridge.task.events import Answer, Option, OptionKind, Question
from bridge.task.form_values import value_of
from bridge.task.message import DataPart, Message
from bridge.task.text import exact

TO_READ = timedelta(milliseconds=700)
HASTY = (
    "That answer came right after this question was asked and may have been meant for the question "
    "before, so nothing was decided. Answer again, or name the question by its questionId."
)
_LONGEST = 20_000  # characters of an answer in which the name of an option is looked for
SHOWN_ANSWER = 200  # characters of a rejected answer in the hint
DECISIONS = ("permission", "plan", "auth")  # kinds of questions that a yes or no decides
_LONGEST_LIST = 4_000  # characters of an answer that lists options
_MOST_WORDS = 8  # between separators, in the name of one option
_MOST_WAYS = 100  # readings of a list
_YES = ("yes", "yeah", "yep", "y", "ok", "okay", "sure")
_GO = ("go ahead", "please go ahead", "proceed", "please proceed", "do it", "please do")
_ONCE = (
    *(_YES + _GO),
    *(f"{yes} please" for yes in _YES),
    *(f"{yes} {go}" for yes in _YES for go in _GO),
    *(f"{yes} {word}" for yes in _YES for word in ("allow", "allow it", "allow once", "approved")),
    *("allow", "allow it", "allow once", "approve", "approve it", "approved", "accept", "accepted"),
    *("i approve", "i allow it", "i agree", "i accept", "you may", "yes you may"),
    "permission granted",
)
_ALWAYS = (
    *("always", "always allow", "always allow it", "allow always", "allow all", "always approve"),
    *("yes always", "yes always allow", "always please"),
)
_NOT = ("don't", "do not", "dont")
_ACTS = ("do it", "do that", "run it", "run that", "allow it", "allow", "proceed", "go ahead")
_NO = (
    *("no", "n", "nope", "deny", "denied", "reject", "rejected", "refuse", "decline", "declined"),
    *("stop", "cancel", "abort", "no thanks", "no thank you", "no please don't", "please don't"),
    *("i deny", "i decline", "i refuse", "i do not approve", "i don't approve", "not approved"),
    *("not allowed", "permission denied", "deny it", "reject it"),
    *_NOT,
    *(f"{no} {act}" for no in _NOT for act in _ACTS),
    *(f"no {no}" for no in _NOT),
)

# "yes" never means "always": an approval is not widened. A refusal may be widened.
WORDS: dict[str, tuple[OptionKind, ...]] = {
    **dict.fromkeys(_ONCE, ("allow_once",)),
    **dict.fromkeys(_ALWAYS, ("allow_always",)),
    **dict.fromkeys(_NO, ("reject_once", "reject_always")),
    "never": ("reject_always", "reject_once"),
}
# "no, use pytest instead", "deny because it is slow": a refusal may carry its reason, an approval
# may not carry conditions.
_REFUSAL = re.compile(
    r"(?:no|deny|denied|reject|rejected|refuse|do not|don't)[*_`\"']*"
    r"(?:\s*[,.:;!\-–—]\s*|\s+(?=because\b|since\b))(?P<reason>.+)",  # noqa: RUF001
    re.I | re.S,
)
_LABEL = re.compile(
    r"(?:(?:my|the) )?(?:final )?(?:answer|option|choice|decision|reply)(?: is)?[*_`\"']*"
    r"\s*(?::|(?=[0-9]))(?P<rest>.+)",
    re.I | re.S,
)
_QUOTES = str.maketrans("‘’‚‛“”„‟", "''''\"\"\"\"")  # noqa: RUF001
_AROUND = " \t\r\n.!\"'`*_"


def names_question(message: Message) -> bool:
    """Whether the message can only be an answer. The answer may be too late."""
    found = (part.data for part in message.parts if isinstance(part, DataPart))
    return any(isinstance(data, dict) and "questionId" in data for data in found)


def names_open(message: Message, question: Question | None) -> bool:
    """Whether the message names the open question."""
    found = [part.data for part in message.parts if isinstance(part, DataPart)]
    return question is not None and any(data.get("questionId") == question.id for data in found)


def read_answer(question: Question, message: Message) -> Answer | None:
    """The answer in `message`, or None if it cannot be understood."""
    facts = [part.data for part in message.parts if isinstance(part, DataPart)]
    facts = [data for data in facts if isinstance(data, dict)]
    if any(data.get("questionId") not in (None, question.id) for data in facts):
        return None  # it answers a question that is no longer open
    text = message.text.strip()
    ids = [one for data in facts for one in _wanted_ids(data)]
    chosen = _chosen_by_id(question, ids) if ids else _chosen_by_text(question, text)
    label = None if chosen or ids else _LABEL.fullmatch(_plain(text))
    if label:
        chosen = _chosen_by_text(question, label["rest"].strip())
    if ids and not chosen:
        return None  # an id is exact: the text must not replace a wrong one
    if chosen or (question.free_text and text and not _problem(question, text)):
        return Answer(question.id, text, tuple(chosen), message)
    if question.kind not in DECISIONS:
        return None  # "no, thanks" may be an answer to a choice, but not the end of a form
    begin = len(text) - len(text.lstrip(_AROUND))
    refusal = _REFUSAL.fullmatch(text[:_LONGEST].translate(_QUOTES), begin)
    option = _of_kind(question, WORDS["no"]) if refusal else None
    if option and refusal:
        return Answer(question.id, text[refusal.start("reason") :].strip(), (option,), message)
    return None


def permission(question: Question, by: str) -> Answer | None:
    """The answer that allows the request once; None if the question has no such option."""
    return _meant(question, "yes", by)


def denial(question: Question, by: str) -> Answer | None:
    """The answer that refuses; None if the question cannot be refused. If a permission has no such
    option, the answer is the word "no", and adapters express it in the CLI's own way."""
    words = Answer(question.id, "no", by=by) if question.kind == "permission" else None
    return _meant(question, "no", by) or words


def _meant(question: Question, word: str, by: str) -> Answer | None:
    option = _of_kind(question, WORDS[word])
    return Answer(question.id, option.name, (option,), by=by) if option else None


def is_hasty(message: Message, asked: int, age: timedelta) -> bool:
    """Whether the message is a bare word that was probably meant for an earlier question: it came
    sooner after the publication of this one than a person can read it. `asked`: the number of
    questions that the task has asked; `age`: the time since the publication of this one."""
    names = any(isinstance(part, DataPart) for part in message.parts)
    return asked > 1 and is_unread(age) and not names and is_word(message.text)


def is_unread(age: timedelta) -> bool:
    """Whether a person cannot have read a question with this time since its publication."""
    return timedelta(0) <= age < TO_READ


def is_word(text: str) -> bool:
    """Whether `text` is only one of the common phrases for yes, always or no."""
    return _phrase(text) in WORDS


def hint(question: Question, message: Message) -> str:
    """Why the message does not answer the question, with the received option or text."""
    facts = [part.data for part in message.parts if isinstance(part, DataPart)]
    facts = [data for data in facts if isinstance(data, dict)]
    if any(data.get("questionId") not in (None, question.id) for data in facts):
        return (
            "The question that the answer names is closed, so nothing was decided. The open "
            "question follows."
        )
    ids = ", ".join(str(one) for data in facts for one in _wanted_ids(data))
    text = ids or " ".join(message.text.split())
    if not text:
        return "The answer had no text and no option, so nothing was decided."
    problem = None if ids else _problem(question, message.text.strip())
    if problem:
        return f'"{exact(text, SHOWN_ANSWER)}" {problem}, so nothing was decided.'
    return f'"{exact(text, SHOWN_ANSWER)}" is none of the possible answers, so nothing was decided.'


def _problem(question: Question, text: str) -> str | None:
    """Why own words are not the value that the question needs."""
    try:
        value_of(question.schema or {}, text)
    except ValueError as error:
        return str(error)
    return None


def _wanted_ids(data: Mapping[str, Any]) -> list[Any]:
    one, several = data.get("optionId"), data.get("optionIds")
    ids = several if isinstance(several, list) else [one]
    return [each for each in ids if each is not None]


def _chosen_by_id(question: Question, ids: Sequence[Any]) -> list[Option]:
    """The options with these ids; none if an id is unknown, or if there are too many."""
    chosen = [option for option in question.options if option.id in ids]
    known = [option.id for option in chosen]
    fits = all(one in known for one in ids) and (len(chosen) <= 1 or question.multiple)
    return chosen if fits else []


def _chosen_by_text(question: Question, text: str) -> list[Option]:
    one = None if question.multiple else _named(question, text)
    if one:
        return [one]
    if question.multiple:
        return _several(question, text)
    if question.kind in DECISIONS:
        option = _of_kind(question, WORDS.get(_phrase(text), ()))
        return [option] if option else []
    return []


def _several(question: Question, text: str) -> list[Option]:
    """The options in a list with separators. A name may contain separators: none if the list can be
    read in two ways."""
    if len(text) > _LONGEST_LIST:
        return []
    pieces = re.split(r"([,;\n])", text)  # every second one is a separator
    ways: list[set[frozenset[str]]] = [{frozenset()}]  # of reading the first words of the list
    for end in range(1, len(pieces) // 2 + 2):
        ways.append(set())
        for start in range(max(0, end - _MOST_WORDS), end):
            option = _named(question, "".join(pieces[2 * start : 2 * end - 1]))
            ways[end] |= {way | {option.id} for way in ways[start]} if option else set()
        if len(ways[end]) > _MOST_WAYS:
            return []
    ids = ways[-1].pop() if len(ways[-1]) == 1 else ()
    return [option for option in question.options if option.id in ids]


def _named(question: Question, text: str) -> Option | None:
    """The option that has the text as its id, name or number; None if it may mean two."""
    options, text = question.options, text.strip()
    same_id = [option for option in options if option.id == text]
    same_name = [option for option in options if option.name == text]
    if same_id or same_name:
        return (same_id + same_name)[0]
    wanted = _normal(text)
    alike = [option for option in options if _normal(option.name) == wanted]
    return alike[0] if len(alike) == 1 else _numbered(question, wanted)


def _numbered(question: Question, number: str) -> Option | None:
    """The option that the question's text shows behind this number."""
    if not re.fullmatch(r"[0-9]{1,2}", number):
        return None
    line = re.search(rf"^[ \t]*{number}[.):][ \t]+(.+)$", question.text, re.M)
    shown = _normal(line[1]) if line else ""
    alike = [option for option in question.options if _normal(option.name) == shown]
    return alike[0] if len(alike) == 1 else None


def _of_kind(question: Question, kinds: Iterable[OptionKind]) -> Option | None:
    of_kind = (option for kind in kinds for option in question.options if option.kind == kind)
    return next(of_kind, None)


def _plain(text: str) -> str:
    """`text` without the emphasis, quotes or full stop that a model puts around an answer."""
    return text[:_LONGEST].translate(_QUOTES).strip(_AROUND)


def _normal(text: str) -> str:
    return " ".join(_plain(text).casefold().split())


def _phrase(text: str) -> str:
    return " ".join(_normal(text).replace(",", " ").split())
