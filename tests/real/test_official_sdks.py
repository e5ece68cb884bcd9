"""The official SDKs for Python and JS, 1.x and 0.3, as clients of the real server and Claude Code.

Each scenario is a program of its own (tests/clients), in the SDK's own environment, and a process
of Claude Code: two seconds. Each run of the tests plays a stream and a question with all SDKs, and
all scenarios with two SDKs that cover both versions. The soak tier has the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.support import official_sdks
from tests.support.official_sdks import SDKS
from tests.support.real_claude_code import RealClaudeCode, bash, claude_code, script, write

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]
COMPLETE = ("js-v1", "js-v03")  # SDKs with all scenarios in each run: they start quickly
each_sdk = pytest.mark.parametrize("sdk", SDKS)
some_sdks = pytest.mark.parametrize(
    "sdk", [pytest.param(sdk, marks=[pytest.mark.soak] * (sdk not in COMPLETE)) for sdk in SDKS]
)

SLOW = {"text": "word " * 400, "chunks": 400, "delay": 0.05}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RealClaudeCode]:
    folder = tmp_path_factory.mktemp("claude")
    async with claude_code(folder, BRIDGE_AUTH="auto") as server:
        server.http.headers.update(server.server.credentials)
        yield server


async def play(
    real: RealClaudeCode, sdk: str, scenario: str, prompt: str, answer: str = "allow"
) -> Any:
    token = real.server.credentials["Authorization"].removeprefix("Bearer ")
    return await official_sdks.play(real.server.url, sdk, scenario, prompt, answer, token)


@some_sdks
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


@some_sdks
async def test_get(real: RealClaudeCode, sdk: str) -> None:
    seen = await play(real, sdk, "get", script("Look.", bash("echo hi"), "Seen."))
    assert (seen["state"], seen["text"]) == ("completed", "Seen.")
    assert seen["historyRoles"] == ["user", "agent", "agent", "agent"]
    assert seen["historyLength0"] == 0


@some_sdks
async def test_resubscribe(real: RealClaudeCode, sdk: str) -> None:
    words = {"text": "word " * 50, "chunks": 50, "delay": 0.03}
    seen = await play(real, sdk, "resubscribe", script("Talk.", words))
    assert seen["firstKind"] == "task"
    assert (seen["state"], seen["text"]) == ("completed", "word " * 50)


@pytest.mark.parametrize("answer", ["allow", pytest.param("deny", marks=pytest.mark.soak)])
@each_sdk
async def test_question(real: RealClaudeCode, sdk: str, answer: str) -> None:
    path = real.workspace / f"{sdk}-{answer}.txt"
    prompt = script("Write it.", write(path), "Done.")
    seen = await play(real, sdk, "question", prompt, answer)
    assert seen["question"].startswith(f"Claude Code asks to use Write: {path}")
    assert seen["options"] == ["Allow", "Always allow in this session", "Deny"]
    assert (seen["state"], seen["text"]) == ("completed", "Done.")
    assert path.exists() is (answer == "allow")


@some_sdks
async def test_cancel(real: RealClaudeCode, sdk: str) -> None:
    seen = await play(real, sdk, "cancel", script("Talk.", SLOW))
    assert seen["state"] == seen["streamState"] == "canceled"
    assert seen["secondCancel"] == "TaskNotCancelableError"


@some_sdks
async def test_errors(real: RealClaudeCode, sdk: str) -> None:
    seen = await play(real, sdk, "errors", script("Hello.", "Hello."))
    assert seen == {"unknownTask": "TaskNotFoundError", "finishedTask": "UnsupportedOperationError"}


@pytest.mark.soak
async def test_a_silent_task_outlasts_the_clients_own_time_limit(
    real: RealClaudeCode,
) -> None:
    step = {"text": "At last.", "ttfb": 6}  # the Python SDKs' clients give up after 5 s of silence
    sdks = ("python-v1", "python-v1-rest", "python-v03")
    plays = [play(real, sdk, "stream", script("Wait.", step)) for sdk in sdks]
    for seen in await asyncio.gather(*plays):
        assert (seen["state"], seen["text"]) == ("completed", "At last.")
