"""The official SDKs for Python and JS, 1.x and 0.3, as clients of the real server and Claude Code.

Each scenario is a program of its own (tests/clients), in the SDK's own environment.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.bridge_process import CHECKOUT
from tests.real_claude_code import RealClaudeCode, bash, claude_code, script, write

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]
SDKS = ["python-v1", "python-v1-rest", "python-v03", "js-v1", "js-v1-rest", "js-v03"]
each_sdk = pytest.mark.parametrize("sdk", SDKS)

RUNS_WITHIN = 45.0  # seconds; the programs give up after 30
SLOW = {"text": "word " * 400, "chunks": 400, "delay": 0.05}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RealClaudeCode]:
    folder = tmp_path_factory.mktemp("claude")
    async with claude_code(folder, BRIDGE_AUTH="auto") as server:
        server.http.headers.update(server.server.credentials)
        yield server


def command(sdk: str) -> tuple[Path | str, Path]:
    """Interpreter and program. The folder of an SDK is made by scripts/install."""
    language, version = sdk.split("-")[:2]
    if language == "js":
        installed = CHECKOUT / f"tests/clients/js-{version}/node_modules/@a2a-js/sdk"
        found: tuple[Path | str, Path] = "node", CHECKOUT / f"tests/clients/js-{version}/driver.mjs"
    else:
        installed = CHECKOUT / f".venvs/a2a-sdk-{version}/bin/python"
        found = installed, CHECKOUT / f"tests/clients/sdk_{version}.py"
    assert installed.exists(), f"{installed} is missing: run scripts/install"
    return found


async def play(
    real: RealClaudeCode, sdk: str, scenario: str, prompt: str, answer: str = "allow"
) -> Any:
    """What the SDK's client saw. Its environment has no proxies: the server is on loopback."""
    process = await asyncio.create_subprocess_exec(
        *command(sdk),
        real.server.url,
        scenario,
        env={
            "PATH": os.environ["PATH"],
            "A2A_PROMPT": prompt,
            "A2A_TOKEN": real.server.credentials["Authorization"].removeprefix("Bearer "),
            "A2A_ANSWER": answer,
            "A2A_TRANSPORT": "HTTP+JSON" if sdk.endswith("-rest") else "JSONRPC",
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(RUNS_WITHIN):
            output, problems = await process.communicate()
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode == 0, problems.decode()
    return json.loads(output)


@each_sdk
async def test_send(real: RealClaudeCode, sdk: str) -> None:
    text = 'Say "é", \u2028 and 🧑‍💻.\n'
    seen = await play(real, sdk, "send", script("Hello.", text))
    assert (seen["state"], seen["text"]) == ("completed", text)
    assert seen["taskId"]
    assert seen["contextId"]


@each_sdk
async def test_stream(real: RealClaudeCode, sdk: str) -> None:
    text = " ".join(map(str, range(300)))
    step = {"text": text, "chunks": 100, "delay": 0.002}
    seen = await play(real, sdk, "stream", script("Talk.", bash("echo hi"), step))
    assert (seen["state"], seen["text"]) == ("completed", text)
    kinds = seen["kinds"]
    assert kinds[0] == "task"
    assert kinds[-1] == "status:completed"
    assert kinds.count("status:completed") == 1
    assert kinds.count("artifact") > 5
    assert kinds.index("status:working") < kinds.index("artifact")


@each_sdk
async def test_get(real: RealClaudeCode, sdk: str) -> None:
    seen = await play(real, sdk, "get", script("Look.", bash("echo hi"), "Seen."))
    assert (seen["state"], seen["text"]) == ("completed", "Seen.")
    assert seen["historyRoles"] == ["user", "agent", "agent"]
    assert seen["historyLength0"] == 0


@each_sdk
async def test_resubscribe(real: RealClaudeCode, sdk: str) -> None:
    words = {"text": "word " * 50, "chunks": 50, "delay": 0.03}
    seen = await play(real, sdk, "resubscribe", script("Talk.", words))
    assert seen["firstKind"] == "task"
    assert (seen["state"], seen["text"]) == ("completed", "word " * 50)


@pytest.mark.parametrize("answer", ["allow", "deny"])
@each_sdk
async def test_question(real: RealClaudeCode, sdk: str, answer: str) -> None:
    path = real.workspace / f"{sdk}-{answer}.txt"
    prompt = script("Write it.", write(path), "Done.")
    seen = await play(real, sdk, "question", prompt, answer)
    assert seen["question"].startswith(f"Claude Code asks to use Write: {path}")
    assert seen["options"] == ["Allow", "Always allow in this session", "Deny"]
    assert (seen["state"], seen["text"]) == ("completed", "Done.")
    assert path.exists() is (answer == "allow")


@each_sdk
async def test_cancel(real: RealClaudeCode, sdk: str) -> None:
    seen = await play(real, sdk, "cancel", script("Talk.", SLOW))
    assert seen["state"] == seen["streamState"] == "canceled"
    assert seen["secondCancel"] == "TaskNotCancelableError"


@each_sdk
async def test_errors(real: RealClaudeCode, sdk: str) -> None:
    seen = await play(real, sdk, "errors", script("Hello.", "Hello."))
    assert seen == {"unknownTask": "TaskNotFoundError", "finishedTask": "UnsupportedOperationError"}


async def test_a_silent_task_outlasts_the_clients_own_time_limit(
    real: RealClaudeCode,
) -> None:
    step = {"text": "At last.", "ttfb": 6}  # the Python SDKs' clients give up after 5 s of silence
    sdks = ("python-v1", "python-v1-rest", "python-v03")
    plays = [play(real, sdk, "stream", script("Wait.", step)) for sdk in sdks]
    for seen in await asyncio.gather(*plays):
        assert (seen["state"], seen["text"]) == ("completed", "At last.")
