"""The real Claude Code on a terminal as an MCP client: a task in the background, its question as a
form, and its result as a notification. The bridge runs the real Codex; both have a scripted
model."""

# ruff: noqa: RUF001 - the signs of the terminal
from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pexpect
import pyte
import pytest

from tests.support.cli_row import KEY
from tests.support.client import Json
from tests.support.mcp_clients import MCP_CLIENTS, Machine
from tests.support.real_claude_code import script
from tests.support.real_clis import CLAUDE_CODE, CODEX, Real, serving

pytestmark = [pytest.mark.real, pytest.mark.timeout(200)]
WITHIN = 60.0  # seconds that each wait may take
AGAIN = 3.0  # seconds after which a key that had no effect is pressed again
STARTS = 5  # of Claude Code, which uses an older protocol if a server answers after 3 s
ROWS, COLUMNS = 45, 140
KEYS = {"down": "\x1b[B", "right": "\x1b[C", "enter": "\r", "escape": "\x1b", "y": "y"}
CLIENT = MCP_CLIENTS[0]
ERA = re.compile(r'"protocolEra":"(\w+)"')
DISCOVER = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {}}) + "\n"


class Terminal:
    """Claude Code on a terminal with one prompt. Its requests go to a scripted model."""

    def __init__(self, machine: Machine, env: dict[str, str], prompt: str) -> None:
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._process = pexpect.spawn(
            CLAUDE_CODE.path(),
            [prompt, "--debug", "--allowedTools", "mcp__bridge", "Bash"],
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
        found = await within(WITHIN, lambda: all(one in self.text for one in wanted))
        assert found, f"no {wanted} on the screen:\n{self.text}"

    async def press(self, *steps: tuple[str, str]) -> None:
        """Press keys, each until the screen shows the text after it. A form that is just being
        drawn drops a key now and then."""
        for key, wanted in steps:
            for _ in range(int(WITHIN / AGAIN)):
                self._process.send(KEYS[key])
                if await within(AGAIN, lambda: wanted in self.text):  # noqa: B023
                    break
            await self.shows(wanted)

    def close(self) -> None:
        self._process.close(force=True)


async def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether the condition holds in time."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:  # noqa: ASYNC110 - a screen has no events
        await asyncio.sleep(0.1)
    return condition()


async def protocol(home: Path) -> str:
    """The era of the protocol that Claude Code has negotiated, from its debug log."""
    found: list[str] = []

    def logged() -> bool:
        logs = (home / ".claude/debug").glob("*.txt")
        found[:] = [era for one in logs for era in ERA.findall(one.read_text("utf-8"))]
        return bool(found)

    assert await within(WITHIN, logged), "Claude Code has connected to no MCP server"
    return found[0]


async def started(machine: Machine, env: dict[str, str], prompt: str) -> Terminal:
    """Claude Code after it has connected with the newest protocol, which has tasks."""
    for _ in range(STARTS):
        claude = Terminal(machine, env, prompt)
        if await protocol(machine.home) == "modern":
            return claude
        claude.close()
        shutil.rmtree(machine.home / ".claude/debug")
    raise AssertionError(f"Claude Code has used the older protocol {STARTS} times")


@asynccontextmanager
async def terminal(
    folder: Path, *steps: object, **settings: str
) -> AsyncIterator[tuple[Terminal, Real, list[Json]]]:
    """A terminal, the bridge, and the requests of the model. `steps` get the tools of Codex."""
    state = folder / "home/.local/state/coding-agent-bridge/tests"
    state.parent.mkdir(parents=True)
    async with (
        serving(CODEX, folder, BRIDGE_STATE_DIR=str(state), **settings) as real,
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
        # The server loads its MCP library for the first client.
        assert (await machine.run([str(machine.program), "mcp"], {}, DISCOVER))[0] == 0
        found = await started(machine, env, script("please", *steps))  # type: ignore[arg-type]
        try:
            yield found, real, model.requests
        finally:
            found.close()


def asks(answer: str) -> Json:
    """A call that delegates a task whose agent asks for a permission."""
    assert CODEX.run_outside
    prompt = script("ask", CODEX.run_outside("touch made"), answer)
    return CLIENT.tool("delegate", prompt=prompt)


@pytest.mark.soak
async def test_a_form_survives_a_crash_and_the_result_wakes_the_model(tmp_path: Path) -> None:
    """Two CLIs are started, and the server twice: about ten seconds."""
    steps = (CLIENT.tool("list_agents"), asks("the inner answer"), "I wait now", "I was woken")
    async with terminal(tmp_path, *steps) as (claude, real, requests):
        await claude.shows("requests your input", "touch made", "decision", "● I wait now")
        await real.kill()
        await real.restart()
        await claude.shows("❯ * decision")
        await claude.press(
            ("right", "❯ ◯ Deny"),
            ("down", "❯ ◯ Allow"),
            ("enter", "✔ decision: Allow"),
            ("down", "❯ Accept"),
            ("enter", "● I was woken"),
        )
        woken = json.dumps(requests[-1]["messages"])
        assert "the inner answer" in woken.split("I wait now")[-1]
        assert (real.workspace / "made").exists()


@pytest.mark.soak
async def test_a_quick_form_takes_three_keys_and_enter_alone_decides_nothing(
    tmp_path: Path,
) -> None:
    steps = (asks("the end"), "I wait now", "I was woken")
    async with terminal(tmp_path, *steps, BRIDGE_MCP_FORMS="quick") as (claude, real, _):
        await claude.shows("● I wait now", "❯ * y, n or a")
        await claude.press(("enter", "❯ Accept"), ("enter", "This field is required"))
        assert not (real.workspace / "made").exists()
        await claude.press(
            ("y", "✔ y, n or a: y"), ("enter", "❯ Accept"), ("enter", "● I was woken")
        )
        assert (real.workspace / "made").exists()


@pytest.mark.soak
async def test_a_declined_form_rejects(tmp_path: Path) -> None:
    async with terminal(tmp_path, asks("the end"), "I wait now", "I was woken") as found:
        claude, real, _ = found
        await claude.shows("● I wait now")  # an earlier answer would be the result of the call
        await claude.shows("❯ * decision")
        await claude.press(
            ("down", "Type something"),
            ("down", "❯ Accept"),
            ("right", "❯ Decline"),
            ("enter", "● I was woken"),
        )
        assert not (real.workspace / "made").exists()
