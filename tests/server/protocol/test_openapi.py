"""The OpenAPI document describes exactly the HTTP+JSON binding. It is compared with answers to
requests of the tests, and of schemathesis, which generates them from the document."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest
import pytest_asyncio
import schemathesis
from jsonschema_rs import Draft202012Validator, meta
from schemathesis.core.parameters import ParameterLocation

from bridge.a2a.card import EXTENSION, Card
from bridge.a2a.codec import Operation
from bridge.auth.authentication import FAILURES
from bridge.auth.principal import Token, digest
from bridge.server.openapi import GENERATED, document
from bridge.transports.rest import ROUTES
from scripts import openapi as generator
from scripts.openapi import CONTRACTS
from scripts.openapi_answers import COMPONENTS
from tests.support.agent import PROGRAM
from tests.support.bridge_process import BridgeProcess, bridge
from tests.support.cases import each
from tests.support.client import Json, state
from tests.support.rest import A2A, HOOK, PLAIN, Answer, Rest, message
from tests.support.served import Server, serving

T = TypeVar("T")
TOKEN = "a-token-of-some-length"
READER = "another-token-of-some-length"
PEER = "127.0.0.7"
WRONG = {"Authorization": "Bearer another"}
BEARER = {"Authorization": f"Bearer {TOKEN}"}
REST = "/a2a/rest"
CARD = Card(
    *("An agent", "Codes.", "1.0", "http://h/a2a/jsonrpc", (), (), (), "http://h/a2a/rest"),
    bearer=True,
    extended=True,
)
DOCUMENT = document(CARD)
FREE = ("metadata", "data", "params", "securitySchemes")  # members that may hold anything


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def taker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    async with serving(tmp_path_factory.mktemp("workspace")) as server:
        yield server


def conforms(schema: Json, instance: Any) -> None:
    """Raises ValidationError unless `instance` conforms to `schema`, a part of DOCUMENT."""
    Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(instance)


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def resolved(response: Json) -> Json:
    """A response that may be one of all operations."""
    name = response.get("$ref", "").removeprefix("#/components/responses/")
    found: Json = DOCUMENT["components"]["responses"][name] if name else response
    return found


def operations(of: Json = DOCUMENT) -> Iterator[tuple[str, str, Json]]:
    """Method, path and description of each operation of a document."""
    for path, methods in of["paths"].items():
        for method, described in methods.items():
            yield method.upper(), path, described


def template(method: str, path: str) -> str:
    """The documented path of a request's path; the text after a colon belongs to the template."""
    found: list[str] = []
    for documented, methods in DOCUMENT["paths"].items():
        pattern = re.sub(r"\{\w+\}", "[^/]+", documented)
        if method.lower() in methods and re.fullmatch(pattern, path.partition("?")[0]):
            found.append(documented)
    return max(found, key=len)  # the longer one is the one with the colon


# --- the document itself -----------------------------------------------------------------------


def test_the_file_equals_the_output_of_the_script() -> None:
    """After a change of the tables of the server, run scripts/openapi."""
    assert json.loads(GENERATED.read_text("utf-8")) == generator.generate()


@each("bearer", [True, False])
def test_each_kind_of_server_has_its_document(bearer: bool) -> None:
    """The file has one document, and patches for the others."""
    about: Json = {
        "info": {"title": "An agent", "description": "Codes.", "version": "1.0"},
        "servers": [{"url": "http://h/a2a/rest"}],
    }
    card = replace(CARD, bearer=bearer, extended=bearer)
    generated = generator.document(generator.Server(bearer))
    assert document(card) == {**generated, **about}


def test_exactly_the_routes_are_described() -> None:
    routes = [(method, re.sub(r":\[\^/\]\+", "", path)) for method, path, _ in ROUTES]
    assert sorted((method, path) for method, path, _ in operations()) == sorted(routes)
    assert CONTRACTS.keys() == set(Operation)


def test_it_is_valid_openapi() -> None:
    for bearer in (True, False):
        schemathesis.openapi.from_dict(document(replace(CARD, bearer=bearer))).validate()
    names = [described["operationId"] for _, _, described in operations()]
    assert len(set(names)) == len(names) == len(ROUTES)


