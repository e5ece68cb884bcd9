"""Messages that are sent again, and sends that are answered with a Message at once."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.a2a.card import EXTENSION
from bridge.runtime.sending.idempotency import IdempotencyIndex, digest
from bridge.store.changes import ContextKey, MessageAccepted, MessageKey, TaskCreated
from bridge.store.handle import TaskHandles
from bridge.store.memory import MemoryStore
from bridge.task.message import DataPart, Message, RawPart, Role, TextPart, UrlPart
from tests.support.client import artifact_text, state, status_message, task_id, texts
from tests.support.served import serving

VERSIONS = ["1.0", "0.3"]
RETRIES = [  # headers, any of which shows that a client retries
    {"A2A_Extensions": f"urn:other, {EXTENSION}"},
    {"X_A2A_Extensions": EXTENSION},
    {"Last_Event_ID": "0"},
    {"Idempotency_Key": "any"},
]


def unique() -> str:
    return str(uuid.uuid4())


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("retries", RETRIES, ids=str)
async def test_a_message_that_is_sent_again_begins_nothing(
    workspace: Path, version: str, retries: dict[str, str]
) -> None:
    async with serving(workspace) as server:
        client, message_id = server.client(version, **retries), unique()
        first = await client.send("turn", messageId=message_id)
        again = await client.send("turn", messageId=message_id)
        assert again == first
        assert artifact_text(again) == "1"


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_position_in_a_stream_shows_a_retry(workspace: Path, version: str) -> None:
    async with serving(workspace) as server:
        client, message_id = server.client(version), unique()
        first = await client.send("turn", messageId=message_id)
        metadata = {"bridge": {"after": 0}}
        again = await client.send("turn", messageId=message_id, metadata=metadata)
        assert again == first


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_same_message_joins_its_task_as_long_as_that_is_open(
    workspace: Path, version: str
) -> None:
    async with serving(workspace) as server:
        client, message_id = server.client(version), unique()
        asked = await client.send("ask one Which?", messageId=message_id)
        assert await client.send("ask one Which?", messageId=message_id) == asked
        streamed = await client.collect("ask one Which?", messageId=message_id)
        assert {task_id(item) for item in streamed} == {asked["id"]}
        await client.send("red", taskId=asked["id"], messageId=unique())
        after = await client.send("ask one Which?", messageId=message_id)
        assert after["id"] != asked["id"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_after_the_end_the_same_message_is_a_new_one(workspace: Path, version: str) -> None:
    """Some clients give each message the same id, such as the official suites."""
    async with serving(workspace) as server:
        client, message_id = server.client(version), unique()
        tasks = [await client.send("turn", messageId=message_id) for _ in range(3)]
        assert len({task["id"] for task in tasks}) == 3
        retry = server.client(version, Idempotency_Key="x")
        again = await retry.send("turn", messageId=message_id)
        assert again == tasks[-1]


@pytest.mark.parametrize("retries", [{}, *RETRIES], ids=str)
async def test_another_content_under_a_known_id_is_a_new_message(
    workspace: Path, retries: dict[str, str]
) -> None:
    async with serving(workspace) as server:
        client, message_id = server.client(**retries), unique()
        first = await client.send("ask one Which?", messageId=message_id)
        other = await client.send("turn", messageId=message_id)
        assert other["id"] != first["id"]
        assert artifact_text(other) == "1"
        assert await client.send("ask one Which?", messageId=message_id) == first
        answered = await client.send("red", messageId=message_id, taskId=first["id"])
        assert (answered["id"], state(answered)) == (first["id"], "completed")


@pytest.mark.parametrize("header", ["Last-Event-ID", "A2A-Extensions"])
async def test_over_rest_the_same_headers_show_a_retry(workspace: Path, header: str) -> None:
    body = {"message": {"messageId": unique(), "role": "ROLE_USER", "parts": [{"text": "turn"}]}}
    shown = {header: EXTENSION if header == "A2A-Extensions" else "0"}
    async with serving(workspace) as server:
        ids = []
        for headers in ({}, shown, {}):
            url = f"{server.url}/a2a/rest/message:send"
            sent = {"A2A-Version": "1.0", **headers}
            async with server.http.post(url, json=body, headers=sent) as response:
                ids.append((await response.json())["task"]["id"])
        assert ids[0] == ids[1] != ids[2]


async def test_a_retry_may_come_over_the_other_version_and_write_its_json_differently(
    workspace: Path,
) -> None:
    metadata = [{"a": 1, "b": {"c": [], "d": None}}, {"b": {"d": None, "c": []}, "a": 1}]
    async with serving(workspace) as server:
        tasks, message_id = [], unique()
        for version, one in zip(VERSIONS, metadata, strict=True):
            client = server.client(version, Idempotency_Key="x")
            parts = [client.text_part("turn"), client.text_part("turn")]
            tasks.append(await client.send(parts, messageId=message_id, metadata=one))
        assert tasks[0]["id"] == tasks[1]["id"]


async def test_an_answer_that_is_sent_again_is_given_once(workspace: Path) -> None:
    async with serving(workspace) as server:
        client, message_id = server.client(), unique()
        asked = await client.send("ask one Which?\nask two And then?")
        for _ in range(2):
            task = await client.send("red", taskId=asked["id"], messageId=message_id)
            assert texts(status_message(task)["parts"]).startswith("And then?")


def test_a_digest_covers_exactly_the_content() -> None:
    message = Message("an-id", Role.USER, (TextPart("a"),))
    base = digest(message)
    position = {"bridge": {"after": 3}}
    same = [replace(message, id="another"), replace(message, metadata=position)]
    other = [
        replace(message, role=Role.AGENT),
        replace(message, parts=(TextPart("b"),)),
        replace(message, parts=(TextPart("a"), TextPart("a"))),
        replace(message, parts=(TextPart("a", media_type="text/markdown"),)),
        replace(message, parts=(TextPart("a", metadata={"x": 1}),)),
        replace(message, parts=(DataPart("a"),)),
        replace(message, parts=(RawPart("a"),)),
        replace(message, parts=(UrlPart("a"),)),
        replace(message, task_id="t"),
        replace(message, context_id="t"),
        replace(message, reference_task_ids=("t",)),
        replace(message, extensions=("t",)),
        replace(message, metadata={"t": 1}),
        replace(message, metadata={"bridge": {"after": 3, "cwd": "a"}}),
    ]
    assert all(digest(one) == base for one in same)
    assert len({digest(one) for one in (message, *other)}) == len(other) + 1


async def test_a_message_that_an_earlier_version_has_taken_is_the_same() -> None:
    """The digest is the one that revision a630f4a has made of this message."""
    old = bytes.fromhex("471ef5af28a5d27a02e799a90cb698e00fb7c7f4f939ed276b2d2a78caf99f82")
    message = Message(
        "a-long-enough-message-id",
        Role.USER,
        (TextPart("turn"), DataPart({"b": 1, "a": None})),
        context_id="c",
        metadata={"bridge": {"after": 9, "cwd": "x"}},
    )
    store, outcome = MemoryStore(), list[object]()
    taken = MessageKey("a", "local", message.id, old)
    created = TaskCreated("t", ContextKey("a", "local", "c"), 0, b"{}")
    store.append([created, MessageAccepted(taken, "t")], fence=None)
    index = IdempotencyIndex(TaskHandles("a", store))
    for sent, found in ((message, "t"), (replace(message, context_id="d"), None)):
        async with index.reserve("local", sent) as reserved:
            assert reserved.task_id == found
    async with index.reserve("local", message) as reserved:  # a later task replaces it
        store.append(
            [replace(created, task_id="u"), *reserved.accept("u")],
            fence=None,
            then=outcome.append,
        )
    assert outcome == [None]
    async with index.reserve("local", message) as reserved:
        assert reserved.task_id == "u"


async def test_repetitions_wait_until_the_first_one_is_decided() -> None:
    message = Message(unique(), Role.USER, (TextPart("x"),))
    index, order = IdempotencyIndex(TaskHandles("a", MemoryStore())), list[str]()

    async def repeat(name: str) -> None:
        async with index.reserve("local", message):
            order.append(name)

    async with index.reserve("local", message):
        waiting = [asyncio.create_task(repeat(name)) for name in "abc"]
        async with index.reserve("bob", message), index.reserve("local", replace(message, id="1")):
            order.append("first")  # the messages of others do not wait
    await asyncio.wait_for(asyncio.gather(*waiting), 15.0)
    assert order == ["first", "a", "b", "c"]


async def test_ids_that_cannot_be_unique_mean_a_new_message_each_time(workspace: Path) -> None:
    async with serving(workspace) as server:
        client = server.client(Idempotency_Key="x")
        tasks = [await client.send("turn", messageId="1") for _ in range(2)]
        assert tasks[0]["id"] != tasks[1]["id"]


async def test_a_forgotten_task_does_not_answer_for_its_message(workspace: Path) -> None:
    async with serving(workspace, bridge_max_tasks=1) as server:
        client, message_id = server.client(Idempotency_Key="x"), unique()
        first = await client.send("turn", messageId=message_id)
        await client.send("turn")
        again = await client.send("turn", messageId=message_id)
        assert again["id"] != first["id"]
