"""Google ADK as a client: what its users, and models that have the agent as a tool, are told.

Each test starts a Python that imports ADK, which takes 1 s.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.client import Json
from tests.programs import missing
from tests.served import Server, serving

CHECKOUT = Path(__file__).parent.parent
PYTHON = CHECKOUT / ".venvs/adk/bin/python"
DRIVER = CHECKOUT / "tests/ecosystems/adk_client.py"
DOCUMENT = CHECKOUT / "docs/clients.md"
WITHIN = 60.0
TOOL = json.dumps({"type": "tool_call", "id": "1", "name": "Bash", "input": {"command": "ls"}})
BROKE = json.dumps({"type": "failed", "text": "It broke."})
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not PYTHON.exists(), reason=missing("google-adk")),
]


async def play(server: Server, tmp_path: Path, *prompts: str) -> Json:
    """What its users get for these prompts of one session."""
    section = DOCUMENT.read_text().partition("## Google ADK")[2]
    snippet = section.partition("```python\n")[2].partition("```")[0]
    pipes: Any = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(
        str(PYTHON), str(DRIVER), snippet, server.url, *prompts, cwd=tmp_path, **pipes
    )
    try:
        async with asyncio.timeout(WITHIN):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, errors.decode()
    report: Json = json.loads(output)
    return report


async def test_the_answer_is_shown_kept_and_what_the_tool_returns(
    workspace: Path, tmp_path: Path
) -> None:
    async with serving(workspace) as server:
        seen = await play(server, tmp_path, f"text I look.\nline {TOOL}\ntext It is fine.")
    assert seen["agent"] == [
        {"shown": "I look.\n\nIt is fine.", "kept": ["It is fine."], "error": None}
    ]
    assert seen["tool"] == "It is fine."


async def test_a_question_is_shown_and_answered_without_a_task_id(
    workspace: Path, tmp_path: Path
) -> None:
    async with serving(workspace) as server:
        seen = await play(server, tmp_path, "permit q May I?", "Go on.")
    asked, answered = seen["agent"]
    choice = 'Reply with exactly one of: "Go on", "Do not". Or reply in your own words.'
    assert asked["kept"] == [f"May I?\n{choice}"]
    assert answered["kept"] == ['answered ["q", "Go on.", "yes"]']


async def test_a_failure_is_told(workspace: Path, tmp_path: Path) -> None:
    async with serving(workspace) as server:
        seen = await play(server, tmp_path, f"line {BROKE}")
    assert seen["agent"][0]["kept"] == ["It broke."]
    assert seen["tool"] == "It broke."
