"""A task manager without a server: the CLI is the real child tests/support/agent.py."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bridge.a2a.requests import SendParams
from bridge.adapter import AgentConfig
from bridge.auth.principal import OPERATOR, Quota
from bridge.auth.quotas import Quotas
from bridge.process.process_tree import reap_orphans
from bridge.runtime.agent import Agent, Policy
from bridge.runtime.tasks import TaskManager
from bridge.server import registry
from bridge.session.factory import SessionFactory
from bridge.session.pool import SessionPool
from bridge.session.turn import QUIET, TurnLimits
from bridge.store.handle import TaskHandle, TaskHandles
from bridge.store.memory import MemoryStore
from bridge.store.protocol import Retention
from bridge.task.message import Message, Role, TextPart
from bridge.task.render import status_message
from bridge.task.transitions import TaskState
from bridge.workspace.attachments import Attachments
from bridge.workspace.paths import Workspaces
from tests.support.agent import PROGRAM
from tests.support.children import children

WITHIN = 60.0


class Bridge:
    """A manager with short calls for tests."""

    def __init__(self, workspace: Path, binary: str = sys.executable, **settings: Any) -> None:
        adapter = settings.pop("adapter", registry.load("jsonl"))
        config = AgentConfig(binary, ("-I", "-S", PROGRAM))
        grace, turn = settings.pop("grace", 1.0), settings.pop("turn", 0.0)
        quiet = settings.pop("quiet", QUIET)
        limits = TurnLimits(turn=turn, term_grace=grace, quiet=quiet)
        roots = settings.pop("roots", ())
        workspaces = Workspaces(str(workspace), roots)
        takes_urls = adapter.takes_urls
        attachments = Attachments(workspaces, adapter.input_modes, takes_urls=takes_urls)
        idle = settings.pop("idle", 600.0)
        sessions = SessionFactory(adapter=adapter, config=config, environment={}, limits=limits)
        replies = settings.pop("replies", False)
        agent = Agent(
            sessions=sessions, idle_seconds=idle, attachments=attachments, replies=replies
        )
        policy = Policy(retention=Retention(tasks=settings.pop("keep", 1000)))
        tasks = self.tasks = TaskHandles("", settings.pop("store", None) or MemoryStore())
        quota = replace(Quota.none(), running=settings.pop("running", 0))
        quotas = Quotas({OPERATOR.id: quota})
        pauses = {
            name: settings.pop(name)
            for name in ("announce_every", "first_pause")
            if name in settings
        }
        self.pool = SessionPool(settings.pop("sessions", 4), quotas, **pauses)
        assert not settings
        self.manager = TaskManager(agent, adapter, workspaces, tasks, self.pool, policy=policy)

    async def send(
        self,
        text: str,
        context: str | None = None,
        task: str | None = None,
        metadata: Any = None,
        request_metadata: Any = None,
    ) -> TaskHandle:
        parts = (TextPart(text),)
        message = Message("m-1", Role.USER, parts, task, context, metadata=metadata)
        params = SendParams(message, blocking=True, metadata=request_metadata)
        handle = (await self.manager.send(params)).handle
        handle.shown = True
        return handle

    async def run(self, text: str, context: str | None = None, **more: Any) -> TaskHandle:
        return await ended(await self.send(text, context, **more))

    async def rested(self) -> None:
        """Until no context works, or waits for a place."""
        async with asyncio.timeout(WITHIN):
            while self.pool.figures()["working"] or self.pool.figures()["queued"]:
                await self.pool.changed()


async def ended(handle: TaskHandle) -> TaskHandle:
    """`handle`, as soon as its task has ended."""
    async with asyncio.timeout(WITHIN):
        while not handle.log.closed:
            await handle.log.changed()
    return handle


async def in_state(handle: TaskHandle, state: TaskState) -> TaskHandle:
    async with asyncio.timeout(WITHIN):
        while handle.task.state is not state:
            assert not handle.log.closed, handle.task
            await handle.log.changed()
    return handle


def message(handle: TaskHandle) -> str:
    told = status_message(handle.task, handle.task.status)
    return told.text if told else ""


Make = Callable[..., Bridge]


@asynccontextmanager
async def making(workspace: Path) -> AsyncIterator[Make]:
    """Makes bridges; afterwards they are closed, and no process is left."""
    reap_orphans()  # of servers that other tests ended by force
    made: list[Bridge] = []

    def make(**settings: Any) -> Bridge:
        made.append(Bridge(workspace, **settings))
        return made[-1]

    yield make
    for bridge in made:
        async with asyncio.timeout(WITHIN):
            await bridge.manager.close(drain=0)
    assert children() == []
