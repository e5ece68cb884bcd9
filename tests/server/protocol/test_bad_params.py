"""Every operation of both versions over both bindings, with every kind of wrong parameter. The
answer is the error of the table, it names the field, and the request has no effect."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bridge.a2a import requests, v0_3, v1_0
from bridge.a2a.codec import Operation
from bridge.a2a.codecs import CODECS
from tests.support.bindings import ROUTES, RestBinding, failed
from tests.support.cases import each
from tests.support.children import children
from tests.support.client import Json
from tests.support.rest import A2A, HOOK, PLAIN, TABLE, Rest, check_unrouted
from tests.support.served import Server, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
EXTENSION = "urn:coding-agent-bridge:v1"
BY_REASON = {row[1]: row for row in TABLE.values()}


@dataclass(frozen=True, slots=True)
class Way:
    """An operation as it is asked for over one binding."""

    method: str
    version: str
    rest: bool = False

    def __str__(self) -> str:
        return f"{'REST' if self.rest else self.version}-{self.method}"

    @property
    def operation(self) -> Operation:
        (spoken,) = [one for one in CODECS if one.version == self.version]
        return spoken.methods[self.method]

    @property
    def in_query(self) -> bool:
        """Whether members outside of the path are text in the query."""
        return self.rest and ROUTES[self.method][0] != "POST"

    @property
    def in_path(self) -> list[str]:
        return re.findall(r"\{(\w+)\}", ROUTES[self.method][1]) if self.rest else []


WAYS = [
    *(Way(method, one.version) for one in CODECS for method in one.methods),
    *(Way(method, "1.0", rest=True) for method in ROUTES),
]
WITH_PARAMS = [way for way in WAYS if way.operation is not Operation.EXTENDED_CARD]
WITH_TASK = [way for way in WITH_PARAMS if way.operation is not Operation.LIST]
LISTS = [way for way in WAYS if way.operation is Operation.LIST]
SENDS = [way for way in WAYS if way.operation in (Operation.SEND, Operation.STREAM)]
WITH_BODY = [way for way in WAYS if not way.in_query]
every_way = each("way", WAYS, ids=str)


@dataclass(frozen=True, slots=True)
class Answer:
    """`said` is the complete error, and empty if the request was served."""

    said: Json
    id: Any = None
    size: int = 0

    @property
    def reason(self) -> str:
        return str(self.said.get("error", ""))

    @property
    def fields(self) -> tuple[str, ...]:
        """Those that are wrong."""
        return tuple(one["field"] for wrong in self.said.get("wrong", ()) for one in wrong)


class Asking:
    """A server, and how to ask it in each way. That the code and the status of an error are the
    table's is checked of every answer."""

    def __init__(self, server: Server, task_id: str = "none") -> None:
        self.server = server
        self.task_id = task_id

    async def ask(self, way: Way, params: Any, **headers: str) -> Answer:
        if way.rest:
            verb, path, body = RestBinding(self.server)._route(way.method, params)
            return await self.rest(verb, path, body, **headers)
        body = {"jsonrpc": "2.0", "id": "i", "method": way.method, "params": params}
        return await self.rpc(way, body, **headers)

    async def raw(self, way: Way, body: bytes, **headers: str) -> Answer:
        """Bytes where the operation takes its JSON."""
        if not way.rest:
            return await self.rpc(way, body, **headers)
        path = ROUTES[way.method][1].replace("{id}", "none").replace("{taskId}", "none")
        return await self.rest("POST", path, body, **headers)

    async def rpc(self, way: Way, body: Any, **headers: str) -> Answer:
        response = await self.server.client(way.version).post(body, **headers)
        if response.content_type != PLAIN:
            return Answer({})
        answer = await response.json()
        if "error" not in answer:
            return Answer({}, answer["id"])
        said = failed(answer["error"]["message"], answer["error"]["data"])
        unread = headers.get("Content-Type", PLAIN) not in (PLAIN, A2A)
        wanted = (415 if unread else 200, BY_REASON[said["error"]][0])
        assert (response.status, answer["error"]["code"]) == wanted
        return Answer(said, answer["id"], len(await response.read()))

    async def rest(self, verb: str, path: str, body: Any, **headers: str) -> Answer:
        answer = await Rest(self.server.http, self.server.url).ask(verb, path, body, headers)
        if answer.status == 200:
            return Answer({})
        said = failed(answer.error["message"], answer.error["details"])
        _, _, status, name = BY_REASON[said["error"]]
        unread = headers.get("Content-Type", PLAIN) not in (PLAIN, A2A)
        assert (answer.status, answer.error["status"]) == (415 if unread else status, name)
        return Answer(said, size=len(str(answer.body)))


