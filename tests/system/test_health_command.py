"""`coding-agent-bridge health`: the exit status for health checks, without curl and a token."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from tests.support.bridge_process import bridge, scripted
from tests.support.command_line import run


def at(url: str) -> dict[str, str]:
    return {"PORT": url.rpartition(":")[2], "AGENT_ADAPTER": "replay", "BRIDGE_STORE": "memory"}


async def asked(workspace: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(run, "health", *words, cwd=workspace, **env)


async def test_a_server_that_serves_is_healthy_and_ready(workspace: Path) -> None:
    """Starts of a server and of two commands take a second each. The client has no token."""
    env = {**scripted(workspace), "BRIDGE_AUTH": "auto"}
    async with bridge(workspace, **env) as one:
        done = await asked(workspace, **at(one.url))
        assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
        done = await asked(
            workspace, "--ready", **at(one.url), HOST="0.0.0.0", BRIDGE_TOKEN="x" * 20
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", "")


async def test_a_server_that_is_not_ready_says_why_on_its_unix_socket(
    workspace: Path, tmp_path: Path
) -> None:
    """Starts of a server and of two commands take a second each."""
    path = str(tmp_path / "s")
    limits = {"BRIDGE_MIN_FREE_BYTES": str(2**62)}
    env = {**scripted(workspace), **limits, "BRIDGE_UNIX_SOCKET": path}
    async with bridge(workspace, **env):
        there = {"PORT": "none", "BRIDGE_UNIX_SOCKET": path, "AGENT_ADAPTER": "replay"}
        done = await asked(workspace, "--ready", **there)
        assert (done.returncode, done.stdout, done.stderr) == (1, "not_ready disk\n", "")
        done = await asked(workspace, **there)
        assert (done.returncode, done.stdout) == (0, "degraded\n")


@pytest.mark.parametrize(
    ("port", "text"), [("1", "no answer: Connection refused"), ("0", "PORT=0 names no port")]
)
def test_a_server_that_is_not_there_is_a_failure(workspace: Path, port: str, text: str) -> None:
    done = run("health", cwd=workspace, PORT=port, AGENT_ADAPTER="replay")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"coding-agent-bridge: {text}")
