"""The real Claude Code behind the real server, with a scripted model. A prompt contains the answers
of the model: `script("do it", "first", tool("Bash", …))`.

A test says in its prompt what the model answers: `script("do it", "first", tool("Bash", …))`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests import CHECKOUT
from tests.support.bridge_process import BridgeProcess, bridge
from tests.support.children import children
from tests.support.client import Client, Json, context_id, facts, said, state, task_id
from tests.support.model_server import ModelServer

CLAUDE = CHECKOUT / "tests/clis/node_modules/.bin/claude"
MARKER = "CODING_AGENT_BRIDGE_PROCESS"
VERSIONS = ("1.0", pytest.param("0.3", marks=pytest.mark.soak))
"""Each run of the tests has 1.0. It has 0.3 with the official SDKs (test_official_sdks.py)."""
STREAMS = ("pipes", pytest.param("files", marks=pytest.mark.soak))
"""What the streams of the CLI are. On files, it survives its server: the tests in
tests/real/test_claude_code_restart.py have files in each run."""
BEGINS_WITHIN = 60.0  # seconds: a CLI that is not started yet takes 10 on a quiet machine
GONE_WITHIN = 20.0  # seconds: both graces of a stop take 8 on a quiet machine


@dataclass(slots=True)
class RealClaudeCode:
    """A server whose agent is the real CLI. `home` is the HOME of both, and of no other. With
    restart() there is another `server`, for the same folders and on another port."""

    server: BridgeProcess
    model: ModelServer
    http: aiohttp.ClientSession
    workspace: Path
    home: Path
    start: Callable[..., Awaitable[BridgeProcess]]

    async def kill(self) -> None:
        """End the server, which cannot do anything about it, and nothing else."""
        await self.server.stop(signal.SIGKILL)

    async def restart(self, **env: str) -> None:
        """Start the next server, with further settings in `env`; the one before has ended."""
        assert self.server.process.returncode is not None
        self.server = await self.start(**env)

    def client(self, version: str = "1.0") -> Client:
        return Client(self.http, self.server.url, version)

    def shared(self, version: str = "1.0") -> Client:
        """A client whose messages are turns of one conversation: a turn is much quicker than a
        start of the CLI. For tests that do not depend on earlier turns."""
        return Client(self.http, self.server.url, version, context_id="shared")

    def requests(self, word: str) -> list[list[Json]]:
        """The conversations that the model was sent in which `word` occurs, in order. Claude Agent
        also requests titles, for a text in `<session>`."""
        bodies = [(body["messages"], json.dumps(body["messages"])) for body in self.model.requests]
        return [sent for sent, text in bodies if word in text and "<session>" not in text]

    # --- processes -----------------------------------------------------------------------------

    def processes(self) -> list[psutil.Process]:
        """All remaining processes that the server has started, including zombies."""
        found = {process for process in psutil.process_iter() if self._belongs(process)}
        if psutil.pid_exists(self.server.process.pid):
            found |= set(children(self.server.process.pid))
        return list(found)

    def _belongs(self, process: psutil.Process) -> bool:
        try:
            environment = process.environ()
        except psutil.Error:
            return False
        return MARKER in environment and environment.get("HOME") == str(self.home)

    def agent(self, task: Json) -> psutil.Process:
        """The CLI that serves the conversation of `task`."""
        (found,) = self.agents(session_id(task))
        return found

    def agents(self, session: str) -> list[psutil.Process]:
        """The CLIs that serve a conversation, without the shells that write down their ends."""
        wanted = {f"--session-id={session}", f"--resume={session}"}
        found = [(one, command_line(one)) for one in self.processes()]
        return [one for one, line in found if wanted & set(line) and line[0] != "/bin/sh"]

    async def sessions_forgotten(self) -> None:
        """Return when the server has removed the folders of all sessions that are gone."""
        folder = self.home.parent / "state/sessions"
        async with asyncio.timeout(GONE_WITHIN):
            while folder.is_dir() and any(folder.iterdir()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def nothing_left(self) -> None:
        """Until no process is left. No event reports the end of another process's child."""
        try:
            async with asyncio.timeout(GONE_WITHIN):
                while self.processes():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"still there: {self.processes()}\n{self.server.log}") from None


def streams(kind: str, folder: Path) -> dict[str, str]:
    """Settings for a kind of STREAMS."""
    return {"BRIDGE_STATE_DIR": str(folder / "state")} if kind == "files" else {}