def test_its_schemas_are_schemas_and_all_are_used() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    used = re.findall(r'"#/components/(\w+)/([\w-]+)"', json.dumps(DOCUMENT))
    for kind in ("schemas", "parameters", "responses"):
        assert {name for of, name in used if of == kind} == DOCUMENT["components"][kind].keys()


@each("bearer", [True, False])
def test_a_server_with_tokens_describes_the_token(bearer: bool) -> None:
    found = document(replace(CARD, bearer=bearer))
    assert found["security"] == ([{"bearer": []}] if bearer else [])
    assert ("securitySchemes" in found["components"]) is bearer
    assert {"401" in described["responses"] for _, _, described in operations(found)} == {bearer}


def test_every_request_needs_the_version() -> None:
    parameters = DOCUMENT["components"]["parameters"]
    assert parameters["version"]["schema"] == {"enum": ["1.0"]}
    assert parameters["version"]["required"] is True
    assert parameters["extensions"]["required"] is False
    for _, _, described in operations():
        names = {one.get("$ref") for one in described["parameters"]}
        assert {f"#/components/parameters/{name}" for name in parameters} <= names


# What the specification requires of each, and what the bridge always has beyond it.
REQUIRED = {
    "Task": {"id", "status", "contextId"},
    "TaskStatus": {"state", "timestamp"},
    "Message": {"messageId", "role", "parts"},
    "Artifact": {"artifactId", "parts"},
    "TaskStatusUpdateEvent": {"taskId", "contextId", "status"},
    "TaskArtifactUpdateEvent": {"taskId", "contextId", "artifact", "append", "lastChunk"},
    "ListTasksResponse": {"tasks", "nextPageToken", "pageSize", "totalSize"},
    "TaskPushNotificationConfig": {"id", "taskId", "url"},
    "ListTaskPushNotificationConfigsResponse": {"configs", "nextPageToken"},
    "AgentInterface": {"url", "protocolBinding", "protocolVersion"},
    "AgentSkill": {
        *("id", "name", "description", "tags", "examples"),
        *("inputModes", "outputModes"),
    },
    "AgentCard": {
        *("name", "description", "supportedInterfaces", "version", "capabilities"),
        *("defaultInputModes", "defaultOutputModes", "skills"),
    },
    "ErrorInfo": {"@type", "reason", "domain", "metadata"},
    "Status": {"code", "status", "message", "details"},
}


def test_the_schemas_of_answers_are_strict() -> None:
    for name, schema in COMPONENTS.items():
        assert schema["additionalProperties"] is False, name
        assert set(schema["required"]) == REQUIRED.get(name, set(schema["required"])), name


RAW = ("", "AA", "AA==", "AA=", "AAA", "-_-_", "+/+/AAA=", "A", "AA=A", "!")
FILE = {"mediaType": "text/plain", "filename": "x", "metadata": {}}


@each(
    "part",
    [
        *({"raw": raw} for raw in RAW),
        *({"text": ""}, {"data": None}, {"data": 1, "text": None}, {"text": "x", **FILE}),
        *({}, FILE, {"text": None}, {"text": 1}, {"text": "", "filename": 1}),
        *({"text": "", "data": 1}, {"raw": "AAAA", "url": "https://example.org/x"}),
        {"text": "", "data": None},
    ],
    ids=json.dumps,
)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_part_is_taken_if_the_document_says_so(taker: Server, part: Json) -> None:
    """The rules that only the code of the functions contains."""
    schema = {**ref("PartInput"), "components": DOCUMENT["components"]}
    body = {"message": {**message("", contextId="warm"), "parts": [part]}}
    answer = await Rest(taker.http, taker.url).post("/message:send", body)
    assert Draft202012Validator(schema).is_valid(part) is (answer.status == 200)


# --- where it is served ------------------------------------------------------------------------


async def test_it_is_served_for_each_address_of_the_agent(workspace: Path) -> None:
    async with serving(workspace, bridge_token=TOKEN) as server:
        for prefix in ("", "/agents/jsonl"):
            rest = Rest(server.http, server.url + prefix, **BEARER)
            served = await rest.get("/openapi.json")
            card = (await rest.get("/.well-known/agent-card.json")).body
            assert (served.status, served.media_type) == (200, PLAIN)
            assert (served.body["paths"], served.body["components"]) == (
                DOCUMENT["paths"],
                DOCUMENT["components"],
            )
            assert served.body["servers"] == [{"url": f"{server.url}{prefix}{REST}"}]
            addresses = [one["url"] for one in card["supportedInterfaces"]]
            assert served.body["servers"][0]["url"] in addresses
            about = {name: card[name] for name in ("description", "version")}
            assert served.body["info"] == {"title": card["name"], **about}


