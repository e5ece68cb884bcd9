"""Lines of agents with a very long text in each of their members, in turn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from bridge.adapter import AgentConfig, Lines, SessionStart
from bridge.adapter.testing import begin
from bridge.server import registry
from bridge.task.events import bounded, merge_text
from bridge.task.text import json_object
from tests.support.cases import each
from tests.support.hostile_text import SHAPES, TURN, cpu_seconds, repeated
from tests.support.recordings import RECORDINGS, Json, Play, rows_of

LONG = 100_000  # characters: code whose time grows with the square of the length takes seconds
CLIS = sorted({path.parent.name for path in RECORDINGS})
JSONL = (
    *(
        f'{{"type":"{kind}","text":"x"}}'
        for kind in ("text", "thought", "status", "done", "failed")
    ),
    '{"type":"tool_call","id":"1","name":"Bash","input":{"command":"ls"}}',
    '{"type":"tool_result","id":"1","output":"x","isError":true}',
    '{"type":"artifact","artifactId":"a","name":"b","description":"c","parts":[{"text":"x"}]}',
    '{"type":"artifact","parts":[{"url":"file:///x"},{"raw":"eA==","filename":"f","mediaType":"t"}]}',
    '{"type":"question","id":"1","text":"x","options":[{"id":"a","name":"b"}],"data":{"x":"y"}}',
    '{"type":"auth_required","id":"1","text":"x"}',
    '{"type":"usage","inputTokens":"1","other":"x"}',
    '{"type":"message","text":"x","parts":[{"text":"x"}]}',
)
PLACE = "where the hostile text comes"
ONCE = [json.dumps(repeated(shape, LONG))[1:-1] for shape in SHAPES.values()]
TWICE = [json.dumps(text)[1:-1] for text in ONCE]  # JSON within JSON
ON_A_TERMINAL = Lines(terminal=True, question=r".*\? \[y/n\]$", end=r"\w+\s*> $")


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all strings in a JSON value."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict | list):
        for name, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(one, (*path, name))


def replaced(line: Json, path: tuple[str | int, ...], text: str) -> Json:
    changed: Any = deepcopy(line)
    place = changed
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = text
    whole: Json = changed
    return whole


def hostile(line: str, seen: set[str]) -> Iterator[str]:
    """The line with a hostile text in each of its members; within the line of a runner, in those
    of the CLI's own line. `seen`: the members that were tried."""
    said = json_object(line.encode()) or {}
    inner = json_object(said["line"].encode()) if isinstance(said.get("line"), str) else None
    whole = inner or said
    for path in places(whole):
        kinds = [whole.get(name) for name in ("type", "subtype", "method")]
        member = str([kinds, [name for name in path if isinstance(name, str)]])
        if member not in seen:
            changed = json.dumps(replaced(whole, path, PLACE))
            line = json.dumps({**said, "line": changed}) if inner else changed
            yield from (line.replace(PLACE, text) for text in (TWICE if inner else ONCE))
        seen.add(member)


def took(adapter: Any, line: str) -> float:
    """The time to read the line, without the time of a copy of the adapter."""
    changed = deepcopy(adapter)

    def read() -> None:
        for event in merge_text(changed.receive_line(line.encode())):
            bounded(event)
        changed.data_to_send()

    return cpu_seconds(read)


@each("cli", CLIS)
def test_no_line_of_a_recorded_cli_takes_longer_than_a_turn(cli: str) -> None:
    seen: set[str] = set()
    for path in (one for one in RECORDINGS if one.parent.name == cli):
        play = Play()
        for row in rows_of(path):
            for line in hostile(row.get("line", ""), seen):
                assert took(play.adapter, line) < TURN, line[:300]
            play.row(row)
            play.sent()
    assert seen


@pytest.fixture
def workspace(tmp_path: Path) -> SessionStart:
    return SessionStart(str(tmp_path), "11111111-2222-3333-4444-555555555555", False)


def test_no_line_of_jsonl_takes_longer_than_a_turn(workspace: SessionStart) -> None:
    adapter = registry.load("jsonl")(AgentConfig("/opt/agent"), workspace)
    begin(adapter)
    seen: set[str] = set()
    for line in JSONL:
        for changed in hostile(line, seen):
            assert took(adapter, changed) < TURN, changed[:300]
    assert len(seen) > 10


@each("name", ["generic", "aider"])
@each("member", ["line", "tail", "stderr"])
def test_no_line_of_a_program_without_a_protocol_takes_longer_than_a_turn(
    name: str, member: str, workspace: SessionStart
) -> None:
    config = AgentConfig("/opt/agent", runner=("/opt/python", "/runner.py"), lines=ON_A_TERMINAL)
    fragments = (*SHAPES.values(), "x\b", "x\r", "\x1b[0m", "a?", "multi> ", "x ")
    for fragment in fragments:
        adapter = registry.load(name).variant_for(config)(config, workspace)
        begin(adapter)
        text = repeated(fragment, 10 * LONG)
        line = {"exit": 1, member: text} if member == "stderr" else {member: text}
        assert took(adapter, json.dumps(line)) < TURN, fragment
