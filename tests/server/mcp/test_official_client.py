"""The client of the official Python library in three revisions, with everything that it checks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Literal, Self

import pytest
from mcp import types
from mcp.client._transport import Transport, TransportStreams
from mcp.client.client import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._stream_protocols import WriteStream
from mcp.shared.message import SessionMessage
from mcp.types.version import LATEST_HANDSHAKE_VERSION
from pydantic import Field

from tests.support.mcp import MODERN, TASKS
from tests.support.served import Server

REVISIONS = [MODERN, "2025-11-25", "2025-06-18"]
PERMIT = "permit q May I?\ntext  ended"
Elicited = list[types.ElicitRequestFormParams]


class _Asking:
    """The messages of a client, which asks for another revision than its newest one."""

    def __init__(self, stream: WriteStream[SessionMessage], revision: str) -> None:
        self._stream = stream
        self._revision = revision
        self.aclose = stream.aclose

    async def send(self, item: SessionMessage) -> None:
        if isinstance(item.message, types.JSONRPCRequest) and item.message.method == "initialize":
            assert item.message.params
            item.message.params["protocolVersion"] = self._revision
        await self._stream.send(item)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def asking_for(revision: str, transport: Transport) -> AsyncIterator[TransportStreams]:
    async with transport as (received, sent):
        yield received, _Asking(sent, revision)


@asynccontextmanager
async def connected(server: Server, revision: str, **options: Any) -> AsyncIterator[Client]:
    mode = MODERN if revision == MODERN else "legacy"
    transport = streamable_http_client(f"{server.url}/mcp")
    if revision != LATEST_HANDSHAKE_VERSION:
        transport = asking_for(revision, transport)
    async with Client(transport, mode=mode, **options) as client:
        assert client.protocol_version == revision
        yield client


def task_of(result: types.CallToolResult) -> dict[str, Any]:
    found: dict[str, Any] = result.structured_content
    return found


@pytest.mark.parametrize("revision", REVISIONS)
async def test_all_tools(server: Server, revision: str) -> None:
    async with connected(server, revision) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names[:2] == ["list_agents", "delegate"]
        agents = task_of(await client.call_tool("list_agents"))["agents"]
        assert [one["id"] for one in agents] == ["jsonl"]
        asked = task_of(await client.call_tool("delegate", {"prompt": "ask q Which?\ntext  ended"}))
        named = {"task_id": asked["task_id"]}
        given = {**named, "question_id": asked["question"]["question_id"], "text": "this"}
        assert not (await client.call_tool("answer", given)).is_error
        waiting = {**named, "after": 100, "wait_seconds": 5}
        assert task_of(await client.call_tool("wait", waiting))["state"] == "completed"
        read = await client.call_tool("result", {**named, "part": "text"})
        assert "ended" in task_of(read)["content"]
        listed = task_of(await client.call_tool("list_tasks"))["tasks"]
        assert [one["task_id"] for one in listed] == [asked["task_id"]]
        assert task_of(await client.call_tool("cancel", named))["state"] == "completed"
        assert (await client.call_tool("delegate", {"prompt": 1})).is_error


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_person_answers_a_form(server: Server, revision: str) -> None:
    forms: Elicited = []

    async def fill_in(ctx: Any, params: types.ElicitRequestFormParams) -> types.ElicitResult:
        forms.append(params)
        return types.ElicitResult(action="accept", content={"decision": "Go on"})

    options = {"elicitation_callback": fill_in}
    async with connected(server, revision, **options) as client:
        ended = task_of(await client.call_tool("delegate", {"prompt": PERMIT}))
    assert ended["state"] == "completed"
    assert '"yes"' in ended["text"]
    (form,) = forms
    assert "May I?" in form.message
    assert form.requested_schema["properties"]["decision"]["enum"] == ["Do not", "Go on"]


@pytest.mark.parametrize("revision", REVISIONS)
async def test_reports_of_progress(server: Server, revision: str) -> None:
    counts: list[float] = []
    words: list[str | None] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        counts.append(progress)
        words.append(message)

    async with connected(server, revision) as client:
        script = {"prompt": "status Reading the files\nask q Which?", "wait_seconds": 5}
        await client.call_tool("delegate", script, progress_callback=report)
    assert counts
    assert counts == sorted(set(counts))
    assert all(words)


@pytest.mark.parametrize("revision", REVISIONS)
async def test_resources(server: Server, revision: str) -> None:
    async with connected(server, revision) as client:
        done = task_of(await client.call_tool("delegate", {"prompt": "text hello\ndone"}))
        (listed,) = (await client.list_resources()).resources
        assert done["task_id"] in str(listed.uri)
        (content,) = (await client.read_resource(str(listed.uri))).contents
        assert isinstance(content, types.TextResourceContents)
        assert content.text == "hello"
        templates = (await client.list_resource_templates()).resource_templates
        assert len(templates) == 2


# --- the extension for tasks ----------------------------------------------------------------------


class Created(types.Result):
    result_type: Literal["task"] = Field(alias="resultType")
    task_id: str = Field(alias="taskId")
    ttl_ms: int | None = Field(alias="ttlMs")


class Polled(types.Result):
    status: str
    result: dict[str, Any] | None = None
    input_requests: dict[str, Any] | None = Field(default=None, alias="inputRequests")


class TaskParams(types.RequestParams):
    task_id: str = Field(alias="taskId")


class GetTask(types.Request[TaskParams, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    params: TaskParams
    name_param: ClassVar[str | None] = "taskId"


class Tasks(ClientExtension):
    """Polls tasks until they end."""

    identifier = TASKS

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Created, resolve=self._resolve)]

    async def _resolve(self, created: Created, ctx: ClaimContext) -> types.CallToolResult:
        while True:
            params = TaskParams(taskId=created.task_id)
            polled = await ctx.session.send_request(GetTask(params=params), Polled)
            if polled.result is not None:
                return types.CallToolResult.model_validate(polled.result)


async def test_tasks_are_polled(server: Server) -> None:
    async with connected(server, MODERN, extensions=[Tasks()]) as client:
        ended = await client.call_tool("delegate", {"prompt": "text hello\ndone"})
    assert task_of(ended)["text"] == "hello"
