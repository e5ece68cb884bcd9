"""WebSocket clients of other people: docs/examples/websocket.py with `websockets`, and
websocket.mjs with `ws` of npm."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bridge.auth.principal import Token, digest
from tests import CHECKOUT
from tests.support.served import serving

pytestmark = [pytest.mark.real, pytest.mark.soak]
EXAMPLES = CHECKOUT / "docs/examples"
PYTHON = CHECKOUT / ".venvs/a2a-sdk-v1/bin/python"
FOLDER = CHECKOUT / "tests/clients/js-v1"
SECRET = "secret" * 4
TOKENS = {"alice": Token(hash=f"sha256:{digest(SECRET).hex()}")}
WITHIN = 60.0  # seconds
LARGE = "'text ' + 2**21 * 'x'"  # for a frame above 1 MiB: the task has the message


async def output(*command: str, cwd: Path | None = None) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(WITHIN):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_websockets_gets_a_stream_and_limits_frames_by_default(workspace: Path) -> None:
    code = (EXAMPLES / "websocket.py").read_text("utf-8")
    large = code.replace("*sys.argv[1:]", f"*sys.argv[1:3], {LARGE}")
    assert large != code
    async with serving(workspace, bridge_websocket=True, tokens=TOKENS) as server:
        argv = (server.url, SECRET, "text hi")
        status, out, err = await output(str(PYTHON), "-c", code, *argv)
        assert status == 0, f"{err}\nrun scripts/install"
        assert "'hi'" in out and "TASK_STATE_COMPLETED" in out
        status, out, err = await output(str(PYTHON), "-c", large, *argv)
        assert status == 0 and len(out) > 2**21, err
        limited = large.replace(", max_size=None", "").replace("m-2", "m-4")
        assert limited != large
        status, _, err = await output(str(PYTHON), "-c", limited, *argv)
        assert status == 1 and "1009" in err


async def test_ws_gets_a_stream_with_a_large_frame(workspace: Path) -> None:
    assert (FOLDER / "node_modules/ws").exists(), "run scripts/install"
    code = (EXAMPLES / "websocket.mjs").read_text("utf-8")
    large = code.replace("{ text }", '{ text: text + "x".repeat(2 ** 21) }')
    async with serving(workspace, bridge_websocket=True, tokens=TOKENS) as server:
        argv = (server.url, SECRET, "text hi")
        node = ("node", "--input-type=module", "-e")
        for one in (code, large):
            status, out, err = await output(*node, one, "--", "client.mjs", *argv, cwd=FOLDER)
            assert status == 0, err
            assert "hi" in out and "TASK_STATE_COMPLETED" in out
        assert len(out) > 2**21