async def condition(server: Server, **headers: str) -> Json:
    """All that a request could have changed: tasks, contexts, configs, processes."""
    rest = Rest(server.http, server.url, **headers)
    listed = (await rest.get("/tasks?includeArtifacts=true")).body
    health = (await rest.get("/health")).body
    configs = [
        (await rest.get(f"/tasks/{task['id']}/pushNotificationConfigs")).body
        for task in listed["tasks"]
    ]
    pids = {child.pid for child in children()}
    return {"listed": listed, "health": health, "configs": configs, "children": pids}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Asking]:
    """A server with a task that has ended, and one that waits for its client."""
    async with serving(tmp_path_factory.mktemp("workspace")) as server:
        await server.client().send("text a")
        waiting = await server.client().send("ask q What?")
        yield Asking(server, waiting["id"])


@pytest_asyncio.fixture(loop_scope="module")
async def asking(shared: Asking) -> AsyncIterator[Asking]:
    """The request has no effect."""
    before = await condition(shared.server)
    yield shared
    assert await condition(shared.server) == before


# --- what every field may be --------------------------------------------------------------------

P = type[requests.Params]
O = Operation  # noqa: E741
_TASKS: Mapping[Operation, Sequence[P]] = {
    **dict.fromkeys((O.GET, O.CANCEL, O.SUBSCRIBE), (requests.TaskParams,)),
    O.LIST: (requests.ListRequest,),
    O.EXTENDED_CARD: (),
}
MODELS: Mapping[str, Mapping[Operation, Sequence[P]]] = {
    "1.0": {
        **_TASKS,
        **dict.fromkeys((O.SEND, O.STREAM), (v1_0.SendRequest,)),
        O.PUSH_CREATE: (v1_0.PushConfigRequest, v1_0.PushTaskRequest),
        O.PUSH_LIST: (v1_0.PushTaskRequest,),
        **dict.fromkeys((O.PUSH_GET, O.PUSH_DELETE), (v1_0.PushNameRequest,)),
    },
    "0.3": {
        **_TASKS,
        **dict.fromkeys((O.SEND, O.STREAM), (v0_3.MessageSendParams,)),
        O.PUSH_CREATE: (v0_3.TaskPushNotificationConfig,),
        **dict.fromkeys((O.PUSH_GET, O.PUSH_LIST, O.PUSH_DELETE), (v0_3.PushConfigParams,)),
    },
}


def params(way: Way, task_id: str) -> Json:
    """Valid params of the operation on this task, with a value for most fields."""
    old = way.version == "0.3"
    match way.operation:
        case O.SEND | O.STREAM:
            return send_params(old, task_id)
        case O.GET | O.CANCEL | O.SUBSCRIBE:
            return {"id": task_id, "historyLength": 1}
        case O.LIST:
            return {"pageSize": 1, "historyLength": 1}
        case O.PUSH_CREATE:
            config = {"pushNotificationConfig": hook(old)} if old else hook(old)
            return {"taskId": task_id, **config}
        case O.PUSH_LIST if not old:
            return {"taskId": task_id}
        case O.PUSH_GET | O.PUSH_DELETE | O.PUSH_LIST:
            names = ("id", "pushNotificationConfigId") if old else ("taskId", "id")
            return dict(zip(names, (task_id, "c"), strict=True))
    return {}


