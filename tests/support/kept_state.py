"""State folders with a stored database of an earlier revision, and comparisons of their tasks."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any

from tests import CHECKOUT

STORED = CHECKOUT / "tests" / "databases"
FIRST, NEWEST = STORED / "a630f4a.sql", STORED / "0906b08.sql"
"""Databases of schema 2 and of schema 5."""
IDENTITY = "0123456789abcdef"
Rows = dict[str, list[Any]]


def state_folder(path: Path, script: Path = NEWEST) -> Path:
    """A new state folder with the database of the script, an audit log and attached files."""
    path.mkdir(0o700)
    (path / "id").write_text(IDENTITY)
    (path / "audit.jsonl").write_text('{"what":"prompt"}\n')
    attached = path / "files" / "agent" / "context" / "task"
    attached.mkdir(parents=True)
    (attached / "0-note.txt").write_bytes(b"attached \xff\n" * 1000)
    (path / "sessions").mkdir()
    (path / "token").write_text("a secret of the operator")
    with contextlib.closing(sqlite3.connect(path / "tasks.db")) as database:
        database.executescript(script.read_text())
    return path


def tasks_of(path: Path) -> Rows:
    """The rows of each task of a database, and its events in their order."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        found: Rows = {}
        query = "SELECT place, id, agent, context, created, prompt, owner FROM task ORDER BY place"
        for place, name, *facts in database.execute(query).fetchall():
            events = "SELECT batch, time, events, last FROM event WHERE task = ? ORDER BY batch"
            found[name] = [facts, database.execute(events, (place,)).fetchall()]
        return found


def schema_of(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as database:
        ((schema,),) = database.execute("PRAGMA user_version")
        return int(schema)


def add_task(path: Path, name: str) -> None:
    """A task that only a later version knows."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "INSERT INTO task (id, agent, context, created, thoughts, prompt, begun, owner) "
            "VALUES (?, 'agent', 'c', 0, 0, '{}', 1, 'local')",
            (name,),
        )


def grow(path: Path, megabytes: int) -> None:
    """Add events to the first task of a database."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for number in range(1000, 1000 + 10 * megabytes):
            row = (number, os.urandom(100_000))
            database.execute("INSERT INTO event VALUES (1, ?, 0, ?, 9)", row)
