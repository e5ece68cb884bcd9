"""Drive an A2A server with the official Python SDK 0.3.

Usage: ``python sdk_v03.py BASE_URL SCENARIO``

Prints one JSON object with what the client saw and exits 0; any exception is a traceback on
stderr and exit status 1. ``sdk_v1.py`` offers the same scenarios and keys with the 1.x SDK:
states, kinds, roles and error names are spelled alike, so that the outputs can be compared.

Environment: ``A2A_PROMPT`` is the text of the first message (default "hello"), ``A2A_ANSWER`` the
answer given in the scenario ``question`` (default "allow"). ``A2A_TOKEN`` is the bearer token.
"""

import argparse
import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from uuid import uuid4

import httpx
from a2a.client import (
    A2ACardResolver,
    A2AClientError,
    Client,
    ClientConfig,
    ClientEvent,
    ClientFactory,
    create_text_message_object,
)
from a2a.client.errors import A2AClientJSONRPCError
from a2a.types import (
    Artifact,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
    Message,
    MethodNotFoundError,
    Task,
    TaskArtifactUpdateEvent,
    TaskIdParams,
    TaskNotCancelableError,
    TaskNotFoundError,
    TaskQueryParams,
    TaskState,
    TaskStatus,
    UnsupportedOperationError,
)
from a2a.utils import get_message_text, get_text_parts

ANSWER_ARTIFACT = "assistant-response"
RUN_SECONDS = 60.0
CANCELED_STREAM_SECONDS = 10.0

# The client raises one class for all JSON-RPC errors and parses them into one type;
# the code tells them apart.
ERROR_NAMES: dict[int, str] = {
    error().code: error.__name__
    for error in (
        InternalError,
        InvalidParamsError,
        InvalidRequestError,
        MethodNotFoundError,
        TaskNotCancelableError,
        TaskNotFoundError,
        UnsupportedOperationError,
    )
}

Report = dict[str, object]


class Transcript:
    """What the events of a stream said, in the order in which they came."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.text = ""
        self.task_id = ""
        self.context_id = ""
        self.status = TaskStatus(state=TaskState.unknown)

    @property
    def state(self) -> str:
        """The last state that was seen."""
        return self.status.state.value

    def add(self, event: ClientEvent | Message) -> None:
        """Record one event: a message, or the task so far with the update that changed it."""
        if isinstance(event, Message):
            self.kinds.append("message")
            return
        task, update = event
        self.task_id, self.context_id, self.status = task.id, task.context_id, task.status
        if update is None:
            self.kinds.append("task")
        elif isinstance(update, TaskArtifactUpdateEvent):
            self.kinds.append("artifact")
            self.text += answer_text([update.artifact])
        else:
            self.kinds.append(f"status:{update.status.state.value}")

    async def read(self, events: AsyncIterator[ClientEvent | Message]) -> None:
        """Record the events that are left in a stream."""
        async for event in events:
            self.add(event)


def prompt() -> str:
    """The text of the first message."""
    return os.environ.get("A2A_PROMPT", "hello")


def answer_text(artifacts: Iterable[Artifact] | None) -> str:
    """The text parts of the answer's artifact, joined with nothing in between."""
    return "".join(
        text
        for artifact in artifacts or []
        if artifact.artifact_id == ANSWER_ARTIFACT
        for text in get_text_parts(artifact.parts)
    )


def option_names(message: Message) -> list[str]:
    """The names of the options that a question offers."""
    return [option["name"] for option in (message.metadata or {})["bridge"]["options"]]


def user_message(text: str, task_id: str | None = None, context_id: str | None = None) -> Message:
    """A message that sends text, to a new task unless ids are given."""
    message = create_text_message_object(content=text)
    message.task_id, message.context_id = task_id, context_id
    return message


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
        factory = ClientFactory(ClientConfig(streaming=streaming, httpx_client=http))
        card = await A2ACardResolver(http, base_url).get_agent_card()
        yield factory.create(card)


