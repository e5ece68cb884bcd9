"""Real CLIs that speak ACP, on a scripted model, through the real server: what the adapter says
and hears is what they do. What all CLIs must do is in test_matrix.py."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.client import (
    artifact_text,
    context_id,
    facts,
    said,
    state,
    states,
    streamed_text,
    task_id,
)
from tests.support.real_claude_code import all_facts, answer, ask, running_command, script, tool
from tests.support.real_clis import OVER_ACP as CLIS
from tests.support.real_clis import Cli, Real, gone, serving

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(180),
]

UNCOUNTED = ("cline", "codex-acp", "droid")  # they do not say how many tokens a turn took
# two pixels wide, two high
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEUlEQVR4nGP4z8AARGDiPwMAHfAD/aAzCYkAAAAASUVORK5CYII="  # noqa: E501


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=CLIS, ids=lambda cli: cli.name)
async def real(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Real]:
    async with serving(request.param, tmp_path_factory.mktemp("acp")) as server:
        yield server


# --- turns ---------------------------------------------------------------------------------------


async def test_a_message_is_answered(real: Real) -> None:
    items = await real.client().collect(script("Say it.", "Hello from the model."))
    assert states(items)[-1] == "completed"
    assert streamed_text(items) == "Hello from the model."
    task = await real.client().get(task_id(items[0]))
    assert task["metadata"]["bridge"]["cliVersion"] == real.cli.version
    assert said(task) == "Hello from the model."
    if real.cli.name not in UNCOUNTED:
        used = {"inputTokens": 100, "outputTokens": 20}
        assert used.items() <= task["metadata"]["usage"].items()


async def test_a_cancel_ends_the_command_and_the_next_message_goes_on(real: Real) -> None:
    client = real.client()
    others = set(real.processes())
    first = await client.send(script("to be remembered", "the old answer"))
    own = set(real.processes()) - others
    assert own
    async with running_command() as command:
        task = await ask(
            client, script("run", real.run(command.line), "never"), contextId=context_id(first)
        )
        params = {"message": client.message("yes", taskId=task_id(task))}
        params["configuration"] = {"returnImmediately": True}
        await client.call("SendMessage", params)
        await command.begun()
        assert state(await client.cancel(task_id(task))) == "canceled"
        async with asyncio.timeout(15):
            await command.ended.wait()
    await gone(own)
    items = await client.collect(script("go on", "the new answer"), contextId=context_id(first))
    assert states(items)[-1] == "completed", items[-1]
    assert streamed_text(items) == "the new answer"
    seen = json.dumps(real.requests("go on")[-1])
    assert "to be remembered" in seen
    assert "the old answer" in seen


async def test_thoughts_are_told(real: Real) -> None:
    step = {"thinking": "let me see", "text": "seen"}
    items = await real.client().collect(script("think", step))
    thoughts = "".join(fact["text"] for fact in all_facts(items, "thought"))
    assert "let me see" in thoughts  # gemini makes a heading of it
    assert streamed_text(items) == "seen"


async def test_an_image_reaches_the_model(real: Real) -> None:
    parts = [
        {"text": script("look", {"echo": True})},
        {"raw": PNG, "mediaType": "image/png", "filename": "dot.png"},
    ]
    task = await real.client().send(parts)
    seen = json.loads(artifact_text(task))
    if real.cli.name in ("cline", "qwen"):  # which give no image to a model that they do not know
        assert "dot.png" in json.dumps(seen)
    else:
        assert "image/png" in [part.get("media_type") for part in seen]


# --- a server that ends --------------------------------------------------------------------------


@pytest.mark.parametrize("cli", CLIS, ids=lambda cli: cli.name)
async def test_a_question_outlives_the_server(cli: Cli, tmp_path: Path) -> None:
    state_folder = {"BRIDGE_STATE_DIR": str(tmp_path / "state")}
    async with serving(cli, tmp_path, **state_folder) as real:
        path = real.workspace / "after.txt"
        task = await ask(real.client(), script("run", real.run(f"touch {path}"), "the end"))
        await real.kill()
        await real.restart()
        assert state(await real.client().get(task_id(task))) == "input-required"
        task = await answer(real.client(), task, "yes")
        assert (state(task), path.exists()) == ("completed", True)
        assert artifact_text(task).endswith("the end")


# --- what only one of them does ------------------------------------------------------------------


async def test_claude_s_question_is_a_form(tmp_path: Path) -> None:
    options = [{"label": "Red", "description": "r"}, {"label": "Blue", "description": "b"}]
    question: dict[str, Any] = {"question": "Which colour?", "header": "Colour"}
    question |= {"multiSelect": False, "options": options}
    async with serving(CLIS[0], tmp_path) as real:
        asked = script("ask", tool("AskUserQuestion", questions=[question]), "thanks")
        task = await ask(real.client(), asked)
        assert (facts(task)["kind"], facts(task)["freeText"]) == ("choice", True)
        task = await answer(real.client(), task, "Blue — b")
        assert artifact_text(task) == "thanks"
        assert '\\"Which colour?\\"=\\"Blue\\"' in json.dumps(real.requests("Which colour?")[-1])


async def test_gemini_without_a_key_says_how_to_log_in(tmp_path: Path) -> None:
    cli = next(one for one in CLIS if one.name == "gemini")
    async with serving(cli, tmp_path, GEMINI_API_KEY="", GOOGLE_GEMINI_BASE_URL="") as real:
        task = await real.client().send(script("x", "y"))
        assert state(task) == "failed"
        assert task["metadata"]["bridge"]["reason"] == "auth"
        assert "Gemini API key" in said(task)
