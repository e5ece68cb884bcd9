"""Recordings of the real Codex (`codex app-server`), played to its adapter: the events that come of
each are written down beside it, one per line, and reviewed by eye."""

from __future__ import annotations

import json
import os
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.adapter import AgentConfig, ExitStatus, Prompt, SessionStart
from bridge.adapter.testing import broken, check
from bridge.server import registry
from bridge.task.events import ENDINGS, AgentEvent, Answer, Question
from bridge.task.message import Message, Role, TextPart
from tests import CHECKOUT
from tests.support.cases import each
from tests.support.transcripts import described, rows_of, shape

FOLDER = CHECKOUT / "tests" / "transcripts" / "codex"
RECORDINGS = sorted(FOLDER.glob("*/*.jsonl"))
WRITE = "WRITE_GOLDENS"  # set it to 1 to update the expected events
CLEAN = "thread/backgroundTerminals/clean"
Json = dict[str, Any]
Codex = registry.load("codex")


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def prompt(text: str) -> Prompt:
    return Prompt("t", "c", Message("m", Role.USER, (TextPart(text),)))


def input_of(data: Json) -> str:
    return str(data["params"]["input"][0]["text"])


class Play:
    """Plays the session: prompts, answers, steers and cancels of the recorded client. The adapter
    must have sent the requests of that client, under ids of its own; other recorded requests and
    their answers are left out."""

    def __init__(self, rows: list[Json]) -> None:
        self._rows = rows
        asked = [row["data"] for row in rows if row["dir"] == "in"]
        resumes = [one for one in asked if one.get("method") == "thread/resume"]
        thread = resumes[0]["params"]["threadId"] if resumes else "new"
        start = SessionStart("/workspace", thread, resume=bool(resumes))
        self._adapter = Codex(AgentConfig("/opt/codex"), start)
        turns = [one for one in asked if one.get("method") == "turn/start"]
        self._thread = turns[0]["params"]["threadId"] if turns else thread
        self._first = input_of(turns[0]) if turns else "(not in the recording)"
        self._cleans = any(one.get("method") == CLEAN for one in asked)
        self._sent: dict[str, deque[int]] = defaultdict(deque)  # ids of ours by method
        self._ids: dict[str, int] = {}  # the recorded client's → ours
        self._questions: dict[Any, list[Question]] = {}  # by the id of Codex's request
        self._running = False
        self._stderr = ""
        self.events: list[AgentEvent] = []

    def run(self) -> Iterator[Json]:
        yield self._prompt(self._first)  # the adapter shakes hands when there is something to do
        for row in self._rows[1:]:
            yield from self._row(row["dir"], row["data"])

    def _row(self, direction: str, data: Any) -> Iterator[Json]:
        match direction:
            case "in":
                yield from self._given(data)
            case "out":
                yield from self._said(data)
            case "err":
                self._stderr += f"{data}\n"
            case "note" if data.get("note") == "exit" and self._running:
                yield from self._told(
                    self._adapter.receive_exit(ExitStatus(data["rc"], self._stderr))
                )

    def _given(self, data: Json) -> Iterator[Json]:
        if "method" not in data:
            yield from self._answer(data)
            return
        if data.get("params", {}).get("threadId", self._thread) != self._thread:
            return
        match data["method"]:
            case "turn/start" if not self._sent["turn/start"] and not self._running:
                yield self._prompt(input_of(data))
            case "turn/steer":
                yield {"in": "steer", "text": input_of(data)}
                self._adapter.steer(prompt(input_of(data)))
                yield from self._out()
            case "turn/interrupt" if self._running:
                yield {"in": "cancel", "answered": self._adapter.interrupt()}
                yield from self._out()
        if self._sent[data["method"]] and "id" in data:
            self._ids[json.dumps(data["id"])] = self._sent[data["method"]].popleft()

    def _prompt(self, text: str) -> Json:
        self._running = True
        self._adapter.prompt(prompt(text))
        list(self._out())
        return {"in": "prompt", "text": text}

    def _answer(self, data: Json) -> Iterator[Json]:
        """The decision of the recorded client. A question that ended with the turn has no
        answer."""
        for question in self._questions.pop(data["id"], []):
            result = data["result"]
            chosen = [result.get("decision")]
            chosen += [w for one in result.get("answers", {}).values() for w in one["answers"]]
            options = tuple(one for one in question.options if one.id in chosen)
            self._adapter.answer(question, Answer(question.id, "", options))
            yield {"in": "answer", "options": [one.id for one in options]}
            yield from self._out()

    def _said(self, data: Any) -> Iterator[Json]:
        if isinstance(data, dict) and "method" not in data and "id" in data:
            ours = self._ids.get(json.dumps(data["id"]))
            if ours is None:
                return
            data = {**data, "id": ours}
        yield from self._heard(data)
        while self._sent[CLEAN] and not self._cleans:  # the recorded client did not ask for it
            yield from self._heard({"id": self._sent[CLEAN].popleft(), "result": {}})

    def _heard(self, data: Any) -> Iterator[Json]:
        events = list(self._adapter.receive_line(json.dumps(data).encode()))
        for event in events:
            if isinstance(event, Question):
                self._questions.setdefault(data["id"], []).append(event)
        yield from self._told(events)
        yield from self._out()

    def _told(self, events: Iterable[AgentEvent]) -> Iterator[Json]:
        for event in events:
            self.events.append(event)
            yield described(event) if self._running else {**described(event), "ignored": True}
            self._running = self._running and not isinstance(event, ENDINGS)

    def _out(self) -> Iterator[Json]:
        """The messages of the adapter; of its own requests only the names, where they matter."""
        for line in map(json.loads, self._adapter.data_to_send().splitlines()):
            if "method" in line and "id" in line:
                self._sent[line["method"]].append(line["id"])
                if line["method"].startswith(("turn/", "thread/background")):
                    yield {"asked": line["method"]}
            else:
                yield {"out": line}