async def test_it_names_the_public_url(workspace: Path) -> None:
    async with serving(workspace, public_url="https://agents.example/x/") as server:
        served = await Rest(server.http, server.url).get("/openapi.json")
    assert served.body["servers"] == [{"url": f"https://agents.example/x{REST}"}]


async def test_a_copy_that_is_still_good_is_not_sent_again(workspace: Path) -> None:
    async with serving(workspace) as server:
        rest = Rest(server.http, server.url)
        first = await rest.get("/openapi.json")
        again = await rest.get("/openapi.json", **{"If-None-Match": first.headers["ETag"]})
    assert (again.status, again.body) == (304, b"")
    assert first.headers["Cache-Control"].startswith("private, max-age=")


async def test_the_document_needs_the_token(workspace: Path) -> None:
    async with serving(workspace, bridge_token=TOKEN) as server:
        answer = await Rest(server.http, server.url).get("/openapi.json")
    assert answer.status == 401
    conforms(ref("Error"), answer.body)


# --- answers to requests of ours ---------------------------------------------------------------

Case = tuple[str, str, int, str]  # method, path of the document, status, reason


@dataclass
class Documented(Rest):
    """A client that holds every answer against the document, and remembers which there were."""

    http: aiohttp.ClientSession
    url: str
    more: Mapping[str, str] = field(default_factory=lambda: BEARER)
    seen: set[Case] = field(default_factory=set)
    bodies: list[tuple[Json, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.http, self.url, **self.more)

    async def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        answer = await super().ask(method, path, body, headers)
        described = self._saw(method, path, answer.status, answer.reason)
        self._check(described["content"][answer.media_type]["schema"], answer.body)
        for name, header in described["headers"].items():
            if name in answer.headers or header.get("required"):
                conforms(header["schema"], answer.headers[name])
        return answer

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[StreamReader, StreamWriter]]:
        """One of an address that the other requests do not come from."""
        host, port = self.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), local_addr=(PEER, 0))
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def raw(self, path: str, data: bytes) -> None:
        """Send invalid data to `path`."""
        async with asyncio.timeout(20), self.connection() as (reader, writer):
            writer.write(data)
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        answer = Answer(int(head.split()[1]), PLAIN, json.loads(body), {})
        described = self._saw("GET", path, answer.status, answer.reason)
        self._check(described["content"][PLAIN]["schema"], answer.body)

    async def items(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Json]:
        described = self._saw(method, path, 200, "")
        assert list(described["content"]) == ["text/event-stream"]
        async for item in super().items(method, path, body, headers):
            self._check(ref("StreamResponse"), item)
            yield item

    def _saw(self, method: str, path: str, status: int, reason: str) -> Json:
        """The description of such an answer in the document."""
        known = template(method, path)
        self.seen.add((method, known, status, reason))
        return resolved(DOCUMENT["paths"][known][method.lower()]["responses"][str(status)])

    def _check(self, schema: Json, body: Any) -> None:
        conforms(schema, body)
        self.bodies.append((schema, body))

    async def streamed(self, text: str) -> list[Json]:
        body = {"message": message(text)}
        return [item async for item in self.items("POST", "/message:stream", body)]


PARTS = [
    {"text": "t", "mediaType": "text/markdown", "filename": "t.md", "metadata": {"a": [1]}},
    {"raw": "AAAA", "mediaType": "image/png"},
    {"url": "https://example.org/x"},
    {"data": [None, {"x": 1}]},
]
LINES = (
    {"type": "status", "text": "at it"},
    {"type": "tool_call", "id": "c", "name": "Read", "input": {"path": "x"}},
    {"type": "tool_result", "id": "c", "output": "text", "isError": False},
    {"type": "artifact", "name": "file", "description": "A file", "parts": PARTS, "metadata": {}},
    {"type": "usage", "inputTokens": 1, "costUsd": 0.5},
)
EVERYTHING = "\n".join(["text hello", *(f"line {json.dumps(one)}" for one in LINES), "done bye"])


