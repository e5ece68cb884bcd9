"""Questions on the paths without tasks: repeated calls (MRTR), elicitation of older revisions, the
tool `answer`, and the parties that may answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bridge.auth.principal import digest
from bridge.errors.program import command
from tests.support.mcp import (
    Json,
    Legacy,
    Mcp,
    McpError,
    accept,
    answer_over_a2a,
    events,
    session,
    shown,
    text_of,
)
from tests.support.served import Server, serving

PERMIT = {"prompt": "permit q May I?\ntext  ended"}
NAME = "delegate"


@pytest.fixture
def forms(server: Server) -> Mcp:
    """A client that declares forms, and no tasks."""
    return Mcp(server.http, server.url, forms=True)


async def repeat(client: Mcp, asked: Json, arguments: Json, response: Json) -> Json:
    """The same call again, with the response to its form."""
    (key,) = asked["inputRequests"]
    more = {"inputResponses": {key: response}, "requestState": asked["requestState"]}
    return await client.tool(NAME, arguments, **more)


# --- MRTR ----------------------------------------------------------------------------------------


async def test_a_call_asks_and_is_repeated_as_often_as_necessary(forms: Mcp) -> None:
    script = {"prompt": "permit q May I?\nask r And now?\ntext  ended"}
    asked = await forms.tool(NAME, script)
    assert asked["resultType"] == "input_required"
    asked = await repeat(forms, asked, script, accept("Go on"))
    (key,) = asked["inputRequests"]
    assert key.endswith("-2.1")
    words = {"action": "accept", "content": {"answer": "more"}}
    ended = shown(await repeat(forms, asked, script, words))
    assert ended["state"] == "completed"
    assert "ended" in ended["text"]
    assert len(shown(await forms.tool("list_tasks"))["tasks"]) == 1


async def test_the_state_of_a_call_is_sealed(forms: Mcp) -> None:
    asked = await forms.tool(NAME, PERMIT)
    task_id = shown(await forms.tool("list_tasks"))["tasks"][0]["task_id"]
    assert task_id not in asked["requestState"]
    forged = {**asked, "requestState": asked["requestState"][:-4] + "AAAA"}
    with pytest.raises(McpError) as caught:
        await repeat(forms, forged, PERMIT, accept("Go on"))
    assert (caught.value.status, caught.value.code) == (400, -32602)
    with pytest.raises(McpError) as caught:  # of other arguments
        await repeat(forms, asked, {"prompt": "something else"}, accept("Go on"))
    assert caught.value.code == -32602
    assert (await forms.tool("wait", {"task_id": task_id}))["resultType"] == "input_required"


async def test_the_state_belongs_to_its_principal(workspace: Path) -> None:
    hashes = {name: {"hash": f"sha256:{digest(name * 8).hex()}"} for name in ("alice", "bobby")}
    async with serving(workspace, tokens=hashes) as server:
        alice, bobby = (
            Mcp(server.http, server.url, forms=True, headers={"Authorization": f"Bearer {one * 8}"})
            for one in hashes
        )
        asked = await alice.tool(NAME, PERMIT)
        with pytest.raises(McpError) as caught:
            await repeat(bobby, asked, PERMIT, accept("Go on"))
    assert caught.value.code == -32602


async def test_a_canceled_form_returns_the_handle(forms: Mcp) -> None:
    asked = await forms.tool(NAME, PERMIT)
    handle = shown(await repeat(forms, asked, PERMIT, {"action": "cancel"}))
    assert handle["state"] == "input_required"
    assert handle["question"]["link"] == command("answer", handle["task_id"])
    waited = await forms.tool("wait", {"task_id": handle["task_id"], "wait_seconds": 0})
    assert shown(waited)["question"]["answered_by"] == "person"  # no form for a while


async def test_wait_asks_with_a_form_too(server: Server, forms: Mcp) -> None:
    plain = Mcp(server.http, server.url)
    task_id = shown(await plain.tool(NAME, PERMIT))["task_id"]
    waiting = {"task_id": task_id}
    asked = await forms.tool("wait", waiting)
    (key,) = asked["inputRequests"]
    more = {"inputResponses": {key: accept("Go on")}, "requestState": asked["requestState"]}
    assert shown(await forms.tool("wait", waiting, **more))["state"] in ("working", "completed")
    last = shown(await forms.tool("wait", {**waiting, "after": 100, "wait_seconds": 5}))
    assert last["state"] == "completed"


# --- elicitation ---------------------------------------------------------------------------------


@asynccontextmanager
async def delegating(client: Legacy, arguments: Json) -> AsyncIterator[AsyncIterator[Json]]:
    """The messages of the response to a call of `delegate`, as they arrive."""
    async with client.send("tools/call", {"name": NAME, "arguments": arguments}) as response:
        yield events(response)


async def answer(client: Legacy, request: Json, result: Json) -> None:
    await client.notify({"jsonrpc": "2.0", "id": request["id"], "result": result})


@pytest.mark.parametrize("revision", ["2025-11-25", "2025-06-18"])
async def test_older_clients_are_asked_on_the_stream_of_the_call(
    server: Server, revision: str
) -> None:
    async with session(server.http, server.url, revision, elicitation={}) as client:
        async with delegating(client, PERMIT) as stream:
            request = await anext(stream)
            assert request["method"] == "elicitation/create"
            properties = request["params"]["requestedSchema"]["properties"]
            assert properties["decision"] == {"type": "string", "enum": ["Do not", "Go on"]}
            await answer(client, request, accept("Go on"))
            ended = shown((await anext(stream))["result"])
    assert ended["state"] == "completed"
    assert '"yes"' in (await text(server, ended["task_id"]))


async def text(server: Server, task_id: str) -> str:
    client = Mcp(server.http, server.url)
    content: str = shown(await client.tool("result", {"task_id": task_id, "part": "text"}))[
        "content"
    ]
    return content


async def test_an_older_client_that_cancels_gets_the_handle(server: Server) -> None:
    async with session(server.http, server.url, elicitation={}) as client:
        async with delegating(client, PERMIT) as stream:
            await answer(client, await anext(stream), {"action": "cancel"})
            handle = shown((await anext(stream))["result"])
    assert handle["state"] == "input_required"


async def test_a_form_of_an_older_client_ends_with_the_question(server: Server) -> None:
    """An A2A client answers first."""
    async with session(server.http, server.url, elicitation={}) as client:
        async with delegating(client, PERMIT) as stream:
            request = await anext(stream)
            other = Mcp(server.http, server.url)
            task_id = shown(await other.tool("list_tasks"))["tasks"][0]["task_id"]
            await answer_over_a2a(server.client("1.0"), task_id, "Do not")
            messages = [message async for message in stream]
    assert shown(messages[-1]["result"])["state"] == "completed"
    assert '"no"' in await text(server, task_id)
    assert request["method"] == "elicitation/create"


async def test_the_time_of_the_person_does_not_count(server: Server) -> None:
    async with session(server.http, server.url, elicitation={}) as client:
        async with delegating(client, {**PERMIT, "wait_seconds": 2}) as stream:
            request = await anext(stream)
            done, _ = await asyncio.wait([asyncio.ensure_future(anext(stream))], timeout=3)
            assert not done
            await answer(client, request, accept("Go on"))
    assert request["method"] == "elicitation/create"


# --- the tool answer -----------------------------------------------------------------------------


async def test_a_permission_is_for_a_person(client: Mcp) -> None:
    asked = shown(await client.tool(NAME, PERMIT))
    assert asked["question"]["answered_by"] == "person"
    assert asked["question"]["link"] in asked["next"]
    given = {
        "task_id": asked["task_id"],
        "question_id": asked["question"]["question_id"],
        "option_id": "yes",
    }
    refused = await client.tool("answer", given)
    assert refused["isError"]
    assert "coding-agent-bridge answer" in text_of(refused)
    waited = await client.tool("wait", {"task_id": asked["task_id"], "wait_seconds": 0})
    assert shown(waited)["state"] == "input_required"


async def test_a_model_may_approve_if_the_operator_says_so(workspace: Path) -> None:
    scopes = {"trusted": ("run", "read", "approve"), "plain": ("run", "read")}
    tokens = {
        name: {"hash": f"sha256:{digest(name * 8).hex()}", "scopes": given}
        for name, given in scopes.items()
    }
    async with serving(workspace, tokens=tokens, bridge_mcp_approve="model") as server:
        for name, answered_by in (("plain", "person"), ("trusted", "model")):
            headers = {"Authorization": f"Bearer {name * 8}"}
            client = Mcp(server.http, server.url, headers=headers)
            asked = shown(await client.tool(NAME, PERMIT))
            assert asked["question"]["answered_by"] == answered_by
            given = {
                "task_id": asked["task_id"],
                "question_id": asked["question"]["question_id"],
                "option_id": "yes",
            }
            result = await client.tool("answer", given)
            assert result["isError"] == (name == "plain")


async def test_a_model_answers_other_questions(client: Mcp) -> None:
    asked = shown(await client.tool(NAME, {"prompt": "ask q Which?\nask r And?"}))
    assert asked["question"]["answered_by"] == "model"
    assert f'Call answer with task_id "{asked["task_id"]}"' in asked["next"]
    given = {
        "task_id": asked["task_id"],
        "question_id": asked["question"]["question_id"],
        "text": "this one",
    }
    first = await client.tool("answer", given)
    assert not first["isError"]
    waiting = {"task_id": asked["task_id"], "after": asked["next_after"], "wait_seconds": 5}
    first_id, question = asked["question"]["question_id"], {"question_id": ""}
    while question["question_id"] in ("", first_id):
        question = shown(await client.tool("wait", waiting)).get("question") or {"question_id": ""}
    again = await client.tool("answer", given)  # a repeated call
    assert not again["isError"]
    other = await client.tool("answer", {**given, "text": "another"})
    assert other["isError"]
    assert "not open" in text_of(other)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"option_id": "c"}, "one of these options: a, b."),
        ({"option_ids": ["a", "b"]}, "one of these options: a, b."),
        ({}, "Answer with an option_id (a, b) or text."),
    ],
)
async def test_an_answer_that_does_not_fit_names_the_choices(
    client: Mcp, given: Json, sentence: str
) -> None:
    options = [{"id": one, "name": one.upper()} for one in ("a", "b")]
    question = {"type": "question", "id": "q", "text": "Which?", "options": options}
    script = f"line {json.dumps(question)}\nanswers 1"
    asked = shown(await client.tool(NAME, {"prompt": script}))
    named = {"task_id": asked["task_id"], "question_id": asked["question"]["question_id"]}
    result = await client.tool("answer", {**named, **given})
    assert result["isError"]
    assert sentence in text_of(result)
    await client.tool("answer", {**named, "option_id": "b"})
    ended = shown(await client.tool("wait", {"task_id": asked["task_id"], "wait_seconds": 5}))
    assert ended["state"] in ("working", "completed")


async def test_delegate_never_answers(client: Mcp) -> None:
    asked = shown(await client.tool(NAME, PERMIT))
    more = {"prompt": "yes", "context_id": asked["context_id"]}
    refused = await client.tool(NAME, more)
    assert refused["isError"]
    assert "asks a question" in text_of(refused)
    waited = await client.tool("wait", {"task_id": asked["task_id"], "wait_seconds": 0})
    assert shown(waited)["state"] == "input_required"


async def test_a_conversation_is_continued(client: Mcp) -> None:
    first = shown(await client.tool(NAME, {"prompt": "turn\ndone"}))
    more = {"prompt": "turn\ndone", "context_id": first["context_id"]}
    second = shown(await client.tool(NAME, more))
    assert (first["text"], second["text"]) == ("1", "2")
    assert second["context_id"] == first["context_id"]
