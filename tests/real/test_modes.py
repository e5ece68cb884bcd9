"""The modes of the real CLIs, on scripted models: a message chooses one, a later message changes
it, and the process after a restart of the server begins in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bridge.server import registry
from tests.support.cli_row import Cli
from tests.support.client import Json, context_id, said, state
from tests.support.real_claude_code import script
from tests.support.real_clis import CLIS, each, serving

pytestmark = pytest.mark.real

NARROW = {
    "claude-code": "Plan mode is active",
    "claude-agent-acp": "Plan mode is active",
    "qwen": "Plan mode is active",
    "opencode": "Plan mode ACTIVE",
    "codex": "`sandbox_mode` is `read-only`",
}
"""The words that a CLI adds to the prompt in its narrowest mode, where it adds any."""


def order(cli: Cli) -> tuple[str, ...]:
    """The modes of its adapter, from the narrowest to the widest."""
    adapter = registry.load(cli.name)
    return adapter.widths or adapter.modes


@each([cli for cli in CLIS if len(order(cli)) > 1])
async def test_a_mode_is_chosen_changed_and_kept_over_a_restart(tmp_path: Path, cli: Cli) -> None:
    narrow, wide, *_ = order(cli)
    async with serving(cli, tmp_path, BRIDGE_STATE_DIR=str(tmp_path / "state")) as real:
        context: Json = {}

        async def mode_of(word: str, chosen: str | None = None) -> str:
            if chosen:
                context["metadata"] = {"bridge": {"mode": chosen}}
            task = await real.client().send(script(word, "Done."), **context)
            assert state(task) == "completed", said(task)
            context.clear()
            context["contextId"] = context_id(task)
            return str(task["metadata"]["bridge"]["mode"])

        assert await mode_of("first", narrow) == narrow
        words = NARROW.get(cli.name, "")
        assert words in json.dumps(real.requests("first")[-1])
        assert await mode_of("second", wide) == wide
        assert await mode_of("third", narrow) == narrow
        await real.server.stop()
        await real.restart()
        assert await mode_of("fourth") == narrow
