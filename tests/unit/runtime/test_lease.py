"""The lease of a session, over fake sessions that the test controls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.adapter import SessionStart
from bridge.errors import LaunchError
from bridge.runtime.lease import MOST_OUTPUT, Lease
from bridge.session.pool import SessionPool
from bridge.session.prewarm import NOTHING, Prewarm
from bridge.session.session import Session
from bridge.session.tally import SessionTally
from bridge.store.changes import ContextKey, OutputRead
from bridge.store.memory import MemoryStore

WITHIN = 60.0


class Fake:
    """A session without a process."""

    def __init__(self, spool: Path | None = None) -> None:
        self.spool = spool
        self.position = 7
        self.marker = "marker"
        self.movable = False
        self.healthy = False
        self.tally = SessionTally()
        self.streams = SimpleNamespace(between=SimpleNamespace())
        self.calls: list[str] = []
        self.problem: LaunchError | None = None

    async def open(self) -> None:
        if self.problem:
            raise self.problem
        self.healthy = True
        self.calls.append("open")

    async def stop(self) -> None:
        self.healthy = False
        self.calls.append("stop")

    def detach(self) -> None:
        self.calls.append("detach")


class House:
    """Leases with one pool; `made` has their sessions in order."""

    def __init__(self, slots: int = 1, **settings: Any) -> None:
        self.pool = SessionPool(slots)
        self.store = MemoryStore()
        self.made: list[Fake] = []
        self.starts: list[SessionStart] = []
        self.next: Callable[[], Fake] = Fake
        self._settings = {"idle_seconds": 600.0, **settings}

    def make(self, start: SessionStart, session_id: str | None = None) -> Session:
        self.starts.append(start)
        self.made.append(self.next())
        return cast(Session, self.made[-1])

    async def lease(self, key: str) -> Lease:
        prewarm = Prewarm(self.make, self.pool, "/", NOTHING)
        start = SessionStart("/", f"{key}-0")
        fence = await self.store.claim(ContextKey("a", "local", key), "n", WITHIN)
        assert fence
        return Lease(
            start,
            store=self.store,
            fence=fence,
            make=self.make,
            prewarm=prewarm,
            **self._settings,
        )


async def acquire(lease: Lease, wanted: Callable[[], bool] = lambda: True) -> Session | None:
    lease.engage()
    async with asyncio.timeout(WITHIN):
        await lease.prepare(None)
        return await lease.acquire(wanted, lambda ahead, answers: None)


async def test_a_session_is_started_once_and_kept_between_turns() -> None:
    house = House()
    lease = await house.lease("a")
    assert lease.cold
    first = await acquire(lease)
    lease.mark_idle()
    assert lease.idle and not lease.cold
    assert await acquire(lease) is first
    assert [one.calls for one in house.made] == [["open"]]


async def test_an_idle_session_gives_its_slot_to_another_context() -> None:
    house = House()
    one, other = await house.lease("a"), await house.lease("b")
    await acquire(one)
    one.mark_idle()
    assert await acquire(other)
    assert one.cold
    assert [fake.calls for fake in house.made] == [["open", "stop"], ["open"]]


async def test_a_session_that_is_engaged_does_not_expire() -> None:
    house = House(idle_seconds=0.0)
    lease = await house.lease("a")
    await acquire(lease)
    lease.mark_idle()
    lease.engage()  # before the timer fires
    timers: asyncio.Queue[None] = asyncio.Queue()
    asyncio.get_running_loop().call_later(0.01, timers.put_nowait, None)
    async with asyncio.timeout(WITHIN):
        await timers.get()
        assert lease.session and house.made[0].calls == ["open"]
        lease.mark_idle()
        while not lease.cold:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert house.made[0].calls == ["open", "stop"]


async def test_the_next_session_resumes_the_conversation_or_begins_another() -> None:
    house = House()
    lease = await house.lease("a")
    await acquire(lease)
    await lease.close()
    await acquire(lease)
    assert house.starts[1].session_id != house.starts[0].session_id  # it may be taken
    lease.remember("conversation", resume=True)
    await lease.close()
    await acquire(lease)
    assert (house.starts[2].session_id, house.starts[2].resume) == ("conversation", True)


async def test_a_session_that_is_not_wanted_any_more_is_closed() -> None:
    house, wanted = House(), [True]
    lease = await house.lease("a")

    class Slow(Fake):
        async def open(self) -> None:
            await super().open()
            wanted.clear()  # the task was canceled meanwhile

    house.next = Slow
    assert await acquire(lease, lambda: bool(wanted)) is None
    assert house.made[0].calls == ["open", "stop"]
    assert house.pool.figures()["working"] == 0


async def test_a_failed_start_leaves_no_session(tmp_path: Path) -> None:
    house = House()
    (tmp_path / "spool").mkdir()

    def broken() -> Fake:
        fake = Fake(tmp_path / "spool")
        fake.problem = LaunchError("no such program")
        return fake

    house.next = broken
    lease = await house.lease("a")
    with pytest.raises(LaunchError):
        await acquire(lease)
    assert lease.session is None
    assert not (tmp_path / "spool").exists()


async def test_a_session_of_other_files_is_closed() -> None:
    house = House()
    lease = await house.lease("a")
    await acquire(lease)
    lease.mark_idle()
    await lease.prepare("/files")
    assert house.made[0].calls == ["open", "stop"]
    assert lease.start.folder == "/files"


async def test_a_session_with_too_much_output_is_not_kept(tmp_path: Path) -> None:
    house = House()
    house.next = lambda: Fake(tmp_path / "spool")
    lease = await house.lease("a")
    await acquire(lease)
    assert lease.read == OutputRead("spool", 7)
    house.made[0].position = MOST_OUTPUT + 1
    lease.mark_idle()
    assert lease.session is None
    async with asyncio.timeout(WITHIN):
        await lease.close()
    assert house.made[0].calls == ["open", "stop"]


async def test_a_question_needs_no_slot() -> None:
    house = House()
    one, other = await house.lease("a"), await house.lease("b")
    await acquire(one)
    one.wait(datetime.now(UTC), lambda: None)
    assert await acquire(other)
    one.work()
    assert house.pool.figures()["working"] == 2  # its process exists already


async def test_a_detached_session_is_not_stopped() -> None:
    house = House()
    lease = await house.lease("a")
    await acquire(lease)
    assert lease.detach() == "marker"
    await lease.close()
    assert house.made[0].calls == ["open", "detach"]
