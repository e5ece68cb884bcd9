"""The commands of docs/protocol.md, run by a shell with curl against a real server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests import CHECKOUT
from tests.support import programs
from tests.support.bridge_process import BridgeProcess, bridge, scripted
from tests.support.client import Json, artifact_text, context_id, state, task_id

pytestmark = programs.needed("curl")
WITHIN = 60.0
PAGE = (CHECKOUT / "docs/protocol.md").read_text("utf-8")
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


PARTS = ('{"kind":"text","text":"PROMPT"}', '{"type":"text","content":"PROMPT"}')
"""The parts of small clients of 0.3, which send nothing else in a message."""


async def curl(*words: str) -> str:
    """The output of `curl`, which must end with a status of success."""
    process = await asyncio.create_subprocess_exec(
        *("curl", "-sSfN", "--noproxy", "*", *words), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(WITHIN):
        output, _ = await process.communicate()
    assert process.returncode == 0, words
    return output.decode()


async def test_small_clients_of_0_3_need_no_more_than_parts(workspace: Path) -> None:
    """Takes seconds, for a process of curl for each request."""
    json_body = ("-H", "Content-Type: application/json", "-d")
    async with bridge(workspace, **scripted(workspace), BRIDGE_AUTH="none") as server:
        for part in PARTS:
            message = f'{{"message":{{"parts":[{part.replace("PROMPT", "text hello")}]}}}}'
            asks = message.replace("text hello", "ask q Who?")
            rpc = '{"jsonrpc":"2.0","id":1,"method":"message/METHOD","params":PARAMS}'

            address, body = f"{server.url}/a2a/jsonrpc", rpc.replace("PARAMS", message)
            sent = json.loads(await curl(address, *json_body, body.replace("METHOD", "send")))
            assert state(sent["result"]) == "completed"
            assert artifact_text(sent["result"]) == "hello"
            lines = await curl(address, *json_body, body.replace("METHOD", "stream"))
            assert _events(lines)[-1]["result"]["status"]["state"] == "completed"

            rest = f"{server.url}/a2a/rest"  # without A2A-Version
            streamed = _events(await curl(f"{rest}/message:stream", *json_body, message))
            assert streamed[-1]["status"]["state"] == "completed"
            asked = json.loads(await curl(f"{rest}/message:send", *json_body, asks))
            got = json.loads(await curl(f"{rest}/tasks/{asked['id']}"))
            assert (got["kind"], got["status"]["state"]) == ("task", "input-required")
            ended = json.loads(await curl("-X", "POST", f"{rest}/tasks/{asked['id']}:cancel"))
            assert ended["status"]["state"] == "canceled"


def _events(output: str) -> list[Json]:
    lines = output.splitlines()
    return [json.loads(line[5:]) for line in lines if line.startswith("data:")]