async def good_requests(rest: Documented) -> Json:
    """One request at least for each documented success. Returns a task that has ended."""
    extension = {"A2A-Extensions": EXTENSION}
    whole = message(EVERYTHING, referenceTaskIds=["t"], extensions=["e"], metadata={"mine": 1})
    answer = await rest.post("/message:send", {"message": whole}, **extension)
    assert answer.headers["A2A-Extensions"] == EXTENSION
    task: Json = answer.body["task"]
    assert {one["name"] for one in task["artifacts"]} == {"Assistant response", "file"}
    for text in ("login q Who?", "permit q May I?", "fail no", "reject no", "reply hi"):
        await rest.post("/message:send", {"message": message(text)})
    for text in ("permit q May I?", "fail no", "reject no", "reply hi"):
        assert await rest.streamed(text)
    await rest.streamed(EVERYTHING)
    await rest.post("/message:send", {"message": {**message(""), "parts": PARTS}})
    for query in ("", "?historyLength=0", "?historyLength=1"):
        await rest.get(f"/tasks/{task['id']}{query}")
    for query in ("", "?pageSize=1&includeArtifacts=true", f"?contextId={task['contextId']}"):
        await rest.get(f"/tasks{query}", Accept=PLAIN)
    await configured(rest, task["id"])
    for verb in ("GET", "POST"):
        await subscribed(rest, verb)
    await rest.get("/extendedAgentCard")
    return task


async def configured(rest: Documented, task_id: str) -> None:
    path = f"/tasks/{task_id}/pushNotificationConfigs"
    await rest.get(path)
    secret = {"token": "t", "authentication": {"scheme": "Bearer", "credentials": "secret"}}
    made = await rest.post(path, {**HOOK, **secret})
    await rest.get(path)
    await rest.get(f"{path}/{made.body['id']}")
    await rest.ask("DELETE", f"{path}/{made.body['id']}")


async def subscribed(rest: Documented, verb: str) -> None:
    asking = await rest.send("ask q What?")
    items = rest.items(verb, f"/tasks/{asking['id']}:subscribe")
    await anext(items)
    await rest.post(f"/tasks/{asking['id']}:cancel", {"metadata": {"why": "enough"}})
    assert state([item async for item in items][-1]) == "canceled"


async def bad_requests(rest: Documented, task: Json, limit: int) -> None:
    """One request at least for each documented error, but for a server that is shutting down."""
    for method, path, described in operations():
        at = path.format(id="none", taskId="none")
        body: Any = {"message": message("done", taskId="none"), **HOOK}
        sent = body if method == "POST" else None
        await rest.ask(method, at, sent, {"A2A-Version": "9"})
        if "404" in described["responses"]:
            await rest.ask(method, at, sent)
        if method == "POST":
            await rest.post(at, b"{")
            await rest.post(at, b'{"a":1,"a":2}')
            await rest.post(at, b"[]")
            await rest.post(at, b"x", **{"Content-Type": "text/plain"})
            await rest.post(at, b" " * (limit + 1))
    ended = f"/tasks/{task['id']}"
    for path in ("/tasks?pageSize=0", f"{ended}?historyLength=-1", f"{ended}:subscribe"):
        await rest.get(path)
    await rest.get(f"{ended}:subscribe?historyLength=-1")
    await rest.post(f"{ended}:subscribe")
    await rest.post(f"{ended}:cancel")
    foreign = {**message(""), "parts": [{"text": "", "mediaType": "nonsense"}]}
    for path in ("/message:send", "/message:stream"):
        await rest.post(path, {"message": message("more", taskId=task["id"])})
        await rest.post(path, {"message": foreign})


# What any request may be answered, with its status and reason.
ANYTIME = {
    (400, "INVALID_HOST"),
    (400, "MALFORMED_REQUEST"),
    (401, "UNAUTHENTICATED"),
    (403, "ORIGIN_NOT_ALLOWED"),
    (403, "PERMISSION_DENIED"),
    (408, "REQUEST_TIMEOUT"),
    (414, "URI_TOO_LONG"),
    (421, "HOST_NOT_ALLOWED"),
    (429, "TOO_MANY_REQUESTS"),
    (431, "HEADERS_TOO_LARGE"),
    (503, "TOO_MANY_CONNECTIONS"),
    (503, "UNAVAILABLE"),
}