async def send_blocking(client: Client, message: Message) -> Task:
    """Send with a client that does not stream and return the task of the reply."""
    reply = await anext(client.send_message(message))
    if isinstance(reply, Message):
        raise RuntimeError(f"the reply is not a task: {reply}")
    return reply[0]


async def error_name(call: Awaitable[object]) -> str | None:
    """The name of the A2A error that the call ends with; None if it succeeds."""
    try:
        await call
    except A2AClientJSONRPCError as error:
        code: int = error.error.code
        return ERROR_NAMES.get(code, str(code))
    except A2AClientError as error:
        return type(error).__name__
    return None


async def send(base_url: str) -> Report:
    """Send without streaming and wait for the finished task."""
    async with connect(base_url, streaming=False) as client:
        task = await send_blocking(client, user_message(prompt()))
    return {
        "state": task.status.state.value,
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
        task = await client.get_task(TaskQueryParams(id=sent.id))
        bare = await client.get_task(TaskQueryParams(id=sent.id, history_length=0))
    return {
        "state": task.status.state.value,
        "text": answer_text(task.artifacts),
        "historyRoles": [message.role.value for message in task.history or []],
        "historyLength0": len(bare.history or []),
    }


async def resubscribe(base_url: str) -> Report:
    """Drop a stream after its first artifact event and read the rest from a second one."""
    dropped, resumed = Transcript(), Transcript()
    async with connect(base_url, streaming=True) as client:
        async for event in client.send_message(user_message(prompt())):
            dropped.add(event)
            if dropped.kinds[-1] == "artifact":
                break
        else:
            raise RuntimeError(f"the stream ended without an artifact: {dropped.kinds}")
    async with connect(base_url, streaming=True) as client:
        await resumed.read(client.resubscribe(TaskIdParams(id=dropped.task_id)))
        task = await client.get_task(TaskQueryParams(id=dropped.task_id))
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
        if asked.state != "input-required" or asked.status.message is None:
            raise RuntimeError(f"the stream ended without a question: {asked.kinds}")
        answer = os.environ.get("A2A_ANSWER", "allow")
        message = user_message(answer, asked.task_id, asked.context_id)
        await answered.read(client.send_message(message))
        task = await client.get_task(TaskQueryParams(id=asked.task_id))
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
        request = TaskIdParams(id=seen.task_id)
        canceled = await client.cancel_task(request)
        try:
            async with asyncio.timeout(CANCELED_STREAM_SECONDS):
                await seen.read(events)
            stream_state = seen.state
        except TimeoutError:
            stream_state = None
        second = await error_name(client.cancel_task(request))
    return {
        "state": canceled.status.state.value,
        "streamState": stream_state,
        "secondCancel": second,
    }


async def errors(base_url: str) -> Report:
    """Fetch a task that does not exist and send to one that is finished."""
    async with connect(base_url, streaming=False) as client:
        unknown = await error_name(client.get_task(TaskQueryParams(id=str(uuid4()))))
        task = await send_blocking(client, user_message(prompt()))
        again = user_message("again", task.id)
        finished = await error_name(send_blocking(client, again))
    return {"unknownTask": unknown, "finishedTask": finished}


SCENARIOS: dict[str, Callable[[str], Awaitable[Report]]] = {
    scenario.__name__: scenario
    for scenario in (send, stream, get, resubscribe, question, cancel, errors)
}


async def run(base_url: str, scenario: str) -> Report:
    """Play a scenario within the time that a run may take."""
    async with asyncio.timeout(RUN_SECONDS):
        return await SCENARIOS[scenario](base_url)


def main() -> None:
    """Print the report of the scenario that the command line names."""
    parser = argparse.ArgumentParser(description="Drive an A2A server with the Python SDK 0.3.")
    parser.add_argument("base_url", metavar="BASE_URL")
    parser.add_argument("scenario", metavar="SCENARIO", choices=SCENARIOS)
    arguments = parser.parse_args()
    print(json.dumps(asyncio.run(run(arguments.base_url, arguments.scenario))))


if __name__ == "__main__":
    main()
