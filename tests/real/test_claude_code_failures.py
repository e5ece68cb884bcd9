"""The real Claude Code, on a scripted model, through the real server: what goes wrong, and how the
conversation goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.bridge_process import bridge
from tests.support.client import (
    Client,
    Json,
    artifact_text,
    context_id,
    said,
    state,
    states,
    streamed_text,
    task_id,
)
from tests.support.model_server import ModelServer
from tests.support.real_claude_code import (
    VERSIONS,
    RealClaudeCode,
    all_facts,
    bash,
    claude_code,
    read_until,
    reason,
    running_command,
    script,
    session_id,
    settings,
    user_texts,
)

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RealClaudeCode]:
    async with claude_code(tmp_path_factory.mktemp("claude")) as server:
        yield server


# --- the model's API ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_refused_key_fails_with_what_to_do_about_it(
    real: RealClaudeCode, version: str
) -> None:
    items = await real.shared(version).collect(script(f"key {version}", {"error": 401}))
    assert (state(items[-1]), reason(items[-1])) == ("failed", "auth")
    assert "log in" in said(items[-1])
    assert "ANTHROPIC_API_KEY" in said(items[-1])
    assert streamed_text(items) == "", "an error is not the agent's answer"


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_retry_is_visible_and_then_the_answer_comes(
    real: RealClaudeCode, version: str
) -> None:
    step = {"error": 429, "times": 1, "retry_after": 0, "text": "Finally."}
    items = await real.shared(version).collect(script(f"busy {version}", step))
    (retry,) = all_facts(items, "retry")
    assert (retry["attempt"], retry["error_status"]) == (1, 429)
    assert (states(items)[-1], streamed_text(items)) == ("completed", "Finally.")


async def test_an_error_of_the_model_fails_the_task_and_the_next_message_works(
    real: RealClaudeCode,
) -> None:
    client = real.client()
    items = await client.collect(script("broken", {"error": 500}))
    assert (state(items[-1]), reason(items[-1])) == ("failed", "model-error")
    assert "500" in said(items[-1])
    task = await client.send(script("again", "Better."), contextId=context_id(items[0]))
    assert (state(task), artifact_text(task)) == ("completed", "Better.")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("failure", ["drop", "sse_error"])
async def test_text_of_a_broken_stream_is_not_said_twice(
    real: RealClaudeCode, version: str, failure: str
) -> None:
    text = "It is said only once."
    broken = {"text": text, "chunks": 8, "delay": 0.03, failure: True, "times": 1}
    client = real.shared(version)
    items = await client.collect(script(f"{failure} {version}", broken))
    pieces = [streamed_text(items[:count]) for count in range(len(items))]
    assert any(one != "" and two == "" for one, two in pairwise(pieces)), (
        "half of it was streamed, and taken back"
    )
    assert (states(items)[-1], streamed_text(items)) == ("completed", text)
    assert artifact_text(await client.get(task_id(items[0]))) == text


async def test_a_model_that_cannot_be_reached_fails_the_task(tmp_path: Path) -> None:
    async with claude_code(tmp_path, ANTHROPIC_BASE_URL="http://127.0.0.1:1") as real:
        items = await real.client("0.3").collect("hi")
        assert (state(items[-1]), reason(items[-1])) == ("failed", "model-error")
        assert "ANTHROPIC_BASE_URL" in said(items[-1]) or "connect" in said(items[-1]).lower()


# --- time limits -------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize(
    ("version", "limit"), [("1.0", "AGENT_IDLE_EXIT_MS"), ("0.3", "AGENT_TIMEOUT_MS")]
)
async def test_a_model_that_hangs_meets_the_limit(tmp_path: Path, version: str, limit: str) -> None:
    """A turn that produces text is not silent, however long it is. The limit of 5 s leaves time for
    a start of the CLI on a busy machine."""
    async with claude_code(tmp_path, **{limit: "5000"}) as real:
        client = real.client(version)
        context: Json = {}
        if limit == "AGENT_IDLE_EXIT_MS":
            text = {"text": "tick " * 20, "chunks": 20, "delay": 0.3}
            task = await client.send(script("talk", text))
            assert state(task) == "completed"
            context = {"contextId": context_id(task)}
        items = await client.collect(script("hang", {"hang": True}), **context)
        assert (state(items[-1]), reason(items[-1])) == ("failed", "timeout")
        assert limit in said(items[-1])
        await real.nothing_left()
        task = await client.send(script("again", "Back."), contextId=context_id(items[0]))
        assert (state(task), artifact_text(task)) == ("completed", "Back.")
        assert "hang" in str(user_texts(real.requests("again")[-1]))


# --- the conversation outlives its process -----------------------------------------------------


async def goes_on(real: RealClaudeCode, client: Client, first: Json) -> Json:
    """Send another message: the model must see the first turn in it."""
    task = await client.send(script("and then", "Going on."), contextId=context_id(first))
    assert (state(task), artifact_text(task)) == ("completed", "Going on.")
    seen = real.requests("and then")[-1]
    assert "beginning" in str(user_texts(seen))
    assert session_id(task) == session_id(await client.get(task_id(first)))
    return task


@pytest.mark.soak
async def test_an_evicted_session_is_resumed(tmp_path: Path) -> None:
    async with claude_code(tmp_path, BRIDGE_SESSION_IDLE_MS="200") as real:
        client = real.client("0.3")
        first = await client.send(script("beginning", "Begun."))
        await real.nothing_left()
        task = await goes_on(real, client, first)
        assert "Begun." in str(real.requests("and then")[-1])
        assert context_id(task) == context_id(first)


@pytest.mark.soak
async def test_a_session_that_gave_up_its_place_is_resumed(tmp_path: Path) -> None:
    async with claude_code(tmp_path, BRIDGE_MAX_SESSIONS="1") as real:
        client = real.client()
        first = await client.send(script("beginning", "Begun."))
        pid = real.agent(first).pid
        other = await client.send(script("another context", "Hello."))
        assert {p.pid for p in real.processes()} == {real.agent(other).pid}
        task = await goes_on(real, client, first)
        assert real.agent(task).pid != pid


@pytest.mark.soak
async def test_a_cli_killed_between_turns_is_resumed(tmp_path: Path) -> None:
    async with claude_code(tmp_path) as real:
        client = real.client()
        first = await client.send(script("beginning", "Begun."))
        real.agent(first).kill()
        await real.nothing_left()
        await goes_on(real, client, first)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_cli_killed_in_a_turn_fails_the_task_and_is_resumed(
    real: RealClaudeCode, version: str
) -> None:
    client = real.client(version)
    first = await client.send(script("beginning", "Begun."))
    slow = {"text": "word " * 2000, "chunks": 2000, "delay": 0.05}
    async with client.stream(script("talk", slow), contextId=context_id(first)) as items:
        item = await read_until(items, lambda item: streamed_text([item]) != "")
        real.agent(await client.get(task_id(item))).kill()
        last = [item async for item in items][-1]
    assert (state(last), reason(last)) == ("failed", "exit")
    assert "signal 9" in said(last)
    await goes_on(real, client, first)


async def test_a_cli_killed_while_a_command_runs_leaves_no_process(tmp_path: Path) -> None:
    options = {"AGENT_FORCE": "true", "IS_SANDBOX": "1", "BRIDGE_SESSION_IDLE_MS": "100"}
    async with claude_code(tmp_path, **options) as real, running_command() as command:
        client = real.client()
        async with client.stream(script("beginning", bash(command.line), "Done.")) as items:
            first = await anext(items)
            await command.begun()
            real.agent(await client.get(task_id(first))).kill()
            last = [item async for item in items][-1]
        assert (state(last), reason(last)) == ("failed", "exit")
        await real.nothing_left()
        await goes_on(real, client, first)


async def test_a_lost_conversation_is_told_and_the_message_after_that_works(
    tmp_path: Path,
) -> None:
    config = tmp_path / "config"
    env = {"CLAUDE_CONFIG_DIR": str(config), "BRIDGE_SESSION_IDLE_MS": "1"}
    async with claude_code(tmp_path, **env) as real:
        client = real.client()
        first = await client.send(script("beginning", "Begun."))
        context: Json = {"contextId": context_id(first)}
        await real.nothing_left()
        shutil.rmtree(config / "projects")
        items = await client.collect(script("not run", "No."), **context)
        assert (state(items[-1]), reason(items[-1])) == ("failed", "session-lost")
        assert session_id(first) in said(items[-1])
        assert real.requests("not run") == []
        await real.nothing_left()
        task = await client.send(script("anew", "New."), **context)
        assert (state(task), artifact_text(task)) == ("completed", "New.")
        assert session_id(task) != session_id(first)
        await real.nothing_left()
        again = await client.send(script("and again", "Once more."), **context)
        assert "anew" in str(user_texts(real.requests("and again")[-1]))
        assert session_id(again) == session_id(task)


@pytest.mark.soak
async def test_a_message_that_waits_behind_a_lost_conversation_is_run(tmp_path: Path) -> None:
    async with claude_code(tmp_path, BRIDGE_SESSION_IDLE_MS="1") as real:
        client = real.client("0.3")
        first = await client.send(script("beginning", "Begun."))
        context: Json = {"contextId": context_id(first)}
        await real.nothing_left()
        shutil.rmtree(real.home / ".claude/projects")
        lost = await client.send_now(script("not run", "No."), **context)
        task = await client.send(script("anew", "New."), **context)
        assert "no longer has the conversation" in said(await client.get(task_id(lost)))
        assert (state(task), artifact_text(task)) == ("completed", "New.")


# --- at the start ------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused")
async def test_force_as_root_is_refused_at_the_start(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with ModelServer() as model:
        env = {**settings(model), "AGENT_FORCE": "true"}
        async with bridge(workspace, ready=False, **env) as server:
            assert await server.ended() == 2
    assert "refuses to skip permissions as root" in server.log
    assert "IS_SANDBOX=1" in server.log
    assert "Traceback" not in server.log
