"""The line with the answer to a question and its author."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.cli.client.card import Line
from bridge.client.questions import OpenQuestion, facts_of, question_of
from bridge.client.shapes import STATES, Json
from bridge.task.events import Option
from bridge.task.facts import Closed
from bridge.task.text import exact

_VERBS = {"allow_once": "✓ allowed", "allow_always": "✓ always allowed"}
_VERBS |= {"reject_once": "✗ denied", "reject_always": "✗ always denied"}


def decision(closed: Closed, options: Sequence[Option], mine: bool, words: str) -> Line:
    """`✓ allowed by you`, `✗ denied by anna: too slow`. `options`: those of the question; `mine`:
    this client has answered, with `words`."""
    chosen = [one for one in options if one.id in closed.option_ids]
    names = ", ".join(one.name for one in chosen) or ", ".join(closed.option_ids)
    verb = _VERBS.get(chosen[0].kind, "") if chosen else ""
    author = "you" if mine else closed.by or "another client"
    said = words if verb else ": ".join(filter(None, (names, words)))
    mark = verb or ("✓ answered" if chosen or words else "· answered")
    text = f"{mark} by {author}" + (f": {said}" if said else "")
    style = "red" if mark[0] == "✗" else "green" if mark[0] == "✓" else "dim"
    return " ".join(exact(text).split()), style


def asked_in(task: Json, question_id: str) -> OpenQuestion | None:
    """The question in the history of a task."""
    for message in reversed(task.get("history") or ()):
        facts = facts_of(message)
        if facts.get("type") == "question" and facts.get("questionId") == question_id:
            status = {"state": STATES["input-required"], "message": message}
            return question_of({"status": status})
    return None
