"""A scripted stand-in for the Gemini API, for tests that run the real Gemini CLI.

Scripts travel in the prompt as for tests/support/model_server.py; of its steps, texts, `tool` with
`input`, `thinking`, `echo`, `hang`, `delay` (seconds) and `error` (with `body` for members of the
error) are understood. In a test: ``async with GeminiServer() as model`` and point
``GOOGLE_GEMINI_BASE_URL`` at ``model.url``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from tests.support.model_server import filled, find_script, pick_step

Json = dict[str, Any]
USED = {"promptTokenCount": 100, "candidatesTokenCount": 20, "totalTokenCount": 120}


def find_step(contents: list[Json]) -> tuple[Json, list[Json]]:
    """The step for a request, and the parts of the message that has the script."""
    answered = 0
    for content in reversed(contents):
        if content["role"] == "model":
            answered += 1
            continue
        texts = [part["text"] for part in content["parts"] if "text" in part]
        scripts = [found for text in texts if (found := find_script(text)) is not None]
        if scripts:
            return pick_step(scripts[-1], answered), content["parts"]
    return {"text": "(no script in the prompt)"}, []


def answer_parts(step: Json, asked: list[Json]) -> list[Json]:
    parts: list[Json] = []
    if "thinking" in step:
        parts.append({"text": step["thinking"], "thought": True})
    if step.get("echo"):
        parts.append({"text": json.dumps([describe(part) for part in asked])})
    if step.get("text"):
        half = len(step["text"]) // 2
        parts += [{"text": step["text"][:half]}, {"text": step["text"][half:]}]
    if "tool" in step:
        parts.append({"functionCall": {"name": step["tool"], "args": step["input"]}})
    return parts


def describe(part: Json) -> Json:
    if "inlineData" in part:
        data = part["inlineData"]
        return {"type": "image", "media_type": data["mimeType"]}
    return {"type": "text", "text": part.get("text")}


class GeminiServer:
    """`requests` has the bodies that came, each as `messages` like those of ModelServer;
    `headers` theirs."""

    def __init__(
        self, find_step: Callable[[list[Json]], tuple[Json, list[Json]]] = find_step
    ) -> None:
        self._find_step = find_step
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
        if request.path.endswith("countTokens"):
            return web.json_response({"totalTokens": 100})
        self.headers.append(dict(request.headers))
        self.requests.append({"messages": body["contents"]})
        step, asked = self._find_step(body["contents"])
        step = filled(step, body["contents"])
        if "error" in step:
            error = {"code": step["error"], "message": "scripted", "status": "SCRIPTED"}
            error |= step.get("body", {})
            return web.json_response({"error": error}, status=step["error"])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if step.get("hang"):
            await asyncio.sleep(3600)
        await asyncio.sleep(step.get("delay", 0))
        parts = answer_parts(step, asked)
        for number, part in enumerate(parts, 1):
            candidate: Json = {"content": {"role": "model", "parts": [part]}, "index": 0}
            if number == len(parts):
                candidate["finishReason"] = "STOP"
            chunk = {"candidates": [candidate], "usageMetadata": USED}
            await response.write(f"data: {json.dumps(chunk)}\r\n\r\n".encode())
        return response
