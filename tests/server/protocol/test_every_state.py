"""A `jsonl` program behind the bridge can bring about all that the protocol knows: every state, a
direct Message, every kind of part, artifacts in chunks. So conformance suites need no other
agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.client import Client, Json, artifact_text, context_id, state, task_id
from tests.support.liveness import listening
from tests.support.served import Server, serving

VERSIONS = ("1.0", "0.3")
SCRIPTS = {
    "completed": "text a\ndone",
    "failed": "fail it broke",
    "rejected": "reject not my job",
    "input-required": "ask q What?",
    "auth-required": "login q Log in",
}


@pytest.fixture(params=VERSIONS)
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    async with serving(tmp_path) as server:
        yield of(server, request.param)


def of(server: Server, version: str) -> Client:
    return server.client(version)


@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_program_can_bring_a_task_into_this_state(client: Client, name: str) -> None:
    task = await client.send(SCRIPTS[name])
    assert state(task) == name
    if name.endswith("required"):
        assert state(await client.cancel(task_id(task))) == "canceled"


async def test_a_task_that_waits_is_submitted_and_one_that_runs_is_working(client: Client) -> None:
    async with listening() as live:
        first = await client.send_now(f"wait {live.path} a\ntext a")
        await live.pid("a")
        second = await client.send_now("text b", contextId=context_id(first))
        assert state(await client.get(task_id(second))) == "submitted"
        assert state(await client.get(task_id(first))) == "working"
        await live.release("a")


async def test_a_program_can_answer_with_a_message(client: Client) -> None:
    (item,) = await client.collect("reply hello")
    message = item.get("message", item)
    assert [part["text"] for part in message["parts"]] == ["hello"]
    assert "taskId" not in message


PARTS: tuple[Json, ...] = (
    {"text": "a", "mediaType": "text/markdown"},
    {"raw": "eA==", "mediaType": "image/png", "filename": "x.png"},
    {"url": "https://example.org/x", "filename": "x"},
    {"data": {"a": [1, None]}},
)
AS_SENT: dict[str, tuple[Json, ...]] = {
    "1.0": PARTS,
    "0.3": (
        {"kind": "text", "text": "a"},
        {"kind": "file", "file": {"bytes": "eA==", "mimeType": "image/png", "name": "x.png"}},
        {"kind": "file", "file": {"uri": "https://example.org/x", "name": "x"}},
        {"kind": "data", "data": {"a": [1, None]}},
    ),
}


async def test_a_program_can_hand_over_parts_of_every_kind(client: Client) -> None:
    line = {"type": "artifact", "artifactId": "f", "name": "Files", "parts": PARTS}
    task = await client.send(f"line {json.dumps(line)}\ndone")
    (artifact,) = [one for one in task["artifacts"] if one["artifactId"] == "f"]
    assert tuple(artifact["parts"]) == AS_SENT[client.version]
    assert artifact["name"] == "Files"


async def test_a_program_can_hand_over_an_artifact_in_chunks(client: Client) -> None:
    def chunk(text: str, **members: bool) -> str:
        line = {"type": "artifact", "artifactId": "log", "parts": [{"text": text}], **members}
        return f"line {json.dumps(line)}"

    script = [
        chunk("a", lastChunk=False),
        chunk("b", append=True, lastChunk=False),
        chunk("c", append=True, lastChunk=True),
    ]
    items = await client.collect("\n".join(script))
    updates = [item.get("artifactUpdate", item) for item in items]
    chunks = [one for one in updates if one.get("artifact", {}).get("artifactId") == "log"]
    marks = [(one["append"], one["lastChunk"]) for one in chunks]
    assert marks == [(False, False), (True, False), (True, True)]
    task = await client.get(items[-1].get("statusUpdate", items[-1])["taskId"])
    assert artifact_text(task, "log") == "abc"
