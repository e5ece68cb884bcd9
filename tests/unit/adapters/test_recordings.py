"""Recorded sessions of real CLIs with the inputs and outputs of their adapters
(tests/support/record_clis.py). The same inputs must give the same outputs, to clients and to the
CLI. Damaged lines never break a turn."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.adapter import ExitStatus
from bridge.adapter.testing import check
from bridge.store.serialization import dump_events, load_events
from bridge.task.events import ENDINGS, Status
from bridge.task.text import json_object
from tests.support.cases import each
from tests.support.real_clis import CLIS
from tests.support.record_clis import SESSIONS
from tests.support.recorder import launch_facts
from tests.support.recordings import RECORDINGS, Json, Play, adapter_of, name_of, rows_of


def recorded(row: Json) -> Any:
    """The events of a row; those of an earlier version get the defaults of new members."""
    return json.loads(dump_events(load_events(orjson.dumps(row.get("events", [])))))


@cache
def rows_and_events(path: Path) -> Sequence[tuple[Json, Any]]:
    """The rows of a recording, each with its events."""
    return [(row, recorded(row)) for row in rows_of(path)]


# --- as it was recorded ---------------------------------------------------------------------------


def test_every_cli_has_every_session() -> None:
    expected = {f"{cli.name}/{session.__name__}" for cli in CLIS for session in SESSIONS}
    assert {name_of(path) for path in RECORDINGS} == expected


@each("path", RECORDINGS, ids=name_of)
def test_the_same_inputs_of_an_adapter_give_the_same_events(path: Path) -> None:
    play = Play()
    for number, (row, events) in enumerate(rows_and_events(path), 1):
        assert json.loads(dump_events(play.row(row))) == events, number
        assert play.sent() == row.get("sent", ""), number


@each("path", RECORDINGS, ids=name_of)
def test_the_cli_is_started_with_the_same_arguments(path: Path) -> None:
    begin, launch, *_ = rows_of(path)
    adapter = adapter_of(begin["begin"])
    assert launch_facts(adapter.launch(), adapter.config.runner) == launch["launch"]


@each("path", RECORDINGS, ids=name_of)
def test_every_turn_ends_once(path: Path) -> None:
    """After that, the adapter gets no exit of the CLI."""
    names = {ending.__name__ for ending in ENDINGS}
    running = False
    for row in rows_of(path):
        assert not ("prompt" in row and running)
        running = running or "prompt" in row
        running = running and not any(name in names for name, _ in row.get("events", []))
    assert not running


# --- as it was not -------------------------------------------------------------------------------

UNKNOWN = (
    '{"type":"brand_new","data":{"x":1}}',
    '{"jsonrpc":"2.0","method":"session/update","params":{"update":{"sessionUpdate":"brand_new"}}}',
    '{"jsonrpc":"2.0","method":"brand/new","params":{}}',
    '{"method":"item/brandNew/delta","params":{"delta":"x"}}',
    '{"type":"system","subtype":"brand_new"}',
    '{"brand":"new"}',
)
FEW = settings(
    max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def objects(value: Any) -> Iterator[Json]:
    """All objects in it, itself included."""
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from objects(one)


def changed(line: str, change: Callable[[Json], None]) -> str:
    """The line after `change` of its object, or of the one within the runner's."""
    said = json_object(line.encode())
    if said is None:
        return line
    inner = json_object(said["line"].encode()) if isinstance(said.get("line"), str) else None
    change(inner or said)
    if inner:
        said["line"] = json.dumps(inner)
    return json.dumps(said)


def parsed(lines: str) -> list[Any]:
    return [json.loads(line) for line in lines.splitlines()]


@FEW
@given(seed=st.integers(0, 2**32))
@each("path", RECORDINGS, ids=name_of)
def test_order_and_unknown_members_and_kinds_mean_nothing(path: Path, seed: int) -> None:
    chance = random.Random(seed)

    def shuffle(line: Json) -> None:
        line[f"brandNew{chance.randrange(9)}"] = chance.choice([None, 7, "x", {"type": "new"}])
        for one in objects(line):
            items = list(one.items())
            chance.shuffle(items)
            one.clear()
            one.update(items)

    play = Play()
    for number, (row, events) in enumerate(rows_and_events(path), 1):
        if "line" in row and chance.random() < 0.2:
            unknown = play.row({"line": chance.choice(UNKNOWN)})
            assert all(isinstance(event, Status) for event in unknown)  # shown, if at all
            assert "brand" in (play.sent() or "brand")  # a request must be refused
        told = {**row, "line": changed(row["line"], shuffle)} if "line" in row else row
        assert json.loads(dump_events(play.row(told))) == events, number
        assert parsed(play.sent()) == parsed(row.get("sent", "")), number


NOTICES = ("npm notice New version available: {11}", "\x1b[?25h\x1b[2K", "Warning: ", "} else {")


@each("path", RECORDINGS, ids=name_of)
def test_output_before_an_object_of_a_line_loses_nothing(path: Path) -> None:
    play = Play()
    for number, (row, recorded_events) in enumerate(rows_and_events(path), 1):
        line = row.get("line", "")
        said = json_object(line.encode())
        notice = NOTICES[number % len(NOTICES)]
        if said and isinstance(said.get("line"), str) and json_object(said["line"].encode()):
            told = json.dumps({**said, "line": notice + said["line"] + "\x1b[0m"})  # of a runner
        elif said and not {"exit", "tail", "pause", "line"} & said.keys():
            told = notice + line + "\x1b[0m"
        else:
            told = line
        events = play.row({**row, "line": told} if "line" in row else row)
        shown = [Status(notice, {"type": "output", "text": notice})] if told != line else []
        told_events = [one for one in events if one not in shown]
        assert json.loads(dump_events(told_events)) == recorded_events, number
        assert len([one for one in events if one in shown]) == len(shown), number
        assert play.sent() == row.get("sent", ""), number


@FEW
@given(seed=st.integers(0, 2**32))
@each("path", RECORDINGS, ids=name_of)
def test_a_member_that_is_missing_does_not_break_a_turn(path: Path, seed: int) -> None:
    """The output can still be encoded for clients, and the turn has one end, at the latest that of
    its CLI."""
    chance = random.Random(seed)
    rows = [row for row, _ in rows_and_events(path)]
    at = chance.choice([number for number, row in enumerate(rows) if "line" in row])

    def remove(line: Json) -> None:
        one = chance.choice([one for one in objects(line) if one] or [{"": 0}])
        del one[chance.choice(list(one))]

    play, said, running = Play(), [], False
    for number, row in enumerate(rows):
        told = {**row, "line": changed(row["line"], remove)} if number == at else row
        running = running or "prompt" in row
        events = play.row(told)
        said += events
        running = running and not any(isinstance(event, ENDINGS) for event in events)
    if running and play.adapter:
        last = list(play.adapter.receive_exit(ExitStatus(-9, "")))
        assert sum(isinstance(event, ENDINGS) for event in last) == 1
    check(said)