def command_line(process: psutil.Process) -> list[str]:
    """Its arguments; none if it is gone or a zombie."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def settings(model: ModelServer) -> dict[str, Any]:
    """Settings for a server whose CLI talks only to `model`."""
    assert CLAUDE.exists(), f"{CLAUDE} is missing: run scripts/install"
    return {
        "AGENT_ADAPTER": "claude-code",
        "AGENT_BINARY": str(CLAUDE),
        **variables(model),
        "BRIDGE_MAX_SESSIONS": "3",
    }


def variables(model: ModelServer) -> dict[str, str]:
    """Those of a CLI that talks only to `model`."""
    return {
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_API_KEY": "dummy",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "1",
    }


@asynccontextmanager
async def claude_code(folder: Path, **env: str) -> AsyncIterator[RealClaudeCode]:
    """Server, model and HTTP client in `folder`; `env` are further settings of the server."""
    workspace = folder / "workspace"
    workspace.mkdir(exist_ok=True)
    scratch = folder / "tmp"  # where the CLI keeps images and the output of commands
    scratch.mkdir(exist_ok=True)
    timeout = aiohttp.ClientTimeout(total=100)
    async with (
        ModelServer() as model,
        AsyncExitStack() as servers,
        aiohttp.ClientSession(timeout=timeout, read_bufsize=2**25) as http,
    ):
        every = {**settings(model), "TMPDIR": str(scratch), **env}

        async def start(**more: str) -> BridgeProcess:
            return await servers.enter_async_context(bridge(workspace, **{**every, **more}))

        real = RealClaudeCode(await start(), model, http, workspace, folder / "home", start)
        try:
            yield real
        finally:
            await http.close()
            await real.server.stop()
            for process in real.processes():  # of a test that failed while no server ran
                with contextlib.suppress(psutil.Error):
                    process.kill()


# --- scripts -----------------------------------------------------------------------------------


def script(text: str, *steps: str | Json) -> str:
    """A prompt that brings the model's answers along."""
    return f"{text} @@{json.dumps(steps)}@@"


def tool(name: str, text: str = "", **arguments: Any) -> Json:
    return {"tool": name, "input": arguments, "text": text}


def write(path: Path, content: str = "written") -> Json:
    return tool("Write", file_path=str(path), content=content)


def bash(command: str) -> Json:
    return tool("Bash", command=command, description="Run it")


def question(text: str, *labels: str, multiple: bool = False) -> Json:
    options = [{"label": label, "description": f"It is {label}"} for label in labels]
    return {"question": text, "header": "Choice", "options": options, "multiSelect": multiple}


def ask_user(*questions: Json) -> Json:
    return tool("AskUserQuestion", questions=list(questions))


def file_part(client: Client, kind: str, content: bytes, name: str) -> Json:
    encoded = b64encode(content).decode()
    if client.version == "0.3":
        return {"kind": "file", "file": {"bytes": encoded, "mimeType": kind, "name": name}}
    return {"raw": encoded, "mediaType": kind, "filename": name}


class Command:
    """A shell command that runs until it is released or killed."""

    def __init__(self) -> None:
        self.line = ""
        self.ended = asyncio.Event()
        self._begun = asyncio.Event()
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}

    async def begun(self) -> None:
        async with asyncio.timeout(BEGINS_WITHIN):
            await self._begun.wait()

    def release(self) -> None:
        """Let it end well."""
        for writer in self._connections:
            writer.close()

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections[writer] = asyncio.create_task(self._watch(reader, writer))
        self._begun.set()

    async def _watch(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()  # until the process is gone
        self.ended.set()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def forget(self) -> None:
        self.release()
        await asyncio.gather(*self._connections.values())


@asynccontextmanager
async def running_command() -> AsyncIterator[Command]:
    """The model runs `line`; a connection of the command shows its progress."""
    command = Command()
    server = await asyncio.start_server(command.connected, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    code = f'import socket; socket.create_connection(("{host}", {port})).recv(1)'
    command.line = f"python3 -c '{code}'"
    try:
        yield command
    finally:
        server.close()
        await command.forget()


def written(path: Path) -> str | None:
    """The content of the file; None if it is missing."""
    return path.read_text() if path.exists() else None


# --- talking -----------------------------------------------------------------------------------


async def ask(client: Client, text: str | list[Json], **members: Any) -> Json:
    """Send a prompt that makes the agent ask; the task with the open question."""
    task = await client.send(text, **members)
    assert state(task) == "input-required", (state(task), said(task))
    return task


async def answer(client: Client, task: Json, text: str | list[Json]) -> Json:
    """Answer the open question and wait for the result."""
    parts = client.answer_parts(task, text) if isinstance(text, str) else text
    return await client.send(parts, taskId=task_id(task), contextId=context_id(task))


async def read_until(items: AsyncIterator[Json], wanted: Callable[[Json], bool]) -> Json:
    """Read a stream up to the first item that is `wanted`."""
    async for item in items:
        if wanted(item):
            return item
    raise AssertionError("the stream ended before that")


def of_type(kind: str) -> Callable[[Json], bool]:
    """Whether an item's status message has a data part of this type."""
    return lambda item: any(fact.get("type") == kind for fact in all_facts([item]))


def all_facts(items: list[Json], kind: str | None = None) -> list[Json]:
    """The facts of the status messages of a stream, or those of one type."""
    found = [fact for item in items if (fact := facts(item))]
    return [fact for fact in found if kind in (None, fact.get("type"))]


def session_id(task: Json) -> str:
    """The CLI's own id of the conversation."""
    return str(task["metadata"]["bridge"]["sessionId"])


def reason(item: Json) -> str:
    """Why a task failed, in a word, from the last item of its stream."""
    inner = item.get("statusUpdate") or item
    return str(inner["metadata"]["bridge"]["reason"])


def user_texts(messages: list[Json]) -> list[str]:
    """The texts of a conversation's user messages."""
    found = [message["content"] for message in messages if message["role"] == "user"]
    blocks = [[{"type": "text", "text": c}] if isinstance(c, str) else c for c in found]
    return [block["text"] for content in blocks for block in content if block["type"] == "text"]


def tool_results(messages: list[Json]) -> list[str]:
    """The results of tools in a conversation."""
    contents = [m["content"] for m in messages if isinstance(m["content"], list)]
    blocks = [block for content in contents for block in content]
    return [str(block.get("content")) for block in blocks if block["type"] == "tool_result"]
