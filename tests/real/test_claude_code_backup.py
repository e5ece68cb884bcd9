"""The real Claude Code, on a scripted model: a conversation continues on a restored folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bridge.server.operate.restore import restore
from tests.support.client import context_id, state, task_id
from tests.support.real_claude_code import (
    bash,
    claude_code,
    reason,
    running_command,
    script,
    session_id,
    user_texts,
)
from tests.support.restart import finished

pytestmark = pytest.mark.real


@pytest.mark.soak
async def test_a_conversation_continues_on_a_restored_folder(tmp_path: Path) -> None:
    """The first folder is lost in a turn. Two starts of the CLI take some seconds."""
    folder, env = tmp_path / "state", {"AGENT_FORCE": "true", "IS_SANDBOX": "1"}
    async with (
        running_command() as command,
        claude_code(tmp_path, BRIDGE_STATE_DIR=str(folder), **env) as real,
    ):
        client = real.client()
        first = await client.send(script("remember me", "noted"))
        key = context_id(first)
        working = await client.send_now(script("work", bash(command.line), "end"), contextId=key)
        await command.begun()
        body = {"folder": str(tmp_path / "backup")}
        async with real.http.post(f"{real.server.url}/admin/backup", json=body) as response:
            assert response.status == 200, await response.text()
        await real.kill()
        command.release()
        for process in real.processes():
            process.kill()
        shutil.rmtree(folder)
        restore(tmp_path / "backup", folder, same_id=True)
        await real.restart()
        client = real.client()
        assert await client.get(task_id(first)) == first
        lost = await finished(client, task_id(working))
        assert (state(lost), reason(lost)) == ("failed", "restart")
        again = await client.send(script("do you remember?", "yes"), contextId=key)
        assert state(again) == "completed" and session_id(again) == session_id(first)
        (*_, newest) = real.requests("do you remember?")
        assert any(text.startswith("remember me") for text in user_texts(newest))
