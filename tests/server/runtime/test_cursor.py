"""Cursor behind the whole server, with tests/support/cursor_agent.py in its place: the real one
cannot be installed here."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.adapter import AgentConfig, SessionStart
from bridge.errors import ConfigurationError
from bridge.server import registry
from bridge.server.agents.configured import configure_agents
from bridge.server.settings.load import Loaded
from bridge.server.settings.root import Settings
from tests.support.bridge_process import BridgeProcess, bridge
from tests.support.client import (
    Client,
    Json,
    RpcError,
    artifact_text,
    context_id,
    facts,
    said,
    state,
    states,
    streamed_text,
    task_id,
)
from tests.support.cursor_agent import PROGRAM
from tests.support.liveness import listening
from tests.support.real_claude_code import all_facts, reason, running_command
from tests.support.served import Server, serving

ARGS = ("-I", "-S", PROGRAM)


@pytest.fixture(autouse=True)
def cursor_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cursor"
    monkeypatch.setenv("CURSOR_CONFIG_DIR", str(path))
    return path


@asynccontextmanager
async def cursor(
    workspace: Path, *, force: bool = True, args: tuple[str, ...] = (), **settings: Any
) -> AsyncIterator[Server]:
    async with serving(
        workspace,
        agent_adapter="cursor",
        agent_args=(*ARGS, *args),
        agent_force=force,
        **settings,
    ) as server:
        yield server


async def again(server: Server, task: Json, text: str) -> Json:
    same: Json = {"taskId": task_id(task)} if state(task) == "input-required" else {}
    return await server.client().send(text, contextId=context_id(task), **same)


def results(items: list[Json]) -> list[Json]:
    return all_facts(items, "tool_result")


# --- text ----------------------------------------------------------------------------------------


async def test_a_turn_is_streamed_and_nothing_is_said_twice(workspace: Path) -> None:
    async with cursor(workspace, bridge_thoughts="always") as server:
        script = (
            "think hm\ntext Hello\nshell true\ntext Done\nagain  and done\nshell true\nsay Done"
        )
        items = await server.client().collect(script)
        task = await server.client().get(task_id(items[0]))
    assert streamed_text(items) == artifact_text(task) == "Hello\n\nDone and done\n\nDone"
    assert states(items)[-1] == "completed"
    assert [fact["text"] for fact in all_facts(items, "thought")] == ["hm"]
    used = {"inputTokens": 100, "outputTokens": 20, "cacheReadTokens": 5}
    assert used.items() <= task["metadata"]["usage"].items()


async def test_text_without_deltas_arrives_in_complete_blocks(workspace: Path) -> None:
    async with cursor(workspace) as server:
        task = await server.client().send("say Look.\nshell true\nsay Done.")
    assert artifact_text(task) == "Look.\n\nDone."


@pytest.mark.parametrize(
    "text", ["logout", "--force", "-x", "/help", "& to the cloud", "--", "a\n'b' \"c\" $(d)", ""]
)
async def test_a_prompt_is_never_a_flag_or_a_command(workspace: Path, text: str) -> None:
    parts = [{"text": text}, {"text": "prompts"}] if text else [{"text": "prompts"}]
    async with cursor(workspace) as server:
        task = await server.client().send(parts)
    (prompt,) = json.loads(artifact_text(task))
    unseen = "\u200b" if text.startswith("/") else ""
    assert prompt == " " + unseen + "\n\n".join(filter(None, (text, "prompts")))


async def test_a_single_word_is_not_a_command_of_the_program(workspace: Path) -> None:
    async with cursor(workspace) as server:
        task = await server.client().send("logout")
    assert state(task) == "completed"


async def test_model_and_mode_are_in_its_arguments(workspace: Path) -> None:
    async with cursor(workspace, agent_model="gpt-9") as server:
        metadata = {"bridge": {"mode": "plan"}}
        task = await server.client().send("plan Change it\nargv", metadata=metadata)
    assert json.loads(artifact_text(task)) == [
        "--force",
        "--mode=plan",
        "--model=gpt-9",
        "--output-format=stream-json",
        "--print",
        "--stream-partial-output",
        "--trust",
    ]
    assert task["metadata"]["bridge"]["mode"] == "plan"
    told = [message.get("metadata", {}).get("bridge", {}) for message in task["history"]]
    assert "Change it" in json.dumps(
        [one for one in told if one.get("type") == "interaction_query"]
    )


# --- tools ---------------------------------------------------------------------------------------


async def test_tools_are_shown_with_their_results(workspace: Path) -> None:
    async with cursor(workspace) as server:
        script = "shell echo hi; exit 3\nwrite new.txt words\ntodo first\ntext end"
        items = await server.client().collect(script)
    assert (workspace / "new.txt").read_text() == "words"
    calls = all_facts(items, "tool_call")
    assert [one["name"] for one in calls] == ["shell", "write", "updateTodos"]
    assert calls[0]["input"]["command"] == "echo hi; exit 3"
    done = results(items)
    assert [(one["status"], one["name"]) for one in done] == [
        ("failed", "shell"),
        ("completed", "write"),
        ("completed", "updateTodos"),
    ]
    assert done[0]["output"] == "hi\n"
    assert "new.txt" in json.dumps(done[1])
    (plan,) = all_facts(items, "plan")
    assert "first" in json.dumps(plan)


# --- conversations -------------------------------------------------------------------------------


async def test_the_next_message_continues_the_same_chat(workspace: Path) -> None:
    async with cursor(workspace) as server:
        first = await server.client().send("text one")
        second = await again(server, first, "prompts")
        third = await again(server, first, "prompts")
    assert json.loads(artifact_text(second)) == [" text one", " prompts"]
    assert len(json.loads(artifact_text(third))) == 3
    ids = {one["metadata"]["bridge"]["sessionId"] for one in (first, second, third)}
    assert len(ids) == 1


async def test_a_chat_continues_after_a_restart_of_the_server(
    workspace: Path, tmp_path: Path, cursor_home: Path, http: aiohttp.ClientSession
) -> None:
    settings: dict[str, Any] = {
        "AGENT_ADAPTER": "cursor",
        "AGENT_BINARY": sys.executable,
        "AGENT_ARGS": " ".join(ARGS),
        "AGENT_FORCE": "true",
        "CURSOR_CONFIG_DIR": str(cursor_home),
        "BRIDGE_STATE_DIR": str(tmp_path / "state"),
    }

    def client(server: BridgeProcess) -> Client:
        return Client(http, server.url)

    async with bridge(workspace, **settings) as server:
        first = await client(server).send("text one")
        assert state(first) == "completed"
    async with bridge(workspace, **settings) as server:
        second = await client(server).send("prompts", contextId=context_id(first))
    assert json.loads(artifact_text(second)) == [" text one", " prompts"]


async def test_a_chat_does_not_continue_with_an_adapter_that_cannot_resume(
    workspace: Path, tmp_path: Path, cursor_home: Path, http: aiohttp.ClientSession
) -> None:
    """It would not have the earlier messages."""
    config = tmp_path / "agents.toml"
    shared: dict[str, Any] = {
        "AGENT_ADAPTER": "",
        "CONFIG_FILE": str(config),
        "CURSOR_CONFIG_DIR": str(cursor_home),
        "BRIDGE_STATE_DIR": str(tmp_path / "state"),
    }
    config.write_text(
        f"[agents.a]\nadapter = 'cursor'\nbinary = '{sys.executable}'\nforce = true\n"
        f"args = {json.dumps(ARGS)}\n"
    )
    async with bridge(workspace, **shared) as server:
        first = await Client(http, server.url).send("text one")
        assert state(first) == "completed"
    config.write_text("[agents.a]\nadapter = 'generic'\nbinary = '/bin/cat'\n")
    async with bridge(workspace, **shared) as server:
        client = Client(http, server.url)
        with pytest.raises(RpcError, match="generic cannot continue this conversation"):
            await client.send("go on", contextId=context_id(first))
        new = await client.send("one")
        assert artifact_text(await client.send("two", contextId=context_id(new))) == "two\n"


async def test_a_lost_chat_is_reported_once(workspace: Path, cursor_home: Path) -> None:
    async with cursor(workspace) as server:
        first = await server.client().send("text one")
        shutil.rmtree(cursor_home)
        lost = await again(server, first, "text not run")
        assert (state(lost), reason(lost)) == ("failed", "session-lost")
        fresh = await again(server, first, "prompts")
    assert json.loads(artifact_text(fresh)) == [" prompts"]


# --- ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["hang", "deaf"])
async def test_the_result_is_the_end_even_if_it_does_not_exit(workspace: Path, word: str) -> None:
    async with cursor(workspace) as server, listening() as live:
        script = f"wait {live.path} one\n{word}\ntext first"
        sending = asyncio.create_task(server.client().send(script))
        await live.release("one")
        task = await sending
        assert (state(task), artifact_text(task)) == ("completed", "first")
        assert live.alive("one")
        second = await again(server, task, "text second")
        assert artifact_text(second) == "second"
        await live.gone("one")


@pytest.mark.parametrize(
    ("script", "words", "why"),
    [
        ("text x\nfail the model said no", "the model said no", "agent-error"),
        ("text x\ndie 1 some trouble", "some trouble", "exit"),
        ("text x\ndie 0 no result", "no result", "exit"),
        ("die 1 Not logged in", "agent login, or set CURSOR_API_KEY", "auth"),
    ],
)
async def test_a_turn_that_fails_says_why_and_the_next_one_runs(
    workspace: Path, script: str, words: str, why: str
) -> None:
    async with cursor(workspace) as server:
        task = await server.client().send(script)
        assert (state(task), reason(task)) == ("failed", why)
        assert words in said(task)
        assert artifact_text(await again(server, task, "text next")) == "next"


async def test_an_unknown_argument_is_reported(workspace: Path) -> None:
    async with cursor(workspace, args=("--no-such-flag",)) as server:
        task = await server.client().send("text x")
    assert (state(task), reason(task)) == ("failed", "exit")
    assert "unknown option '--no-such-flag'" in said(task)


async def test_a_prompt_that_is_too_long_for_an_argument_fails_the_turn(workspace: Path) -> None:
    async with cursor(workspace) as server:
        task = await server.client().send("x" * 200_000)
        assert (state(task), reason(task)) == ("failed", "launch")
        assert "Argument list too long" in said(task)
        assert artifact_text(await again(server, task, "text next")) == "next"


async def test_lines_that_are_not_events_are_shown(workspace: Path) -> None:
    async with cursor(workspace) as server:
        items = await server.client().collect('line Update!\nline {"type": "new"}\ntext x')
    assert any(said(item) == "Update!" for item in items)
    assert streamed_text(items) == "x"


async def test_a_cancel_ends_the_command_and_the_chat_continues(workspace: Path) -> None:
    async with cursor(workspace) as server, running_command() as command:
        client = server.client()
        task = await client.send_now(f"text one\nshell {command.line}")
        await command.begun()
        assert state(await client.cancel(task_id(task))) == "canceled"
        await command.ended.wait()
        second = await again(server, task, "prompts")
    assert json.loads(artifact_text(second))[1:] == [" prompts"]


async def test_a_cancel_between_two_processes_begins_nothing(workspace: Path) -> None:
    """The next prompt waits for the end of a process that does not end, and never reaches it."""
    async with cursor(workspace) as server, listening() as live:
        client = server.client()
        task = await client.send("deaf\ntext one")
        late = await client.send_now(f"wait {live.path} never", contextId=context_id(task))
        assert state(await client.cancel(task_id(late))) == "canceled"
        last = await again(server, task, "prompts")
        assert not live.has("never")
    assert json.loads(artifact_text(last)) == [" deaf\ntext one", " prompts"]


def test_a_binary_that_is_missing_is_named(workspace: Path) -> None:
    chosen = {"agent_adapter": "cursor", "agent_binary": "/no/agent"}
    settings = Settings().updated({**chosen, "agent_repo_path": str(workspace)})
    with pytest.raises(ConfigurationError, match=r"/no/agent was not found.*Install Cursor CLI"):
        configure_agents(Loaded(settings, {}, []))


async def test_a_binary_that_goes_away_fails_the_turn(workspace: Path, tmp_path: Path) -> None:
    path = tmp_path / "agent"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {" ".join(ARGS)} "$@"\n')
    path.chmod(0o755)
    async with cursor(workspace, agent_binary=str(path), args=()) as server:
        path.unlink()
        task = await server.client().send("text x")
    assert (state(task), reason(task)) == ("failed", "launch")


# --- without AGENT_FORCE: over ACP ---------------------------------------------------------------


@pytest.mark.parametrize(("words", "chosen"), [("yes", "allow-once"), ("no", "reject-once")])
async def test_without_force_it_asks_over_acp(workspace: Path, words: str, chosen: str) -> None:
    async with cursor(workspace, force=False) as server:
        task = await server.client().send("permit rm")
        assert state(task) == "input-required"
        assert "rm" in said(task)
        assert len(facts(task)["options"]) == 3
        task = await again(server, task, words)
    assert (state(task), artifact_text(task)) == ("completed", chosen)


def test_force_decides_between_the_two_dialects() -> None:
    kind = registry.load("cursor")
    start = SessionStart("/workspace", "s")
    over_acp = kind.variant_for(AgentConfig("/opt/agent"))
    assert over_acp.name == "cursor"
    assert over_acp(AgentConfig("/opt/agent"), start).launch().argv == ("/opt/agent", "acp")
    assert kind.variant_for(AgentConfig("/opt/agent", force=True)) is kind
