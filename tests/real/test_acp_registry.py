"""An agent of the public ACP registry, by its id there: the real Kimi Code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.client import artifact_text, context_id, said, state
from tests.support.real_claude_code import answer, ask, script
from tests.support.real_clis import CLIS, serving

pytestmark = [pytest.mark.real, pytest.mark.soak, pytest.mark.timeout(180)]


async def test_an_agent_works_as_its_manifest_says(tmp_path: Path) -> None:
    """A start of the CLI takes seconds."""
    (cli,) = (one for one in CLIS if one.name == "kimi")
    env = {"AGENT_ADAPTER": "acp:kimi", "AGENT_ENV": "KIMI_*", "BRIDGE_SANDBOX": "none"}
    async with serving(cli, tmp_path, **env) as real:
        client = real.client()
        task = await ask(client, script("run", real.run("echo x > file.txt"), "the end"))
        task = await answer(client, task, "yes")
        assert (state(task), artifact_text(task)) == ("completed", "the end"), said(task)
        assert (real.workspace / "file.txt").exists()
        task = await client.send(script("next", "mine"), contextId=context_id(task))
        assert artifact_text(task) == "mine"
        assert "acp:kimi is unverified" in real.server.log
