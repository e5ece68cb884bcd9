"""A server of the official Python SDK 0.3 over JSON-RPC, for tests of our client: see server_v1.py
for its prompts."""

import asyncio
import os
import socket
import sys

import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill, Part, TextPart
from a2a.utils import new_task


class Executor(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = context.current_task or new_task(context.message)
        if context.current_task is None:
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        word, _, rest = context.get_user_input().partition(" ")
        if word == "wait":
            await asyncio.Event().wait()
        if word == "ask":
            question = updater.new_agent_message([text_part("Which one?")])
            await updater.requires_input(question, final=True)
            return
        pieces = [f"{n} " for n in range(int(rest))] if word == "count" else [f"{word} {rest}"]
        for number, piece in enumerate(pieces):
            await updater.add_artifact([text_part(piece)], "answer", append=number > 0)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def text_part(text: str) -> Part:
    return Part(root=TextPart(text=text))


def card(url: str) -> AgentCard:
    return AgentCard(
        name="Peer",
        description="Answers.",
        version="1.0.0",
        url=f"{url}/rpc",
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="answer", name="Answer", description="Answers.", tags=["answer"])],
    )


async def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    handler = DefaultRequestHandler(agent_executor=Executor(), task_store=InMemoryTaskStore())
    app = A2AStarletteApplication(agent_card=card(url), http_handler=handler).build(rpc_url="/rpc")
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    server = asyncio.create_task(uvicorn.Server(config).serve(sockets=[listening]))
    print(url, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(server.done())


asyncio.run(main())
