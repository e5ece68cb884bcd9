"""Permission for the project files of a repository: denied, asked, allowed. The behaviour of real
CLIs is in tests/real/test_poisoned.py."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import pytest

from bridge.adapter import Launch
from bridge.server import registry
from tests.support.bridge_process import bridge, scripted
from tests.support.client import Client, Json, artifact_text, facts, said, state
from tests.support.restart import finished
from tests.support.served import Server, serving

WITHIN = 60.0
NAME = f"{__name__}:Careful"


Jsonl: Any = registry.load("jsonl")


class Careful(Jsonl):  # type: ignore[misc]
    """An agent with a variable that says whether it may use the settings of the repository; it uses
    `hook` in any case."""

    project_files: ClassVar[tuple[str, ...]] = ("settings.json", "hook")
    instructions: ClassVar[tuple[str, ...]] = ("AGENTS.md",)
    always_loaded: ClassVar[tuple[str, ...]] = ("hook",)

    def launch(self) -> Launch:
        launch: Launch = super().launch()
        used = {"USES_PROJECT": str(self.config.project_config)}
        return Launch(launch.argv, {**launch.env, **used}, launch.stdin)


ADAPTER = Careful


@pytest.fixture(params=["deny", "ask", "allow"])
async def server(request: pytest.FixtureRequest, workspace: Path) -> AsyncIterator[Server]:
    async with serving_careful(workspace, request.param) as server:
        yield server


def serving_careful(workspace: Path, policy: str, **settings: Any) -> Any:
    return serving(workspace, agent_adapter=NAME, agent_project_config=policy, **settings)


def uses(task: Json) -> bool:
    return '"USES_PROJECT": "True"' in artifact_text(task)


async def test_an_ordinary_repository_is_not_asked_about(workspace: Path, server: Server) -> None:
    task = await server.client().send("env")
    assert state(task) == "completed"


async def test_after_a_denial_the_agent_does_not_load_the_files(workspace: Path) -> None:
    (workspace / "settings.json").write_text("{}")
    async with serving_careful(workspace, "deny") as server:
        task = await server.client().send("env")
    assert state(task) == "completed" and not uses(task)


def notices(items: list[Json]) -> list[Json]:
    """The statuses about files that the agent does not use."""
    return [one for one in items if facts(one).get("type") == "ignored"]


async def test_the_first_task_says_once_which_files_are_ignored(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    """A new process of the CLI, and a new server, do not say it again. Takes a second: two
    servers."""
    for name in ("settings.json", "AGENTS.md"):
        (workspace / name).write_text("{}")
    settings = scripted(workspace) | {"AGENT_ADAPTER": NAME, "BRIDGE_SESSION_IDLE_MS": "0"}
    async with bridge(workspace, **settings) as server:
        client = Client(http, server.url)
        items = await client.collect("text hi\ndone")
        (notice,) = notices(items)
        assert facts(notice)["files"] == ["AGENTS.md", "settings.json"]
        assert "does not use AGENTS.md, settings.json" in said(notice)
        context = items[0]["task"]["contextId"]
        assert notices(await client.collect("text hi\ndone", contextId=context)) == []
    async with bridge(workspace, **settings) as server:
        client = Client(http, server.url)
        assert notices(await client.collect("text hi\ndone", contextId=context)) == []
        assert notices(await client.collect("text hi\ndone"))  # another conversation


@pytest.mark.parametrize(("policy", "told"), [("ask", True), ("allow", False)])
async def test_instructions_are_ignored_without_a_question(
    workspace: Path, policy: str, told: bool
) -> None:
    (workspace / "AGENTS.md").write_text("Be short.")
    async with serving_careful(workspace, policy) as server:
        items = await server.client().collect("text hi\ndone")
        assert bool(notices(items)) is told


async def test_files_that_the_agent_always_loads_fail_the_task(workspace: Path) -> None:
    (workspace / "hook").write_text("#!/bin/sh")
    async with serving_careful(workspace, "deny") as server:
        task = await server.client().send("env")
    assert state(task) == "failed" and "artifacts" not in task
    assert said(task) == (
        "The agent would run files of this repository by itself: hook. Remove them, or allow their "
        "use (AGENT_PROJECT_CONFIG=allow)."
    )
    assert task["metadata"]["bridge"]["reason"] == "project-config"


async def test_allowed_all_of_it_is_used(workspace: Path) -> None:
    for name in Careful.project_files:
        (workspace / name).write_text("{}")
    async with serving_careful(workspace, "allow") as server:
        assert uses(await server.client().send("env"))


@pytest.mark.parametrize("answer", ["Use it", "Go on without it"])
async def test_the_answer_about_project_files_holds_for_the_conversation(
    workspace: Path, answer: str
) -> None:
    (workspace / "settings.json").write_text("{}")
    async with serving_careful(workspace, "ask", bridge_session_idle_ms=0) as server:
        client = server.client()
        asked = await client.send("env")
        assert state(asked) == "input-required"
        assert "settings.json" in said(asked)
        assert facts(asked)["subject"]["input"] == {"files": ["settings.json"]}
        task = await client.send(answer, taskId=asked["id"])
        assert state(task) == "completed" and uses(task) is (answer == "Use it")
        again = await client.send("env", contextId=asked["contextId"])
        assert state(again) == "completed" and uses(again) is (answer == "Use it")
        other = await client.send("env")  # another conversation, another question
        assert state(other) == "input-required"
        await client.cancel(other["id"])


async def test_files_that_the_agent_always_loads_are_used_or_fail_the_task(workspace: Path) -> None:
    (workspace / "hook").write_text("{}")
    async with serving_careful(workspace, "ask") as server:
        client = server.client()
        tasks = [await client.send("env") for _ in range(2)]
        used = await client.send("yes", taskId=tasks[0]["id"])
        ended = await client.send("no", taskId=tasks[1]["id"])
    assert uses(used) and state(ended) == "failed"


async def test_a_question_without_an_answer_is_a_no(workspace: Path) -> None:
    (workspace / "settings.json").write_text("{}")
    settings = {"bridge_question_timeout_ms": 100}
    async with serving_careful(workspace, "ask", **settings) as server:
        client = server.client()
        asked = await client.send("env")
        async with asyncio.timeout(WITHIN):
            async with client.subscribe(asked["id"]) as items:
                async for _ in items:
                    pass
        task = await client.get(asked["id"])
    assert state(task) == "completed" and not uses(task)


async def test_no_place_is_held_while_it_is_asked(workspace: Path) -> None:
    (workspace / "settings.json").write_text("{}")
    async with serving_careful(workspace, "ask", bridge_max_sessions=1) as server:
        client = server.client()
        first, second = [await client.send("env") for _ in range(2)]
        assert state(await client.send("yes", taskId=second["id"])) == "completed"
        assert state(await client.send("yes", taskId=first["id"])) == "completed"


async def test_a_cancel_ends_the_question(workspace: Path) -> None:
    (workspace / "settings.json").write_text("{}")
    async with serving_careful(workspace, "ask") as server:
        client = server.client()
        asked = await client.send("env")
        assert state(await client.cancel(asked["id"])) == "canceled"
        again = await client.send("env", contextId=asked["contextId"])
        assert state(again) == "input-required"
        await client.cancel(again["id"])


async def test_it_is_answered_after_a_restart_and_that_is_kept(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    (workspace / "settings.json").write_text("{}")
    settings = scripted(workspace) | {"AGENT_ADAPTER": NAME, "AGENT_PROJECT_CONFIG": "ask"}
    async with bridge(workspace, **settings) as server:
        asked = await Client(http, server.url).send("env")
        assert await server.stop(signal.SIGKILL) == -signal.SIGKILL
    async with bridge(workspace, **settings) as server:
        client = Client(http, server.url)
        wrong = await client.send("perhaps", taskId=asked["id"])  # when the worker has looked
        assert len(wrong["history"]) == len(asked["history"]) + 2  # it was asked once until then
        task = await client.send("yes", taskId=asked["id"])
        assert uses(task)
    async with bridge(workspace, **settings) as server:
        client = Client(http, server.url)
        assert uses(await client.send("env", contextId=asked["contextId"]))
        other = await client.send("env")
        assert await server.stop(signal.SIGKILL) == -signal.SIGKILL
    async with bridge(workspace, **settings, BRIDGE_QUESTION_TIMEOUT_MS="200") as server:
        client = Client(http, server.url)
        assert not uses(await finished(client, other["id"]))
