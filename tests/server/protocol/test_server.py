"""The JSON-RPC binding over HTTP in both protocol versions: requests, answers, errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import each
from tests.support.client import (
    Client,
    Json,
    RpcError,
    artifact_text,
    context_id,
    facts,
    said,
    state,
    states,
    status_message,
    task_id,
    texts,
)
from tests.support.liveness import Liveness, listening
from tests.support.served import Server, serving

TERMINAL = {"completed", "failed", "canceled", "rejected"}


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


async def error_of(awaitable: Any) -> Json:
    with pytest.raises(RpcError) as raised:
        await awaitable
    return raised.value.error


def reason(error: Json) -> str:
    infos = [d for d in error["data"] if d["@type"].endswith("google.rpc.ErrorInfo")]
    assert len(infos) == 1 and infos[0]["domain"] == "a2a-protocol.org"
    assert all(isinstance(value, str) for value in infos[0]["metadata"].values())
    return str(infos[0]["reason"])


# --- send, get, cancel -------------------------------------------------------------------------


async def test_a_blocking_send_answers_with_the_finished_task(client: Client) -> None:
    task = await client.send("text Hello\nstatus working\ntext  you\ndone bye")
    assert state(task) == "completed"
    assert artifact_text(task) == "Hello you"
    assert said(task) == "Hello you\n\nbye"  # the last block of the answer comes first
    assert task["contextId"] and task["id"] != task["contextId"]
    if client.version == "0.3":
        assert task["kind"] == "task" and status_message(task)["kind"] == "message"
    else:
        assert "kind" not in task
    assert await client.get(task["id"]) == task


async def test_a_non_blocking_send_answers_at_once(client: Client, live: Liveness) -> None:
    task = await client.send_now(f"wait {live.path} agent\ntext done")
    assert state(task) in ("submitted", "working")
    await live.pid("agent")
    assert state(await client.get(task["id"])) in ("submitted", "working")
    async with client.subscribe(task["id"]) as items:
        assert state(await anext(items)) in ("submitted", "working")
        await live.release("agent")
        assert states([item async for item in items])[-1] == "completed"
    assert artifact_text(await client.get(task["id"])) == "done"


async def test_a_blocking_send_answers_when_the_agent_asks(client: Client) -> None:
    task = await client.send("text before\npermit q-1 May I?\ntext  after")
    assert state(task) == "input-required"
    assert said(task).startswith("May I?")
    question = facts(task)
    assert (question["type"], question["questionId"]) == ("question", f"{task['id'][:8]}-1")
    assert [option["id"] for option in question["options"]] == ["yes", "no"]
    task = await client.send("go on", taskId=task["id"])
    assert state(task) == "completed"
    assert artifact_text(task) == 'before\n\nanswered ["q-1", "go on", "yes"] after'


async def test_an_answer_by_option_id_reaches_the_agent(client: Client) -> None:
    task = await client.send("permit q-1 May I?")
    data: Json = {"questionId": facts(task)["questionId"], "optionId": "no"}
    part = {"kind": "data", "data": data} if client.version == "0.3" else {"data": data}
    task = await client.send([part], taskId=task["id"], contextId=task["contextId"])
    assert artifact_text(task) == 'answered ["q-1", "", "no"]'


async def test_a_login_is_asked_for_as_auth_required(client: Client) -> None:
    task = await client.send("login l-1 Please log in")
    assert state(task) == "auth-required" and said(task).startswith("Please log in")
    task = await client.send("I have", taskId=task["id"])
    assert state(task) == "completed" and "I have" in artifact_text(task)


async def test_the_agent_may_answer_with_a_message(client: Client) -> None:
    message = await client.send("reply Hello")
    assert texts(message["parts"]) == "Hello"
    assert message["role"] == ("agent" if client.version == "0.3" else "ROLE_AGENT")
    assert message["contextId"] and "status" not in message
    if client.version == "0.3":
        assert message["kind"] == "message"


async def test_a_message_instead_of_a_shown_task_completes_the_task(client: Client) -> None:
    task = await client.send_now("reply Hello")
    assert task["status"]
    async with asyncio.timeout(10):
        while state(task) not in TERMINAL:
            task = await client.get(task["id"])
    assert (state(task), said(task)) == ("completed", "Hello")


@each(("script", "end"), [("fail no", "failed"), ("reject no", "rejected")])
async def test_the_agent_may_fail_or_reject(client: Client, script: str, end: str) -> None:
    task = await client.send(f"text a\n{script}")
    assert (state(task), said(task), artifact_text(task)) == (end, "no", "a")


async def test_cancel_answers_with_the_canceled_task(client: Client, live: Liveness) -> None:
    script = f"text a\nspawn {live.path} helper\nwait {live.path} agent"
    task = await client.send_now(script)
    await live.pid("agent")
    await live.pid("helper")
    canceled = await client.cancel(task["id"])
    assert (canceled["id"], state(canceled)) == (task["id"], "canceled")
    await live.gone("agent", "helper")
    error = await error_of(client.cancel(task["id"]))
    assert (error["code"], reason(error)) == (-32002, "TASK_NOT_CANCELABLE")
    assert artifact_text(await client.get(task["id"])) == "a"


async def test_a_cancel_ends_a_blocking_send(
    server: Server, client: Client, live: Liveness
) -> None:
    sending = asyncio.create_task(client.send(f"text a\nwait {live.path} agent"))
    await live.pid("agent")
    listed = await server.client("1.0").call("ListTasks", {})
    await client.cancel(listed["tasks"][0]["id"])
    task = await sending
    assert (state(task), artifact_text(task)) == ("canceled", "a")


async def test_the_same_context_continues_in_the_same_process(client: Client) -> None:
    first = await client.send("pid")
    second = await client.send("pid\ntext /\nturn", contextId=first["contextId"])
    assert artifact_text(second) == f"{artifact_text(first)}/2"
    assert second["contextId"] == first["contextId"] and second["id"] != first["id"]


async def test_a_client_that_goes_away_does_not_end_its_task(
    client: Client, live: Liveness
) -> None:
    sending = asyncio.create_task(
        client.send(f"wait {live.path} agent\ntext survived", contextId="c")
    )
    await live.pid("agent")
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    after = asyncio.create_task(client.send("turn", contextId="c"))
    await live.release("agent")
    assert artifact_text(await after) == "2"


@each(("length", "kept"), [(None, 4), (0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (1000, 4)])
async def test_history_is_cut_to_the_newest_messages(
    client: Client, length: int | None, kept: int
) -> None:
    task = await client.send("status a\nstatus b\nstatus c\ndone")
    whole = (await client.get(task["id"]))["history"]
    params = {} if length is None else {"historyLength": length}
    history = (await client.get(task["id"], **params)).get("history", [])
    assert len(whole) == 4 and history == whole[4 - kept :]
    configuration = {**params}
    sent = await client.send("status a\nstatus b\nstatus c\ndone", configuration)
    assert len(sent.get("history", [])) == kept
    if length == 0:
        assert "history" not in sent


async def test_history_holds_the_messages_of_both_sides_in_order(client: Client) -> None:
    task = await client.send("status first\nask q-1 Which?\nstatus last\ndone", messageId="m-a")
    task = await client.send("this", taskId=task["id"], messageId="m-b")
    said_by = [texts(message["parts"]) for message in task["history"]]
    answer = 'answered ["q-1", "this", null]'
    assert said_by[1:] == ["first\n", "Which?", "this", "last\n", answer]
    ids = [message["messageId"] for message in task["history"]]
    assert (ids[0], ids[3]) == ("m-a", "m-b") and len(set(ids)) == 6
    for message in task["history"]:
        assert message["taskId"] == task["id"] and message["contextId"] == task["contextId"]


async def test_parts_and_metadata_of_a_message_reach_the_agent(client: Client) -> None:
    if client.version == "0.3":
        parts: list[Json] = [
            {"kind": "text", "text": "prompt"},
            {"kind": "data", "data": {"a": [1, None]}},
            {"kind": "file", "file": {"bytes": "aGk=", "name": "a.bin", "mimeType": "x/y"}},
            {"kind": "file", "file": {"uri": "https://example.org/a"}},
        ]
    else:
        parts = [
            {"text": "prompt"},
            {"data": {"a": [1, None]}},
            {"raw": "aGk=", "filename": "a.bin", "mediaType": "x/y"},
            {"url": "https://example.org/a"},
        ]
    task = await client.send(parts, metadata={"k": {"n": 1}}, messageId="m-7")
    prompt = json.loads(artifact_text(task))
    assert prompt["parts"] == [
        {"text": "prompt"},
        {"data": {"a": [1, None]}},
        {"raw": "aGk=", "filename": "a.bin", "mediaType": "x/y"},
        {"url": "https://example.org/a"},
    ]
    assert (prompt["metadata"], prompt["messageId"]) == ({"k": {"n": 1}}, "m-7")
    assert (prompt["taskId"], prompt["contextId"]) == (task["id"], task["contextId"])
    assert task["history"][0]["parts"] == parts
    assert task["history"][0]["metadata"] == {"k": {"n": 1}}


async def test_a_directory_of_its_own_may_be_chosen_inside_the_workspace(
    client: Client, workspace: Path
) -> None:
    (workspace / "inner").mkdir()
    task = await client.send("cwd", metadata={"bridge": {"cwd": "inner"}})
    assert artifact_text(task) == str(workspace / "inner")
    error = await error_of(client.send("cwd", metadata={"bridge": {"cwd": "/etc"}}))
    assert error["code"] == -32602 and "/etc" not in error["message"]


# --- errors ------------------------------------------------------------------------------------


async def test_unknown_tasks_are_not_found(client: Client) -> None:
    calls = [client.get("nope"), client.cancel("nope"), client.send("x", taskId="nope")]
    for call in calls:
        error = await error_of(call)
        assert (error["code"], reason(error)) == (-32001, "TASK_NOT_FOUND")
    with pytest.raises(RpcError) as raised:
        async with client.subscribe("nope") as items:
            [item async for item in items]
    assert raised.value.code == -32001


async def test_a_finished_task_takes_no_message_and_no_subscriber(client: Client) -> None:
    task = await client.send("text a")
    error = await error_of(client.send("more", taskId=task["id"]))
    assert (error["code"], reason(error)) == (-32004, "UNSUPPORTED_OPERATION")
    assert "contextId" in error["message"]
    with pytest.raises(RpcError) as raised:
        async with client.subscribe(task["id"]) as items:
            [item async for item in items]
    assert raised.value.code == -32004


async def test_a_context_that_is_not_the_tasks_is_refused(client: Client) -> None:
    task = await client.send("ask q-1 x")
    error = await error_of(client.send("x", taskId=task["id"], contextId="another"))
    assert error["code"] == -32602
    violations = [d for d in error["data"] if d["@type"].endswith("google.rpc.BadRequest")]
    assert violations[0]["fieldViolations"][0]["field"] == "message.contextId"


@each(
    ("change", "field"),
    [
        ({"messageId": None}, "messageId"),
        ({"role": None}, "role"),
        ({"parts": None}, "parts"),
        ({"messageId": ""}, "messageId"),
        ({"messageId": 5}, "messageId"),
        ({"role": "system"}, "role"),
        ({"parts": []}, "parts"),
        ({"parts": [{}]}, "parts"),
        ({"parts": ["text"]}, "parts"),
        ({"parts": "text"}, "parts"),
        ({"parts": [{"kind": "video", "video": 1}]}, "parts"),
        ({"metadata": []}, "metadata"),
        ({"contextId": "a b"}, "contextId"),
        ({"taskId": 5}, "taskId"),
    ],
)
async def test_a_message_that_is_wrong_is_refused_with_the_field_that_is(
    client: Client, change: Json, field: str
) -> None:
    message = {**client.message("x"), **change}
    message = {name: value for name, value in message.items() if value is not None}
    method = "message/send" if client.version == "0.3" else "SendMessage"
    error = await error_of(client.call(method, {"message": message}))
    assert (error["code"], reason(error)) == (-32602, "INVALID_PARAMS")
    violations = [d for d in error["data"] if d["@type"].endswith("google.rpc.BadRequest")]
    fields = [violation["field"] for violation in violations[0]["fieldViolations"]]
    assert any(name.split(".")[:2] == ["message", field] for name in fields), fields


@each(
    "part",
    [
        {"text": "text hello"},
        {"kind": "text", "text": "text hello"},
        {"type": "text", "content": "text hello"},
    ],
)
async def test_a_message_of_0_3_that_only_has_parts_is_one_of_the_user(
    server: Server, part: Json
) -> None:
    client = Client(server.http, server.url, "0.3")
    task = await client.call("message/send", {"message": {"parts": [part]}})
    assert (state(task), artifact_text(task)) == ("completed", "hello")
    assert task["history"][0]["role"] == "user"


@each("params", [None, [], "x", 5, {}, {"message": 5}, {"id": 5}, {"id": ""}])
async def test_params_that_are_wrong_are_refused(client: Client, params: Any) -> None:
    old = client.version == "0.3"
    for method in ("message/send", "tasks/get") if old else ("SendMessage", "GetTask"):
        assert (await error_of(client.call(method, params)))["code"] == -32602


@each("length", [-1, "x", 1.5, [], 10**30])
async def test_a_history_length_that_is_none_is_refused(client: Client, length: Any) -> None:
    error = await error_of(client.get("nope", historyLength=length))
    assert error["code"] == (-32600 if length == 10**30 else -32602)


async def test_a_medium_that_the_agent_cannot_read_is_refused(workspace: Path) -> None:
    program = workspace.parent / "claude"
    program.write_text("#!/bin/sh\nexec cat\n")
    program.chmod(0o755)
    claude: Json = {"agent_adapter": "claude-code", "agent_binary": str(program), "agent_args": ()}
    async with serving(workspace, **claude) as server:
        client = server.client("1.0")
        for part in ({"text": "hi", "mediaType": "video/mp4"}, {"url": "https://example.org"}):
            error = await error_of(client.send([part]))
            assert (error["code"], reason(error)) == (-32005, "CONTENT_TYPE_NOT_SUPPORTED")


# --- the envelope ------------------------------------------------------------------------------


async def test_the_id_of_the_request_is_returned_unchanged(client: Client) -> None:
    method = "tasks/get" if client.version == "0.3" else "GetTask"
    for request_id in ("a", "", 0, -1, 7, 1.5, None, "é\n", 2**53):
        body = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {"id": "x"}}
        response = await client.post(body)
        answer = await response.json()
        assert answer["id"] == request_id and answer["jsonrpc"] == "2.0"
        assert response.status == 200 and response.content_type == "application/json"


BAD_ENVELOPES: list[tuple[Any, int]] = [
    (b"", -32700),
    (b"{", -32700),
    (b"\xff", -32700),
    (b"nonsense", -32700),
    (b'{"jsonrpc":"2.0"', -32700),
    ([], -32600),
    ([{"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {}}], -32600),
    (5, -32600),
    ("text", -32600),
    (None, -32600),
    ({}, -32600),
    ({"id": 1, "method": "GetTask"}, -32600),
    ({"jsonrpc": "1.0", "id": 1, "method": "GetTask"}, -32600),
    ({"jsonrpc": 2.0, "id": 1, "method": "GetTask"}, -32600),
    ({"jsonrpc": "2.0", "id": 1}, -32600),
    ({"jsonrpc": "2.0", "id": 1, "method": 5}, -32600),
    ({"jsonrpc": "2.0", "id": 1, "method": None}, -32600),
    ({"jsonrpc": "2.0", "id": {}, "method": "GetTask"}, -32600),
    ({"jsonrpc": "2.0", "id": [], "method": "GetTask"}, -32600),
    ({"jsonrpc": "2.0", "id": True, "method": "GetTask"}, -32600),
    ({"jsonrpc": "2.0", "id": 1, "method": "Nope"}, -32601),
    ({"jsonrpc": "2.0", "id": 1, "method": ""}, -32601),
    ({"jsonrpc": "2.0", "id": 1, "method": "__init__"}, -32601),
]


@each(("body", "code"), BAD_ENVELOPES)
async def test_a_value_that_is_not_a_request_is_refused(
    client: Client, body: Any, code: int
) -> None:
    response = await client.post(body)
    answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (200, code)
    wanted = body.get("id") if isinstance(body, dict) else None
    assert answer["id"] == (1 if wanted == 1 and wanted is not True else None)
    assert set(answer) == {"jsonrpc", "id", "error"}


@each("kind", ["text/plain", "application/x-www-form-urlencoded", "", "a/b;c"])
async def test_another_content_type_is_refused_unread(client: Client, kind: str) -> None:
    response = await client.post(b"not json", **{"Content-Type": kind})
    error = (await response.json())["error"]
    assert (response.status, error["code"]) == (415, -32005)


@each("kind", ["application/json; charset=utf-8", "application/a2a+json", "APPLICATION/JSON"])
async def test_json_by_its_other_names_is_accepted(client: Client, kind: str) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "Nope"}
    response = await client.post(body, **{"Content-Type": kind})
    assert (await response.json())["error"]["code"] == -32601


async def test_a_body_over_the_limit_is_413(workspace: Path) -> None:
    async with serving(workspace, bridge_max_body_bytes=2000) as server:
        client = server.client()
        for size in (2001, 100_000):
            response = await client.post(b" " * size)
            error = (await response.json())["error"]
            assert (response.status, error["code"]) == (413, -32600)
            assert "BRIDGE_MAX_BODY_BYTES" in error["message"]
        assert state(await client.send("text a")) == "completed"


# --- versions ----------------------------------------------------------------------------------


async def call_with(server: Server, method: str, headers: Json, query: str = "") -> int:
    """The error code; each call would be TaskNotFound if its version were right."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"id": "x"}}
    headers = {**headers}
    url = f"{server.url}/a2a/jsonrpc{query}"
    async with server.http.post(url, json=body, headers=headers) as response:
        assert response.status == 200
        return int((await response.json())["error"]["code"])


