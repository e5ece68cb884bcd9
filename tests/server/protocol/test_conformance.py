"""Requirements of A2A that no other test asks of the whole server
(tests/support/requirements.py)."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bridge.a2a.signing import judge, new_key
from bridge.server.extras import load_card_keys
from tests.support import suite_agent
from tests.support.client import Client, Json, RpcError, artifact_text, state, states
from tests.support.liveness import Liveness, listening
from tests.support.served import Server, serving

TOKEN = "s3cret-token-of-16-up"
OPERATIONS = {
    "1.0": (
        *("SendMessage", "SendStreamingMessage", "GetTask", "ListTasks", "CancelTask"),
        *("SubscribeToTask", "CreateTaskPushNotificationConfig", "GetTaskPushNotificationConfig"),
        *("ListTaskPushNotificationConfigs", "DeleteTaskPushNotificationConfig"),
        "GetExtendedAgentCard",
    ),
    "0.3": (
        *("message/send", "message/stream", "tasks/get", "tasks/cancel", "tasks/resubscribe"),
        *("tasks/pushNotificationConfig/set", "tasks/pushNotificationConfig/get"),
        *("tasks/pushNotificationConfig/list", "tasks/pushNotificationConfig/delete"),
        "agent/getAuthenticatedExtendedCard",
    ),
}


@pytest.fixture
async def server(workspace: Path) -> AsyncIterator[Server]:
    async with serving(workspace) as server:
        yield server


@pytest.fixture(params=["1.0", "0.3"])
def client(server: Server, request: pytest.FixtureRequest) -> Client:
    return server.client(request.param)


@pytest.fixture
async def live() -> AsyncIterator[Liveness]:
    async with listening() as live:
        yield live


async def error_code(awaitable: Any) -> int:
    with pytest.raises(RpcError) as raised:
        await awaitable
    return raised.value.code


async def tasks_of(server: Server) -> list[Json]:
    listed = await server.client("1.0").call("ListTasks", {})
    tasks: list[Json] = listed["tasks"]
    return tasks


async def streamed(client: Client, text: str, configuration: Json) -> list[Json]:
    """The items of a stream that ends by itself."""
    method = "message/stream" if client.version == "0.3" else "SendStreamingMessage"
    params = {"message": client.message(text), "configuration": configuration}
    response = await client.post({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    lines = (await response.text()).split("\n")
    return [json.loads(line[6:])["result"] for line in lines if line.startswith("data: ")]


# --- operations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "method"), [(v, method) for v, methods in OPERATIONS.items() for method in methods]
)
async def test_every_operation_has_its_name(server: Server, version: str, method: str) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {}}
    answer = await (await server.client(version).post(body)).json()
    assert "result" in answer or answer["error"]["code"] in (-32602, -32004, -32007), answer


async def test_the_server_makes_the_ids_of_tasks(server: Server, client: Client) -> None:
    first, second = [await client.send("text a") for _ in range(2)]
    assert uuid.UUID(first["id"]) != uuid.UUID(second["id"])
    assert first["contextId"] and first["contextId"] != second["contextId"]
    assert await error_code(client.send("text a", taskId=str(uuid.uuid4()))) == -32001
    assert {task["id"] for task in await tasks_of(server)} == {first["id"], second["id"]}


async def test_a_context_id_of_the_client_is_kept_or_refused(
    server: Server, client: Client
) -> None:
    task = await client.send("text a", contextId="my-context.1")
    assert task["contextId"] == "my-context.1"
    assert await error_code(client.send("text a", contextId="not one")) == -32602
    assert len(await tasks_of(server)) == 1


async def test_an_answer_that_names_only_its_task_is_of_the_tasks_context(client: Client) -> None:
    asked = await client.send("ask q-1 Which?")
    task = await client.send("this", taskId=asked["id"])
    assert (task["id"], task["contextId"]) == (asked["id"], asked["contextId"])
    assert {message["contextId"] for message in task["history"]} == {asked["contextId"]}


async def test_a_message_to_a_working_task_is_for_the_next_turn(
    client: Client, live: Liveness
) -> None:
    task = await client.send_now(f"wait {live.path} agent\nturn")
    await live.pid("agent")
    following = await client.send_now("turn", taskId=task["id"])
    assert following["id"] != task["id"] and following["contextId"] == task["contextId"]
    items = client.subscribe(task["id"])
    async with items as updates:
        await anext(updates)
        await live.release("agent")
        assert states([item async for item in updates])[-1] == "completed"
    assert artifact_text(await client.get(task["id"])) == "1"
    async with asyncio.timeout(15):
        while state(following) != "completed":
            following = await client.get(following["id"])
    assert artifact_text(following) == "2"


async def test_a_task_that_has_ended_never_changes_and_is_followed_by_another(
    client: Client,
) -> None:
    task = await client.send("text a")
    assert await error_code(client.send("more", taskId=task["id"])) == -32004
    assert await error_code(client.cancel(task["id"])) == -32002
    context, before = task["contextId"], [task["id"]]
    after = await client.send("turn", contextId=context, referenceTaskIds=before)
    assert after["contextId"] == context and after["id"] != task["id"]
    assert after["history"][0]["referenceTaskIds"] == before
    assert await client.get(task["id"]) == task


async def test_a_message_is_kept_as_it_was_sent(client: Client) -> None:
    members: Json = {
        "metadata": {"a": [1, {"b": None}]},
        "extensions": ["https://example.org/extension"],
        "referenceTaskIds": ["t-1", "t-2"],
        "messageId": "m-as-it-was",
    }
    task = await client.send("text a", **members)
    kept = task["history"][0]
    assert {name: kept[name] for name in members} == members
    assert kept["role"] == ("user" if client.version == "0.3" else "ROLE_USER")


async def test_a_stream_is_one_whether_its_client_waits_or_not(client: Client) -> None:
    for waits in (True, False):
        old = client.version == "0.3"
        configuration = {"blocking": waits} if old else {"returnImmediately": not waits}
        items = await streamed(client, "text a\nstatus b", configuration)
        assert states(items)[-1] == "completed"


@pytest.mark.parametrize(("length", "kept"), [(0, 0), (1, 1), (100, 1)])
async def test_the_task_that_begins_a_stream_has_so_much_history(
    client: Client, length: int, kept: int
) -> None:
    first = (await streamed(client, "status a", {"historyLength": length}))[0]
    task = first.get("task", first)
    assert len(task.get("history", [])) == kept
    assert ("history" in task) is bool(kept)


async def test_times_are_of_utc_with_milliseconds(client: Client) -> None:
    task = await client.send("text a\nstatus b")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", task["status"]["timestamp"])


# --- cards -------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_the_card_that_is_served_can_be_verified(workspace: Path, token: str | None) -> None:
    path = workspace.parent / "keys.json"
    path.write_text(json.dumps({"keys": [new_key("ES256", "mine")]}))
    path.chmod(0o600)
    settings: Json = {"bridge_card": "1.0", "bridge_card_keys": str(path), "bridge_token": token}
    async with (
        serving(workspace, **settings) as server,
        server.http.get(f"{server.url}/.well-known/agent-card.json") as response,
    ):
        card = await response.json()
    keys = load_card_keys(path, signing=False)
    assert any(verdict.counts for verdict in judge(card, keys))
    assert not any(verdict.counts for verdict in judge({**card, "name": "Another"}, keys))


# --- access ------------------------------------------------------------------------------------


async def test_without_the_token_a_task_that_exists_is_like_one_that_does_not(
    workspace: Path,
) -> None:
    async with serving(workspace, bridge_token=TOKEN) as server:
        server.http.headers["Authorization"] = f"Bearer {TOKEN}"
        known = await server.client().send("text a")
        del server.http.headers["Authorization"]
        for method in ("GetTask", "CancelTask", "SubscribeToTask"):
            answers = []
            for one in (known["id"], str(uuid.uuid4())):
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"id": one}}
                response = await server.client().post(body)
                answers.append((response.status, await response.json()))
            assert answers[0] == answers[1] and answers[0][0] == 401


# --- the agent of the official suite -----------------------------------------------------------


async def test_the_agent_of_the_official_suite_behaves_as_it_asks(workspace: Path) -> None:
    """Its adapter takes no files, which the card says. tests/real/test_official_suite.py runs the
    suite. Ten tasks and the start of a process take more than a second."""
    adapter = "tests.support.suite_agent:TextOnly"
    async with serving(workspace, suite_agent.PROGRAM, agent_adapter=adapter) as server:
        client = server.client()

        async def sent(prefix: str, **members: Any) -> Json:
            named = {"contextId": "one-process", **members}
            return await client.send("x", messageId=f"tck-{prefix}-1", **named)

        for kind in ("input-required", "auth-required"):
            asking = await sent(kind)
            assert state(asking) == kind
            assert state(await sent("complete-task", taskId=asking["id"])) == "completed"
        assert state(await sent("reject-task")) == "rejected"
        assert (await sent("message-response"))["parts"] == [{"text": "Direct message response"}]
        kinds = ("text", "file", "file-url", "data")
        artifacts = [(await sent(f"artifact-{kind}"))["artifacts"][0] for kind in kinds]
        parts = [set(one["parts"][0]) - {"filename", "mediaType"} for one in artifacts]
        assert parts == [{"text"}, {"raw"}, {"url"}, {"data"}]
        with pytest.raises(RpcError) as raised:
            await client.send([{"raw": "dGNr", "mediaType": "application/x-unknown"}])
        assert raised.value.code == -32005
        async with server.http.get(f"{server.url}/.well-known/agent-card.json") as response:
            assert (await response.json())["defaultInputModes"] == ["text/plain"]
