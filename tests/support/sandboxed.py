"""A server whose agents run a shell in a sandbox."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.sandbox import landlock
from tests.support.bridge_process import BridgeProcess, bridge
from tests.support.client import Client
from tests.support.refusals import refused

SHELL: dict[str, Any] = {
    "AGENT_ADAPTER": "generic",
    "AGENT_BINARY": "/bin/sh",
    "AGENT_ARGS": "-c '{prompt}' sh",  # the prompt is a program; only tests do this
}


needs_landlock = pytest.mark.skipif(
    landlock.abi() < 3, reason="this kernel has no Landlock of ABI 3"
)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@asynccontextmanager
async def shell(workspace: Path, **env: Any) -> AsyncIterator[Client]:
    async with serving_shell(workspace, **{"BRIDGE_SANDBOX": "landlock", **env}) as (client, _):
        yield client


@asynccontextmanager
async def serving_shell(workspace: Path, **env: Any) -> AsyncIterator[tuple[Client, BridgeProcess]]:
    """The default profile, unless `env` has another one."""
    settings = {**SHELL, "BRIDGE_SANDBOX": "auto", **env}
    timeout = aiohttp.ClientTimeout(60)
    async with (
        bridge(workspace, **settings) as server,
        aiohttp.ClientSession(timeout=timeout) as http,
    ):
        yield Client(http, server.url), server


def refused_shell(workspace: Path, **env: Any) -> str:
    """The log of a server like that of `serving_shell`, which refuses to start."""
    return refused(workspace, **{**SHELL, "BRIDGE_SANDBOX": "auto", **env})
