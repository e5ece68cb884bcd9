"""Every real CLI in the same scenarios, through the real server, on a scripted model. A run
prints the table of its results; docs/agents.md has the expected one (tests/support/matrix.py)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
import pytest_asyncio

from tests.support.bridge_process import bridge
from tests.support.client import (
    Client,
    Json,
    artifact_text,
    context_id,
    facts,
    said,
    state,
    states,
    streamed_text,
    task_id,
    told,
)
from tests.support.matrix import CANNOT, SCENARIOS, cells
from tests.support.real_claude_code import all_facts, answer, ask, running_command, script
from tests.support.real_clis import CLIS, Cli, Real, gone, serving

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(180),
]
Test = TypeVar("Test", bound=Callable[..., object])
tried: set[str] = set()


def scenario(name: str) -> Callable[[Test], Test]:
    """The test shows this of every CLI that can do it."""
    tried.add(name)
    clis = [pytest.param(cli, id=cli.name) for cli in cells(name)]

    def marked(test: Test) -> Test:
        each: Test = pytest.mark.parametrize("cli", clis)(test)
        cell: Test = pytest.mark.scenario(name)(each)
        return cell

    return marked


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Servers]:
    """A server for each CLI, started when it is wanted: some CLIs take long to begin in a new
    HOME."""
    async with AsyncExitStack() as stack:
        yield Servers(tmp_path_factory, stack)


class Servers:
    def __init__(self, folders: pytest.TempPathFactory, stack: AsyncExitStack) -> None:
        self._folders = folders
        self._stack = stack
        self._running: dict[str, Real] = {}

    async def of(self, cli: Cli) -> Real:
        if cli.name not in self._running:
            folder = self._folders.mktemp(cli.name)
            env = {"BRIDGE_STATE_DIR": str(folder / "state"), "BRIDGE_MAX_SESSIONS": "1"}
            self._running[cli.name] = await self._stack.enter_async_context(
                serving(cli, folder, **env)
            )
        return self._running[cli.name]


@pytest_asyncio.fixture(loop_scope="module")
async def real(cli: Cli, servers: Servers) -> Real:
    return await servers.of(cli)


async def last(real: Real, client: Client, task: Json) -> Json:
    """aider asks, after each command, whether the model is to see what it said."""
    while state(task) == "input-required":
        task = await answer(client, task, "no")
    return task


@scenario("stream")
async def test_a_text_arrives_as_a_stream(cli: Cli, real: Real) -> None:
    text = "Hello from the model.\nIt has two lines."
    items = await real.client().collect(script("Say it.", {"text": text, "chunks": 4}))
    assert states(items)[-1] == "completed", said(items[-1])
    assert streamed_text(items).strip() == text
    assert len([item for item in items if "artifactUpdate" in item]) > 1
    task = await real.client().get(task_id(items[0]))
    assert artifact_text(task).strip() == text
    assert task["metadata"]["bridge"]["cliVersion"].startswith(cli.version)


@scenario("tool")
async def test_a_command_is_run_and_told_of(cli: Cli, tmp_path: Path) -> None:
    async with serving(cli, tmp_path, AGENT_FORCE="true", **cli.force) as forced:
        path = forced.workspace / "by-command.txt"
        command = f"echo written | tee {path}"
        items = await forced.client().collect(script("run", forced.run(command), "the end"))
        assert states(items)[-1] == "completed", said(items[-1])
        assert "input-required" not in states(items)
        assert path.read_text() == "written\n"
        (call,) = all_facts(items, "tool_call")
        (result,) = all_facts(items, "tool_result")
        assert call["id"] == result["id"]
        assert "by-command.txt" in json.dumps(call)
        assert result["status"] == "completed"
        if cli.name != "aider":  # whose model is not asked again after a command
            assert streamed_text(items).strip().endswith("the end")


@scenario("allow")
async def test_a_permission_is_asked_for_and_given(cli: Cli, real: Real) -> None:
    path = real.workspace / "allowed.txt"
    task = await ask(real.client(), script("run", real.run(f"echo x > {path}"), "the end"))
    assert facts(task)["kind"] == "permission"
    assert str(path) in said(task)
    assert {"allow_once", "reject_once"} <= {one["kind"] for one in facts(task)["options"]}
    task = await answer(real.client(), task, "yes")
    task = await last(real, real.client(), task)
    assert (state(task), path.exists()) == ("completed", True), said(task)
    assert "tool_result" in [fact.get("type") for fact in told(task)]


@scenario("deny")
async def test_a_permission_is_asked_for_and_denied(cli: Cli, real: Real) -> None:
    path = real.workspace / "denied.txt"
    task = await ask(real.client(), script("run", real.run(f"echo x > {path}"), "the end"))
    task = await answer(real.client(), task, "no")
    assert (state(task), path.exists()) == ("completed", False), said(task)


@scenario("cancel asked")
async def test_a_cancel_while_a_permission_is_open(cli: Cli, real: Real) -> None:
    path = real.workspace / "never.txt"
    task = await ask(real.client(), script("run", real.run(f"touch {path}"), "never"))
    assert real.processes()
    assert state(await real.client().cancel(task_id(task))) == "canceled"
    await real.nothing_left()
    assert not path.exists()


@scenario("cancel running")
async def test_a_cancel_while_a_command_runs_leaves_no_process(cli: Cli, real: Real) -> None:
    client = real.client()
    async with running_command() as command:
        task = await ask(client, script("run", real.run_outside(command.line), "never"))
        params: Json = {"message": client.message("yes", taskId=task_id(task))}
        params["configuration"] = {"returnImmediately": True}
        await client.call("SendMessage", params)
        await command.begun()
        assert real.processes()
        assert state(await client.cancel(task_id(task))) == "canceled"
        async with asyncio.timeout(15):
            await command.ended.wait()
    await real.nothing_left()


@scenario("after a cancel")
async def test_a_conversation_goes_on_after_a_cancel(cli: Cli, real: Real) -> None:
    """The process is gone: the next one loads what the canceled one has written down."""
    client = real.client()
    first = await client.send(script("to be kept in mind", "the old answer"))
    assert state(first) == "completed", said(first)
    contexts: tuple[Json, ...] = ({"contextId": context_id(first)}, {})
    for context in contexts:
        asking = script("run", real.run("touch never.txt"), "never")
        task = await client.send(asking, **context)
        assert state(task) == "input-required", said(task)
        assert state(await client.cancel(task_id(task))) == "canceled"
        await real.nothing_left()
        go_on = script("go on then", "the new answer")
        after = await client.send(go_on, contextId=context_id(task))
        assert state(after) == "completed", said(after)
        assert artifact_text(after).strip() == "the new answer"
        seen = json.dumps(real.requests("go on then")[-1])
        assert ("to be kept in mind" in seen) == bool(context)


@scenario("two turns")
async def test_two_turns_are_one_session(cli: Cli, real: Real) -> None:
    client = real.client()
    first = await client.send(script("the first turn", "answer one"))
    agents = {process for process in real.processes() if process.is_running()}
    second = await client.send(script("another", "answer two"), contextId=context_id(first))
    assert [artifact_text(one).strip() for one in (first, second)] == ["answer one", "answer two"]
    assert _oldest(agents) in real.processes()
    seen = json.dumps(real.requests("the first turn")[-1])
    assert "answer one" in seen
    assert "another" in seen


def _oldest(processes: set[psutil.Process]) -> psutil.Process:
    return min(processes, key=lambda process: process.create_time())


@scenario("resume")
async def test_a_conversation_goes_on_in_a_new_process(cli: Cli, real: Real) -> None:
    first = await real.client().send(script("to be remembered", "the old answer"))
    assert state(first) == "completed"
    own = set(real.processes())
    await real.server.stop()
    await gone(own)
    await real.restart()
    go_on = script("go on", "the new answer")
    items = await real.client().collect(go_on, contextId=context_id(first))
    assert states(items)[-1] == "completed", said(items[-1])
    assert streamed_text(items).strip() == "the new answer"
    seen = json.dumps(real.requests("go on")[-1])
    assert "to be remembered" in seen
    assert "the old answer" in seen


@scenario("model error")
async def test_an_error_of_the_model_fails_the_task(cli: Cli, real: Real) -> None:
    task = await real.client().send(script("x", {"error": 401}))
    assert state(task) == "failed"
    assert "401" in said(task) or "scripted" in said(task) or "uthenti" in said(task), said(task)
    assert task["metadata"]["bridge"]["reason"]
    again = await real.client().send(script("x", "fine"))
    assert artifact_text(again).strip() == "fine"


@scenario("no binary")
async def test_a_cli_that_is_missing_is_named(cli: Cli, tmp_path: Path) -> None:
    env: dict[str, Any] = {"AGENT_ADAPTER": cli.name, "AGENT_BINARY": str(tmp_path / "missing")}
    with pytest.raises(AssertionError, match="missing was not found") as failed:
        async with bridge(tmp_path, **env):
            pass
    assert "AGENT_BINARY" in str(failed.value) or "PATH" in str(failed.value)


async def test_every_scenario_is_tried() -> None:
    assert tried == set(SCENARIOS)
    assert {name for name, _ in CANNOT} <= {cli.name for cli in CLIS}
