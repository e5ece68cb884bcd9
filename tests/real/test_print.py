"""Real CLIs in their print modes, on scripted models, through the real server: with `generic`, as
docs/agents.md describes it.

Each turn is a process of the CLI, which takes seconds. So each CLI has one server, and each turn
shows several things. The soak tier has the CLIs that take longest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.cli_row import Cli
from tests.support.client import Json, artifact_text, context_id, said, state, states, task_id
from tests.support.print_recipes import recipe, rows
from tests.support.real_claude_code import GONE_WITHIN, command_line, running_command, script
from tests.support.real_clis import CLIS, Real, each, gone, serving

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

INSTALLED = [cli for cli in CLIS if cli.name in rows() and cli.name != "opencode"]
"""A recording covers opencode, which starts too slowly for turns that are processes."""
each_cli = each(INSTALLED, "codex")  # the quickest one


@asynccontextmanager
async def printing(cli: Cli, folder: Path, **env: str) -> AsyncIterator[Real]:
    own = folder / "home/of-cli"

    def configure(url: str, home: Path) -> None:
        own.mkdir()
        cli.configure(url, own)

    settings = {"AGENT_MODEL": "", **recipe(cli.name, own), **env}
    async with serving(replace(cli, configure=configure), folder, **settings) as real:
        yield real


@each_cli
async def test_a_turn_is_a_process(cli: Cli, tmp_path: Path) -> None:
    """Six of them, one after the other, and a restart of the server."""
    async with printing(cli, tmp_path, BRIDGE_STATE_DIR=str(tmp_path / "state")) as real:
        context = await answered(real)
        await command_runs(real, context)
        await error_fails_the_turn(real, context)
        await cancel_ends_the_command(real, context)
        await real.server.stop()
        await real.restart(**recipe(cli.name, real.home / "of-cli", allows=False))
        task = await real.client().send(script("go on", "the new answer"), **context)
        assert (state(task), artifact_text(task).strip()) == ("completed", "the new answer")
        assert "to be remembered" not in json.dumps(real.requests("go on")[-1])
        await command_is_denied(real)


async def answered(real: Real) -> Json:
    task = await real.client().send(script("to be remembered", "Hello from the model."))
    assert state(task) == "completed", said(task)
    assert artifact_text(task).strip() == "Hello from the model."
    return {"contextId": context_id(task)}


async def command_runs(real: Real, context: Json) -> None:
    """Without a question. What the model thinks is not part of its answer."""
    path = real.workspace / "written.txt"
    command = real.run(f"echo hello | tee {path}")
    thought = {"thinking": "Let me think", "text": "the end"}
    items = await real.client().collect(script("run", command, thought), **context)
    assert states(items)[-1] == "completed", items[-1]
    assert path.read_text() == "hello\n"
    task = await real.client().get(task_id(items[0]))
    assert artifact_text(task).strip() == "the end"


async def error_fails_the_turn(real: Real, context: Json) -> None:
    """An error of the model; the next turn works."""
    task = await real.client().send(script("fail", {"error": 401}), **context)
    assert state(task) == "failed" and "401" in said(task), said(task)


async def cancel_ends_the_command(real: Real, context: Json) -> None:
    others = set(real.processes())
    async with running_command() as command:
        sent = script("a secret word", real.run(command.line), "never")
        task = await real.client().send_now(sent, **context)
        await command.begun()
        own = set(real.processes()) - others
        assert own and not any("a secret word" in " ".join(command_line(one)) for one in own)
        assert state(await real.client().cancel(task_id(task))) == "canceled"
        async with asyncio.timeout(GONE_WITHIN):
            await command.ended.wait()
    await gone(own)


async def command_is_denied(real: Real) -> None:
    """Without the argument that allows it, because no client can be asked."""
    path = real.workspace / "never.txt"
    task = await real.client().send(script("run", real.run(f"touch {path}"), "the end"))
    assert (state(task), path.exists()) == ("completed", False), said(task)
    assert artifact_text(task).strip().endswith("the end")


PROMPTS = ("/help", "!echo hi", "--help", "-", 'say "it\'s" $(so)')


@pytest.mark.parametrize(
    "prompts",
    [pytest.param(PROMPTS[:1], id="one"), pytest.param(PROMPTS[1:], marks=pytest.mark.soak)],
)
@each_cli
async def test_a_prompt_reaches_the_model_as_it_is(
    cli: Cli, tmp_path: Path, prompts: tuple[str, ...]
) -> None:
    """A process for each prompt: the first one in each run, the others in the soak tier."""
    async with printing(cli, tmp_path) as real:
        for text in prompts:
            task = await real.client().send(script(text, {"echo": True}))
            assert state(task) == "completed", (text, said(task))
            echoed = [part["text"] for part in json.loads(artifact_text(task))]
            wanted = f"\u200b{text} @@" if text[0] in "/!" else f"{text} @@"
            assert any(one.rpartition("\n\n")[2].startswith(wanted) for one in echoed), echoed
