"""The real Gemini CLI as a client: its remote agents (`kind: remote`) are the bridge's. What is
compared is what its model is told of each delegation, as text.

Each test starts the CLI, which takes 3 s.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import NODE
from tests.client import Json, said, state
from tests.gemini_server import GeminiServer
from tests.programs import missing
from tests.real_claude_code import script
from tests.real_clis import KEY, of_gemini
from tests.served import Server, serving

GEMINI = Path(__file__).parent / "clis/node_modules/.bin/gemini"
DOCUMENT = Path(__file__).parent.parent / "docs/clients.md"
WITHIN = 60.0
READS_AS_A_PERSON = 0.8  # seconds; what is faster may be an answer to an earlier question
TOOL = json.dumps({"type": "tool_call", "id": "1", "name": "Bash", "input": {"command": "ls"}})
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not GEMINI.exists(), reason=missing("gemini")),
]
BROKE = json.dumps({"type": "failed", "text": "It broke."})


def block(language: str) -> str:
    """The block of this language in the CLI's section of docs/clients.md."""
    section = DOCUMENT.read_text().partition("## Gemini CLI")[2]
    return section.partition(f"```{language}\n")[2].partition("```")[0]


def delegate(prompt: str) -> Json:
    arguments = {"agent_name": "coder", "prompt": prompt}
    return {"tool": "invoke_agent", "input": arguments, "delay": READS_AS_A_PERSON}


async def told(server: Server, home: Path, prompts: Sequence[str]) -> list[str]:
    """What the model of a Gemini CLI is told when it delegates these prompts one by one."""
    async with GeminiServer() as model:
        of_gemini(model.url, home)
        folder = home / ".gemini"
        settings = json.loads((folder / "settings.json").read_text())
        settings |= json.loads(block("json"))
        (folder / "settings.json").write_text(json.dumps(settings))
        (folder / "agents").mkdir()
        agent = block("markdown").replace("http://127.0.0.1:41242", server.url)
        assert server.url in agent
        (folder / "agents/coder.md").write_text(agent)
        env = {
            "PATH": f"{NODE}:{os.environ['PATH']}",
            "HOME": str(home),
            "GEMINI_API_KEY": KEY,
            "BRIDGE_TOKEN": "any, since this server is open",
            "GOOGLE_GEMINI_BASE_URL": model.url,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        }
        prompt = script("Go.", *map(delegate, prompts), "The end.")
        argv = (str(GEMINI), "--yolo", "--model=gemini-2.5-flash", f"--prompt={prompt}")
        pipes: Any = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
        process = await asyncio.create_subprocess_exec(*argv, cwd=home, env=env, **pipes)
        try:
            async with asyncio.timeout(WITHIN):
                output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        assert "The end." in output.decode(), errors.decode()
        return list(responses(model.requests[-1]["messages"]))


def responses(messages: list[Json]) -> Any:
    for message in messages:
        for part in message["parts"]:
            if found := part.get("functionResponse"):
                yield found["response"].get("output") or found["response"].get("error")


async def test_its_model_is_told_the_answer_and_no_json(workspace: Path, tmp_path: Path) -> None:
    async with serving(workspace) as server:
        (answer,) = await told(server, tmp_path, [f"text I look.\nline {TOOL}\ntext It is fine."])
    lines = ["Using tool: Bash", "It is fine.", "", "Artifact (Assistant response):"]
    assert answer.splitlines() == [*lines, "I look.", "", "It is fine."]


async def test_it_answers_a_question_and_begins_the_next_task(
    workspace: Path, tmp_path: Path
) -> None:
    async with serving(workspace) as server:
        asked, answered, following = await told(
            server, tmp_path, ["permit q May I?", "Go on.", "turn"]
        )
    assert (
        asked == 'May I?\nReply with exactly one of: "Go on", "Do not". Or reply in your own words.'
    )
    assert 'answered ["q", "Go on.", "yes"]' in answered
    assert "2" in following


async def test_a_failure_is_told(workspace: Path, tmp_path: Path) -> None:
    async with serving(workspace) as server:
        (answer,) = await told(server, tmp_path, [f"line {BROKE}"])
    assert "It broke." in answer


async def test_an_aborted_task_does_not_keep_it_from_the_next(
    workspace: Path, tmp_path: Path
) -> None:
    """It goes on naming the task that it had dropped."""
    async with serving(workspace) as server:
        client = server.client("0.3")
        asked = await client.send("permit q May I?")
        ids = {"taskId": asked["id"], "contextId": asked["contextId"]}
        await client.cancel(asked["id"])
        following = await client.send("text fine", **ids)
    assert (state(following), said(following)) == ("completed", "fine")


async def test_three_delegations_are_short_and_readable(workspace: Path, tmp_path: Path) -> None:
    """A recorded task of Claude Code with two questions."""
    replay: Json = {"agent_adapter": "replay", "agent_binary": None, "agent_args": ()}
    async with serving(workspace, **replay) as server:
        parts = await told(server, tmp_path, ["Add a --shout flag to greet.py", "Allow", "Allow"])
    assert sum(map(len, parts)) <= 1300
    assert "{" not in "".join(parts).replace('f"Hello, {name}', "")
    asks, again, done = parts
    choice = 'Reply with exactly one of: "Allow", "Always allow in this session", "Deny".'
    assert choice in asks and choice in again
    assert "prints `HELLO, ADA!`" in done
