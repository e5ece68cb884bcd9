"""The real Claude Code, on a scripted model, through the real server: cancelled and shut down.

Sessions are given up at once when they are idle, so that after each test nothing may be left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.client import (
    Client,
    Json,
    RpcError,
    artifact_text,
    context_id,
    facts,
    state,
    streamed_text,
    task_id,
)
from tests.support.real_claude_code import (
    GONE_WITHIN,
    STREAMS,
    VERSIONS,
    RealClaudeCode,
    answer,
    ask,
    bash,
    claude_code,
    of_type,
    read_until,
    running_command,
    script,
    streams,
    user_texts,
    write,
)

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

CANCELED_WITHIN = 5.0  # seconds; a CLI that is silent for that long has been killed
SLOW = {"text": "word " * 2000, "chunks": 2000, "delay": 0.05}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=STREAMS)
async def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RealClaudeCode]:
    folder = tmp_path_factory.mktemp("claude")
    env = streams(request.param, folder)
    async with claude_code(folder, BRIDGE_SESSION_IDLE_MS="1", **env) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def real(server: RealClaudeCode) -> AsyncIterator[RealClaudeCode]:
    """The server; in the end no process and no session of the test may be left."""
    yield server
    await server.nothing_left()
    await server.sessions_forgotten()


async def cancel(client: Client, task: Json) -> None:
    """Cancel, and be told so at once; a second time is an error, the state is final."""
    begun = time.monotonic()
    canceled = await client.cancel(task_id(task))
    assert time.monotonic() - begun < CANCELED_WITHIN
    assert state(canceled) == "canceled"
    with pytest.raises(RpcError) as refused:
        await client.cancel(task_id(task))
    assert refused.value.code == -32002
    assert state(await client.get(task_id(task))) == "canceled"


# --- cancel ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_cancel_while_the_answer_streams(real: RealClaudeCode, version: str) -> None:
    client = real.client(version)
    async with client.stream(script("Talk.", SLOW)) as items:
        seen = [await read_until(items, lambda item: streamed_text([item]) != "")]
        assert real.processes()
        await cancel(client, seen[0])
        seen += [item async for item in items]
    assert state(seen[-1]) == "canceled"
    task = await client.get(task_id(seen[0]))
    assert artifact_text(task).startswith("word "), "what was said is kept"
    assert artifact_text(task) == streamed_text(seen)


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
async def test_cancel_while_a_shell_command_runs(real: RealClaudeCode, version: str) -> None:
    client = real.client(version)
    async with running_command() as command:
        task = await ask(client, script("Run it.", bash(command.line), "It ran."))
        ids = {"taskId": task_id(task), "contextId": context_id(task)}
        async with client.stream("allow", **ids) as items:
            await command.begun()
            await cancel(client, task)
            assert state([item async for item in items][-1]) == "canceled"
        async with asyncio.timeout(GONE_WITHIN):
            await command.ended.wait()


async def test_cancel_while_a_command_runs_that_detached_itself(real: RealClaudeCode) -> None:
    client = real.client()
    async with running_command() as command, running_command() as detached:
        deaf = "import signal; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; "
        line = detached.line.replace("import socket; ", f"{deaf}import socket; ")
        line = f"(setsid {line} </dev/null >/dev/null 2>&1 &); {command.line}"
        task = await ask(client, script("Run it.", bash(line), "It ran."))
        async with client.stream("allow", taskId=task_id(task)) as items:
            await command.begun()
            await detached.begun()
            await cancel(client, task)
            assert state([item async for item in items][-1]) == "canceled"
        async with asyncio.timeout(GONE_WITHIN):
            await command.ended.wait()
            await detached.ended.wait()


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
async def test_cancel_while_a_permission_is_open(real: RealClaudeCode, version: str) -> None:
    client = real.client(version)
    path = real.workspace / f"never-{version}.txt"
    task = await ask(client, script("Write it.", write(path), "Done."))
    await cancel(client, task)
    with pytest.raises(RpcError) as refused:
        await answer(client, task, "allow")
    assert refused.value.code == -32004
    await real.nothing_left()
    assert not path.exists()


async def test_cancel_before_the_cli_is_started(real: RealClaudeCode) -> None:
    client = real.client()
    task = await client.send_now(script("never sent", "Done."))
    assert state(task) == "submitted"
    await cancel(client, task)
    await real.nothing_left()
    assert real.requests("never sent") == []


async def test_cancel_while_the_cli_starts(real: RealClaudeCode) -> None:
    client = real.client("0.3")
    task = await client.send_now(script("never sent", "Done."))
    async with asyncio.timeout(10):
        while not real.processes():  # noqa: ASYNC110 - nothing tells that it has been spawned
            await asyncio.sleep(0)
    assert state(await client.get(task_id(task))) in ("submitted", "working")
    await cancel(client, task)
    await real.nothing_left()
    assert real.requests("never sent") == []


@pytest.mark.parametrize("version", VERSIONS)
async def test_cancel_while_the_cli_waits_for_a_retry(real: RealClaudeCode, version: str) -> None:
    client = real.client(version)
    busy = {"error": 429, "retry_after": 30}
    async with client.stream(script(f"Retry {version}.", busy)) as items:
        item = await read_until(items, of_type("retry"))
        assert facts(item)["retry_delay_ms"] >= 30_000
        await cancel(client, item)
        assert state([item async for item in items][-1]) == "canceled"
    await real.nothing_left()
    assert len(real.requests(f"Retry {version}.")) == 1


async def test_cancel_while_the_model_is_silent(real: RealClaudeCode) -> None:
    client = real.client()
    async with client.stream(script("Hang.", {"hang": True})) as items:
        item = await read_until(items, lambda item: state(item) == "working")
        await cancel(client, item)


async def test_cancel_of_a_queued_task_leaves_the_running_one_alone(real: RealClaudeCode) -> None:
    client = real.client()
    async with running_command() as command:
        first = await ask(client, script("Run it.", bash(command.line), "It ran."))
        ids = {"taskId": task_id(first), "contextId": context_id(first)}
        async with client.stream("allow", **ids) as items:
            await command.begun()
            second = await client.send_now(script("never sent", "No."), contextId=context_id(first))
            assert state(second) == "submitted"
            await cancel(client, second)
            command.release()
            assert state([item async for item in items][-1]) == "completed"
    assert artifact_text(await client.get(task_id(first))) == "It ran."
    assert real.requests("never sent") == []


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
async def test_the_conversation_goes_on_after_a_cancel(real: RealClaudeCode, version: str) -> None:
    client = real.client(version)
    first = await client.send(script(f"first {version}", "first answer"))
    context: Json = {"contextId": context_id(first)}
    async with client.stream(script("second", SLOW), **context) as items:
        item = await read_until(items, lambda item: streamed_text([item]) != "")
        await cancel(client, item)
    third = await client.send(script("third", "third answer"), **context)
    assert (state(third), artifact_text(third)) == ("completed", "third answer")
    seen = real.requests(f"first {version}")[-1]
    prompts = [text.split(" @@")[0] for text in user_texts(seen) if "@@" in text]
    assert prompts == [f"first {version}", "second", "third"]
    assert "first answer" in str(seen)


@pytest.mark.soak
async def test_the_conversation_goes_on_after_a_cancel_of_its_first_turn(
    real: RealClaudeCode,
) -> None:
    client = real.client()
    async with client.stream(script("the very first", {"hang": True})) as items:
        item = await read_until(items, lambda item: state(item) == "working")
        async with asyncio.timeout(GONE_WITHIN):
            while not real.requests("the very first"):  # noqa: ASYNC110 - the CLI has stored it
                await asyncio.sleep(0.02)
        await cancel(client, item)
    task = await client.send(script("the next", "next answer"), contextId=context_id(item))
    assert (state(task), artifact_text(task)) == ("completed", "next answer")
    assert "the very first" in str(user_texts(real.requests("the next")[-1]))


# --- the server's own end ----------------------------------------------------------------------


async def test_sigterm_leaves_no_process_of_a_running_command(tmp_path: Path) -> None:
    async with claude_code(tmp_path, BRIDGE_DRAIN_MS="200") as real, running_command() as command:
        client = real.client()
        task = await ask(client, script("Run it.", bash(command.line), "It ran."))
        async with client.stream("allow", taskId=task_id(task)) as items:
            await command.begun()
            assert len(real.processes()) > 1
            stopped = asyncio.create_task(real.server.stop())
            last = [item async for item in items][-1]
        assert await stopped == 0
        assert state(last) == "failed"
        assert real.processes() == []
        async with asyncio.timeout(GONE_WITHIN):
            await command.ended.wait()


async def test_sigterm_ends_idle_and_asking_sessions(tmp_path: Path) -> None:
    async with claude_code(tmp_path, BRIDGE_DRAIN_MS="200") as real:
        client = real.client("0.3")
        await client.send(script("hi", "hello"))
        await ask(client, script("Run it.", bash("python3 -c 'print(1)'"), "It ran."))
        assert len(real.processes()) >= 2
        assert await real.server.stop() == 0
        assert real.processes() == []
