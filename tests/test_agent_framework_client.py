"""Microsoft Agent Framework as a client: what its users are told."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.client import Json
from tests.liveness import listening
from tests.programs import missing
from tests.served import Server, serving

CHECKOUT = Path(__file__).parent.parent
PYTHON = CHECKOUT / ".venvs/agent-framework/bin/python"
DRIVER = CHECKOUT / "tests/ecosystems/agent_framework_client.py"
DOCUMENT = CHECKOUT / "docs/clients.md"
WITHIN = 150.0
TOOL = json.dumps({"type": "tool_call", "id": "1", "name": "Bash", "input": {"command": "ls"}})
BROKE = json.dumps({"type": "failed", "text": "It broke."})
pytestmark = [
    pytest.mark.soak,
    pytest.mark.real,
    pytest.mark.timeout(WITHIN + 30),
    pytest.mark.skipif(not PYTHON.exists(), reason=missing("agent-framework")),
]


async def play(server: Server, tmp_path: Path, *prompts: str) -> Json:
    """What its users get for these prompts of one session."""
    section = DOCUMENT.read_text().partition("## Microsoft Agent Framework")[2]
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


async def test_the_answer_is_whole_and_a_stream_repeats_its_last_block(
    workspace: Path, tmp_path: Path
) -> None:
    async with serving(workspace) as server:
        seen = await play(server, tmp_path, f"text I look.\nline {TOOL}\ntext It is fine.")
    whole = "I look.\n\nIt is fine."
    assert seen == {"runs": [whole], "stream": f"{whole}It is fine."}


async def test_a_question_is_shown_and_answered_and_a_failure_is_told(
    workspace: Path, tmp_path: Path
) -> None:
    async with serving(workspace) as server:
        seen = await play(server, tmp_path, "permit q May I?", "Go on.", f"line {BROKE}")
    asked, answered, failed = seen["runs"]
    choice = 'Reply with exactly one of: "Go on", "Do not". Or reply in your own words.'
    assert asked == f"May I?\n{choice}"
    assert answered == 'answered ["q", "Go on.", "yes"]'
    assert failed == "It broke."


async def test_a_run_may_take_longer_than_its_limit_of_silence(
    workspace: Path, tmp_path: Path
) -> None:
    """It gives up after 60 s without a byte; this run takes 70 s."""
    async with serving(workspace) as server, listening() as live:
        playing = asyncio.create_task(play(server, tmp_path, f"wait {live.path} a\ntext done"))
        await live.pid("a")
        await asyncio.sleep(70)
        await live.release("a")
        assert (await playing)["runs"] == ["done"]
