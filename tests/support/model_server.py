"""A scripted stand-in for the Anthropic Messages API, for tests that run the real Claude Code.

The script travels in the prompt: ``any text @@[STEP, ...]@@``, a JSON array between ``@@`` marks.
The step that answers a request is the number of assistant messages after the last user message
which carries a script. The server therefore keeps no state about conversations, and a script
survives ``--resume``, retries and parallel clients.

A step is a text, or an object. What the answer contains::

    {"text": "...", "chunks": N, "delay": SECONDS}   streamed in N deltas, with a delay between
    {"thinking": "...", "text": "..."}
    {"tool": NAME, "input": {...}, "text": "..."}    a tool call, optionally after some text
    {"tools": [[NAME, INPUT], ...]}                  parallel tool calls
                                                     ("$TASK" in an input: see filled)
    {"burst": N, "size": BYTES}                      N deltas as fast as possible
    {"echo": true}                                   a JSON list of what the user message contained

How the answer goes wrong; these keys combine with those above::

    {"ttfb": SECONDS}                                wait before the first byte
    {"stop": "max_tokens"}                           end with this stop reason
    {"error": STATUS, "retry_after": SECONDS}        answer with this status
    {"error": STATUS, "headers": {…}}                and these headers
    {"error": STATUS, "body": {…}}                   and these members of the error
    {"sse_error": true}                              an error event in the middle of the stream
    {"drop": true}                                   close the connection in the middle
    {"hang": true}                                   accept the request and never answer
    {"times": N}                                     go wrong in these ways N times (always, without
                                                     "times"), then well; one count per prompt and
                                                     step

In a test: ``async with ModelServer() as model`` and point ``ANTHROPIC_BASE_URL`` at ``model.url``.
By hand: ``python tests/support/model_server.py --port 8901``.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import re
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from aiohttp import web

Json = dict[str, Any]

MAX_REQUEST_BYTES = 256 * 1024 * 1024  # a prompt may carry large images
FAILURES = ("error", "sse_error", "drop", "hang")
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


# --- Finding the step ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """The step that answers one request, and the user message whose script it comes from."""

    step: Json
    index: int
    parts: list[Json]

    @property
    def key(self) -> tuple[str, int]:
        """The part that is equal in retries of a request."""
        return "\n".join(texts(self.parts)), self.index


def content_parts(message: Json) -> list[Json]:
    """The content blocks of a message; the API allows a bare string for a single text."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def texts(parts: list[Json]) -> list[str]:
    return [part["text"] for part in parts if part["type"] == "text"]


def find_script(text: str) -> list[Any] | None:
    """The last script in a text, not counting scripts inside another script's strings.

    It is the last because the client merges adjacent user messages: the prompt after an
    interrupted one may arrive in the same message.
    """
    script: list[Any] | None = None
    start = text.find("@@[")
    while start >= 0:
        try:
            value, end = json.JSONDecoder().raw_decode(text, start + 2)
        except json.JSONDecodeError:
            end = start + 2
        else:
            if text.startswith("@@", end):
                script = value
                end += 2
        start = text.find("@@[", end)
    return script


def find_turn(messages: list[Json]) -> Turn:
    """Choose the step for a request from its conversation."""
    answered = 0
    for message in reversed(messages):
        if message["role"] == "assistant":
            answered += 1
        elif message["role"] == "user":
            parts = content_parts(message)
            scripts = [script for text in texts(parts) if (script := find_script(text)) is not None]
            if scripts:
                return Turn(pick_step(scripts[-1], answered), answered, parts)
    return Turn({"text": "(no script in the prompt)"}, 0, [])


def pick_step(script: list[Any], index: int) -> Json:
    step = script[index] if index < len(script) else "(script is over)"
    return {"text": step} if isinstance(step, str) else step


