"""Lists of tasks: page tokens, filters and pages. Their order is in test_store_contract.py."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from glob import glob
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import ClientSession
from hypothesis import given
from hypothesis import strategies as st

from bridge.a2a.codecs import CODECS
from bridge.a2a.pagination import decode_position, encode_position
from bridge.errors import InvalidParams
from bridge.task.transitions import TaskState
from tests.support.bridge_process import bridge, scripted
from tests.support.cases import each
from tests.support.client import Client, Json, RpcError, artifact_text, state
from tests.support.served import Server, serving

asynchronous = pytest.mark.asyncio(loop_scope="module")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
METHOD = {"1.0": "ListTasks", "0.3": "tasks/list"}


# --- page tokens -------------------------------------------------------------------------------


@given(st.integers(0, 2**52), st.text("0123456789abcdef-", min_size=1))
def test_a_token_names_a_position_to_the_microsecond(time: int, task_id: str) -> None:
    token = encode_position((time, task_id))
    assert decode_position(token) == (time, task_id)


def test_the_last_page_has_no_token_and_the_first_one_needs_none() -> None:
    assert encode_position(None) == ""
    assert decode_position("") is None


def test_a_token_of_an_earlier_version_is_understood() -> None:
    token = base64.urlsafe_b64encode(b"1767225600.000001 t1").decode()
    assert decode_position(token) == (1767225600000001, "t1")
    assert encode_position((1767225600000001, "t1")) == token


@each(
    "token",
    [
        *("x", "====", "ü", "\0", "AA", "bm9uZQ==", " ", "a" * 5000),
        *(base64.urlsafe_b64encode(text).decode() for text in (b"1", b"1 a b", b"x y", b"\xff 1")),
        *(base64.urlsafe_b64encode(text).decode() for text in (b"nan t1", b"-nan t1")),
    ],
)
def test_a_token_of_another_principal_is_refused(token: str) -> None:
    with pytest.raises(InvalidParams, match="pageToken") as raised:
        decode_position(token)
    assert raised.value.fields[0][0] == "pageToken"


# --- filters -----------------------------------------------------------------------------------


@each("codec", CODECS, ids=lambda codec: codec.version)
@each("wanted", TaskState)
def test_every_state_has_its_name_in_a_filter(codec: Any, wanted: TaskState) -> None:
    assert codec.decode_list({"status": codec.states[wanted]}).state is wanted


def test_every_state_has_its_number_in_the_new_version() -> None:
    by_number = [CODECS[0].decode_list({"status": number}).state for number in range(1, 9)]
    assert [state.value for state in by_number if state] == [
        *("submitted", "working", "completed", "failed", "canceled"),
        *("input-required", "rejected", "auth-required"),
    ]
    with pytest.raises(InvalidParams):
        CODECS[1].decode_list({"status": 3})


@each("nothing", [None, "", 0, "TASK_STATE_UNSPECIFIED"])
def test_an_unspecified_state_filters_nothing(nothing: Any) -> None:
    assert CODECS[0].decode_list({"status": nothing}).state is None


@each(
    "text",
    [
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00.000Z",
        "2026-01-01T00:00:00.000000000Z",
        "2026-01-01T01:00:00+01:00",
    ],
)
def test_a_time_may_have_any_fraction(text: str) -> None:
    assert CODECS[0].decode_list({"statusTimestampAfter": text}).changed_since == NOW


# --- over HTTP ---------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    async with serving(tmp_path_factory.mktemp("workspace")) as server:
        yield server


@pytest.fixture(params=["1.0", "0.3"])
def client(server: Server, request: pytest.FixtureRequest) -> Client:
    return server.client(request.param)


async def list_tasks(client: Client, **asked: Any) -> Json:
    result: Json = await client.call(METHOD[client.version], asked)
    return result


@asynchronous
async def test_a_list_has_all_its_members_even_if_it_is_empty(client: Client) -> None:
    assert await list_tasks(client, contextId="nobody") == {
        "tasks": [],
        "nextPageToken": "",
        "pageSize": 50,
        "totalSize": 0,
    }
    assert (await list_tasks(client, contextId="nobody", pageSize=7))["pageSize"] == 7


@asynchronous
async def test_the_listed_task_is_the_one_that_is_got(client: Client) -> None:
    sent = await client.send("status busy\ntext hello")
    (task,) = (await list_tasks(client, contextId=sent["contextId"], includeArtifacts=True))[
        "tasks"
    ]
    assert task == await client.get(sent["id"]) == sent
    assert task.get("kind") == ("task" if client.version == "0.3" else None)


@asynchronous
@pytest.mark.parametrize("asked", [{}, {"includeArtifacts": False}])
async def test_artifacts_are_left_out_unless_they_are_asked_for(
    client: Client, asked: Json
) -> None:
    context = (await client.send("text hello"))["contextId"]
    (task,) = (await list_tasks(client, contextId=context, **asked))["tasks"]
    assert "artifacts" not in task
    (task,) = (await list_tasks(client, contextId=context, includeArtifacts=True))["tasks"]
    assert artifact_text(task) == "hello"


@asynchronous
async def test_so_much_history_is_listed_as_is_asked_for(client: Client) -> None:
    context = (await client.send("status one\nstatus two"))["contextId"]
    lengths = []
    for length in (0, 1, 2, 50):
        (task,) = (await list_tasks(client, contextId=context, historyLength=length))["tasks"]
        lengths.append(len(task.get("history", [])))
    (task,) = (await list_tasks(client, contextId=context))["tasks"]
    assert (lengths, len(task["history"])) == ([0, 1, 2, 3], 3)


@asynchronous
async def test_tasks_are_found_by_the_state_that_they_are_in(client: Client) -> None:
    context = (await client.send("text one"))["contextId"]
    await client.send("fail no", contextId=context)
    waiting = await client.send("ask q What?", contextId=context)
    for filtered in ("completed", "failed", "input-required"):
        name = filtered
        if client.version == "1.0":
            name = f"TASK_STATE_{filtered.upper().replace('-', '_')}"
        found = await list_tasks(client, contextId=context, status=name)
        assert ([state(one) for one in found["tasks"]], found["totalSize"]) == ([filtered], 1)
    await client.cancel(waiting["id"])
    found = await list_tasks(client, contextId=context)
    assert [state(one) for one in found["tasks"]] == ["canceled", "failed", "completed"]


@asynchronous
async def test_the_time_that_a_task_shows_finds_it_again(client: Client) -> None:
    first = await client.send("text one")
    second = await client.send("text two", contextId=first["contextId"])
    context, time = first["contextId"], second["status"]["timestamp"]
    found = await list_tasks(client, contextId=context, statusTimestampAfter=time)
    assert [task["id"] for task in found["tasks"]] == [second["id"]]


@asynchronous
async def test_pages_go_through_all_tasks_while_new_ones_come(client: Client) -> None:
    first = await client.send("text 0")
    context = first["contextId"]
    sent = [first["id"]]
    sent += [(await client.send("done", contextId=context))["id"] for _ in range(4)]
    seen: list[str] = []
    token = ""
    while token or not seen:
        assert len(seen) < 20, "no page is the last one"
        found = await list_tasks(client, contextId=context, pageSize=2, pageToken=token)
        seen += [task["id"] for task in found["tasks"]]
        token = found["nextPageToken"]
        if token:
            await client.send("done", contextId=context)
    assert seen == sent[::-1]
    assert found["totalSize"] == 7


@asynchronous
async def test_a_task_that_works_is_listed(server: Server, client: Client) -> None:
    task = await client.send("ask q What?")
    found = await list_tasks(server.client("1.0"), contextId=task["contextId"])
    assert state(found["tasks"][0]) == "input-required"
    await client.cancel(task["id"])


@asynchronous
@pytest.mark.parametrize(
    "asked",
    [
        *({"pageSize": 0}, {"pageSize": -1}, {"pageSize": 101}, {"pageSize": "x"}),
        *({"pageToken": "none"}, {"pageToken": 5}, {"historyLength": -1}, {"contextId": 5}),
        *({"status": "dreaming"}, {"status": True}, {"status": []}, {"includeArtifacts": 1}),
        *({"statusTimestampAfter": "now"}, {"statusTimestampAfter": []}),
        {"statusTimestampAfter": "2026-01-01T00:00:00"},
    ],
    ids=str,
)
async def test_the_error_names_the_invalid_parameter_of_a_list(client: Client, asked: Json) -> None:
    with pytest.raises(RpcError) as raised:
        await list_tasks(client, **asked)
    assert raised.value.code == -32602
    (name,) = asked
    assert raised.value.error["data"][1]["fieldViolations"][0]["field"].startswith(name)


@asynchronous
async def test_a_list_needs_no_params(server: Server) -> None:
    for version, method in METHOD.items():
        body = {"jsonrpc": "2.0", "id": 1, "method": method}
        response = await server.client(version).post(body)
        assert "tasks" in (await response.json())["result"]


@asynchronous
async def test_forgotten_tasks_are_not_listed(workspace: Path) -> None:
    async with serving(workspace, bridge_max_tasks=2) as server:
        client = server.client()
        sent = [(await client.send("done"))["id"] for _ in range(3)]
        found = await list_tasks(client)
        assert [task["id"] for task in found["tasks"]] == sent[:0:-1]
        assert found["totalSize"] == 2


@asynchronous
async def test_a_context_with_many_tasks_displaces_only_its_own(workspace: Path) -> None:
    """A task without an end stays."""
    async with serving(workspace, bridge_keep_tasks_per_context=2) as server:
        client = server.client()
        asking = await client.send("ask q What?")
        others = [await client.send("done") for _ in range(3)]
        sent = [await client.send("done", contextId="c") for _ in range(4)]
        found = {task["id"] for task in (await list_tasks(client))["tasks"]}
        assert found == {task["id"] for task in (asking, *others, *sent[2:])}


@asynchronous
async def test_files_go_with_the_tasks_of_a_context(workspace: Path) -> None:
    cat = {"AGENT_ADAPTER": "generic", "AGENT_BINARY": "cat", "AGENT_ARGS": ""}
    settings = {**scripted(workspace), **cat, "BRIDGE_KEEP_TASKS_PER_CONTEXT": "2"}
    content = base64.b64encode(b"x").decode()
    file = {"raw": content, "mediaType": "application/zip", "filename": "a.zip"}
    async with bridge(workspace, **settings) as server, ClientSession() as http:
        client = Client(http, server.url)
        sent = [await client.send([{"text": "done"}, file], contextId="c") for _ in range(4)]
    kept = glob(f"{settings['BRIDGE_STATE_DIR']}/**/*a.zip", recursive=True)
    assert {Path(path).parent.name for path in kept} == {task["id"] for task in sent[2:]}
