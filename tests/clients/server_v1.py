"""A server of the official Python SDK 1.x over JSON-RPC and HTTP+JSON, for tests of our client.

Prints its address in one line. Runs until its input ends. The first word of a prompt decides:
`count N` answers in N pieces, `ask` asks and repeats the answer, `wait` ends by a cancel only;
everything else is the answer. ``server_v03.py`` and the servers of the JS SDK do the same.
"""

import asyncio
import os
import socket
import sys

import uvicorn
from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part
from starlette.applications import Starlette


class Executor(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = context.current_task or new_task_from_user_message(context.message)
        if context.current_task is None:
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        word, _, rest = context.get_user_input().partition(" ")
        if word == "wait":
            await asyncio.Event().wait()
        if word == "ask":
            question = updater.new_agent_message([Part(text="Which one?")])
            await updater.requires_input(question)
            return
        pieces = [f"{n} " for n in range(int(rest))] if word == "count" else [f"{word} {rest}"]
        for number, piece in enumerate(pieces):
            await updater.add_artifact([Part(text=piece)], "answer", append=number > 0)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def card(url: str) -> AgentCard:
    bindings = {"JSONRPC": f"{url}/rpc", "HTTP+JSON": f"{url}/rest"}
    return AgentCard(
        name="Peer",
        description="Answers.",
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(protocol_binding=name, protocol_version="1.0", url=place)
            for name, place in bindings.items()
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="answer", name="Answer", description="Answers.", tags=["answer"])],
    )


async def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    handler = DefaultRequestHandler(
        agent_executor=Executor(), task_store=InMemoryTaskStore(), agent_card=card(url)
    )
    routes = [
        *create_agent_card_routes(card(url)),
        *create_jsonrpc_routes(handler, "/rpc"),
        *create_rest_routes(handler, path_prefix="/rest"),
    ]
    config = uvicorn.Config(Starlette(routes=routes), log_level="warning", access_log=False)
    server = asyncio.create_task(uvicorn.Server(config).serve(sockets=[listening]))
    print(url, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(server.done())


asyncio.run(main())
