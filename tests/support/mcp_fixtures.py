"""The tools that the conformance suite of MCP calls, as calls of the bridge's own tools.

The suite tests a server by tools of its choice. This proxy replaces their names and arguments, and
the content of filled-in forms; all other bytes pass as they are.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import ClientSession, ClientTimeout, web

from tests.support.mcp import Json

Arguments = Callable[[Json], Json]
_HOP = {"host", "content-length", "connection", "transfer-encoding"}


def _script(text: str) -> Arguments:
    return lambda arguments: {"prompt": text}


def _sleep(arguments: Json) -> Json:
    return {"prompt": f"pause {arguments['seconds']}\ntext computed"}


_PERMIT = _script("permit q May I?\ntext  done")
FIXTURES: dict[str, tuple[str, Arguments]] = {
    "greet": ("list_tasks", lambda arguments: {"state": "rejected"}),  # always the same words
    "slow_compute": ("delegate", _sleep),
    "failing_job": ("delegate", _script("fail It broke.")),
    "confirm_delete": ("delegate", _PERMIT),
    "test_error_handling": ("delegate", _script("fail It broke.")),
    "test_elicitation": ("delegate", _PERMIT),
    "test_input_required_result_elicitation": ("delegate", _PERMIT),
    "test_input_required_result_request_state": ("delegate", _PERMIT),
    "test_input_required_result_tampered_state": ("delegate", _PERMIT),
    "test_input_required_result_multi_round": (
        "delegate",
        _script("permit q First?\npermit r Second?\ntext  done"),
    ),
}
"""Tools of the suite, each as a tool of the bridge and its arguments."""


def _translated(message: Json, headers: dict[str, str]) -> Json:
    params = message.get("params") or {}
    if message.get("method") == "tools/call" and params.get("name") in FIXTURES:
        tool, arguments = FIXTURES[params["name"]]
        if headers.get("Mcp-Name") == params["name"]:
            headers["Mcp-Name"] = tool
        params = {**params, "name": tool, "arguments": arguments(params.get("arguments") or {})}
    responses = params.get("inputResponses")
    if isinstance(responses, dict):
        params = {**params, "inputResponses": {k: _filled_in(one) for k, one in responses.items()}}
    if "result" in message:
        message = {**message, "result": _filled_in(message["result"])}
    return {**message, "params": params} if params else message


def _filled_in(response: Any) -> Any:
    accepted = isinstance(response, dict) and response.get("action") == "accept"
    return {**response, "content": {"decision": "Go on"}} if accepted else response


@asynccontextmanager
async def fixtures_before(url: str) -> AsyncIterator[str]:
    """The address of the proxy before the server at `url`."""

    async def forward(request: web.Request) -> web.StreamResponse:
        headers = {name: one for name, one in request.headers.items() if name.lower() not in _HOP}
        body = await request.read()
        if body:
            message = json.loads(body)
            translated = _translated(message, headers)
            body = body if translated == message else json.dumps(translated).encode()
        sent = http.request(request.method, url + request.path, headers=headers, data=body)
        async with sent as answer:
            response = web.StreamResponse(status=answer.status)
            for name, one in answer.headers.items():
                if name.lower() not in _HOP:
                    response.headers.add(name, one)
            await response.prepare(request)
            with suppress(ConnectionError):  # the suite has left
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
            return response

    application = web.Application()
    application.router.add_route("*", "/mcp", forward)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=1)
    async with ClientSession(timeout=ClientTimeout(60)) as http:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        try:
            yield f"http://{host}:{port}"
        finally:
            await runner.cleanup()
