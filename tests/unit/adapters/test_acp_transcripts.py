"""Recordings of real CLIs that speak ACP, played to their adapters: the events that come of each
are written down beside it, one per line, and reviewed by eye."""

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
from bridge.task.events import ENDINGS, AgentEvent, Answer, Option, Question
from bridge.task.message import Message, Role, TextPart
from tests import CHECKOUT
from tests.support.cases import each
from tests.support.transcripts import Json, described, rows_of, shape

FOLDER = CHECKOUT / "tests" / "transcripts" / "acp"
RECORDINGS = sorted(FOLDER.glob("*/*.jsonl"))
WRITE = "WRITE_GOLDENS"  # set it to 1 to update the expected events


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


class Play:
    """Plays the session: prompts, answers and cancels of the recorded client. The adapter must have
    sent each request of that client, under an id of its own."""

    def __init__(self, rows: list[Json]) -> None:
        self._rows = rows
        asked = [row["data"] for row in rows if row["dir"] == "in"]
        loads = [one for one in asked if one.get("method") == "session/load"]
        session = loads[0]["params"]["sessionId"] if loads else "new"
        start = SessionStart("/workspace", session, resume=bool(loads))
        kind = registry.load(rows[0]["data"]["adapter"])
        self._adapter = kind(AgentConfig("/opt/agent"), start)
        prompts = [one["params"] for one in asked if one.get("method") == "session/prompt"]
        texts = [one["prompt"][0]["text"] for one in prompts]
        self._prompts = deque(texts or ["(not in the recording)"])
        self._sent: dict[str, deque[int]] = defaultdict(deque)  # ids of ours by method
        self._ids: dict[str, int] = {}  # the recorded client's → ours
        self._questions: dict[Any, Question] = {}  # by the id of the agent's request
        self._running = False
        self._stderr = ""
        self.events: list[AgentEvent] = []

    def run(self) -> Iterator[Json]:
        yield self._prompt()  # the adapter shakes hands when there is something to do
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
                status = ExitStatus(data["rc"], self._stderr)
                yield from self._told(self._adapter.receive_exit(status))

    def _given(self, data: Json) -> Iterator[Json]:
        match data.get("method"):
            case "session/cancel" if self._running:
                yield {"in": "cancel", "answered": self._adapter.interrupt()}
                yield from self._out()
            case "session/cancel":
                pass
            case None:
                yield from self._answer(data)
            case method:
                if method == "session/prompt" and not self._sent[method]:
                    yield self._prompt()
                self._ids[json.dumps(data["id"])] = self._sent[method].popleft()

    def _prompt(self) -> Json:
        text = self._prompts.popleft()
        self._running = True
        self._adapter.prompt(Prompt("t", "c", Message("m", Role.USER, (TextPart(text),))))
        list(self._out())
        return {"in": "prompt", "text": text}

    def _answer(self, data: Json) -> Iterator[Json]:
        """The decision of the recorded client. A question that ended with the turn has no
        answer."""
        question = self._questions.pop(data["id"], None)
        outcome = data.get("result", {})
        if question is None or outcome.get("outcome", {}).get("outcome") == "cancelled":
            return
        chosen = outcome.get("outcome", {}).get("optionId")
        words = outcome.get("content", {}).get("question_0")
        options: tuple[Option, ...] = tuple(
            one for one in question.options if one.id in (chosen, words)
        )
        self._adapter.answer(question, Answer(question.id, "", options))
        yield {"in": "answer", "options": [one.id for one in options]}
        yield from self._out()

    def _said(self, data: Any) -> Iterator[Json]:
        line = data if isinstance(data, str) else json.dumps(self._renumbered(data))
        events = list(self._adapter.receive_line(line.encode()))
        for event in events:
            if isinstance(event, Question):
                self._questions[data["id"]] = event
        yield from self._told(events)
        yield from self._out()

    def _renumbered(self, data: Json) -> Json:
        ours = self._ids.get(json.dumps(data.get("id")))
        return {**data, "id": ours} if ours and "method" not in data else data

    def _told(self, events: Iterable[AgentEvent]) -> Iterator[Json]:
        for event in events:
            self.events.append(event)
            yield described(event) if self._running else {**described(event), "ignored": True}
            self._running = self._running and not isinstance(event, ENDINGS)

    def _out(self) -> Iterator[Json]:
        """The messages of the adapter; of its own requests only the names."""
        for line in map(json.loads, self._adapter.data_to_send().splitlines()):
            if "method" in line and "id" in line:
                self._sent[line["method"]].append(line["id"])
            else:
                yield {"out": line}


# --- the recordings ------------------------------------------------------------------------------


def test_there_are_recordings_of_four_clis() -> None:
    found = {path.parent.name for path in RECORDINGS}
    assert found == {"claude-agent-acp", "copilot", "gemini", "opencode"}


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


def shapes() -> Iterator[Any]:
    """One line of each shape, with the recording in which it comes."""
    found = set()
    for path in RECORDINGS:
        rows = rows_of(path)
        for number, row in enumerate(rows):
            update = row["data"].get("params", {}).get("update", {}) if row["dir"] == "out" else {}
            if row["dir"] != "out" or update.get("sessionUpdate") == "available_commands_update":
                continue
            kind = (update.get("sessionUpdate"), update.get("status"))
            known = repr((kind, shape(row["data"], 4)))
            if known not in found:
                found.add(known)
                yield pytest.param(rows[: number + 1], id=f"{name_of(path)}-{number}")


@each("rows", list(shapes()))
@pytest.mark.soak
def test_no_member_of_a_recorded_line_is_relied_upon_blindly(rows: list[Json]) -> None:
    """The line comes where it came, with every member missing or of another kind."""
    *before, last = rows
    for changed in broken(last["data"]):
        play = Play([*before, {**last, "data": changed}])
        deque(play.run(), maxlen=0)
        check(play.events)


@each("path", RECORDINGS, ids=name_of)
def test_the_events_of_a_recording_have_both_encodings(path: Path) -> None:
    play = Play(rows_of(path))
    deque(play.run(), maxlen=0)
    check(play.events)
