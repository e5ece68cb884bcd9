"""What a newcomer meets: output that is cut off, a CLI that is missing or not logged in."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import CHECKOUT
from tests.support.bridge_process import bridge

WITHIN = 60.0
COMMANDS = [["adapters"], ["adapters", "--json"], ["--help"], ["doctor", "--help"], ["token", "x"]]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_reader_that_has_read_enough_causes_no_traceback(arguments: list[str]) -> None:
    """The reader has gone before the first byte; Python starts in half a second."""
    command = [sys.executable, "-m", "bridge", *arguments]
    with subprocess.Popen(
        command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(WITHIN) in (0, 141)  # argparse itself ignores the error


def test_a_missing_cli_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bridge", "--adapter", "codex"],
        cwd=CHECKOUT,
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    assert done.returncode == 2
    assert "Install Codex (npm install -g @openai/codex), or set AGENT_BINARY" in done.stderr


ADAPTER = """
from bridge.server import registry
from bridge.adapter import CliInfo

class Agent(registry.load("jsonl")):
    name, title, binary = "signed", "Signed", "signed"
    cli_info = CliInfo(login="signed login", status=("login", "status"))
"""


def program(folder: Path, status: str) -> Path:
    (folder / "signed_adapter.py").write_text(ADAPTER)
    path = folder / "signed"
    path.write_text(f'#!/bin/sh\n[ "$1" = login ] || exit 0\n{status}\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("status", "warned"), [("exit 1", True), ("exit 0", False), ("kill -9 $$", True)]
)
async def test_a_cli_that_is_not_signed_in_is_named_at_the_start(
    workspace: Path, tmp_path: Path, status: str, warned: bool
) -> None:
    env: Any = {
        "AGENT_ADAPTER": "signed_adapter:Agent",
        "AGENT_BINARY": str(program(tmp_path, status)),
        "PYTHONPATH": f"{CHECKOUT}:{tmp_path}",
    }
    async with bridge(workspace, **env) as server:
        pass
    notes = [line for line in server.log.splitlines() if "not logged in" in line]
    logged = [line for line in notes if "warning" in line]
    shown = [line for line in notes if line.startswith("  note ")]
    assert len(logged) == warned and len(shown) <= warned  # the banner does not wait for long
    for line in (*logged, *shown):
        assert "signed" in line.split("signed login")[0] and "signed login" in line


async def test_a_cli_that_does_not_say_is_not_waited_for(workspace: Path, tmp_path: Path) -> None:
    """It blocks for ever; the server starts, serves, and takes it along when it ends."""
    fifo = tmp_path / "pid"
    os.mkfifo(fifo)
    env: Any = {
        "AGENT_ADAPTER": "signed_adapter:Agent",
        "AGENT_BINARY": str(program(tmp_path, f"echo $$ > {fifo}; exec sleep 1000")),
        "PYTHONPATH": f"{CHECKOUT}:{tmp_path}",
    }
    async with bridge(workspace, **env) as server:
        assert "not logged in" not in server.log
        number = int(await asyncio.to_thread(fifo.read_text))
        assert psutil.pid_exists(number)
    assert server.process.returncode == 0
    assert not psutil.pid_exists(number)
