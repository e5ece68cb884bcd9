"""The event rows that a release has written get the same update numbers from each later one:
clients and other servers know the updates by these numbers. Another file of rows is written by
`python -m tests.unit.store.test_stored_rows NAME SEED`; the old files stay as they are."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bridge.store.changes import EventBatch
from bridge.store.replay import apply_batch
from bridge.store.serialization import dump_events, micros
from bridge.task.events import ENDINGS, Done, Event, Text, bounded
from bridge.task.state import Task
from tests import CHECKOUT
from tests.support.samples import SAMPLES, some_event

ROWS = sorted((CHECKOUT / "tests/golden/rows").glob("*.json"))
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def stored(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
    return found


def task_of(row: dict[str, Any]) -> Task:
    return Task("t", "c", BEGIN, row["thoughts"], "", False)


@pytest.mark.parametrize("path", ROWS, ids=lambda path: path.stem)
def test_old_rows_have_the_same_numbers(path: Path) -> None:
    for row in stored(path):
        task, last = task_of(row), 0
        for number, (time, events, expected) in enumerate(row["batches"], 1):
            batch = EventBatch("t", number, time, events.encode(), expected)
            last += len(apply_batch(task, batch))
            assert last == expected, (row["name"], number)
        assert task.state.value == row["state"], row["name"]


def test_there_are_rows_of_each_kind_of_event() -> None:
    rows = [batch for path in ROWS for row in stored(path) for batch in row["batches"]]
    found = {event[0] for _, events, _ in rows for event in json.loads(events)}
    assert found == {kind.__name__ for kind in SAMPLES}


def made(seed: int) -> Iterator[dict[str, Any]]:
    for number in range(60):
        chance = random.Random(seed + number)
        row: dict[str, Any] = {"name": f"{seed}-{number}", "thoughts": number % 2 == 0}
        task, batches, last = task_of(row), list[list[Any]](), 0
        for position in range(30):
            if task.state.terminal:
                break
            now = BEGIN + timedelta(milliseconds=position)
            count = chance.randrange(1, 4)
            written, updates = list[Event](), 0
            for index in range(count):
                end = position == 29 and index == count - 1
                event = bounded(some_event(chance, task, position * 4 + index))
                if end or (isinstance(event, ENDINGS) and position < number % 20):
                    event = Done() if end else Text(f"text {position} ")
                updates += len(task.apply(event, now))
                written.append(event)
                if task.state.terminal:
                    break
            last += updates
            batches.append([micros(now), dump_events(written).decode(), last])
        yield {**row, "state": task.state.value, "batches": batches}


if __name__ == "__main__":
    folder = CHECKOUT / "tests/golden/rows"
    folder.mkdir(exist_ok=True)
    rows = ",\n".join(json.dumps(one) for one in made(int(sys.argv[2])))
    (folder / f"{sys.argv[1]}.json").write_text(f"[\n{rows}\n]\n", "utf-8")
