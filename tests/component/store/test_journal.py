"""The journal: reported changes are durable and in order, and failures are retried. The tests read
a copy of the files, or the files that a killed process has left."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from bridge.errors import ConfigurationError
from bridge.store.journal import Journal
from tests import CHECKOUT

WITHIN = 60.0
MIGRATIONS = ("CREATE TABLE note (number INTEGER PRIMARY KEY, text BLOB NOT NULL)",)
INSERT = "INSERT INTO note VALUES (?, ?)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "notes.db"


@pytest.fixture
async def journal(path: Path) -> AsyncIterator[Journal]:
    opened = Journal(path, MIGRATIONS)
    await opened.open()
    yield opened
    async with asyncio.timeout(WITHIN):
        await opened.close()


class Stamps:
    """Callbacks that record the order of their calls."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self._changed = asyncio.Event()

    def stamp(self, number: int) -> Callable[[], None]:
        def then() -> None:
            self.seen.append(number)
            self._changed.set()

        return then

    async def until(self, count: int) -> None:
        async with asyncio.timeout(WITHIN):
            while len(self.seen) < count:
                self._changed.clear()
                await self._changed.wait()


def durable(path: Path, scratch: str = "copy") -> list[int]:
    """The notes that another process would find now, if this one ended."""
    folder = path.parent.parent / scratch
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file in path.parent.glob(f"{path.name}*"):
        with contextlib.suppress(FileNotFoundError):  # it has just been made part of the database
            shutil.copy(file, folder / file.name)
    with contextlib.closing(sqlite3.connect(folder / path.name)) as database:
        return [number for (number,) in database.execute("SELECT number FROM note ORDER BY 1")]


async def flushed(journal: Journal) -> None:
    async with asyncio.timeout(WITHIN):
        await journal.flushed()


# --- when all is well --------------------------------------------------------------------------


async def test_callbacks_follow_commits_in_order(journal: Journal, path: Path) -> None:
    told: list[tuple[int, list[int]]] = []

    def then(number: int) -> Callable[[], None]:
        return lambda: told.append((number, durable(path)))

    for number in range(5):
        journal.write((INSERT, (number, b"x")), then=then(number))
        await flushed(journal)
    assert [number for number, _ in told] == list(range(5))
    for number, found in told:
        assert set(range(number + 1)) <= set(found)


async def test_no_callback_precedes_its_commit(journal: Journal, path: Path) -> None:
    """While writes pour in, every callback finds its own row in a copy of the files."""
    missing: list[int] = []

    def then(number: int) -> Callable[[], None]:
        return lambda: missing.extend({number} - set(durable(path)))

    for number in range(60):
        journal.write(
            (INSERT, (number, b"x" * 100)), then=then(number) if number % 6 == 0 else None
        )
        await asyncio.sleep(0)
    await flushed(journal)
    assert missing == []
    assert durable(path) == list(range(60))


def commits(path: Path) -> int:
    """Commit frames in the write-ahead log (https://sqlite.org/fileformat2.html#walformat)."""
    log = path.with_name(f"{path.name}-wal").read_bytes()
    page = int.from_bytes(log[8:12], "big")
    sizes = [log[at + 4 : at + 8] for at in range(32, len(log), 24 + page)]
    return sum(size != bytes(4) for size in sizes)


async def test_many_writes_are_few_transactions(journal: Journal, path: Path) -> None:
    await flushed(journal)
    before, stamps = commits(path), Stamps()
    for number in range(1000):
        journal.write((INSERT, (number, b"x")), then=stamps.stamp(number))
    await stamps.until(1000)
    assert stamps.seen == list(range(1000))
    assert commits(path) == before + 1
    assert durable(path) == list(range(1000))


async def test_changes_during_a_commit_form_the_next_group(journal: Journal, path: Path) -> None:
    stamps, before = Stamps(), commits(path)
    for number in range(300):
        journal.write((INSERT, (number, b"x")), then=stamps.stamp(number))
        await asyncio.sleep(0)
    await stamps.until(300)
    assert stamps.seen == list(range(300))
    assert 1 <= commits(path) - before < 300


