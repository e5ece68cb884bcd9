"""Recordings of the real Claude Code CLI, played to its adapter: the events that come of each are
written down beside it, one per line, and reviewed by eye."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bridge.adapter import Adapter, AgentConfig, ExitStatus, Prompt, SessionStart
from bridge.server import registry
from bridge.task.events import ENDINGS, AgentEvent, Answer, Question, QuestionWithdrawn
from bridge.task.message import DataPart, Message, Part, RawPart, Role, TextPart
from tests import CHECKOUT
from tests.support.cases import each

FOLDER = CHECKOUT / "tests" / "transcripts" / "claude-code"
RECORDINGS = sorted(FOLDER.glob("*/*.jsonl"))
WRITE = "WRITE_GOLDENS"  # set it to 1 to update the expected events

ClaudeCode = registry.load("claude-code")
Json = dict[str, Any]


def test_there_are_recordings_of_two_versions() -> None:
    versions = {path.parent.name for path in RECORDINGS}
    assert versions == {"2.1.197", "2.1.330"}
    assert len(RECORDINGS) > 100


@each("path", RECORDINGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_recording_becomes_the_events_written_down_for_it(path: Path) -> None:
    told = list(Replay(path).run())
    text = "[\n" + ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in told) + "\n]\n"
    golden = path.with_suffix(".events.json")
    if os.environ.get(WRITE):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), (
        f"to write them again: {WRITE}=1 python -m pytest "
        "tests/unit/adapters/test_transcripts.py; then read the "
        "difference"
    )


@each("path", RECORDINGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_turn_of_a_recording_ends_exactly_once(path: Path) -> None:
    names = {ending.__name__ for ending in ENDINGS}
    open_turns = 0
    for entry in Replay(path).run():
        if entry.get("in") == "prompt":
            assert open_turns == 0
            open_turns = 1
        elif entry.get("event") in names and "ignored" not in entry:
            open_turns -= 1
    assert open_turns == 0


def test_no_events_are_written_down_for_a_recording_that_is_gone() -> None:
    goldens = {path.name.removesuffix(".events.json") for path in FOLDER.glob("*/*.events.json")}
    assert goldens == {path.stem for path in RECORDINGS}


class Replay:
    """Plays the session: it sends a prompt after the end of the previous turn, answers questions as
    in the recording, and ignores output between turns."""

    def __init__(self, path: Path) -> None:
        self._rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        spawn = self._rows[0]["data"]
        self._adapter = _adapter(spawn["argv"], spawn["cwd"])
        self._prompts: deque[Json] = deque()
        self._questions: list[Question] = []
        self._running = False
        self._stderr = ""
        self._uuids: dict[str, str] = {}  # of prompts: the recorded one → the adapter's

    def run(self) -> Iterator[Json]:
        if not any(_is_prompt(row) for row in self._rows):
            yield from self._prompt({"message": {"content": "(not in the recording)"}})
        for row in self._rows:
            yield from self._row(row["dir"], row["data"])

    def _row(self, direction: str, data: Any) -> Iterator[Json]:
        match direction:
            case "in" if isinstance(data, dict):
                yield from self._given(data)
            case "out":
                yield from self._said(data if isinstance(data, str) else json.dumps(data))
            case "err":
                self._stderr += f"{data}\n"
            case "note" if data.get("note") == "exit":
                yield from self._exit(data["rc"])

    def _given(self, line: Json) -> Iterator[Json]:
        match line["type"]:
            case "user" if self._running:
                # The bridge queues what comes in the middle of a turn. Where the CLI made it
                # part of the running turn, no turn of its own follows in the recording.
                self._prompts.append(line)
            case "user":
                yield from self._prompt(line)
            case "control_response":
                yield from self._answer(line["response"])
            case "control_request" if line["request"]["subtype"] == "interrupt":
                assert self._adapter.interrupt()
                sent = self._sent()
                assert [one["request"] for one in sent] == [{"subtype": "interrupt"}]
                yield {"in": "interrupt"}

    def _prompt(self, line: Json) -> Iterator[Json]:
        parts = _parts(line["message"]["content"])
        message = Message("m", Role.USER, parts)
        self._running = True
        self._adapter.prompt(Prompt("t", "c", message))
        (sent,) = self._sent()
        if "uuid" in line:
            self._uuids[line["uuid"]] = sent["uuid"]
        yield {"in": "prompt", "text": message.text}

    def _answer(self, response: Json) -> Iterator[Json]:
        for question in list(self._questions):
            if question.id.partition("/")[0] == response["request_id"]:
                self._questions.remove(question)
                answer = _answer(question, response)
                self._adapter.answer(question, answer)
                chosen = [option.id for option in answer.options]
                yield {"in": "answer", "options": chosen, "text": answer.text}
                yield from ({"out": line} for line in self._sent())

    def _said(self, line: str) -> Iterator[Json]:
        for recorded, ours in self._uuids.items():
            line = line.replace(recorded, ours)
        if self._prompts and not self._running and '"subtype": "init"' in line:
            yield from self._prompt(self._prompts.popleft())
        yield from self._told(self._adapter.receive_line(line.encode()))
        yield from ({"out": line} for line in self._sent())

    def _exit(self, code: int) -> Iterator[Json]:
        if self._running:
            yield {"in": "exit", "code": code}
            yield from self._told(self._adapter.receive_exit(ExitStatus(code, self._stderr)))

    def _told(self, events: Iterable[AgentEvent]) -> Iterator[Json]:
        for event in events:
            yield _event(event) if self._running else {**_event(event), "ignored": True}
            match event:
                case Question():
                    self._questions.append(event)
                case QuestionWithdrawn():
                    self._questions = [q for q in self._questions if q.id != event.id]
            self._running = self._running and not isinstance(event, ENDINGS)

    def _sent(self) -> list[Any]:
        return [json.loads(line) for line in self._adapter.data_to_send().splitlines()]


def _adapter(argv: list[str], cwd: str) -> Adapter:
    resumed = [after for flag, after in pairwise(argv) if flag == "--resume"]
    start = SessionStart(cwd, resumed[0] if resumed else "new", resume=bool(resumed))
    return ClaudeCode(AgentConfig("/bin/claude"), start)


def _is_prompt(row: Json) -> bool:
    data = row["data"]
    return row["dir"] == "in" and isinstance(data, dict) and data["type"] == "user"


def _parts(content: Any) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple(_part(block) for block in content)


def _part(block: Json) -> Part:
    if block["type"] == "text":
        return TextPart(block["text"])
    if "source" in block:
        return RawPart(block["source"]["data"], block["source"]["media_type"])
    return DataPart(block)


def _answer(question: Question, response: Json) -> Answer:
    """The recorded decision as an answer of the client."""
    decision = response.get("response") or {}
    allowed = decision.get("behavior") == "allow"
    if question.kind == "choice":
        asked = decision.get("updatedInput", {}).get("answers", {})
        text = asked.get(question.text) or decision.get("message", "")
        named = [option for option in question.options if option.name in text.split(", ")]
        return Answer(question.id, text, tuple(named))
    wanted = "allow_always" if decision.get("updatedPermissions") else "allow_once"
    wanted = wanted if allowed else "reject_once"
    option = next(option for option in question.options if option.kind == wanted)
    return Answer(question.id, decision.get("message", option.name), (option,))


def _event(event: AgentEvent) -> Json:
    """The class of the event, and the members that differ from their defaults."""
    return {"event": type(event).__name__, **_members(event)}


def _members(value: Any) -> Json:
    members: Json = {}
    for one in fields(value):
        member = getattr(value, one.name)
        if one.default is MISSING or member != one.default:
            members[one.name] = _plain(member)
    return members


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return _members(value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value