def hook(old: bool) -> Json:
    schemes = {"schemes": ["Bearer"]} if old else {"scheme": "Bearer"}
    return {**HOOK, "authentication": schemes}


def send_params(old: bool, task_id: str) -> Json:
    config = "pushNotificationConfig" if old else "taskPushNotificationConfig"
    part = {"kind": "text", "text": "text a"} if old else {"text": "text a"}
    message = {
        "messageId": "m-1",
        "role": "user" if old else "ROLE_USER",
        "parts": [part],
        "taskId": task_id,
        "metadata": {"a": {"b": 1}},
    }
    return {"message": message, "configuration": {config: hook(old), "historyLength": 1}}


@dataclass(frozen=True, slots=True)
class Wrong:
    """A value that does not fit `place`, of which `field` is to be named. `text_too`: it does not
    fit as the text of a query either."""

    place: tuple[str, ...]
    value: Any
    field: str
    text_too: bool = True


ABSENT = object()
BY_TYPE: Mapping[str, tuple[Any, ...]] = {
    "string": (5, True, [], {}),
    "integer": ("x", 1.5, True, [], {}, "1"),
    "boolean": ("yes", 1, [], {}, "true"),
    "array": (5, "text", {}),
    "object": (5, "text", []),
}
AS_TEXT = ("1", "true")  # which is right in a query


def wrong(schema: Json, base: Any, defs: Json, place: tuple[str, ...]) -> Iterator[Wrong]:
    """Values that violate `schema`, at each place in it. `base`: a valid value; `place`: its
    path."""
    schema = resolved(schema, defs)
    for value, text_too in wrong_values(schema):
        yield Wrong(place, value, ".".join(place), text_too)
    if "items" in schema:
        item = (base or ["x"])[0]
        yield from wrong(schema["items"], item, defs, (*place, "0"))
    for name, inner in schema.get("properties", {}).items():
        known = base.get(name) if isinstance(base, dict) else None
        yield from wrong(inner, known, defs, (*place, name))
    for name in schema.get("required", ()) if isinstance(base, dict) else ():
        for nothing in (ABSENT, None):
            yield Wrong((*place, name), nothing, ".".join((*place, name)))


def resolved(schema: Json, defs: Json) -> Json:
    """The one schema that a member has, but for null; `types` where it has several."""
    options = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    if len(options) == 1:
        return resolved(options[0], defs)
    if options:
        return {"enum": []}  # a name or a number
    if "$ref" in schema:
        return dict(defs[schema["$ref"].rpartition("/")[2]])
    return schema


def wrong_values(schema: Json) -> Iterator[tuple[Any, bool]]:
    if "enum" in schema:
        nobody: tuple[Any, ...] = ("nobody", 99, -1, 1.5, True, [], {})
        yield from ((value, True) for value in nobody)
        return
    kind = schema.get("type", "")
    free_text = kind == "string" and "format" not in schema
    for value in BY_TYPE.get(kind, ()):
        yield value, not free_text and value not in AS_TEXT
    if "format" in schema:
        yield from ((value, True) for value in ("now", "5", "2026-13-01T00:00:00Z", "2026-01-01"))
    yield from ((value, not free_text) for value in out_of_bounds(schema))


def out_of_bounds(schema: Json) -> Iterator[Any]:
    if "minimum" in schema:
        yield from (schema["minimum"] - 1, -(2**63))
    if "maximum" in schema:
        yield from (schema["maximum"] + 1, 2**63, 2**64 - 1)
    if "minLength" in schema:
        yield ""
    if "maxLength" in schema:
        yield "x" * (schema["maxLength"] + 1)
    if "minItems" in schema:
        yield []
    if "maxItems" in schema:
        yield ["x"] * (schema["maxItems"] + 1)


