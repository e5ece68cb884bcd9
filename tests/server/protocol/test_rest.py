"""The HTTP+JSON binding over real sockets: routes, queries, media types, statuses and errors."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from bridge import errors
from bridge.a2a.codec import ERRORS
from bridge.transports.rest import STATUS
from tests.support.cases import each
from tests.support.client import artifact_text, context_id, state, states, streamed_text
from tests.support.rest import A2A, HOOK, PLAIN, TABLE, Answer, Rest, message
from tests.support.served import Server, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
TOKEN = "a-token-of-some-length"
# The root and its own address, with and without a tenant, which nobody declared.
PREFIXES = ("", "/a2a/rest", "/acme", "/a2a/rest/acme")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    async with serving(tmp_path_factory.mktemp("workspace")) as server:
        yield server


@pytest.fixture(params=PREFIXES)
def rest(server: Server, request: pytest.FixtureRequest) -> Rest:
    """A client at each address where the agent answers."""
    return Rest(server.http, server.url + request.param)


@pytest.fixture
def root(server: Server) -> Rest:
    return Rest(server.http, server.url)


# --- routes ------------------------------------------------------------------------------------


async def test_a_message_is_sent_and_its_task_got_and_found_in_the_list(rest: Rest) -> None:
    task = await rest.send("text hello")
    assert (state(task), artifact_text(task)) == ("completed", "hello")
    assert (await rest.get(f"/tasks/{task['id']}")).body == task
    listed = await rest.get(f"/tasks?contextId={task['contextId']}")
    assert [one["id"] for one in listed.body["tasks"]] == [task["id"]]


async def test_a_stream_is_of_bare_items_with_the_task_first(rest: Rest) -> None:
    body = {"message": message("text one\ntext  two")}
    items = [item async for item in rest.items("POST", "/message:stream", body)]
    assert {len(item) for item in items} == {1}
    assert [next(iter(item)) for item in items][:1] == ["task"]
    assert {next(iter(item)) for item in items[1:]} == {"statusUpdate", "artifactUpdate"}
    assert streamed_text(items) == "one two"
    assert states(items)[-1] == "completed"


@each("verb", ["GET", "POST"])
async def test_a_task_is_subscribed_to_with_either_verb(rest: Rest, verb: str) -> None:
    task = await rest.send("ask q What?\ntext done")
    items = rest.items(verb, f"/tasks/{task['id']}:subscribe")
    first = await anext(items)
    assert first["task"]["id"] == task["id"]
    assert state(first) == "input-required"
    await rest.send("this", taskId=task["id"])
    assert states([item async for item in items])[-1] == "completed"


@each("body", [None, b"", b" \n", {}, {"metadata": {"why": "enough"}}])
async def test_a_task_is_canceled_with_or_without_a_body(rest: Rest, body: Any) -> None:
    task = await rest.send("ask q What?")
    canceled = await rest.post(f"/tasks/{task['id']}:cancel", body)
    assert (canceled.status, state(canceled.body)) == (200, "canceled")
    assert state((await rest.get(f"/tasks/{task['id']}")).body) == "canceled"


async def test_push_configs_are_made_got_listed_and_deleted(rest: Rest) -> None:
    task = await rest.send("done")
    path = f"/tasks/{task['id']}/pushNotificationConfigs"
    made = (await rest.post(path, {**HOOK, "id": "mine"})).body
    assert made == {"taskId": task["id"], "id": "mine", **HOOK}
    assert (await rest.get(f"{path}/mine")).body == made
    assert (await rest.get(path)).body == {"configs": [made], "nextPageToken": ""}
    for _ in range(2):
        gone = await rest.ask("DELETE", f"{path}/mine")
        assert (gone.status, gone.body) == (200, {})
    assert (await rest.get(path)).body["configs"] == []
    assert (await rest.get(f"{path}/mine")).status == 404


async def test_the_extended_card_is_for_bearers_of_the_token(workspace: Path) -> None:
    async with serving(workspace, bridge_token=TOKEN) as server:
        for prefix in PREFIXES:
            rest = Rest(server.http, server.url + prefix, Authorization=f"Bearer {TOKEN}")
            card = (await rest.get("/extendedAgentCard")).body
            assert card["capabilities"]["extensions"][0]["params"]["adapter"] == "jsonl"


async def test_the_address_on_the_card_is_where_the_binding_answers(
    server: Server, root: Rest
) -> None:
    card = (await root.get("/.well-known/agent-card.json")).body
    (url,) = {
        one["url"] for one in card["supportedInterfaces"] if one["protocolBinding"] == "HTTP+JSON"
    }
    assert state(await Rest(server.http, url).send("done")) == "completed"


async def test_the_task_id_in_the_path_wins_over_body_and_query(root: Rest) -> None:
    task, other = await root.send("ask q What?"), await root.send("ask q What?")
    path = f"/tasks/{task['id']}:cancel?id={other['id']}"
    canceled = await root.post(path, {"id": other["id"], "taskId": other["id"]})
    assert canceled.body["id"] == task["id"]
    assert state((await root.get(f"/tasks/{other['id']}")).body) == "input-required"
    await root.post(f"/tasks/{other['id']}:cancel")


async def test_an_answer_goes_to_the_task_that_it_names(root: Rest) -> None:
    task = await root.send("permit q May I?")
    done = await root.send("yes", taskId=task["id"])
    assert artifact_text(done) == 'answered ["q", "yes", "yes"]'


async def test_a_send_that_does_not_wait_returns_the_task_at_once(root: Rest) -> None:
    task = await root.send("ask q What?", {"returnImmediately": True})
    assert state(task) in ("submitted", "working")
    await root.post(f"/tasks/{task['id']}:cancel")


async def test_a_direct_reply_is_a_message_and_the_only_item_of_its_stream(root: Rest) -> None:
    body = {"message": message("reply hi")}
    sent = (await root.post("/message:send", body)).body
    assert sent["message"]["parts"] == [{"text": "hi"}]
    (item,) = [item async for item in root.items("POST", "/message:stream", body)]
    assert item["message"]["parts"] == [{"text": "hi"}]


# --- queries -----------------------------------------------------------------------------------


@each(
    ("camel", "snake"),
    [
        ("contextId={context}", "context_id={context}"),
        ("contextId={context}&pageSize=1", "context_id={context}&page_size=1"),
        ("contextId={context}&historyLength=1", "context_id={context}&history_length=1"),
        (
            "contextId={context}&includeArtifacts=true",
            "context_id={context}&include_artifacts=true",
        ),
        (
            "contextId={context}&statusTimestampAfter=2026-01-01T00:00:00Z",
            "context_id={context}&status_timestamp_after=2026-01-01T00:00:00Z",
        ),
    ],
)
async def test_query_names_are_camel_case_or_snake_case(root: Rest, camel: str, snake: str) -> None:
    first = await root.send("text one")
    await root.send("text two", contextId=first["contextId"])
    found = [
        (await root.get(f"/tasks?{query.format(context=first['contextId'])}")).body
        for query in (camel, snake)
    ]
    assert found[0] == found[1]
    assert found[0]["totalSize"] == 2


@each("name", ["historyLength", "history_length"])
async def test_a_task_is_got_with_so_much_history(root: Rest, name: str) -> None:
    task = await root.send("status one\nstatus two\ndone")
    lengths = [
        len((await root.get(f"/tasks/{task['id']}?{name}={asked}")).body.get("history", ()))
        for asked in (0, 1, 2, 10**25)
    ]
    assert lengths == [0, 1, 2, 3]


@each("status", ["TASK_STATE_FAILED", "4"])
async def test_a_status_is_named_or_numbered(root: Rest, status: str) -> None:
    failed = await root.send("fail no")
    await root.send("done", contextId=failed["contextId"])
    found = (await root.get(f"/tasks?contextId={failed['contextId']}&status={status}")).body
    assert [task["id"] for task in found["tasks"]] == [failed["id"]]


@each(
    "query",
    [
        "historyLength=-1",
        "historyLength=--1",
        "historyLength=1-",
        "historyLength=-",
        "historyLength=1.5",
        "historyLength=",
        "historyLength=%C2%B2",
        "historyLength=" + "9" * 5000,
        "pageSize=0",
        "pageSize=101",
        "pageSize=" + "9" * 5000,
        "pageSize=ten",
        "includeArtifacts=yes",
        "status=TASK_STATE_DREAMING",
        "status=99",
        "status=-1",
        "statusTimestampAfter=yesterday",
        "statusTimestampAfter=2026-01-01T00:00:00",
        "pageToken=%00",
        "pageToken=bm9uZQ==",
    ],
)
async def test_a_query_that_makes_no_sense_names_its_parameter(root: Rest, query: str) -> None:
    answer = await root.get(f"/tasks?{query}")
    assert (answer.status, answer.reason) == (400, "INVALID_PARAMS")
    assert answer.wrong_fields[0].split(".")[0] == query.partition("=")[0]


# --- versions ----------------------------------------------------------------------------------


@each("version", ["1.0", "1.0.0", "1.0.1", " 1.0 "])
async def test_every_patch_version_of_1_0_is_accepted(root: Rest, version: str) -> None:
    assert (await root.get("/tasks", **{"A2A-Version": version})).status == 200


async def test_the_version_may_stand_in_the_query(root: Rest) -> None:
    assert (await root.get("/tasks?A2A-Version=1.0", **{"A2A-Version": ""})).status == 200
    answer = await root.get("/tasks?A2A-Version=1.0", **{"A2A-Version": "9.0"})
    assert answer.reason == "VERSION_NOT_SUPPORTED"  # the header counts where both are sent


async def test_without_a_version_the_binding_speaks_0_3(rest: Rest) -> None:
    """0.3 §3.2.3, with the shapes of its §6: objects with a kind, also in streams."""
    old = {"A2A-Version": "", "Content-Type": PLAIN}
    sent = await rest.post("/message:send", {"message": {"parts": [{"text": "text hello"}]}}, **old)
    task = sent.body
    assert (sent.status, sent.media_type) == (200, PLAIN)
    assert (task["kind"], task["status"]["state"]) == ("task", "completed")
    assert (await rest.get(f"/tasks/{task['id']}", **old)).body == task
    named = await rest.get(f"/tasks/{task['id']}", **{"A2A-Version": "0.3.0"})
    assert named.body == task
    told = {"role": "user", "messageId": "m", "parts": [{"kind": "text", "text": "ask q What?"}]}
    items = [item async for item in rest.items("POST", "/message:stream", {"message": told}, old)]
    assert [item["kind"] for item in items[:2]] == ["task", "status-update"]
    assert (items[-1]["final"], items[-1]["status"]["state"]) == (True, "input-required")
    canceled = await rest.post(f"/tasks/{items[0]['id']}:cancel", **old)
    assert canceled.body["status"]["state"] == "canceled"


async def test_push_configs_of_0_3_have_the_paths_of_1_0(root: Rest) -> None:
    old = {"A2A-Version": ""}
    task = await root.send("text hello")
    path = f"/tasks/{task['id']}/pushNotificationConfigs"
    made = await root.post(path, {"pushNotificationConfig": {**HOOK, "id": "one"}}, **old)
    assert made.body["pushNotificationConfig"]["id"] == "one"
    assert (await root.get(f"{path}/one", **old)).body == made.body
    assert (await root.get(path, **old)).body == [made.body]
    assert (await root.ask("DELETE", f"{path}/one", headers=old)).status == 200
    assert (await root.get(path, **old)).body == []


@each("version", ["1", "1.1", "2.0", "99.0", "latest", "\uff11.\uff10"])
async def test_another_version_is_not_supported(root: Rest, version: str) -> None:
    for answer in (
        await root.get("/tasks", **{"A2A-Version": version}),
        await root.post("/message:send", {"message": message("done")}, **{"A2A-Version": version}),
        await root.post("/message:stream", {}, **{"A2A-Version": version}),
    ):
        assert (answer.status, answer.reason) == (400, "VERSION_NOT_SUPPORTED")
        assert answer.error["status"] == "FAILED_PRECONDITION"
        assert answer.error["details"][0]["metadata"] == {"supportedVersions": "1.0, 0.3"}


# --- media types -------------------------------------------------------------------------------


@each(
    ("accept", "sent", "answered"),
    [
        ("", A2A, A2A),
        ("", PLAIN, PLAIN),
        ("", f"{PLAIN}; charset=utf-8", PLAIN),
        ("*/*", A2A, A2A),
        ("*/*", PLAIN, PLAIN),
        (A2A, PLAIN, A2A),
        (PLAIN, A2A, PLAIN),
        (PLAIN, PLAIN, PLAIN),
        (f"{A2A}, {PLAIN}", PLAIN, A2A),
        (f"{PLAIN}, {A2A}", PLAIN, A2A),
        (f"{PLAIN}, {A2A};q=0.5", A2A, PLAIN),
        (f"{PLAIN};q=0.5, {A2A};v=1;q=0.8", PLAIN, A2A),
        (f"{A2A};q=0, */*", PLAIN, PLAIN),
        ("text/event-stream", PLAIN, PLAIN),
        ("text/event-stream", A2A, A2A),
    ],
)
async def test_the_answer_has_the_media_type_that_the_client_knows(
    root: Rest, accept: str, sent: str, answered: str
) -> None:
    headers = {"Accept": accept, "Content-Type": sent}
    fine = await root.post("/message:send", {"message": message("done")}, **headers)
    assert (fine.status, fine.media_type) == (200, answered)
    wrong = await root.post("/message:send", {}, **headers)
    assert (wrong.status, wrong.media_type) == (400, answered)


@each(
    ("headers", "answered", "refused"),
    [
        ({"Accept": ""}, A2A, PLAIN),
        ({"Accept": "*/*"}, A2A, PLAIN),
        ({"Accept": PLAIN}, PLAIN, PLAIN),
        ({"Accept": A2A}, A2A, A2A),
        ({"Accept": "*/*", "Content-Type": PLAIN}, PLAIN, PLAIN),
        ({"Accept": "*/*", "Content-Type": A2A}, A2A, A2A),
    ],
)
async def test_a_result_is_of_a2as_own_type_and_an_error_plain_json_unless_the_client_says(
    root: Rest, headers: dict[str, str], answered: str, refused: str
) -> None:
    """The official suite wants plain JSON for the error of a GET that accepts anything."""
    assert (await root.get("/tasks", **headers)).media_type == answered
    for path in ("/tasks/none", "/tasks?pageSize=0", "/nowhere/at/all"):
        answer = await root.get(path, **headers)
        assert (answer.status >= 400, answer.media_type) == (True, refused)
    answer = await root.ask("PUT", "/tasks", None, headers)
    assert (answer.status, answer.media_type) == (405, refused)


@pytest.mark.parametrize("kind", [A2A, PLAIN])
async def test_a_refusal_before_any_binding_has_the_media_type_too(
    workspace: Path, kind: str
) -> None:
    async with serving(workspace, bridge_token="x" * 16) as server:
        rest = Rest(server.http, server.url, Accept=kind)
        for headers in ({}, {"Host": "evil.example"}, {"Origin": "https://evil.example"}):
            answer = await rest.get("/tasks", **headers)
            assert (answer.status in (401, 403, 421), answer.media_type) == (True, kind)


@each("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_body_that_is_not_declared_as_json_is_refused_unread(root: Rest, kind: str) -> None:
    answer = await root.post("/message:send", b"no json", **{"Content-Type": kind})
    assert (answer.status, answer.reason) == (415, "CONTENT_TYPE_NOT_SUPPORTED")


@pytest.mark.parametrize("kind", [A2A, PLAIN])
async def test_a_part_that_the_agent_cannot_read_is_not_a_matter_of_http(
    workspace: Path, kind: str
) -> None:
    part = {"text": "AAAA", "mediaType": "video/mp4"}
    body = {"message": {**message(""), "parts": [part]}}
    async with serving(workspace, agent_adapter="claude-code") as server:
        rest = Rest(server.http, server.url)
        answer = await rest.post("/message:send", body, **{"Content-Type": kind})
    assert (answer.status, answer.reason) == (400, "CONTENT_TYPE_NOT_SUPPORTED")
    assert answer.error["status"] == "INVALID_ARGUMENT"


# --- errors ------------------------------------------------------------------------------------


@each("error", TABLE, ids=lambda error: error.__name__)
async def test_the_table_of_errors_is_the_one_of_the_specification(error: type[Exception]) -> None:
    assert (*ERRORS[error], *STATUS[error]) == TABLE[error]  # type: ignore[index]


def check_error(answer: Answer, error: type[Exception]) -> None:
    """That `answer` is this error, in the shape of google.rpc (§11.6)."""
    _, reason, status, name = TABLE[error]
    assert (answer.status, answer.reason) == (status, reason)
    assert answer.media_type in (A2A, PLAIN)
    assert answer.body.keys() == {"error"}
    assert answer.error.keys() == {"code", "status", "message", "details"}
    assert (answer.error["code"], answer.error["status"]) == (status, name)
    assert answer.error["message"]


async def test_operations_on_an_unknown_task_are_not_found(rest: Rest) -> None:
    for method, path, body in (
        ("GET", "/tasks/none", None),
        ("GET", "/tasks/none?historyLength=0", None),
        ("POST", "/tasks/none:cancel", {}),
        ("GET", "/tasks/none:subscribe", None),
        ("POST", "/tasks/none:subscribe", {}),
        ("POST", "/tasks/none/pushNotificationConfigs", HOOK),
        ("GET", "/tasks/none/pushNotificationConfigs", None),
        ("GET", "/tasks/none/pushNotificationConfigs/c", None),
        ("DELETE", "/tasks/none/pushNotificationConfigs/c", None),
        ("POST", "/message:send", {"message": message("done", taskId="none")}),
        ("POST", "/message:stream", {"message": message("done", taskId="none")}),
    ):
        check_error(await rest.ask(method, path, body), errors.TaskNotFound)


async def test_a_task_that_has_ended_takes_nothing_more(rest: Rest) -> None:
    task = f"/tasks/{(ended := await rest.send('done'))['id']}"
    check_error(await rest.post(f"{task}:cancel"), errors.TaskNotCancelable)
    check_error(await rest.get(f"{task}:subscribe"), errors.UnsupportedOperation)
    check_error(await rest.post(f"{task}:subscribe"), errors.UnsupportedOperation)
    body = {"message": message("more", taskId=ended["id"])}
    check_error(await rest.post("/message:send", body), errors.UnsupportedOperation)
    check_error(await rest.post("/message:stream", body), errors.UnsupportedOperation)


async def test_the_extended_card_is_unsupported_where_there_is_no_token(rest: Rest) -> None:
    check_error(await rest.get("/extendedAgentCard"), errors.UnsupportedOperation)


@each("path", ["/message:send", "/message:stream", "/tasks/none:cancel"])
async def test_a_body_that_is_not_json_is_a_parse_error(rest: Rest, path: str) -> None:
    for body in (b"{", b"\xff\xfe{", b'{"a":NaN}', b"'"):
        check_error(await rest.post(path, body), errors.ParseError)


@each("path", ["/message:send", "/message:stream", "/tasks/none:cancel"])
async def test_a_body_that_is_not_an_object_is_invalid(rest: Rest, path: str) -> None:
    for body in (b"[]", b"1", b'"text"', b"null", b"true"):
        check_error(await rest.post(path, body), errors.InvalidParams)


async def test_a_message_that_lacks_members_is_refused_by_their_names(rest: Rest) -> None:
    for path in ("/message:send", "/message:stream"):
        answer = await rest.post(path, {"message": {"role": "ROLE_USER"}})
        check_error(answer, errors.InvalidParams)
        assert answer.wrong_fields == ["message.messageId", "message.parts"]
        assert (await rest.post(path)).wrong_fields == ["message"]


async def test_a_body_that_is_too_large_is_refused(workspace: Path) -> None:
    async with serving(workspace, bridge_max_body_bytes=2000) as server:
        rest = Rest(server.http, server.url)
        body = {"message": message("text " + "x" * 3000)}
        check_error(await rest.post("/message:send", body), errors.BodyTooLarge)


async def test_a_server_that_shuts_down_is_unavailable(workspace: Path) -> None:
    async with serving(workspace) as server:
        await server.managers[0].close(drain=0)
        rest = Rest(server.http, server.url)
        for path in ("/message:send", "/message:stream"):
            check_error(await rest.post(path, {"message": message("done")}), errors.Unavailable)


async def test_without_the_token_nothing_is_answered_but_card_and_health(workspace: Path) -> None:
    async with serving(workspace, bridge_token=TOKEN) as server:
        for prefix in PREFIXES:
            rest = Rest(server.http, server.url + prefix)
            for answer in (
                await rest.get("/tasks"),
                await rest.get("/extendedAgentCard"),
                await rest.post("/message:send", {"message": message("done")}),
                await rest.post("/message:stream", {"message": message("done")}),
                await rest.get("/tasks/t:subscribe", Authorization="Bearer another-token-than-it"),
                # An id that looks like the card's path is still an id.
                await rest.get("/tasks/t%2F.well-known%2Fagent-card.json"),
                await rest.get("/tasks/t/pushNotificationConfigs/%2F.well-known%2Fagent.json"),
            ):
                assert answer.status == 401
                assert answer.headers["WWW-Authenticate"].startswith("Bearer ")
                assert answer.error["status"] == "UNAUTHENTICATED"
                assert answer.reason == "UNAUTHENTICATED"
        root = Rest(server.http, server.url)
        assert (await root.get("/.well-known/agent-card.json")).status == 200
        assert (await root.get("/health")).status == 200


# --- nonsense ----------------------------------------------------------------------------------

METHODS = ("GET", "POST", "DELETE", "HEAD")
PATHS = (
    *("/message:send", "/message:stream", "/message:fly", "/message", "/message%3Asend"),
    *("/tasks", "/tasks/", "//tasks", "/tasks/x", "/tasks/x:cancel", "/tasks/x:subscribe"),
    *("/tasks/x:fly", "/tasks/x:y:cancel", "/tasks/:cancel", "/tasks/%00", "/tasks/%ED%A0%80"),
    *(
        "/tasks/%FF",
        "/tasks/x%2Fy",
        "/tasks/..%2F..",
        "/tasks/" + "x" * 5000,
        "/tasks/%F0%9F%98%80",
    ),
    *("/tasks/x/pushNotificationConfigs", "/tasks/x/pushNotificationConfigs/"),
    *("/tasks/x/pushNotificationConfigs/%00", "/tasks/x/pushNotificationConfigs/y/z"),
    *("/extendedAgentCard", "/a/b/c/tasks", "/a2a/rest", "/a2a/rest/"),
)
QUERIES = (
    *("", "?", "?=", "?&&", "?_=_&__=1", "?A2A-Version=%FF", "?historyLength=--1", "?pageSize=²"),
    *("?id=%ED%A0%80", "?status[]=1", "?pageToken=AAAA&pageToken=%FF", "?message=x", "?tenant=%00"),
)
BODIES = (
    *(None, b"", b"\0", b"{}", b"[" * 3000, b'{"a":' * 2000 + b"1" + b"}" * 2000),
    b'{"message":"\\ud800"}',
    b'{"message":{"messageId":[],"role":{},"parts":"x"},"configuration":7,"metadata":[]}',
    b'{"url":"http://[::1","id":"\\u0000","authentication":{"scheme":"\\n"},"token":"\\r\\n"}',
    b'{"message":{"messageId":"m","role":9,"parts":[{"raw":"!"},{"data":null,"text":""},5,null]}}',
)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path[:40])
async def test_nonsense_is_never_the_servers_fault(
    root: Rest, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    requests: list[tuple[str, str, bytes | None]] = [
        (method, query, None) for method in METHODS for query in QUERIES
    ]
    requests += list(itertools.product(("POST", "DELETE"), ("", QUERIES[-1]), BODIES))
    answers = [await root.ask(method, path + query, body) for method, query, body in requests]
    assert {answer.status for answer in answers if not 200 <= answer.status < 500} == set()
    assert caplog.messages == []


@pytest.mark.parametrize(
    "head",
    [
        b"GET /tasks/\xff HTTP/1.1\r\n",
        b"GET /tasks?contextId=\xff HTTP/1.1\r\nA2A-Version: 1.0\r\n",
        b"GET /tasks?status=\xff HTTP/1.1\r\nA2A-Version: 1.0\r\n",
        b"GET /tasks/\xff HTTP/1.1\r\nA2A-Version: 1.0\r\n",
        b"GET /tasks/\xff:subscribe HTTP/1.1\r\nA2A-Version: 1.0\r\n",
        b"GET /tasks?A2A-Version=\xff HTTP/1.1\r\n",
        b"GET /tasks HTTP/1.1\r\nA2A-Version: \xff\r\n",
        b"GET /tasks HTTP/1.1\r\nA2A-Version: 1.0\r\nAccept: \xff\r\n",
        b"GET /tasks HTTP/1.1\r\nA2A-Version: 1.0\r\nA2A-Extensions: \xff\r\n",
        b"POST /tasks/x:cancel HTTP/1.1\r\nA2A-Version: 1.0\r\nContent-Type: \xff\r\n",
        b"POST /message:send HTTP/1.1\r\nA2A-Version: 1.0\r\nContent-Length: x\r\n",
    ],
)
async def test_bytes_that_are_not_text_are_never_the_servers_fault(
    server: Server, head: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("ERROR", "bridge")
    address = urlsplit(server.url)
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(head + b"Host: x\r\nConnection: close\r\n\r\n")
        line = await reader.readline()
        await reader.read()
        writer.close()
        await writer.wait_closed()
    assert 200 <= int(line.split()[1]) < 500
    assert [record for record in caplog.records if record.name.startswith("bridge")] == []


async def test_contexts_are_known_over_both_bindings(server: Server, root: Rest) -> None:
    task = await root.send("text one")
    more = await server.client().send("turn", contextId=context_id(task))
    assert artifact_text(more) == "2"
