"""What a person is asked, for each question in the recordings of all CLIs, in each surface."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from bridge.a2a.codecs import CODECS
from bridge.cli.client.card import QuestionCard
from bridge.cli.client.output import Fields, show_question
from bridge.client.questions import OpenQuestion, question_of
from bridge.task.events import Option, Question
from bridge.task.state import Task
from bridge.task.subject import question_text
from tests import CHECKOUT
from tests.support.cases import each
from tests.support.recordings import RECORDINGS, Play, name_of, rows_of

TRANSCRIPTS = sorted((CHECKOUT / "tests/transcripts").rglob("*.events.json"))
_MEMBER = re.compile(r'(?m)^[ │]*"\w+": ')  # of an object of JSON with an indent
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def opened(asked: Question) -> OpenQuestion:
    """The question as a client of this bridge gets it."""
    task = Task("t", "c", NOW)
    (update,) = task.apply(asked, NOW)
    found = question_of(CODECS[0].encode_update(task, update, False)["statusUpdate"])
    assert found
    return found


def surfaces(asked: Question) -> Iterator[str]:
    """The text of each surface."""
    question = opened(asked)
    console = Console(width=200)

    def wrap(text: str, width: int) -> list[str]:
        return [line.plain for line in Text(text).wrap(console, width, overflow="fold")]

    yield question.text
    yield question.whole
    yield "\n".join(
        line for line, _ in QuestionCard(question, "a", "/w", 0.0).lines(wrap, 200, 400)
    )
    show_question(Fields(shown := io.StringIO()), question)
    yield shown.getvalue()
    yield question_text(asked, 8_000)


def values(value: Any) -> Iterator[str]:
    """All strings in it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from values(one)


def check(asked: Question) -> None:
    given = "".join(values(asked.subject))
    for text in surfaces(asked):
        assert '{"' not in text or '{"' in given or '{"' in asked.text, text
        assert not _MEMBER.search(text) or _MEMBER.search(given), text
        assert "\\n" not in text or "\\n" in given or "\\n" in asked.text, text
        assert asked.text.partition("\n")[0] in " ".join(text.split()), text
        for change in (asked.subject or {}).get("changes") or ():
            lines = change.split("\n")
            start = next(number for number, line in enumerate(lines) if line[:2] == "@@")
            for line in lines[start + 1 :]:
                assert line[:1] not in ("+", "-") or line.rstrip() in text, text


def of_transcript(path: Path) -> Iterator[Question]:
    for entry in json.loads(path.read_text("utf-8")):
        if entry.get("event") == "Question":
            options = tuple(Option(**one) for one in entry.get("options", ()))
            members = {name: one for name, one in entry.items() if name != "event"}
            members.pop("ignored", None)
            yield Question(**{**members, "options": options})


@each("path", TRANSCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_question_of_a_transcript_shows_what_will_happen(path: Path) -> None:
    for asked in of_transcript(path):
        check(asked)


@each("path", RECORDINGS, ids=name_of)
def test_a_question_of_a_recording_shows_what_will_happen(path: Path) -> None:
    play = Play()
    for row in rows_of(path):
        for event in play.row(row):
            if isinstance(event, Question):
                check(event)