def placed(base: Any, place: Sequence[str], value: Any) -> Any:
    """`base` with `value` at this path; missing members of the path are added."""
    if not place:
        return value
    name, *rest = place
    if name == "0":
        return [placed((base or [None])[0], rest, value)]
    inside = placed((base or {}).get(name), rest, value)
    changed = {**(base or {}), name: inside}
    return {key: one for key, one in changed.items() if one is not ABSENT}


def wrongs(way: Way, base: Json) -> Iterator[Wrong]:
    """All that can be wrong with the parameters of an operation."""
    found: Iterable[Wrong] = (
        one
        for model in MODELS[way.version][way.operation]
        for schema in [model.model_json_schema()]
        for one in wrong(schema, base, schema.get("$defs", {}), ())
        if one.place
    )
    for one in found:
        if one.value in (ABSENT, None) and one.field == "message.parts.0.kind":
            continue  # which 0.3 guesses
        if one.place[0] in way.in_path or (way.in_query and not one.text_too):
            continue
        yield one
    if way.operation is O.PUSH_DELETE and way.version == "0.3":
        name = "pushNotificationConfigId"
        yield from (Wrong((name,), nothing, name) for nothing in (ABSENT, None))


@each("way", WITH_PARAMS, ids=str)
async def test_the_error_names_the_field_with_an_invalid_value(asking: Asking, way: Way) -> None:
    base = params(way, asking.task_id)
    for one in wrongs(way, base):
        asked = placed(base, one.place, one.value)
        answer = await asking.ask(way, asked)
        assert (answer.reason, answer.fields) == ("INVALID_PARAMS", (one.field,)), one
        if way.rest and not way.in_query:
            other = await asking.ask(Way(way.method, way.version), asked)
            assert other.said == answer.said


ONLY_PATH = (
    *("GetTaskPushNotificationConfig", "ListTaskPushNotificationConfigs"),
    "DeleteTaskPushNotificationConfig",
)


async def test_every_field_of_a_message_is_among_those() -> None:
    fields = {str(way): {w.field for w in wrongs(way, params(way, "t"))} for way in WITH_PARAMS}
    nothing = {name for name, found in fields.items() if not found}
    assert nothing == {f"REST-{name}" for name in ONLY_PATH}
    known = {str(way): fields[str(way)] for way in SENDS}
    old = {"message.parts.0.file.bytes", "configuration.pushNotificationConfig.url"}
    new = {"message.parts.0.raw", "configuration.taskPushNotificationConfig.authentication.scheme"}
    both = {"message", "message.messageId", "message.referenceTaskIds.0", "message.extensions"}
    assert all(len(found) >= 25 for found in known.values())
    assert known["0.3-message/stream"] >= old | both
    assert known["1.0-SendMessage"] >= new | both
    assert known["REST-SendMessage"] == known["1.0-SendMessage"]


@each("way", [way for way in WAYS if not way.rest], ids=str)
async def test_params_are_an_object(asking: Asking, way: Way) -> None:
    values: tuple[Any, ...] = (5, "text", [], [{}], True, 1.5)
    for value in values:
        answer = await asking.ask(way, value)
        assert (answer.reason, answer.fields) == ("INVALID_PARAMS", ("params",)), value


@every_way
async def test_unknown_members_make_no_difference(asking: Asking, way: Way) -> None:
    base = params(way, "none")
    answers = [await asking.ask(way, one) for one in (base, with_more(base))]
    assert answers[0].reason == answers[1].reason
    assert answers[0].reason in SERVED


# What is answered to a request that is right, where it names a task that is not there.
SERVED = ("", "TASK_NOT_FOUND", "UNSUPPORTED_OPERATION", "EXTENDED_AGENT_CARD_NOT_CONFIGURED")


def with_more(value: Any) -> Any:
    """`value` with unknown members in each of its objects."""
    match value:
        case dict():
            known = {name: with_more(one) for name, one in value.items()}
            return {**known, "tenant": "acme", "someday": {"a": [1, None]}, "": None}
        case list():
            return [with_more(one) for one in value]
    return value


