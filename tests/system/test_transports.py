"""The clients of docs/transports.md against a real server."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests import CHECKOUT
from tests.support import programs
from tests.support.bridge_process import bridge, scripted

PAGE = (CHECKOUT / "docs/transports.md").read_text("utf-8")
WITHIN = 60.0


def block(name: str, language: str) -> str:
    found = PAGE.partition(f"<!-- {name} -->\n```{language}\n")[2].partition("```")[0]
    assert found
    return found


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
        by_python = await output(sys.executable, "-c", block("python", "python"), path, "text hi")
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
