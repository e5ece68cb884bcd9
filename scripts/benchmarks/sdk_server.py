"""The server for the comparison: the official Python SDK with the minimum that it requires, running
the same agent. It keeps tasks in memory, requires no token and confines nothing.
Runs under .venvs/bench-sdk (requirements.txt)."""

import asyncio
import json
import os
import shlex
import socket
import sys

import uvicorn
from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part
from starlette.applications import Starlette

AGENT = shlex.split(os.environ["AGENT"])
LONGEST_LINE = 2**20


class CliExecutor(AgentExecutor):
    """Starts the agent for each task, and publishes an artifact update for each of its texts."""

    def __init__(self) -> None:
        self.running: dict[str, asyncio.subprocess.Process] = {}

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = context.current_task or new_task_from_user_message(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        process = await asyncio.create_subprocess_exec(
            *AGENT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LONGEST_LINE,
        )
        self.running[task.id] = process
        try:
            await self._turn(process, context.get_user_input(), updater)
        finally:
            self.running.pop(task.id, None)
            if process.returncode is None:
                process.terminate()
            await process.wait()

    async def _turn(
        self, process: asyncio.subprocess.Process, prompt: str, updater: TaskUpdater
    ) -> None:
        line = json.dumps({"type": "prompt", "text": prompt}, separators=(",", ":"))
        process.stdin.write(line.encode() + b"\n")
        await process.stdin.drain()
        append = False
        async for line in process.stdout:
            event = json.loads(line)
            if event["type"] == "text":
                parts = [Part(text=event["text"])]
                await updater.add_artifact(
                    parts, "assistant-response", append=append, last_chunk=False
                )
                append = True
            elif event["type"] == "done":
                await updater.complete()
                return

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        process = self.running.get(context.task_id)
        if process:
            process.terminate()
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def card(url: str) -> AgentCard:
    return AgentCard(
        name="Benchmark",
        description="Runs a coding-agent CLI and streams its output.",
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(protocol_binding="JSONRPC", protocol_version="1.0", url=url)
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="code", name="Code", description="Codes.", tags=["code"])],
    )


def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/a2a/jsonrpc"
    handler = DefaultRequestHandler(
        agent_executor=CliExecutor(), task_store=InMemoryTaskStore(), agent_card=card(url)
    )
    routes = [
        *create_agent_card_routes(card(url)),
        *create_jsonrpc_routes(handler, "/a2a/jsonrpc"),
    ]
    config = uvicorn.Config(Starlette(routes=routes), log_level="warning", access_log=False)
    print(f"endpoint {url}", file=sys.stderr, flush=True)
    uvicorn.Server(config).run(sockets=[listening])


main()
