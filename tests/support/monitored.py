"""A server that runs in this process and has a monitor."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from aiohttp import ClientResponse

from tests.support.agent import PROGRAM
from tests.support.bridge_process import BridgeProcess, bridge


def serving(
    workspace: Path, token: str = "", **env: Any
) -> AbstractAsyncContextManager[BridgeProcess]:
    return bridge(
        workspace,
        AGENT_ADAPTER="jsonl",
        AGENT_BINARY=sys.executable,
        AGENT_ARGS=f"-I -S {PROGRAM}",
        BRIDGE_TOKEN=token,
        **env,
    )


async def changes(response: ClientResponse, count: int) -> list[dict[str, Any]]:
    """The next `count` items of the feed."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(20):
        async for line in response.content:
            if line.startswith(b"data: "):
                found.append(json.loads(line[6:]))
                if len(found) == count:
                    break
    return found
