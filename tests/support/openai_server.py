"""A scripted stand-in for OpenAI's chat completions, for tests that run real CLIs on it.

Scripts travel in the prompt as for tests/support/model_server.py; of its steps, texts (with
`chunks` and `delay`), `tool` with `input`, `thinking`, `echo`, `error` and `ttfb` are understood.
In a test: ``async with OpenAiServer() as model`` and point ``OPENAI_BASE_URL`` at ``model.url``
with ``/v1``.
"""

from __future__ import annotations

import asyncio
import json
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from aiohttp import web

from tests.support.model_server import error_response, find_script, pick_step, split

Json = dict[str, Any]
USED = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


def parts_of(message: Json) -> list[Json]:
    content = message.get("content") or []
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def find_step(messages: list[Json]) -> tuple[Json, list[Json]]:
    """The step for a request, and the parts of the message that has the script."""
    answered = 0
    for message in reversed(messages):
        if message["role"] == "assistant":
            answered += 1
        elif message["role"] == "user":
            parts = parts_of(message)
            texts = [part["text"] for part in parts if part["type"] == "text"]
            scripts = [found for text in texts if (found := find_script(text)) is not None]
            if scripts:
                return pick_step(scripts[-1], answered), parts
    return {"text": "(no script in the prompt)"}, []


def describe(part: Json) -> Json:
    if part["type"] == "image_url":
        kind = part["image_url"]["url"].removeprefix("data:").partition(";")[0]
        return {"type": "image", "media_type": kind}
    return part


def deltas(step: Json, asked: list[Json]) -> list[Json]:
    found: list[Json] = [{"role": "assistant"}]
    if "thinking" in step:
        found.append({"reasoning_content": step["thinking"]})
    if step.get("echo"):
        found.append({"content": json.dumps([describe(part) for part in asked])})
    if step.get("text"):
        found += [{"content": piece} for piece in split(step["text"], step.get("chunks", 2))]
    if "tool" in step:
        function = {"name": step["tool"], "arguments": json.dumps(step["input"])}
        call = {"index": 0, "id": f"call_{uuid4().hex}", "type": "function", "function": function}
        found.append({"tool_calls": [call]})
    return found


class OpenAiServer:
    """`requests` has the bodies that came, `headers` theirs."""

    def __init__(self) -> None:
        self.requests: list[Json] = []
        self.headers: list[dict[str, str]] = []
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/{path:.*}", self._post)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)

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

    async def _post(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if "messages" not in body:
            raise web.HTTPNotFound  # a CLI asks which kind of server this is
        self.headers.append(dict(request.headers))
        self.requests.append(body)
        step, asked = find_step(body["messages"])
        await asyncio.sleep(step.get("ttfb", 0))
        if "error" in step:
            return error_response(step)
        said = deltas(step, asked)
        reason = "tool_calls" if "tool" in step else "stop"
        head: Json = {"id": f"chat-{uuid4().hex}", "created": 0, "model": body["model"]}
        if not body.get("stream"):
            texts = "".join(one.get("content", "") for one in said)
            calls = [call for one in said for call in one.get("tool_calls", [])]
            message: Json = {"role": "assistant", "content": texts}
            message |= {"tool_calls": calls} if calls else {}
            message |= next((one for one in said if "reasoning_content" in one), {})
            choice: Json = {"index": 0, "message": message, "finish_reason": reason}
            whole = {**head, "object": "chat.completion", "choices": [choice], "usage": USED}
            return web.json_response(whole)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        choices: list[Json] = [{"index": 0, "delta": one, "finish_reason": None} for one in said]
        choices.append({"index": 0, "delta": {}, "finish_reason": reason})
        chunks: list[Json] = [{"choices": [choice]} for choice in choices]
        for chunk in [*chunks, {"choices": [], "usage": USED}]:
            line = json.dumps({**head, "object": "chat.completion.chunk", **chunk})
            await response.write(f"data: {line}\n\n".encode())
            await asyncio.sleep(step.get("delay", 0))
        await response.write(b"data: [DONE]\n\n")
        return response
