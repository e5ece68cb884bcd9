"""A small A2A client for tests, with aiohttp and nothing of the bridge's own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientResponse, ClientSession

Json = dict[str, Any]
METHODS = {
    "1.0": ("SendMessage", "SendStreamingMessage", "GetTask", "CancelTask", "SubscribeToTask"),
    "0.3": ("message/send", "message/stream", "tasks/get", "tasks/cancel", "tasks/resubscribe"),
}


class RpcError(Exception):
    """The server answered with a JSON-RPC error object."""

    def __init__(self, error: Json) -> None:
        super().__init__(f"{error['code']} {error['message']}")
        self.code: int = error["code"]
        self.error = error


class Client:
    """`version` 1.0 or 0.3; the helpers at the bottom read answers of either. `headers` are sent
    with every request, `context_id` with every message that names no other context."""

    def __init__(
        self,
        session: ClientSession,
        url: str,
        version: str = "1.0",
        headers: Mapping[str, str] | None = None,
        context_id: str | None = None,
    ) -> None:
        self.session = session
        self._context = {"contextId": context_id} if context_id else {}
        self.url = url
        self.version = version
        self.headers = dict(headers or {})
        self._send, self._stream, self._get, self._cancel, self._subscribe = METHODS[version]

    async def post(self, body: Any, **headers: str) -> ClientResponse:
        """POST `body` (JSON, or bytes as they are); the answer has been read."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        own = {"Content-Type": "application/json", "A2A-Version": self.version, **self.headers}
        headers = {**own, **headers}
        response = await self.session.post(f"{self.url}/a2a/jsonrpc", data=data, headers=headers)
        await response.read()
        return response

    async def call(self, method: str, params: Any) -> Any:
        """The result of `method`. Raises RpcError."""
        response = await self.post({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        answer = await response.json()
        if "error" in answer:
            raise RpcError(answer["error"])
        return answer["result"]

    def message(self, text: str | list[Json], **members: Any) -> Json:
        """A user message; `text` may be a list of parts instead."""
        parts = [self.text_part(text)] if isinstance(text, str) else text
        kind = {"kind": "message"} if self.version == "0.3" else {}
        role = "user" if self.version == "0.3" else "ROLE_USER"
        own = {**kind, "messageId": "m-1", "role": role, "parts": parts, **self._context}
        return {**own, **members}

    def answer_parts(self, task: Json, text: str) -> list[Json]:
        """An answer that names its question, which a program may give at once."""
        named = {"questionId": facts(task).get("questionId")}
        kind = {"kind": "data"} if self.version == "0.3" else {}
        return [self.text_part(text), {**kind, "data": named}]

    def text_part(self, text: str) -> Json:
        return {"kind": "text", "text": text} if self.version == "0.3" else {"text": text}

    async def send(
        self, text: str | list[Json], configuration: Json | None = None, **members: Any
    ) -> Json:
        """Send a message and wait; the task (or message), unwrapped."""
        params: Json = {"message": self.message(text, **members)}
        if configuration:
            params["configuration"] = configuration
        result: Json = await self.call(self._send, params)
        return result.get("task") or result.get("message") or result

    async def send_now(self, text: str | list[Json], **members: Any) -> Json:
        """Send a message without waiting for the result."""
        key = "blocking" if self.version == "0.3" else "returnImmediately"
        return await self.send(text, {key: self.version == "1.0"}, **members)

    async def get(self, task_id: str, **params: Any) -> Json:
        result: Json = await self.call(self._get, {"id": task_id, **params})
        return result

    async def cancel(self, task_id: str) -> Json:
        result: Json = await self.call(self._cancel, {"id": task_id})
        return result

    def stream(self, text: str | list[Json], **members: Any) -> Any:
        """`async with client.stream("…") as items: async for item in items`."""
        return self._items(self._stream, {"message": self.message(text, **members)})

    def subscribe(self, task_id: str) -> Any:
        return self._items(self._subscribe, {"id": task_id})

    async def collect(self, text: str | list[Json], **members: Any) -> list[Json]:
        """All items of the stream of a send."""
        async with self.stream(text, **members) as items:
            return [item async for item in items]

    @asynccontextmanager
    async def _items(self, method: str, params: Json) -> AsyncIterator[AsyncIterator[Json]]:
        body = {"jsonrpc": "2.0", "id": "s-1", "method": method, "params": params}
        headers = {"A2A-Version": self.version, **self.headers}
        url = f"{self.url}/a2a/jsonrpc"
        async with self.session.post(url, json=body, headers=headers) as response:
            yield _read_items(response)


async def _read_items(response: ClientResponse) -> AsyncIterator[Json]:
    if response.content_type != "text/event-stream":
        answer = await response.json()
        raise RpcError(answer["error"])
    async for line in response.content:
        if line.startswith(b"data: "):
            answer = json.loads(line[6:])
            assert answer["id"] == "s-1"
            if "error" in answer:
                raise RpcError(answer["error"])
            yield answer["result"]


# --- reading answers of either version ---------------------------------------------------------


def state(item: Json) -> str:
    """State of a task or of a stream item in the spelling of 0.3; empty if it has none."""
    inner = item.get("task") or item.get("statusUpdate") or item
    name: str = (inner.get("status") or {}).get("state", "")
    return name.removeprefix("TASK_STATE_").lower().replace("_", "-")


def states(items: list[Json]) -> list[str]:
    """The states that a stream went through, each one once in a row."""
    found: list[str] = []
    for name in filter(None, map(state, items)):
        if found[-1:] != [name]:
            found.append(name)
    return found


def task_id(item: Json) -> str:
    inner = item.get("task") or item.get("statusUpdate") or item.get("artifactUpdate") or item
    return str(inner.get("taskId") or inner["id"])


def context_id(item: Json) -> str:
    inner = item.get("task") or item.get("statusUpdate") or item.get("artifactUpdate") or item
    return str(inner["contextId"])


def texts(parts: list[Json]) -> str:
    return "".join(part["text"] for part in parts if "text" in part)


def data(parts: list[Json]) -> list[Any]:
    return [part["data"] for part in parts if "data" in part]


def artifact_text(task: Json, artifact: str = "assistant-response") -> str:
    """The text of a finished task's artifact."""
    found = [a for a in task.get("artifacts", []) if a["artifactId"] == artifact]
    return texts(found[0]["parts"]) if found else ""


def streamed_text(items: list[Json], artifact: str = "assistant-response") -> str:
    """The artifact's text as the updates of a stream add up to it."""
    text = ""
    for item in items:
        update = item.get("artifactUpdate") or item
        if update.get("artifact", {}).get("artifactId") == artifact:
            piece = texts(update["artifact"]["parts"])
            text = text + piece if update.get("append") else piece
    return text


def status_message(item: Json) -> Json:
    """The message of a task's or an update's status; empty if it has none."""
    inner = item.get("task") or item.get("statusUpdate") or item
    message: Json = (inner.get("status") or {}).get("message") or {}
    return message


def said(item: Json) -> str:
    """The text of the status message; a progress text is a line, here without its newline."""
    return texts(status_message(item).get("parts", [])).removesuffix("\n")


def facts(item: Json) -> Json:
    """The structured data of the status message, in the form for clients with and without our
    extension; empty if there is none."""
    message = status_message(item)
    found: Json
    for found in data(message.get("parts", [])):
        return found
    return (message.get("metadata") or {}).get("bridge") or {}


def told(task: Json) -> list[Json]:
    """The structured data of the messages of a task's history."""
    found = [(one.get("metadata") or {}).get("bridge") for one in task["history"]]
    return [one for one in found if one]


def strings(value: Any) -> Iterator[str]:
    """The strings in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from strings(one)
