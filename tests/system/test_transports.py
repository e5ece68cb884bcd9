"""The clients of docs/bindings.md against a real server, and the libraries that a server without
the other transports does not import."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import aiohttp

from tests import CHECKOUT
from tests.support import programs
from tests.support.bridge_process import bridge, scripted
from tests.support.client import Client

PAGE = (CHECKOUT / "docs/bindings.md").read_text("utf-8")
EXAMPLES = CHECKOUT / "docs/examples"
WITHIN = 60.0


def block(name: str, language: str) -> str:
    found = PAGE.partition(f"<!-- {name} -->\n```{language}\n")[2].partition("```")[0]
    assert found
    return found


OPTIONAL = {
    *("google", "grpc", "redis", "prometheus_client", "opentelemetry", "mcp", "mcp_types"),
    *("starlette", "psycopg", "cryptography", "joserfc"),
}
LIGHT = {
    *("bridge.transports.grpc", "bridge.transports.grpc.request", "bridge.transports.mcp"),
    *(f"bridge.transports.mcp.{name}" for name in ("announced", "asgi", "delegates")),
    *(f"bridge.transports.mcp.{name}" for name in ("endpoint", "sessions")),
}
"""The modules of optional transports that need no library. Each server has them."""


async def test_an_idle_server_imports_no_optional_library(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    """Python reports all imports, also late ones. A start of a server takes up to a second."""
    async with bridge(workspace, **scripted(workspace), PYTHONPROFILEIMPORTTIME="1") as server:
        await Client(http, server.url).send("text hi")
        await server.stop()
        found = set(re.findall(r"^import time: .*\| +(\S+)$", server.log, re.MULTILINE))
    assert {"aiohttp", "bridge.server.lifecycle"} <= found
    assert not {name for name in found if name.partition(".")[0] in OPTIONAL}
    folders = ("bridge.transports.grpc", "bridge.transports.mcp", "bridge.transports.redis")
    assert {name for name in found if name.startswith(folders)} == LIGHT
    assert "bridge.transports.envelope.websocket" not in found


async def output(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(WITHIN):
        out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


@programs.needed("curl")
async def test_the_clients_of_the_unix_socket_work(workspace: Path) -> None:
    """Over a second: it starts a server and an interpreter with aiohttp."""
    folder = workspace.parent / "run"
    folder.mkdir(mode=0o700)
    path = str(folder / "socket")
    env = {**scripted(workspace), "BRIDGE_UNIX_SOCKET": path, "PORT": "none"}
    async with bridge(workspace, **env):
        command = f"SOCKET='{path}'\n{block('curl', 'sh')}"
        by_curl = await output("sh", "-euc", command.replace("Describe this project.", "text hi"))
        program = str(EXAMPLES / "unix_socket.py")
        by_python = await output(sys.executable, program, path, "text hi")
    for text in (by_curl, by_python):
        assert "hi" in text and "TASK_STATE_COMPLETED" in text


async def test_the_client_of_the_websocket_works(workspace: Path) -> None:
    """Over a second: it starts a server and an interpreter with aiohttp."""
    token = "t" * 16
    env = {**scripted(workspace), "BRIDGE_WEBSOCKET": "true", "BRIDGE_TOKEN": token}
    async with bridge(workspace, **env) as server:
        code = block("websocket", "python")
        found = await output(sys.executable, "-c", code, server.url, token, "text hi")
    assert "'hi'" in found and "TASK_STATE_COMPLETED" in found
