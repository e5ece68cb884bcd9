"""Messages that are sent again, and sends that are answered with a Message at once."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.client import RpcError, artifact_text, state, status_message, texts
from tests.served import serving

VERSIONS = ["1.0", "0.3"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_message_that_is_sent_again_begins_nothing(workspace: Path, version: str) -> None:
    async with serving(workspace) as server:
        client, message_id = server.client(version), str(uuid.uuid4())
        first = await client.send("turn", messageId=message_id)
        again = await client.send("turn", messageId=message_id)
        assert again == first
        assert artifact_text(again) == "1"


async def test_an_answer_that_is_sent_again_is_given_once(workspace: Path) -> None:
    async with serving(workspace) as server:
        client, message_id = server.client(), str(uuid.uuid4())
        asked = await client.send("ask one Which?\nask two And then?")
        for _ in range(2):
            task = await client.send("red", taskId=asked["id"], messageId=message_id)
            assert texts(status_message(task)["parts"]).startswith("And then?")


async def test_another_message_under_a_known_id_is_refused(workspace: Path) -> None:
    async with serving(workspace) as server:
        client, message_id = server.client(), str(uuid.uuid4())
        await client.send("turn", messageId=message_id)
        with pytest.raises(RpcError) as refused:
            await client.send("turn\nturn", messageId=message_id)
        assert refused.value.code == -32602


async def test_ids_that_cannot_be_unique_mean_a_new_message_each_time(workspace: Path) -> None:
    async with serving(workspace) as server:
        client = server.client()
        tasks = [await client.send("turn", messageId="1") for _ in range(2)]
        assert tasks[0]["id"] != tasks[1]["id"]


async def test_a_forgotten_task_does_not_answer_for_its_message(workspace: Path) -> None:
    async with serving(workspace, bridge_max_tasks=1) as server:
        client, message_id = server.client(), str(uuid.uuid4())
        first = await client.send("turn", messageId=message_id)
        await client.send("turn")
        again = await client.send("turn", messageId=message_id)
        assert again["id"] != first["id"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_quick_answer_is_a_message_where_that_is_wanted(
    workspace: Path, version: str
) -> None:
    async with serving(workspace, bridge_fast_path_ms=60_000) as server:
        client = server.client(version)
        message = await client.send("text hello\ntext world")
        assert texts(message["parts"]) == "helloworld"
        assert message["role"] in ("agent", "ROLE_AGENT")
        task = await client.get(message["taskId"])
        assert state(task) == "completed"
        assert artifact_text(task) == "helloworld"


async def test_what_waits_or_fails_or_is_slow_stays_a_task(workspace: Path) -> None:
    async with serving(workspace, bridge_fast_path_ms=60_000) as server:
        client = server.client()
        assert state(await client.send("ask one Which?")) == "input-required"
        assert state(await client.send("text x\nfail no")) == "failed"
        assert state(await client.send_now("text x")) in ("submitted", "working", "completed")
    async with serving(workspace) as server:
        assert state(await server.client().send("text x")) == "completed"