@each(
    ("method", "header", "query", "code"),
    [
        ("GetTask", "1.0", "", -32001),
        ("GetTask", "1.0.1", "", -32001),
        ("GetTask", " 1.0 ", "", -32001),
        ("GetTask", None, "?A2A-Version=1.0", -32001),
        ("GetTask", "", "?A2A-Version=1.0", -32001),
        ("GetTask", "1.0", "?A2A-Version=0.3", -32001),
        ("tasks/get", None, "", -32001),
        ("tasks/get", "", "", -32001),
        ("tasks/get", "0.3", "", -32001),
        ("tasks/get", "0.3.0", "", -32001),
        ("GetTask", None, "", -32009),
        ("GetTask", "", "", -32009),
        ("GetTask", "0.3", "", -32009),
        ("GetTask", "0.3", "?A2A-Version=1.0", -32009),
        ("tasks/get", "1.0", "", -32009),
        ("GetTask", "99.0", "", -32009),
        ("tasks/get", "99.0", "", -32009),
        ("GetTask", "1", "", -32009),
        ("GetTask", "1.1", "", -32009),
        ("GetTask", "1.0-beta", "", -32009),
        ("GetTask", "garbage", "", -32009),
        ("GetTask", "\u0661.\u0660", "", -32009),
        ("GetTask", "x" * 5000, "", -32009),
        ("Nope", "99.0", "", -32601),
    ],
)
async def test_the_header_of_the_client_decides_the_version(
    server: Server, method: str, header: str | None, query: str, code: int
) -> None:
    headers = {} if header is None else {"A2A-Version": header}
    assert await call_with(server, method, headers, query) == code


