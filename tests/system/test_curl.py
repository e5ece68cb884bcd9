"""The commands of docs/curl.md, run by a shell with curl against a real server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests import CHECKOUT
from tests.support import programs
from tests.support.bridge_process import BridgeProcess, bridge, scripted
from tests.support.client import Json, context_id, state, task_id

pytestmark = programs.needed("curl")
WITHIN = 60.0
PAGE = (CHECKOUT / "docs/curl.md").read_text("utf-8")
PROMPTS = {"Remove the old logs": "ask q Which?", "And the older ones": "ask q And?"}


def block(name: str) -> str:
    found = PAGE.partition(f"<!-- {name} -->\n```sh\n")[2].partition("```")[0]
    for prompt, script in PROMPTS.items():
        found = found.replace(prompt, script)
    return found


class Shell:
    """What a reader of the page types, with the address, the token and the ids of their own."""

    def __init__(self, server: BridgeProcess) -> None:
        self.server = server
        self.task = self.context = ""

    async def begin(self, name: str) -> asyncio.subprocess.Process:
        definitions = PAGE.partition("```sh\n")[2].partition("```")[0]
        own = (
            f"BRIDGE={self.server.url}/a2a/jsonrpc TOKEN={self.server.token_file} "
            f"TASK={self.task} CONTEXT={self.context}\n"
        )
        return await asyncio.create_subprocess_exec(
            "sh", "-euc", definitions + own + block(name), stdout=asyncio.subprocess.PIPE
        )

    async def run(self, name: str) -> str:
        process = await self.begin(name)
        async with asyncio.timeout(WITHIN):
            output, _ = await process.communicate()
        assert process.returncode == 0
        return output.decode()

    async def call(self, name: str) -> Json:
        answer: Json = json.loads(await self.run(name))
        assert "error" not in answer, answer
        result: Json = answer["result"]
        return result

    async def stream(self, name: str) -> list[Json]:
        lines = (await self.run(name)).splitlines()
        return [json.loads(line[5:])["result"] for line in lines if line.startswith("data:")]


async def test_the_examples_with_curl_work(workspace: Path) -> None:
    """Five calls, each by a process of its own."""
    env: Any = {**scripted(workspace), "BRIDGE_AUTH": "auto"}
    async with bridge(workspace, **env) as server:
        shell = Shell(server)
        told = await shell.stream("send")
        assert state(told[-1]) == "input-required"
        shell.task, shell.context = task_id(told[0]), context_id(told[0])
        subscribed = await shell.begin("subscribe")
        assert subscribed.stdout
        async with asyncio.timeout(WITHIN):
            while shell.task not in (await subscribed.stdout.readline()).decode():
                assert not subscribed.stdout.at_eof()
        answered = await shell.call("answer")
        assert state(answered) == "completed"
        async with asyncio.timeout(WITHIN):
            rest, _ = await subscribed.communicate()
        assert b"TASK_STATE_COMPLETED" in rest
        followed = await shell.call("follow-up")
        assert (state(followed), context_id(followed)) == ("input-required", shell.context)
        shell.task = task_id(followed)
        assert state(await shell.call("cancel")) == "canceled"
