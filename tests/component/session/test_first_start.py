"""The first CLI in new private folders starts alone. The CLI here is a shell script that creates a
database, and that fails if another one creates it at the same time."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import ClassVar

import pytest

from bridge.adapter import Adapter, AgentConfig, Launch, Prompt, SessionStart
from bridge.files.home import Home
from bridge.process.process_tree import reap_orphans
from bridge.sandbox.homes import PrivateHome
from bridge.sandbox.profile import Sandbox
from bridge.server.registry import load, names
from bridge.session.first_start import FirstStart
from bridge.session.session import Session
from bridge.session.turn import TurnLimits
from bridge.task.events import AgentEvent, Done
from bridge.task.message import Message, Role, TextPart
from tests.support.children import children

WITHIN = 60.0
CLI = """
[ -e db/done ] || { mkdir db/lock || exit 3; read line; touch db/done; rmdir db/lock; }
echo ready; exec cat
"""


class Creating(Adapter):
    """A CLI that prints a line when its database exists."""

    name: ClassVar[str] = "creating"
    title: ClassVar[str] = "Creating"

    def launch(self) -> Launch:
        return Launch(("/bin/sh", "-c", CLI))

    def prompt(self, prompt: Prompt) -> None:
        self.send(b"go\n")

    def receive_line(self, line: bytes) -> Iterable[AgentEvent]:
        return [Done(line.decode())]


class Starts:
    """Sessions in one folder, in the order of their starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.first = FirstStart(within=WITHIN)
        self.sessions: list[Session] = []
        self.home = PrivateHome(Home("X", "", ("db/",), database="db/done"), "", str(folder), {})

    def make(self) -> Session:
        adapter = Creating(AgentConfig("/bin/sh"), SessionStart(str(self.folder), "s"))
        environment = {"PATH": os.environ["PATH"]}
        session = Session(adapter, environment, TurnLimits(), uuid.uuid4().hex)
        sandbox = Sandbox("off", {}, str(self.folder), homes=(self.home,))
        self.first.order(session, lambda: sandbox.new)
        self.sessions.append(session)
        return session


@pytest.fixture
async def starts(tmp_path: Path) -> AsyncIterator[Starts]:
    """Afterwards no process is left."""
    reap_orphans()
    (tmp_path / "db").mkdir()
    made = Starts(tmp_path)
    yield made
    for session in made.sessions:
        async with asyncio.timeout(WITHIN):
            await session.stop()
    assert children() == []


async def turn(session: Session) -> list[object]:
    """The events of a turn."""
    events: list[object] = []
    prompt = Prompt("t", "c", Message("m", Role.USER, (TextPart("go"),)))
    async with asyncio.timeout(WITHIN):
        await session.run(lambda: session.prompt(prompt), events.extend)
    return events


async def test_the_others_wait_until_the_first_one_is_ready(starts: Starts) -> None:
    first, second = starts.make(), starts.make()
    opening = asyncio.create_task(second.open())
    await first.open()
    started, _ = await asyncio.wait([opening], timeout=0.3)  # its start would take less
    assert not started
    assert await turn(first) == [Done("ready")]
    async with asyncio.timeout(WITHIN):
        await opening
    assert await turn(second) == [Done("ready")]


async def test_the_others_start_after_the_end_of_the_first_one(starts: Starts) -> None:
    first, second = starts.make(), starts.make()
    await first.open()
    opening = asyncio.create_task(second.open())
    await first.stop()
    async with asyncio.timeout(WITHIN):
        await opening
    assert second.healthy


async def test_the_wait_is_bounded(starts: Starts) -> None:
    starts.first = FirstStart(within=0.05)
    first, second = starts.make(), starts.make()
    await first.open()
    async with asyncio.timeout(WITHIN):
        await second.open()
    assert second.healthy


async def test_a_database_that_exists_needs_no_order(starts: Starts) -> None:
    (starts.folder / "db/done").touch()
    first, second = starts.make(), starts.make()
    await first.open()
    assert first.streams.on_ready is None
    async with asyncio.timeout(WITHIN):
        await second.open()
    assert first.healthy
    assert second.healthy


async def test_a_session_that_starts_nothing_lets_no_other_wait(starts: Starts) -> None:
    """It continues a process of an earlier server, and that process may be silent for an hour."""
    starts.make()
    second = starts.make()
    starts.first._within = 3600
    async with asyncio.timeout(WITHIN):
        await second.open()
    assert second.healthy


def test_only_clis_that_create_a_database_have_an_order() -> None:
    all_of_them = [load(name) for name in names()]
    found = {one.name for one in all_of_them if any(home.database for home in one.homes)}
    assert found == {"opencode", "kilo"}
