"""The official TypeScript client, and its package for the extension, in three revisions.

Each case is a process of node: a second. Each run has one case for each way of a question; the soak
tier has the others.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.liveness import Liveness, listening
from tests.support.mcp import MODERN, Mcp, shown
from tests.support.mcp_sdk import play
from tests.support.served import Server, serving

pytestmark = pytest.mark.real
TOOLS = ["list_agents", "delegate", "wait", "answer", "result", "cancel", "list_tasks"]
OLDER = "2025-11-25", "2025-06-18"


@pytest.fixture
async def server(workspace: Path) -> AsyncIterator[Server]:
    async with serving(workspace) as server:
        yield server


@pytest.fixture
async def live() -> AsyncIterator[Liveness]:
    async with listening() as live:
        yield live


@pytest.mark.parametrize(
    "revision", [MODERN, *(pytest.param(one, marks=pytest.mark.soak) for one in OLDER)]
)
async def test_all_tools(server: Server, revision: str) -> None:
    """The client validates each structured result by the schema of the list."""
    seen = await play(server.url, "tools", revision=revision)
    answer = 'answered ["q", "this", null] ended'
    assert seen == {
        "era": "modern" if revision == MODERN else "legacy",
        "listed": TOOLS,
        "agents": ["jsonl"],
        "states": ["input_required", "completed", "completed"],
        "read": answer,
        "own": True,
        "refused": True,
        "resource": answer,
    }


@pytest.mark.parametrize(
    "revision",
    [
        pytest.param(MODERN, marks=pytest.mark.soak),
        pytest.param(OLDER[0], marks=pytest.mark.soak),
        OLDER[1],
    ],
)
async def test_a_form_in_a_call(server: Server, revision: str) -> None:
    seen = await play(server.url, "form", revision=revision)
    assert seen["done"]["text"] == 'answered ["q", "", "yes"] ended'
    (form,) = seen["forms"]
    assert "May I?" in form["message"]
    assert form["requestedSchema"]["properties"]["decision"]["enum"] == ["Do not", "Go on"]


@pytest.mark.soak
async def test_a_task_with_a_form(server: Server) -> None:
    """A poll waits for the interval that the server proposes, up to 5 s."""
    seen = await play(server.url, "task")
    assert (seen["kind"], seen["status"], seen["forms"]) == ("task", "completed", 1)
    assert seen["done"]["text"] == 'answered ["q", "", "yes"] ended'


@pytest.mark.soak
async def test_a_task_survives_its_client(server: Server, live: Liveness) -> None:
    script = f"wait {live.path} agent\npermit q May I?\ntext  ended"
    left = await play(server.url, "leave", script)
    await live.pid("agent")
    (task,) = shown(await Mcp(server.http, server.url).tool("list_tasks"))["tasks"]
    assert (left["reference"]["taskId"], task["state"]) == (task["task_id"], "working")
    await live.release("agent")
    seen = await play(server.url, "resume", json.dumps(left["reference"]))
    assert (seen["status"], seen["forms"]) == ("completed", 1)
    assert seen["done"]["task_id"] == task["task_id"]


@pytest.mark.soak
async def test_a_canceled_task_leaves_no_process(server: Server, live: Liveness) -> None:
    script = f"here {live.path} agent\nspawn {live.path} child\nask q Which?"
    left = await play(server.url, "leave", script)
    await live.pid("agent")
    seen = await play(server.url, "cancel", json.dumps(left["reference"]))
    assert seen["status"] == "cancelled"
    await live.gone("agent", "child")
