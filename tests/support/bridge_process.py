"""The real server as a child process, for tests that treat it as its users do."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests import CHECKOUT
from tests.support.agent import PROGRAM
from tests.support.chosen_store import settings_of
from tests.support.constants import taken
from tests.support.forked_server import ForkedProcess, fork_server, may_fork
from tests.support.log_lines import faults
from tests.support.ordinary_user import command as as_ordinary_user

STARTS_WITHIN = 60.0  # seconds; one on a quiet machine
STOPS_WITHIN = 60.0


WITH_CONSTANTS = """
import sys
from bridge.cli.main import main
from bridge.server.settings.constants import Constants
sys.exit(main(None, Constants(**values)))
"""


class BridgeProcess:
    """A running `python -m bridge`. `url` is its address, `log` its stderr so far."""

    def __init__(self, process: asyncio.subprocess.Process | ForkedProcess) -> None:
        self.process = process
        self.url = ""
        self.token_file = Path()
        self._lines: list[str] = []
        self._listening = asyncio.Event()
        self._news = asyncio.Event()  # another line, or the end
        self._reader = asyncio.create_task(self._read())

    @property
    def credentials(self) -> dict[str, str]:
        """The header with the operator's token."""
        return {"Authorization": f"Bearer {self.token_file.read_text().strip()}"}

    @property
    def log(self) -> str:
        return "".join(self._lines)

    async def _read(self) -> None:
        assert self.process.stderr
        async for line in self.process.stderr:
            text = line.decode(errors="replace")
            self._lines.append(text)
            self._news.set()
            found = re.search(r"endpoint\s+(http://\S+?)/a2a/jsonrpc", text)
            if found:
                self.url = found[1]
            if token := re.match(r"  token +(/.+)", text):
                self.token_file = Path(token[1])
            if '"event":"server.ready"' in text:  # LOG_FORMAT=json has no banner
                ready = json.loads(text)
                self.url = ready["address"]
                self.token_file = Path(ready["token"] or "")
                self._listening.set()
            if text.startswith("  try it "):  # the last line of the banner
                self._listening.set()
        self._news.set()

    async def listening(self) -> None:
        """Until the banner or its line of JSON is out. Raises AssertionError with the log if the
        server ends first."""
        listening = asyncio.create_task(self._listening.wait())
        try:
            await asyncio.wait(
                [listening, self._reader],
                timeout=STARTS_WITHIN,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            listening.cancel()
        assert self._listening.is_set(), f"the server did not start:\n{self.log}"

    async def logged(self, text: str, times: int = 1) -> None:
        """Return when the server has written `text` so many times to its log. Raises AssertionError
        with the log if it ends before."""
        async with asyncio.timeout(STARTS_WITHIN):
            while self.log.count(text) < times:
                assert not self._reader.done(), self.log
                self._news.clear()
                await self._news.wait()

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop, and wait. Returns the exit status."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.ended()

    async def ended(self) -> int:
        try:
            async with asyncio.timeout(STOPS_WITHIN):
                code = await self.process.wait()
                await self._reader
        except TimeoutError:
            self.process.kill()
            raise
        wrong = list(faults(self._lines))
        assert not wrong, "\n".join(wrong)
        return code


def _has_tokens(env: Mapping[str, str]) -> bool:
    config = env.get("CONFIG_FILE")
    in_file = bool(config) and "[tokens" in Path(str(config)).read_text(errors="replace")
    return in_file or bool(env.get("BRIDGE_TOKEN") or env.get("BRIDGE_OIDC_ISSUER"))


def scripted(workspace: Path) -> dict[str, Any]:
    """Settings of a server with tests/support/agent.py as its CLI, and a state folder beside the
    workspace."""
    return {
        "AGENT_ADAPTER": "jsonl",
        "AGENT_BINARY": sys.executable,
        "AGENT_ARGS": f"-I -S {PROGRAM}",
        "BRIDGE_STATE_DIR": str(workspace.parent / "state"),
        "BRIDGE_DRAIN_MS": "0",
    }


def environment(workspace: Path, env: Mapping[str, str]) -> tuple[Path, dict[str, str]]:
    """The current directory and the environment of a server: see `bridge`."""
    home = workspace.parent / "home"
    home.mkdir(exist_ok=True)
    base = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": str(CHECKOUT),
        "PYTHONWARNINGS": "error",
        "HOST": "127.0.0.1",
        "PORT": "0",
        "AGENT_REPO_PATH": str(workspace),
        "BRIDGE_SANDBOX": "none",
        **({} if _has_tokens(env) else {"BRIDGE_AUTH": "none"}),
    }
    return home, {**base, **env, **settings_of(workspace, env)}


def program_with(constants: Mapping[str, Any]) -> Sequence[str]:
    """The program with these constants."""
    start = ("-c", f"values = {dict(constants)}{WITH_CONSTANTS}") if constants else ("-m", "bridge")
    return (sys.executable, *start)


@asynccontextmanager
async def bridge(
    workspace: Path,
    *arguments: str,
    ready: bool = True,
    cwd: Path | None = None,
    ordinary: bool = False,
    **env: str,
) -> AsyncIterator[BridgeProcess]:
    """A server with `workspace` on a free port; `env` are settings and what else it inherits.

    It asks for no token unless `env` or its files say so (BRIDGE_AUTH=auto for the operator's):
    what clients do with a token is tested where that is the subject.
    Its environment is PATH, HOME (a folder beside the workspace) and `env`, nothing of ours.
    Its CLIs have no boundary unless `env` says so: most of them write where tests want to see it,
    beside their workspace. What the default allows is tested where that is the subject.
    `ordinary`: as an ordinary user without control groups, which owns all beside the workspace.
    """
    constants, env = taken(env)
    home, variables = environment(workspace, env)
    if may_fork(variables) and not ordinary:
        server = BridgeProcess(
            await fork_server(arguments, cwd=cwd or home, env=variables, constants=constants)
        )
    else:
        program = (*program_with(constants), *arguments)
        process = await asyncio.create_subprocess_exec(
            *(as_ordinary_user(workspace.parent, *program) if ordinary else program),
            cwd=cwd or home,
            env=variables,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        server = BridgeProcess(process)
    try:
        if ready:
            await server.listening()
        yield server
    finally:
        await server.stop()
