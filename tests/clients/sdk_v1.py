"""Drive an A2A server with the official Python SDK 1.x.

Usage: ``python sdk_v1.py BASE_URL SCENARIO``

Prints one JSON object with what the client saw and exits 0; any exception is a traceback on
stderr and exit status 1. ``sdk_v03.py`` offers the same scenarios and keys with the 0.3 SDK:
states, kinds, roles and error names are spelled alike, so that the outputs can be compared.

Environment: ``A2A_PROMPT`` is the text of the first message (default "hello"), ``A2A_ANSWER`` the
answer given in the scenario ``question`` (default "allow"), ``A2A_TRANSPORT`` the only binding that
the client knows: "JSONRPC" (the default), "HTTP+JSON" or "GRPC". ``A2A_TOKEN`` is the bearer token.
"""

import argparse
import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from uuid import uuid4

import grpc
import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.helpers import get_message_text, get_text_parts, new_text_message
from a2a.types import (
    Artifact,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Message,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
)
from a2a.utils.errors import A2AError

ANSWER_ARTIFACT = "assistant-response"
RUN_SECONDS = 60.0
CANCELED_STREAM_SECONDS = 10.0

Report = dict[str, object]


class Transcript:
    """What the events of a stream said, in the order in which they came."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.text = ""
        self.task_id = ""
        self.context_id = ""
        self.status = TaskStatus()

    @property
    def state(self) -> str:
        """The last state that was seen."""
        return state_name(self.status)

    def add(self, event: StreamResponse) -> None:
        """Record one event."""
        if event.HasField("task"):
            self.kinds.append("task")
            self.task_id, self.context_id = event.task.id, event.task.context_id
            self.status = event.task.status
        elif event.HasField("status_update"):
            update = event.status_update
            self.kinds.append(f"status:{state_name(update.status)}")
            self.task_id, self.context_id = update.task_id, update.context_id
            self.status = update.status
        elif event.HasField("artifact_update"):
            self.kinds.append("artifact")
            self.text += answer_text([event.artifact_update.artifact])
        else:
            self.kinds.append("message")

    async def read(self, events: AsyncIterator[StreamResponse]) -> None:
        """Record the events that are left in a stream."""
        async for event in events:
            self.add(event)


def prompt() -> str:
    """The text of the first message."""
    return os.environ.get("A2A_PROMPT", "hello")


def transport() -> str:
    """The binding of the protocol that the client is to use."""
    return os.environ.get("A2A_TRANSPORT", "JSONRPC")


def state_name(status: TaskStatus) -> str:
    """The state as protocol 0.3 spells it, such as "input-required"."""
    name: str = TaskState.Name(status.state)
    return name.removeprefix("TASK_STATE_").lower().replace("_", "-")


def role_name(message: Message) -> str:
    """The sender's role as protocol 0.3 spells it: "user" or "agent"."""
    name: str = Role.Name(message.role)
    return name.removeprefix("ROLE_").lower()


def answer_text(artifacts: Iterable[Artifact]) -> str:
    """The text parts of the answer's artifact, joined with nothing in between."""
    return "".join(
        text
        for artifact in artifacts
        if artifact.artifact_id == ANSWER_ARTIFACT
        for text in get_text_parts(artifact.parts)
    )


def option_names(message: Message) -> list[str]:
    """The names of the options that a question offers."""
    return [option["name"] for option in message.metadata["bridge"]["options"]]


def user_message(text: str, task_id: str = "", context_id: str = "") -> SendMessageRequest:
    """A request that sends text, to a new task unless ids are given."""
    message = new_text_message(text, task_id=task_id, context_id=context_id, role=Role.ROLE_USER)
    return SendMessageRequest(message=message)


def signed(details: grpc.aio.ClientCallDetails) -> grpc.aio.ClientCallDetails:
    """The details of a call with the token: credentials of gRPC itself would need TLS."""
    token = ("authorization", f"Bearer {os.environ['A2A_TOKEN']}")
    return details._replace(metadata=grpc.aio.Metadata(*(details.metadata or ()), token))