async def test_the_rows_of_one_write_are_all_there_or_none(journal: Journal, path: Path) -> None:
    journal.write(*((INSERT, (number, b"x" * 1000)) for number in range(100)))
    journal.write((INSERT, (100, b"x")))
    found: set[int] = set()
    async with asyncio.timeout(WITHIN):
        while len(found) < 101:
            found = set(durable(path))
            assert found in (set(), set(range(100)), set(range(101)))
            await asyncio.sleep(0)


async def test_callbacks_without_rows_keep_their_place(journal: Journal) -> None:
    stamps = Stamps()
    for number in range(20):
        rows = [(INSERT, (number, b"x"))] if number % 2 else []
        journal.write(*rows, then=stamps.stamp(number))
    await stamps.until(20)
    assert stamps.seen == list(range(20))


async def test_a_callback_that_fails_stops_no_other(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    stamps = Stamps()
    journal.write((INSERT, (1, b"x")), then=lambda: next(iter(())))
    journal.write((INSERT, (2, b"x")), then=stamps.stamp(2))
    await stamps.until(1)
    assert "a callback after a commit failed" in caplog.text


async def test_a_callback_may_write_again(journal: Journal, path: Path) -> None:
    stamps = Stamps()
    journal.write(
        (INSERT, (1, b"x")), then=lambda: journal.write((INSERT, (2, b"x")), then=stamps.stamp(2))
    )
    await stamps.until(1)
    assert durable(path) == [1, 2]


async def test_waiting_bytes_are_counted_until_their_commit(journal: Journal) -> None:
    assert journal.waiting == 0
    journal.write((INSERT, (1, b"x" * 1000)), (INSERT, (2, b"y" * 500)))
    assert journal.waiting == 1500
    await flushed(journal)
    assert journal.waiting == 0
    assert journal.size >= 2 * 4096


async def test_the_size_excludes_free_pages(path: Path) -> None:
    journal = Journal(path, MIGRATIONS, measure_every=0)
    await journal.open()
    journal.write((INSERT, (1, b"x" * 1_000_000)))
    await flushed(journal)
    assert journal.size > 1_000_000
    journal.write(("DELETE FROM note", ()))
    await flushed(journal)
    assert journal.size < 100_000
    await journal.close()


async def test_a_read_sees_committed_data(journal: Journal) -> None:
    journal.write((INSERT, (7, b"seven")))
    await flushed(journal)
    assert await journal.read("SELECT text FROM note WHERE number = ?", 7) == [(b"seven",)]


async def test_flushed_waits_for_all_that_was_written(journal: Journal, path: Path) -> None:
    for number in range(50):
        journal.write((INSERT, (number, b"x" * 10_000)))
    await flushed(journal)
    assert durable(path) == list(range(50))
    await flushed(journal)  # with nothing to wait for


async def test_close_commits_waiting_changes(path: Path) -> None:
    journal, stamps = Journal(path, MIGRATIONS), Stamps()
    await journal.open()
    for number in range(50):
        journal.write((INSERT, (number, b"x" * 10_000)), then=stamps.stamp(number))
    async with asyncio.timeout(WITHIN):
        await journal.close()
    assert stamps.seen == list(range(50))
    assert durable(path) == list(range(50))


def test_numbers_are_given_once(path: Path) -> None:
    async def numbers() -> list[int]:
        journal = Journal(path, MIGRATIONS)
        journal.newest = 41
        return [journal.number() for _ in range(3)]

    assert asyncio.run(numbers()) == [42, 43, 44]


# --- a process that is killed --------------------------------------------------------------------

WRITER = f"""
import asyncio, sys
from pathlib import Path
from bridge.store.journal import Journal

def told(number):
    return lambda: print(number, flush=True)

async def main():
    journal = Journal(Path(sys.argv[1]), ({MIGRATIONS[0]!r},))
    await journal.open()
    print("open", flush=True)
    for number in range(100_000):
        journal.write(({INSERT!r}, (number, b"x" * 300)), then=told(number))
        if number % 7 == 0:
            await asyncio.sleep(0)
    await asyncio.Event().wait()  # until it is killed

asyncio.run(main())
"""


@pytest.mark.parametrize("lines", [1, 50, 3000])
def test_committed_changes_survive_a_kill(path: Path, lines: int) -> None:
    argv = (sys.executable, "-c", WRITER, str(path))
    with subprocess.Popen(argv, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        assert child.stdout.readline() == "open\n"
        told = [int(child.stdout.readline()) for _ in range(lines)]
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split("\n")[:-1]  # the last line may be half of one
        told += map(int, rest)
    found = durable(path)
    assert told == list(range(len(told)))
    assert found == list(range(len(found)))  # nothing is missing in between
    assert len(found) >= len(told)


# --- when it cannot be written -------------------------------------------------------------------


@contextlib.contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file of this process grows beyond `size`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def until(condition: Callable[[], object]) -> None:
    """For a condition without an event."""
    async with asyncio.timeout(WITHIN):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another program has the database."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        yield


async def test_a_full_disk_is_a_problem_until_it_has_space(
    journal: Journal, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    stamps = Stamps()
    journal.write((INSERT, (0, b"x")), then=stamps.stamp(0))
    await stamps.until(1)
    with full_disk(100_000):
        for number in (1, 2, 3):
            journal.write((INSERT, (number, b"x" * 200_000)), then=stamps.stamp(number))
        await until(lambda: journal.problem)
        journal.write((INSERT, (4, b"x")), then=stamps.stamp(4))
        assert (stamps.seen, journal.waiting) == ([0], 600_001)
        assert durable(path) == [0]
    await stamps.until(5)
    assert (stamps.seen, journal.problem, journal.waiting) == ([0, 1, 2, 3, 4], None, 0)
    assert durable(path) == [0, 1, 2, 3, 4]
    assert caplog.text.count("nothing new is taken on") == 1
    assert caplog.text.count("writes to the database succeed again") == 1


async def test_a_database_that_another_has_taken_is_waited_for(path: Path) -> None:
    """After an error it is opened again; until then another process can lock it."""
    journal, stamps = Journal(path, MIGRATIONS, lock_wait=0.01), Stamps()
    await journal.open()
    with full_disk(50_000):
        journal.write((INSERT, (1, b"x" * 200_000)), then=stamps.stamp(1))
        await until(lambda: journal.problem)
        async with asyncio.timeout(WITHIN):
            while True:
                with contextlib.suppress(sqlite3.OperationalError), locked(path):
                    await until(lambda: "locked" in (journal.problem or ""))
                    break
                await asyncio.sleep(0.001)
    await stamps.until(1)
    assert journal.problem is None
    async with asyncio.timeout(WITHIN):
        await journal.close()
    assert durable(path) == [1]


async def test_closing_does_not_wait_for_ever(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal, stamps = Journal(path, MIGRATIONS, close_within=0.2), Stamps()
    await journal.open()
    with full_disk(50_000):
        journal.write((INSERT, (1, b"x" * 200_000)), then=stamps.stamp(1))
        async with asyncio.timeout(WITHIN):
            await journal.close()
    assert (stamps.seen, durable(path)) == ([], [])
    assert "not all was written down" in caplog.text


@pytest.mark.parametrize(
    "bug",
    [
        (INSERT, (1, b"there is one already")),
        (INSERT, (99, None)),
        (INSERT, (1,)),
        (INSERT, (99, object())),
    ],
)
async def test_a_row_that_is_a_bug_does_not_stop_the_rest(
    journal: Journal,
    path: Path,
    bug: tuple[str, tuple[object, ...]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    stamps = Stamps()
    journal.write((INSERT, (1, b"x")))
    await flushed(journal)
    for number in (2, 3):
        journal.write((INSERT, (number, b"x")), then=stamps.stamp(number))
    journal.write(bug, then=stamps.stamp(0))
    journal.write((INSERT, (4, b"x")), then=stamps.stamp(4))
    await stamps.until(4)
    assert stamps.seen == [2, 3, 0, 4]
    assert durable(path) == [1, 2, 3, 4]
    assert (journal.problem, journal.waiting) == (None, 0)
    assert "a row cannot be written" in caplog.text


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(
            ("INSERT INTO nowhere VALUES (1)", ()),
        ),
        pytest.param(
            (INSERT, (99, 2**63)),
        ),
        pytest.param(
            (INSERT, (99, "\ud800")),
        ),
    ],
)
async def test_a_failing_change_does_not_block_other_changes(
    path: Path, bug: tuple[str, tuple[object, ...]]
) -> None:
    journal, stamps = Journal(path, MIGRATIONS, close_within=0.2), Stamps()
    await journal.open()
    journal.write(bug)
    journal.write((INSERT, (4, b"x")), then=stamps.stamp(4))
    try:
        async with asyncio.timeout(WITHIN):
            await stamps.until(1)
    finally:
        with contextlib.suppress(Exception):
            await journal.close()


async def test_a_bug_on_a_full_disk_is_not_the_end(path: Path) -> None:
    journal, stamps = Journal(path, MIGRATIONS), Stamps()
    await journal.open()
    journal.write((INSERT, (1, b"x")))
    await flushed(journal)
    with full_disk(100_000):
        journal.write((INSERT, (1, b"there is one already")))
        journal.write((INSERT, (2, b"x" * 200_000)), then=stamps.stamp(2))
        async with asyncio.timeout(WITHIN):
            while not journal.problem:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    await stamps.until(1)
    await journal.close()


# --- opening it --------------------------------------------------------------------------------


def version(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as database:
        ((found,),) = database.execute("PRAGMA user_version")
    return int(found)


async def opened(path: Path, *migrations: str) -> list[tuple[object, ...]]:
    """The content that a journal with these migrations reads."""
    journal = Journal(path, migrations, lock_wait=0.01)
    await journal.open()
    rows = await journal.read("SELECT * FROM note")
    await journal.close()
    return rows


async def test_a_database_is_brought_up_to_date(path: Path) -> None:
    with_place = f"{MIGRATIONS[0]}; INSERT INTO note VALUES (1, 'old')"
    assert await opened(path, with_place) == [(1, "old")]
    newer = "ALTER TABLE note ADD COLUMN time INTEGER NOT NULL DEFAULT 5"
    assert await opened(path, with_place, newer) == [(1, "old", 5)]
    assert await opened(path, with_place, newer) == [(1, "old", 5)]  # each only once
    assert version(path) == 2


async def test_a_migration_that_fails_changes_nothing(path: Path) -> None:
    await opened(path, MIGRATIONS[0])
    broken = "INSERT INTO note VALUES (1, 'half'); INSERT INTO nowhere VALUES (1)"
    with pytest.raises(ConfigurationError, match="no such table: nowhere"):
        await opened(path, MIGRATIONS[0], broken)
    assert version(path) == 1
    assert await opened(path, MIGRATIONS[0]) == []


async def test_a_database_of_a_newer_version_is_refused(path: Path) -> None:
    await opened(path, MIGRATIONS[0], "CREATE TABLE other (x)")
    with pytest.raises(ConfigurationError, match="written by a newer version"):
        await opened(path, MIGRATIONS[0])
    assert version(path) == 2


async def test_a_database_that_is_open_elsewhere_is_refused(journal: Journal, path: Path) -> None:
    with pytest.raises(ConfigurationError, match="locked"):
        await opened(path, MIGRATIONS[0])
    journal.write((INSERT, (1, b"x")))
    await flushed(journal)
    assert durable(path) == [1]


async def test_a_value_that_is_not_a_database_is_refused(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    shutil.copy(__file__, path)
    with pytest.raises(ConfigurationError, match="not a database"):
        await opened(path, MIGRATIONS[0])


async def test_its_files_are_private(journal: Journal, path: Path) -> None:
    journal.write((INSERT, (1, b"x")))
    await flushed(journal)
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(("ballast", "notes.db", "notes.db-wal"), 0o600)
    assert path.parent.stat().st_mode & 0o777 == 0o700