def filled(step: Json, conversation: Any) -> Json:
    """The step with the id of the last task of a bridge in place of each ``$TASK``, and with the
    one that Claude Code gives a task in the background in place of ``$BACKGROUND``."""
    encoded = json.dumps(step)
    if "$" not in encoded:
        return step
    text = json.dumps(conversation)
    for name, pattern in (
        ("$TASK", r"(?:Task |task_id\W+)([0-9a-f]{8}-[0-9a-f-]{27})"),
        ("$BACKGROUND", r"background as task (\w+)"),
    ):
        if found := re.findall(pattern, text):
            encoded = encoded.replace(name, found[-1])
    known: Json = json.loads(encoded)
    return known


# --- Making the message -------------------------------------------------------------------------


def describe(part: Json) -> Json:
    """The answer of an ``echo`` step for a content block: texts verbatim, files by their size."""
    source = part.get("source", {})
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]}
    if source.get("type") == "base64":
        size = len(base64.b64decode(source["data"]))
        return {"type": part["type"], "media_type": source["media_type"], "bytes": size}
    return {"type": part["type"]}


def answer_text(turn: Turn) -> str:
    step = turn.step
    if step.get("echo"):
        return json.dumps([describe(part) for part in turn.parts])
    if "burst" in step:
        return "x" * int(step["burst"] * step.get("size", 1))
    return str(step.get("text", ""))


def answer_blocks(turn: Turn) -> list[Json]:
    """The content blocks of the answer."""
    step = turn.step
    blocks: list[Json] = []
    calls = list(step.get("tools", []))
    if "tool" in step:
        calls.append([step["tool"], step.get("input", {})])
    if "thinking" in step:
        blocks.append({"type": "thinking", "thinking": step["thinking"], "signature": "c2lnbmVk"})
    text = answer_text(turn)
    if text or not calls:
        blocks.append({"type": "text", "text": text})
    for name, tool_input in calls:
        call_id = f"toolu_{uuid4().hex}"
        blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": tool_input})
    return blocks


def answer_message(turn: Turn, model: str) -> Json:
    """The complete answer, in the form of a response which is not streamed."""
    blocks = answer_blocks(turn)
    reason = "tool_use" if blocks[-1]["type"] == "tool_use" else "end_turn"
    return {
        "id": f"msg_{uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks,
        "stop_reason": turn.step.get("stop", reason),
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": 20},
    }


# --- Streaming it -------------------------------------------------------------------------------


