"""The checker: the record of a problem CLI (its ledger), the content of the store, and the updates
that each client saw must be equal. Every function returns the errors as texts. It shares no code
with the bridge: it reads JSON, SQLite and /proc by itself.

It shares no code with the bridge: it reads JSON, SQLite and /proc by itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.support import client

Json = dict[str, Any]
Said = tuple[str, ...]
"""A thing that the CLI said: ("text", seq, sha), ("raw", text) or ("long", bytes)."""

MARKER = "CODING_AGENT_BRIDGE_PROCESS"
TERMINAL = {"completed", "canceled", "failed", "rejected"}
SHOWN = 2000  # characters of a line that is not JSON in the data part that shows it


@dataclass
class Ledger:
    """The record of a CLI. `said` has at least its output on stdout, in order; `children` are the
    processes that it started, by name, and itself."""

    prompts: list[str] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    answers: list[tuple[str, str]] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    pids: list[tuple[int, str]] = field(default_factory=list)
    end: str | None = None


def read_ledger(path: Path) -> Ledger:
    """The ledger in `path` up to its last complete line; an empty one if the file is missing."""
    ledger = Ledger()
    text = path.read_text("utf-8") if path.exists() else ""
    for line in text.split("\n")[:-1]:
        entry = json.loads(line)
        match entry["kind"]:
            case "prompt":
                ledger.prompts.append(entry["task"])
                ledger.pids.append((entry["pid"], "cli"))
            case "text":
                ledger.said.append(("text", str(entry["seq"]), entry["sha"]))
            case "raw":
                shown = bytes.fromhex(entry["hex"]).decode(errors="replace")
                ledger.said.append(("raw", shown[:SHOWN]))
            case "long":
                ledger.said.append(("long", str(entry["length"])))
            case "question":
                ledger.questions.append(entry["question"])
            case "answer":
                ledger.answers.append((entry["question"], entry["text"]))
            case "child":
                ledger.pids.append((entry["pid"], entry["name"]))
            case "end":
                ledger.end = entry["type"]
            case _:
                ledger.unexpected.append(line)
    return ledger


@dataclass
class View:
    """The view of one client of a task: numbered updates, and snapshots (the task after that
    number), over all its connections."""

    name: str
    updates: list[tuple[int, Json]] = field(default_factory=list)
    snapshots: list[tuple[int, Json]] = field(default_factory=list)
    connections: int = 0

    @property
    def last(self) -> int | None:
        """The number after which it would resume; None before its first update."""
        if self.updates:
            return self.updates[-1][0]
        return self.snapshots[-1][0] if self.snapshots else None

    @property
    def state(self) -> str:
        newest = [item for _, item in (*self.snapshots, *self.updates)]
        found = [name for name in map(client.state, newest) if name]
        return found[-1] if found else ""

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL


# --- what a client saw --------------------------------------------------------------------------


def _same(one: Json | None, other: Json) -> bool:
    """The JSON of protobuf has times without milliseconds that are zero."""
    return one == other or _text(one) == _text(other)


def _text(item: Json | None) -> str:
    return json.dumps(item, sort_keys=True).replace('.000Z"', 'Z"')


def check_view(view: View, reference: Sequence[tuple[int, Json]]) -> list[str]:
    """No gap, no duplicate, nothing else than `reference` (all updates of the task, from 1 on)."""
    wrong: list[str] = []
    if len(view.snapshots) > 1:
        wrong.append(f"{view.name}: was given the whole task {len(view.snapshots)} times (reset)")
    expected = view.snapshots[0][0] if view.snapshots else 0
    by_number = dict(reference)
    for number, item in view.updates:
        expected += 1
        if number != expected:
            wrong.append(f"{view.name}: update {number} came instead of {expected}")
            break
        if not _same(by_number.get(number), item):
            wrong.append(f"{view.name}: update {number} is {item}, later {by_number.get(number)}")
            break
    if view.ended and reference and expected != reference[-1][0]:
        wrong.append(f"{view.name}: ended at {expected} of {reference[-1][0]}")
    for number, snapshot in view.snapshots:
        text = client.artifact_text(snapshot.get("task", snapshot))
        items = [item for n, item in reference if n <= number]
        if text != client.streamed_text(items):
            wrong.append(f"{view.name}: the task at {number} has another text than its updates")
    return wrong


def check_reference(reference: Sequence[tuple[int, Json]], task: Json) -> list[str]:
    """The updates count from 1; exactly one is terminal, the last; the task has the same state."""
    wrong: list[str] = []
    numbers = [number for number, _ in reference]
    if numbers != list(range(1, len(numbers) + 1)):
        wrong.append(f"the updates of the task are numbered {numbers[:20]}…")
    items = [item for _, item in reference]
    ends = [n for n, item in reference if client.state(item) in TERMINAL]
    if ends != numbers[-1:]:
        wrong.append(f"terminal updates {ends} of {len(numbers)}")
    elif client.state(items[-1]) != client.state(task):
        wrong.append(f"the task is {client.state(task)}, its last update {client.state(items[-1])}")
    if client.streamed_text(items) != client.artifact_text(task):
        wrong.append("the task's text is not what its updates add up to")
    return wrong


# --- what the CLI wrote -------------------------------------------------------------------------


def heard(items: Iterable[Json]) -> list[Said]:
    """The output of the CLI in the updates of a stream."""
    found: list[Said] = []
    text = ""
    for item in items:
        facts = client.facts(item)
        if facts.get("type") in ("output", "truncated_line"):
            found += _pieces(text)
            text = ""
            raw = facts["type"] == "output"
            found.append(("raw", facts["text"]) if raw else ("long", str(facts["bytes"])))
        else:
            text += client.streamed_text([item])
    return found + _pieces(text)


def _pieces(text: str) -> list[Said]:
    return [_piece(line) for line in text.split("\n") if line]


def _piece(line: str) -> Said:
    seq, sha, body = (*line.split(" ", 2), "", "")[:3]
    right = hashlib.sha256(body.encode()).hexdigest()[:12] == sha
    return ("text", seq, sha) if right else ("damaged", line[:100])


def check_said(found: Sequence[Said], ledger: Ledger, state: str, killed: bool) -> list[str]:
    """R1: all output, once, in order. Output after the end of the task for another reason does not
    count. `killed`: the CLI was killed from outside, maybe between its ledger and its stdout."""
    wanted = ledger.said
    prefix = list(found) == wanted[: len(found)]
    whole = state == "completed" or (state == "failed" and not killed)
    missing = len(wanted) - len(found)
    if killed and found and not prefix:  # the beginning of the line that it died in
        prefix = list(found[:-1]) == wanted[: len(found) - 1] and found[-1][0] == "raw"
        missing = len(wanted) - len(found) + 1
    if not prefix:
        pairs = enumerate(zip(found, wanted, strict=False))
        first = next((n for n, (one, other) in pairs if one != other), len(wanted))
        got, want = list(found[first : first + 2]), wanted[first : first + 2]
        return [f"thing {first} of {len(wanted)} that the CLI said: {got} instead of {want}"]
    if (whole and missing) or (killed and state == "failed" and missing > 1):
        return [f"{missing} of {len(wanted)} things that the CLI said are lost ({state})"]
    return []


def check_told(ledger: Ledger, task_id: str, answers: dict[str, str]) -> list[str]:
    """The prompt was sent once and each answer once, as the client gave them."""
    wrong: list[str] = []
    if ledger.prompts not in ([], [task_id]):
        wrong.append(f"prompts that the CLI got: {ledger.prompts}")
    for question, count in Counter(question for question, _ in ledger.answers).items():
        if count > 1:
            wrong.append(f"{question} was answered {count} times")
    given = list(answers.values())  # in the order of the questions, which the bridge names itself
    for number, (question, text) in enumerate(ledger.answers):
        if given[number : number + 1] != [text]:
            wrong.append(f"{question} was answered {text!r}, and the answers were {given}")
    if ledger.unexpected:
        wrong.append(f"the CLI read {ledger.unexpected[:3]}")
    return wrong


# --- what the store holds ------------------------------------------------------------------------


def check_store(folder: Path, tasks: dict[str, tuple[Ledger, bool]]) -> list[str]:
    """The SQLite file of a server that has ended: every task has one terminal event, the last, and
    the output of its CLI (`tasks`: its ledger, and whether it was killed from outside)."""
    wrong: list[str] = []
    copy = Path(tempfile.mkdtemp(prefix="ledger-"))
    try:
        for name in ("tasks.db", "tasks.db-wal"):
            if (folder / name).exists():
                shutil.copy(folder / name, copy / name)
        database = sqlite3.connect(copy / "tasks.db")
        try:
            ((verdict,),) = database.execute("PRAGMA integrity_check")
            if verdict != "ok":
                wrong.append(f"the database is damaged: {verdict}")
            for task_id, (ledger, killed) in tasks.items():
                rows = database.execute(_EVENTS, (task_id,)).fetchall()
                wrong += [f"store: {one}" for one in _check_rows(rows, ledger, killed)]
        finally:
            database.close()
    finally:
        shutil.rmtree(copy)
    return wrong


def check_database(url: str, tasks: dict[str, tuple[Ledger, bool]]) -> list[str]:
    """check_store() for a store on PostgreSQL."""
    wrong = check_epochs(url)
    with psycopg.connect(url) as connection:
        for task_id, (ledger, killed) in tasks.items():
            rows = connection.execute(_BATCHES, (task_id.encode(),)).fetchall()
            wrong += [f"store: {one}" for one in _check_rows(rows, ledger, killed)]
    return wrong


_BATCHES = "SELECT events FROM event JOIN task ON task = place WHERE id = %s ORDER BY event.batch"
_EVENTS = "SELECT events FROM event JOIN task ON task = place WHERE id = ? ORDER BY event.rowid"
_ENDS = {
    "Done": "completed",
    "Failed": "failed",
    "TimedOut": "failed",
    "Interrupted": "failed",
    "Canceled": "canceled",
    "Rejected": "rejected",
}


def check_epochs(url: str) -> list[str]:
    """The database at this URL: the batches of each task are 1, 2, 3 …; those of a writer
    are one run, which begins where `takeover` says; the writer is the server that entered it; and
    each task has at most one end, in its last batch."""
    wrong: list[str] = []
    with psycopg.connect(url) as connection:
        places = connection.execute("SELECT place, convert_from(id, 'UTF8') FROM task").fetchall()
        for place, task_id in places:
            rows = connection.execute(
                "SELECT batch, epoch, events FROM event WHERE task = %s ORDER BY batch", (place,)
            ).fetchall()
            noted: dict[int, int] = dict(
                connection.execute(
                    "SELECT epoch, after FROM takeover WHERE task = %s", (place,)
                ).fetchall()
            )
            numbers = [batch for batch, _, _ in rows]
            if numbers != list(range(1, len(numbers) + 1)):
                wrong.append(f"{task_id}: batches {numbers[:20]}")
            starts = [
                (epoch, batch)
                for (batch, epoch, _), before in zip(rows, [None, *rows], strict=False)
                if before is None or before[1] != epoch
            ]
            if len({epoch for epoch, _ in starts}) < len(starts):
                wrong.append(f"{task_id}: a writer came back: {starts}")
            for epoch, first in starts:
                if noted.get(epoch, first - 1) != first - 1:
                    wrong.append(
                        f"{task_id}: {epoch} took it after {noted[epoch]}, not {first - 1}"
                    )
            events = [name for _, _, one in rows for name, _ in json.loads(one)]
            ends = [number for number, name in enumerate(events) if name in _ENDS]
            if ends not in ([], [len(events) - 1]):
                wrong.append(f"{task_id}: terminal events {ends} of {len(events)}")
    return wrong


def _check_rows(rows: list[tuple[bytes]], ledger: Ledger, killed: bool) -> list[str]:
    events = [event for (row,) in rows for event in json.loads(row)]
    ends = [n for n, (name, _) in enumerate(events) if name in _ENDS]
    if ends != [len(events) - 1]:
        return [f"terminal events {ends} of {len(events)}"]
    found: list[Said] = []
    text = ""
    for name, members in events:
        if name == "Text":
            text += members["text"]
        elif name == "Status" and members["data"]["type"] in ("output", "truncated_line"):
            found += _pieces(text)
            text = ""
            facts = members["data"]
            raw = facts["type"] == "output"
            found.append(("raw", facts["text"]) if raw else ("long", str(facts["bytes"])))
    name, members = events[-1]
    state, reason = _ENDS[name], members.get("reason")
    soft = killed or reason not in (None, "exit")
    return check_said(found + _pieces(text), ledger, "canceled" if soft else state, killed)


# --- what is left --------------------------------------------------------------------------------


def marked(beginning: str) -> dict[int, str]:
    """Living processes whose marker begins so, with their commands."""
    wanted = f"{MARKER}={beginning}".encode()
    found: dict[int, str] = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if any(line.startswith(wanted) for line in lines):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:100]
        except OSError:  # gone meanwhile
            continue
    return found


def zombies(parent: int) -> list[int]:
    """Dead children that `parent` has not reaped."""
    found: list[int] = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] == "Z" and int(fields[1]) == parent:
            found.append(pid)
    return found


def left_files(state: Path, temporary: Path) -> list[str]:
    """Files without a purpose after the end of all conversations and of the server."""
    spools = state / "sessions"
    found = [f"sessions/{name}" for name in os.listdir(spools)] if spools.is_dir() else []
    found += [f"tmp/{name}" for name in os.listdir(temporary)]
    doors = state / "launchers"
    found += [f"launchers/{name}" for name in os.listdir(doors)] if doors.is_dir() else []
    known = {
        "id",
        "attended",
        "audit.jsonl",
        "ballast",
        "sessions",
        "launchers",
        "files",
        "last-use.json",
        "tasks.db",
        "tasks.db-wal",
        "tasks.db-shm",
        "token",
    }
    return found + sorted(set(os.listdir(state)) - known)
