"""Copies of a database that is written, and the upgrade of a database with its way back. A process
that is killed at any step leaves a database with all tasks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bridge.errors import ConfigurationError
from bridge.store.journal import Journal
from bridge.store.sqlite.backup import check_copy, count_tasks, prepare_copy
from bridge.store.sqlite.database import open_database
from bridge.store.sqlite.schema import MIGRATIONS
from bridge.store.sqlite.upgrade import check_room, kept_files, roll_back
from tests.support.kept_state import (
    FIRST,
    NEWEST,
    add_task,
    schema_of,
    state_folder,
    tasks_of,
)
from tests.support.killed_keeper import Keeper, keeping

WITHIN = 60.0  # seconds; a commit may take one on a disk that other programs use
NOTES = ("CREATE TABLE task (number INTEGER PRIMARY KEY, text BLOB NOT NULL)",)
INSERT = "INSERT INTO task VALUES (?, ?)"
LARGE = 20_000  # bytes of a row
KNOWN = len(MIGRATIONS)


class Writer:
    """Writes numbered rows; `acked`: the number of durable ones."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.written = 0
        self.acked = 0

    def write(self, count: int = 1) -> None:
        for _ in range(count):
            self.written += 1
            row = (INSERT, (self.written, self.written.to_bytes(4) * (LARGE // 4)))
            self.journal.write(row, then=self._ack)

    def _ack(self) -> None:
        self.acked += 1

    async def until(self, count: int) -> None:
        async with asyncio.timeout(WITHIN):
            while self.acked < count:
                await self.journal.flushed()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "tasks.db"


def numbers(path: Path) -> list[int]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        found = database.execute("SELECT number, text FROM task ORDER BY number").fetchall()
    assert all(text == number.to_bytes(4) * (LARGE // 4) for number, text in found)
    return [number for number, _ in found]


async def test_a_copy_has_the_commits_that_were_made_meanwhile(path: Path, tmp_path: Path) -> None:
    journal = Journal(path, NOTES)
    await journal.open()
    writer = Writer(journal)
    writer.write(300)
    await writer.until(300)
    copying = asyncio.create_task(journal.copy(tmp_path / "copy.db"))
    before = writer.acked
    async with asyncio.timeout(WITHIN):
        while not copying.done():
            writer.write()
            await journal.flushed()
    await copying
    meanwhile = writer.acked - before
    writer.write()
    await writer.until(writer.written)
    found = numbers(tmp_path / "copy.db")
    assert found == list(range(1, len(found) + 1))
    assert before < len(found) < writer.written
    assert meanwhile >= 3, "no commits between the steps of the copy"
    assert check_copy(tmp_path / "copy.db") == 1 and count_tasks(tmp_path / "copy.db") == len(found)
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "copy.db").read_bytes()[18:20] == b"\1\1"  # it needs no file beside it
    await journal.close()
    assert numbers(path) == list(range(1, writer.written + 1))


async def test_a_commit_that_fails_ends_the_copy_and_is_made_later(
    path: Path, tmp_path: Path
) -> None:
    journal = Journal(path, NOTES)
    await journal.open()
    writer = Writer(journal)
    writer.write(300)
    await writer.until(300)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        copying = asyncio.create_task(journal.copy(tmp_path / "copy.db"))
        writer.write(100)
        with pytest.raises((ConfigurationError, sqlite3.Error)):
            await asyncio.wait_for(copying, WITHIN)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await writer.until(400)
    await journal.copy(tmp_path / "again.db")
    assert numbers(tmp_path / "again.db") == list(range(1, 401))
    await journal.close()


async def test_a_journal_that_closes_ends_the_copy(path: Path, tmp_path: Path) -> None:
    journal = Journal(path, NOTES)
    await journal.open()
    writer = Writer(journal)
    writer.write(500)
    await writer.until(500)
    copying = asyncio.create_task(journal.copy(tmp_path / "copy.db"))
    await asyncio.sleep(0)  # the copy is with the thread before the end is
    await asyncio.wait_for(journal.close(), WITHIN)
    with pytest.raises(ConfigurationError, match="was closed while it was copied"):
        await copying
    again = Journal(path, NOTES)  # no lock is left
    await again.open()
    await again.close()
    assert numbers(path) == list(range(1, 501))


async def test_a_copy_is_not_written_over_a_file(path: Path, tmp_path: Path) -> None:
    journal = Journal(path, NOTES)
    await journal.open()
    (tmp_path / "copy.db").write_text("mine")
    with pytest.raises(FileExistsError):
        await journal.copy(tmp_path / "copy.db")
    await journal.close()
    assert (tmp_path / "copy.db").read_text() == "mine"


def test_a_damaged_copy_is_found(tmp_path: Path) -> None:
    path = state_folder(tmp_path / "state") / "tasks.db"
    assert check_copy(path) == 5
    content = bytearray(path.read_bytes())
    content[4096:8192] = b"\xa5" * 4096
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"tasks\.db"):
        check_copy(path)
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(ConfigurationError, match="not a database"):
        check_copy(path)


@pytest.mark.parametrize("notify", [True, False])
@pytest.mark.parametrize("script", [FIRST, NEWEST], ids=lambda path: path.stem)
def test_a_prepared_copy_has_no_sessions_and_repeats_no_prompt(
    tmp_path: Path, script: Path, notify: bool
) -> None:
    path = state_folder(tmp_path / "state", script) / "tasks.db"
    before = tasks_of(path)
    pushes = 1 if script == NEWEST else 0
    assert prepare_copy(path, notify=notify) == (0 if notify else pushes)
    assert tasks_of(path) == before
    with contextlib.closing(sqlite3.connect(path)) as database:
        for table in ("session", "told"):
            assert database.execute(f"SELECT count(*) FROM {table}").fetchall() == [(0,)]
        assert database.execute("SELECT DISTINCT begun FROM task").fetchall() == [(1,)]
        if pushes:
            kept = database.execute("SELECT count(*) FROM push").fetchall()
            assert kept == database.execute("SELECT count(*) FROM push_failure").fetchall()
            assert kept == [(1 if notify else 0,)]


# --- upgrade and rollback ------------------------------------------------------------------------


def test_an_upgrade_keeps_the_database_of_before(tmp_path: Path) -> None:
    path = state_folder(tmp_path / "state", FIRST) / "tasks.db"
    before = tasks_of(path)
    (path.parent / "tasks.db.schema-1").write_text("of an earlier upgrade")
    (path.parent / "tasks.db.damaged-20260101-000000").write_text("never removed")
    open_database(path, MIGRATIONS).close()
    kept = path.with_name("tasks.db.schema-2")
    assert schema_of(path) == KNOWN and schema_of(kept) == 2
    assert tasks_of(kept) == before and kept.stat().st_mode & 0o777 == 0o600
    assert kept_files(path) == ["tasks.db.damaged-20260101-000000", "tasks.db.schema-2"]
    open_database(path, MIGRATIONS).close()  # without a migration: as it was
    assert tasks_of(kept) == before


def test_a_new_database_keeps_nothing(path: Path) -> None:
    open_database(path, MIGRATIONS).close()
    assert kept_files(path) == []


def test_an_upgrade_without_room_for_the_copy_is_refused(tmp_path: Path) -> None:
    path = state_folder(tmp_path / "state", FIRST) / "tasks.db"
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    try:
        with pytest.raises(ConfigurationError, match="cannot open"):
            open_database(path, MIGRATIONS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert schema_of(path) == 2 and kept_files(path) == []
    assert not list(path.parent.glob("*.tmp"))
    with pytest.raises(ConfigurationError, match=r"no room in .* for a copy: \d+ MB needed"):
        check_room(tmp_path, 2**60, "a copy")


def test_a_rollback_puts_the_database_of_before_back(tmp_path: Path) -> None:
    path = state_folder(tmp_path / "state", FIRST) / "tasks.db"
    before = tasks_of(path)
    open_database(path, MIGRATIONS).close()
    add_task(path, "later")
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO event SELECT task, 99, time, events, 99 FROM event LIMIT 1")
    newer = tasks_of(path)
    done = roll_back(path, known=2)
    assert (done.schema, done.lost, done.changed) == (2, 1, 1)
    assert schema_of(path) == 2 and tasks_of(path) == before
    assert schema_of(done.aside) == KNOWN and tasks_of(done.aside) == newer
    assert kept_files(path) == [done.aside.name, "tasks.db.schema-2"]
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigurationError, match="no file to roll back to"):
        roll_back(path, known=2)
    open_database(path, MIGRATIONS).close()  # the upgrade again
    assert tasks_of(path).keys() == before.keys()


def test_a_rollback_of_an_unknown_schema_says_that_the_loss_is_unknown(tmp_path: Path) -> None:
    path = state_folder(tmp_path / "state", NEWEST) / "tasks.db"
    shutil.copy(path, path.with_name("tasks.db.schema-5"))
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript("ALTER TABLE event RENAME TO happened; PRAGMA user_version = 6")
    done = roll_back(path, known=5)
    assert (done.schema, done.lost, done.changed) == (5, None, None)
    assert schema_of(path) == 5


def test_a_rollback_chooses_the_newest_file_that_the_version_reads(tmp_path: Path) -> None:
    path = state_folder(tmp_path / "state", NEWEST) / "tasks.db"
    for schema in (3, 4, 7):
        kept = path.with_name(f"tasks.db.schema-{schema}")
        shutil.copy(path, kept)
        set_schema(kept, schema)
    set_schema(path, 9)
    assert roll_back(path, known=6).schema == 4


def set_schema(path: Path, schema: int) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {schema}")


def test_a_migration_is_done_as_a_whole(tmp_path: Path) -> None:
    path = state_folder(tmp_path / "state", FIRST) / "tasks.db"
    before = tasks_of(path)
    with pytest.raises(ConfigurationError, match="cannot open"):
        open_database(path, (*MIGRATIONS, "CREATE TABLE task (twice)"))
    assert schema_of(path) == 2 and tasks_of(path) == before


def test_a_damaged_file_is_not_rolled_back_to(tmp_path: Path) -> None:
    path = state_folder(tmp_path / "state", FIRST) / "tasks.db"
    open_database(path, MIGRATIONS).close()
    kept = path.with_name("tasks.db.schema-2")
    kept.write_bytes(kept.read_bytes()[:6000])
    before = tasks_of(path)
    with pytest.raises(ConfigurationError, match="schema-2"):
        roll_back(path, known=2)
    assert tasks_of(path) == before


def test_a_rollback_waits_for_no_server(tmp_path: Path) -> None:
    path = state_folder(tmp_path / "state", FIRST) / "tasks.db"
    with contextlib.closing(open_database(path, MIGRATIONS)) as server:
        with pytest.raises(ConfigurationError, match="locked"):
            roll_back(path, known=2)
        assert server.execute("PRAGMA user_version").fetchall() == [(KNOWN,)]


def test_a_rollback_waits_for_no_other_program(tmp_path: Path) -> None:
    """One that has begun to write a database without a WAL."""
    path = state_folder(tmp_path / "state") / "tasks.db"
    shutil.copy(path, path.with_name("tasks.db.schema-5"))
    set_schema(path, 6)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(ConfigurationError, match="locked"):
            roll_back(path, known=5)
        holder.execute("ROLLBACK")
    assert schema_of(path) == 6


def test_an_older_version_names_the_way_back(tmp_path: Path) -> None:
    path = state_folder(tmp_path / "state", FIRST) / "tasks.db"
    open_database(path, MIGRATIONS).close()
    with pytest.raises(ConfigurationError, match="coding-agent-bridge rollback"):
        open_database(path, MIGRATIONS[:2])
    with pytest.raises(ConfigurationError, match="coding-agent-bridge restore"):
        open_database(path, MIGRATIONS[:1])


HOLDER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_database_that_is_replaced_while_it_is_opened_is_not_used(tmp_path: Path) -> None:
    """As by a server that waits for the lock of a rollback: it has the old file open, which SQLite
    notices when it writes."""
    path = state_folder(tmp_path / "state") / "tasks.db"
    other = Path(shutil.copy(path, path.with_name("other")))
    with (
        subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as holder,
        ThreadPoolExecutor(1) as pool,
    ):
        assert holder.stdin and holder.stdout and holder.stdout.readline() == b"held\n"
        opening = pool.submit(open_database, path, MIGRATIONS, WITHIN)
        end = time.monotonic() + WITHIN
        while not waits(path):
            assert time.monotonic() < end and not opening.done()
        other.replace(path)
        holder.stdin.close()
        with pytest.raises(ConfigurationError, match="cannot open"):
            opening.result(WITHIN)


def waits(path: Path) -> bool:
    """Whether SQLite waits with the file open: one descriptor of this process stays open for a
    while. The bridge itself has it open for a moment only."""
    end, found = time.monotonic() + 0.2, open_files(path)
    while found and time.monotonic() < end:
        found &= open_files(path)
    return bool(found)


def open_files(path: Path) -> set[str]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}") == str(path):
                found.add(fd)
    return found


# --- killed at any step --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keeper() -> Iterator[Keeper]:
    """It imports the bridge, which takes a second."""
    with keeping() as found:
        yield found


ROUNDS = [
    pytest.param(2, id="few"),
    pytest.param(50, id="many", marks=pytest.mark.soak),
]


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_killed_migration_is_repeated(tmp_path: Path, keeper: Keeper, rounds: int) -> None:
    source = state_folder(tmp_path / "source", FIRST)
    before = tasks_of(source / "tasks.db")
    whole = shutil.copytree(source, tmp_path / "whole")
    whole_run = keeper.run("migrate", whole / "tasks.db")
    for number, at in enumerate(whole_run.points(rounds, seed=1)):
        path = shutil.copytree(source, tmp_path / f"{number}") / "tasks.db"
        assert keeper.run("migrate", path, at=at).code == -9
        kept = path.with_name("tasks.db.schema-2")
        copies = shutil.copytree(path.parent, tmp_path / f"{number}-copy")
        schema = schema_of(copies / "tasks.db")
        assert schema in (2, KNOWN) and tasks_of(copies / "tasks.db") == before
        assert schema == 2 or tasks_of(kept) == before
        assert keeper.run("migrate", path).code == 0
        assert schema_of(path) == KNOWN and tasks_of(path) == before == tasks_of(kept)
        assert not list(path.parent.glob("*.tmp"))


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_killed_rollback_leaves_one_of_the_two(
    tmp_path: Path, keeper: Keeper, rounds: int
) -> None:
    source = state_folder(tmp_path / "source", FIRST)
    before = tasks_of(source / "tasks.db")
    assert keeper.run("migrate", source / "tasks.db").code == 0
    add_task(source / "tasks.db", "later")
    newer = tasks_of(source / "tasks.db")
    whole = shutil.copytree(source, tmp_path / "whole")
    whole_run = keeper.run("rollback", whole / "tasks.db", known=2)
    for number, at in enumerate(whole_run.points(rounds, seed=2)):
        path = shutil.copytree(source, tmp_path / f"{number}") / "tasks.db"
        assert keeper.run("rollback", path, known=2, at=at).code == -9
        copy = shutil.copytree(path.parent, tmp_path / f"{number}-copy") / "tasks.db"
        assert tasks_of(copy) == (before if schema_of(copy) == 2 else newer)
        if schema_of(copy) != 2:
            assert keeper.run("rollback", path, known=2).code == 0
        assert tasks_of(path) == before
        asides = [one for one in kept_files(path) if "rolled-back" in one]
        assert [tasks_of(path.with_name(one)) for one in asides] == [newer]
