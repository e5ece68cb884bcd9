"""The real Claude Code on a terminal as an MCP client: a task in the background, its question as a
form, and its result as a notification. The bridge runs the real Codex; both have a scripted
model."""

# ruff: noqa: RUF001 - the signs of the terminal
from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pexpect
import pyte
import pytest

from tests.support.client import Json
from tests.support.mcp_clients import MCP_CLIENTS, Machine
from tests.support.real_claude_code import script
from tests.support.real_clis import CLAUDE_CODE, CODEX, KEY, Real, serving

pytestmark = [pytest.mark.real, pytest.mark.timeout(200)]
WITHIN = 60.0  # seconds that each wait may take
ROWS, COLUMNS = 45, 140
KEYS = {"down": "\x1b[B", "right": "\x1b[C", "enter": "\r", "escape": "\x1b"}
CLIENT = MCP_CLIENTS[0]


class Terminal:
    """Claude Code on a terminal with one prompt. Its requests go to a scripted model."""

    def __init__(self, machine: Machine, env: dict[str, str], prompt: str) -> None:
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._process = pexpect.spawn(
            CLAUDE_CODE.path(),
            [prompt, "--allowedTools", "mcp__bridge", "Bash"],
            cwd=str(machine.workspace),
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(machine.home),
                "TERM": "xterm-256color",
                **env,
            },
            dimensions=(ROWS, COLUMNS),
        )

    @property
    def text(self) -> str:
        while True:
            try:
                self._stream.feed(self._process.read_nonblocking(2**16, 0))
            except (pexpect.TIMEOUT, pexpect.EOF):
                break
        return "\n".join(line.rstrip() for line in self._screen.display)

    async def shows(self, *wanted: str) -> None:
        try:
            async with asyncio.timeout(WITHIN):
                while not all(one in self.text for one in wanted):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"no {wanted} on the screen:\n{self.text}") from None

    async def press(self, *steps: tuple[str, str]) -> None:
        """Press keys, each when the screen shows the text before it."""
        for shown, key in steps:
            await self.shows(shown)
            self._process.send(KEYS[key])

    def close(self) -> None:
        self._process.close(force=True)


@asynccontextmanager
async def terminal(
    folder: Path, *steps: object
) -> AsyncIterator[tuple[Terminal, Real, list[Json]]]:
    """A terminal, the bridge, and the requests of the model. `steps` get the tools of Codex."""
    state = folder / "home/.local/state/coding-agent-bridge/tests"
    state.parent.mkdir(parents=True)
    async with (
        serving(CODEX, folder, BRIDGE_STATE_DIR=str(state)) as real,
        CLAUDE_CODE.model() as model,
    ):
        machine = Machine(real.home, real.workspace)
        env = CLAUDE_CODE.environment(model.url)
        added = CLIENT.add(machine, await machine.printed(CLIENT.name))
        assert added
        assert (await machine.run(added, env))[0] == 0
        known = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
        machine.merge(
            ".claude.json",
            {
                "hasCompletedOnboarding": True,
                "theme": "dark",
                "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
                "projects": {str(machine.workspace): known},
            },
        )
        found = Terminal(machine, env, script("please", *steps))  # type: ignore[arg-type]
        try:
            yield found, real, model.requests
        finally:
            found.close()


def asks(answer: str) -> Json:
    """A call that delegates a task whose agent asks for a permission."""
    assert CODEX.run_outside
    prompt = script("ask", CODEX.run_outside("touch made"), answer)
    return CLIENT.tool("delegate", prompt=prompt)


@pytest.mark.soak  # on a busy machine the notification sometimes comes too late for the screen
async def test_a_form_survives_a_crash_and_the_result_wakes_the_model(tmp_path: Path) -> None:
    steps = (CLIENT.tool("list_agents"), asks("the inner answer"), "I wait now", "I was woken")
    async with terminal(tmp_path, *steps) as (claude, real, requests):
        await claude.shows("requests your input", "touch made", "decision", "● I wait now")
        await real.kill()
        await real.restart()
        await claude.press(
            ("❯ * decision", "right"),
            ("❯ ◯ Deny", "down"),
            ("❯ ◯ Allow", "enter"),
            ("✔ decision: Allow", "down"),
            ("❯ Accept", "enter"),
        )
        await claude.shows("● I was woken")
        woken = json.dumps(requests[-1]["messages"])
        assert "the inner answer" in woken.split("I wait now")[-1]
        assert (real.workspace / "made").exists()


@pytest.mark.soak
async def test_a_declined_form_rejects(tmp_path: Path) -> None:
    async with terminal(tmp_path, asks("the end"), "I wait now", "I was woken") as found:
        claude, real, _ = found
        await claude.press(
            ("❯ * decision", "down"), ("Type something", "down"), ("❯ Accept", "right")
        )
        await claude.press(("❯ Decline", "enter"))
        await claude.shows("● I was woken")
        assert not (real.workspace / "made").exists()
