"""Every real CLI in the same scenarios, through the real server, on a scripted model. A run
prints the table of its results; docs/agents.md has the expected one (tests/support/matrix.py).

A start of a CLI takes seconds, and a turn a fraction of one. So each CLI has one conversation, in
which the scenarios follow each other; only those that need a new process start one. Two CLIs play
all scenarios in each run, and two others those of one process; the soak tier has the rest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.support.cli_row import Cli, Step
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
from tests.support.matrix import CANNOT, SCENARIOS, cell
from tests.support.real_claude_code import (
    GONE_WITHIN,
    all_facts,
    answer,
    ask,
    ask_user,
    question,
    running_command,
    script,
)
from tests.support.real_clis import CLIS, OVER_ACP, Real, each, gone, serving
from tests.support.refusals import refused
from tests.support.soak_clis import SOAK_CLIS

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

QUICK = ("claude-code", "codex")
OTHERS = [cli for cli in CLIS if cli.name not in QUICK]
# They do not report the tokens of a turn.
UNCOUNTED = ("cline", "codex-acp", "droid", "kimi", "openhands", "deepagents")
# They send no image to a model that they do not know, or none at all.
NAMED_IMAGES = {
    **dict.fromkeys(("cline", *(cli.name for cli in SOAK_CLIS)), "dot.png"),
    "qwen": "[image: image/png]",
}
ASKING_APART = ("hermes", "deepagents")  # a permission request is a tool call of its own
UNNAMED = ("grok", "deepagents")  # they do not report their version
# two pixels wide, two high
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEUlEQVR4nGP4z8AARGDiPwMAHfAD/aAzCYkAAAAASUVORK5CYII="  # noqa: E501


@dataclass
class Conversation:
    """The conversation of one CLI. `context` is the member that continues it."""

    real: Real
    context: Json = field(default_factory=dict)

    @property
    def cli(self) -> Cli:
        return self.real.cli

    @property
    def client(self) -> Client:
        return self.real.client()

    async def send(self, text: str, *steps: Step) -> Json:
        task = await self.client.send(script(text, *steps), **self.context)
        self.context = {"contextId": context_id(task)}
        return task

    async def collect(self, text: str, *steps: Step) -> list[Json]:
        """The items of a stream that ends well."""
        items = await self.client.collect(script(text, *steps), **self.context)
        assert states(items)[-1] == "completed", said(items[-1])
        self.context = {"contextId": context_id(items[0])}
        return items

    async def ask(self, command: str) -> Json:
        """A task that waits for the permission to run a command."""
        asking = script("run", self.real.run(command), "the end")
        task = await ask(self.client, asking, **self.context)
        self.context = {"contextId": context_id(task)}
        return task

    async def answer(self, task: Json, word: str) -> Json:
        """The task after the answer. aider asks after each command whether the model may see the
        output."""
        task = await answer(self.client, task, word)
        while state(task) == "input-required":
            task = await answer(self.client, task, "no")
        assert state(task) == "completed", said(task)
        return task

    async def goes_on(self, *remembered: str) -> None:
        """The next message is a turn of this conversation, of which the model sees all."""
        task = await self.send("go on then", "the new answer")
        assert state(task) == "completed", said(task)
        assert artifact_text(task).strip() == "the new answer"
        seen = json.dumps(self.real.requests("go on then")[-1])
        assert [text for text in remembered if text not in seen] == []


async def stream(talk: Conversation) -> None:
    text = "Hello from the model.\nIt has two lines."
    items = await talk.collect("to be kept in mind", {"text": text, "chunks": 4})
    assert streamed_text(items).strip() == text
    assert len([item for item in items if "artifactUpdate" in item]) > 1
    task = await talk.client.get(task_id(items[0]))
    assert artifact_text(task).strip() == text
    if talk.cli.name not in UNNAMED:
        assert task["metadata"]["bridge"]["cliVersion"].startswith(talk.cli.version)
    counted(talk.cli, task)


def counted(cli: Cli, task: Json) -> None:
    """The tokens of the task are those of its turn."""
    if cli in OVER_ACP and cli.name not in UNCOUNTED:
        used = {"inputTokens": 100, "outputTokens": 20}
        assert used.items() <= task["metadata"]["usage"].items()


async def two_turns(talk: Conversation) -> None:
    agents = {process for process in talk.real.processes() if process.is_running()}
    second = await talk.send("another", "answer two")
    assert artifact_text(second).strip() == "answer two"
    counted(talk.cli, second)
    assert min(agents, key=psutil.Process.create_time) in talk.real.processes()
    seen = json.dumps(talk.real.requests("another")[-1])
    assert "to be kept in mind" in seen
    assert "It has two lines." in seen
    if talk.cli in OVER_ACP and talk.cli.name != "openhands":  # it shows no reasoning
        await thoughts(talk)
    if talk.cli.name == "claude-agent-acp":
        await question_is_a_form(talk)


async def thoughts(talk: Conversation) -> None:
    items = await talk.collect("think", {"thinking": "let me see", "text": "seen"})
    thoughts = "".join(fact["text"] for fact in all_facts(items, "thought"))
    assert "let me see" in thoughts  # gemini makes a heading of it
    assert streamed_text(items) == "seen"


async def image_is_seen(talk: Conversation) -> None:
    image = {"raw": PNG, "mediaType": "image/png", "filename": "dot.png"}
    parts = [{"text": script("look", {"echo": True})}, image]
    seen = json.loads(artifact_text(await talk.client.send(parts, **talk.context)))
    if talk.cli.name in NAMED_IMAGES:
        assert NAMED_IMAGES[talk.cli.name] in json.dumps(seen)
    else:
        assert "image/png" in [part.get("media_type") for part in seen]


async def question_is_a_form(talk: Conversation) -> None:
    """What only the model of this CLI can do."""
    asked = ask_user(question("Which colour?", "Red", "Blue"))
    task = await ask(talk.client, script("ask", asked, "thanks"), **talk.context)
    assert (facts(task)["kind"], facts(task)["freeText"]) == ("choice", True)
    task = await answer(talk.client, task, "Blue")
    assert artifact_text(task) == "thanks"
    assert '\\"Which colour?\\"=\\"Blue\\"' in json.dumps(talk.real.requests("Which colour?")[-1])


async def allow(talk: Conversation) -> None:
    path = talk.real.workspace / "allowed.txt"
    task = await talk.ask(f"echo x > {path}")
    assert facts(task)["kind"] == "permission"
    assert str(path) in said(task)
    assert {"allow_once", "reject_once"} <= {one["kind"] for one in facts(task)["options"]}
    task = await talk.answer(task, "yes")
    assert path.exists()
    assert "tool_result" in [fact.get("type") for fact in told(task)]


async def deny(talk: Conversation) -> None:
    path = talk.real.workspace / "denied.txt"
    await talk.answer(await talk.ask(f"echo x > {path}"), "no")
    assert not path.exists()


async def model_error(talk: Conversation) -> None:
    """The next message of the conversation is answered."""
    task = await talk.send("fail", {"error": 401})
    assert state(task) == "failed"
    assert any(word in said(task) for word in ("401", "scripted", "uthenti", "API key")), said(task)
    assert task["metadata"]["bridge"]["reason"]
    again = await talk.send("again", "fine")
    assert artifact_text(again).strip() == "fine"


async def cancel_asked(talk: Conversation) -> None:
    path = talk.real.workspace / "never.txt"
    task = await talk.ask(f"touch {path}")
    assert talk.real.processes()
    assert state(await talk.client.cancel(task_id(task))) == "canceled"
    await talk.real.nothing_left()
    assert not path.exists()


async def after_a_cancel(talk: Conversation) -> None:
    """The canceled process is gone: the next one loads the stored conversation."""
    await talk.goes_on("to be kept in mind", "It has two lines.")


async def cancel_running(talk: Conversation) -> None:
    async with running_command() as command:
        asking = script("run", talk.real.run_outside(command.line), "never")
        task = await ask(talk.client, asking, **talk.context)
        params: Json = {"message": talk.client.message("yes", taskId=task_id(task))}
        params["configuration"] = {"returnImmediately": True}
        await talk.client.call("SendMessage", params)
        await command.begun()
        assert talk.real.processes()
        assert state(await talk.client.cancel(task_id(task))) == "canceled"
        async with asyncio.timeout(GONE_WITHIN):
            await command.ended.wait()
    await talk.real.nothing_left()


async def question_after_a_restart(talk: Conversation) -> None:
    """The server is killed while a question is open. The next server takes the answer."""
    path = talk.real.workspace / "after.txt"
    task = await talk.ask(f"touch {path}")
    await talk.real.kill()
    await talk.real.restart()
    assert state(await talk.client.get(task_id(task))) == "input-required"
    task = await talk.answer(task, "yes")
    assert path.exists(), told(task)
    assert artifact_text(task).endswith("the end")


async def resume(talk: Conversation) -> None:
    """The next server has AGENT_FORCE, for `tool`."""
    if talk.cli.name != "aider":  # its terminal ends with the server
        await question_after_a_restart(talk)
    own = set(talk.real.processes())
    await talk.real.server.stop()
    await gone(own)
    await talk.real.restart(AGENT_FORCE="true", **talk.cli.force)
    await talk.goes_on("to be kept in mind", "It has two lines.")


async def tool(talk: Conversation) -> None:
    path = talk.real.workspace / "by-command.txt"
    run = talk.real.run(f"echo written | tee {path}")
    items = await talk.collect("run", run, "the end")
    assert "input-required" not in states(items)
    assert path.read_text() == "written\n"
    *earlier, call = all_facts(items, "tool_call")  # it is told again once its input is known
    (result,) = all_facts(items, "tool_result")
    calls = [one for one in (*earlier, call) if one["id"] == result["id"]]
    assert calls
    if talk.cli.name not in ASKING_APART:
        assert calls == [*earlier, call]
    assert "by-command.txt" in json.dumps([*earlier, call])
    assert result["status"] == "completed"
    if talk.cli.name != "aider":  # it does not call its model again after a command
        assert streamed_text(items).strip().endswith("the end")


OF_ONE_PROCESS: dict[str, Callable[[Conversation], Awaitable[None]]] = {
    "stream": stream,
    "two turns": two_turns,
    "allow": allow,
    "deny": deny,
    "model error": model_error,
    "cancel asked": cancel_asked,
}
PLAYS = {
    **OF_ONE_PROCESS,
    "after a cancel": after_a_cancel,
    "cancel running": cancel_running,
    "resume": resume,
    "tool": tool,
}
"""In this order; the conversation is the same. `no binary` has a server of its own."""
Record = Callable[[str, object], None]


@pytest.mark.long
@each(CLIS, *QUICK)
async def test_a_conversation_with_every_scenario(
    cli: Cli, tmp_path: Path, record_property: Record
) -> None:
    """A CLI is started four times, which takes up to 20 s with those of each run."""
    env = {"BRIDGE_STATE_DIR": str(tmp_path / "state"), "BRIDGE_MAX_SESSIONS": "1"}
    async with serving(cli, tmp_path, **env) as real:
        talk = Conversation(real)
        for name, play in PLAYS.items():
            if (cli.name, name) in CANNOT:
                continue
            with cell(record_property, cli, name):
                await play(talk)
        if cli in OVER_ACP:
            await image_is_seen(talk)


@pytest.mark.long
@each(OTHERS, "copilot", "gemini")
async def test_a_conversation_in_one_process(
    cli: Cli, tmp_path: Path, record_property: Record
) -> None:
    """A short case of the CLIs above that each run omits: they are started once, which takes up to
    20 s."""
    async with serving(cli, tmp_path) as real:
        talk = Conversation(real)
        for name, play in OF_ONE_PROCESS.items():
            with cell(record_property, cli, name):
                await play(talk)


@each(CLIS, "claude-code")
async def test_a_conversation_resumes_after_a_cancel_of_its_first_turn(
    cli: Cli, tmp_path: Path
) -> None:
    """Three starts of the CLI. The other conversation stays out of it."""
    async with serving(cli, tmp_path, BRIDGE_MAX_SESSIONS="1") as real:
        other = await Conversation(real).send("to be kept in mind", "so be it")
        assert state(other) == "completed", said(other)
        talk = Conversation(real)
        await cancel_asked(talk)
        await talk.goes_on()
        assert "kept in mind" not in json.dumps(real.requests("go on then")[-1])


@pytest.mark.parametrize("cli", CLIS, ids=str)
def test_a_cli_that_is_missing_is_named(cli: Cli, tmp_path: Path, record_property: Record) -> None:
    (tmp_path / "workspace").mkdir()
    env = {"AGENT_ADAPTER": cli.name, "AGENT_BINARY": str(tmp_path / "missing")}
    with cell(record_property, cli, "no binary"):
        log = refused(tmp_path / "workspace", **env)
        assert "missing was not found" in log
        assert "AGENT_BINARY" in log or "PATH" in log


@pytest.mark.soak
async def test_gemini_without_a_key_says_how_to_log_in(tmp_path: Path) -> None:
    (cli,) = (one for one in CLIS if one.name == "gemini")
    async with serving(cli, tmp_path, GEMINI_API_KEY="", GOOGLE_GEMINI_BASE_URL="") as real:
        task = await real.client().send(script("x", "y"))
        assert state(task) == "failed"
        assert task["metadata"]["bridge"]["reason"] == "auth"
        assert "Gemini API key" in said(task)


def test_every_scenario_is_played() -> None:
    assert {*PLAYS, "no binary"} == set(SCENARIOS)
    assert {name for name, _ in CANNOT} <= {cli.name for cli in CLIS}
