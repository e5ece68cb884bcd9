"""BRIDGE_SANDBOX, through the real server: what a CLI can reach and what not. What the boundary
itself stops, one attempt after the other, is in tests/test_confine.py."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.confine import landlock_abi
from tests.bridge_process import bridge
from tests.client import Client, artifact_text, said, state
from tests.real_claude_code import answer, ask, script
from tests.real_clis import CLIS, Cli, serving

SHELL: dict[str, Any] = {
    "AGENT_ADAPTER": "generic",
    "AGENT_BINARY": "/bin/sh",
    "AGENT_ARGS": "-c '{prompt}' sh",  # the prompt is a program, as nobody would have it
}
needs_landlock = pytest.mark.skipif(
    landlock_abi() < 3, reason="this kernel has no Landlock of ABI 3"
)


@asynccontextmanager
async def shell(workspace: Path, **env: Any) -> AsyncIterator[Client]:
    settings = {**SHELL, "BRIDGE_SANDBOX": "landlock", **env}
    async with bridge(workspace, **settings) as server, aiohttp.ClientSession() as http:
        yield Client(http, server.url)


@needs_landlock
async def test_it_writes_in_its_workspace_and_its_own_folder_for_scratch(workspace: Path) -> None:
    home = workspace.parent / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/id").write_text("the key")
    attempts = """
        echo x > inside && echo inside
        echo x > "$TMPDIR/scratch" && echo scratch
        (echo x > ~/outside) 2>/dev/null && echo home
        (echo x > ../beside) 2>/dev/null && echo beside
        cat ~/.ssh/id 2>/dev/null
        cat ~/readable
        true
    """
    (home / "readable").write_text("readable\n")
    async with shell(workspace) as client:
        task = await client.send(attempts)
        assert (state(task), artifact_text(task)) == ("completed", "inside\nscratch\nreadable\n")


@needs_landlock
async def test_further_paths_can_be_allowed(workspace: Path) -> None:
    other = workspace.parent / "other"
    other.mkdir()
    async with shell(workspace, BRIDGE_SANDBOX_WRITE=str(other)) as client:
        task = await client.send(f"echo x > {other}/file && echo written")
        assert artifact_text(task) == "written\n"


@needs_landlock
async def test_it_connects_only_to_the_ports_that_are_allowed(workspace: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as open_,
        socket.create_server(("127.0.0.1", 0)) as closed,
    ):
        allowed, refused = (one.getsockname()[1] for one in (open_, closed))
        connect = "python3 -c 'import socket,sys; socket.create_connection((\"127.0.0.1\", {}), 5)'"
        async with shell(workspace, BRIDGE_SANDBOX_PORTS=str(allowed)) as client:
            assert state(await client.send(connect.format(allowed))) == "completed"
            task = await client.send(connect.format(refused))
            assert state(task) == "failed"
            assert "PermissionError" in said(task)


async def test_external_is_the_operators_own_wrapper(workspace: Path) -> None:
    env = {"BRIDGE_SANDBOX": "external", "BRIDGE_SANDBOX_WRAPPER": "env WRAPPED=yes"}
    async with shell(workspace, **env) as client:
        assert artifact_text(await client.send("echo $WRAPPED")) == "yes\n"


@pytest.mark.parametrize(
    ("env", "about"),
    [
        ({"BRIDGE_SANDBOX": "external"}, "BRIDGE_SANDBOX=external"),
        ({"BRIDGE_SANDBOX": "external", "BRIDGE_SANDBOX_WRAPPER": "/nowhere/wrap"}, "external"),
        ({"BRIDGE_SANDBOX_PORTS": "https"}, "BRIDGE_SANDBOX_PORTS"),
        ({"BRIDGE_SANDBOX_WRITE": "relative"}, "BRIDGE_SANDBOX=landlock"),
    ],
)
async def test_what_cannot_be_had_is_refused_at_the_start(
    workspace: Path, env: dict[str, Any], about: str
) -> None:
    with pytest.raises(AssertionError, match=about):
        async with shell(workspace, **env):
            pass


@needs_landlock
@pytest.mark.real
@pytest.mark.timeout(120)
@pytest.mark.parametrize("cli", CLIS, ids=lambda cli: cli.name)
async def test_real_clis_work_inside_and_do_not_get_out(cli: Cli, tmp_path: Path) -> None:
    async with serving(cli, tmp_path, BRIDGE_SANDBOX="landlock") as real:
        outside = tmp_path / "outside.txt"
        line = f"echo x > inside.txt; (echo x > {outside}) 2> /dev/null; true"
        task = await ask(real.client(), script("run", real.run(line), "the end"))
        while state(task) == "input-required":
            task = await answer(real.client(), task, "yes")
        assert state(task) == "completed", said(task)
        found = await asyncio.to_thread(lambda: [p.name for p in real.workspace.iterdir()])
        assert "inside.txt" in found
        assert not await asyncio.to_thread(outside.exists)
