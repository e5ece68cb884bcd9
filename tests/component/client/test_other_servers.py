"""The client against servers of other makers: small servers on loopback that answer by a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bridge.client.agent import Target, connect
from bridge.client.conversation import Conversation, find
from bridge.client.credentials import CredentialStore
from bridge.client.failure import ClientError
from bridge.client.follow import Follower
from bridge.client.shapes import Json
from tests.support.cab import Cab

WELL_KNOWN = "/.well-known/agent-card.json"
PARAMS: Json = {"message": {"messageId": "m" * 20, "role": "ROLE_USER", "parts": [{"text": "x"}]}}
Start = Callable[[web.Application], Awaitable[str]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts an application on a free port. Returns its address."""
    async with AsyncExitStack() as stack:

        async def begin(app: web.Application) -> str:
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            return f"http://127.0.0.1:{runner.addresses[0][1]}"

        yield begin


class Server:
    """A server of A2A 1.0 over JSON-RPC. `answers` maps methods to results, or to functions of the
    parameters; a list is a stream of items, or of pairs of event id and item. `asked` are the
    requests."""

    def __init__(self, streaming: bool = True, **card: Any) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, Json, Any]] = []
        self.url = ""
        self._card = {"capabilities": {"streaming": streaming}, **card}
        self.app = web.Application()
        self.app.add_routes([web.get(WELL_KNOWN, self._get_card), web.post("/rpc", self._post)])

    async def _get_card(self, request: web.Request) -> web.Response:
        self.asked.append(("card", {}, request.headers))
        interface = {
            "url": self.url + "/rpc",
            "protocolBinding": "JSONRPC",
            "protocolVersion": "1.0",
        }
        return web.json_response({"supportedInterfaces": [interface], **self._card})

    async def _post(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        method, params = body["method"], body["params"]
        self.asked.append((method, params, request.headers))
        answer = self.answers[method]
        if callable(answer):
            answer = answer(params)
        if isinstance(answer, web.StreamResponse):
            return answer
        if not isinstance(answer, list):
            member = "error" if "code" in answer else "result"
            return web.json_response({"jsonrpc": "2.0", "id": body["id"], member: answer})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for one in answer:
            event_id, item = one if isinstance(one, tuple) else (None, one)
            if item is None:  # cut the connection here
                assert request.transport
                request.transport.abort()
                return response
            named = f"id: {event_id}\r\n" if event_id else ""
            data = json.dumps({"jsonrpc": "2.0", "id": body["id"], "result": item})
            await response.write(f": ping\n{named}data: {data}\r\n\r\n".encode())
        return response

    def methods(self) -> list[str]:
        return [method for method, *_ in self.asked if method != "card"]


@pytest.fixture
async def server(start: Start) -> Server:
    made = Server()
    made.url = await start(made.app)
    return made


def target(url: str, tmp_path: Path, **members: Any) -> Target:
    store = CredentialStore(tmp_path / "credentials.json")
    return Target(reference=url, cwd="/", servers=(), store=store, **members)


def task(state: str, text: str | None = None) -> Json:
    found: Json = {"id": "t", "contextId": "c", "status": {"state": f"TASK_STATE_{state}"}}
    if text is not None:
        found["artifacts"] = [{"artifactId": "a", "parts": [{"text": text}]}]
    return found


def status(state: str) -> Json:
    ids = {"taskId": "t", "contextId": "c"}
    return {"statusUpdate": {**ids, "status": {"state": f"TASK_STATE_{state}"}}}


async def followed(
    server: Server, tmp_path: Path, subscribe: bool = False, **members: Any
) -> tuple[list[Json], Json]:
    """All items of a send or a subscription, and the answer at the end."""
    async with asyncio.timeout(20), connect(target(server.url, tmp_path, **members)) as agent:
        follower = Follower(agent, poll_interval=0.01)
        items = follower.subscribe("t") if subscribe else follower.send(PARAMS)
        return [item async for item in items], follower.final


async def test_a_stream_ends_with_the_task(server: Server, tmp_path: Path) -> None:
    server.answers = {
        "SendStreamingMessage": [{"task": task("SUBMITTED")}, status("COMPLETED")],
        "GetTask": task("COMPLETED", "done"),
    }
    items, final = await followed(server, tmp_path)
    assert len(items) == 2 and final == {"task": task("COMPLETED", "done")}
    assert all(headers["A2A-Version"] == "1.0" for _, _, headers in server.asked)
    assert "A2A-Extensions" not in server.asked[-1][2]
    assert "Idempotency-Key" not in server.asked[-1][2]
    assert "tenant" not in server.asked[-1][1]


async def test_a_message_without_a_task_ends_the_send(server: Server, tmp_path: Path) -> None:
    reply = {"messageId": "r", "role": "ROLE_AGENT", "parts": [{"text": "hi"}]}
    server.answers = {"SendStreamingMessage": [{"message": reply}]}
    assert await followed(server, tmp_path) == ([{"message": reply}], {"message": reply})


async def test_a_server_without_streams_is_polled(start: Start, tmp_path: Path) -> None:
    server = Server(streaming=False)
    server.url = await start(server.app)
    states = iter(["WORKING", "WORKING", "UNSPECIFIED", "WORKING", "COMPLETED"])
    server.answers = {
        "SendMessage": {"task": task("SUBMITTED")},
        "GetTask": lambda params: task(next(states)),
    }
    items, final = await followed(server, tmp_path)
    shown = [one["task"]["status"]["state"].removeprefix("TASK_STATE_") for one in items]
    assert shown == ["SUBMITTED", "WORKING", "UNSPECIFIED", "WORKING", "COMPLETED"]
    assert final["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    sent = server.asked[1][1]
    assert sent["configuration"]["returnImmediately"] is True


async def test_a_cut_stream_resumes_after_the_last_event(server: Server, tmp_path: Path) -> None:
    server.answers = {
        "SendStreamingMessage": [("7", {"task": task("SUBMITTED")}), (None, None)],
        "SubscribeToTask": [("8", status("COMPLETED"))],
        "GetTask": task("COMPLETED"),
    }
    items, _ = await followed(server, tmp_path)
    assert [next(iter(item)) for item in items] == ["task", "statusUpdate"]
    (resumed,) = [headers for method, _, headers in server.asked if method == "SubscribeToTask"]
    assert resumed["Last-Event-ID"] == "7"


async def test_a_server_that_cannot_resume_is_polled(server: Server, tmp_path: Path) -> None:
    server.answers = {
        "SendStreamingMessage": [{"task": task("WORKING")}, (None, None)],
        "SubscribeToTask": {"code": -32004, "message": "ended"},
        "GetTask": task("COMPLETED", "done"),
    }
    items, final = await followed(server, tmp_path)
    assert items[-1] == final == {"task": task("COMPLETED", "done")}


async def test_a_broken_send_of_an_unknown_server_is_not_repeated(
    server: Server, tmp_path: Path
) -> None:
    server.answers = {"SendStreamingMessage": [(None, None)]}
    with pytest.raises(ClientError) as broken:
        await followed(server, tmp_path)
    assert broken.value.status == 3 and server.methods() == ["SendStreamingMessage"]


async def test_a_question_that_was_answered_meanwhile_does_not_end_the_wait(
    server: Server, tmp_path: Path
) -> None:
    states = iter(["WORKING", "COMPLETED"])
    streams = iter([[status("INPUT_REQUIRED")], [status("WORKING"), status("COMPLETED")]])
    server.answers = {
        "SubscribeToTask": lambda params: next(streams),
        "GetTask": lambda params: task(next(states)),
    }
    items, final = await followed(server, tmp_path, subscribe=True)
    assert len(items) == 3 and final["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


# --- credentials --------------------------------------------------------------------------------


async def test_a_credential_is_sent_to_its_origin_only(
    start: Start, server: Server, tmp_path: Path
) -> None:
    """The card of one server declares an interface of another one."""
    server.answers = {"GetTask": task("COMPLETED")}
    app = web.Application()
    foreign = Server()
    foreign.url = server.url
    app.router.add_get(WELL_KNOWN, foreign._get_card)
    card_url = await start(app)
    async with connect(target(card_url, tmp_path, bearer="secret")) as agent:
        await agent.call("GetTask", {"id": "t"})
    assert "Authorization" not in server.asked[-1][2]
    async with connect(target(server.url, tmp_path, bearer="secret")) as agent:
        await agent.call("GetTask", {"id": "t"})
    assert server.asked[-1][2]["Authorization"] == "Bearer secret"
    assert all("Authorization" not in h for method, _, h in server.asked if method == "card")


async def test_a_stored_token_is_found_by_the_origin(server: Server, tmp_path: Path) -> None:
    server.answers = {"GetTask": task("COMPLETED")}
    store = CredentialStore(tmp_path / "credentials.json")
    store.save({"http://127.0.0.1:1": "other", server.url: "mine"})
    async with connect(target(server.url, tmp_path)) as agent:
        await agent.call("GetTask", {"id": "t"})
    assert server.asked[-1][2]["Authorization"] == "Bearer mine"


async def test_a_redirect_gets_no_request(start: Start, server: Server, tmp_path: Path) -> None:
    seen: list[Any] = []

    async def note(request: web.Request) -> web.Response:
        seen.append(request.headers)
        return web.json_response({})

    other = web.Application()
    other.router.add_route("*", "/{any:.*}", note)
    address = await start(other)
    moved = web.Response(status=307, headers={"Location": f"{address}/steal"})
    server.answers = {"GetTask": moved}
    async with connect(target(server.url, tmp_path, bearer="secret")) as agent:
        with pytest.raises(ClientError) as refused:
            await agent.call("GetTask", {"id": "t"})
    assert "redirect" in str(refused.value) and seen == []


async def test_a_credential_is_not_sent_over_plain_http_to_another_host(
    start: Start, tmp_path: Path
) -> None:
    server = Server()
    server.url = "http://localhost.localdomain:1"
    url = await start(server.app)
    store = CredentialStore(tmp_path / "credentials.json")
    store.save({server.url: "secret"})
    async with connect(target(url, tmp_path)) as agent:
        with pytest.raises(ClientError) as refused:
            await agent.call("GetTask", {"id": "t"})
    assert refused.value.code == "A2ACLI_ERR_CREDENTIALS_MISSING"


@pytest.mark.parametrize(
    ("bearer", "code"),
    [(None, "A2ACLI_ERR_CREDENTIALS_MISSING"), ("wrong", "A2ACLI_ERR_AUTH_FAILED")],
)
async def test_a_401_is_an_authentication_failure(
    server: Server, tmp_path: Path, bearer: str | None, code: str
) -> None:
    server.answers = {"GetTask": lambda params: web.Response(status=401)}
    async with connect(target(server.url, tmp_path, bearer=bearer)) as agent:
        with pytest.raises(ClientError) as refused:
            await agent.call("GetTask", {"id": "t"})
    assert (refused.value.code, refused.value.status) == (code, 4)


async def test_the_trace_has_no_secrets(start: Start, tmp_path: Path) -> None:
    scheme = {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}}
    server = Server(securitySchemes={"key": scheme})
    server.url = await start(server.app)
    server.answers = {"GetTask": lambda params: {**task("COMPLETED"), "metadata": {"k": "s3cret"}}}
    lines: list[str] = []
    given = target(
        server.url,
        tmp_path,
        api_key="s3cret",
        parameters=(("X-Other", "hidden-value"),),
        trace=lines.append,
    )
    async with connect(given) as agent:
        await agent.call("GetTask", {"id": "t"})
    assert server.asked[-1][2]["X-Key"] == "s3cret"
    assert server.asked[-1][2]["X-Other"] == "hidden-value"
    shown = "\n".join(lines)
    assert "s3cret" not in shown and "hidden-value" not in shown
    assert '"X-Key: $A2ACLI_API_KEY"' in shown and "GetTask" in shown


# --- cards --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (web.Response(status=404), "A2ACLI_ERR_CARD_NOT_FOUND"),
        (web.Response(text="<html>"), "A2ACLI_ERR_CARD_INVALID"),
        (web.json_response([]), "A2ACLI_ERR_CARD_INVALID"),
        (web.Response(status=401), "A2ACLI_ERR_CREDENTIALS_MISSING"),
    ],
    ids=["none", "html", "list", "secret"],
)
async def test_an_address_without_a_card_fails_with_its_reason(
    start: Start, tmp_path: Path, response: web.Response, code: str
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return response

    app = web.Application()
    app.router.add_get(WELL_KNOWN, answer)
    url = await start(app)
    with pytest.raises(ClientError) as refused:
        async with connect(target(url, tmp_path)):
            pass
    assert refused.value.code == code


async def test_an_address_without_a_server_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(ClientError) as refused:
        async with connect(target("http://127.0.0.1:1", tmp_path)):
            pass
    assert (refused.value.code, refused.value.status) == ("A2ACLI_ERR_UNREACHABLE", 3)


async def test_a_card_may_be_a_file(server: Server, tmp_path: Path) -> None:
    server.answers = {"GetTask": task("COMPLETED")}
    interface = {"url": server.url + "/rpc", "protocolBinding": "JSONRPC", "tenant": "acme"}
    path = tmp_path / "card.json"
    path.write_text(json.dumps({"supportedInterfaces": [interface]}))
    for reference in (str(path), path.as_uri()):
        async with connect(target(reference, tmp_path)) as agent:
            await agent.call("GetTask", {"id": "t"})
        assert server.asked[-1][1] == {"id": "t", "tenant": "acme"}
    path.write_text("{")
    with pytest.raises(ClientError) as refused:
        async with connect(target(str(path), tmp_path)):
            pass
    assert refused.value.code == "A2ACLI_ERR_CARD_INVALID"


async def test_an_answer_without_the_shape_of_a_task_is_no_traceback(
    server: Server, tmp_path: Path
) -> None:
    server.answers = {"GetTask": {"id": "t", "status": "odd"}}
    done = await Cab(tmp_path, tmp_path).run("task", "get", "t", "-a", server.url)
    assert (done.status, done.error) == (1, "A2ACLI_ERR_INTERNAL")
    assert "Traceback" not in done.err


# --- conversations ------------------------------------------------------------------------------


async def test_the_tasks_of_a_conversation_are_polled_in_their_order(
    server: Server, tmp_path: Path
) -> None:
    def listed(*states: str) -> Json:
        """Tasks with the names of their states, the newest first; one is of another context."""
        tasks = [{**task(one), "id": one} for one in states]
        return {"tasks": [*tasks, {**task("WORKING"), "contextId": "other"}]}

    pages = iter(
        [
            listed("WORKING", "SUBMITTED", "COMPLETED"),
            listed("FAILED", "WORKING", "SUBMITTED", "COMPLETED"),
        ]
    )
    server.answers = {
        "GetTask": {"code": -32001, "message": "unknown"},
        "ListTasks": lambda params: next(pages, listed()),
    }
    async with asyncio.timeout(20), connect(target(server.url, tmp_path)) as agent:
        conversation = Conversation(agent, "c", poll_interval=0.01)
        assert [one["id"] for one in await conversation.past()] == ["COMPLETED"]
        watching = asyncio.create_task(conversation.watch())
        begun = [await conversation.begun() for _ in range(3)]
        watching.cancel()
        with pytest.raises(ClientError) as unknown:
            await find(agent, "c")
    assert begun == ["WORKING", "SUBMITTED", "FAILED"]
    assert unknown.value.code == "TaskNotFoundError"
    assert all(
        params["contextId"] == "c" for name, params, _ in server.asked if name == "ListTasks"
    )


async def test_a_server_without_a_list_has_the_named_task(server: Server, tmp_path: Path) -> None:
    server.answers = {
        "GetTask": task("WORKING"),
        "ListTasks": {"code": -32601, "message": "no such method"},
    }
    async with asyncio.timeout(20), connect(target(server.url, tmp_path)) as agent:
        assert await find(agent, "t") == ("c", task("WORKING"))
        assert await Conversation(agent, "c").past() == []
