"""What the model of the real Gemini CLI is told in three delegations, as docs/clients.md shows it.
tests/real/test_clients.py has the other tests of this client.

The CLI starts within 5 s.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.client import Json
from tests.support.client_driver import READS_AS_A_PERSON, TOKEN, driving
from tests.support.client_matrix import BY_NAME, DOCUMENT
from tests.support.programs import missing
from tests.support.served import serving

GEMINI = BY_NAME["gemini"]
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not GEMINI.installed, reason=missing("gemini")),
]


async def test_three_delegations_are_short_and_readable(workspace: Path, tmp_path: Path) -> None:
    """A recorded task of Claude Code with two questions."""
    replay: Json = {"agent_adapter": "replay", "agent_binary": None, "agent_args": ()}
    async with (
        serving(workspace, bridge_token=TOKEN, **replay) as server,
        driving(GEMINI, server.url, tmp_path) as driver,
    ):
        parts = []
        for prompt in ("Add a --shout flag to greet.py", "Allow", "Allow"):
            parts.append((prompt, await driver.say(prompt)))
            await asyncio.sleep(READS_AS_A_PERSON)
    assert sum(len(text) for _, text in parts) <= 1300
    transcript = "\n\n".join(f"> {prompt}\n\n{text}" for prompt, text in parts)
    assert f"```\n{transcript}\n```" in DOCUMENT.read_text("utf-8"), transcript
