"""Our client against servers of the official SDKs, which know nothing of our extension."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from bridge.errors.program import command
from tests.support import official_sdks
from tests.support.cab import Cab, Done, ended

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]
SDKS = ("python-v1", "python-v03", "js-v1", "js-v03")
PEERS = ("python-v1", "python-v1-rest", "js-v1", "js-v1-rest", "python-v03", "js-v03")
each_peer = pytest.mark.parametrize("name", PEERS)


@dataclass(frozen=True, slots=True)
class Peer:
    """A server, and the flags with which the client reaches it."""

    cab: Cab
    flags: tuple[str, ...]

    async def run(self, *words: str) -> Done:
        return await self.cab.run(*words, *self.flags)

    async def send(self, prompt: str, *flags: str) -> str:
        """Send a prompt. Returns the id of its task."""
        done = await self.run("send", "-o", "json", *flags, prompt)
        assert done.status == 0, done.text
        return str(done.json["task"]["id"])

    async def state(self, task: str) -> str:
        return str((await self.run("task", "get", task, "-o", "json")).json["status"]["state"])


@asynccontextmanager
async def serving(sdk: str) -> AsyncIterator[str]:
    """The address of a server of an SDK. It ends with its input."""
    process = await asyncio.create_subprocess_exec(
        *official_sdks.server(sdk),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"]},
    )
    assert process.stdout and process.stdin
    try:
        async with asyncio.timeout(30):
            yield (await process.stdout.readline()).decode().strip()
    finally:
        process.stdin.close()
        await asyncio.wait_for(process.wait(), 10)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def urls() -> AsyncIterator[dict[str, str]]:
    async with AsyncExitStack() as stack:
        begun = [stack.enter_async_context(serving(sdk)) for sdk in SDKS]
        yield dict(zip(SDKS, await asyncio.gather(*begun), strict=True))


@pytest.fixture
def peer(name: str, urls: dict[str, str], tmp_path: Path) -> Peer:
    sdk = name.removesuffix("-rest")
    version = ("--a2a-version", "0.3") if sdk.endswith("v03") else ()
    transport = ("--transport", "rest" if name.endswith("-rest") else "jsonrpc")
    return Peer(Cab(tmp_path, tmp_path), ("-a", urls[sdk], *version, *transport))


@each_peer
async def test_a_send_has_the_answer_as_text_bytes_and_stream(peer: Peer) -> None:
    done = await peer.run("send", "Hello there")
    assert (done.status, done.field("State")) == (0, "completed")
    assert "Artifact answer:\n  Hello there\n" in done.text
    assert (await peer.run("send", "-q", "count 12")).out == b"0 1 2 3 4 5 6 7 8 9 10 11 "
    streamed = (await peer.run("send", "-o", "json", "--stream", "count 12")).lines
    pieces = [one["artifactUpdate"]["artifact"] for one in streamed if "artifactUpdate" in one]
    assert "".join(one["parts"][0]["text"] for one in pieces) == "0 1 2 3 4 5 6 7 8 9 10 11 "
    assert streamed[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


@each_peer
async def test_a_question_is_answered_in_words(peer: Peer) -> None:
    asked = await peer.run("send", "--exit-state", "ask")
    assert asked.status == 11 and "Question:\n  Which one?\n" in asked.text
    assert asked.field("Resume").startswith(command("send", "--task-id"))
    by_option = await peer.run("answer", asked.field("Task"), "blue")
    assert by_option.status == 2
    done = await peer.run("answer", asked.field("Task"), "--text", "blue please")
    assert (done.status, done.field("State")) == (0, "completed")
    assert done.field("Task") == asked.field("Task") and "  blue please\n" in done.text


@each_peer
async def test_tasks_are_read_and_listed(peer: Peer, name: str) -> None:
    task = await peer.send("Hello there")
    got = (await peer.run("task", "get", task, "--history", "5", "-o", "json")).json
    assert got["artifacts"][0]["parts"][0]["text"] == "Hello there"
    assert got["history"][0]["role"] == "ROLE_USER"
    listed = await peer.run("task", "list", "-o", "json")
    if name.endswith("v03"):  # 0.3 has no such operation over JSON-RPC
        assert (listed.status, listed.json["error"]["code"]) == (1, "MethodNotFoundError")
    else:
        assert task in [one["id"] for one in listed.json["tasks"]]
    unknown = await peer.run("task", "get", "unknown")
    assert (unknown.status, unknown.error) == (1, "TaskNotFoundError")
    late = await peer.run("task", "cancel", task, "-o", "json")
    assert late.json["status"]["state"] == "TASK_STATE_COMPLETED"


@each_peer
async def test_a_subscription_ends_with_the_cancel_of_its_task(peer: Peer) -> None:
    """A second for the start of a client that runs beside the others."""
    task = await peer.send("wait", "--async")
    words = ("task", "subscribe", task, "-o", "json", "--stream", *peer.flags)
    following = await peer.cab.start(*words)
    assert following.stdout
    first = await asyncio.wait_for(following.stdout.readline(), 20)
    assert task.encode() in first
    assert await peer.state(task) == "TASK_STATE_WORKING"
    canceled = await peer.run("task", "cancel", task)
    assert (canceled.status, canceled.text.count("State: canceled")) == (0, 1)
    done = await ended(following)
    assert done.status == 0
    (last,) = done.lines[-1].values()  # the task itself, if it ended before the subscription
    assert last["status"]["state"] == "TASK_STATE_CANCELED"
    again = await peer.run("task", "subscribe", task, "-o", "json")
    assert again.json["status"]["state"] == "TASK_STATE_CANCELED"


@each_peer
async def test_a_missing_capability_is_no_request(peer: Peer) -> None:
    for words, code in (
        (("task", "push-config", "list", "t"), "PushNotificationNotSupportedError"),
        (("card", "get", "--extended"), "ExtendedAgentCardNotConfiguredError"),
    ):
        done = await peer.run(*words)
        assert (done.status, done.error) == (1, code)


@each_peer
async def test_flags_of_the_extension_fail_before_a_request(peer: Peer) -> None:
    for words in (
        ("send", "--agent", "x", "hello"),
        ("send", "--on-question", "deny", "hello"),
        ("task", "subscribe", "--from", "1", "t"),
    ):
        done = await peer.run(*words)
        assert (done.status, done.error) == (2, "CAB_ERR_EXTENSION")
