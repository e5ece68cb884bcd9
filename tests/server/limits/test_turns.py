"""No text of a client or an agent keeps the event loop for longer than TURN, over any binding. The
clients are in threads of their own; only the CPU time of the event loop counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from bridge.session.redaction import Secrets
from bridge.task.events import Question, ToolCall
from bridge.task.state import Task
from bridge.telemetry.audit import Audit
from bridge.transports.grpc.service import methods
from tests.support.grpc_client import path, to_bytes
from tests.support.hostile_requests import (
    LONG,
    TOKEN,
    Json,
    attack,
    measured,
    message,
    named,
    post,
    rpc,
    sends,
    tool,
)
from tests.support.hostile_text import SHAPES, TURN, cpu_seconds, repeated
from tests.support.served import Server, serving
from tests.support.stored_tasks import NOW

AGENT_LINES: tuple[Json, ...] = (
    {"type": "text", "text": "?"},
    {"type": "thought", "text": "?"},
    {"type": "status", "text": "?"},
    {"type": "tool_call", "id": "1", "name": "?", "input": {"command": "?", "path": "?"}},
    {"type": "tool_result", "id": "1", "output": "?"},
    {"type": "artifact", "artifactId": "?", "name": "?", "parts": [{"text": "?"}]},
)


@pytest.mark.parametrize("shape", SHAPES)
async def test_no_member_of_a_request_keeps_the_loop(workspace: Path, shape: str) -> None:
    """About a second for each shape: a hundred requests of 1 MB."""
    text = repeated(SHAPES[shape], LONG)
    async with measured(workspace) as (server, turns), asyncio.timeout(60):

        def attacks() -> Iterator[tuple[Any, ...]]:
            yield from ((rpc, server, "SendMessage", one) for one in sends(text))
            yield from ((rpc, server, *one) for one in named(text))
            yield from ((post, server, "/message:send", one) for one in list(sends(text))[::4])
            yield rpc, server, "message/send", {"message": old(text)}, "0.3"
            for name in ("prompt", "directory", "agent", "context_id", "title"):
                yield tool, server, {"name": "delegate", "arguments": {"prompt": "x", name: text}}
            yield tool, server, {"name": text, "arguments": {text: text}}

        await attack(turns, attacks())


def old(text: str) -> Json:
    parts = [{"kind": "text", "text": text}]
    return {"kind": "message", "messageId": "1", "role": "user", "parts": parts}


@pytest.mark.parametrize("shape", SHAPES)
async def test_no_call_of_grpc_keeps_the_loop(workspace: Path, shape: str) -> None:
    text = repeated(SHAPES[shape], LONG)
    found = {one.name: one for one in methods()}
    async with measured(workspace) as (server, turns), asyncio.timeout(60):
        channel = grpc.insecure_channel(str(server.grpc))

        def call(_: Server, method: str, params: Json) -> None:
            metadata = (("a2a-version", "1.0"), ("authorization", f"Bearer {TOKEN}"))
            try:
                channel.unary_unary(path(method))(
                    to_bytes(found[method], params), metadata=metadata, timeout=60
                )
            except grpc.RpcError:
                pass

        def attacks() -> Iterator[tuple[Any, ...]]:
            for part in ({"text": text}, {"data": {text: text}}, {"url": f"file:///{text}"}):
                yield call, server, "SendMessage", {"message": message(parts=[part])}
            cwd = {"bridge": {"cwd": text}}
            yield call, server, "SendMessage", {"message": message(metadata=cwd)}
            yield call, server, "GetTask", {"id": text}
            yield call, server, "ListTasks", {"pageToken": text}

        await attack(turns, attacks())
        channel.close()


@pytest.mark.parametrize("shape", SHAPES)
async def test_no_line_of_an_agent_keeps_the_loop(workspace: Path, shape: str) -> None:
    text = repeated(SHAPES[shape], LONG // 2)  # the prompt has the lines, within its limit
    async with measured(workspace, bridge_redact="patterns") as (server, turns):

        def attacks() -> Iterator[tuple[Any, ...]]:
            for line in AGENT_LINES:
                said = json.dumps(line).replace('"?"', json.dumps(text))
                prompt = message(parts=[{"text": f"line {said}\ndone"}])
                yield rpc, server, "SendMessage", {"message": prompt}

        async with asyncio.timeout(60):
            await attack(turns, attacks())


async def test_a_large_task_is_answered_in_many_turns(workspace: Path) -> None:
    """Of texts, and of very many updates. It takes some seconds to make them."""
    settings = {"bridge_max_task_bytes": 0}
    async with measured(workspace, **settings) as (server, turns), asyncio.timeout(100):
        for script in ("\n".join(["repeat 1000000 x"] * 32), "steps 20000"):
            sent = {"message": message(parts=[{"text": f"{script}\ndone"}])}
            task_id = (await asyncio.to_thread(rpc, server, "SendMessage", sent))["result"]["task"]

            def attacks(named: str = task_id["id"]) -> Iterator[tuple[Any, ...]]:
                yield rpc, server, "GetTask", {"id": named}
                yield rpc, server, "ListTasks", {"includeArtifacts": True}
                yield post, server, f"/tasks/{named}:subscribe", {}
                yield rpc, server, "SubscribeToTask", {"id": named}

            await attack(turns, attacks())


# --- limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", ["flood 1000000", "repeat 3000000 x\npause 60"])
async def test_a_task_that_is_too_large_fails(workspace: Path, script: str) -> None:
    """The next message continues the conversation."""
    async with measured(workspace, bridge_max_task_bytes=2_000_000) as (server, _):

        async def sent(**members: Any) -> Json:
            call: Callable[..., Json] = rpc
            params = {"message": message(**members)}
            answer = await asyncio.to_thread(call, server, "SendMessage", params)
            task: Json = answer["result"]["task"]
            return task

        task = await sent(parts=[{"text": script}])
        assert task["status"]["state"] == "TASK_STATE_FAILED"
        assert task["metadata"]["bridge"]["reason"] == "task-size"
        assert "BRIDGE_MAX_TASK_BYTES" in task["status"]["message"]["parts"][0]["text"]
        assert len(json.dumps(task)) < 8_000_000
        again = await sent(contextId=task["contextId"])
        assert again["status"]["state"] == "TASK_STATE_COMPLETED"


def test_a_line_of_the_audit_log_has_no_control_and_takes_no_time(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.jsonl", Secrets(patterns=True).clean)
    task = Task("1", "2", NOW)
    for shape in SHAPES.values():
        text = repeated(shape, LONG)
        events = (ToolCall(text, text, {"command": text}), Question(text, "permission", text))
        took = cpu_seconds(lambda: audit.events(task, events))  # noqa: B023 - called at once
        assert took < TURN, shape
    hostile = "\x9b31m\u202e\u2066\u061c\u2028\x7f\ufeff"
    written = audit.events(task, [ToolCall("1", hostile, {"x": hostile})])
    audit.close()
    lines = (tmp_path / "audit.jsonl").read_text("utf-8").splitlines()
    assert all(character.isprintable() for line in lines for character in line)
    assert json.loads(lines[-1])["input"] == {"x": hostile}
    assert written == len(lines[-1]) + 1


async def test_no_answer_names_the_libraries_of_the_server(workspace: Path) -> None:
    async with serving(workspace, bridge_token=TOKEN) as server:
        for place in ("/.well-known/agent-card.json", "/health", "/tasks", "/nothing"):
            async with server.http.get(server.url + place) as response:
                assert "Server" not in response.headers
