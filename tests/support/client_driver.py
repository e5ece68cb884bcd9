"""The real A2A clients of tests/support/client_matrix.py as programs that a test talks to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.client_matrix import DRIVERS, A2AClient

TOKEN = "a-token-of-the-operator-of-32-characters"
WITHIN = 60.0  # seconds for one turn, the start of the client included
ENDS_WITHIN = 20.0
READS_AS_A_PERSON = 0.8  # seconds; a faster answer may belong to an earlier question


class Driver:
    """A running client: tests/ecosystems/driver.py has the other end."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def say(self, prompt: str) -> str:
        """The output that its user sees for this prompt."""
        await self.begin(prompt)
        shown = await self.answer()
        assert isinstance(shown, str)
        return shown

    async def begin(self, prompt: str) -> None:
        await self._tell(prompt)

    async def stop(self) -> None:
        """Stop the prompt that is under way, as its users do."""
        await self._tell(None)
        assert await self.answer() is None

    async def _tell(self, what: str | None) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        await self._process.stdin.drain()

    async def answer(self) -> Any:
        """The output that its user sees; None for a prompt that was stopped."""
        assert self._process.stdout
        async with asyncio.timeout(WITHIN):
            line = await self._process.stdout.readline()
        assert line, "the driver has ended; its stderr says why"
        return json.loads(line)


@asynccontextmanager
async def driving(
    client: A2AClient, url: str, folder: Path, token: str = TOKEN
) -> AsyncIterator[Driver]:
    """The client in a folder of its own, for the bridge at `url`."""
    assert client.snippet, f"docs/integrations.md has no snippet under {client.section!r}"
    argv = (str(client.program), str(DRIVERS / client.driver), client.snippet, url, token)
    pipes: Any = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(*argv, cwd=folder, limit=2**24, **pipes)
    assert process.stdin
    try:
        yield Driver(process)
    finally:
        process.stdin.close()  # the driver stops what is under way, and ends
        try:
            async with asyncio.timeout(ENDS_WITHIN):
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
