"""The real Claude Code behind the real server, with a scripted model: what its tests share.

A test says in its prompt what the model answers: `script("do it", "first", tool("Bash", …))`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from tests.bridge_process import CHECKOUT, BridgeProcess, bridge
from tests.client import Client, Json, context_id, data, said, state, status_message, task_id
from tests.model_server import ModelServer

CLAUDE = CHECKOUT / "tests/clis/node_modules/.bin/claude"
MARKER = "CODING_AGENT_BRIDGE_PROCESS"
VERSIONS = ("1.0", "0.3")
GONE_WITHIN = 8.0  # seconds: the interrupt's grace and SIGTERM's, and something to spare


@dataclass(frozen=True, slots=True)
class RealClaudeCode:
    """A running server whose agent is the real CLI. `home` is the HOME of both, and of no other."""

    server: BridgeProcess
    model: ModelServer
    http: aiohttp.ClientSession
    workspace: Path
    home: Path

    def client(self, version: str = "1.0") -> Client:
        return Client(self.http, self.server.url, version)

    def requests(self, word: str) -> list[list[Json]]:
        """The conversations that the model was sent in which `word` occurs, in order."""
        bodies = [body["messages"] for body in self.model.requests]
        return [messages for messages in bodies if word in json.dumps(messages)]

    # --- processes -----------------------------------------------------------------------------

    def processes(self) -> list[psutil.Process]:
        """All that the server has started and that is left of it, zombies included."""
        found = {process for process in psutil.process_iter() if self._belongs(process)}
        if psutil.pid_exists(self.server.process.pid):
            found |= set(psutil.Process(self.server.process.pid).children(recursive=True))
        return list(found)

    def _belongs(self, process: psutil.Process) -> bool:
        try:
            environment = process.environ()
        except psutil.Error:
            return False
        return MARKER in environment and environment.get("HOME") == str(self.home)

    def agent(self, task: Json) -> psutil.Process:
        """The CLI that serves the conversation of `task`."""
        session = session_id(task)
        wanted = {f"--session-id={session}", f"--resume={session}"}
        (found,) = [one for one in self.processes() if wanted & set(one.cmdline())]
        return found

    async def nothing_left(self) -> None:
        """Until no process is left. Nothing tells of the end of somebody else's child."""
        try:
            async with asyncio.timeout(GONE_WITHIN):
                while self.processes():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"still there: {self.processes()}\n{self.server.log}") from None


def settings(model: ModelServer) -> dict[str, Any]:
    """Settings for a server whose CLI talks to `model` and to nobody else."""
    assert CLAUDE.exists(), f"{CLAUDE} is missing: run scripts/install"
    return {
        "AGENT_ADAPTER": "claude-code",
        "CLAUDE_CODE_PATH": str(CLAUDE),
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_API_KEY": "dummy",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "1",
        "BRIDGE_MAX_SESSIONS": "3",
    }


@asynccontextmanager
async def claude_code(folder: Path, **env: str) -> AsyncIterator[RealClaudeCode]:
    """Server, model and HTTP client in `folder`; `env` are further settings of the server."""
    workspace = folder / "workspace"
    workspace.mkdir(exist_ok=True)
    scratch = folder / "tmp"  # where the CLI keeps images and the output of commands
    scratch.mkdir(exist_ok=True)
    timeout = aiohttp.ClientTimeout(total=60)
    async with (
        ModelServer() as model,
        bridge(workspace, **{**settings(model), "TMPDIR": str(scratch), **env}) as server,
        aiohttp.ClientSession(timeout=timeout, read_bufsize=2**25) as http,
    ):
        yield RealClaudeCode(server, model, http, workspace, folder / "home")


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


class Command:
    """A shell command that runs until it is released or killed."""

    def __init__(self) -> None:
        self.line = ""
        self.ended = asyncio.Event()
        self._begun = asyncio.Event()
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}

    async def begun(self) -> None:
        async with asyncio.timeout(15):
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
    """`line` is for the model to run; a connection of the command tells what becomes of it."""
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
    """What is in the file; None where there is none."""
    return path.read_text() if path.exists() else None


# --- talking -----------------------------------------------------------------------------------


async def ask(client: Client, text: str | list[Json], **members: Any) -> Json:
    """Send what makes the agent ask; the task with the open question."""
    task = await client.send(text, **members)
    assert state(task) == "input-required", (state(task), said(task))
    return task


async def answer(client: Client, task: Json, text: str | list[Json]) -> Json:
    """Answer the open question and wait for what follows."""
    return await client.send(text, taskId=task_id(task), contextId=context_id(task))


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
    """The data parts of the status messages of a stream, or those of one type."""
    found = [fact for item in items for fact in data(status_message(item).get("parts", []))]
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
    """What a conversation says that the tools returned."""
    contents = [m["content"] for m in messages if isinstance(m["content"], list)]
    blocks = [block for content in contents for block in content]
    return [str(block.get("content")) for block in blocks if block["type"] == "tool_result"]