async def test_the_error_for_an_unknown_version_lists_the_known_ones(server: Server) -> None:
    client = server.client()
    body = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}}
    response = await client.post(body, **{"A2A-Version": "99.0"})
    error = (await response.json())["error"]
    assert reason(error) == "VERSION_NOT_SUPPORTED"
    assert error["data"][0]["metadata"]["supportedVersions"] == "1.0, 0.3"


@each("path", ["/a2a/jsonrpc", "/a2a/jsonrpc/", "/a2a", "/a2a/", "/", ""])
async def test_the_endpoint_answers_at_each_of_its_addresses(server: Server, path: str) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": "x"}}
    url = f"{server.url}{path}"
    async with server.http.post(url, json=body, allow_redirects=False) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (200, -32001)


async def test_both_versions_see_the_same_task(server: Server) -> None:
    new, old = server.client("1.0"), server.client("0.3")
    task = await old.send("text a\nask q-1 x")
    assert state(await new.get(task["id"])) == "input-required"
    task = await new.send("so", taskId=task["id"])
    seen = await old.get(task["id"])
    assert (seen["kind"], state(seen)) == ("task", "completed")
    assert artifact_text(seen) == artifact_text(task)


async def test_sloppy_requests_of_the_wild_are_understood(server: Server) -> None:
    client = server.client("0.3")
    message = {"messageId": "m", "role": "user", "parts": [{"type": "text", "text": "text a"}]}
    task = await client.call("message/send", {"message": message})
    assert artifact_text(task) == "a"
    assert (await client.call("tasks/get", {"taskId": task["id"]}))["id"] == task["id"]


