"""The table of tasks."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from bridge.cli.client.task_table import Details, age, ordered, table

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
Json = dict[str, Any]


def task(identity: str, state: str, **metadata: object) -> Json:
    status = {"state": f"TASK_STATE_{state}", "timestamp": (NOW - timedelta(hours=3)).isoformat()}
    return {"id": identity * 8 + "-0000", "status": status, "metadata": metadata}


TASKS = [
    task("a", "COMPLETED", usage={"costUsd": 0.125}),
    task("b", "WORKING"),
    task("c", "INPUT_REQUIRED"),
]


def test_tasks_that_need_a_person_stand_first() -> None:
    assert [one["id"][0] for one in ordered(TASKS)] == ["c", "b", "a"]


def test_a_task_is_one_row() -> None:
    home = os.path.expanduser("~")
    monitored = {TASKS[0]["id"]: {"agent": "codex", "cwd": f"{home}/x", "created": NOW.isoformat()}}
    details = Details({TASKS[0]["id"]: "Add a flag"}, monitored)
    assert table(TASKS, details, NOW) == [
        "ID        STATE      AGE  AGENT  DIRECTORY  COST   PROMPT",
        "aaaaaaaa  Done       0s   codex  ~/x        $0.12  Add a flag",
        "bbbbbbbb  Running    3h",
        "cccccccc  Needs you  3h",
    ]
    assert table(TASKS, Details(), NOW)[0] == "ID        STATE      AGE  COST"
    assert table([], Details(), NOW) == []


def test_rows_fit_into_a_terminal() -> None:
    details = Details({TASKS[0]["id"]: "word " * 30})
    assert max(map(len, table(TASKS, details, NOW, 60))) == 60
    assert table(TASKS, details, NOW, 60)[1].endswith("…")


def test_an_age_is_short() -> None:
    ages = [(5, "5s"), (65, "1m"), (7_300, "2h"), (200_000, "2d"), (-5, "0s")]
    for seconds, shown in ages:
        assert age((NOW - timedelta(seconds=seconds)).isoformat(), NOW) == shown
    assert age(None, NOW) == age("soon", NOW) == age("2026-01-02T03:04:05", NOW) == ""
