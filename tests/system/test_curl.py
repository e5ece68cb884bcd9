"""The commands of docs/protocol.md, run by a shell with curl against a real server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests import CHECKOUT
from tests.support import programs
from tests.support.bridge_process import bridge, scripted
from tests.support.client import Json, artifact_text, context_id, state, task_id
from tests.support.pages import INSTALLED, SERVING, Command, reading

pytestmark = programs.needed("curl")
WITHIN = 60.0
PAGE = CHECKOUT / "docs/protocol.md"


async def test_the_examples_with_curl_work(tmp_path: Path) -> None:
    """A server, and a process for each call: seconds."""
    async with reading(tmp_path) as reader:
        await reader.follow(INSTALLED + SERVING)
        _, sent, _, *calls = await reader.follow(PAGE.read_text("utf-8"))
        await reader.type(Command("wait $!", ""))  # for the subscription
    told = [one["result"] for one in _events(sent)]
    assert state(told[-1]) == "input-required"
    answered, canceled, followed = (json.loads(one)["result"] for one in calls)
    assert [state(answered), state(canceled)] == ["input-required", "canceled"]
    assert task_id(answered) == task_id(canceled) == task_id(told[0])
    assert state(followed) == "input-required" and task_id(followed) != task_id(canceled)
    assert context_id(followed) == context_id(told[0])
    updates = _events((tmp_path / "home/updates").read_text("utf-8"))
    assert state(updates[-1]["result"]) == "canceled"


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