@each("way", WITH_TASK, ids=str)
async def test_a_missing_task_is_not_found(asking: Asking, way: Way) -> None:
    for task_id in ("none", "a:b/c d?e", "ü\n", "x" * 3000):
        answer = await asking.ask(way, params(way, task_id))
        assert (answer.reason, answer.fields) == ("TASK_NOT_FOUND", ()), task_id


@each("way", LISTS, ids=str)
async def test_a_cursor_without_a_client_is_refused(asking: Asking, way: Way) -> None:
    for token in ("none", "====", "bm9uZQ==", "ü", "\0", "x" * 3000):
        answer = await asking.ask(way, {"pageToken": token})
        assert (answer.reason, answer.fields) == ("INVALID_PARAMS", ("pageToken",)), token


@each("way", SENDS, ids=str)
@each("field", ["parts", "referenceTaskIds", "extensions"])
async def test_an_answer_is_not_many_times_its_request(
    asking: Asking, way: Way, field: str
) -> None:
    wrong = placed(params(way, asking.task_id), ("message", field), [5] * 50_000)
    answer = await asking.ask(way, wrong)
    assert (answer.reason, answer.fields) == ("INVALID_PARAMS", (f"message.{field}.0",))
    assert answer.size < 1000


# --- how long ids may be ------------------------------------------------------------------------


@pytest.mark.parametrize("way", SENDS, ids=str)
async def test_values_of_maximum_length_are_kept(shared: Asking, way: Way) -> None:
    members = {
        "messageId": f"{way}ü" + "x" * (255 - len(str(way))),
        "referenceTaskIds": ["r" * 256] * 64,
        "extensions": ["urn:" + "e" * 1020] * 64,
    }
    message = {**params(way, "none")["message"], **members}
    del message["taskId"]  # a task of its own, in a context of its own
    message["contextId"] = re.sub(r"[^\w]", "-", f"longest {way}")
    answer = await shared.ask(way, {"message": message})
    assert answer.reason == ""
    listed = await shared.server.client().call("ListTasks", {"contextId": message["contextId"]})
    (task,) = listed["tasks"]
    assert {name: task["history"][0][name] for name in members} == members


LONGER: tuple[tuple[str, Any, str], ...] = (
    ("messageId", "ü" * 257, "messageId"),
    ("referenceTaskIds", ["r"] * 65, "referenceTaskIds"),
    ("referenceTaskIds", ["r", "r" * 257], "referenceTaskIds.1"),
    ("extensions", ["e"] * 65, "extensions"),
    ("extensions", ["e", "e" * 1025], "extensions.1"),
)


@each("way", SENDS, ids=str)
async def test_the_error_names_a_value_that_is_too_long(asking: Asking, way: Way) -> None:
    for name, value, field in LONGER:
        wrong = placed(params(way, asking.task_id), ("message", name), value)
        answer = await asking.ask(way, wrong)
        assert (answer.reason, answer.fields) == ("INVALID_PARAMS", (f"message.{field}",))


@each("way", [way for way in WAYS if not way.rest], ids=str)
async def test_a_request_id_that_is_too_long_is_refused_and_not_repeated(
    asking: Asking, way: Way
) -> None:
    for length in (257, 1_000_000):
        body = {"jsonrpc": "2.0", "id": "i" * length, "method": way.method}
        answer = await asking.rpc(way, {**body, "params": params(way, asking.task_id)})
        assert (answer.reason, answer.id) == ("INVALID_REQUEST", None)
        assert answer.size < 1000


@each("version", ["1.0", "0.3"])
async def test_a_request_id_of_256_characters_comes_back(asking: Asking, version: str) -> None:
    way = Way("GetTask" if version == "1.0" else "tasks/get", version)
    body = {"jsonrpc": "2.0", "id": "ü" * 256, "method": way.method, "params": {"id": "none"}}
    assert (await asking.rpc(way, body)).id == "ü" * 256


