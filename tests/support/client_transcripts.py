"""The transcripts of the client in the documents: each command runs against a real server that
plays a recording of Claude Code. `python -m tests.support.client_transcripts` writes them."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests import CHECKOUT
from tests.support.bridge_process import BridgeProcess, bridge
from tests.support.cab import COMMAND, Cab
from tests.support.terminal import Terminal

DOCUMENTS = (CHECKOUT / "docs/cli.md", CHECKOUT / "docs/evidence/cli-transcripts.md")
"""In the order in which one reader reads them."""
FOLDER, STATE, ADDRESS = (
    "/work/hello",
    "~/.local/state/coding-agent-bridge/41242",
    "http://127.0.0.1:41242",
)
_BLOCK = re.compile(r"(?<=```console\n)\$ cab .*?(?=```\n)", re.DOTALL)
_ID = re.compile(
    r"(?P<before>(?:Context|--context-id|--question|toolCallId|questionId|contextId|attach)?"
    r"[\": ]*)(?P<id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|toolu_[0-9a-f]{32}"
    r"|[0-9a-f]{8}-\d{1,3}\b)"  # a question: a part of the task's id, and a number
)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
_WIDTHS = (8, 9, 3, 6, 11, 7, 1)  # of the table of tasks
_ROW = re.compile(r"(?m)^(?:[0-9a-f]{8}|ID)  +\w.*")
_SECONDS = re.compile(r"(?m) · \d+\.\d s$")  # of a tool
_TOOK = re.compile(r"(?m)^([✓✗·] [\w ]+) · \d+:\d\d(?= ·|$)")  # of a task
_KINDS = {"Context": "context", "--context-id": "context", "contextId": "context"}
_KINDS |= {"attach": "context", "--question": "question", "questionId": "question"}
_KINDS |= {"toolCallId": "call"}
# At a terminal: what a person sees before each key.
_KEYS = {
    "run": [("│ Claude Code asks to use Edit", "y"), ("│ Claude Code asks to use Bash", "y")],
    "chat": [("│ Claude Code asks to use Edit", "n"), ("Ready", "\x04")],
    "attach": [("Ready", "Thank you\r"), ("y 1 Allow", "q")],
}
_PAUSE = 0.4  # seconds from a card to the key that answers it
_ROWS = 60


class Reader:
    """A reader of the document, who types its commands. `names` maps ids to their short names."""

    def __init__(self, cab: Cab, server: BridgeProcess) -> None:
        self._cab = cab
        self._places = [
            (str(cab.cwd), FOLDER),
            (str(server.token_file.parent), STATE),
            (server.url, ADDRESS),
            (str(cab.home), "~"),
        ]
        self._names: dict[str, str] = {}

    async def transcript(self, block: str) -> str:
        """The commands of a block with their output."""
        lines = []
        for command in re.findall(r"(?m)^\$ (cab .*)$", block):
            output = await self._run(command)
            lines.append(f"$ {command}\n{output}".rstrip("\n") + "\n")
        return "".join(lines)

    async def _run(self, command: str) -> str:
        line, _, file = command.partition(" > ")
        for identity, name in self._names.items():
            line = re.sub(rf"\b{name}\b", identity, line)
        for place, shown in self._places:
            line = line.replace(shown, place)
        words = shlex.split(line, comments=True)[1:]
        if words[0] in _KEYS:
            return self._shown(await self._type(words))
        done = await self._cab.run(*words, stdin=b"secret\n" if "--token-stdin" in words else None)
        if file:
            (self._cab.cwd / file).write_bytes(done.out)
            return ""
        joint = "" if done.text.endswith("\n") or not done.err else "\n"
        return self._shown(done.text + joint + done.err)

    async def _type(self, words: list[str]) -> str:
        terminal = Terminal((*COMMAND, *words), self._cab.cwd, self._cab.env, 100, _ROWS)
        try:
            for card, key in _KEYS[words[0]]:
                await terminal.answered(card, key, _PAUSE)
            await terminal.ended()
        finally:
            terminal.close()
        return terminal.text

    def _shown(self, output: str) -> str:
        """The output with short names for ids, and without the places of this machine."""
        for place, shown in self._places:
            output = output.replace(place, shown)
        shown = _ID.sub(lambda found: found["before"] + self._name(found), output)
        shown = _TIME.sub("2026-11-21T22:55:03.012Z", shown)
        shown = _TOOK.sub(r"\1", _SECONDS.sub("", shown))
        shown = _ROW.sub(self._row, shown)
        return "\n".join(line.rstrip() for line in shown.split("\n"))

    def _row(self, found: re.Match[str]) -> str:
        """A row of the table of tasks with the names of the page, in columns of the same width."""
        cells = re.split(r" {2,}", found[0])
        if cells[0] != "ID":
            identity, state, _, agent, _, *others = cells
            names = (name for known, name in self._names.items() if known.startswith(identity))
            name = next(names, None) or self._names.setdefault(identity, self._next("task"))
            cost = others[:-1] or [""]
            cells = [name, state, "2s", agent, FOLDER, *cost, others[-1]]
        return "  ".join(f"{cell:{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))

    def _name(self, found: re.Match[str]) -> str:
        identity = found["id"]
        if identity[:8] in self._names:  # a row has shown its beginning
            self._names[identity] = self._names.pop(identity[:8])
        if identity not in self._names:
            kind = _KINDS.get(re.sub(r"[\": ]", "", found["before"]), "task")
            self._names[identity] = self._next(kind)
        return self._names[identity]

    def _next(self, kind: str) -> str:
        number = sum(name.startswith(f"{kind}-") for name in self._names.values()) + 1
        return f"{kind}-{number}"


@asynccontextmanager
async def reading(folder: Path) -> AsyncIterator[Reader]:
    """A reader with a running server in `folder`. The program is on PATH, so that printed commands
    have its short name."""
    workspace = folder / "hello"
    workspace.mkdir()
    state = str(folder / "state")
    settings: dict[str, Any] = {
        "AGENT_ADAPTER": "replay",
        "BRIDGE_AUTH": "auto",
        "BRIDGE_STATE_DIR": state,
    }
    settings["BRIDGE_REPLAY_SPEED"] = "50"
    async with bridge(workspace, **settings) as server:
        installed = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        cab = Cab(workspace, folder / "home", BRIDGE_STATE_DIR=state, PATH=installed)
        yield Reader(cab, server)


async def with_transcripts(page: str, reader: Reader) -> str:
    """`page` with today's output of the commands below the heading *Transcripts*."""
    for block in _BLOCK.findall(page.partition("\n## Transcripts\n")[2]):
        page = page.replace(block, await reader.transcript(block))
    return page


async def _write() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with reading(Path(folder)) as reader:
            for document in DOCUMENTS:
                text = await with_transcripts(document.read_text("utf-8"), reader)
                document.write_text(text, "utf-8")


if __name__ == "__main__":
    asyncio.run(_write())
