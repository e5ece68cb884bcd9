"""The same questions over JSON-RPC 1.0, HTTP+JSON (on TCP and on a Unix socket), WebSocket, stdio,
Redis Streams and gRPC have the same answers."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.bindings import (
    Binding,
    GrpcBinding,
    NotInProtobuf,
    RedisBinding,
    RestBinding,
    failed,
    over_stdio,
    over_unix,
    over_websocket,
)
from tests.support.cases import each
from tests.support.client import Json, RpcError
from tests.support.fleet import servers_of
from tests.support.grpc_client import connected
from tests.support.redis_broker import RedisBroker, RedisCaller, broker_server, token
from tests.support.rest import HOOK, message
from tests.support.served import serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z")  # protobuf leaves .000 out


class JsonRpcBinding(Binding):
    async def ask(self, method: str, params: Json) -> Json:
        try:
            return await self.server.client().call(method, params) or {}
        except RpcError as failure:
            return failed(failure.error["message"], failure.error["data"])

    async def stream(self, method: str, params: Json) -> list[Json]:
        async with self.server.client()._items(method, params) as items:
            return [item async for item in items]


QUESTION = re.compile(r"\b[0-9a-f]{8}(?=-\d{1,3}\b)")  # begins with a part of the task's id


def normalised(answer: Any) -> Any:
    """`answer` with ids by the order in which they appear, and without times."""
    seen: dict[str, str] = {}

    def name(match: re.Match[str]) -> str:
        return seen.setdefault(match[0], f"id-{len(seen)}")

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: walk(value[key]) for key in sorted(value)}
        if isinstance(value, list):
            return [walk(one) for one in value]
        if isinstance(value, str):
            return QUESTION.sub("question", TIME.sub("TIME", UUID.sub(name, value)))
        return value

    return walk(answer)


def without_defaults(value: Any) -> Any:
    """`value` without the members that protobuf does not send: false, 0, and empty ones."""
    if isinstance(value, dict):
        members = {name: without_defaults(one) for name, one in value.items()}
        return {name: one for name, one in members.items() if one or one is None}
    return [without_defaults(one) for one in value] if isinstance(value, list) else value


Bindings = tuple[Binding, ...]
OF_STDIO: dict[str, Any] = {"BRIDGE_MAX_SESSIONS": "32", "BRIDGE_PUSH_ALLOW_PRIVATE": "true"}


@pytest.fixture(scope="module")
def redis_of_module() -> Iterator[RedisBroker]:
    with broker_server() as made:
        yield made


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[False, pytest.param(True, marks=pytest.mark.soak)],
    ids=["bindings", "servers"],
)
async def bindings(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Bindings]:
    """The bindings of a server. It has so many slots that no task waits for one: a waiting task
    has one more status, which only one of the bindings might show. Or, in the soak tier: a server
    on SQLite, one on PostgreSQL, and three on PostgreSQL, of which a random one gets each
    request."""
    workspace, path = tmp_path_factory.mktemp("workspace"), tmp_path_factory.mktemp("socket") / "s"
    if request.param:
        async with servers_of(workspace, request.getfixturevalue("database")) as servers:
            yield (*map(JsonRpcBinding, servers), RestBinding(servers[-1]))
        return
    chosen: dict[str, Any] = {"bridge_unix_socket": str(path), "bridge_grpc_port": 0}
    chosen["bridge_websocket"] = True
    broker = request.getfixturevalue("redis_of_module")
    chosen |= {"bridge_redis_url": broker.url, "tokens": {"alice": token()}, "bridge_auth": "none"}
    async with (
        broker.client() as redis,
        serving(workspace, bridge_max_sessions=32, **chosen) as server,
        over_unix(server, path) as unix,
        over_websocket(server) as websocket,
        over_stdio(workspace, headers=False, **OF_STDIO) as stdio,
        over_stdio(workspace, "--url", server.url, headers=True) as forwarded,
        connected(server.grpc) as client,
    ):
        # HTTP+JSON has its ids in URLs and its errors in statuses, so it depends more on HTTP.
        json_bindings = JsonRpcBinding(server), RestBinding(server), RestBinding(unix)
        over_redis = RedisBinding(server, RedisCaller(redis))
        envelopes = websocket, stdio, forwarded
        yield (*json_bindings, *envelopes, over_redis, GrpcBinding(server, client))


async def alike(bindings: Bindings, scenario: Callable[[Binding], Awaitable[Any]]) -> Any:
    """The result of `scenario`, which must be the same through all bindings; the first is not gRPC.
    gRPC is left out if protobuf cannot represent the request, and does not send members with
    default values."""
    first, *others = bindings
    expected = normalised(await scenario(first))
    for binding in others:
        try:
            found = normalised(await scenario(binding))
        except NotInProtobuf:
            continue
        if isinstance(binding, GrpcBinding):
            assert without_defaults(expected) == without_defaults(found)
        else:
            assert expected == found
    return expected


# --- what works --------------------------------------------------------------------------------


async def test_a_send_has_the_same_task(bindings: Bindings) -> None:
    task = await alike(bindings, lambda binding: binding.send("status busy\ntext hello\ndone well"))
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_direct_reply_is_the_same_message(bindings: Bindings) -> None:
    params = {"message": message("reply hi")}
    assert "message" in await alike(bindings, lambda binding: binding.ask("SendMessage", params))
    (item,) = await alike(bindings, lambda binding: binding.stream("SendStreamingMessage", params))
    assert "message" in item


@each("ending", ["done", "fail no", "reject no", "exit 3"])
async def test_a_stream_has_the_same_items(bindings: Bindings, ending: str) -> None:
    params = {"message": message(f"status busy\nthought hm\ntext a\n{ending}")}
    items = await alike(bindings, lambda binding: joined(binding, params))
    assert next(iter(items[0])) == "task"
    assert items[-1]["statusUpdate"]["status"]["state"] in (
        *("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_REJECTED"),
    )


async def joined(binding: Binding, params: Json) -> list[Json]:
    """The items, but for the pieces in which the text happened to come."""
    items = await binding.stream("SendStreamingMessage", params)
    return [item for item in items if "artifactUpdate" not in item]


async def test_a_send_that_does_not_wait_has_the_same_task(
    bindings: Bindings,
) -> None:
    async def scenario(binding: Binding) -> list[Json]:
        params = {
            "message": message("ask q What?"),
            "configuration": {"returnImmediately": True, "historyLength": 0},
        }
        task = (await binding.ask("SendMessage", params))["task"]
        canceled = await binding.ask("CancelTask", {"id": task["id"]})
        return [task.keys() - {"metadata"}, canceled["status"]["state"]]

    task, state = await alike(bindings, scenario)
    assert task == {"id", "contextId", "status"}
    assert state == "TASK_STATE_CANCELED"


async def test_a_question_is_answered_in_the_same_way(bindings: Bindings) -> None:
    async def scenario(binding: Binding) -> list[Json]:
        asked = await binding.send("permit q May I?\ntext done")
        question = f"{asked['id'][:8]}-1"
        nonsense = [{"data": {"questionId": question, "optionId": "perhaps"}}]
        unclear = await binding.send("", taskId=asked["id"], parts=nonsense)
        return [asked, unclear, await binding.send("yes", taskId=asked["id"])]

    tasks = await alike(bindings, scenario)
    assert [task["status"]["state"].removeprefix("TASK_STATE_") for task in tasks] == [
        *("INPUT_REQUIRED", "INPUT_REQUIRED", "COMPLETED"),
    ]


async def test_a_subscription_has_the_same_items(bindings: Bindings) -> None:
    async def scenario(binding: Binding) -> list[Json]:
        task = await binding.send("ask q What?")
        async with binding.subscribe(task["id"]) as other:
            await anext(other)
            await binding.ask("CancelTask", {"id": task["id"]})
            seen = [item async for item in other]
        return [*seen, await binding.ask("SubscribeToTask", {"id": task["id"]})]

    *_, last, refused = await alike(bindings, scenario)
    assert last["statusUpdate"]["status"]["state"] == "TASK_STATE_CANCELED"
    assert refused["error"] == "UNSUPPORTED_OPERATION"


async def test_a_canceled_task_looks_the_same(bindings: Bindings) -> None:
    async def scenario(binding: Binding) -> list[Json]:
        named = {"id": (await binding.send("ask q What?"))["id"]}
        return [
            await binding.ask(method, named) for method in ("CancelTask", "GetTask", "CancelTask")
        ]

    canceled, got, again = await alike(bindings, scenario)
    assert canceled == got
    assert again["error"] == "TASK_NOT_CANCELABLE"


async def test_history_is_cut_in_the_same_way(bindings: Bindings) -> None:
    lengths = (None, 0, 1, 2, 100)

    async def scenario(binding: Binding) -> list[Json]:
        named = {"id": (await binding.send("status one\nstatus two\ndone"))["id"]}
        asked = [{} if length is None else {"historyLength": length} for length in lengths]
        return [await binding.ask("GetTask", {**named, **one}) for one in asked]

    tasks = await alike(bindings, scenario)
    assert [len(task.get("history", ())) for task in tasks] == [3, 0, 1, 2, 3]


LISTED: list[tuple[Json, int]] = [
    ({}, 4),
    ({"status": "TASK_STATE_COMPLETED"}, 2),
    ({"status": "TASK_STATE_FAILED"}, 1),
    ({"status": 6}, 1),
    ({"status": "TASK_STATE_WORKING"}, 0),
    ({"status": "TASK_STATE_UNSPECIFIED"}, 4),
    ({"includeArtifacts": True}, 4),
    ({"includeArtifacts": False, "historyLength": 0}, 4),
    ({"historyLength": 1}, 4),
    ({"pageSize": 100}, 4),
    ({"pageToken": ""}, 4),
    ({"statusTimestampAfter": "2026-01-01T00:00:00Z"}, 4),
    ({"statusTimestampAfter": "2226-01-01T00:00:00.123456789+01:00"}, 0),
    ({"unknown": "ignored"}, 4),
]
"""Requests for lists, and the number of tasks in each."""


async def test_a_list_has_the_same_tasks(bindings: Bindings) -> None:
    async def scenario(binding: Binding) -> list[Json]:
        context = (await binding.send("text one"))["contextId"]
        for text in ("fail no", "text two", "ask q What?"):
            last = await binding.send(text, contextId=context)
        asked = ({"contextId": context, **one} for one, _ in LISTED)
        lists = [await binding.ask("ListTasks", one) for one in asked]
        await binding.ask("CancelTask", {"id": last["id"]})
        return lists

    lists = await alike(bindings, scenario)
    found = [(len(one["tasks"]), one["totalSize"], one["nextPageToken"]) for one in lists]
    assert found == [(number, number, "") for _, number in LISTED]


async def test_pages_are_the_same(bindings: Bindings) -> None:
    async def scenario(binding: Binding) -> list[list[Json]]:
        context = (await binding.send("text 0"))["contextId"]
        for number in range(1, 5):
            await binding.send(f"text {number}", contextId=context)
        pages: list[list[Json]] = []
        asked = {"contextId": context, "pageSize": 2, "includeArtifacts": True, "pageToken": ""}
        while asked["pageToken"] or not pages:
            assert len(pages) < 5, "no page is the last one"
            page = await binding.ask("ListTasks", asked)
            pages.append(page["tasks"])
            asked["pageToken"] = page["nextPageToken"]
        return pages

    assert [len(page) for page in await alike(bindings, scenario)] == [2, 2, 1]


async def test_push_configs_are_the_same(bindings: Bindings) -> None:
    async def scenario(binding: Binding) -> list[Json]:
        task = {"taskId": (await binding.send("done"))["id"]}
        secrets = {"token": "t", "authentication": {"scheme": "Bearer", "credentials": "secret"}}
        made = [
            await binding.ask("CreateTaskPushNotificationConfig", {**task, **HOOK, **more})
            for more in ({}, {"id": "mine", **secrets}, {"id": "mine"})
        ]
        named = {**task, "id": "mine"}
        return [
            *made,
            await binding.ask("GetTaskPushNotificationConfig", named),
            await binding.ask("ListTaskPushNotificationConfigs", task),
            await binding.ask("DeleteTaskPushNotificationConfig", named),
            await binding.ask("DeleteTaskPushNotificationConfig", named),
            await binding.ask("GetTaskPushNotificationConfig", named),
            await binding.ask("ListTaskPushNotificationConfigs", task),
        ]

    answers = await alike(bindings, scenario)
    assert [answer.get("error", "") for answer in answers] == [*[""] * 7, "TASK_NOT_FOUND", ""]
    assert "secret" not in json.dumps(answers)


# --- what does not work ------------------------------------------------------------------------

SEND = message("done")
# Of the right type, and wrong all the same; the types are in test_bad_params.py.
MESSAGE_FIELDS: Json = {
    "role": ["ROLE_SYSTEM", ""],
    "parts": [[None], [{}], [[]]],
    "contextId": ["with space", "x" * 129],
}
PART_FIELDS: Json = {"raw": ["!", "A"]}
CONFIGURATION_FIELDS: Json = {"taskPushNotificationConfig": [{"url": "ftp://x"}]}
PUSH_FIELDS: Json = {
    "url": ["no url", "ftp://example.org", "https://user@example.org/", "x" * 3000],
    "id": ["with space", "x" * 129, "ü"],
    "token": ["line\nfeed", "ü", "x" * 9000],
    "authentication": [
        {"scheme": "two words", "credentials": "x"},
        {"scheme": "Bearer", "credentials": "line\r\nfeed"},
    ],
}
LIST_FIELDS: Json = {
    "status": ["TASK_STATE_DREAMING", "working"],
    "statusTimestampAfter": ["2026-01-01T00:00:00"],
}


def wrong_in(base: Json, fields: Json) -> list[tuple[str, Json]]:
    """`base` with one wrong field each time, and a name for this error."""
    return [
        (f"{name}={str(value)[:30]}", {**base, name: value})
        for name, values in fields.items()
        for value in values
    ]


def wrong_sends() -> list[tuple[str, Json]]:
    parts = [
        (about, {**SEND, "parts": [wrong]})
        for about, wrong in (
            *wrong_in({}, PART_FIELDS),
            ("two contents", {"text": "a", "raw": "AAAA"}),
            ("two contents, one null", {"text": "a", "data": None}),
        )
    ]
    messages = [*wrong_in(SEND, MESSAGE_FIELDS), *parts]
    return [(about, {"message": wrong}) for about, wrong in messages] + [
        (about, {"message": SEND, "configuration": wrong})
        for about, wrong in wrong_in({}, CONFIGURATION_FIELDS)
    ]


def ids(cases: list[tuple[str, Json]]) -> list[str]:
    return [about.encode("ascii", "backslashreplace").decode() for about, _ in cases]


async def check_refused(bindings: Bindings, method: str, params: Json) -> Json:
    answer: Json = await alike(bindings, lambda binding: binding.ask(method, params))
    assert answer["error"] == "INVALID_PARAMS", answer
    assert answer["wrong"], "no field is named"
    return answer


@each("method", ["SendMessage", "SendStreamingMessage"])
@each("params", [p for _, p in wrong_sends()], ids=ids(wrong_sends()))
async def test_a_wrong_send_is_refused_for_the_same_reason(
    bindings: Bindings, method: str, params: Json
) -> None:
    await check_refused(bindings, method, params)


LISTS = wrong_in({}, LIST_FIELDS)


@each("params", [p for _, p in LISTS], ids=ids(LISTS))
async def test_a_wrong_list_is_refused_for_the_same_reason(
    bindings: Bindings, params: Json
) -> None:
    answer = await check_refused(bindings, "ListTasks", params)
    assert answer["wrong"][0][0]["field"].split(".")[0] in params


PUSHES = wrong_in(HOOK, PUSH_FIELDS)


async def test_a_wrong_push_config_is_refused_for_the_same_reason(bindings: Bindings) -> None:
    """Protobuf can represent all of them."""

    async def scenario(binding: Binding) -> list[Json]:
        named = {"taskId": (await binding.send("done"))["id"]}
        created = ({**named, **params} for _, params in PUSHES)
        return [await binding.ask("CreateTaskPushNotificationConfig", one) for one in created]

    for (about, _), answer in zip(PUSHES, await alike(bindings, scenario), strict=True):
        assert answer["error"] == "INVALID_PARAMS", about
        assert answer["wrong"], about


@each("length", [-1, 1.5, "x", True])
async def test_a_wrong_history_length_is_refused_for_the_same_reason(
    bindings: Bindings, length: Any
) -> None:
    await check_refused(bindings, "GetTask", {"id": "none", "historyLength": length})


@each(
    ("method", "params"),
    [
        ("GetTask", {"id": "none"}),
        ("GetTask", {"id": "x" * 3000}),
        ("GetTask", {"id": "a:b/c d?e"}),
        ("CancelTask", {"id": "none"}),
        ("SubscribeToTask", {"id": "none"}),
        ("SendMessage", {"message": message("done", taskId="none")}),
        ("SendMessage", {"message": message("done", taskId="x" * 3000)}),
        ("SendStreamingMessage", {"message": message("done", taskId="none")}),
        ("CreateTaskPushNotificationConfig", {"taskId": "none", **HOOK}),
        ("GetTaskPushNotificationConfig", {"taskId": "none", "id": "c"}),
        ("ListTaskPushNotificationConfigs", {"taskId": "none"}),
        ("DeleteTaskPushNotificationConfig", {"taskId": "none", "id": "c"}),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_an_unknown_task_is_not_found(bindings: Bindings, method: str, params: Json) -> None:
    answer = await alike(bindings, lambda binding: binding.ask(method, params))
    assert answer["error"] == "TASK_NOT_FOUND"


async def test_a_task_of_another_context_is_refused(bindings: Bindings) -> None:
    async def scenario(binding: Binding) -> list[Json]:
        task = await binding.send("ask q What?")
        answer = message("this", taskId=task["id"], contextId="another")
        refused = await binding.ask("SendMessage", {"message": answer})
        return [refused, await binding.ask("CancelTask", {"id": task["id"]})]

    refused, _ = await alike(bindings, scenario)
    assert refused["error"] == "INVALID_PARAMS"


async def test_a_message_to_a_task_that_has_ended_is_refused(
    bindings: Bindings,
) -> None:
    async def scenario(binding: Binding) -> list[Json]:
        task = await binding.send("done")
        params = {"message": message("more", taskId=task["id"])}
        return [await binding.ask(m, params) for m in ("SendMessage", "SendStreamingMessage")]

    for refused in await alike(bindings, scenario):
        assert refused["error"] == "UNSUPPORTED_OPERATION"


async def test_unknown_members_are_ignored(bindings: Bindings) -> None:
    """A tenant of the request is left out over gRPC, where it names the agent."""

    async def scenario(binding: Binding) -> Json:
        extra = {"tenant": "acme", "unknown": {"deep": [1, None]}}
        part = {"text": "text hello", **extra}
        params = {
            "message": {**SEND, "parts": [part], **extra},
            "configuration": {"historyLength": 0, **extra},
            **extra,
        }
        if isinstance(binding, GrpcBinding):
            del params["tenant"]
        return await binding.ask("SendMessage", params)

    assert (await alike(bindings, scenario))["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_the_extended_card_is_unsupported_without_a_token(
    bindings: Bindings,
) -> None:
    answer = await alike(bindings, lambda binding: binding.ask("GetExtendedAgentCard", {}))
    assert answer["error"] == "UNSUPPORTED_OPERATION"


async def test_the_extended_card_is_the_same(workspace: Path) -> None:
    token = "Bearer " + "x" * 16
    async with (
        serving(workspace, bridge_token="x" * 16, bridge_grpc_port=0) as server,
        connected(server.grpc, authorization=token) as client,
    ):
        server.http.headers["Authorization"] = token
        bindings = JsonRpcBinding(server), RestBinding(server), GrpcBinding(server, client)
        card = await alike(bindings, lambda binding: binding.ask("GetExtendedAgentCard", {}))
    assert card["capabilities"]["extendedAgentCard"]


@each("choice", [{"cwd": "none"}, {"cwd": "/"}, {"model": "x"}, {"mode": "x"}])
async def test_a_choice_that_is_not_available_is_refused(bindings: Bindings, choice: Json) -> None:
    params = {"message": {**SEND, "metadata": {"bridge": choice}}}
    await check_refused(bindings, "SendMessage", params)
