"""Executes the commands that other servers give to this one, for the contexts that it has."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping

from bridge.a2a.requests import SendParams
from bridge.auth.principal import Principal
from bridge.errors import RequestError, TaskNotCancelable, TaskNotFound, Unavailable
from bridge.runtime.nodes.commands import Accepted, Elsewhere, TaskCommand, done, refused
from bridge.runtime.tasks import TaskManager
from bridge.store.changes import CommandDone
from bridge.store.cluster import Cluster, Command
from bridge.store.handle import TaskHandle
from bridge.store.protocol import Store
from bridge.store.serialization import load
from bridge.task.transitions import TaskState

log = logging.getLogger(__name__)

FAILED = "Internal error; the log of the server that works in this context has it."


class Inbox:
    """`managers` are by agent id. `pushed` gets a task and the id of a push config of it that has
    changed."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        managers: Mapping[str, TaskManager],
        pushed: Callable[[TaskHandle, str], Awaitable[None]],
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._managers = managers
        self._pushed = pushed
        self._running: asyncio.Task[None] | None = None
        self._executing: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Take no more commands, and end the ones that are under way: without an answer, another
        server repeats them."""
        working = [one for one in (self._running, *self._executing) if one]
        for one in working:
            one.cancel()
        await asyncio.gather(*working, return_exceptions=True)

    async def _run(self) -> None:
        async with contextlib.aclosing(self._cluster.commands()) as commands:  # type: ignore[type-var]
            async for command in commands:
                executing = asyncio.create_task(self._execute(command))
                self._executing.add(executing)
                executing.add_done_callback(self._executing.discard)

    async def _execute(self, command: Command) -> None:
        try:
            answer = await self._call(command)
        except RequestError as error:
            answer = refused(command, error)
        except Elsewhere as error:  # the context has moved meanwhile
            answer = refused(command, Unavailable(str(error)))
        except Exception:
            log.exception("a command of another server failed", extra={"kind": command.kind})
            answer = refused(command, Unavailable(FAILED))
        if answer:
            self._store.append([answer], fence=None)

    async def _call(self, command: Command) -> CommandDone | None:
        """The answer; None if it is committed together with the effect."""
        manager = self._managers.get(command.context.agent)
        if manager is None:
            raise TaskNotFound("The agent of this context is not served any more.")
        principal = load(Principal, command.principal)
        if command.kind == "send":
            await manager.accept(load(SendParams, command.body), principal, command)
            return None
        named = load(TaskCommand, command.body)
        if command.kind == "cancel":
            await self._cancel(manager, named.task_id, principal)
        elif command.kind == "push":
            handle = await manager.find(named.task_id)
            if handle:
                await self._pushed(handle, named.config_id)
        else:
            raise Unavailable("The server that works in this context has an older version.")
        return done(command, Accepted(named.task_id))

    @staticmethod
    async def _cancel(manager: TaskManager, task_id: str, principal: Principal) -> None:
        try:
            await manager.cancel(task_id, principal)
        except TaskNotCancelable:
            handle = await manager.find(task_id)
            # An earlier server may have executed the command without an answer.
            if handle is None or handle.task.state is not TaskState.CANCELED:
                raise