@each("number", [2**53 + 1, 2**63, -(2**63), 2**64 - 1])
async def test_a_request_id_may_be_any_integer_of_64_bits(asking: Asking, number: int) -> None:
    body = {"jsonrpc": "2.0", "id": number, "method": "GetTask", "params": {"id": "none"}}
    answer = await asking.rpc(Way("GetTask", "1.0"), body)
    assert answer.id == number


@each("way", LISTS, ids=str)
@each("number", [2**31, 2**63, 2**64, 10**30])
async def test_a_length_beyond_all_integers_is_not_a_fault_of_the_server(
    asking: Asking, way: Way, number: int
) -> None:
    answer = await asking.ask(way, {"historyLength": number})
    in_query = way.rest and ROUTES[way.method][0] == "GET"
    beyond = ("", "INVALID_PARAMS") if in_query else ("INVALID_REQUEST",)
    assert answer.reason in (beyond if number >= 2**64 else ("",))


# --- bodies -------------------------------------------------------------------------------------

MARK = '"@": 0'
TWICE = (
    '"a":1,"a":2',
    '"a":1,"a":1',
    '"a":1,"b":2,"\\u0061":3',
    '"":1,"":1',
    '"a":{},"a":[]',
    '"x\\ud83d\\ude00":1,"x😀":1',
    f'"a":{"9" * 300},"a":1',
)


