"""The picture of README.md: `run` on a terminal, with a server that plays the recording of the
package. `python -m tests.support.pictures` makes it again."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyte.screens import Char

from bridge.server.recording import EXAMPLE
from tests import CHECKOUT
from tests.support.bridge_process import bridge
from tests.support.cab import Cab, installed
from tests.support.svg import Frame, svg
from tests.support.terminal import Terminal

PICTURE = CHECKOUT / "docs/run.svg"
TITLE = "cab run: an agent asks before it edits a file and runs a command, and one key allows it"
REQUEST = "Add a --shout flag to greet.py"
_FOLDER = "/home/ada/hello"
COLUMNS, ROWS = 100, 36
_SECONDS = (4, 3, 6)  # of each frame
# What another run changes, and its text in the picture.
_VARYING = {
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}": "5f0c2a52-8d1e-4b7a-9f63-1c0e7b9d4a16",
    r"(?<= at )\d\d:\d\d": "16:30",
    r"(?<= )\d+:\d\d(?= · |$)": "0:04",
    r" · \d+\.\d s(?= *$)": "",  # of a tool, if it took a tenth of a second
}


async def picture() -> str:
    """The picture, made in a folder with a short name: the lines of a terminal have a limit."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        return svg(await _shown(Path(folder)), _SECONDS, TITLE)


async def _shown(folder: Path) -> list[Frame]:
    workspace = folder / "hello"
    workspace.mkdir()
    recording = folder / "recording.jsonl"
    recording.write_text(EXAMPLE.read_text("utf-8").replace("/workspace/hello", str(workspace)))
    state = str(folder / "state")
    settings: dict[str, Any] = {
        "AGENT_ADAPTER": "replay",
        "BRIDGE_AUTH": "auto",
        "BRIDGE_STATE_DIR": state,
        "BRIDGE_REPLAY_FILE": str(recording),
        "BRIDGE_REPLAY_SPEED": "0",
    }
    async with bridge(workspace, **settings):
        env = {**Cab(workspace, folder / "home", BRIDGE_STATE_DIR=state).env, "PS1": "$ "}
        env["PATH"] = f"{installed(folder / 'bin')}:{os.environ['PATH']}"
        return await _frames(workspace, env)


async def _frames(workspace: Path, env: dict[str, str]) -> list[Frame]:
    shell = ("bash", "--norc", "--noprofile", "--noediting")
    terminal = Terminal(shell, workspace, env, COLUMNS, ROWS)
    frames: list[Frame] = []
    try:
        await terminal.ends("$")
        await terminal.press(f'cab run "{REQUEST}"\n')
        for subject in (f"Edit: {workspace}/greet.py", "Bash: python3 greet.py --shout Ada"):
            await terminal.shows("y 1 Allow")
            await terminal.ends(f"· Claude Code asks to use {subject}")  # the footer is complete
            frames.append(constant(terminal.cells, workspace))
            await terminal.allows(subject)
        await terminal.ends("TEXT\n$")
        frames.append(constant(terminal.cells, workspace))
    finally:
        terminal.close()
    return frames


def constant(frame: Frame, workspace: Path) -> Frame:
    """The cells with the same directory, ids and times in each run."""
    varying = {re.escape(str(workspace)): _FOLDER, **_VARYING}
    return [_constant(list(row), varying) for row in frame]


def _constant(row: list[Char], varying: Mapping[str, str]) -> list[Char]:
    for pattern, shown in varying.items():
        text = "".join(cell.data or " " for cell in row)
        for found in reversed([*re.finditer(pattern, text)]):
            look = row[found.start()]
            row[found.start() : found.end()] = [look._replace(data=one) for one in shown]
    return row


if __name__ == "__main__":
    PICTURE.write_text(asyncio.run(picture()), "utf-8")