# --- card, health, token -----------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/.well-known/agent-card.json", "/.well-known/agent.json"])
@pytest.mark.parametrize("shape", ["both", "1.0", "0.3"])
async def test_the_card_is_served_in_the_shape_that_is_set(
    workspace: Path, path: str, shape: str
) -> None:
    async with (
        serving(workspace, bridge_card=shape) as server,
        server.http.get(server.url + path) as response,
    ):
        card = await response.json()
    url = f"{server.url}/a2a/jsonrpc"
    assert response.content_type == "application/json"
    assert card["name"] and card["description"] and card["version"] and card["skills"]
    assert card["capabilities"]["streaming"] is True
    if shape in ("both", "0.3"):
        assert (card["protocolVersion"], card["url"]) == ("0.3.0", url)
        assert card["preferredTransport"] == "JSONRPC"
    else:
        assert "protocolVersion" not in card and "url" not in card
    if shape in ("both", "1.0"):
        first = card["supportedInterfaces"][0]
        assert (first["url"], first["protocolBinding"]) == (url, "JSONRPC")
        assert first["protocolVersion"] == "1.0"
    else:
        assert "supportedInterfaces" not in card
    if shape == "both":
        versions = [i["protocolVersion"] for i in card["supportedInterfaces"]]
        assert set(versions) == {"1.0", "0.3"} and versions[-1] == "0.3"


