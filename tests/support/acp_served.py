"""tests/support/acp_agent.py behind a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.acp_agent import PROGRAM
from tests.support.client import Json, context_id, state, task_id
from tests.support.served import Server, serving


@asynccontextmanager
async def agent(
    workspace: Path, options: Json | None = None, adapter: str = "acp", **settings: Any
) -> AsyncIterator[Server]:
    args = ("-I", "-S", PROGRAM, json.dumps(options or {}))
    async with serving(workspace, agent_adapter=adapter, agent_args=args, **settings) as server:
        yield server


async def again(server: Server, task: Json, text: str) -> Json:
    """The next message: an answer if the task waits for one, else another turn."""
    client, context = server.client(), context_id(task)
    if state(task) != "input-required":
        return await client.send(text, contextId=context)
    parts = client.answer_parts(task, text)
    return await client.send(parts, contextId=context, taskId=task_id(task))


async def closed(server: Server) -> None:
    """Until no session is kept warm."""
    pool = server.managers[0].contexts.pool
    async with asyncio.timeout(10):
        while pool.holders:
            await pool.changed()