class UnaryToken(grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation, client_call_details, request):
        return await continuation(signed(client_call_details), request)


class StreamToken(grpc.aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(self, continuation, client_call_details, request):
        return await continuation(signed(client_call_details), request)


def open_channel(url: str) -> grpc.aio.Channel:
    """A channel; an interceptor serves one kind of call."""
    return grpc.aio.insecure_channel(url, interceptors=[UnaryToken(), StreamToken()])


@asynccontextmanager
async def connect(base_url: str, *, streaming: bool) -> AsyncIterator[Client]:
    """Yield a client with connections of its own, which are closed with the block.

    A streaming client keeps the SDK's default timeout (5 s without a byte). A blocking send may
    take as long as the whole run.
    """
    headers = {"Authorization": f"Bearer {os.environ['A2A_TOKEN']}"}
    timeout = {} if streaming else {"timeout": RUN_SECONDS}
    http = httpx.AsyncClient(headers=headers, **timeout)
    async with http:
        config = ClientConfig(
            streaming=streaming,
            httpx_client=http,
            supported_protocol_bindings=[transport()],
            grpc_channel_factory=open_channel,
        )
        factory = ClientFactory(config)
        card = await A2ACardResolver(http, base_url).get_agent_card()
        yield factory.create(card)


async def send_blocking(client: Client, request: SendMessageRequest) -> Task:
    """Send with a client that does not stream and return the task of the reply."""
    reply = await anext(client.send_message(request))
    if not reply.HasField("task"):
        raise RuntimeError(f"the reply is not a task: {reply}")
    return reply.task


async def error_name(call: Awaitable[object]) -> str | None:
    """The name of the A2A error that the call ends with; None if it succeeds."""
    try:
        await call
    except A2AError as error:
        return type(error).__name__
    return None


async def send(base_url: str) -> Report:
    """Send without streaming and wait for the finished task."""
    async with connect(base_url, streaming=False) as client:
        task = await send_blocking(client, user_message(prompt()))
    return {
        "state": state_name(task.status),
        "text": answer_text(task.artifacts),
        "taskId": task.id,
        "contextId": task.context_id,
    }


async def stream(base_url: str) -> Report:
    """Send with streaming and read to the end."""
    seen = Transcript()
    async with connect(base_url, streaming=True) as client:
        await seen.read(client.send_message(user_message(prompt())))
    return {"kinds": seen.kinds, "text": seen.text, "state": seen.state}


async def get(base_url: str) -> Report:
    """Send without streaming, then fetch the task with all and with none of its history."""
    async with connect(base_url, streaming=False) as client:
        sent = await send_blocking(client, user_message(prompt()))
        task = await client.get_task(GetTaskRequest(id=sent.id))
        bare = await client.get_task(GetTaskRequest(id=sent.id, history_length=0))
    return {
        "state": state_name(task.status),
        "text": answer_text(task.artifacts),
        "historyRoles": [role_name(message) for message in task.history],
        "historyLength0": len(bare.history),
    }


async def resubscribe(base_url: str) -> Report:
    """Drop a stream after its first artifact event and read the rest from a second one."""
    dropped, resumed = Transcript(), Transcript()
    # The second client starts first: on a busy machine its start takes seconds.
    async with connect(base_url, streaming=True) as client:
        async with connect(base_url, streaming=True) as first:
            # A stream that is left open may delay the end of its connection.
            async with aclosing(first.send_message(user_message(prompt()))) as events:
                async for event in events:
                    dropped.add(event)
                    if dropped.kinds[-1] == "artifact":
                        break
                else:
                    raise RuntimeError(f"the stream ended without an artifact: {dropped.kinds}")
        await resumed.read(client.subscribe(SubscribeToTaskRequest(id=dropped.task_id)))
        task = await client.get_task(GetTaskRequest(id=dropped.task_id))
    return {
        "firstKind": resumed.kinds[0],
        "state": resumed.state,
        "text": answer_text(task.artifacts),
    }


async def question(base_url: str) -> Report:
    """Read a stream up to a question, answer it and read the answer's stream to the end.

    ``text`` is that of the finished task, so it also has what came before the question.
    """
    asked, answered = Transcript(), Transcript()
    async with connect(base_url, streaming=True) as client:
        await asked.read(client.send_message(user_message(prompt())))
        if asked.state != "input-required":
            raise RuntimeError(f"the stream ended without a question: {asked.kinds}")
        answer = os.environ.get("A2A_ANSWER", "allow")
        request = user_message(answer, asked.task_id, asked.context_id)
        await answered.read(client.send_message(request))
        task = await client.get_task(GetTaskRequest(id=asked.task_id))
    return {
        "question": get_message_text(asked.status.message),
        "options": option_names(asked.status.message),
        "state": answered.state,
        "text": answer_text(task.artifacts),
    }


async def cancel(base_url: str) -> Report:
    """Cancel a task after the first event of its stream, and once more when it is canceled.

    ``streamState`` is None if the stream has not ended in time.
    """
    seen = Transcript()
    async with connect(base_url, streaming=True) as client:
        events = client.send_message(user_message(prompt()))
        seen.add(await anext(events))
        request = CancelTaskRequest(id=seen.task_id)
        canceled = await client.cancel_task(request)
        try:
            async with asyncio.timeout(CANCELED_STREAM_SECONDS):
                await seen.read(events)
            stream_state = seen.state
        except TimeoutError:
            stream_state = None
        second = await error_name(client.cancel_task(request))
    return {
        "state": state_name(canceled.status),
        "streamState": stream_state,
        "secondCancel": second,
    }


async def errors(base_url: str) -> Report:
    """Fetch a task that does not exist and send to one that is finished."""
    async with connect(base_url, streaming=False) as client:
        unknown = await error_name(client.get_task(GetTaskRequest(id=str(uuid4()))))
        task = await send_blocking(client, user_message(prompt()))
        again = user_message("again", task.id, task.context_id)
        finished = await error_name(send_blocking(client, again))
    return {"unknownTask": unknown, "finishedTask": finished}


async def others(base_url: str) -> Report:
    """List tasks, create, get, list and delete a push config, and read the extended card."""
    async with connect(base_url, streaming=False) as client:
        task = await send_blocking(client, user_message(prompt()))
        page = await client.list_tasks(ListTasksRequest(context_id=task.context_id))
        config = TaskPushNotificationConfig(task_id=task.id, url="https://example.org/hook")
        made = await client.create_task_push_notification_config(config)
        name = {"task_id": task.id, "id": made.id}
        got = await client.get_task_push_notification_config(
            GetTaskPushNotificationConfigRequest(**name)
        )
        asked = ListTaskPushNotificationConfigsRequest(task_id=task.id)
        listed = await client.list_task_push_notification_configs(asked)
        await client.delete_task_push_notification_config(
            DeleteTaskPushNotificationConfigRequest(**name)
        )
        left = await client.list_task_push_notification_configs(asked)
        card = await client.get_extended_agent_card(GetExtendedAgentCardRequest())
    return {
        "listed": [one.id for one in page.tasks] == [task.id],
        "url": got.url,
        "configs": [len(listed.configs), len(left.configs)],
        "bindings": [one.protocol_binding for one in card.supported_interfaces],
    }


SCENARIOS: dict[str, Callable[[str], Awaitable[Report]]] = {
    scenario.__name__: scenario
    for scenario in (send, stream, get, resubscribe, question, cancel, errors, others)
}


async def run(base_url: str, scenario: str) -> Report:
    """Play a scenario within the time that a run may take."""
    async with asyncio.timeout(RUN_SECONDS):
        return await SCENARIOS[scenario](base_url)


def main() -> None:
    """Print the report of the scenario that the command line names."""
    parser = argparse.ArgumentParser(description="Drive an A2A server with the Python SDK 1.x.")
    parser.add_argument("base_url", metavar="BASE_URL")
    parser.add_argument("scenario", metavar="SCENARIO", choices=SCENARIOS)
    arguments = parser.parse_args()
    print(json.dumps(asyncio.run(run(arguments.base_url, arguments.scenario))))


if __name__ == "__main__":
    main()
