"""Access to tasks: every operation, by each principal, on tasks in every state, over every binding
and version. The table is generated: a new operation fails here until it is entered."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.a2a.codec import Operation
from bridge.auth.principal import Token, digest
from tests.support.bindings import Binding, GrpcBinding, RedisBinding, over_websocket
from tests.support.bridge_process import bridge, scripted
from tests.support.client import Client, Json, RpcError, artifact_text, context_id, state, task_id
from tests.support.grpc_client import connected
from tests.support.mcp import Mcp, text_of
from tests.support.principals import As, headers, server
from tests.support.redis_broker import RedisBroker, RedisCaller
from tests.support.served import Server, serving

CONDITIONS = {"live": "ask q Who?\nwait", "waiting": "ask q Who?", "finished": "text done"}
OVER_HTTP = ("0.3", "1.0", "rest")
BINDINGS = (*OVER_HTTP, "websocket", "grpc", "redis")
ABSENT = "00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True, slots=True)
class Bound:
    """A server with all bindings."""

    server: Server
    redis: Any

    @asynccontextmanager
    async def binding(self, name: str, who: str) -> AsyncIterator[Binding]:
        """A binding without a status of HTTP, as a principal."""
        if name == "websocket":
            async with over_websocket(self.server, **headers(who)) as websocket:
                yield websocket
        elif name == "grpc":
            sent = {one.lower(): value for one, value in headers(who).items()}
            async with connected(self.server.grpc, **sent) as client:
                yield GrpcBinding(self.server, client)
        else:
            yield RedisBinding(self.server, RedisCaller(self.redis, who))


@pytest.fixture
async def bound(broker: RedisBroker, tmp_path: Path) -> AsyncIterator[Bound]:
    more: dict[str, Any] = {"bridge_grpc_port": 0, "bridge_websocket": True}
    more["bridge_redis_url"] = broker.url
    async with server(tmp_path, **more) as one, broker.client() as redis:
        yield Bound(one, redis)


@dataclass(frozen=True, slots=True)
class Request:
    """An operation that names a task, in one binding."""

    operation: Operation
    binding: str

    async def send(self, bound: Bound, who: str, task: str, context: str) -> tuple[int, str]:
        """The status and the answer, with the ids that were asked for blotted out. The status is
        200 for a binding without one."""
        try:
            status, answer = await self._sent(bound, who, task, context)
        except aiohttp.WSServerHandshakeError as refused:
            return refused.status, '{"error":"UNAUTHENTICATED"}'
        return status, answer.replace(task, "TASK").replace(context, "CONTEXT")

    async def reason(self, bound: Bound, who: str, task: str, context: str) -> str:
        """The reason of the error, or OK."""
        _, answer = await self.send(bound, who, task, context)
        found = re.search(r'"(?:reason|error)": ?"([A-Z_]+)"', answer)
        return found[1] if found else "OK"

    async def _sent(self, bound: Bound, who: str, task: str, context: str) -> tuple[int, str]:
        server = bound.server
        if self.binding not in OVER_HTTP:
            name, params = _rpc(self.operation, "1.0", task, context)
            async with bound.binding(self.binding, who) as binding:
                return 200, json.dumps(await binding.ask(name, params))
        if self.binding == "rest":
            method, path, body = _rest(self.operation, task, context)
            response = await server.http.request(
                method,
                f"{server.url}{path}",
                json=body,
                headers={**headers(who), "A2A-Version": "1.0"},
            )
        else:
            name, params = _rpc(self.operation, self.binding, task, context)
            rpc = {"jsonrpc": "2.0", "id": 1, "method": name, "params": params}
            response = await As(server, who, self.binding).post(rpc)
        async with response:
            if response.content_type == "text/event-stream":
                return response.status, (await response.content.readline()).decode()
            return response.status, await response.text()


MESSAGE = {"messageId": "short", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
OLD_MESSAGE = {
    "kind": "message",
    "messageId": "short",
    "role": "user",
    "parts": [{"kind": "text", "text": "hello"}],
}
HOOK = "http://127.0.0.1:1/hook"
METHODS: dict[Operation, tuple[str, str]] = {
    Operation.SEND: ("message/send", "SendMessage"),
    Operation.STREAM: ("message/stream", "SendStreamingMessage"),
    Operation.GET: ("tasks/get", "GetTask"),
    Operation.CANCEL: ("tasks/cancel", "CancelTask"),
    Operation.SUBSCRIBE: ("tasks/resubscribe", "SubscribeToTask"),
    Operation.PUSH_CREATE: (
        "tasks/pushNotificationConfig/set",
        "CreateTaskPushNotificationConfig",
    ),
    Operation.PUSH_GET: ("tasks/pushNotificationConfig/get", "GetTaskPushNotificationConfig"),
    Operation.PUSH_LIST: ("tasks/pushNotificationConfig/list", "ListTaskPushNotificationConfigs"),
    Operation.PUSH_DELETE: (
        "tasks/pushNotificationConfig/delete",
        "DeleteTaskPushNotificationConfig",
    ),
}
NAMELESS = {Operation.LIST, Operation.EXTENDED_CARD}  # they name no task: tested below


def _rpc(operation: Operation, version: str, task: str, context: str) -> tuple[str, Json]:
    name = METHODS[operation][version == "1.0"]
    old = version == "0.3"
    match operation:
        case Operation.SEND | Operation.STREAM:
            return name, {"message": {**(OLD_MESSAGE if old else MESSAGE), "taskId": task}}
        case Operation.PUSH_CREATE if old:
            return name, {"taskId": task, "pushNotificationConfig": {"url": HOOK}}
        case Operation.PUSH_CREATE:
            return name, {"taskId": task, "url": HOOK}
        case Operation.PUSH_GET | Operation.PUSH_DELETE if old:
            return name, {"id": task, "pushNotificationConfigId": "c"}
        case Operation.PUSH_GET | Operation.PUSH_DELETE:
            return name, {"taskId": task, "id": "c"}
        case Operation.PUSH_LIST if not old:
            return name, {"taskId": task}
    return name, {"id": task}


def _rest(operation: Operation, task: str, context: str) -> tuple[str, str, Json | None]:
    one = f"/a2a/rest/tasks/{task}"
    push = f"{one}/pushNotificationConfigs"
    match operation:
        case Operation.SEND:
            return "POST", "/a2a/rest/message:send", {"message": {**MESSAGE, "taskId": task}}
        case Operation.STREAM:
            return "POST", "/a2a/rest/message:stream", {"message": {**MESSAGE, "taskId": task}}
        case Operation.CANCEL:
            return "POST", f"{one}:cancel", {}
        case Operation.SUBSCRIBE:
            return "POST", f"{one}:subscribe", {}
        case Operation.PUSH_CREATE:
            return "POST", push, {"url": HOOK}
        case Operation.PUSH_GET:
            return "GET", f"{push}/c", None
        case Operation.PUSH_LIST:
            return "GET", push, None
        case Operation.PUSH_DELETE:
            return "DELETE", f"{push}/c", None
    return "GET", one, None


REQUESTS = [
    Request(operation, binding)
    for operation in Operation
    if operation not in NAMELESS
    for binding in BINDINGS
]


def test_every_operation_is_in_the_matrix() -> None:
    assert {one.operation for one in REQUESTS} | NAMELESS == set(Operation)


@pytest.mark.parametrize("condition", CONDITIONS)
async def test_a_foreign_task_looks_like_a_missing_task(bound: Bound, condition: str) -> None:
    """About a second, for 54 requests of four principals."""
    owner = As(bound.server, "owner")
    mine = await owner.send(CONDITIONS[condition])
    task, context = task_id(mine), context_id(mine)
    before = await owner.get(task)
    for one in REQUESTS:
        foreign = await one.send(bound, "other", task, context)
        assert foreign == await one.send(bound, "other", ABSENT, context), one
        assert foreign[0] in (200, 404), one  # JSON-RPC has its errors in the body
        assert "rror" in foreign[1], one
        assert "Task not found: it has expired or never existed." in foreign[1], one
        if one.binding != "redis":  # which has no requests without a principal
            nobody = await one.send(bound, "anonymous", task, context)
            assert nobody == await one.send(bound, "anonymous", ABSENT, context), one
            assert "UNAUTHENTICATED" in nobody[1], one
        # Not because nothing could be found: its owner, and who may see all, are answered.
        if one.operation in (Operation.GET, Operation.PUSH_LIST):
            for who in ("owner", "boss"):
                known = await one.send(bound, who, ABSENT, context)
                assert await one.send(bound, who, task, context) != known, one
    assert await owner.get(task) == before


async def test_a_removed_task_looks_like_a_missing_task(tmp_path: Path) -> None:
    async with server(tmp_path, bridge_max_tasks=1) as one:
        owner = As(one, "owner")
        removed = task_id(await owner.send("text a"))
        await owner.send("text b")
        for method in ("GetTask", "CancelTask", "SubscribeToTask"):
            texts = set()
            for task in (removed, ABSENT):
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"id": task}}
                response = await owner.post(body)
                texts.add((await response.text()).replace(task, "TASK"))
            (text,) = texts
            assert "Task not found: it has expired or never existed." in text
        mcp = Mcp(one.http, one.url, headers=headers("owner"))
        for tool, arguments in (("result", {"part": "text"}), ("wait", {}), ("cancel", {})):
            answer = await mcp.tool(tool, {"task_id": removed, **arguments})
            assert answer["isError"]
            assert "Task not found: it has expired or never existed." in text_of(answer)


@pytest.mark.parametrize(
    ("who", "expected"),
    [
        ("owner", "OK"),
        ("boss", "OK"),
        ("reader", "PERMISSION_DENIED"),
        ("anonymous", "UNAUTHENTICATED"),
    ],
)
async def test_who_may_cancel(bound: Bound, who: str, expected: str) -> None:
    for binding in BINDINGS:
        if (who, binding) == ("anonymous", "redis"):
            continue
        task = await As(bound.server, "owner").send("ask q Who?")
        request = Request(Operation.CANCEL, binding)
        reason = await request.reason(bound, who, task_id(task), context_id(task))
        assert reason == expected, binding
        after = await As(bound.server, "owner").get(task_id(task))
        assert (state(after) == "canceled") is (expected == "OK"), binding


async def test_the_scope_read_allows_only_reads(bound: Bound) -> None:
    task = await As(bound.server, "owner").send("ask q Who?")
    for binding in BINDINGS:
        for operation in (Operation.SEND, Operation.STREAM, Operation.PUSH_CREATE):
            request = Request(operation, binding)
            reason = await request.reason(bound, "reader", task_id(task), context_id(task))
            # Of another's task it is told nothing else.
            denied = operation is Operation.PUSH_CREATE
            assert reason == ("PERMISSION_DENIED" if denied else "TASK_NOT_FOUND"), request
    with pytest.raises(RpcError, match="'run' is missing"):
        await As(bound.server, "reader").send("text x")


async def test_a_list_has_only_ones_own(tmp_path: Path) -> None:
    async with server(tmp_path) as one:
        mine = await As(one, "owner").send("text a")
        theirs = await As(one, "other").send("text b")
        for who, expected in (
            ("owner", {task_id(mine)}),
            ("other", {task_id(theirs)}),
            ("boss", {task_id(mine), task_id(theirs)}),
            ("reader", set()),
        ):
            listed = await As(one, who).call("ListTasks", {})
            assert {task["id"] for task in listed["tasks"]} == expected
            assert listed["totalSize"] == len(expected)


async def test_a_context_of_the_same_name_is_another_one(tmp_path: Path) -> None:
    async with server(tmp_path) as one:
        mine = await As(one, "owner").send("turn", contextId="shared")
        theirs = await As(one, "other").send("turn", contextId="shared")
        again = await As(one, "owner").send("turn", contextId="shared")
        turns = [task["artifacts"][0]["parts"][0]["text"] for task in (mine, theirs, again)]
        assert turns == ["1", "1", "2"]
        assert context_id(theirs) == "shared"


async def test_a_message_that_another_principal_has_sent_is_not_known(tmp_path: Path) -> None:
    async with server(tmp_path) as one:
        identity = "a-long-and-unique-message-id"
        mine = await As(one, "owner").send("text a", messageId=identity)
        theirs = await As(one, "other").send("text b", messageId=identity)
        assert task_id(mine) != task_id(theirs)


async def test_a_principal_works_only_where_it_may(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    inside = tmp_path / "b"
    (tmp_path / "a/secret.txt").write_text("x")
    limited = Token(hash=f"sha256:{digest('limited').hex()}", workspaces=(str(inside),))
    async with serving(tmp_path, tokens={"limited": limited}) as one:

        async def send(text: str, **members: Any) -> Json:
            message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}], **members}
            rpc = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "SendMessage",
                "params": {"message": message},
            }
            credentials = {"Authorization": "Bearer limited", "A2A-Version": "1.0"}
            async with one.http.post(f"{one.url}/a2a", json=rpc, headers=credentials) as response:
                answer: Json = await response.json()
                return answer

        task = (await send("cwd"))["result"]["task"]
        assert task["artifacts"][0]["parts"][0]["text"] == str(inside)
        for cwd in (str(tmp_path), "a", str(tmp_path / "a")):
            refused = await send("cwd", metadata={"bridge": {"cwd": cwd}})
            assert refused["error"]["code"] == -32602
        file = [{"url": (tmp_path / "a/secret.txt").as_uri()}]
        assert (await send("x", parts=file))["error"]["code"] == -32602


async def test_the_directory_of_a_conversation_is_checked_at_each_turn(tmp_path: Path) -> None:
    """A token that is limited between two turns, with and without the scope to read foreign
    tasks."""
    workspace = tmp_path / "workspace"
    (workspace / "a").mkdir(parents=True)
    (workspace / "b").mkdir()
    state = str(tmp_path / "state")

    def tokens(*workspaces: str) -> str:
        path = tmp_path / "config.toml"
        lines = []
        for name in ("alice", "boss"):
            lines += [f"[tokens.{name}]", f'hash = "sha256:{digest(name).hex()}"']
            lines += ['scopes = ["run", "read", "approve", "admin"]'] if name == "boss" else []
            lines += [f"workspaces = {json.dumps(workspaces)}"] if workspaces else []
        path.write_text("\n".join(lines))
        return str(path)

    wide = {**scripted(workspace), "BRIDGE_STATE_DIR": state, "BRIDGE_ON_STOP": "keep"}
    async with bridge(workspace, **wide, CONFIG_FILE=tokens()) as server:
        async with aiohttp.ClientSession() as http:
            alice = Bearer(http, server.url, "alice")
            there = {"metadata": {"bridge": {"cwd": str(workspace / "a")}}}
            first = await alice.send("cwd", **there)
            waiting = await alice.send("ask q Who?", **there)
    narrow = {**wide, "CONFIG_FILE": tokens(str(workspace / "b")), "BRIDGE_ON_STOP": "end"}
    async with bridge(workspace, **narrow) as server, aiohttp.ClientSession() as http:
        alice = Bearer(http, server.url, "alice")
        assert (await alice.get(task_id(first)))["id"] == task_id(first)
        boss = Bearer(http, server.url, "boss")
        turns: list[tuple[Bearer, str, Json]] = [
            (alice, "cwd", {"contextId": context_id(first)}),
            (alice, "me", {"taskId": task_id(waiting)}),
            (boss, "me", {"taskId": task_id(waiting)}),
        ]
        for who, text, more in turns:
            with pytest.raises(RpcError, match="credentials do not allow the directory"):
                await who.send(text, **more)
        assert artifact_text(await alice.send("cwd")) == str(workspace / "b")


class Bearer(Client):
    def __init__(self, http: aiohttp.ClientSession, url: str, token: str) -> None:
        super().__init__(http, url)
        self._token = token

    async def post(self, body: Any, **headers: str) -> aiohttp.ClientResponse:
        return await super().post(body, Authorization=f"Bearer {self._token}", **headers)