def split(text: str, count: int) -> list[str]:
    """Cut a text into equal pieces, fewer than asked when it is too short."""
    count = min(count, len(text))
    return [text[len(text) * i // count : len(text) * (i + 1) // count] for i in range(count)]


def block_deltas(block: Json, chunks: int) -> Iterator[Json]:
    if block["type"] == "text":
        for piece in split(block["text"], chunks):
            yield {"type": "text_delta", "text": piece}
    elif block["type"] == "thinking":
        yield {"type": "thinking_delta", "thinking": block["thinking"]}
        yield {"type": "signature_delta", "signature": block["signature"]}
    else:
        yield {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}


# Each block starts empty, and its deltas fill it.
EMPTY: dict[str, Json] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}


def stream_events(message: Json, chunks: int) -> Iterator[Json]:
    """The server-sent events which build up a message."""
    started: Json = {"content": [], "stop_reason": None}
    yield {"type": "message_start", "message": message | started}
    for index, block in enumerate(message["content"]):
        empty = block | EMPTY[block["type"]]
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in block_deltas(block, chunks):
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stop = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": stop, "usage": message["usage"]}
    yield {"type": "message_stop"}


def step_events(message: Json, step: Json) -> list[Json]:
    """The events which a step sends; half of them if it breaks the stream."""
    broken = bool(step.get("drop") or step.get("sse_error"))
    # A broken stream should carry half of its text, so the text needs at least two pieces.
    chunks: int = step.get("chunks") or step.get("burst") or (2 if broken else 1)
    events = list(stream_events(message, chunks))
    if broken:
        events = events[: len(events) // 2]
    if step.get("sse_error"):
        events.append(error_body(529))
    return events


async def send_stream(request: web.Request, message: Json, step: Json) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for previous, event in pairwise([{"type": ""}, *step_events(message, step)]):
        if "delay" in step and previous["type"] == event["type"] == "content_block_delta":
            await asyncio.sleep(step["delay"])
        await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
    if step.get("drop"):
        drop_connection(request)
    return response


# --- Failing ------------------------------------------------------------------------------------


def drop_connection(request: web.Request) -> None:
    """Close the connection after all written data is sent, without ending the response. The handler
    still has to return a response; aiohttp cannot send it any more.

    The handler still has to return a response; aiohttp cannot send it any more.
    """
    if request.transport is not None:
        request.transport.close()


def without_failures(step: Json) -> Json:
    return {name: value for name, value in step.items() if name not in FAILURES}


def error_body(status: int, members: Json | None = None) -> Json:
    error = {"type": ERROR_TYPES.get(status, "api_error"), "message": f"scripted error {status}"}
    return {"type": "error", "error": error | (members or {})}


def error_response(step: Json) -> web.Response:
    headers = dict(step.get("headers", {}))
    if "retry_after" in step:
        headers["retry-after"] = str(step["retry_after"])
    body = error_body(step["error"], step.get("body"))
    return web.json_response(body, status=step["error"], headers=headers)


# --- The server ---------------------------------------------------------------------------------


class ModelServer:
    """The server on a loopback port, which is a free one unless given.

    ``requests`` lists the parsed bodies of the message requests, in order of arrival, and
    ``headers`` theirs.
    """

    def __init__(self, port: int = 0) -> None:
        self.requests: list[Json] = []
        self.headers: list[dict[str, str]] = []
        self._failures: Counter[tuple[str, int]] = Counter()
        self._port = port
        app = web.Application(client_max_size=MAX_REQUEST_BYTES)
        app.router.add_route("HEAD", "/", self._head)
        app.router.add_post("/v1/messages", self._messages)
        app.router.add_post("/v1/messages/count_tokens", self._count_tokens)
        app.router.add_route("*", "/{path:.*}", self._not_found)
        # A hanging step must end when its client goes, and must not hold up the shutdown. The
        # timeout is not 0, because aiohttp takes that as no limit.
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.05)

    @property
    def url(self) -> str:
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._runner.cleanup()

    async def _head(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _count_tokens(self, request: web.Request) -> web.Response:
        return web.json_response({"input_tokens": 1})

    async def _not_found(self, request: web.Request) -> web.Response:
        # Without this handler, a known path with another method would be a 405.
        return web.Response(status=404)

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        body: Json = await request.json()
        self.headers.append(dict(request.headers))
        self.requests.append(body)
        turn = find_turn(body["messages"])
        turn = replace(turn, step=filled(turn.step, body["messages"]))
        if not self._fails_again(turn):
            turn = replace(turn, step=without_failures(turn.step))
        step = turn.step
        await asyncio.sleep(step.get("ttfb", 0))
        if step.get("hang"):
            await asyncio.Event().wait()
        if "error" in step:
            return error_response(step)
        message = answer_message(turn, body["model"])
        if body.get("stream"):
            return await send_stream(request, message, step)
        if step.get("drop"):
            drop_connection(request)
        return web.json_response(message)

    def _fails_again(self, turn: Turn) -> bool:
        """Count the failures of a step, which is the only thing the server has to remember."""
        self._failures[turn.key] += 1
        return "times" not in turn.step or self._failures[turn.key] <= int(turn.step["times"])


async def serve(port: int) -> None:
    """Serve until the process gets a signal."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with ModelServer(port) as model:
        print(model.url, flush=True)
        await stopped.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Scripted stand-in for the Anthropic API.")
    parser.add_argument("--port", type=int, default=0, help="loopback port (default: a free one)")
    asyncio.run(serve(parser.parse_args().port))
