"""aiohttp alone, for a floor: one handler that starts the agent and copies its lines to the client,
and two that answer with fixed bytes. It has no A2A, no authentication, no sandbox and no store."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import socket
import sys
from asyncio.subprocess import PIPE

from aiohttp import web

AGENT = shlex.split(os.environ["AGENT"])
PIECE = 256 * 1024
# As long as the bridge's card, and its answer for a task of ten texts.
CARD, TASK = (json.dumps({"x": size * "x"}).encode() for size in (1620, 1180))
BEGIN = b'data: {"result":{"task":{"id":"1"}}}\n\n'
DONE = b'{"type":"done"}'


async def card(request: web.Request) -> web.Response:
    return web.Response(body=CARD, content_type="application/json")


async def rpc(request: web.Request) -> web.StreamResponse:
    call = json.loads(await request.read())
    if call["method"] == "GetTask":
        return web.Response(body=TASK, content_type="application/json")
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(BEGIN)
    await copy(call["params"]["message"]["parts"][0]["text"].encode(), response)
    await response.write_eof()
    return response


async def copy(prompt: bytes, response: web.StreamResponse) -> None:
    """One turn of a new agent: a frame for each of its lines."""
    process = await asyncio.create_subprocess_exec(*AGENT, stdin=PIPE, stdout=PIPE)
    assert process.stdin and process.stdout
    process.stdin.write(prompt + b"\n")
    lines, rest = [b""], b""
    while lines[-1:] != [DONE] and (data := await process.stdout.read(PIECE)):
        *lines, rest = (rest + data).split(b"\n")
        await response.write(b"".join(b"data: %b\n\n" % line for line in lines))
    process.stdin.close()
    await process.wait()


def main() -> None:
    if sys.version_info < (3, 12):  # later versions need no thread for each agent
        asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    app = web.Application()
    app.router.add_get("/.well-known/agent-card.json", card)
    app.router.add_post("/a2a/jsonrpc", rpc)
    port = listening.getsockname()[1]
    print(f"endpoint http://127.0.0.1:{port}/a2a/jsonrpc", file=sys.stderr, flush=True)
    web.run_app(app, sock=listening, access_log=None, print=None)


main()
