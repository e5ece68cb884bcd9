"""The pictures of docs/evidence/terminal.md: one scripted turn in Claude Code's own interface, and
in `cab run`. `python -m tests.support.compared` makes them with the real Claude Code."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path

from pyte.screens import Char

from tests import CHECKOUT
from tests.support.cab import Cab, installed
from tests.support.cli_row import KEY
from tests.support.pictures import constant
from tests.support.real_claude_code import tool
from tests.support.real_clis import CLAUDE_CODE, Real, serving
from tests.support.svg import Frame, svg
from tests.support.terminal import Terminal

FOLDER = CHECKOUT / "docs/evidence"
REQUEST = "Test greet.py"
CLAUDE = ("terminal-claude.svg", "Claude Code: the question about a new file, and the end")
RUN = ("terminal-run.svg", "cab run: the question about a new file, and the end")
COLUMNS, ROWS = 90, 46
_PAUSE = 0.4  # seconds from a card to the key that answers it
_NEW_FILE = """from greet import greet


def test_greet():
    assert greet("Ada") == "Hello, Ada!"
"""
_BEFORE = """## Plan

1. one **test** for `greet`
2. no change of the program

| case | expected |
|---|---|
| `Ada` | Hello, Ada! |
"""
_AFTER = """**Done.** The test calls `greet` with a name:

```python
assert greet("Ada") == "Hello, Ada!"
```
"""


async def pictures(folder: Path) -> dict[str, str]:
    """By the names of their files."""
    state = str(folder / "home/.local/state/coding-agent-bridge/tests")
    Path(state).parent.mkdir(parents=True)
    async with serving(CLAUDE_CODE, folder, BRIDGE_STATE_DIR=state, BRIDGE_AUTH="auto") as real:
        _prepare(real)
        cab = Cab(real.workspace, real.home, BRIDGE_STATE_DIR=state)
        env = {**cab.env, "PATH": f"{installed(folder / 'bin')}:{cab.env['PATH']}"}
        found = {
            CLAUDE: await _claude(real),
            RUN: await _run(real, env),
        }
    return {
        name: svg([_both(*(constant(one, real.workspace) for one in frames))], [1], title)
        for (name, title), frames in found.items()
    }


def _prepare(real: Real) -> None:
    """A project, and a home in which Claude Code asks nothing else. The script of the model is in
    the memory of the user, which each conversation brings along and no interface shows."""
    (real.workspace / "greet.py").write_text('def greet(name):\n    return f"Hello, {name}!"\n')
    program, test = str(real.workspace / "greet.py"), str(real.workspace / "test_greet.py")
    steps = [
        tool("Read", "I'll look at the program first.", file_path=program),
        tool("Write", _BEFORE, file_path=test, content=_NEW_FILE),
        _AFTER,
    ]
    (real.home / ".claude").mkdir(exist_ok=True)
    (real.home / ".claude/CLAUDE.md").write_text(f"@@{json.dumps(steps)}@@\n")
    known = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
    settings = {
        "hasCompletedOnboarding": True,
        "theme": "dark",
        "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
        "projects": {str(real.workspace): known},
    }
    (real.home / ".claude.json").write_text(json.dumps(settings))


async def _claude(real: Real) -> list[Frame]:
    env = {"PATH": os.environ["PATH"], "HOME": str(real.home), "COLORTERM": "truecolor"}
    env |= CLAUDE_CODE.environment(real.model.url)
    line = [CLAUDE_CODE.path(), REQUEST, "--permission-mode", "default"]
    terminal = Terminal(line, real.workspace, env, COLUMNS, ROWS)
    try:
        return await _answered(terminal, "Do you want to create test_greet.py?", "\r")
    finally:
        terminal.close()
        (real.workspace / "test_greet.py").unlink(missing_ok=True)


async def _run(real: Real, env: dict[str, str]) -> list[Frame]:
    terminal = Terminal(["cab", "run", REQUEST], real.workspace, env, COLUMNS, ROWS)
    try:
        return await _answered(terminal, "y 1 Allow", "y")
    finally:
        terminal.close()


async def _answered(terminal: Terminal, card: str, key: str) -> list[Frame]:
    """The screens with the question and after the end."""
    await terminal.shows(card)
    await terminal.settled(1.0)
    asked = terminal.cells
    await terminal.press(key)
    await terminal.shows("with a name")
    await terminal.settled(3.0)
    return [asked, terminal.cells]


def _both(asked: Frame, ended: Frame) -> Frame:
    line = [Char("─", fg="brightblack")] * COLUMNS
    return [*asked, line, *ended]


async def _write() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        for name, text in (await pictures(Path(folder))).items():
            (FOLDER / name).write_text(text, "utf-8")


if __name__ == "__main__":
    asyncio.run(_write())
