"""The real CLIs in the sandbox of the server, and under the launcher of the sandbox alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.cli_row import Cli
from tests.support.client import said, state, states, streamed_text
from tests.support.confined import ANY_PORT, landlock, needs, script
from tests.support.real_claude_code import answer, ask
from tests.support.real_claude_code import script as told
from tests.support.real_clis import CLIS, each, serving
from tests.support.sandboxed import needs_landlock


def keep_secret(home: Path) -> None:
    (home / ".ssh").mkdir()
    (home / ".ssh/id").write_text("s3cret")


@needs_landlock
@pytest.mark.real
@pytest.mark.timeout(120)
@each(CLIS, "claude-code", "codex")
async def test_a_real_cli_works_inside_and_does_not_get_out(cli: Cli, tmp_path: Path) -> None:
    """Each CLI works with the default settings; its commands change no file outside of its
    workspace, and read no credentials. A start takes seconds: the soak tier has the other CLIs."""

    def configure(url: str, home: Path) -> None:
        cli.configure(url, home)
        keep_secret(home)

    async with serving(replace(cli, configure=configure), tmp_path) as real:
        outside = tmp_path / "outside.txt"
        line = (
            f"echo x > inside.txt; (echo x > {outside}) 2> /dev/null; "
            f"cat {real.home}/.ssh/id > read.txt 2> /dev/null; true"
        )
        task = await ask(real.client(), told("run", real.run(line), "the end"))
        while state(task) == "input-required":
            task = await answer(real.client(), task, "yes")
        assert state(task) == "completed", said(task)
        if cli.name == "codex":  # whose own sandbox cannot start there
            assert "sandbox_mode` is `danger-full-access`" in json.dumps(real.model.requests)
        assert (real.workspace / "inside.txt").read_text() == "x\n"
        assert (real.workspace / "read.txt").read_text() == ""
        assert not await asyncio.to_thread(outside.exists)


def confined(cli: Cli, folder: Path, profile: str, extra: Mapping[str, Any]) -> Cli:
    """The CLI under the rules that would be its default, in `folder`/cli."""

    def configure(url: str, home: Path) -> None:
        cli.configure(url, home)
        keep_secret(home)
        rules = {
            "profile": profile,
            "write": [str(folder / "workspace"), str(folder / "tmp"), *needs(cli.name, home)],
            "hide": [str(home / ".ssh"), str(home / ".local/state/coding-agent-bridge")],
            "connect": None if cli.name in ANY_PORT else [urlsplit(url).port],
            "bind": [0],
            "limits": {"core": 0},
            **extra,
        }
        script(folder / "cli", rules, cli.path())

    return replace(cli, configure=configure)


@landlock
@pytest.mark.real
@pytest.mark.soak
@pytest.mark.timeout(180)
@pytest.mark.parametrize("cli", [pytest.param(cli, id=cli.name) for cli in CLIS])
async def test_a_real_cli_works_under_the_launcher_alone(cli: Cli, tmp_path: Path) -> None:
    """Without the server's part of it, with ports, and without any question of the CLI. In the
    soak tier: the tests above and below are the short cases of it."""
    inside = confined(cli, tmp_path, "landlock", {})
    env = {"AGENT_FORCE": "true", "AGENT_BINARY": str(tmp_path / "cli"), **cli.force}
    env["BRIDGE_SANDBOX"] = "none"  # for it is in one of its own
    async with serving(inside, tmp_path, **env) as real:
        line = (
            f"cat {real.home}/.ssh/id; echo no >{tmp_path}/outside; "
            "echo written | tee by-command.txt"
        )
        items = await real.client().collect(told("run", real.run(line), "the end"))
        assert states(items)[-1] == "completed", said(items[-1])
        if cli.name != "aider":  # whose model is not asked again after a command
            assert streamed_text(items).strip().endswith("the end")
        assert (real.workspace / "by-command.txt").read_text() == "written\n"
        assert not (tmp_path / "outside").exists()
        assert "s3cret" not in json.dumps(items)
