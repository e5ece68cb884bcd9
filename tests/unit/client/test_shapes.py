"""Requests and answers of 0.3 and 1.0, and the HTTP requests of the bindings."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.client import bindings, shapes
from bridge.client.bindings import JsonRpcBinding, RestBinding
from bridge.client.failure import ClientError
from bridge.client.snapshot import Snapshot

MESSAGE = {
    "messageId": "m",
    "role": "ROLE_USER",
    "parts": [
        {"text": "a"},
        {"data": [1]},
        {"raw": "aGk=", "filename": "f", "mediaType": "text/plain"},
        {"url": "https://x/y"},
    ],
}
OLD_TASK = {
    "kind": "task",
    "id": "t",
    "contextId": "c",
    "status": {
        "state": "input-required",
        "message": {"kind": "message", "role": "agent", "messageId": "1", "parts": []},
    },
    "artifacts": [
        {
            "artifactId": "a",
            "parts": [
                {"kind": "text", "text": "x"},
                {"kind": "file", "file": {"bytes": "aGk=", "name": "f", "mimeType": "text/plain"}},
                {"kind": "file", "file": {"uri": "https://x"}},
                {"kind": "data", "data": {"b": 1}, "metadata": {"m": 1}},
            ],
        }
    ],
}


def test_a_task_of_0_3_is_read_as_one_of_1_0() -> None:
    task = shapes.upgrade_task(OLD_TASK)
    assert "kind" not in task
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert task["status"]["message"]["role"] == "ROLE_AGENT"
    assert task["artifacts"][0]["parts"] == [
        {"text": "x"},
        {"raw": "aGk=", "filename": "f", "mediaType": "text/plain"},
        {"url": "https://x"},
        {"data": {"b": 1}, "metadata": {"m": 1}},
    ]


@pytest.mark.parametrize(
    ("kind", "member"),
    [
        ("task", "task"),
        ("message", "message"),
        ("status-update", "statusUpdate"),
        ("artifact-update", "artifactUpdate"),
    ],
)
def test_an_item_of_0_3_is_wrapped_by_its_kind(kind: str, member: str) -> None:
    item = shapes.upgrade({"kind": kind, "status": {"state": "unknown"}, "final": True})
    assert list(item) == [member] and "kind" not in item[member]
    if "status" in member:
        assert item[member]["status"]["state"] == "TASK_STATE_UNSPECIFIED"
        assert "final" not in item[member]


def test_a_message_of_1_0_is_sent_as_one_of_0_3() -> None:
    params = {"message": MESSAGE, "configuration": {"returnImmediately": True}}
    body = JsonRpcBinding("http://h/a", None, "0.3").request(bindings.SEND, params).body
    assert body and body["method"] == "message/send"
    assert body["params"]["configuration"] == {"blocking": False}
    message = body["params"]["message"]
    assert (message["kind"], message["role"]) == ("message", "user")
    assert message["parts"] == [
        {"kind": "text", "text": "a"},
        {"kind": "data", "data": {"value": [1]}},
        {"kind": "file", "file": {"bytes": "aGk=", "name": "f", "mimeType": "text/plain"}},
        {"kind": "file", "file": {"uri": "https://x/y"}},
    ]


def test_the_tenant_is_in_every_request_and_absent_without_one() -> None:
    for operation in (bindings.GET, bindings.SEND, bindings.LIST):
        params: dict[str, Any] = {"id": "a/b"} if operation == bindings.GET else {"message": {}}
        body = JsonRpcBinding("http://h", "acme").request(operation, params).body
        assert body and body["params"]["tenant"] == "acme"
        body = JsonRpcBinding("http://h", None).request(operation, params).body
        assert body and "tenant" not in body["params"]
        assert (
            RestBinding("http://h/v1/", "acme")
            .request(operation, params)
            .url.startswith("http://h/v1/acme/")
        )


def test_http_json_has_ids_in_the_path_and_the_rest_in_the_query() -> None:
    rest = RestBinding("http://h/v1", None)
    got = rest.request(bindings.GET, {"id": "a/b ?", "historyLength": 2})
    assert (got.method, got.url, got.body) == (
        "GET",
        "http://h/v1/tasks/a%2Fb%20%3F?historyLength=2",
        None,
    )
    sent = rest.request(bindings.SEND, {"message": MESSAGE})
    assert (sent.method, sent.url, sent.body) == (
        "POST",
        "http://h/v1/message:send",
        {"message": MESSAGE},
    )
    pushed = rest.request(bindings.PUSH_DELETE, {"taskId": "t", "id": "c"})
    assert (pushed.method, pushed.url) == (
        "DELETE",
        "http://h/v1/tasks/t/pushNotificationConfigs/c",
    )


@pytest.mark.parametrize(
    ("code", "reason", "status", "name"),
    [
        (-32001, "TASK_NOT_FOUND", 404, "TaskNotFoundError"),
        (-32002, "TASK_NOT_CANCELABLE", 400, "TaskNotCancelableError"),
        (-32009, "VERSION_NOT_SUPPORTED", 400, "VersionNotSupportedError"),
        (-32602, "INVALID_PARAMS", 400, "InvalidParamsError"),
        (-32600, "TOO_MANY_REQUESTS", 429, "InvalidRequestError"),
        (-32603, "INTERNAL_ERROR", 500, "InternalError"),
    ],
)
def test_an_error_has_one_name_over_both_bindings(
    code: int, reason: str, status: int, name: str
) -> None:
    details = [{"reason": reason}]
    with pytest.raises(ClientError) as rpc:
        error = {"code": code, "message": "m", "data": details}
        JsonRpcBinding("http://h", None).result(bindings.GET, 200, {"error": error})
    with pytest.raises(ClientError) as rest:
        error = {"code": status, "status": "S", "message": "m", "details": details}
        RestBinding("http://h", None).result(bindings.GET, status, {"error": error})
    assert rpc.value.code == rest.value.code == name
    assert (rpc.value.status, rpc.value.a2a_code, rest.value.a2a_code) == (1, code, "S")


def test_a_snapshot_adds_the_items_of_a_stream() -> None:
    snapshot = Snapshot()
    ids = {"taskId": "t", "contextId": "c"}
    piece = {"artifactId": "a", "parts": [{"text": "x"}]}
    for item in (
        {"task": {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_SUBMITTED"}}},
        {"artifactUpdate": {**ids, "artifact": piece}},
        {"artifactUpdate": {**ids, "artifact": piece, "append": True}},
        {
            "statusUpdate": {
                **ids,
                "status": {"state": "TASK_STATE_COMPLETED"},
                "metadata": {"u": 1},
            }
        },
    ):
        snapshot.apply(item)
    assert snapshot.task and snapshot.state == "TASK_STATE_COMPLETED"
    assert snapshot.task["artifacts"] == [{**piece, "parts": [{"text": "x"}, {"text": "x"}]}]
    assert snapshot.task["metadata"] == {"u": 1}
