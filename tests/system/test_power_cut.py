"""Cutting the power, again and again, while the bridge's stores write: whatever they said was
durable is there afterwards, on a disk that loses everything that it may lose
(tests/support/lossy_fs.py).

Each cut falls after a random number of changes to the disk, so it comes between any two of them: in
the first migration, between the pages of a commit, before its fsync, in a checkpoint, while an
earlier cut is recovered from. The next writer goes on with what has survived.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from bridge.server.state_dir import open_state
from bridge.store.sqlite.store import SqliteStore
from tests import CHECKOUT
from tests.support import programs
from tests.support.durable_writer import (
    AGENT,
    Order,
    State,
    expected_push,
    expected_tasks,
    read_push,
    read_tasks,
    survived,
)
from tests.support.lossy_fs import CANNOT, PAGE, LossyDisk, unmount

WITHIN = 60.0  # seconds for anything that is waited for
SOUND = [("ok",)]


@dataclass
class Heard:
    """What a writer has said. `stuck` is set when it cannot go on."""

    acked: list[int] = field(default_factory=list)
    failed: str = ""
    wrong: str = ""
    stuck: asyncio.Event = field(default_factory=asyncio.Event)


class Machine:
    """A writer, and the disk that it writes to."""

    def __init__(self, folder: Path, disk: Process, writer: Process) -> None:
        self.folder = folder
        self._disk = disk
        self._writer = writer

    async def run(self, order: Order, after: int, when: str = "any") -> list[int]:
        """Have the power cut after so many changes to the disk (see lossy_fs). Returns the numbers
        of what was acknowledged until then."""
        _tell(self._disk, f"cut {order.seed} {after} {when}")
        _tell(self._writer, json.dumps(asdict(order)))
        pid = int((await _line(self._writer)).removeprefix("pid "))
        heard = Heard()
        hearing = asyncio.create_task(self._hear(heard))
        try:
            await self._until_off(heard)
        finally:
            os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(WITHIN):
                await hearing
        assert not heard.wrong, heard.wrong
        return heard.acked

    async def on(self, copy: Path) -> None:
        """Switch it on again. `copy`: a folder that is made for what has survived."""
        os.mkdir(copy, 0o700)
        _tell(self._disk, f"on {copy}")
        assert await _line(self._disk) == "on"

    async def _until_off(self, heard: Heard) -> None:
        off = asyncio.create_task(_line(self._disk))
        stuck = asyncio.create_task(heard.stuck.wait())
        await asyncio.wait([off, stuck], timeout=WITHIN, return_when=asyncio.FIRST_COMPLETED)
        stuck.cancel()
        try:
            # Who heard of the power before us is stuck for a good reason.
            assert await asyncio.wait_for(off, 20.0) == "off"
        except TimeoutError:
            reason = heard.failed or heard.wrong or f"after {heard.acked[-1:]}"
            raise AssertionError(f"the writer does not go on: {reason}") from None

    async def _hear(self, heard: Heard) -> None:
        while (line := await _line(self._writer)) != "dead":
            word, _, rest = line.partition(" ")
            match word:
                case "acked":
                    heard.acked.append(int(rest))
                case "failed":
                    heard.failed = rest
                    heard.stuck.set()
                case _:
                    heard.wrong = line or "the writer has ended"
                    heard.stuck.set()
                    if not line:
                        return


def _tell(process: Process, line: str) -> None:
    assert process.stdin
    process.stdin.write(f"{line}\n".encode())


async def _line(process: Process) -> str:
    assert process.stdout
    async with asyncio.timeout(WITHIN):
        return (await process.stdout.readline()).decode().rstrip("\n")


@contextlib.asynccontextmanager
async def _program(module: str, *arguments: str) -> AsyncIterator[Process]:
    """It ends at the end of its stdin."""
    command = [sys.executable, "-m", module, *arguments]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, cwd=CHECKOUT, start_new_session=True
    )
    try:
        yield process
    finally:
        assert process.stdin
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), WITHIN)
        except TimeoutError:
            process.kill()
            await process.wait()


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    folder = tmp_path / "disk"
    folder.mkdir(0o700)
    try:
        async with _program("tests.support.lossy_fs", str(folder)) as disk:
            said = await _line(disk)
            if said != "mounted":
                assert await asyncio.wait_for(disk.wait(), WITHIN) == CANNOT
                programs.require("fusermount3")
                pytest.skip(f"no FUSE here (/dev/fuse, or the permission to mount): {said}")
            async with _program("tests.support.durable_writer") as writer:
                yield Machine(folder, disk, writer)
    finally:
        unmount(folder)  # in case that its process was killed


# --- what is there afterwards --------------------------------------------------------------------


async def _stored(read: Reader, copy: Path) -> State:
    store = SqliteStore(copy / "tasks.db")
    await store.open()
    try:
        found = await read(store)
    finally:
        await store.close()
    with contextlib.closing(sqlite3.connect(copy / "tasks.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == SOUND
        assert database.execute("PRAGMA foreign_key_check").fetchall() == []
    return found


Reader = Callable[[SqliteStore], Awaitable[State]]
READERS: dict[str, tuple[Reader, Callable[[int], State]]] = {
    "tasks": (read_tasks, expected_tasks),
    "push": (read_push, expected_push),
}


@dataclass
class Toll:
    cuts: int = 0
    acked: int = 0
    lost: int = 0
    extra: int = 0  # what was there though nobody had been told of it yet


async def _cut_often(
    machine: Machine, scratch: Path, kind: str, cuts: int, synchronous: str = ""
) -> Toll:
    read, expected = READERS[kind]
    toll = Toll()
    newest = -1
    for seed in range(cuts):
        order = Order(kind, str(machine.folder), newest + 1, seed, synchronous)
        chance = random.Random(seed)
        after = chance.randrange(chance.choice((40, 400, 4000)))
        acked = await machine.run(order, after, chance.choice(("any", "sync")))
        assert acked == list(range(order.first, order.first + len(acked)))
        promised = newest + len(acked)
        await machine.on(scratch / f"survived-{seed}")
        newest = survived(await _stored(read, scratch / f"survived-{seed}"), expected)
        shutil.rmtree(scratch / f"survived-{seed}")
        toll.cuts += 1
        toll.acked += len(acked)
        toll.lost += max(0, promised - newest)
        toll.extra += max(0, newest - promised)
    print(f"{kind} {synchronous or 'as it is'}: {toll}")
    return toll


@pytest.mark.parametrize(
    ("kind", "cuts"),
    [
        *(("tasks", 12), ("push", 8)),
        *(pytest.param(*one, marks=pytest.mark.soak) for one in (("tasks", 40), ("push", 20))),
    ],
)
async def test_what_was_acknowledged_is_there_after_a_power_cut(
    machine: Machine, tmp_path: Path, kind: str, cuts: int, caplog: pytest.LogCaptureFixture
) -> None:
    toll = await _cut_often(machine, tmp_path, kind, cuts)
    assert toll.lost == 0
    assert toll.acked > 10 * cuts, "hardly anything was written"
    assert not caplog.records, "something could not be read as it was written"


@pytest.mark.parametrize("kind", ["tasks", pytest.param("push", marks=pytest.mark.soak)])
async def test_with_less_than_full_it_would_not_be(
    machine: Machine, tmp_path: Path, kind: str
) -> None:
    """The experiment could tell: NORMAL does not sync what it commits. What is there is still the
    first so many, only not as many as was promised."""
    toll = await _cut_often(machine, tmp_path, kind, 10, "NORMAL")
    assert toll.lost > 0


# --- a folder that is new ------------------------------------------------------------------------


async def _new_folders(machine: Machine, scratch: Path) -> AsyncIterator[tuple[Path, list[int]]]:
    """What was left of folders that a server had just begun to use when the power was cut; and
    the numbers of the contexts that were acknowledged."""
    for seed in range(20):
        order = Order("state", str(machine.folder / f"state-{seed}"), 0, seed)
        acked = await machine.run(order, random.Random(seed).randrange(80))
        await machine.on(scratch / f"survived-{seed}")
        yield scratch / f"survived-{seed}" / f"state-{seed}", acked
        shutil.rmtree(scratch / f"survived-{seed}")


async def test_what_was_acknowledged_is_there_in_a_new_folder_too(
    machine: Machine, tmp_path: Path
) -> None:
    async for folder, acked in _new_folders(machine, tmp_path):
        state = await open_state(folder)
        try:
            there = {one.context.id for one in await state.store.contexts(AGENT)}
            assert there >= {f"context-{number}" for number in acked}
        finally:
            await state.close()


async def test_a_new_folder_has_a_whole_identity_or_none(machine: Machine, tmp_path: Path) -> None:
    """An empty one is that of all servers that have an empty one: each would end the agents of
    the others."""
    async for folder, _ in _new_folders(machine, tmp_path):
        state = await open_state(folder)
        await state.close()
        assert re.fullmatch(r"[0-9a-f]{16}\.", state.markers)


# --- the disk itself -----------------------------------------------------------------------------

OLD, NEW = b"o" * 2 * PAGE, b"n" * 2 * PAGE


def _survivors(change: Callable[[LossyDisk, int], None]) -> set[tuple[tuple[str, bytes], ...]]:
    """What a disk with `old` in the file `name` may have after the `change`, by name."""
    found = set()
    for seed in range(200):
        disk = LossyDisk(lambda word: None)
        handle = disk.create("/name", 0o600, 0)
        disk.write("/name", OLD, 0, handle)
        disk.fsync("/name", 0, handle)
        disk.fsyncdir("/", 0, 0)
        change(disk, handle)
        disk.cut(seed, 0)
        with pytest.raises(OSError, match="power"):
            disk.write("/name", b"too late", 0, handle)
        with pytest.raises(OSError, match="power"):
            disk.getattr("/name")
        disk.on()
        names = sorted(set(disk.readdir("/", 0)) - {".", ".."})
        contents = (disk.read(f"/{one}", 1 << 20, 0, disk.open(f"/{one}", 0)) for one in names)
        found.add(tuple(zip(names, contents, strict=True)))
    return found


def test_the_disk_keeps_what_was_synced() -> None:
    def change(disk: LossyDisk, handle: int) -> None:
        disk.write("/name", NEW, 0, handle)
        disk.truncate("/name", PAGE)
        disk.fsync("/name", 1, handle)
        disk.rename("/name", "/other")
        disk.fsyncdir("/", 0, 0)

    assert _survivors(change) == {(("other", NEW[:PAGE]),)}


def test_of_what_was_not_synced_the_disk_keeps_any_part() -> None:
    def write(disk: LossyDisk, handle: int) -> None:
        disk.write("/name", NEW, 0, handle)

    found = {content for ((_, content),) in _survivors(write)}
    halves = OLD[:PAGE], NEW[:PAGE]
    assert found >= {one + other for one in halves for other in halves}
    assert any(content[:PAGE] not in halves for content in found)  # torn

    def append(disk: LossyDisk, handle: int) -> None:
        disk.write("/name", NEW, len(OLD), handle)

    found = {content for ((_, content),) in _survivors(append)}
    assert found >= {OLD, OLD + NEW, OLD + bytes(len(NEW))}  # the size is no promise of content

    def truncate(disk: LossyDisk, handle: int) -> None:
        disk.truncate("/name", 0)

    assert {content for ((_, content),) in _survivors(truncate)} >= {b"", OLD}


def test_a_name_that_was_not_synced_may_be_there_or_not() -> None:
    def rename(disk: LossyDisk, handle: int) -> None:
        disk.rename("/name", "/other")

    assert _survivors(rename) == {(("name", OLD),), (("other", OLD),)}

    def unlink(disk: LossyDisk, handle: int) -> None:
        disk.unlink("/name")

    assert _survivors(unlink) == {(), (("name", OLD),)}

    def create(disk: LossyDisk, handle: int) -> None:
        file = disk.create("/other", 0o600, 0)
        disk.write("/other", NEW, 0, file)
        disk.fsync("/other", 0, file)

    assert _survivors(create) == {(("name", OLD),), (("name", OLD), ("other", NEW))}