async def test_the_card_has_the_address_that_the_operator_gave(workspace: Path) -> None:
    settings: Json = {"public_url": "https://agent.example.org/base/"}
    async with (
        serving(workspace, **settings) as server,
        server.http.get(f"{server.url}/.well-known/agent-card.json") as response,
    ):
        assert (await response.json())["url"] == "https://agent.example.org/base/a2a/jsonrpc"


async def test_health_says_ok(server: Server) -> None:
    await server.client().send("text a")
    async with server.http.get(f"{server.url}/health") as response:
        assert response.status == 200
        assert (await response.json())["status"] == "ok"


TOKEN = "s3cret-token-of-16-up"


@pytest.mark.parametrize(
    "header",
    [
        *(None, "", "Bearer", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", TOKEN),
        *(f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN} {TOKEN}", "Bearer \u00ff"),
    ],
)
async def test_without_the_token_nothing_is_answered(workspace: Path, header: str | None) -> None:
    async with serving(workspace, bridge_token=TOKEN) as server:
        headers = {} if header is None else {"Authorization": header}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": "x"}}
        for path in ("/a2a/jsonrpc", "/", "/a2a/", "/nowhere"):
            url = server.url + path
            async with server.http.post(url, json=body, headers=headers) as response:
                assert response.status == 401
                assert response.headers["WWW-Authenticate"].startswith("Bearer")
                assert TOKEN not in await response.text()
        assert server.managers[0].figures()["tasks"] == 0


async def test_with_the_token_all_is_as_without(workspace: Path) -> None:
    async with serving(workspace, bridge_token=TOKEN) as server:
        for scheme in ("Bearer", "bearer"):
            server.http.headers["Authorization"] = f"{scheme} {TOKEN}"
            for version in ("1.0", "0.3"):
                assert state(await server.client(version).send("text a")) == "completed"


async def test_card_and_health_need_no_token_and_the_card_says_that_the_rest_does(
    workspace: Path,
) -> None:
    async with serving(workspace, bridge_token=TOKEN) as server:
        for path in ("/health", "/.well-known/agent.json", "/.well-known/agent-card.json"):
            async with server.http.get(server.url + path) as response:
                assert response.status == 200
                card = await response.json()
        assert [*card["securitySchemes"]] == ["bearer", "apiKey", "basic"]


async def test_other_methods_and_paths_are_errors_in_json(server: Server) -> None:
    async with server.http.get(f"{server.url}/a2a/jsonrpc") as response:
        assert response.status == 405
    async with server.http.get(f"{server.url}/nowhere") as response:
        assert response.status == 404


async def test_ids_of_a_task_are_in_each_of_its_updates(client: Client) -> None:
    items = await client.collect("text a\nstatus b")
    assert {task_id(item) for item in items} == {task_id(items[0])}
    assert {context_id(item) for item in items} == {context_id(items[0])}
