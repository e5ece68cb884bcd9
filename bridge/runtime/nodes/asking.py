"""Requests of clients for contexts that other servers have: this server asks those."""

from __future__ import annotations

import contextlib

from bridge.a2a.requests import SendParams
from bridge.auth.principal import OPERATOR, Principal
from bridge.errors import Unavailable
from bridge.runtime.nodes.commands import (
    Accepted,
    Elsewhere,
    TaskCommand,
    read_answer,
    send_command,
    task_command,
)
from bridge.store.cluster import Command
from bridge.store.handle import TaskHandle, TaskHandles


class OtherServers:
    """The servers that have the other contexts of the agent of `tasks`. Methods raise Unavailable
    for a server that does not run."""

    def __init__(self, tasks: TaskHandles) -> None:
        self._cluster = tasks.cluster
        self._node = tasks.store.node

    async def send(
        self, elsewhere: Elsewhere, params: SendParams, principal: Principal
    ) -> Accepted | None:
        """How the server that has the context has accepted the message; None if it does not have
        the context any more. Raises the RequestError of that server."""
        return await self._ask(
            elsewhere, send_command(elsewhere.key, self._node, params, principal)
        )

    async def cancel(self, elsewhere: Elsewhere, task_id: str, principal: Principal) -> bool:
        """Whether the server that has the context of the task has canceled it. Raises the
        RequestError of that server."""
        named = TaskCommand(task_id)
        command = task_command("cancel", elsewhere.key, self._node, principal, named)
        return await self._ask(elsewhere, command) is not None

    async def tell_push(self, handle: TaskHandle, config_id: str) -> None:
        """Tell the server that has the context of the task that this push config has changed. A
        server that takes the context later reads the config then."""
        key = handle.context
        holder = await self._cluster.holder(key) if self._cluster else None
        if holder:
            named = TaskCommand(handle.task.id, config_id)
            command = task_command("push", key, self._node, OPERATOR, named)
            with contextlib.suppress(Unavailable):
                await self._ask(Elsewhere(key, holder), command)

    async def _ask(self, elsewhere: Elsewhere, command: Command) -> Accepted | None:
        """The answer of the server that has the context; None if it does not have it any more."""
        if self._cluster is None or elsewhere.holder is None or not elsewhere.holder.runs:
            raise Unavailable(str(elsewhere)) from elsewhere
        answer = await self._cluster.ask(command, elsewhere.holder.id)
        return None if answer is None else read_answer(answer)
