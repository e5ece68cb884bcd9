"""JSON-RPC 2.0 over HTTP: ids, notifications, and requests that are not valid."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from bridge.transports.envelope.request import MAX_ID
from bridge.transports.json_body import MAX_DEPTH
from tests.support.cases import each
from tests.support.client import METHODS, Client, Json, RpcError, state
from tests.support.served import Server, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
WITHIN = 60.0
VERSIONS = ["1.0", "0.3"]
each_version = each("version", VERSIONS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    async with serving(tmp_path_factory.mktemp("workspace")) as server:
        yield server


async def answer(client: Client, body: Any) -> Json:
    response = await client.post(body)
    assert response.status == 200
    decoded: Json = await response.json()
    return decoded


# --- ids ---------------------------------------------------------------------------------------

INVALID: dict[str, Json] = {
    "jsonrpc is wrong": {"jsonrpc": "1.0", "method": "GetTask", "params": {}},
    "jsonrpc is a number": {"jsonrpc": 2.0, "method": "GetTask", "params": {}},
    "jsonrpc is missing": {"method": "GetTask", "params": {}},
    "method is missing": {"jsonrpc": "2.0", "params": {}},
    "method is a number": {"jsonrpc": "2.0", "method": 1, "params": {}},
    "method is null": {"jsonrpc": "2.0", "method": None},
    "nothing else": {},
}


@each("request_id", ["a", "", 0, 7, -1, 1.5, 2**64 - 1])
@each("name", INVALID)
async def test_an_invalid_request_is_answered_with_its_id(
    server: Server, name: str, request_id: Any
) -> None:
    found = await answer(server.client(), {**INVALID[name], "id": request_id})
    assert (found["id"], found["error"]["code"]) == (request_id, -32600)


@each("name", INVALID)
async def test_an_invalid_request_without_an_id_is_answered_with_null(
    server: Server, name: str
) -> None:
    found = await answer(server.client(), INVALID[name])
    assert (found["id"], found["error"]["code"]) == (None, -32600)


@each("request_id", [True, False, [], {}, ["a"], {"bad": "type"}, "x" * 300])
async def test_an_id_that_is_not_valid_is_not_repeated(server: Server, request_id: Any) -> None:
    body = {"jsonrpc": "2.0", "id": request_id, "method": "GetTask", "params": {"id": "x"}}
    found = await answer(server.client(), body)
    assert (found["id"], found["error"]["code"]) == (None, -32600)


@each("request_id", ["x" * MAX_ID, None, 0, ""])
async def test_every_answer_has_the_id_of_its_request(server: Server, request_id: Any) -> None:
    body = {"jsonrpc": "2.0", "id": request_id, "method": "GetTask", "params": {"id": "x"}}
    found = await answer(server.client(), body)
    assert (found["id"], found["error"]["code"]) == (request_id, -32001)


# --- requests that are valid JSON and beyond our limits ------------------------------------------


@each(
    ("body", "request_id"),
    [
        ('{"jsonrpc":"2.0","id":7,"method":"GetTask","params":{"id":"x","x":1,"x":2}}', 7),
        ('{"jsonrpc":"2.0","id":7,"method":"GetTask","params":{"id":"x","id":"y"}}', 7),
        ('{"jsonrpc":"2.0","id":7,"method":"GetTask","method":"GetTask"}', 7),
        ('{"jsonrpc":"2.0","id":7,"id":8,"method":"GetTask"}', None),
        ('{"jsonrpc":"2.0","id":7,"method":"GetTask","params":{"x":18446744073709551616}}', 7),
        ('{"jsonrpc":"2.0","id":7,"x":%s}' % ("[" * MAX_DEPTH + "]" * MAX_DEPTH), None),
        ('{"jsonrpc":"2.0","id":7,"method":"GetTask","params":{"x":1e999}}', 7),
        ('{"jsonrpc":"2.0","id":7,"method":"GetTask","params":{"x":%s}}' % ("9" * 4000), 7),
        ('{"jsonrpc":"2.0","id":7,"method":"GetTask","params":{"x":"\\ud800"}}', 7),
        ('[{"a":1,"a":2}]', None),
    ],
)
async def test_json_beyond_our_limits_is_an_invalid_request(
    server: Server, body: str, request_id: Any
) -> None:
    json.loads(body)
    found = await answer(server.client(), body.encode())
    assert (found["id"], found["error"]["code"]) == (request_id, -32600)
    headers = {"A2A-Version": "1.0", "Content-Type": "application/json"}
    url = f"{server.url}/message:send"
    async with server.http.post(url, data=body.encode(), headers=headers) as response:
        (detail,) = (await response.json())["error"]["details"]
        assert (response.status, detail["reason"]) == (400, "INVALID_REQUEST")


@each("body", ["", "{", '{"a":1,}', "NaN", "'a'", "\ufeff{}", "[-Infinity]"])
async def test_a_value_that_is_not_json_is_a_parse_error(server: Server, body: str) -> None:
    found = await answer(server.client(), body.encode())
    assert (found["id"], found["error"]["code"]) == (None, -32700)


# --- notifications -------------------------------------------------------------------------------


async def notify(client: Client, method: str, params: Any) -> tuple[int, bytes]:
    body = {"jsonrpc": "2.0", "method": method, "params": params}
    async with asyncio.timeout(WITHIN):
        response = await client.post(body)
        return response.status, await response.read()


@each_version
async def test_a_notification_is_executed_and_has_no_answer(server: Server, version: str) -> None:
    client = server.client(version)
    asked = await client.send("ask one Which?")
    answered = client.message("red", taskId=asked["id"])
    assert await notify(client, METHODS[version][0], {"message": answered}) == (204, b"")
    async with asyncio.timeout(WITHIN):
        while state(await client.get(asked["id"])) != "completed":
            pass
    asked = await client.send("ask one Which?")
    assert await notify(client, METHODS[version][3], {"id": asked["id"]}) == (204, b"")
    assert state(await client.get(asked["id"])) == "canceled"


@each_version
@pytest.mark.parametrize("method", [0, 1])
async def test_a_send_without_an_id_does_not_wait(
    server: Server, version: str, method: int
) -> None:
    client, context = server.client(version), f"notified-{version}-{method}"
    params = {"message": client.message("ask one Which?", contextId=context)}
    assert await notify(client, METHODS[version][method], params) == (204, b"")
    newest = server.client("1.0")
    (task,) = (await newest.call("ListTasks", {"contextId": context}))["tasks"]
    async with asyncio.timeout(WITHIN):
        while state(task) != "input-required":
            task = await newest.get(task["id"])
    assert state(await newest.send("red", taskId=task["id"])) == "completed"


@each_version
@pytest.mark.parametrize("method", [2, 3, 4])
async def test_a_notification_that_fails_has_no_answer_either(
    server: Server, version: str, method: int
) -> None:
    client = server.client(version)
    assert await notify(client, METHODS[version][method], {"id": "none"}) == (204, b"")


@each(
    ("method", "params", "code"),
    [
        ("message/ssend", {}, -32601),
        ("message/send", {"": "not_a_dict"}, -32602),
        ("message/send", "not_a_dict", -32602),
        ("message/send", {"message": {"parts": "invalid"}}, -32602),
        ("SendMessage", {}, -32009),
    ],
)
async def test_an_invalid_notification_is_an_invalid_request(
    server: Server, method: str, params: Any, code: int
) -> None:
    """The official suite for 0.3 sends such requests without an id and reads the error."""
    body = {"jsonrpc": "2.0", "method": method, "params": params}
    found = await answer(server.client("0.3"), body)
    assert (found["id"], found["error"]["code"]) == (None, code)


# --- versions ------------------------------------------------------------------------------------


@each(
    ("method", "version", "wanted"),
    [
        ("SendMessage", "", "A2A-Version: 1.0"),
        ("SendMessage", "9.9", "A2A-Version: 1.0"),
        ("message/send", "1.0", "A2A-Version: 0.3"),
    ],
)
async def test_the_error_names_the_version_to_ask_for(
    server: Server, method: str, version: str, wanted: str
) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {}}
    response = await server.client().post(body, **{"A2A-Version": version})
    error = (await response.json())["error"]
    assert error["code"] == -32009
    assert f"Send {wanted}; without it the request is read as 0.3." in error["message"]


async def test_over_rest_the_error_names_the_version_too(server: Server) -> None:
    headers = {"A2A-Version": "2.0"}
    async with server.http.get(f"{server.url}/tasks", headers=headers) as response:
        error = (await response.json())["error"]
    assert "Send A2A-Version: 1.0 or 0.3; without it the request is read" in error["message"]


@each(
    ("method", "similar"),
    [
        ("SendMesage", "SendMessage"),
        ("message/stram", "message/stream"),
        ("GetTasks", "GetTask"),
        ("tasks/cancle", "tasks/cancel"),
    ],
)
async def test_an_unknown_method_is_answered_with_a_similar_one(
    server: Server, method: str, similar: str
) -> None:
    with pytest.raises(RpcError, match=f"Unknown method.* Did you mean {similar}\\?") as raised:
        await server.client().call(method, {})
    assert raised.value.code == -32601
    with pytest.raises(RpcError) as raised:
        await server.client().call("x" * 100_000, {})
    assert "Did you mean" not in str(raised.value) and len(str(raised.value)) < 200