async def requests_that_come_nowhere(rest: Documented) -> None:
    """One for each answer that no operation has a part in."""
    path = "/tasks"
    for headers in (
        {"Host": ":80"},
        {"Host": "evil.example"},
        {"Origin": "https://evil.example"},
        {f"X-{number}": "x" * 7000 for number in range(5)},
        {"Authorization": f"Bearer {READER}"},
    ):
        await rest.post("/message:send", {"message": message("done")}, **headers)
    for _ in range(FAILURES + 1):
        await rest.get(path, **WRONG)
    await rest.raw(path, b"nonsense")
    await rest.raw(path, b"\r\n")
    await rest.raw(path, b"GET /%s HTTP/1.1\r\n\r\n" % (b"x" * 10_000))
    async with rest.connection():  # there is room for one
        await rest.raw(path, b"")


def documented() -> set[Case]:
    found: set[Case] = set()
    for method, path, described in operations():
        for status, response in described["responses"].items():
            content = next(iter(resolved(response)["content"].values()))
            error = content["schema"].get("properties", {}).get("error")
            reasons = error["properties"]["details"]["contains"] if error else {}
            for reason in reasons["properties"]["reason"]["enum"] if reasons else [""]:
                found.add((method, path, int(status), reason))
    return found


async def test_every_answer_is_documented_and_all_that_is_documented_is_answered(
    workspace: Path,
) -> None:
    limit = 10_000
    chosen: Json = {
        "bridge_token": TOKEN,
        "bridge_max_body_bytes": limit,
        "bridge_header_timeout_ms": 500,
        "bridge_max_connections_per_peer": 1,
        "tokens": {"reader": Token(hash=f"sha256:{digest(READER).hex()}", scopes=("read",))},
    }
    async with serving(workspace, **chosen) as server:
        rest = Documented(server.http, server.url)
        task = await good_requests(rest)
        await bad_requests(rest, task, limit)
        await requests_that_come_nowhere(rest)
        await server.managers[0].close(drain=0)
        await rest.post("/message:send", {"message": message("done")})
    known = documented()
    assert {case for case in known if case[2:] in ANYTIME} == {
        (method, path, *one) for method, path, _ in operations() for one in ANYTIME
    }
    assert {case[2:] for case in rest.seen if case[2:] in ANYTIME} == ANYTIME
    assert {case for case in rest.seen if case[2:] not in ANYTIME} == {
        case for case in known if case[2:] not in ANYTIME
    }
    for schema, body in rest.bodies:
        for longer in with_one_member_more(body):
            with pytest.raises(ValueError):
                conforms(schema, longer)


def with_one_member_more(value: Any) -> Iterator[Any]:
    """`value` with an unknown member in each of its objects, one after the other."""
    if isinstance(value, list):
        for number, one in enumerate(value):
            for changed in with_one_member_more(one):
                yield [*value[:number], changed, *value[number + 1 :]]
    elif isinstance(value, dict):
        yield {**value, "unheardOf": 1}
        for name, one in value.items():
            if name not in FREE and name != "securityRequirements":
                for changed in with_one_member_more(one):
                    yield {**value, name: changed}


async def test_without_a_token_there_is_no_extended_card(workspace: Path) -> None:
    async with serving(workspace) as server:
        rest = Rest(server.http, server.url)
        served = (await rest.get("/openapi.json")).body
        answer = await rest.get("/extendedAgentCard")
    refused = served["paths"]["/extendedAgentCard"]["get"]["responses"]["400"]
    assert answer.reason in refused["description"]
    assert "securitySchemes" not in served["components"]
    schema = {**refused["content"][A2A]["schema"], "components": served["components"]}
    Draft202012Validator(schema).validate(answer.body)


# --- unforeseen requests -----------------------------------------------------------------------

