"""The extension for tasks: creation, polls, forms, cancellation, and its errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bridge.auth.principal import digest
from bridge.task.answers import TO_READ
from tests.support.liveness import Liveness, listening
from tests.support.mcp import (
    Json,
    Mcp,
    McpError,
    accept,
    answer_over_a2a,
    form_key,
    messages,
    shown,
)
from tests.support.served import Server, serving

MEMBERS = {"taskId", "status", "statusMessage", "createdAt", "lastUpdatedAt", "ttlMs"}


METHODS: list[tuple[str, Json]] = [
    ("get", {}),
    ("cancel", {}),
    ("update", {"inputResponses": {}}),
]


@pytest.fixture
def tasks(server: Server) -> Mcp:
    """A client that declares tasks, and no forms."""
    return Mcp(server.http, server.url, tasks=True)


@pytest.fixture
def both(server: Server) -> Mcp:
    """A client that declares tasks and forms, as Claude Code does."""
    return Mcp(server.http, server.url, tasks=True, forms=True)


@pytest.fixture
async def live() -> AsyncIterator[Liveness]:
    async with listening() as live:
        yield live


def own(found: Json) -> set[str]:
    return set(found) - {"_meta", "pollIntervalMs"}


async def test_a_delegated_task_is_created_at_once(tasks: Mcp) -> None:
    found = await tasks.tool("delegate", {"prompt": "ask q Which?"})
    assert own(found) == MEMBERS | {"resultType"}
    assert (found["resultType"], found["status"]) == ("task", "working")
    assert len(found["statusMessage"]) <= 200
    assert datetime.fromisoformat(found["createdAt"]) <= datetime.fromisoformat(
        found["lastUpdatedAt"]
    )
    assert (await tasks.task("get", found["taskId"]))["resultType"] == "complete"


async def test_a_call_that_does_not_wait_reports_no_progress(tasks: Mcp) -> None:
    """Claude Code takes a report that it reads after the result for a fault of the connection."""
    params = {"name": "delegate", "arguments": {"prompt": "status Reading\nask q Which?"}}
    body = tasks.body("tools/call", params, progressToken="p")
    headers = tasks.routing("tools/call", params)
    async with tasks.http.post(tasks.url, data=json.dumps(body), headers=headers) as response:
        (found,) = await messages(response)
    assert found["result"]["resultType"] == "task"


async def test_no_client_gets_a_task_that_it_did_not_declare(server: Server) -> None:
    for client in (Mcp(server.http, server.url), Mcp(server.http, server.url, forms=True)):
        found = await client.tool("delegate", {"prompt": "text hello\ndone"})
        assert found["resultType"] == "complete"


async def test_the_result_of_a_task_is_the_one_of_a_plain_call(server: Server, tasks: Mcp) -> None:
    script = {"prompt": "text hello\nstatus step\ntext  world\ndone"}
    created = await tasks.tool("delegate", script)
    polled = await tasks.polled(created["taskId"], "completed")
    assert own(polled) == MEMBERS | {"resultType", "result"}
    plain = await Mcp(server.http, server.url).tool("delegate", script)
    assert normal(polled["result"]) == normal(plain)


def normal(result: Json) -> str:
    """The result with the members that differ between two tasks replaced."""
    task = result["structuredContent"]
    task.pop("usage")
    text = json.dumps(
        {name: value for name, value in result.items() if name != "_meta"}, sort_keys=True
    )
    return text.replace(task["task_id"], "TASK").replace(task["context_id"], "CONTEXT")


async def test_with_wait_seconds_a_short_task_has_its_result_at_once(tasks: Mcp) -> None:
    found = await tasks.tool("delegate", {"prompt": "text hello\ndone", "wait_seconds": 20})
    assert shown(found)["text"] == "hello"
    found = await tasks.tool("delegate", {"prompt": "pause 30", "wait_seconds": 1})
    assert found["resultType"] == "task"


async def test_a_call_that_waits_returns_at_a_question(both: Mcp) -> None:
    """The client gets the form when it polls."""
    asking = {"prompt": "permit q May I?", "wait_seconds": 50}
    async with asyncio.timeout(10):
        created = await both.tool("delegate", asking)
    assert created["resultType"] == "task"
    polled = await both.task("get", created["taskId"])
    assert list(polled["inputRequests"]) == [form_key(created)]


@pytest.mark.parametrize(
    ("end", "reason"), [("fail It broke.", "agent-error"), ("reject No.", "rejected")]
)
async def test_a_failed_task_is_completed_with_an_error(tasks: Mcp, end: str, reason: str) -> None:
    created = await tasks.tool("delegate", {"prompt": f"text so far\n{end}"})
    polled = await tasks.polled(created["taskId"], "completed")
    assert polled["result"]["isError"]
    assert polled["result"]["structuredContent"]["reason"] == reason


async def test_the_life_of_a_task_is_what_the_server_keeps(workspace: Path) -> None:
    for days, low, high in ((2, 2 * 86_400_000, 2 * 86_400_000 + 60_000), (0, None, None)):
        async with serving(workspace, bridge_keep_days=days) as server:
            client = Mcp(server.http, server.url, tasks=True)
            found = await client.tool("delegate", {"prompt": "done"})
            assert "ttlMs" in found
            if low is None or high is None:
                assert found["ttlMs"] is None
            else:
                assert low <= found["ttlMs"] <= high


async def test_an_unknown_task_is_a_wrong_param(tasks: Mcp) -> None:
    for method, more in METHODS:
        with pytest.raises(McpError) as caught:
            await tasks.task(method, "nope", **more)
        assert (caught.value.status, caught.value.code) == (400, -32602)


async def test_the_declaration_is_required(server: Server, tasks: Mcp) -> None:
    created = await tasks.tool("delegate", {"prompt": "done"})
    plain = Mcp(server.http, server.url, forms=True)
    for method, more in METHODS:
        with pytest.raises(McpError) as caught:
            await plain.task(method, created["taskId"], **more)
        assert (caught.value.status, caught.value.code) == (400, -32021)
        needed = caught.value.error["data"]["requiredCapabilities"]["extensions"]
        assert list(needed) == ["io.modelcontextprotocol/tasks"]


async def test_a_task_of_another_principal_is_unknown(workspace: Path) -> None:
    hashes = {name: {"hash": f"sha256:{digest(name * 8).hex()}"} for name in ("alice", "bobby")}
    async with serving(workspace, tokens=hashes) as server:
        clients = [
            Mcp(server.http, server.url, tasks=True, headers={"Authorization": f"Bearer {one * 8}"})
            for one in hashes
        ]
        created = await clients[0].tool("delegate", {"prompt": "done"})
        await clients[0].task("get", created["taskId"])
        with pytest.raises(McpError) as caught:
            await clients[1].task("get", created["taskId"])
        assert caught.value.code == -32602
        result = await clients[1].tool("wait", {"task_id": created["taskId"]})
        assert result["isError"]
        assert (await clients[1].tool("list_tasks"))["structuredContent"]["tasks"] == []


async def test_cancel_leaves_no_process(tasks: Mcp, live: Liveness) -> None:
    for way in ("task", "tool"):
        script = f"spawn {live.path} child{way}\nhere {live.path} {way}\nask q Which?"
        created = await tasks.tool("delegate", {"prompt": script})
        await live.pid(way)
        if way == "task":
            ended = await tasks.task("cancel", created["taskId"])
            assert own(ended) == {"resultType"}
        else:
            cancel = {"task_id": created["taskId"]}
            assert shown(await tasks.tool("cancel", cancel))["state"] == "canceled"
            assert shown(await tasks.tool("cancel", cancel))["state"] == "canceled"
        await live.gone(way, f"child{way}")
        polled = await tasks.task("get", created["taskId"])
        assert own(polled) == MEMBERS | {"resultType"}
        assert polled["status"] == "cancelled"
        assert own(await tasks.task("cancel", created["taskId"])) == {"resultType"}
        update = await tasks.task("update", created["taskId"], inputResponses={})
        assert own(update) == {"resultType"}


async def test_without_forms_a_question_is_a_link(tasks: Mcp) -> None:
    created = await tasks.tool("delegate", {"prompt": "permit q May I?"})
    await tasks.tool("wait", {"task_id": created["taskId"], "wait_seconds": 5, "after": 1})
    polled = await tasks.task("get", created["taskId"])
    assert polled["status"] == "working"
    assert "May I?" in polled["statusMessage"]
    assert f"coding-agent-bridge answer {created['taskId']}" in polled["statusMessage"]
    assert polled["pollIntervalMs"] == 2000


async def test_a_question_is_a_form_and_its_answer_continues_the_task(both: Mcp) -> None:
    created = await both.tool("delegate", {"prompt": "permit q May I?\ntext  ended"})
    polled = await both.polled(created["taskId"], "input_required")
    assert list(polled["inputRequests"]) == [form_key(created)]
    request = polled["inputRequests"][form_key(created)]
    assert request["method"] == "elicitation/create"
    assert request["params"]["requestedSchema"]["properties"]["decision"]["enum"] == [
        "Do not",
        "Go on",
    ]
    assert "default" not in json.dumps(request)
    again = await both.task("get", created["taskId"])
    assert list(again["inputRequests"]) == [form_key(created)]  # the same form until it is answered
    responses = {form_key(created): accept("Go on")}
    updated = await both.task("update", created["taskId"], inputResponses=responses)
    assert own(updated) == {"resultType"}
    ended = await both.polled(created["taskId"], "completed")
    assert 'answered ["q", "", "yes"]' in ended["result"]["structuredContent"]["text"]


@pytest.mark.parametrize(
    ("response", "option"), [(accept("Do not"), "no"), ({"action": "decline"}, "no")]
)
async def test_a_refusal_rejects_once(both: Mcp, response: Json, option: str) -> None:
    created = await both.tool("delegate", {"prompt": "permit q May I?"})
    await both.polled(created["taskId"], "input_required")
    await both.task("update", created["taskId"], inputResponses={form_key(created): response})
    ended = await both.polled(created["taskId"], "completed")
    assert f'answered ["q", "", "{option}"]' in ended["result"]["structuredContent"]["text"]


async def test_a_canceled_form_decides_nothing(both: Mcp) -> None:
    created = await both.tool("delegate", {"prompt": "permit q May I?"})
    await both.polled(created["taskId"], "input_required")
    canceled = {form_key(created): {"action": "cancel"}}
    await both.task("update", created["taskId"], inputResponses=canceled)
    polled = await both.task("get", created["taskId"])
    assert polled["status"] == "working"
    assert "coding-agent-bridge answer" in polled["statusMessage"]
    late = {form_key(created): accept("Go on")}  # the form was withdrawn
    await both.task("update", created["taskId"], inputResponses=late)
    assert (await both.task("get", created["taskId"]))["status"] == "working"


async def test_a_form_that_does_not_fit_is_repeated_with_a_new_key(both: Mcp) -> None:
    created = await both.tool("delegate", {"prompt": "permit q May I?"})
    keys = []
    for _ in range(3):
        polled = await both.polled(created["taskId"], "input_required")
        (key,) = polled["inputRequests"]
        keys.append(key)
        wrong = {key: accept("Perhaps")}
        await both.task("update", created["taskId"], inputResponses=wrong)
    assert keys == [form_key(created, number) for number in (1, 2, 3)]
    assert (await both.task("get", created["taskId"]))["status"] == "working"


async def test_the_first_answer_wins(server: Server, both: Mcp) -> None:
    """An A2A client answers while the form is out."""
    created = await both.tool("delegate", {"prompt": "permit q May I?\nask r And now?"})
    await both.polled(created["taskId"], "input_required")
    a2a = server.client("1.0")
    await answer_over_a2a(a2a, created["taskId"], "Do not")
    late = {form_key(created): accept("Go on")}
    await both.task("update", created["taskId"], inputResponses=late)
    polled = await both.polled(created["taskId"], "input_required")
    assert list(polled["inputRequests"]) == [form_key(created, question=2)]
    schema = polled["inputRequests"][form_key(created, question=2)]["params"]["requestedSchema"]
    assert list(schema["properties"]) == ["answer"]
    words = {form_key(created, question=2): {"action": "accept", "content": {"answer": "thanks"}}}
    await both.task("update", created["taskId"], inputResponses=words)
    ended = await both.polled(created["taskId"], "completed")
    result = await both.tool("result", {"task_id": created["taskId"], "part": "text"})
    assert 'answered ["q", "Do not", "no"]' in shown(result)["content"]
    assert 'answered ["r", "thanks", null]' in shown(ended["result"])["text"]


async def test_of_two_answers_at_once_one_counts(server: Server, both: Mcp) -> None:
    other = Mcp(server.http, server.url, tasks=True, forms=True)
    for _ in range(5):
        created = await both.tool("delegate", {"prompt": "permit q May I?"})
        await both.polled(created["taskId"], "input_required")
        given = [{form_key(created): accept(one)} for one in ("Go on", "Do not")]
        updates = [
            one.task("update", created["taskId"], inputResponses=answers)
            for one, answers in zip((both, other), given, strict=True)
        ]
        await asyncio.gather(*updates)
        ended = await both.polled(created["taskId"], "completed")
        assert shown(ended["result"])["text"].count("answered") == 1
    assert len(shown(await both.tool("list_tasks"))["tasks"]) == 5  # no answer became a prompt


async def test_responses_that_are_none_are_refused(both: Mcp) -> None:
    created = await both.tool("delegate", {"prompt": "permit q May I?"})
    await both.polled(created["taskId"], "input_required")
    wrong: list[Any] = [
        {form_key(created): {"action": "perhaps"}},
        {form_key(created): 5},
        [],
        None,
    ]
    for responses in wrong:
        with pytest.raises(McpError) as caught:
            await both.task("update", created["taskId"], inputResponses=responses)
        assert (caught.value.status, caught.value.code) == (400, -32602)
    unknown = {
        form_key(created, 9): accept("Go on"),
        form_key(created, question=2): accept("Go on"),
        "s.1": {"any": "shape"},
    }
    await both.task("update", created["taskId"], inputResponses=unknown)
    assert (await both.task("get", created["taskId"]))["status"] == "input_required"


async def test_a_login_is_never_a_form(both: Mcp) -> None:
    created = await both.tool("delegate", {"prompt": "login q Sign in."})
    await both.tool("wait", {"task_id": created["taskId"], "wait_seconds": 5, "after": 1})
    polled = await both.task("get", created["taskId"])
    assert polled["status"] == "working"
    assert "Sign in." in polled["statusMessage"]


async def test_a_quick_form_is_declined_at_once(workspace: Path) -> None:
    """As a client without a person does."""
    async with serving(workspace, bridge_mcp_forms="quick") as server:
        both = Mcp(server.http, server.url, tasks=True, forms=True)
        created = await both.tool("delegate", {"prompt": "permit q May I?"})
        await both.polled(created["taskId"], "input_required")
        declined = {form_key(created): {"action": "decline"}}
        await both.task("update", created["taskId"], inputResponses=declined)
        ended = await both.polled(created["taskId"], "completed")
        assert '"no"' in shown(ended["result"])["text"]


async def test_a_quick_form_takes_a_letter_that_a_person_has_typed(workspace: Path) -> None:
    """Takes a second: an answer counts when the question can have been read."""
    allowed = {"action": "accept", "content": {"answer": "y"}}
    async with serving(workspace, bridge_mcp_forms="quick") as server:
        both = Mcp(server.http, server.url, tasks=True, forms=True)
        created = await both.tool("delegate", {"prompt": "permit q May I?"})
        polled = await both.polled(created["taskId"], "input_required")
        asked = datetime.fromisoformat(polled["lastUpdatedAt"])
        second = form_key(created, 2)
        await both.task("update", created["taskId"], inputResponses={form_key(created): allowed})
        if datetime.now(UTC) - asked < TO_READ:  # else this machine is too slow for a hasty answer
            polled = await both.polled(created["taskId"], "input_required")
            assert list(polled["inputRequests"]) == [second]
        while datetime.now(UTC) - asked < TO_READ:  # noqa: ASYNC110 - the time is the subject
            await asyncio.sleep(0.05)
        await both.task("update", created["taskId"], inputResponses={second: allowed})
        ended = await both.polled(created["taskId"], "completed")
        assert '"yes"' in shown(ended["result"])["text"]
