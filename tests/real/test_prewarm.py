"""The real CLIs, started ahead of their tasks, on scripted models."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.support.children import launchers
from tests.support.cli_row import Cli
from tests.support.client import artifact_text, context_id, state
from tests.support.prewarmed import warm_in
from tests.support.real_claude_code import script
from tests.support.real_clis import CLAUDE_CODE, CLIS, CODEX, Real, each, gone, serving

pytestmark = pytest.mark.real
GEMINI, OPENCODE = (
    next(one for one in CLIS if one.name == name) for name in ("gemini", "opencode")
)
OF_A_COMMIT = ("-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-qm", "SECOND")


def leaders(real: Real) -> set[psutil.Process]:
    """The CLIs that run: what the launcher has started."""
    return {one for parent in launchers(real.server.process.pid) for one in parent.children()}


@each([CLAUDE_CODE, OPENCODE, GEMINI, CODEX], "claude-code")
async def test_a_new_conversation_finds_its_cli_started(tmp_path: Path, cli: Cli) -> None:
    """It is the one that was there before, goes on with the next turn, and leaves nothing."""
    state_folder = str(tmp_path / "state")
    async with serving(
        cli, tmp_path, BRIDGE_WARM_SESSIONS="1", BRIDGE_STATE_DIR=state_folder
    ) as real:
        client = real.client()
        await warm_in(client, 1)
        (before,) = leaders(real)
        task = await client.send(script("say", "first"))
        assert (state(task), artifact_text(task)) == ("completed", "first")
        again = await client.send(script("say", "second"), contextId=context_id(task))
        assert (state(again), artifact_text(again)) == ("completed", "second")
        await warm_in(client, 1)
        after = leaders(real)
        assert before in after
        assert len(after) == 2  # the one that serves, and the next
        everything = set(real.processes())
        assert await real.server.stop() == 0
        await gone(everything)


@each([CLAUDE_CODE, OPENCODE])
async def test_two_conversations_at_once_have_one_each(tmp_path: Path, cli: Cli) -> None:
    async with serving(cli, tmp_path, BRIDGE_WARM_SESSIONS="2") as real:
        client = real.client()
        await warm_in(client, 2)
        both = await asyncio.gather(
            client.send(script("say", "left")), client.send(script("say", "right"))
        )
        assert [artifact_text(task) for task in both] == ["left", "right"]
        ids = {task["metadata"]["bridge"]["sessionId"] for task in both}
        assert len(ids) == 2


async def test_claude_code_is_told_the_workspace_of_now(tmp_path: Path) -> None:
    """What it read when it was started is not what a new conversation begins with."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "CLAUDE.md").write_text("Be VERBOSE.")
    git(workspace, "init", "-q")
    async with serving(CLAUDE_CODE, tmp_path, BRIDGE_WARM_SESSIONS="1") as real:
        await warm_in(real.client(), 1)
        await idle(real)
        git(workspace, "add", ".")
        git(workspace, *OF_A_COMMIT)
        (workspace / "CLAUDE.md").write_text("Be TERSE.")
        await real.client().send(script("say", "hello"))
        (asked,) = [str(body) for body in real.model.requests if "hello" in str(body)]
        assert "TERSE" in asked
        assert "VERBOSE" not in asked
        assert "SECOND" in asked


async def idle(real: Real) -> None:
    """Return when the CLIs have used no CPU time for half a second: their start is complete."""
    before, quiet = -1.0, 0
    async with asyncio.timeout(30.0):
        while quiet < 10:
            await asyncio.sleep(0.05)
            spent = sum(cpu_seconds(one) for one in real.processes())
            quiet, before = (quiet + 1 if spent == before else 0), spent


def cpu_seconds(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        return float(sum(process.cpu_times()[:2]))
    return 0.0


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True)