# Any: scripts/check has no schemathesis, so that its types must not matter.
SCHEMA: Any = schemathesis.openapi.from_dict(
    DOCUMENT,
    config=schemathesis.Config.from_dict(
        {
            "seed": 1,
            "generation": {
                "deterministic": True,
                "database": "none",
                "max-examples": 10,
                # Unknown parameters are ignored like unknown members (§5.7).
                "allow-extra-parameters": False,
                # The token is the test's; that nothing is answered without it is a check.
                "with-security-parameters": False,
            },
            "checks": {
                "positive_data_acceptance": {"enabled": False},  # valid_is_not_invalid
                "ignored_auth": {
                    "enabled": False
                },  # 429 after so many: tests/server/auth/test_identity.py
            },
            # "x:cancel" could be an id, and a task can be got: Allow has more than the document.
            "operations": [
                {
                    "include-path-regex": ":(cancel|subscribe)$",
                    "checks": {"allow_header_conformance": {"enabled": False}},
                },
                # It is told what a send is told: hundreds of wrong bodies need not be sent twice.
                {
                    "include-path": "/message:stream",
                    "phases": {"coverage": {"generation": {"mode": "positive"}}},
                },
            ],
        }
    ),
)
# What a request may contain by its schema and yet be wrong, since only the server can know.
KNOWN_TO_THE_SERVER = {
    "pageToken",  # it is opaque
    "url",  # only http and https, and not everywhere
    "id",
    "scheme",
    "message.contextId",
}
# A whole number may be written 1.0, of which JSON Schema makes no difference; the server does.
WHOLE = {"historyLength", "configuration.historyLength"}


def valid_is_not_invalid(
    context: schemathesis.CheckContext,
    response: schemathesis.Response,
    case: schemathesis.Case[Any],
) -> None:
    """INVALID_PARAMS is not for a request that the document allows."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    details = response.json()["error"]["details"] if response.status_code == 400 else []
    if any(one.get("reason") == "INVALID_PARAMS" for one in details):
        wrong = {violation["field"] for violation in details[1]["fieldViolations"]}
        assert wrong <= KNOWN_TO_THE_SERVER | WHOLE, details


class Background:
    """An event loop in a thread of its own, for tests without asyncio."""

    def __enter__(self) -> Background:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        return self

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@dataclass(frozen=True)
class Live:
    """A server that answers quickly. It knows a task that has `ended`, with one push config, and
    one that waits for an answer."""

    process: BridgeProcess
    rest: Rest
    background: Background
    ended: str
    waiting: str

    def asking(self) -> str:
        """A task that has not ended."""
        return str(self.background.run(self.rest.send("ask q What?"))["id"])

    def aim(self, case: schemathesis.Case[Any]) -> None:
        """Let half of the requests be about something that exists, and most of the messages go to
        one process, which is warm."""
        assert case.meta
        valid = case.meta.generation.mode.is_positive
        names: dict[str, Any] = case.path_parameters
        body: Any = case.body
        path = case.meta.components.get(ParameterLocation.PATH)
        if path and path.mode.is_positive and sum(map(len, names.values())) % 2:
            first, *config = names
            names[first] = self.ended
            if ":cancel" in case.path:
                names[first] = self.asking() if valid else self.waiting
            names.update(dict.fromkeys(config, "mine"))
        if valid and case.path.startswith("/message:"):
            message = body["message"]
            message["contextId"] = message.get("contextId") or "warm"


async def start(stack: AsyncExitStack, workspace: Path, background: Background) -> Live:
    process = await stack.enter_async_context(
        bridge(
            workspace,
            AGENT_ADAPTER="jsonl",
            AGENT_BINARY=sys.executable,
            AGENT_ARGS=f"-I -S {PROGRAM}",
            BRIDGE_TOKEN=TOKEN,
        )
    )
    http = await stack.enter_async_context(aiohttp.ClientSession())
    rest = Rest(http, process.url + REST, **BEARER)
    ended = str((await rest.send("text hello"))["id"])
    await rest.post(f"/tasks/{ended}/pushNotificationConfigs", {**HOOK, "id": "mine"})
    waiting = str((await rest.send("ask q What?"))["id"])
    return Live(process, rest, background, ended, waiting)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with Background() as background:
        stack = AsyncExitStack()
        live = background.run(start(stack, tmp_path_factory.mktemp("workspace"), background))
        try:
            yield live
        finally:
            background.run(stack.aclose())
    assert "Traceback" not in live.process.log


@SCHEMA.parametrize()  # type: ignore[untyped-decorator]
def test_no_request_is_answered_otherwise_than_documented(
    case: schemathesis.Case[Any], live: Live
) -> None:
    live.aim(case)
    sent = dict(case.headers or ())
    if str(sent.get("A2A-Version", "")).strip() in ("", "0.3"):
        return  # a request of 0.3, which the document does not describe
    case.call_and_validate(
        base_url=live.process.url + REST,
        headers=BEARER,
        timeout=15,
        additional_checks=[valid_is_not_invalid],
    )