def objects(value: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where in `value` the objects are."""
    if isinstance(value, dict):
        yield place
        for name, one in value.items():
            yield from objects(one, (*place, name))
    if isinstance(value, list) and value:
        yield from objects(value[0], (*place, "0"))


@each("way", WITH_BODY, ids=str)
async def test_a_member_that_is_there_twice_is_refused_wherever_it_is(
    asking: Asking, way: Way
) -> None:
    body = params(way, asking.task_id)
    if not way.rest:
        body = {"jsonrpc": "2.0", "id": "i", "method": way.method, "params": body}
    places = list(objects(body))
    assert len(places) >= (1 if way.rest else 2)
    for place in places:
        text = json.dumps(placed(body, (*place, "@"), 0))
        assert text.count(MARK) == 1
        for twice in TWICE:
            answer = await asking.raw(way, text.replace(MARK, twice).encode())
            asked = None if way.rest else "i"
            assert (answer.reason, answer.id) == ("INVALID_REQUEST", asked), (place, twice)


@each("way", SENDS, ids=str)
async def test_the_same_name_in_two_objects_is_not_there_twice(asking: Asking, way: Way) -> None:
    more = {"a": {"a": [{"a": 1}, {"a": 1}]}, "A": 1, "a ": 1, "\u0430": "another alphabet's a"}
    base = placed(params(way, "none"), ("message", "metadata"), more)
    assert (await asking.ask(way, base)).reason == "TASK_NOT_FOUND"


DEPTHS: Mapping[int, set[str]] = {
    50: {"TASK_NOT_FOUND"},
    **{depth: {"INVALID_REQUEST"} for depth in (65, 300, 1000, 1030, 100_000)},
}


@each("way", [way for way in WITH_TASK if way in WITH_BODY], ids=str)
async def test_deeply_nested_values_are_refused(asking: Asking, way: Way) -> None:
    body = {**params(way, "none"), "@": 0}
    if not way.rest:
        body = {"jsonrpc": "2.0", "id": "i", "method": way.method, "params": body}
    for depth, reasons in DEPTHS.items():
        deep = "[" * depth + "]" * depth
        text = json.dumps(body).replace(MARK, f'"a":{deep}')
        assert (await asking.raw(way, text.encode())).reason in reasons, depth


@each("way", WITH_BODY, ids=str)
async def test_a_body_that_is_not_declared_as_json_is_refused(asking: Asking, way: Way) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "a/b"):
        answer = await asking.raw(way, b"no json", **{"Content-Type": kind})
        assert answer.reason == "CONTENT_TYPE_NOT_SUPPORTED", kind


@each("way", [way for way in WAYS if not way.rest], ids=str)
async def test_a_batch_is_refused_as_a_whole(asking: Asking, way: Way) -> None:
    one = {"jsonrpc": "2.0", "id": "i", "method": way.method}
    for batch in ([], [{**one, "params": params(way, asking.task_id)}] * 2, [one, 5]):
        answer = await asking.rpc(way, batch)
        assert (answer.reason, answer.id) == ("INVALID_REQUEST", None)


@each("way", [way for way in WAYS if not way.rest], ids=str)
async def test_a_notification_gets_no_answer(asking: Asking, way: Way) -> None:
    """JSON-RPC 2.0 §4.1. Its errors are not reported, either."""
    body = {"jsonrpc": "2.0", "method": way.method, "params": params(way, "none")}
    response = await asking.server.client(way.version).post(body)
    assert (response.status, await response.read()) == (204, b"")


# --- addresses ----------------------------------------------------------------------------------


@each(
    "path",
    [
        *("/nothing", "/a2a/nothing", "/a2a/rest", "/a2a/rest/tasks/t/nothing", "/tasks/t/nothing"),
        *("/agents/nobody/a2a/jsonrpc", "/monitor/nothing", "/message", "/a/b/c/tasks", "/%00"),
    ],
)
@each("verb", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_an_unknown_address_is_not_found_in_json(
    asking: Asking, path: str, verb: str
) -> None:
    answer = await Rest(asking.server.http, asking.server.url).ask(verb, path)
    check_unrouted(answer, 404)
    assert "Allow" not in answer.headers


@each(
    ("path", "similar"),
    [
        ("/mesage:send", "/message:send"),
        ("/tasks/t:cancle", "/tasks/t:cancel"),
        ("/a2a/rest/task", "/a2a/rest/tasks"),
        ("/a2a/rest/tasks/t/pushNotificationConfig", "/a2a/rest/tasks/t/pushNotificationConfigs"),
        ("/a2a/jsonrcp", "/a2a/jsonrpc"),
    ],
)
async def test_an_unknown_address_is_answered_with_a_similar_one(
    asking: Asking, path: str, similar: str
) -> None:
    answer = await Rest(asking.server.http, asking.server.url).ask("POST", path)
    assert answer.status in (404, 405)  # a part of a known path with another method
    assert answer.error["message"].endswith(f". Did you mean {similar}?")


@each(
    ("verb", "path", "allowed"),
    [
        ("GET", "/message:send", "POST"),
        ("PUT", "/tasks", "GET,HEAD"),
        ("DELETE", "/tasks/t", "GET,HEAD"),
        ("PATCH", "/tasks/t:subscribe", "GET,HEAD,POST"),
        ("PUT", "/tasks/t/pushNotificationConfigs/c", "DELETE,GET,HEAD"),
        ("GET", "/a2a/jsonrpc", "POST"),
        ("GET", "/", "POST"),
        ("POST", "/health", "GET,HEAD"),
        ("POST", "/.well-known/agent-card.json", "GET,HEAD"),
    ],
)
async def test_the_error_for_an_unsupported_method_lists_the_supported_ones(
    asking: Asking, verb: str, path: str, allowed: str
) -> None:
    answer = await Rest(asking.server.http, asking.server.url).ask(verb, path)
    check_unrouted(answer, 405)
    assert answer.headers["Allow"] == allowed


async def test_the_answer_to_head_has_no_body(asking: Asking) -> None:
    rest = Rest(asking.server.http, asking.server.url)
    for path, status in (("/nothing", 404), ("/message:send", 405)):
        answer = await rest.ask("HEAD", path)
        assert (answer.status, answer.body) == (status, b"")


async def test_without_a_token_all_paths_look_the_same(workspace: Path) -> None:
    async with serving(workspace, bridge_token="x" * 16) as server:
        rest = Rest(server.http, server.url)
        for verb, path in (("GET", "/nothing"), ("PUT", "/tasks")):
            assert (await rest.ask(verb, path)).status == 401
