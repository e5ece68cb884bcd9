"""The Gemini CLI on a terminal. Its model is a scripted one, which delegates to the remote agent
and is told what the agent says."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

import pexpect
import psutil
from driver import SNIPPET, TOKEN, URL, obey

CHECKOUT = Path(__file__).parents[2]
sys.path.insert(0, str(CHECKOUT))
from tests import NODE  # noqa: E402
from tests.support.cli_row import KEY  # noqa: E402
from tests.support.gemini_server import GeminiServer, Json  # noqa: E402
from tests.support.real_clis import of_gemini  # noqa: E402

GEMINI = CHECKOUT / "tests/clis/node_modules/.bin/gemini"
WITHIN = 50.0  # seconds; the test waits longer
ENDS_WITHIN = 5.0
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
END_KEY = "\x1b[F"  # Enter that follows a character within 30 ms is a new line of the prompt
ENTER = "\r"
ESC = "\x1b"


class Delegates(GeminiServer):
    """A model that delegates `prompt` once in each turn. `told`: what the tool has answered."""

    def __init__(self) -> None:
        super().__init__(self._step)
        self.turn = 0
        self.prompt = ""
        self.told = ""

    def _step(self, contents: list[Json]) -> tuple[Json, list[Json]]:
        parts = contents[-1]["parts"]
        if f"Turn {self.turn}." in parts[-1].get("text", ""):
            arguments = {"agent_name": "coder", "prompt": self.prompt}
            return {"tool": "invoke_agent", "input": arguments}, parts
        for part in parts:
            if found := part.get("functionResponse"):
                self.told = found["response"].get("output") or found["response"].get("error")
        return {"text": self.end}, parts

    @property
    def end(self) -> str:
        """What the model says at the end of the turn."""
        return f"That was turn {self.turn}."


class Conversation:
    """One session of the CLI, in a folder `project` and with a home of its own."""

    def __init__(self, model: Delegates) -> None:
        self._model = model
        home, project = Path("home").absolute(), Path("project")
        project.mkdir()
        home.mkdir()
        of_gemini(model.url, home)
        (home / ".gemini/agents").mkdir()
        snippet = SNIPPET.replace("http://127.0.0.1:41242", URL)
        (home / ".gemini/agents/coder.md").write_text(snippet)
        env = {
            "PATH": f"{NODE}:{os.environ['PATH']}",
            "HOME": str(home),
            "TERM": "xterm-256color",
            "BRIDGE_TOKEN": TOKEN,
            "GEMINI_API_KEY": KEY,
            "GEMINI_CLI_NO_RELAUNCH": "true",  # one process, which close() ends
            "GOOGLE_GEMINI_BASE_URL": model.url,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        }
        argv = [str(GEMINI), "--yolo", "--model=gemini-2.5-flash"]
        screen = {"dimensions": (50, 150), "encoding": "utf-8", "timeout": WITHIN}
        self._cli = pexpect.spawn(argv[0], argv[1:], cwd=project, env=env, **screen)

    async def say(self, prompt: str) -> str:
        """What its model is told. A cancelled call presses Esc."""
        model = self._model
        if not model.turn:
            await self._shows("Type your message")
        model.turn += 1
        model.prompt, model.told = prompt, ""
        self._cli.send(f"Turn {model.turn}.")
        await self._shows(f"Turn {model.turn}.")
        self._cli.send(END_KEY + ENTER)
        try:
            await self._shows(model.end)
        except asyncio.CancelledError:
            self._cli.send(ESC)
            await self._shows("Request cancelled.")
            raise
        return model.told

    async def _shows(self, text: str) -> None:
        await self._cli.expect_exact(text, async_=True)

    def close(self) -> None:
        """End the CLI and the programs that it has started."""
        started = psutil.Process().children(recursive=True)
        self._cli.close(force=True)
        for process in started:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(started, timeout=ENDS_WITHIN)


async def main() -> None:
    ctypes.CDLL(None).prctl(SUBREAPER, 1)  # orphans of the CLI stay below this program
    async with Delegates() as model:
        conversation = Conversation(model)
        try:
            await obey(conversation.say)
        finally:
            conversation.close()


asyncio.run(main())
