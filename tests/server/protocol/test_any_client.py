"""The requests and responses of clients without our extension (docs/extension.md)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import orjson
import pytest

from bridge.runtime.tasks import REPLY_WITHIN
from bridge.store.changes import PushConfig
from bridge.store.event_log import Entry
from bridge.task.events import Question, ToolCall
from bridge.task.state import Task
from bridge.transports.push_notifications import encode_notification
from tests.support.cases import each
from tests.support.client import (
    Json,
    RpcError,
    artifact_text,
    context_id,
    data,
    facts,
    said,
    state,
    states,
    status_message,
    streamed_text,
    task_id,
    told,
)
from tests.support.liveness import listening
from tests.support.served import serving

EXTENSION = "urn:coding-agent-bridge:v1"
VERSIONS: tuple[Literal["1.0", "0.3"], ...] = ("1.0", "0.3")
TOOL = '{"type":"tool_call","id":"c-1","name":"Bash","input":{"command":"ls"}}'
NOW = datetime(2026, 11, 24, tzinfo=UTC)
WITHIN = 60.0


# --- objects for programs ------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("extended", [False, True])
async def test_data_parts_are_only_for_clients_with_the_extension(
    workspace: Path, version: str, extended: bool
) -> None:
    async with serving(workspace) as server:
        client = server.client(version)
        client.headers["A2A-Extensions"] = EXTENSION if extended else ""
        items = await client.collect(f"line {TOOL}\ntext done")
        task = await client.get(task_id(items[0]))
    (message,) = [one for one in map(status_message, items) if "tool" in said_by(one)]
    for one in (message, task["history"][1]):
        parts, metadata = data(one["parts"]), one.get("metadata", {}).get("bridge")
        found = parts[0] if extended else metadata
        assert (found["type"], found["name"], found["input"]) == (
            "tool_call",
            "Bash",
            {"command": "ls"},
        )
        assert bool(parts) is extended and bool(metadata) is not extended


def said_by(message: Json) -> str:
    return "".join(part.get("text", "") for part in message.get("parts", []))


@each("version", VERSIONS)
@each("extended", [False, True])
def test_a_push_notification_has_the_form_of_its_client_s_stream(
    version: Literal["1.0", "0.3"], extended: bool
) -> None:
    task = Task("t", "c", NOW)
    task.apply(ToolCall("c-1", "Bash", {}), NOW)
    (update,) = task.apply(Question("q", "text", "What?"), NOW)
    config = PushConfig("t", "p", "https://example.org", version, extended=extended)
    media_type, body = encode_notification(config, task, Entry(1, update)) or ("", b"")
    assert media_type == ("application/a2a+json" if version == "1.0" else "application/json")
    sent = orjson.loads(body)
    message = status_message(sent)
    assert bool(data(message["parts"])) is extended
    assert facts(sent)["questionId"] == "q"


# --- the answer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_last_block_is_in_the_final_status_the_history_and_the_artifact(
    workspace: Path, version: str
) -> None:
    async with serving(workspace) as server:
        client = server.client(version)
        items = await client.collect(f"text I look.\nline {TOOL}\ntext It is fine.")
        task = await client.get(task_id(items[0]))
    whole = "I look.\n\nIt is fine."
    assert streamed_text(items) == artifact_text(task) == whole
    assert said(items[-1]) == said(task) == "It is fine."
    assert said_by(task["history"][-1]) == "It is fine."
    assert [one["artifactId"] for one in task["artifacts"]] == ["assistant-response"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_answer_without_text_has_the_summary_of_the_result(
    workspace: Path, version: str
) -> None:
    async with serving(workspace) as server:
        task = await server.client(version).send("done all is well")
    assert said(task) == artifact_text(task) == "all is well"


async def test_pieces_end_where_words_do(workspace: Path) -> None:
    async with serving(workspace) as server:
        items = await server.client().collect("text Hel\ntext lo wor\ntext ld.\ntext  Bye.")
    pieces = [streamed_text([item]) for item in items]
    assert "".join(pieces) == "Hello world. Bye."
    assert not {"Hel", "Hello wor", "lo wor"} & set(pieces)


# --- what they send ------------------------------------------------------------------------------


async def test_data_that_the_agent_cannot_read_is_left_out_and_the_status_says_so(
    workspace: Path,
) -> None:
    cat: Json = {"agent_adapter": "generic", "agent_binary": "/bin/cat", "agent_args": ("-",)}
    async with serving(workspace, **cat) as server:
        client = server.client()
        history: Json = {"data": {"turns": []}, "mediaType": "application/vnd.ag2.history"}
        task = await client.send([{"text": "Hello there"}, history])
        with pytest.raises(RpcError, match=r"reads none of application/vnd\.ag2\.history"):
            await client.send([history])
        known = {"data": {"a": 1}, "mediaType": "application/vnd.example+json"}
        read = await client.send([{"text": "Look"}, known])
    assert (state(task), artifact_text(task)) == ("completed", "Hello there\n")
    left = {"type": "left_out", "mediaTypes": ["application/vnd.ag2.history"]}
    assert left in told(task)
    assert "application/vnd.ag2.history" in said_by(task["history"][1])
    assert state(read) == "completed"


async def test_an_ended_task_and_its_context_are_the_next_task_of_0_3(workspace: Path) -> None:
    async with serving(workspace) as server:
        client = server.client("0.3")
        first = await client.send("turn")
        ids = {"taskId": first["id"], "contextId": first["contextId"]}
        second = await client.send("turn", **ids)
        assert second["id"] != first["id"] and second["contextId"] == first["contextId"]
        assert artifact_text(second) == "2"
        with pytest.raises(RpcError, match="completed"):
            await client.send("turn", taskId=first["id"])  # no context
        late: Json = {"kind": "data", "data": {"questionId": "q"}}
        with pytest.raises(RpcError, match="completed"):
            await client.send([client.text_part("yes"), late], **ids)  # no prompt
        with pytest.raises(RpcError, match="completed"):
            await server.client("1.0").send("turn", **ids)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_task_that_waits_is_shown_at_once_where_a_message_may_come(
    workspace: Path, version: str
) -> None:
    async with serving(workspace, bridge_max_sessions=1) as server, listening() as live:
        client = server.client(version)
        first = await client.send_now(f"wait {live.path} a")
        await live.pid("a")
        stream = client.stream("text b", contextId=context_id(first))
        async with asyncio.timeout(0.8 * REPLY_WITHIN), stream as one:
            assert state(await anext(one)) == "submitted"
        await live.release("a")


async def test_a_message_to_a_working_task_joins_it_or_is_refused_as_the_operator_says(
    workspace: Path,
) -> None:
    async with serving(workspace, bridge_when_busy="reject") as server, listening() as live:
        client = server.client()
        first = await client.send_now(f"wait {live.path} a")
        await live.pid("a")
        with pytest.raises(RpcError, match="already working"):
            await client.send("more", taskId=first["id"])
        await live.release("a")


async def test_an_answer_that_is_not_understood_is_asked_again_and_not_queued(
    workspace: Path,
) -> None:
    login = '{"type":"auth_required","id":"l","text":"Sign in."}'
    async with serving(workspace) as server:
        client = server.client()
        asked = await client.send(f"line {login}\nanswers 1")
        again = await client.send([{"data": {"optionId": "x"}}], contextId=asked["contextId"])
        assert task_id(again) == task_id(asked)
        listed = await client.call("ListTasks", {"contextId": asked["contextId"]})
        assert listed["totalSize"] == 1
    assert states([again])
