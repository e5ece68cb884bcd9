"""A scripted stand-in for OpenAI's Responses API, for tests that run the real Codex CLI.

Scripts travel in the prompt as for tests/support/model_server.py. It understands these parts of
steps: texts (with `chunks` and `delay`), `thinking`, `tool` with `input`, `echo`, `drop`, `hang`,
`times`, and `error` (with `headers`, and `body` for members of the error). The step that answers is
the number of answers since the message with the script. In a test: ``async with ResponsesServer()
as model``, with ``model.url`` and ``/v1`` as the base URL.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from aiohttp import web

from tests.support.model_server import drop_connection, filled, find_script, pick_step, split

Json = dict[str, Any]
USED = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 10},
    "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 120,
}
OURS = ("message", "reasoning", "function_call")  # items that an answer of the model is made of


def find_step(items: list[Json]) -> tuple[Json, str, list[Json]]:
    """The step for a request, its key, and the parts of the message with the script. Consecutive
    items of the model are one answer."""
    answered, answering = 0, False
    for item in reversed(items):
        mine = item.get("type", "message") in OURS and item.get("role", "assistant") == "assistant"
        answered += mine and not answering
        answering = mine
        if item.get("role") == "user":
            texts = [part.get("text", "") for part in item["content"]]
            scripts = [found for text in texts if (found := find_script(text)) is not None]
            if scripts:
                key = f"{answered} {texts}"
                return pick_step(scripts[-1], answered), key, item["content"]
    return {"text": "(no script in the prompt)"}, "", []


def describe(part: Json) -> Json:
    if part["type"] == "input_image":
        kind = part["image_url"].removeprefix("data:").partition(";")[0]
        return {"type": "image", "media_type": kind}
    return {"type": "text", "text": part.get("text")}


def answer_events(step: Json, asked: list[Json]) -> Iterator[Json]:
    """The events that make up the items of an answer."""
    if "thinking" in step:
        item: Json = {"type": "reasoning", "id": f"rs_{uuid4().hex}", "summary": []}
        where = {"item_id": item["id"], "output_index": 0, "summary_index": 0}
        yield {"type": "response.output_item.added", "output_index": 0, "item": item}
        part = {"type": "summary_text", "text": step["thinking"]}
        added = {"type": "summary_text", "text": ""}
        yield {"type": "response.reasoning_summary_part.added", **where, "part": added}
        for piece in split(step["thinking"], 2):
            yield {"type": "response.reasoning_summary_text.delta", **where, "delta": piece}
        done = {**item, "summary": [part], "encrypted_content": "xx"}
        yield {"type": "response.output_item.done", "output_index": 0, "item": done}
    text = json.dumps([describe(part) for part in asked]) if step.get("echo") else step.get("text")
    if text:
        item = {"type": "message", "id": f"msg_{uuid4().hex}", "role": "assistant", "content": []}
        where = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        yield {"type": "response.output_item.added", "output_index": 0, "item": item}
        for piece in split(text, step.get("chunks", 2)):
            yield {"type": "response.output_text.delta", **where, "delta": piece}
        if step.get("drop"):
            return
        done = {**item, "content": [{"type": "output_text", "text": text}]}
        yield {"type": "response.output_item.done", "output_index": 0, "item": done}
    if "tool" in step:
        item = {"type": "function_call", "id": f"fc_{uuid4().hex}", "name": step["tool"]}
        item |= {"call_id": f"call_{uuid4().hex}", "arguments": json.dumps(step["input"])}
        if "namespace" in step:
            item["namespace"] = step["namespace"]
        yield {"type": "response.output_item.added", "output_index": 0, "item": item}
        yield {"type": "response.output_item.done", "output_index": 0, "item": item}


class ResponsesServer:
    """`requests` has the bodies that came, each with its `input` as `messages`, too;
    `headers` theirs."""

    def __init__(self) -> None:
        self.requests: list[Json] = []
        self.headers: list[dict[str, str]] = []
        self._failures: Counter[str] = Counter()
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/v1/responses", self._responses)
        # A hanging step must end when its client goes (0 would be no limit).
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.05)

    @property
    def url(self) -> str:
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._runner.cleanup()

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.headers.append(dict(request.headers))
        self.requests.append({**body, "messages": body["input"]})
        step, key, asked = find_step(body["input"])
        step = filled(step, body["input"])
        self._failures[key] += 1
        if "times" in step and self._failures[key] > step["times"]:
            step = {name: step[name] for name in step.keys() - {"error", "drop", "hang"}}
        if step.get("hang"):
            await asyncio.Event().wait()
        if "error" in step:
            problem = {"message": "the scripted error", "type": "scripted", **step.get("body", {})}
            headers = step.get("headers")
            return web.json_response({"error": problem}, status=step["error"], headers=headers)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        head: Json = {"id": f"resp_{uuid4().hex}", "object": "response", "output": []}
        await _write(response, {"type": "response.created", "response": head})
        for event in answer_events(step, asked):
            if event["type"] == "response.output_text.delta":
                await asyncio.sleep(step.get("delay", 0))
            await _write(response, event)
        if step.get("drop"):
            drop_connection(request)
        else:
            end = {**head, "status": "completed", "usage": USED}
            await _write(response, {"type": "response.completed", "response": end})
        return response


async def _write(response: web.StreamResponse, event: Json) -> None:
    await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
