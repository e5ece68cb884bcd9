"""A server in this process under requests with long texts, whose turns of the event loop are
measured. The clients are in threads of their own."""

from __future__ import annotations

import asyncio
import http.client
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.hostile_text import TURN
from tests.support.loop_turns import Turns, measured_turns
from tests.support.served import Server, serving

Json = dict[str, Any]
LONG = 1_000_000
TOKEN = "t" * 32


@asynccontextmanager
async def measured(workspace: Path, **settings: Any) -> AsyncIterator[tuple[Server, Turns]]:
    settings = {"bridge_token": TOKEN, "bridge_grpc_port": 0, **settings}
    async with serving(workspace, **settings) as server:
        with measured_turns() as turns:
            await asyncio.to_thread(rpc, server, "GetTask", {"id": "x"})  # imports
            await asyncio.to_thread(tool, server, {"name": "list_agents", "arguments": {}})
            turns.reset()
            yield server, turns


def post(server: Server, place: str, body: Json, **headers: str) -> Json:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    sent = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Authorization": f"Bearer {TOKEN}",
        **headers,
    }
    data = json.dumps(body, ensure_ascii=False).encode()
    connection.request("POST", place, data, sent)
    answer = connection.getresponse().read()
    connection.close()
    found: Json = json.loads(answer) if answer.lstrip().startswith(b"{") else {}
    return found


def rpc(server: Server, method: str, params: Json, version: str = "1.0") -> Json:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return post(server, "/", body, **{"A2A-Version": version})


def tool(server: Server, params: Json) -> Json:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return post(server, "/mcp", body, **{"MCP-Protocol-Version": "2025-06-18"})


def message(**members: Any) -> Json:
    parts = members.pop("parts", [{"text": "done"}])
    return {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": parts, **members}


def sends(text: str) -> Iterator[Json]:
    """Messages with a hostile text in each member."""
    yield from ({"message": message(parts=[part])} for part in parts(text))
    for name in ("contextId", "taskId", "messageId", "role"):
        yield {"message": message(**{name: text})}
    for name in ("referenceTaskIds", "extensions"):
        yield {"message": message(**{name: [text]})}
    for name in ("cwd", "model", "mode", "agent", "skill", "profile", "onDisconnect"):
        yield {"message": message(metadata={"bridge": {name: text}})}
    for push in ({"url": text}, {"url": "https://x", "token": text, "id": text}):
        yield {"message": message(), "configuration": {"taskPushNotificationConfig": push}}
    yield {"message": message(), "configuration": {"acceptedOutputModes": [text]}}
    yield {"message": message(), "metadata": {"bridge": {"cwd": text}, text: text}}


def parts(text: str) -> Iterator[Json]:
    yield {"text": text}
    yield {"data": {text: text}}
    yield {"data": {"questionId": text, "optionId": text}}
    yield {"raw": text, "mediaType": text, "filename": text}
    yield from ({"url": f"{start}{text}"} for start in ("file:///", "https://", "file://", ""))


def named(text: str) -> Iterator[tuple[str, Json]]:
    """Other operations."""
    for method in ("GetTask", "CancelTask", "SubscribeToTask"):
        yield method, {"id": text}
    for name in ("contextId", "status", "pageToken", "statusTimestampAfter"):
        yield "ListTasks", {name: text}
    yield "CreateTaskPushNotificationConfig", {"taskId": text, "url": text, "id": text}
    for method in ("GetTaskPushNotificationConfig", "DeleteTaskPushNotificationConfig"):
        yield method, {"taskId": text, "id": text}
    yield text, {}


async def attack(turns: Turns, attacks: Iterator[tuple[Any, ...]]) -> None:
    """Make each call in a thread. Each text that keeps the loop is named."""
    for call, *arguments in attacks:
        for _ in range(3):  # a collection of garbage may fall into a turn
            turns.reset()
            await asyncio.to_thread(call, *arguments)
            if turns.longest < TURN:
                break
        where = str(arguments[1:])[:300]
        assert turns.longest < TURN, (where, turns.longest, turns.callback)