# --- the recordings ------------------------------------------------------------------------------


def test_there_are_recordings() -> None:
    assert {path.parent.name for path in RECORDINGS} == {"0.169.0"}
    assert len(RECORDINGS) > 20


@each("path", RECORDINGS, ids=name_of)
def test_a_recording_becomes_the_events_written_down_for_it(path: Path) -> None:
    told = [json.dumps(entry, ensure_ascii=False) for entry in Play(rows_of(path)).run()]
    text = "[\n" + ",\n".join(told) + "\n]\n"
    golden = path.with_suffix(".events.json")
    if os.environ.get(WRITE):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), f"to update them: {WRITE}=1"


@each("path", RECORDINGS, ids=name_of)
def test_every_turn_of_a_recording_ends_exactly_once(path: Path) -> None:
    names = {ending.__name__ for ending in ENDINGS}
    running = False
    for entry in Play(rows_of(path)).run():
        if entry.get("in") == "prompt":
            assert not running
            running = True
        elif entry.get("event") in names and "ignored" not in entry:
            assert running
            running = False
    assert not running


@each("path", RECORDINGS, ids=name_of)
def test_the_events_of_a_recording_have_both_encodings(path: Path) -> None:
    play = Play(rows_of(path))
    deque(play.run(), maxlen=0)
    check(play.events)


def shapes() -> Iterator[Any]:
    """One line of each shape, with the recording in which it comes."""
    found = set()
    for path in RECORDINGS:
        rows = rows_of(path)
        for number, row in enumerate(rows):
            data = row["data"]
            if row["dir"] != "out" or data.get("method") in ("thread/started",):
                continue
            item = data.get("params", {}).get("item", {})
            known = repr((data.get("method"), item.get("type"), item.get("status"), shape(data, 3)))
            if known not in found:
                found.add(known)
                yield pytest.param(rows[: number + 1], id=f"{name_of(path)}-{number}")


@each("rows", list(shapes()))
def test_no_member_of_a_recorded_line_is_relied_upon_blindly(rows: list[Json]) -> None:
    """The line comes where it came, with every member missing or of another kind."""
    *before, last = rows
    for changed in broken(last["data"]):
        play = Play([*before, {**last, "data": changed}])
        deque(play.run(), maxlen=0)
        check(play.events)
